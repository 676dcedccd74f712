/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: pieces of tensors go through a few slots; who reads and whether a broadcast follows is
 * the load method. all_ranks is what the field does wrong (AReaL pull request 1182): every rank
 * holds the whole model on its host before anything is cut. all_ranks_gpu makes it on every GPU
 * instead (inclusionAI/AReaL at 4aef98d, areal/engine/fsdp_engine.py: _create_device_model, with
 * fsdp.memory_efficient_load false, calls from_pretrained within torch.device(cuda), and
 * parallelize_model cuts module by module what is there). DeepSpeed without zero.Init is all_ranks:
 * from_pretrained makes the model on the host of every rank, and deepspeed.initialize sends one
 * parameter after the other to the GPU and keeps its part (deepspeed/runtime/zero/
 * partition_parameters.py, Init with `module`; stages 1 and 2 keep all of it). A framework's
 * loader holds the model in the dtype that it asks from_pretrained for: verl's trainer fp32
 * whatever the files hold, so that the optimizer's state is fp32, its reference bf16
 * (verl/workers/fsdp_workers.py at 03b0081, _build_model_optimizer). */
#include "core/checked.h"
#include "engines/movements.h"
#include "plan/program/staging.h"

typedef struct load_slots {
    stw_extent host, gpu;
    bool whole;                         /* every piece has room of its own on the host */
    bool whole_on_gpu;                  /* the same on the GPU */
    uint64_t host_used, gpu_used;       /* of these */
    uint32_t read_by[STW_LOAD_SLOTS];   /* last copy out of a host slot */
    uint32_t placed_by[STW_LOAD_SLOTS]; /* last use of a GPU slot */
} load_slots;

/* What one rank does with pieces. */
typedef struct load_part {
    bool reads, sends;
    stw_op_ranks readers;
    stw_rank_group group; /* that a piece is sent to */
} load_part;

/* A piece in the file, and on the host and on its way from there. */
typedef struct piece_size {
    uint64_t params, stored_bytes, held_bytes;
} piece_size;

/* From a weights file into a host slot, and up. Returns the copy. */
static uint32_t read_piece(stw_builder *b, load_slots *slots, uint32_t unit, uint64_t gpu,
                           const piece_size *size, stw_op_ranks readers) {
    uint32_t slot = unit % STW_LOAD_SLOTS;
    uint64_t host =
        slots->host.offset + (slots->whole ? slots->host_used : slot * STW_LOAD_PIECE_BYTES);
    stw_op read = stw_op_make(STW_OP_FILE_READ, STW_STREAM_DISK, unit);
    slots->host_used +=
        b->program->movements[b->program->n_movements - 1].transfer.pieces[unit].room_bytes;
    read.component = STW_COMPONENT_LOAD_STAGING;
    read.from = STW_TIER_NVME;
    read.to = STW_TIER_HOST;
    read.offset_bytes = host;
    /* a loader that narrows reads through a buffer of its own: what arrives is what has room */
    read.bytes = stw_min_u64(size->stored_bytes, size->held_bytes);
    read.stored_bytes = size->stored_bytes;
    read.params = size->params;
    read.ranks = readers;
    if (!slots->whole) read.after[0] = slots->read_by[slot];
    uint32_t done = stw_append(b, read);
    slots->read_by[slot] = stw_copy(b, &(stw_transport){.kind = STW_OP_COPY_PIECE,
                                                        .stream = STW_STREAM_H2D,
                                                        .component = STW_COMPONENT_LOAD_STAGING,
                                                        .unit = unit,
                                                        .ranks = readers,
                                                        .from = {STW_TIER_HOST, host},
                                                        .to = {STW_TIER_GPU, gpu},
                                                        .bytes = size->held_bytes,
                                                        .after = {done, slots->placed_by[slot]}});
    if (!b->skipping && slots->read_by[slot] != STW_OP_NONE)
        b->program->ops[slots->read_by[slot]].pageable = stw_load_is_pageable(b->job);
    /* Caches see the piece in the file, then in its slot, until the next one comes there. */
    if (!slots->whole && slots->read_by[slot] != STW_OP_NONE && !b->skipping)
        b->program->ops[slots->read_by[slot]].ring_bytes =
            stw_times(STW_LOAD_SLOTS, stw_plus(read.bytes, size->held_bytes));
    return slots->read_by[slot];
}

