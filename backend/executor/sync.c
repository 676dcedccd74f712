/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/sync.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/boxes.h"
#include "core/checked.h"

/* The CUDA room defines it for real. */
__attribute__((weak)) const stw_box_ops *stw_box_cuda_ops(void) { return NULL; }

/* One list of a digest. */
typedef struct digest_list {
    uint32_t tensor, times;
    bool of_target;
} digest_list;

struct stw_sync_device {
    stw_sync_schedule *schedule;
    const stw_sync_job *job;
    const stw_sync_view *view;
    const stw_sync_places *places; /* while lists are made; or NULL */
    uint32_t rank, rounds;
    const stw_box_ops *ops;
    stw_box_device *boxes;
    stw_pool *pool;          /* of what follows */
    uint32_t n[2];           /* memories of sources, of targets: numbers that occur, plus 1 */
    uint8_t *width[2];       /* [n]: of the widest element; 0: the memory is not used */
    const void **addresses;  /* [n[0] + n[1]] */
    stw_box_copy *copies;    /* NULL while they are counted */
    uint32_t *first, *tiles; /* [n_lists + 1], [n_lists] */
    const void **sent;       /* [rounds]: send buffers of rounds that were packed */
    bool *again;             /* [rounds]: placing reads the send buffer */
    digest_list *digests;    /* [n_digests] of the last lists */
    uint32_t n_copies, n_lists, n_digests;
};

/* Lists of a round. What is placed is what the rank has itself, and then what came. */
enum { PACK, OWN, CAME, COLLECT, LISTS_OF_ROUND };

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

/* ---- making lists: once to count copies, once to write them ---- */

static void add(stw_sync_device *device, const stw_box_copy *copy) {
    if (device->copies != NULL) {
        stw_box_copy *c = &device->copies[device->n_copies];
        *c = *copy;
        c->first_tile = device->tiles[device->n_lists];
        device->tiles[device->n_lists] += stw_box_tiles(c);
    }
    device->n_copies++;
}

static void end_list(stw_sync_device *device) {
    device->n_lists++;
    if (device->copies != NULL) device->first[device->n_lists] = device->n_copies;
}

/* What is read of a piece's box. */
static void read_piece(stw_box_copy *c, const stw_sync_piece *piece, uint32_t base,
                       const stw_box *box) {
    strides_of_piece(piece, c->from_stride);
    c->from = stw_times(piece->offset, stw_sync_width(piece->dtype)) +
              bytes_to(&piece->box, box, c->from_stride);
    c->from_type = type_of(piece->dtype);
    c->from_base = base + piece->memory;
}

/* The same of what is written. */
static void write_piece(stw_box_copy *c, const stw_sync_piece *piece, uint32_t base,
                        const stw_box *box) {
    strides_of_piece(piece, c->to_stride);
    c->to = stw_times(piece->offset, stw_sync_width(piece->dtype)) +
            bytes_to(&piece->box, box, c->to_stride);
    c->to_base = base + piece->memory;
}

/* Where pieces of a source's tensor lie. */
static const stw_sync_piece *parts_of(const stw_sync_device *device, uint32_t source, uint32_t *n) {
    const stw_sync_piece *piece = &device->job->sources[source];
    const stw_sync_places *places = device->places;
    *n = 1;
    if (places == NULL) return piece;
    const uint32_t first = places->first_part[piece->tensor];
    *n = places->first_part[piece->tensor + 1] - first;
    return places->parts + first;
}

/* Copies of a source's box to where `to` says; c->to and c->to_stride are those of the whole box.
 */
static void add_from_source(stw_sync_device *device, uint32_t source, const stw_box *box,
                            const stw_box_copy *to) {
    uint32_t n = 0;
    const stw_sync_piece *parts = parts_of(device, source, &n);
    for (uint32_t i = 0; i < n; i++) {
        stw_box_copy c = *to;
        stw_box meet;
        if (!stw_box_meet(box, &parts[i].box, &meet)) continue;
        read_piece(&c, &parts[i], STW_BOX_FIRST_BASE, &meet);
        c.to += bytes_to(box, &meet, c.to_stride);
        join_dims(&c, meet.count);
        add(device, &c);
    }
}

/* Does the caller say where targets lie? */
static bool has_targets(const stw_sync_device *device) {
    return device->places != NULL && device->places->targets != NULL;
}

