/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of safetensors that is written beside the one that it replaces. One thread at a time,
 * stw_export_files_write apart. */
#ifndef STW_BACKEND_EXECUTOR_EXPORT_FILES_H
#define STW_BACKEND_EXECUTOR_EXPORT_FILES_H

#include "plan/engines/export.h"

typedef struct stw_export_files stw_export_files;

/** Deal tensors to files: in order, those of one writer, of at most some 5 GB.
 * @param plan, targets borrowed; targets [tensors of the plan]
 * @return USAGE for a path that is there and no flat folder of safetensors */
STW_MUST_USE stw_status stw_export_files_new(const stw_export *plan, const stw_sync_piece *targets,
                                             const char *path, uint32_t rank,
                                             stw_export_files **out, stw_error *err);
/** Closes files; rank 0 removes a folder that was not published. NULL is fine. */
void stw_export_files_free(stw_export_files *files);
uint64_t stw_export_files_bytes(const stw_export_files *files); /* of all tensors */
/** Rank 0: make the folder of a step. */
STW_MUST_USE stw_status stw_export_files_make(stw_export_files *files, uint64_t step,
                                              stw_error *err);
/** Make this rank's files in it, with their headers. */
STW_MUST_USE stw_status stw_export_files_begin(stw_export_files *files, uint64_t step,
                                               stw_error *err);
/** Write a box of a tensor of this rank's, in C order in `data`. Any thread. */
STW_MUST_USE stw_status stw_export_files_write(const stw_export_files *files, uint32_t tensor,
                                               const stw_box *box, const void *data,
                                               stw_error *err);
/** Flush and close this rank's files. */
STW_MUST_USE stw_status stw_export_files_end(stw_export_files *files, stw_error *err);
/** Rank 0, once all ranks have ended: the index, copies of the other files of `like` (NULL, or no
 * folder: none), and the exchange with what was there. */
STW_MUST_USE stw_status stw_export_files_publish(stw_export_files *files, const char *like,
                                                 uint64_t step, stw_error *err);

#endif