/* One piece on its way: read, copied up, sent, placed; a rank does the parts that are its own. */
static void load_piece(stw_builder *b, load_slots *slots, uint32_t unit, const piece_size *size,
                       const load_part *part) {
    uint32_t slot = unit % STW_LOAD_SLOTS;
    /* the last pieces of a whole model stay where the parameters are */
    const uint64_t most = slots->gpu.bytes - STW_LOAD_PIECE_BYTES;
    uint64_t gpu = slots->gpu.offset + (slots->whole_on_gpu ? stw_min_u64(slots->gpu_used, most)
                                                            : slot * STW_LOAD_PIECE_BYTES);
    uint32_t ready = slots->whole_on_gpu ? STW_OP_NONE : slots->placed_by[slot];
    slots->gpu_used +=
        b->program->movements[b->program->n_movements - 1].transfer.pieces[unit].room_bytes;
    stw_op place = stw_op_make(STW_OP_PLACE, STW_STREAM_COMPUTE, unit);
    place.component = STW_COMPONENT_PARAMS;
    place.from = place.to = STW_TIER_GPU;
    place.from_offset_bytes = place.offset_bytes = gpu;
    place.bytes = size->held_bytes;
    place.params = size->params;
    if (part->reads) ready = read_piece(b, slots, unit, gpu, size, part->readers);
    if (part->sends) {
        stw_op send = stw_op_make(STW_OP_SEND, STW_STREAM_COMM, unit);
        send.component = STW_COMPONENT_LOAD_STAGING;
        send.group = part->group;
        send.from = send.to = STW_TIER_GPU;
        send.from_offset_bytes = send.offset_bytes = gpu;
        send.bytes = size->held_bytes;
        send.params = size->params;
        send.after[0] = ready;
        send.after[1] = slots->placed_by[slot];
        ready = stw_append(b, send);
    }
    place.after[0] = ready;
    slots->placed_by[slot] = stw_append(b, place);
}

static piece_size size_of(const stw_builder *b, const stw_transfer *transfer,
                          const stw_piece *piece) {
    const stw_space *own = &b->job->kinds[b->layout->kind].spaces[transfer->from];
    const stw_view view = {transfer->own ? own : &b->job->files, piece->first, piece->n};
    return (piece_size){piece->n, stw_load_piece_bytes(b->job, view),
                        stw_load_held_bytes(b->job, view)};
}

/* ---- the transfer ---- */

static void file_pieces(stw_builder *b, stw_transfer *transfer) {
    stw_view *pieces = NULL;
    b->status = stw_load_pieces(b->job, b->program->pool, &pieces, &transfer->n_pieces, b->err);
    if (b->status != STW_STATUS_OK) return;
    transfer->pieces =
        stw_pool_array(b->program->pool, transfer->n_pieces, sizeof *transfer->pieces);
    for (uint32_t i = 0; transfer->pieces != NULL && i < transfer->n_pieces; i++) {
        const stw_segment *s = &b->job->files.segments[stw_view_first_segment(pieces[i])];
        transfer->pieces[i] = (stw_piece){.tensor = s->tensor,
                                          .first = pieces[i].first,
                                          .n = pieces[i].n,
                                          .room_bytes = stw_load_room_bytes(b->job, pieces[i])};
    }
}

static void own_pieces(stw_builder *b, stw_transfer *transfer) {
    transfer->n_pieces = stw_flat_pieces(b->job, b->layout->kind);
    transfer->pieces =
        stw_pool_array(b->program->pool, transfer->n_pieces, sizeof *transfer->pieces);
    for (uint32_t i = 0; transfer->pieces != NULL && i < transfer->n_pieces; i++) {
        stw_piece *piece = &transfer->pieces[i];
        stw_flat_piece(b->job, b->layout->kind, i, &piece->first, &piece->n);
    }
}

