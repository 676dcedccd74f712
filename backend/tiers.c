/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* madvise */
#include "backend/tiers.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "backend/host/kernels.h"
#include "core/checked.h"

stw_status stw_tiers_open(stw_tiers *tiers, const stw_device_config *config, stw_error *err) {
    memset(tiers, 0, sizeof *tiers);
    pthread_mutex_init(&tiers->mutex, NULL);
    tiers->types = config->types;
    tiers->span_room = config->n_spans;
    tiers->spans_outside = config->spans_outside;
    tiers->commits = config->nvme_copies > 1;
    return stw_arenas_init(&tiers->arenas, config, err);
}

stw_status stw_tiers_open_nvme(stw_tiers *tiers, const stw_device_config *config, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *memory = NULL;
    stw_nvme_options options = {.folder = config->nvme_folder,
                                .bytes = tiers->arenas.reach[STW_TIER_NVME],
                                .copies = tiers->commits ? 2 : 1,
                                .rank = config->local_rank};
    if (config->nvme_shape != NULL) options.shape = *config->nvme_shape;
    if (options.bytes == 0) goto out;
    STW_TRY(stw_nvme_open(&options, &tiers->nvme, err));
    if (posix_memalign(&memory, STW_NVME_ALIGN_BYTES, STW_BOUNCE_BYTES) != 0)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "nvme", "out of memory"));
    tiers->bounce = memory;
out:
    return status;
}

void stw_tiers_close(stw_tiers *tiers) {
    stw_nvme_close(tiers->nvme);
    free(tiers->bounce);
    pthread_mutex_destroy(&tiers->mutex);
    tiers->nvme = NULL;
    tiers->bounce = NULL;
}

/* ---- host and NVMe ---- */

stw_status stw_tiers_copy_nvme(stw_tiers *tiers, stw_location to, stw_location from, uint64_t bytes,
                               stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = STW_STATUS_OK;
    bool reads = from.tier == STW_TIER_NVME;
    const stw_location host = reads ? to : from, nvme = reads ? from : to;
    if (host.tier != STW_TIER_HOST || nvme.tier != STW_TIER_NVME)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "copy", "from %s to %s: NVMe goes through the host",
                         stw_tier_name(from.tier), stw_tier_name(to.tier)));
    STW_TRY(stw_arenas_address(&tiers->arenas, host, bytes, &memory, err));
    STW_TRY(stw_arenas_check(&tiers->arenas, nvme, bytes, err));
    if (bytes == 0) goto out;
    if (reads)
        STW_TRY(stw_nvme_read(tiers->nvme, nvme.offset, memory, bytes, err));
    else
        STW_TRY(stw_nvme_write(tiers->nvme, nvme.offset, memory, bytes, err));
out:
    return status;
}

/* ---- visiting ---- */

/* The bounce buffer lasts, its pages do not: steps need none of them. */
static stw_status visit_nvme(stw_tiers *tiers, uint64_t offset, uint64_t bytes,
                             const stw_visitor *v, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t most = v->most_bytes > 0 ? v->most_bytes : STW_BOUNCE_BYTES;
    pthread_mutex_lock(&tiers->mutex);
    stw_tiers_piece p = {.memory = tiers->bounce};
    for (; p.done < bytes; p.done += p.bytes) {
        uint64_t at = offset + p.done;
        p.bytes = stw_min_u64(bytes - p.done, stw_nvme_fit(tiers->nvme, at, most));
        if (!v->writes) STW_TRY(stw_nvme_read(tiers->nvme, at, p.memory, p.bytes, err));
        STW_TRY(v->fn(&p, v->arg, err));
        if (v->writes) STW_TRY(stw_nvme_write(tiers->nvme, at, p.memory, p.bytes, err));
    }
out:
    (void)madvise(tiers->bounce, STW_BOUNCE_BYTES, MADV_DONTNEED);
    pthread_mutex_unlock(&tiers->mutex);
    return status;
}

stw_status stw_tiers_visit(stw_tiers *tiers, stw_location at, uint64_t bytes,
                           const stw_visitor *visitor, stw_error *err) {
    stw_tiers_piece all = {.bytes = bytes};
    stw_status status = stw_arenas_check(&tiers->arenas, at, bytes, err);
    if (status != STW_STATUS_OK || bytes == 0) return status;
    if (at.tier == STW_TIER_NVME) return visit_nvme(tiers, at.offset, bytes, visitor, err);
    status = stw_arenas_address(&tiers->arenas, at, bytes, &all.memory, err);
    return status == STW_STATUS_OK ? visitor->fn(&all, visitor->arg, err) : status;
}

/* Values of one type and what is made of them. */
typedef struct work {
    stw_threads *threads;
    stw_element type;
    uint64_t element; /* global number of the first value */
    uint64_t seed, step, sum;
    const unsigned char *from; /* what is converted */
    stw_dtype from_dtype;
} work;

static stw_status visit_values(stw_tiers *tiers, stw_typed_range values, const stw_visitor *visitor,
                               stw_error *err) {
    uint64_t bytes = 0;
    stw_status status = stw_arenas_check_values(&tiers->arenas, values, &bytes, err);
    if (status != STW_STATUS_OK) return status;
    return stw_tiers_visit(tiers, stw_at(values.tier, values.offset), bytes, visitor, err);
}

