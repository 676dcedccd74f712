/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a folder of safetensors beside the one that it replaces. One thread at a time, except for
 * stw_export_files_write. */
#ifndef STW_BACKEND_EXECUTOR_EXPORT_FILES_H
#define STW_BACKEND_EXECUTOR_EXPORT_FILES_H

#include "engines/export.h"

typedef struct stw_export_files stw_export_files;

/** Assign tensors to files, in order: a file has tensors of one writer and at most about 5 GB.
 * @param plan, targets borrowed; targets [tensors of the plan]
 * @return USAGE if the path exists and is not a flat folder of safetensors */
STW_MUST_USE stw_status stw_export_files_new(const stw_export *plan, const stw_sync_piece *targets,
                                             const char *path, uint32_t rank,
                                             stw_export_files **out, stw_error *err);
/** Closes files; rank 0 removes a folder that was not published. NULL is fine. */
void stw_export_files_free(stw_export_files *files);
uint64_t stw_export_files_bytes(const stw_export_files *files); /* bytes of all tensors */
/** Rank 0: make the folder of a step. */
STW_MUST_USE stw_status stw_export_files_make(stw_export_files *files, uint64_t step,
                                              stw_error *err);
/** Make this rank's files in that folder, with their headers. */
STW_MUST_USE stw_status stw_export_files_begin(stw_export_files *files, uint64_t step,
                                               stw_error *err);
/** Write a box of one of this rank's tensors; `data` is in C order. Any thread. */
STW_MUST_USE stw_status stw_export_files_write(const stw_export_files *files, uint32_t tensor,
                                               const stw_box *box, const void *data,
                                               stw_error *err);
/** Flush and close this rank's files. */
STW_MUST_USE stw_status stw_export_files_end(stw_export_files *files, stw_error *err);
/** Rank 0, after all ranks have called stw_export_files_end: write the index, copy the other files
 * of the folder `like` (NULL, or no folder: none), and swap the new folder with the old one. */
STW_MUST_USE stw_status stw_export_files_publish(stw_export_files *files, const char *like,
                                                 uint64_t step, stw_error *err);

#endif
