/* SPDX-License-Identifier: Apache-2.0 */
/* Where the files of NVMe state are made, and which of them have a name: what a signal that ends
 * the process must remove or tell. */
#ifndef STW_BACKEND_NVME_NAMES_H
#define STW_BACKEND_NVME_NAMES_H

#include <stdbool.h>
#include <stdint.h>

/** What a signal does with a file that has a name. */
typedef enum stw_nvme_fate {
    STW_NVME_FATE_REMOVE, /* it holds nothing of use */
    STW_NVME_FATE_KEEP    /* it is named on stderr */
} stw_nvme_fate;

/** The folder of NVMe state: `named`, else $TMPDIR, else /tmp. */
const char *stw_nvme_folder(const char *named);
/** Does the folder lie in memory (tmpfs, ramfs)? */
bool stw_nvme_folder_is_memory(const char *folder);

/** Wait until the names of files in it outlive a power failure; a warning where that fails. */
void stw_nvme_folder_sync(const char *folder);

/** Enter a file into the table, or change its entry: call it before the file gets its name. Any
 * thread. Beyond 64 files a signal leaves the further ones as SIGKILL does.
 * @param entry of an earlier call, -1 for none; @return its entry, -1 where there is no room */
int stw_nvme_names_set(int entry, const char *folder, const char *path, uint64_t step,
                       stw_nvme_fate fate);
/** The file has no name any more. @param entry -1 is fine */
void stw_nvme_names_drop(int entry);

/** For a handler of SIGINT, SIGTERM and the like, which ends the process afterwards: remove what is
 * of no use, and tell on stderr what is kept, or that its header or record no longer is what was
 * written. Async-signal-safe. */
void stw_nvme_on_signal(void);

#endif
