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
/* What is done with each piece. */
typedef struct visitor {
    void (*fn)(const piece *p, void *arg);
    void *arg;
    bool writes; /* pieces of NVMe are written after fn, else read before it */
} visitor;

static stw_status visit_nvme(stw_device *device, stw_typed_range values, const visitor *v,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t one = stw_element_bytes(values.type), at_once = STW_HOST_SCRATCH_BYTES / one;
    pthread_mutex_lock(&device->scratch_mutex);
    for (uint64_t done = 0; done < values.n; done += at_once) {
        uint64_t n = stw_min_u64(values.n - done, at_once);
        piece p = {device, device->scratch, values.type, done, n};
        uint64_t at = values.offset + done * one, bytes = n * one;
        if (!v->writes) STW_TRY(stw_nvme_read(device->nvme, at, p.memory, bytes, err));
        v->fn(&p, v->arg);
        if (v->writes) STW_TRY(stw_nvme_write(device->nvme, at, p.memory, bytes, err));
    }
out:
    pthread_mutex_unlock(&device->scratch_mutex);
    return status;
}

/* All values at once, or those of NVMe piece by piece in the scratch. */
static stw_status visit(stw_device *device, stw_typed_range values, const visitor *v,
                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = 0;
    piece p = {.device = device, .type = values.type, .n = values.n};
    const stw_location at = {values.tier, values.offset};
    STW_TRY(stw_host_value_bytes(values, &bytes, err));
    STW_TRY(stw_host_check_range(device, at, bytes, err));
    if (values.n == 0) goto out;
    if (values.tier == STW_TIER_NVME) {
        status = visit_nvme(device, values, v, err);
    } else {
        STW_TRY(stw_host_range(device, at, bytes, &p.memory, err));
        v->fn(&p, v->arg);
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

stw_status stw_host_seed_range(stw_device *device, stw_typed_range to, uint64_t element,
                               uint64_t seed, uint64_t step, stw_error *err) {
    seed_arg arg = {element, seed, step};
    return visit(device, to, &(visitor){seed_piece, &arg, true}, err);
}

typedef struct digest_arg {
    uint64_t element, sum;
} digest_arg;

static void digest_piece(const piece *p, void *arg) {
    digest_arg *digest = arg;
    digest->sum +=
        stw_host_digest(p->device->threads, p->memory, p->type, p->n, digest->element + p->first);
}

stw_status stw_host_digest_range(stw_device *device, stw_typed_range values, uint64_t element,
                                 uint64_t *sum, stw_error *err) {
    digest_arg arg = {element, 0};
    stw_status status = visit(device, values, &(visitor){digest_piece, &arg, false}, err);
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

stw_status stw_host_convert_range(stw_device *device, stw_stream stream, stw_typed_range to,
                                  stw_location from, stw_dtype from_dtype, stw_error *err) {
    (void)stream;
    unsigned char *source = NULL;
    uint64_t from_bytes = 0, to_bytes = 0;
    stw_status status = STW_STATUS_OK;
    if (!stw_host_can_convert(from_dtype))
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_dtype_name(from_dtype),
                         "weights of this dtype are not converted to floats"));
    STW_TRY(
        stw_mul_u64(to.n, stw_dtype_bits(from_dtype) / 8, &from_bytes, "elements to convert", err));
    STW_TRY(stw_host_range(device, from, from_bytes, &source, err));
    STW_TRY(stw_host_value_bytes(to, &to_bytes, err));
    STW_TRY(stw_host_check_range(device, stw_at(to.tier, to.offset), to_bytes, err));
    if (to.tier == from.tier && to.offset < from.offset + from_bytes &&
        from.offset < to.offset + to_bytes)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "convert", "source and target overlap"));
    convert_arg arg = {source, from_dtype};
    status = visit(device, to, &(visitor){convert_piece, &arg, true}, err);
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

stw_status stw_host_zero_range(stw_device *device, stw_location to, uint64_t bytes,
                               stw_error *err) {
    unsigned char *memory = NULL;
    stw_status status = stw_host_check_range(device, to, bytes, err);
    if (status != STW_STATUS_OK || bytes == 0) return status;
    if (to.tier == STW_TIER_NVME) return zero_nvme(device, to.offset, bytes, err);
    status = stw_host_range(device, to, bytes, &memory, err);
    if (status == STW_STATUS_OK) stw_host_zero(device->threads, memory, bytes);
    return status;
}
