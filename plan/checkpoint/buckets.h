/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on the host through which a rank's part of a save passes: buckets that are filled in turn,
 * as far ahead of the disk as there are buckets. */
#ifndef STW_PLAN_CHECKPOINT_BUCKETS_H
#define STW_PLAN_CHECKPOINT_BUCKETS_H

#include "core/checked.h"

#define STW_SAVE_BUCKET_BYTES (32ull << 20)
/** Buckets of a rank: one that is filled while another is written, and those in which state waits
 * so that the next step may change it. @param copies_bytes checkpoint.copies, whole buckets */
static inline uint32_t stw_save_buckets(uint64_t bucket_bytes, uint64_t copies_bytes) {
    return 2 + (uint32_t)stw_min_u64(stw_div_up_u64(copies_bytes, bucket_bytes), UINT32_MAX / 2);
}

#endif
