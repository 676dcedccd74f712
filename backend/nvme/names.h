/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of NVMe state, and a table of the files that have a name, which a fatal signal must
 * remove or report. */
#ifndef STW_BACKEND_NVME_NAMES_H
#define STW_BACKEND_NVME_NAMES_H

#include <stdbool.h>
#include <stdint.h>

/** What a signal does with a file that has a name. */
typedef enum stw_nvme_fate {
    STW_NVME_FATE_REMOVE, /* it holds nothing useful */
    STW_NVME_FATE_KEEP    /* keep it, and name it on stderr */
} stw_nvme_fate;

/** Returns the folder of NVMe state: `named`, else $TMPDIR, else /tmp. */
const char *stw_nvme_folder(const char *named);
/** True if the folder is in memory (tmpfs, ramfs). */
bool stw_nvme_folder_is_memory(const char *folder);

/** Wait until the names of files in it survive a power failure; a failure is a warning. */
void stw_nvme_folder_sync(const char *folder);

/** Add a file to the table, or change its entry. Call it before the file gets its name. Any thread.
 * A signal ignores files beyond the 64th, as SIGKILL does.
 * @param entry of an earlier call; -1: none
 * @return its entry; -1: no room */
int stw_nvme_names_set(int entry, const char *folder, const char *path, uint64_t step,
                       stw_nvme_fate fate);
/** Remove an entry: the file has no name any more. @param entry -1 is fine */
void stw_nvme_names_drop(int entry);

/** For a handler of SIGINT, SIGTERM and similar signals, which then ends the process: remove
 * useless files; on stderr name the files that are kept, or report that their header or record is
 * damaged. Async-signal-safe. */
void stw_nvme_on_signal(void);

#endif
