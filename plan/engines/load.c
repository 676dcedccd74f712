/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: pieces of tensors go through a few slots; who reads and whether a broadcast follows is
 * the load method. all_ranks is what the field does wrong (AReaL pull request 1182): every rank
 * holds the whole model on its host before anything is cut. */
#include "core/checked.h"
#include "plan/program/builder.h"
#include "plan/spec/registry.h"

typedef struct load_slots {
    stw_extent host, gpu;
    bool whole;                         /* every piece has room of its own on the host */
    uint64_t host_used;                 /* of it */
    uint32_t read_by[STW_LOAD_SLOTS];   /* last copy out of a host slot */
    uint32_t placed_by[STW_LOAD_SLOTS]; /* last use of a GPU slot */
} load_slots;

/* One piece on its way: read, copied up, broadcast, placed; a rank does the parts that are its own.
 */
static void load_piece(stw_builder *b, load_slots *slots, uint32_t unit, uint64_t params,
                       uint64_t bytes, uint64_t room, bool reads, bool broadcast) {
    uint32_t gpu_slot = unit % STW_LOAD_SLOTS;
    uint64_t gpu = slots->gpu.offset + gpu_slot * STW_LOAD_PIECE_BYTES;
    uint32_t ready = slots->placed_by[gpu_slot];
    if (reads) {
        uint32_t host_slot = unit % STW_LOAD_SLOTS;
        uint64_t host = slots->host.offset +
                        (slots->whole ? slots->host_used : host_slot * STW_LOAD_PIECE_BYTES);
        slots->host_used += room;
        stw_op read = stw_op_make(STW_OP_READ, STW_WORK_NONE, STW_STREAM_DISK, unit);
        read.component = STW_COMPONENT_LOAD_STAGING;
        read.from = STW_TIER_NVME;
        read.to = STW_TIER_HOST;
        read.offset_bytes = host;
        read.bytes = bytes;
        read.params = params;
        if (!slots->whole) read.after[0] = slots->read_by[host_slot];
        uint32_t index = stw_append(b, read);
        ready = stw_copy(b, STW_STREAM_H2D, STW_COMPONENT_LOAD_STAGING, unit, STW_TIER_HOST, host,
                         STW_TIER_GPU, gpu, bytes, index, slots->placed_by[gpu_slot]);
        slots->read_by[host_slot] = ready;
    }
    if (broadcast) {
        stw_op op = stw_op_make(STW_OP_COLLECTIVE, STW_WORK_BROADCAST, STW_STREAM_COMM, unit);
        op.component = STW_COMPONENT_LOAD_STAGING;
        op.from = op.to = STW_TIER_GPU;
        op.offset_bytes = gpu;
        op.bytes = bytes;
        op.params = params;
        op.after[0] = ready;
        op.after[1] = slots->placed_by[gpu_slot];
        ready = stw_append(b, op);
    }
    stw_op place = stw_op_make(STW_OP_COMPUTE, STW_WORK_PLACE, STW_STREAM_COMPUTE, unit);
    place.component = STW_COMPONENT_PARAMS;
    place.from = place.to = STW_TIER_GPU;
    place.from_offset_bytes = place.offset_bytes = gpu;
    place.bytes = bytes;
    place.params = params;
    place.after[0] = ready;
    slots->placed_by[gpu_slot] = stw_append(b, place);
}

static void load_pieces(stw_builder *b, load_slots *slots, bool reads, bool broadcast) {
    stw_load_piece *pieces = NULL;
    uint32_t n = 0;
    if (b->status != STW_STATUS_OK) return;
    b->status = stw_load_pieces(b->job, b->program->pool, &pieces, &n, b->err);
    for (uint32_t i = 0; i < n && b->status == STW_STATUS_OK; i++) {
        const stw_load_piece *piece = &pieces[i];
        load_piece(b, slots, i, piece->count,
                   piece->count * stw_load_element_bytes(b->job, piece->tensor),
                   stw_load_room_bytes(b->job, piece->tensor, piece->count), reads, broadcast);
    }
}

static void load_flat_pieces(stw_builder *b, load_slots *slots) {
    uint32_t n = stw_flat_pieces(b->job, b->layout->kind);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t first, params;
        stw_flat_piece(b->job, b->layout->kind, i, &first, &params);
        load_piece(b, slots, i, params, params * 4, 0, true, false);
    }
}

/* After the last piece: each master region from its parameters. It passes through the staging where
 * the region is not on the GPU, so that comes before the staging goes. */
static void make_masters(stw_builder *b) {
    for (uint32_t i = 0; i < b->layout->n_regions; i++) {
        const stw_region *r = &b->layout->regions[i];
        if (r->component != STW_COMPONENT_MASTER) continue;
        stw_op op = stw_op_make(STW_OP_COMPUTE, STW_WORK_MASTER, STW_STREAM_COMPUTE, i);
        op.component = STW_COMPONENT_MASTER;
        op.from = b->decisions->state[r->decision].place.params;
        op.to = r->tier;
        op.from_offset_bytes =
            stw_layout_address(b->job, b->layout, STW_COMPONENT_PARAMS, r->first_param);
        op.offset_bytes = r->offset_bytes;
        op.bytes = r->bytes;
        op.params = r->params;
        (void)stw_append(b, op);
    }
}

void stw_build_load(stw_builder *b) {
    const stw_rank_kind *kind = &b->job->kinds[b->layout->kind];
    stw_load method = b->decisions->load;
    uint32_t k = b->layout->kind;
    load_slots slots = {.whole = stw_load_is_whole(b->job, method)};
    for (int i = 0; i < STW_LOAD_SLOTS; i++) slots.read_by[i] = slots.placed_by[i] = STW_OP_NONE;
    slots.host = stw_alloc(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_HOST,
                           stw_load_staging_bytes(b->job, b->decisions, k, STW_TIER_HOST));
    slots.gpu = stw_alloc(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_GPU,
                          stw_load_staging_bytes(b->job, b->decisions, k, STW_TIER_GPU));
    switch (method) {
    case STW_LOAD_RANK0_BROADCAST:
        load_pieces(b, &slots, kind->first, b->job->world > 1);
        break;
    case STW_LOAD_NODE_LEADER:
        load_pieces(b, &slots, kind->leader, b->job->ranks_per_node > 1);
        break;
    case STW_LOAD_SHARDED_READ:
        load_flat_pieces(b, &slots);
        break;
    default:
        load_pieces(b, &slots, true, false);
        break;
    }
    if (stw_run_spec_engine(b->job->run)->executes) make_masters(b);
    stw_free(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_GPU, slots.gpu);
    stw_free(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_HOST, slots.host);
}
