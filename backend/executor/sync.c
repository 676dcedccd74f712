/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/sync.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/boxes.h"
#include "core/checked.h"

/* The CUDA room defines it for real. */
__attribute__((weak)) const stw_box_ops *stw_box_cuda_ops(void) { return NULL; }

struct stw_sync_device {
    stw_sync_schedule *schedule;
    const stw_sync_job *job;
    const stw_sync_view *view;
    uint32_t rank, rounds;
    const stw_box_ops *ops;
    stw_box_device *boxes;
    stw_pool *pool;         /* of what follows */
    uint32_t n[2];          /* memories of sources, of targets: numbers that occur, plus 1 */
    uint8_t *width[2];      /* [n]: of the widest element; 0: the memory is not used */
    const void **addresses; /* [n[0] + n[1]] */
    stw_box_copy *copies;
    uint32_t *first, *tiles; /* list 2 r packs round r, list 2 r + 1 places it */
    const void **sent;       /* [rounds]: send buffers of rounds that were packed */
    bool *again;             /* [rounds]: placing reads the send buffer */
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

/* ---- lists of copies ---- */

static uint16_t type_of(stw_dtype dtype) {
    return dtype == STW_DTYPE_F32    ? STW_BOX_F32
           : dtype == STW_DTYPE_BF16 ? STW_BOX_BF16
                                     : STW_BOX_F16;
}

/* Bytes from one element to the next one, dimension by dimension. */
static void strides_of_piece(const stw_sync_piece *piece, uint64_t strides[STW_BOX_DIMS]) {
    for (int d = 0; d < STW_BOX_DIMS; d++)
        strides[d] = stw_times(piece->stride[d], stw_sync_width(piece->dtype));
}

static void strides_of_box(const stw_box *box, uint64_t width, uint64_t strides[STW_BOX_DIMS]) {
    uint64_t stride = width;
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        strides[d] = stride;
        stride = stw_times(stride, box->count[d]);
    }
}

/* Bytes from the place of `from`'s first element to that of a box inside it. */
static uint64_t bytes_to(const stw_box *from, const stw_box *box,
                         const uint64_t strides[STW_BOX_DIMS]) {
    uint64_t bytes = 0;
    for (int d = 0; d < STW_BOX_DIMS; d++)
        bytes += stw_times(box->first[d] - from->first[d], strides[d]);
    return bytes;
}

/* Dimensions of one element go, and neighbours that are one run on both sides become one. The
 * others move to the end. */
static void join_dims(stw_box_copy *c, const uint64_t count[STW_BOX_DIMS]) {
    uint64_t counts[STW_BOX_DIMS], from[STW_BOX_DIMS], to[STW_BOX_DIMS];
    int n = 0;
    for (int d = 0; d < STW_BOX_DIMS; d++) {
        if (count[d] == 1) continue;
        if (n > 0 && from[n - 1] == stw_times(c->from_stride[d], count[d]) &&
            to[n - 1] == stw_times(c->to_stride[d], count[d])) {
            counts[n - 1] = stw_times(counts[n - 1], count[d]);
        } else {
            counts[n++] = count[d];
        }
        from[n - 1] = c->from_stride[d];
        to[n - 1] = c->to_stride[d];
    }
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        const int k = d - (STW_BOX_DIMS - n);
        c->count[d] = k >= 0 ? (uint32_t)counts[k] : 1;
        c->from_stride[d] = k >= 0                  ? from[k]
                            : d == STW_BOX_DIMS - 1 ? stw_box_width(c->from_type)
                                                    : 0;
        c->to_stride[d] = k >= 0 ? to[k] : d == STW_BOX_DIMS - 1 ? stw_box_width(c->to_type) : 0;
    }
}

static stw_box_copy copy_of(const stw_sync_device *device, const stw_sync_copy *s) {
    const stw_sync_job *job = device->job;
    const stw_sync_piece *source = s->source != STW_SYNC_NONE ? &job->sources[s->source] : NULL;
    const stw_sync_piece *target = s->target != STW_SYNC_NONE ? &job->targets[s->target] : NULL;
    const stw_dtype dtype = job->tensors[(source != NULL ? source : target)->tensor].dtype;
    const uint64_t width = stw_sync_width(dtype);
    stw_box_copy c = {.from = s->from,
                      .to = s->to,
                      .from_base = s->sent ? STW_BOX_SENT_BUFFER : STW_BOX_FROM_BUFFER,
                      .to_base = STW_BOX_TO_BUFFER};
    c.from_type = type_of(source != NULL ? source->dtype : dtype);
    c.to_type = type_of(dtype);
    strides_of_box(&s->box, width, c.from_stride);
    strides_of_box(&s->box, width, c.to_stride);
    if (source != NULL) {
        strides_of_piece(source, c.from_stride);
        c.from = stw_times(source->offset, stw_sync_width(source->dtype)) +
                 bytes_to(&source->box, &s->box, c.from_stride);
        c.from_base = STW_BOX_FIRST_BASE + source->memory;
    }
    if (target != NULL && target->memory != STW_SYNC_NONE) {
        strides_of_piece(target, c.to_stride);
        c.to = stw_times(target->offset, width) + bytes_to(&target->box, &s->box, c.to_stride);
        c.to_base = STW_BOX_FIRST_BASE + device->n[0] + target->memory;
    } else if (target != NULL) {
        const stw_box *part = stw_sync_schedule_lot(device->schedule, s->lot);
        strides_of_box(part, width, c.to_stride);
        c.to += bytes_to(part, &s->box, c.to_stride);
    }
    join_dims(&c, s->box.count);
    return c;
}