static void add_copy(stw_sync_device *device, const stw_sync_copy *s) {
    const stw_sync_job *job = device->job;
    const stw_sync_piece *source = s->source != STW_SYNC_NONE ? &job->sources[s->source] : NULL;
    const stw_sync_piece *target = s->target != STW_SYNC_NONE ? &job->targets[s->target] : NULL;
    const stw_dtype dtype = job->tensors[(source != NULL ? source : target)->tensor].dtype;
    const uint64_t width = stw_sync_width(dtype);
    stw_box_copy c = {.from = s->from,
                      .to = s->to,
                      .from_base = s->sent ? STW_BOX_SENT_BUFFER : STW_BOX_FROM_BUFFER,
                      .to_base = STW_BOX_TO_BUFFER,
                      .from_type = type_of(dtype),
                      .to_type = type_of(dtype)};
    strides_of_box(&s->box, width, c.from_stride);
    strides_of_box(&s->box, width, c.to_stride);
    if (target != NULL && target->memory != STW_SYNC_NONE) {
        if (has_targets(device)) target = &device->places->targets[s->target];
        write_piece(&c, target, STW_BOX_FIRST_BASE + device->n[0], &s->box);
    } else if (target != NULL) {
        const stw_box *part = stw_sync_schedule_lot(device->schedule, s->lot);
        strides_of_box(part, width, c.to_stride);
        c.to += bytes_to(part, &s->box, c.to_stride);
    }
    if (source != NULL) {
        add_from_source(device, s->source, &s->box, &c);
        return;
    }
    join_dims(&c, s->box.count);
    add(device, &c);
}

static void add_packs(stw_sync_device *device, uint32_t round) {
    const stw_sync_view *v = device->view;
    for (uint32_t i = v->first_pack[round]; i < v->first_pack[round + 1]; i++)
        add_copy(device, &v->packs[i]);
    end_list(device);
}

static void add_places(stw_sync_device *device, uint32_t round, bool own) {
    const stw_sync_view *v = device->view;
    for (uint32_t i = v->first_place[round]; i < v->first_place[round + 1]; i++)
        if ((v->places[i].sent || v->places[i].source != STW_SYNC_NONE) == own)
            add_copy(device, &v->places[i]);
    end_list(device);
}

/* Out of a bucket, to the target that it is a part of. */
static void add_collecting(stw_sync_device *device, uint32_t round) {
    const stw_sync_view *v = device->view;
    for (uint32_t i = v->first_part[round]; i < v->first_part[round + 1]; i++) {
        const stw_sync_part *part = &v->parts[i];
        if (!has_targets(device)) break;
        const stw_sync_piece *target = &device->places->targets[part->target];
        stw_box_copy c = {.from = part->offset,
                          .from_base = STW_BOX_FROM_BUFFER,
                          .from_type = type_of(target->dtype),
                          .to_type = type_of(target->dtype)};
        strides_of_box(&part->box, stw_sync_width(target->dtype), c.from_stride);
        write_piece(&c, target, STW_BOX_FIRST_BASE + device->n[0], &part->box);
        join_dims(&c, part->box.count);
        add(device, &c);
    }
    end_list(device);
}

/* ---- digests: elements have the numbers of their tensor ---- */

static stw_box_copy numbered(const stw_sync_tensor *tensor, const stw_box *box) {
    stw_box whole = {{0}, {0}};
    stw_box_copy c = {.to_base = STW_BOX_TO_BUFFER, .to_type = type_of(tensor->dtype)};
    memcpy(whole.count, tensor->shape, sizeof whole.count);
    strides_of_box(&whole, stw_sync_width(tensor->dtype), c.to_stride);
    c.to = bytes_to(&whole, box, c.to_stride);
    return c;
}

static void end_digest(stw_sync_device *device, digest_list list) {
    if (device->digests != NULL) device->digests[device->n_digests] = list;
    device->n_digests++;
    end_list(device);
}

/* A list for each cell of targets, of what this rank is the first to have of it. */
static void add_source_digests(stw_sync_device *device, uint32_t tensor) {
    const stw_sync_lots *lots = stw_sync_schedule_lots(device->schedule);
    const stw_sync_cells *from = &lots->sources, *to = &lots->targets;
    for (uint32_t t = to->first_cell[tensor]; t < to->first_cell[tensor + 1]; t++) {
        const uint32_t before = device->n_copies;
        for (uint32_t s = from->first_cell[tensor]; s < from->first_cell[tensor + 1]; s++) {
            const uint32_t source = from->members[from->cells[s].first_member];
            stw_box meet;
            if (device->job->sources[source].rank != device->rank ||
                !stw_box_meet(&from->cells[s].box, &to->cells[t].box, &meet))
                continue;
            const stw_box_copy c = numbered(&device->job->tensors[tensor], &meet);
            add_from_source(device, source, &meet, &c);
        }
        if (device->n_copies > before)
            end_digest(device, (digest_list){tensor, to->cells[t].n_members, false});
    }
}