static stw_status seed_piece(const stw_tiers_piece *p, void *arg, stw_error *err) {
    const work *w = arg;
    const uint64_t each = stw_element_bytes(w->type);
    (void)err;
    stw_host_seed_grads(w->threads, p->memory, w->type, p->bytes / each,
                        w->element + p->done / each, w->seed, w->step);
    return STW_STATUS_OK;
}

stw_status stw_tiers_seed_grads(stw_tiers *tiers, stw_typed_range to, uint64_t element,
                                uint64_t seed, uint64_t step, stw_error *err) {
    work w = {tiers->threads, to.type, element, .seed = seed, .step = step};
    return visit_values(tiers, to, &(stw_visitor){seed_piece, &w, .writes = true}, err);
}

static stw_status zero_piece(const stw_tiers_piece *p, void *arg, stw_error *err) {
    const work *w = arg;
    (void)err;
    stw_host_zero(w->threads, p->memory, p->bytes);
    return STW_STATUS_OK;
}

stw_status stw_tiers_zero(stw_tiers *tiers, stw_location to, uint64_t bytes, stw_error *err) {
    work w = {.threads = tiers->threads};
    return stw_tiers_visit(tiers, to, bytes, &(stw_visitor){zero_piece, &w, .writes = true}, err);
}

static stw_status digest_piece(const stw_tiers_piece *p, void *arg, stw_error *err) {
    work *w = arg;
    const uint64_t each = stw_element_bytes(w->type);
    (void)err;
    w->sum += stw_host_digest(w->threads, p->memory, w->type, p->bytes / each,
                              w->element + p->done / each);
    return STW_STATUS_OK;
}

stw_status stw_tiers_digest(stw_tiers *tiers, stw_typed_range values, uint64_t element,
                            uint64_t *sum, stw_error *err) {
    work w = {tiers->threads, values.type, element, .sum = 0};
    stw_status status =
        visit_values(tiers, values, &(stw_visitor){digest_piece, &w, false, 0}, err);
    if (status == STW_STATUS_OK) *sum += w.sum;
    return status;
}

static stw_status convert_piece(const stw_tiers_piece *p, void *arg, stw_error *err) {
    const work *w = arg;
    const uint64_t each = stw_element_bytes(w->type);
    (void)err;
    stw_host_convert(w->threads, p->memory, w->type,
                     w->from + p->done / each * (stw_dtype_bits(w->from_dtype) / 8), w->from_dtype,
                     p->bytes / each);
    return STW_STATUS_OK;
}

stw_status stw_tiers_convert(stw_tiers *tiers, stw_typed_range to, stw_location from,
                             stw_dtype from_dtype, stw_error *err) {
    unsigned char *source = NULL;
    uint64_t from_bytes = 0, to_bytes = 0;
    stw_status status = STW_STATUS_OK;
    if (!stw_host_can_convert(from_dtype))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(from_dtype),
                         "weights of this dtype are not converted to floats"));
    STW_TRY(
        stw_mul_u64(to.n, stw_dtype_bits(from_dtype) / 8, &from_bytes, "elements to convert", err));
    STW_TRY(stw_arenas_address(&tiers->arenas, from, from_bytes, &source, err));
    STW_TRY(stw_arenas_check_values(&tiers->arenas, to, &to_bytes, err));
    STW_TRY(stw_arenas_check_apart(stw_at(to.tier, to.offset), to_bytes, from, from_bytes, err));
    work w = {tiers->threads, to.type, .from = source, .from_dtype = from_dtype};
    status = visit_values(tiers, to, &(stw_visitor){convert_piece, &w, .writes = true}, err);
out:
    return status;
}

/* ---- slots ---- */

static stw_tiers *tiers_of(stw_device *device) { return (stw_tiers *)(void *)device; }

static void *address_of(stw_device *device, stw_tier tier, uint64_t offset, uint64_t bytes) {
    unsigned char *address = NULL;
    stw_status status =
        stw_arenas_address(&tiers_of(device)->arenas, stw_at(tier, offset), bytes, &address, NULL);
    return status == STW_STATUS_OK ? address : NULL;
}

void *stw_tiers_host_address(stw_device *device, uint64_t offset, uint64_t bytes) {
    return address_of(device, STW_TIER_HOST, offset, bytes);
}

void *stw_tiers_device_address(stw_device *device, uint64_t offset, uint64_t bytes) {
    return address_of(device, STW_TIER_GPU, offset, bytes);
}

stw_status stw_tiers_read(stw_device *device, uint64_t host_offset, uint64_t nvme_offset,
                          uint64_t bytes, stw_error *err) {
    return stw_tiers_copy_nvme(tiers_of(device), stw_at(STW_TIER_HOST, host_offset),
                               stw_at(STW_TIER_NVME, nvme_offset), bytes, err);
}

stw_status stw_tiers_write(stw_device *device, uint64_t nvme_offset, uint64_t host_offset,
                           uint64_t bytes, stw_error *err) {
    return stw_tiers_copy_nvme(tiers_of(device), stw_at(STW_TIER_NVME, nvme_offset),
                               stw_at(STW_TIER_HOST, host_offset), bytes, err);
}

stw_status stw_tiers_commit(stw_device *device, uint64_t step, stw_error *err) {
    stw_tiers *tiers = tiers_of(device);
    if (tiers->nvme == NULL) return STW_STATUS_OK;
    if (tiers->commits) return stw_nvme_commit(tiers->nvme, step, err);
    stw_nvme_note_step(tiers->nvme, step);
    return STW_STATUS_OK;
}

stw_nvme *stw_tiers_nvme(stw_device *device) { return tiers_of(device)->nvme; }
