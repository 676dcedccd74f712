/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for arenas, lent to every run of a test: of the load's slots small models touch little,
 * and nobody fills the rest with zeros. */
#ifndef STW_TESTS_UNIT_LENT_H
#define STW_TESTS_UNIT_LENT_H

#include <stdlib.h>
#include <sys/mman.h>

#include "backend/backend.h"

#define LENT_BYTES (512ull << 20) /* of each tier */

static const stw_device_config *lent_memory(void) {
    static stw_device_config lent;
    const stw_tier tiers[] = {STW_TIER_GPU, STW_TIER_HOST};
    for (int i = 0; i < 2 && lent.external[tiers[i]].address == NULL; i++) {
        void *memory = mmap(NULL, LENT_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        lent.external[tiers[i]] = (stw_external_arena){memory, LENT_BYTES};
    }
    return &lent;
}

#endif