static void add_target_digest(stw_sync_device *device, const stw_sync_piece *target) {
    if (target->rank != device->rank || stw_box_volume(&target->box) == 0) return;
    stw_box_copy c = numbered(&device->job->tensors[target->tensor], &target->box);
    read_piece(&c, target, STW_BOX_FIRST_BASE + device->n[0], &target->box);
    join_dims(&c, target->box.count);
    add(device, &c);
    end_digest(device, (digest_list){target->tensor, 1, true});
}

static void add_lists(stw_sync_device *device) {
    device->n_copies = device->n_lists = device->n_digests = 0;
    for (uint32_t r = 0; r < device->rounds; r++) {
        add_packs(device, r);
        add_places(device, r, true);
        add_places(device, r, false);
        add_collecting(device, r);
    }
    for (uint32_t t = 0; t < device->job->n_tensors && has_targets(device); t++)
        add_source_digests(device, t);
    for (uint32_t i = 0; i < device->job->n_targets && has_targets(device); i++)
        add_target_digest(device, &device->places->targets[i]);
}

static stw_status make_lists(stw_sync_device *device, stw_error *err) {
    add_lists(device);
    const stw_sync_view *v = device->view;
    const size_t n = device->n_copies, lists = device->n_lists;
    device->first = stw_pool_array(device->pool, lists + 1, sizeof *device->first);
    device->tiles = stw_pool_array(device->pool, lists + 1, sizeof *device->tiles);
    device->digests =
        stw_pool_array(device->pool, (size_t)device->n_digests + 1, sizeof *device->digests);
    device->copies = stw_pool_array(device->pool, n + 1, sizeof *device->copies);
    device->sent = stw_pool_array(device->pool, device->rounds, sizeof *device->sent);
    device->again = stw_pool_array(device->pool, device->rounds, sizeof *device->again);
    if (device->copies == NULL || device->first == NULL || device->tiles == NULL ||
        device->digests == NULL || device->sent == NULL || device->again == NULL)
        return no_memory(err);
    add_lists(device);
    for (uint32_t r = 0; r < device->rounds; r++)
        for (uint32_t i = v->first_place[r]; i < v->first_place[r + 1]; i++)
            device->again[r] = device->again[r] || v->places[i].sent;
    return STW_STATUS_OK;
}

/* ---- memories ---- */

/* A piece of the rank's: its memory occurs. @param k 0: of sources, 1: of targets */
static void see_piece(stw_sync_device *device, const stw_sync_piece *p, int k) {
    if (p->memory == STW_SYNC_NONE) return;
    if (p->memory >= device->n[k]) device->n[k] = p->memory + 1;
    if (device->width[k] != NULL && device->width[k][p->memory] < stw_sync_width(p->dtype))
        device->width[k][p->memory] = (uint8_t)stw_sync_width(p->dtype);
}

static void see_copy(stw_sync_device *device, const stw_sync_copy *copy) {
    uint32_t n = 0;
    const stw_sync_piece *parts =
        copy->source != STW_SYNC_NONE ? parts_of(device, copy->source, &n) : NULL;
    for (uint32_t i = 0; i < n; i++) see_piece(device, &parts[i], 0);
    if (copy->target != STW_SYNC_NONE) see_piece(device, &device->job->targets[copy->target], 1);
}

static void see_all(stw_sync_device *device) {
    const stw_sync_view *v = device->view;
    for (uint32_t i = 0; i < v->first_pack[device->rounds]; i++) see_copy(device, &v->packs[i]);
    for (uint32_t i = 0; i < v->first_place[device->rounds]; i++) see_copy(device, &v->places[i]);
    for (uint32_t i = 0; i < v->first_part[device->rounds] && has_targets(device); i++)
        see_piece(device, &device->places->targets[v->parts[i].target], 1);
    if (device->places == NULL) return;
    for (uint32_t i = 0; i < device->places->first_part[device->job->n_tensors]; i++)
        see_piece(device, &device->places->parts[i], 0);
}

