/* SPDX-License-Identifier: Apache-2.0 */
/* One device of the host backend, for its sources alone (host.c, values.c, update.c). Functions
 * whose names are those of slots of stw_backend have the meaning that backend/backend.h says. */
#ifndef STW_BACKEND_HOST_DEVICE_H
#define STW_BACKEND_HOST_DEVICE_H

#include <pthread.h>

#include "backend/backend.h"
#include "backend/host/pool.h"
#include "backend/norm.h"
#include "backend/nvme/nvme.h"

#define STW_HOST_SCRATCH_BYTES (4ull << 20) /* through which NVMe ranges are looked at */

struct stw_device {
    stw_device_config config;
    unsigned char *arena[STW_N_TIERS]; /* GPU and host; NULL where empty */
    uint64_t reach[STW_N_TIERS];       /* bytes that offsets reach: of NVMe one copy */
    stw_nvme *nvme;                    /* NULL where the NVMe arena is empty */
    pthread_mutex_t scratch_mutex;
    unsigned char *scratch;
    stw_threads *threads;
    stw_span *spans; /* room for config.n_spans */
    uint32_t n_spans;
    pthread_mutex_t mutex; /* of what follows */
    stw_norm_bins bins;
    uint64_t counters[STW_NORM_COUNTERS];
    double norm;
    float factor;
};

/** BUG where bytes from a location on are not inside what offsets of the tier reach. */
STW_MUST_USE stw_status stw_host_check_range(const stw_device *device, stw_location at,
                                             uint64_t bytes, stw_error *err);
/** Address of a range of the GPU or host arena, checked; NULL for an empty arena. */
STW_MUST_USE stw_status stw_host_range(const stw_device *device, stw_location at, uint64_t bytes,
                                       unsigned char **out, stw_error *err);
/** Bytes of values; BUG for a type that is none or an offset that does not fit it. */
STW_MUST_USE stw_status stw_host_value_bytes(stw_typed_range values, uint64_t *bytes,
                                             stw_error *err);
/** Both: the address of values. */
STW_MUST_USE stw_status stw_host_value_range(const stw_device *device, stw_typed_range values,
                                             unsigned char **out, stw_error *err);

/* update.c */
STW_MUST_USE stw_status stw_host_set_spans(stw_device *device, const stw_span *spans, uint32_t n,
                                           stw_error *err);
STW_MUST_USE stw_status stw_host_update(stw_device *device, stw_stream stream,
                                        const stw_adamw *adamw, const stw_bucket_operands *bucket,
                                        stw_error *err);

/* values.c */
STW_MUST_USE stw_status stw_host_convert_range(stw_device *device, stw_stream stream,
                                               stw_typed_range to, stw_location from,
                                               stw_dtype from_dtype, stw_error *err);
STW_MUST_USE stw_status stw_host_seed_range(stw_device *device, stw_typed_range to,
                                            uint64_t element, uint64_t seed, uint64_t step,
                                            stw_error *err);
STW_MUST_USE stw_status stw_host_zero_range(stw_device *device, stw_location to, uint64_t bytes,
                                            stw_error *err);
STW_MUST_USE stw_status stw_host_digest_range(stw_device *device, stw_typed_range values,
                                              uint64_t element, uint64_t *sum, stw_error *err);

#endif
