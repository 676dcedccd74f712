/* SPDX-License-Identifier: Apache-2.0 */
/* Making and looking at values of the host backend, in every tier; NVMe ranges go through the
 * scratch in pieces. */
#include "backend/host/device.h"
#include "backend/host/kernels.h"
#include "core/checked.h"

/* Work on n values of `type` at `memory`, the first of them value `first` of the whole range. */
typedef struct piece {
    stw_device *device;
    unsigned char *memory;
    stw_element type;
    uint64_t first, n;
} piece;
typedef void (*piece_fn)(const piece *p, void *arg);

static stw_status visit_nvme(stw_device *device, uint64_t offset, stw_element type, uint64_t n,
                             bool writes, piece_fn fn, void *arg, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t one = stw_element_bytes(type), at_once = STW_HOST_SCRATCH_BYTES / one;
    pthread_mutex_lock(&device->scratch_mutex);
    for (uint64_t done = 0; done < n; done += at_once) {
        piece p = {device, device->scratch, type, done, stw_min_u64(n - done, at_once)};
        uint64_t at = offset + done * one, bytes = p.n * one;
        if (!writes) STW_TRY(stw_nvme_read(device->nvme, at, p.memory, bytes, err));
        fn(&p, arg);
        if (writes) STW_TRY(stw_nvme_write(device->nvme, at, p.memory, bytes, err));
    }
out:
    pthread_mutex_unlock(&device->scratch_mutex);
    return status;
}

/* Call fn on n values at an offset of a tier: on all at once, or piece by piece in the scratch,
 * which is read before or written after. */
static stw_status visit(stw_device *device, stw_tier tier, uint64_t offset, stw_element type,
                        uint64_t n, bool writes, piece_fn fn, void *arg, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = 0;
    piece p = {.device = device, .type = type, .n = n};
    STW_TRY(stw_host_value_bytes(tier, offset, type, n, &bytes, err));
    STW_TRY(stw_host_check_range(device, tier, offset, bytes, err));
    if (n == 0) goto out;
    if (tier == STW_TIER_NVME) {
        status = visit_nvme(device, offset, type, n, writes, fn, arg, err);
    } else {
        STW_TRY(stw_host_range(device, tier, offset, bytes, &p.memory, err));
        fn(&p, arg);
    }
out:
    return status;
}

typedef struct seed_arg {
    uint64_t element, seed, step;
} seed_arg;

static void seed_piece(const piece *p, void *arg) {
    const seed_arg *seed = arg;
    stw_host_seed_grads(p->device->threads, p->memory, p->type, p->n, seed->element + p->first,
                        seed->seed, seed->step);
}

stw_status stw_host_seed_range(stw_device *device, stw_tier tier, uint64_t offset, uint64_t n,
                               uint64_t element, uint64_t seed, uint64_t step, stw_error *err) {
    seed_arg arg = {element, seed, step};
    return visit(device, tier, offset, device->config.types.grads, n, true, seed_piece, &arg, err);
}

typedef struct digest_arg {
    uint64_t element, sum;
} digest_arg;

static void digest_piece(const piece *p, void *arg) {
    digest_arg *digest = arg;
    digest->sum +=
        stw_host_digest(p->device->threads, p->memory, p->type, p->n, digest->element + p->first);
}

stw_status stw_host_digest_range(stw_device *device, stw_tier tier, uint64_t offset,
                                 stw_element type, uint64_t n, uint64_t element, uint64_t *sum,
                                 stw_error *err) {
    digest_arg arg = {element, 0};
    stw_status status = visit(device, tier, offset, type, n, false, digest_piece, &arg, err);
    if (status == STW_STATUS_OK) *sum += arg.sum;
    return status;
}

typedef struct convert_arg {
    const unsigned char *from;
    stw_dtype dtype;
} convert_arg;

static void convert_piece(const piece *p, void *arg) {
    const convert_arg *source = arg;
    stw_host_convert(p->device->threads, p->memory, p->type,
                     source->from + p->first * (stw_dtype_bits(source->dtype) / 8), source->dtype,
                     p->n);
}

stw_status stw_host_convert_range(stw_device *device, stw_stream stream, stw_tier to,
                                  uint64_t to_offset, stw_element to_type, stw_tier from,
                                  uint64_t from_offset, stw_dtype from_dtype, uint64_t n,
                                  stw_error *err) {
    (void)stream;
    unsigned char *source = NULL;
    uint64_t from_bytes = 0, to_bytes = 0;
    stw_status status = STW_STATUS_OK;
    if (!stw_host_can_convert(from_dtype))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(from_dtype),
                         "weights of this dtype are not converted to floats"));
    STW_TRY(
        stw_mul_u64(n, stw_dtype_bits(from_dtype) / 8, &from_bytes, "elements to convert", err));
    STW_TRY(stw_host_range(device, from, from_offset, from_bytes, &source, err));
    STW_TRY(stw_host_value_bytes(to, to_offset, to_type, n, &to_bytes, err));
    STW_TRY(stw_host_check_range(device, to, to_offset, to_bytes, err));
    if (to == from && to_offset < from_offset + from_bytes && from_offset < to_offset + to_bytes)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "convert", "source and target overlap"));
    convert_arg arg = {source, from_dtype};
    status = visit(device, to, to_offset, to_type, n, true, convert_piece, &arg, err);
out:
    return status;
}

static stw_status zero_nvme(stw_device *device, uint64_t offset, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    pthread_mutex_lock(&device->scratch_mutex);
    memset(device->scratch, 0, stw_min_u64(bytes, STW_HOST_SCRATCH_BYTES));
    for (uint64_t done = 0; done < bytes; done += STW_HOST_SCRATCH_BYTES)
        STW_TRY(stw_nvme_write(device->nvme, offset + done, device->scratch,
                               stw_min_u64(bytes - done, STW_HOST_SCRATCH_BYTES), err));
out:
    pthread_mutex_unlock(&device->scratch_mutex);
    return status;
}

stw_status stw_host_zero_range(stw_device *device, stw_tier tier, uint64_t offset, uint64_t bytes,
                               stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = stw_host_check_range(device, tier, offset, bytes, err);
    if (status != STW_STATUS_OK || bytes == 0) return status;
    if (tier == STW_TIER_NVME) return zero_nvme(device, offset, bytes, err);
    status = stw_host_range(device, tier, offset, bytes, &memory, err);
    if (status == STW_STATUS_OK) stw_host_zero(device->threads, memory, bytes);
    return status;
}