static uint32_t add_list(stw_sync_device *device, const stw_sync_copy *from, uint32_t n,
                         uint32_t at) {
    uint32_t tiles = 0;
    for (uint32_t i = 0; i < n; i++) {
        stw_box_copy *c = &device->copies[at + i];
        *c = copy_of(device, &from[i]);
        c->first_tile = tiles;
        tiles += stw_box_tiles(c);
    }
    return tiles;
}

static stw_status make_lists(stw_sync_device *device, stw_error *err) {
    const stw_sync_view *v = device->view;
    const uint32_t rounds = device->rounds;
    const size_t n = (size_t)v->first_pack[rounds] + v->first_place[rounds];
    device->copies = stw_pool_array(device->pool, n, sizeof *device->copies);
    device->first = stw_pool_array(device->pool, 2 * (size_t)rounds + 1, sizeof *device->first);
    device->tiles = stw_pool_array(device->pool, 2 * (size_t)rounds, sizeof *device->tiles);
    device->sent = stw_pool_array(device->pool, rounds, sizeof *device->sent);
    device->again = stw_pool_array(device->pool, rounds, sizeof *device->again);
    if (device->copies == NULL || device->first == NULL || device->tiles == NULL ||
        device->sent == NULL || device->again == NULL)
        return no_memory(err);
    uint32_t at = 0;
    for (uint32_t r = 0; r < rounds; r++) {
        const uint32_t packs = v->first_pack[r + 1] - v->first_pack[r];
        const uint32_t places = v->first_place[r + 1] - v->first_place[r];
        device->first[2 * r] = at;
        device->tiles[2 * r] = add_list(device, v->packs + v->first_pack[r], packs, at);
        device->first[2 * r + 1] = at += packs;
        device->tiles[2 * r + 1] = add_list(device, v->places + v->first_place[r], places, at);
        at += places;
        for (uint32_t i = v->first_place[r]; i < v->first_place[r + 1]; i++)
            device->again[r] = device->again[r] || v->places[i].sent;
    }
    device->first[2 * (size_t)rounds] = at;
    return STW_STATUS_OK;
}

/* ---- memories ---- */

static const stw_sync_piece *piece_of(const stw_sync_device *device, const stw_sync_copy *copy,
                                      int target) {
    const uint32_t piece = target ? copy->target : copy->source;
    if (piece == STW_SYNC_NONE) return NULL;
    const stw_sync_piece *p = target ? &device->job->targets[piece] : &device->job->sources[piece];
    return p->memory != STW_SYNC_NONE ? p : NULL;
}

/* Which memories copies use, and how wide their elements are. */
static stw_status find_memories(stw_sync_device *device, stw_error *err) {
    const stw_sync_view *v = device->view;
    const uint32_t n_packs = v->first_pack[device->rounds];
    const uint32_t n_all = n_packs + v->first_place[device->rounds];
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < n_all; i++) {
            const stw_sync_copy *c = i < n_packs ? &v->packs[i] : &v->places[i - n_packs];
            const stw_sync_piece *p = piece_of(device, c, k);
            if (p != NULL && p->memory >= device->n[k]) device->n[k] = p->memory + 1;
        }
        device->width[k] = stw_pool_alloc(device->pool, device->n[k]);
        if (device->width[k] == NULL) return no_memory(err);
        for (uint32_t i = 0; i < n_all; i++) {
            const stw_sync_copy *c = i < n_packs ? &v->packs[i] : &v->places[i - n_packs];
            const stw_sync_piece *p = piece_of(device, c, k);
            if (p != NULL && device->width[k][p->memory] < stw_sync_width(p->dtype))
                device->width[k][p->memory] = (uint8_t)stw_sync_width(p->dtype);
        }
    }
    device->addresses = stw_pool_array(device->pool, (size_t)device->n[0] + device->n[1],
                                       sizeof *device->addresses);
    return device->addresses != NULL ? STW_STATUS_OK : no_memory(err);
}

static stw_status check_memory(const char *kind, uint32_t number, const void *address,
                               uint32_t width, stw_error *err) {
    if (width == 0) return STW_STATUS_OK;
    if (address == NULL)
        return stw_fail(err, STW_STATUS_USAGE, kind, "memory %u: found NULL, expected an address",
                        number);
    if ((uintptr_t)address % width != 0)
        return stw_fail(err, STW_STATUS_USAGE, kind,
                        "memory %u: found address %p, expected a multiple of %u bytes", number,
                        address, width);
    return STW_STATUS_OK;
}

