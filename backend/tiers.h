/* SPDX-License-Identifier: Apache-2.0 */
/* What every backend has besides its own GPU: the arenas, the NVMe arena with the buffer through
 * which its values are made and looked at by the CPU, and the table of spans. Backends embed an
 * stw_tiers and hand to it what does not concern their GPU. Ranges are checked here. Any thread may
 * call, except where backend.h says otherwise. */
#ifndef STW_BACKEND_TIERS_H
#define STW_BACKEND_TIERS_H

#include <pthread.h>

#include "backend/arena.h"
#include "backend/host/pool.h"
#include "backend/nvme/nvme.h"

#define STW_BOUNCE_BYTES (4ull << 20) /* the most bytes of NVMe looked at together */

typedef struct stw_tiers {
    stw_arenas arenas;
    stw_element_types types;
    stw_threads *threads; /* the backend's; NULL: the caller alone */
    stw_nvme *nvme;       /* NULL for an empty NVMe arena */
    bool commits;         /* the NVMe arena has two copies */
    unsigned char *bounce;
    pthread_mutex_t mutex; /* of `bounce` */
    stw_span *spans;       /* the backend's memory: room for span_room */
    uint32_t n_spans, span_room;
    bool spans_outside; /* as in stw_device_config */
} stw_tiers;

/** Check a configuration (stw_arenas_init) and keep what concerns the tiers. Addresses of arenas
 * that the backend allocates, `threads` and `spans` are set by the backend. To be closed even after
 * a failure. */
STW_MUST_USE stw_status stw_tiers_open(stw_tiers *tiers, const stw_device_config *config,
                                       stw_error *err);
/** Make the NVMe arena. */
STW_MUST_USE stw_status stw_tiers_open_nvme(stw_tiers *tiers, const stw_device_config *config,
                                            stw_error *err);
void stw_tiers_close(stw_tiers *tiers); /* after a stw_tiers_open */

/* ---- tiers.c: bytes and values ---- */

/** Between host and NVMe, one way or the other; BUG for other tiers. Blocking. */
STW_MUST_USE stw_status stw_tiers_copy_nvme(stw_tiers *tiers, stw_location to, stw_location from,
                                            uint64_t bytes, stw_error *err);
/** A part of a range that is visited. */
typedef struct stw_tiers_piece {
    unsigned char *memory; /* its bytes, in the arena or in the bounce buffer */
    uint64_t done;         /* bytes of the range before it */
    uint64_t bytes;
} stw_tiers_piece;

/** What is done with each piece, in order. */
typedef struct stw_visitor {
    stw_status (*fn)(const stw_tiers_piece *piece, void *arg, stw_error *err);
    void *arg;
    bool writes;         /* pieces of NVMe are written after `fn`, else they are read before it */
    uint64_t most_bytes; /* of a piece of NVMe; a multiple of a value's. 0: STW_BOUNCE_BYTES */
} stw_visitor;

/** Visit bytes by the CPU: a range of gpu or host in one piece, one of NVMe in several. */
STW_MUST_USE stw_status stw_tiers_visit(stw_tiers *tiers, stw_location at, uint64_t bytes,
                                        const stw_visitor *visitor, stw_error *err);
/** The slots of the same names, by the CPU: every tier must be one that it reaches. */
STW_MUST_USE stw_status stw_tiers_seed_grads(stw_tiers *tiers, stw_typed_range to, uint64_t element,
                                             uint64_t seed, uint64_t step, stw_error *err);
STW_MUST_USE stw_status stw_tiers_zero(stw_tiers *tiers, stw_location to, uint64_t bytes,
                                       stw_error *err);
STW_MUST_USE stw_status stw_tiers_digest(stw_tiers *tiers, stw_typed_range values, uint64_t element,
                                         uint64_t *sum, stw_error *err);
STW_MUST_USE stw_status stw_tiers_convert(stw_tiers *tiers, stw_typed_range to, stw_location from,
                                          stw_dtype from_dtype, stw_error *err);

/* ---- buckets.c: spans and the operands of updates ---- */

/** BUG unless spans follow each other without gaps, fit the table and have known parameter groups.
 */
STW_MUST_USE stw_status stw_tiers_check_spans(const stw_tiers *tiers, const stw_span *spans,
                                              uint32_t n, stw_error *err);

/** Addresses of a bucket's components: of its first element, or, in spans, what the spans' offsets
 * count from; NULL where the run has none. */
typedef struct stw_bucket_addresses {
    void *params, *grads, *master, *exp_avg, *exp_avg_sq;
    bool on_host; /* one of them at least lies in host memory */
} stw_bucket_addresses;

/** BUG where the spans do not cover the bucket, a component lies outside its arena, or the stream
 * cannot update there. */
STW_MUST_USE stw_status stw_tiers_resolve(const stw_tiers *tiers, stw_stream stream,
                                          const stw_bucket_operands *bucket,
                                          stw_bucket_addresses *out, stw_error *err);
/** AdamW by the CPU on addresses that were resolved. @param factor used with adamw->clip only */
void stw_tiers_update(const stw_tiers *tiers, const stw_adamw *adamw, float factor,
                      const stw_bucket_operands *bucket, const stw_bucket_addresses *at);

/* ---- slots of stw_backend that need nothing but the tiers ----
 * The struct stw_device of every backend begins with its stw_tiers. */

void *stw_tiers_host_address(stw_device *device, uint64_t offset, uint64_t bytes);
void *stw_tiers_device_address(stw_device *device, uint64_t offset, uint64_t bytes);
STW_MUST_USE stw_status stw_tiers_read(stw_device *device, uint64_t host_offset,
                                       uint64_t nvme_offset, uint64_t bytes, stw_error *err);
STW_MUST_USE stw_status stw_tiers_write(stw_device *device, uint64_t nvme_offset,
                                        uint64_t host_offset, uint64_t bytes, stw_error *err);
STW_MUST_USE stw_status stw_tiers_commit(stw_device *device, uint64_t step, stw_error *err);
stw_nvme *stw_tiers_nvme(stw_device *device);

#endif
