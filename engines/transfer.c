/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers between two spaces of a role. Every rank knows every rank's partition, so all ranks
 * walk the same list of pieces and no rank waits to be told what comes. */
#include "core/checked.h"
#include "engines/movements.h"
#include "plan/program/staging.h"

static stw_piece *add_piece(stw_pool *pool, stw_transfer *transfer, size_t *room) {
    stw_piece *list = stw_pool_grow(pool, transfer->pieces, transfer->n_pieces,
                                    (size_t)transfer->n_pieces + 1, room, sizeof *list);
    if (list == NULL) return NULL;
    transfer->pieces = list;
    return &list[transfer->n_pieces++];
}

/* The source space of one rank in runs that fit a slot. */
static stw_status cut_rank(stw_builder *b, const stw_transfer_ends *ends, uint32_t rank,
                           stw_transfer *transfer, size_t *room) {
    stw_space space;
    uint64_t most = STW_LOAD_PIECE_BYTES / ends->element_bytes;
    stw_status status = stw_job_space(b->job, ends->from, rank, b->program->pool, &space, b->err);
    if (status != STW_STATUS_OK) return status;
    for (uint64_t done = 0; done < space.n; done += most) {
        stw_piece *piece = add_piece(b->program->pool, transfer, room);
        if (piece == NULL)
            return stw_fail(b->err, STW_STATUS_NO_MEMORY, "transfer", "out of memory");
        *piece = (stw_piece){.peer = rank,
                             .tensor = space.segments[0].tensor,
                             .first = done,
                             .n = stw_min_u64(most, space.n - done)};
        piece->room_bytes = stw_times(piece->n, ends->element_bytes);
    }
    return STW_STATUS_OK;
}

stw_transfer stw_space_transfer(stw_builder *b, const stw_transfer_ends *ends) {
    stw_transfer transfer = {.used = true,
                             .from = ends->from,
                             .to = ends->to,
                             .from_component = ends->from_component,
                             .to_component = ends->to_component};
    size_t room = 0;
    for (uint32_t rank = 0; rank < b->job->world && b->status == STW_STATUS_OK; rank++)
        if (stw_job_counts(b->job, ends->from, rank))
            b->status = cut_rank(b, ends, rank, &transfer, &room);
    return transfer;
}

static stw_op piece_op(stw_op_kind kind, stw_stream stream, uint32_t unit, uint64_t gpu,
                       const stw_piece *piece) {
    stw_op op = stw_op_make(kind, stream, unit);
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = gpu;
    op.bytes = piece->room_bytes;
    op.params = piece->n;
    op.peer = piece->peer;
    return op;
}

/* PACK and PLACE share a stream: a slot is packed anew only after it was placed. */
void stw_build_transfer(stw_builder *b) {
    if (b->status != STW_STATUS_OK) return;
    const stw_transfer transfer = b->program->movements[b->program->n_movements - 1].transfer;
    stw_extent slots =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, STW_LOAD_SLOTS * STW_LOAD_PIECE_BYTES);
    for (uint32_t i = 0; i < transfer.n_pieces && b->status == STW_STATUS_OK; i++) {
        const stw_piece *piece = &transfer.pieces[i];
        uint32_t slot = i % STW_LOAD_SLOTS;
        uint64_t gpu = slots.offset + slot * STW_LOAD_PIECE_BYTES;
        stw_op pack = piece_op(STW_OP_PACK, STW_STREAM_COMPUTE, i, gpu, piece);
        uint32_t ready = stw_append(b, pack);
        if (b->job->world > 1) {
            stw_op send = piece_op(STW_OP_SEND, STW_STREAM_COMM, i, gpu, piece);
            send.after[0] = ready;
            ready = stw_append(b, send);
        }
        stw_op place = piece_op(STW_OP_PLACE, STW_STREAM_COMPUTE, i, gpu, piece);
        place.component = transfer.to_component;
        place.after[0] = ready;
        (void)stw_append(b, place);
    }
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, slots);
}
