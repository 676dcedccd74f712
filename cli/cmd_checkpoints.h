/* SPDX-License-Identifier: Apache-2.0 */
/* What `stowage state` says and does about checkpoints. */
#ifndef STW_CLI_CMD_CHECKPOINTS_H
#define STW_CLI_CMD_CHECKPOINTS_H

#include "cli/commands.h"

/** Is a path a checkpoint, or a folder with some, whole or not? What is no folder has none.
 * @return NO_MEMORY, or an error of a folder that is there and cannot be read */
STW_MUST_USE stw_status stw_state_has_checkpoints(const char *path, bool *out, stw_error *err);
/** List them; or read them and compare every hash: DISAGREE where one is damaged or not complete.
 */
STW_MUST_USE stw_status stw_state_show_checkpoints(const char *path, bool verifies,
                                                   const stw_general *general, stw_error *err);
/** Remove the one, if `path` is one; else, of a folder, those that are not complete. USAGE while a
 * run saves there. */
STW_MUST_USE stw_status stw_state_remove_checkpoints(const char *path, const stw_general *general,
                                                     stw_error *err);

#endif