stw_transfer stw_load_transfer(stw_builder *b) {
    bool own = b->decisions->load == STW_LOAD_SHARDED_READ;
    stw_transfer transfer = {.used = true,
                             .from_files = true,
                             .own = own,
                             .from = STW_SPACE_PARAMS,
                             .to = STW_SPACE_PARAMS,
                             .from_component = STW_COMPONENT_PARAMS,
                             .to_component = STW_COMPONENT_PARAMS};
    if (b->status != STW_STATUS_OK || !stw_program_is_full(b->program, STW_PHASE_LOAD))
        return transfer; /* no operation works on its pieces */
    if (own)
        own_pieces(b, &transfer);
    else
        file_pieces(b, &transfer);
    if (b->status == STW_STATUS_OK && transfer.pieces == NULL)
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "load", "out of memory");
    return transfer;
}

/* After the last piece: each master region from its parameters. It passes through the staging where
 * the region is not on the GPU, so that comes before the staging goes. */
static void make_masters(stw_builder *b) {
    for (uint32_t i = 0; i < b->layout->n_regions; i++) {
        const stw_region *r = &b->layout->regions[i];
        if (r->component != STW_COMPONENT_MASTER) continue;
        stw_op op = stw_op_make(STW_OP_MASTER, STW_STREAM_COMPUTE, i);
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

static load_part part_of(const stw_job *job, const stw_rank_kind *kind, stw_load method) {
    switch (method) {
    case STW_LOAD_RANK0_BROADCAST:
        return (load_part){kind->first, job->world > 1, STW_OP_RANKS_ONE, STW_RANK_GROUP_WORLD};
    case STW_LOAD_NODE_LEADER:
        return (load_part){kind->leader, job->ranks_per_node > 1, STW_OP_RANKS_ONE,
                           STW_RANK_GROUP_NODE};
    case STW_LOAD_ALL_RANKS:
    case STW_LOAD_ALL_RANKS_GPU:
        return (load_part){true, false, STW_OP_RANKS_SAME, STW_RANK_GROUP_NONE};
    default:
        return (load_part){true, false, STW_OP_RANKS_EACH, STW_RANK_GROUP_NONE};
    }
}

void stw_build_load(stw_builder *b) {
    uint32_t k = b->layout->kind;
    stw_load method = b->decisions->load;
    if (b->status != STW_STATUS_OK) return;
    const load_part part = part_of(b->job, &b->job->kinds[k], method);
    const stw_transfer transfer = b->program->movements[b->program->n_movements - 1].transfer;
    load_slots slots = {.whole = stw_load_is_whole(b->job, method),
                        .whole_on_gpu = stw_load_is_whole_on_gpu(method)};
    for (int i = 0; i < STW_LOAD_SLOTS; i++) slots.read_by[i] = slots.placed_by[i] = STW_OP_NONE;
    b->pageable = stw_load_is_pageable(b->job);
    slots.host = stw_alloc(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_HOST,
                           stw_load_staging_bytes(b->job, b->decisions, k, STW_TIER_HOST));
    b->pageable = false;
    slots.gpu = stw_alloc(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_GPU,
                          stw_load_staging_bytes(b->job, b->decisions, k, STW_TIER_GPU));
    for (uint32_t i = 0; i < transfer.n_pieces && b->status == STW_STATUS_OK; i++) {
        const piece_size size = size_of(b, &transfer, &transfer.pieces[i]);
        load_piece(b, &slots, i, &size, &part);
    }
    if (b->job->engine->spec.own_process) make_masters(b);
    stw_free(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_GPU, slots.gpu);
    stw_free(b, STW_COMPONENT_LOAD_STAGING, STW_TIER_HOST, slots.host);
}
