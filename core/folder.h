/* SPDX-License-Identifier: Apache-2.0 */
/* Flat folders: their names, one after the other, and folders of weights that are made beside
 * their place. Any thread may call. */
#ifndef STW_CORE_FOLDER_H
#define STW_CORE_FOLDER_H

#include <stdbool.h>

#include "core/status.h"

#define STW_FOLDER_PATH 4400 /* of a file in a folder: PATH_MAX + NAME_MAX and more */

typedef stw_status (*stw_folder_name_fn)(void *state, const char *folder, const char *name,
                                         stw_error *err);
/** Every name in a folder but "." and "..", in no order, until one fails. */
STW_MUST_USE stw_status stw_folder_each(const char *folder, stw_folder_name_fn fn, void *state,
                                        stw_error *err);
/** "folder/name" */
void stw_folder_join(char out[STW_FOLDER_PATH], const char *folder, const char *name);
/** Remove the files of a folder, or the folder with them. A folder in it is an error. */
STW_MUST_USE stw_status stw_folder_empty(const char *folder, stw_error *err);
STW_MUST_USE stw_status stw_folder_remove(const char *folder, stw_error *err);
/** Wait until the disk holds the names in a folder. */
STW_MUST_USE stw_status stw_folder_sync(const char *folder, stw_error *err);
/** The same of the folder that a path lies in. */
STW_MUST_USE stw_status stw_folder_sync_parent(const char *path, stw_error *err);
/** Is a name one of those that a folder of a model has besides its weights (config.json,
 * tokenizer)? */
bool stw_folder_is_rest(const char *name);

#endif
