/* SPDX-License-Identifier: Apache-2.0 */
/* Change values in a cluster.yaml, whether a person or calibrate wrote it. The rest of the file
 * stays as it is, with its raw samples and comments. One thread at a time uses a file. */
#ifndef STW_PLAN_CLUSTER_EDIT_H
#define STW_PLAN_CLUSTER_EDIT_H

#include "plan/spec/cluster.h"

/** A cluster file as read. */
typedef struct stw_cluster_file {
    const char *path;
    bool exists;
    stw_text text;
    stw_cluster cluster; /* undefined if the file does not exist */
} stw_cluster_file;

#define STW_CLUSTER_FILE_INIT                                                                      \
    { .text = STW_TEXT_INIT }

/** Read a cluster.yaml if it exists. BAD_INPUT as stw_cluster_read and stw_cluster_check.
 * @param path borrowed; must outlive `out` */
STW_MUST_USE stw_status stw_cluster_file_open(const char *path, stw_cluster_file *out,
                                              stw_error *err);
void stw_cluster_file_close(stw_cluster_file *file);
/** Write the values in which `wanted` differs from the file; a new file gets all of them. Writes
 * nothing if nothing differs. BAD_INPUT if the new text would not read back as `wanted`; the file
 * then stays.
 * @param changed out, true if the file changed */
STW_MUST_USE stw_status stw_cluster_file_update(stw_cluster_file *file, const stw_cluster *wanted,
                                                bool *changed, stw_error *err);

#endif