stw_status stw_sync_device_bind(stw_sync_device *device, const stw_sync_memories *memories,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    static const char *const kinds[2] = {"sources", "targets"};
    const uint32_t given[2] = {memories->n_sources, memories->n_targets};
    for (int k = 0; k < 2; k++) {
        if (given[k] < device->n[k])
            STW_TRY(stw_fail(err, STW_STATUS_USAGE, kinds[k],
                             "found %u memories, expected %u for rank %u", given[k], device->n[k],
                             device->rank));
        for (uint32_t m = 0; m < device->n[k]; m++) {
            const void *address = k == 0 ? memories->sources[m] : memories->targets[m];
            STW_TRY(check_memory(kinds[k], m, address, device->width[k][m], err));
            device->addresses[k == 0 ? m : device->n[0] + m] =
                device->width[k][m] > 0 ? address : NULL;
        }
    }
    STW_TRY(device->ops->bind(device->boxes, device->addresses, err));
out:
    return status;
}

/* ---- opening and closing ---- */

static stw_status select_ops(const char *name, const stw_box_ops **out, stw_error *err) {
    const stw_backend *backend = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_backend_select(name, &backend, err));
    *out = backend->gpu ? stw_box_cuda_ops() : &stw_box_host_ops;
    if (*out == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NOT_BUILT_IN, "backend",
                         "this program has no weight sync for CUDA"));
out:
    return status;
}

stw_status stw_sync_device_open(stw_sync_schedule *schedule, uint32_t rank,
                                const stw_sync_options *options, const stw_sync_memories *memories,
                                stw_sync_device **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_sync_device *device = stw_pool_alloc(pool, sizeof *device);
    *out = NULL;
    if (device == NULL) {
        stw_pool_free(pool);
        return no_memory(err);
    }
    device->pool = pool;
    device->schedule = schedule;
    device->job = stw_sync_schedule_job(schedule);
    device->rank = rank;
    device->rounds = stw_sync_schedule_rounds(schedule);
    STW_TRY(select_ops(options->backend, &device->ops, err));
    STW_TRY(stw_sync_schedule_view(schedule, rank, &device->view, err));
    STW_TRY(find_memories(device, err));
    STW_TRY(make_lists(device, err));
    const stw_box_config config = {
        .lists = {device->copies, device->first, device->tiles, 2 * device->rounds},
        .n_bases = device->n[0] + device->n[1],
        .gpu_is_given = options->gpu_is_given,
        .gpu = options->gpu};
    STW_TRY(device->ops->open(&config, &device->boxes, err));
    STW_TRY(stw_sync_device_bind(device, memories, err));
    *out = device;
    device = NULL;
out:
    stw_sync_device_close(device);
    return status;
}

void stw_sync_device_close(stw_sync_device *device) {
    if (device == NULL) return;
    if (device->ops != NULL) device->ops->close(device->boxes);
    stw_pool_free(device->pool);
}

/* ---- rounds ---- */

static stw_status check_buffer(const char *name, const void *buffer, uint64_t bytes,
                               stw_error *err) {
    if (bytes > 0 && buffer == NULL)
        return stw_fail(err, STW_STATUS_USAGE, name, "found NULL, expected %llu bytes",
                        (unsigned long long)bytes);
    if ((uintptr_t)buffer % 4 != 0)
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "found address %p, expected a multiple of 4 bytes", buffer);
    return STW_STATUS_OK;
}

static stw_status check_round(const stw_sync_device *device, uint32_t round, stw_error *err) {
    if (round < device->rounds) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, "round", "found %u, expected fewer than %u", round,
                    device->rounds);
}

stw_status stw_sync_device_pack(stw_sync_device *device, uint32_t round, void *send, void *native,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_round(device, round, err));
    STW_TRY(check_buffer("send", send, device->view->send_bytes, err));
    STW_TRY(
        device->ops->run(device->boxes, 2 * round, &(stw_box_buffers){.to = send}, native, err));
    device->sent[round] = send;
out:
    return status;
}

stw_status stw_sync_device_place(stw_sync_device *device, uint32_t round, const void *receive,
                                 void *bucket, void *native, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_round(device, round, err));
    STW_TRY(check_buffer("receive", receive, device->view->receive_bytes, err));
    STW_TRY(check_buffer("bucket", bucket, device->view->bucket_bytes, err));
    if (device->again[round] && device->sent[round] == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "round",
                         "found round %u, which was not packed yet: expected it to be packed, and "
                         "its send buffer to be there",
                         round));
    const stw_box_buffers buffers = {receive, device->sent[round], bucket};
    STW_TRY(device->ops->run(device->boxes, 2 * round + 1, &buffers, native, err));
    device->sent[round] = NULL;
out:
    return status;
}

stw_status stw_sync_device_sum(stw_sync_device *device, const void *address, uint64_t bytes,
                               void *native, uint64_t *out, stw_error *err) {
    return device->ops->sum(device->boxes, address, bytes, native, out, err);
}