/* Which memories copies use, and how wide their elements are. */
static stw_status find_memories(stw_sync_device *device, stw_error *err) {
    see_all(device);
    for (int k = 0; k < 2; k++) {
        device->width[k] = stw_pool_alloc(device->pool, device->n[k]);
        if (device->width[k] == NULL) return no_memory(err);
    }
    see_all(device);
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
    device->places = options->places;
    device->rank = rank;
    device->rounds = stw_sync_schedule_rounds(schedule);
    STW_TRY(select_ops(options->backend, &device->ops, err));
    STW_TRY(stw_sync_schedule_view(schedule, rank, &device->view, err));
    STW_TRY(find_memories(device, err));
    STW_TRY(make_lists(device, err));
    const stw_box_config config = {
        .lists = {device->copies, device->first, device->tiles, device->n_lists},
        .n_bases = device->n[0] + device->n[1],
        .gpu_is_given = options->gpu_is_given,
        .gpu = options->gpu};
    STW_TRY(device->ops->open(&config, &device->boxes, err));
    STW_TRY(stw_sync_device_bind(device, memories, err));
    device->places = NULL;
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
    STW_TRY(device->ops->run(device->boxes, LISTS_OF_ROUND * round + PACK,
                             &(stw_box_buffers){.to = send}, native, err));
    device->sent[round] = send;
out:
    return status;
}

stw_status stw_sync_device_place_own(stw_sync_device *device, uint32_t round, void *bucket,
                                     void *native, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_round(device, round, err));
    STW_TRY(check_buffer("bucket", bucket, device->view->bucket_bytes, err));
    if (device->again[round] && device->sent[round] == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "round",
                         "found round %u, which was not packed yet: expected it to be packed, and "
                         "its send buffer to be there",
                         round));
    const stw_box_buffers buffers = {NULL, device->sent[round], bucket};
    STW_TRY(device->ops->run(device->boxes, LISTS_OF_ROUND * round + OWN, &buffers, native, err));
    device->sent[round] = NULL;
out:
    return status;
}

stw_status stw_sync_device_place_came(stw_sync_device *device, uint32_t round, const void *receive,
                                      void *bucket, void *native, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_round(device, round, err));
    STW_TRY(check_buffer("receive", receive, device->view->receive_bytes, err));
    STW_TRY(check_buffer("bucket", bucket, device->view->bucket_bytes, err));
    const stw_box_buffers buffers = {receive, NULL, bucket};
    STW_TRY(device->ops->run(device->boxes, LISTS_OF_ROUND * round + CAME, &buffers, native, err));
out:
    return status;
}

stw_status stw_sync_device_place(stw_sync_device *device, uint32_t round, const void *receive,
                                 void *bucket, void *native, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_round(device, round, err));
    STW_TRY(check_buffer("receive", receive, device->view->receive_bytes, err));
    STW_TRY(stw_sync_device_place_own(device, round, bucket, native, err));
    STW_TRY(stw_sync_device_place_came(device, round, receive, bucket, native, err));
out:
    return status;
}

stw_status stw_sync_device_collect(stw_sync_device *device, uint32_t round, const void *bucket,
                                   void *native, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(check_round(device, round, err));
    STW_TRY(check_buffer("bucket", bucket, device->view->bucket_bytes, err));
    STW_TRY(device->ops->run(device->boxes, LISTS_OF_ROUND * round + COLLECT,
                             &(stw_box_buffers){.from = bucket}, native, err));
out:
    return status;
}

stw_status stw_sync_device_digest(stw_sync_device *device, void *native, uint64_t *sums,
                                  stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t first = device->n_lists - device->n_digests;
    for (uint32_t i = 0; i < device->n_digests; i++) {
        const digest_list *list = &device->digests[i];
        uint64_t digest = 0;
        STW_TRY(device->ops->digest(device->boxes, first + i, native, &digest, err));
        sums[(list->of_target ? device->job->n_tensors : 0) + list->tensor] += digest * list->times;
    }
out:
    return status;
}

stw_status stw_sync_device_sum(stw_sync_device *device, const void *address, uint64_t bytes,
                               void *native, uint64_t *out, stw_error *err) {
    return device->ops->sum(device->boxes, address, bytes, native, out, err);
}

const stw_sync_view *stw_sync_device_view(const stw_sync_device *device) { return device->view; }

stw_status stw_sync_device_mark(stw_sync_device *device, uint32_t number, void *native,
                                stw_error *err) {
    return device->ops->mark(device->boxes, number, native, err);
}

stw_status stw_sync_device_follow(stw_sync_device *device, uint32_t number, void *native,
                                  stw_error *err) {
    return device->ops->follow(device->boxes, number, native, err);
}

stw_status stw_sync_device_passed(stw_sync_device *device, uint32_t number, bool *out,
                                  stw_error *err) {
    return device->ops->passed(device->boxes, number, out, err);
}
