/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/program.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

#include "plan/program/roles.h"

stw_status stw_program_new(const stw_job *job, const stw_decisions *decisions,
                           const stw_layout *layout, stw_program **out, stw_error *err) {
    return stw_program_new_phases(job, decisions, layout, 0, out, err);
}

static stw_status new_program(const stw_job *job, const stw_decisions *decisions,
                              const stw_layout *layout, const stw_program *like, stw_program **out,
                              stw_error *err) {
    stw_program *program = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool != NULL) program = stw_pool_alloc(pool, sizeof *program);
    if (program == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "program", "out of memory");
    }
    program->pool = pool;
    program->kind = layout->kind;
    program->phases = like->phases;
    program->with_tensors = like->with_tensors;
    stw_status status = STW_STATUS_OK;
    if (job->kinds[layout->kind].home == 0)
        status = job->engine->build(job, decisions, layout, program, err);
    if (status == STW_STATUS_OK) status = stw_program_add_roles(job, program, err);
    if (status == STW_STATUS_OK)
        *out = program;
    else
        stw_program_free(program);
    return status;
}

stw_status stw_program_new_phases(const stw_job *job, const stw_decisions *decisions,
                                  const stw_layout *layout, uint32_t phases, stw_program **out,
                                  stw_error *err) {
    return new_program(job, decisions, layout, &(stw_program){.phases = phases}, out, err);
}

stw_status stw_program_new_tensors(const stw_job *job, const stw_decisions *decisions,
                                   const stw_layout *layout, stw_program **out, stw_error *err) {
    const stw_program like = {.phases = STW_NO_PHASES, .with_tensors = true};
    return new_program(job, decisions, layout, &like, out, err);
}

void stw_program_free(stw_program *program) {
    if (program != NULL) stw_pool_free(program->pool);
}

void stw_live_apply(stw_live *live, const stw_op *op) {
    if (op->kind == STW_OP_ALLOC) {
        live->bytes[op->to][op->component] += op->bytes;
        live->total[op->to] += op->bytes;
        if (op->to == STW_TIER_HOST && !op->pageable) live->page_locked += op->bytes;
    } else if (op->kind == STW_OP_FREE) {
        live->bytes[op->to][op->component] -= op->bytes;
        live->total[op->to] -= op->bytes;
        if (op->to == STW_TIER_HOST && !op->pageable) live->page_locked -= op->bytes;
    }
}

void stw_live_note(const stw_live *live, stw_tier tier, stw_peak *peak) {
    if (tier == STW_TIER_HOST && live->page_locked > peak->page_locked)
        peak->page_locked = live->page_locked;
    if (live->total[tier] < peak->total) return;
    peak->total = live->total[tier];
    memcpy(peak->components, live->bytes[tier], sizeof peak->components);
}

#define ALL_ROLES UINT32_MAX

/* @param alone the bytes of other roles do not count */
static void walk(const stw_program *program, uint32_t role, bool alone, stw_peaks *peaks) {
    stw_live live;
    memset(&live, 0, sizeof live);
    memset(peaks, 0, sizeof *peaks);
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const bool noted = role == ALL_ROLES || movement->role_number == role;
        if (alone && !noted) continue;
        stw_peak *peak = peaks->phase[movement->phase];
        peaks->has[movement->phase] |= noted;
        for (int t = 0; noted && t < STW_N_TIERS; t++) stw_live_note(&live, (stw_tier)t, &peak[t]);
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            stw_live_apply(&live, op);
            if (noted && op->kind == STW_OP_ALLOC) stw_live_note(&live, op->to, &peak[op->to]);
        }
    }
}

void stw_program_walk(const stw_program *program, stw_peaks *peaks) {
    walk(program, ALL_ROLES, false, peaks);
}

void stw_program_walk_while(const stw_program *program, uint32_t role, stw_peaks *peaks) {
    walk(program, role, false, peaks);
}

void stw_program_walk_alone(const stw_program *program, uint32_t role, stw_peaks *peaks) {
    walk(program, role, true, peaks);
}

uint64_t stw_peak_allocated(const stw_peak *peak) {
    static const stw_component others[] = {
        STW_COMPONENT_CONTEXT,         STW_COMPONENT_COMM,
        STW_COMPONENT_SLACK,           STW_COMPONENT_KV_CACHE,
        STW_COMPONENT_ROLLOUT_WEIGHTS, STW_COMPONENT_ROLLOUT_WORK,
        STW_COMPONENT_ROLE_PROCESS};
    uint64_t bytes = peak->total;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        bytes -= peak->components[others[i]];
    return bytes;
}

uint64_t stw_peak_reserved(const stw_peak *peak) {
    return stw_peak_allocated(peak) + peak->components[STW_COMPONENT_SLACK];
}

const stw_movement *stw_program_movement(const stw_program *program, stw_phase phase) {
    for (uint32_t m = 0; m < program->n_movements; m++)
        if (program->movements[m].phase == phase && program->movements[m].role_number == 0)
            return &program->movements[m];
    return NULL;
}

bool stw_movement_has(const stw_program *program, const stw_movement *movement, stw_op_kind kind) {
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++)
        if (program->ops[i].kind == kind) return true;
    return false;
}

uint64_t stw_program_movement_hash(const stw_program *program, const stw_movement *movement) {
    const uint64_t begins = movement->barrier | (uint64_t)movement->behind << 1;
    const uint64_t about[] = {(uint64_t)movement->phase,     movement->by_stowage,
                              movement->executable,          (uint64_t)movement->repeat,
                              (uint64_t)movement->threading, begins,
                              movement->transfer.n_pieces,   movement->n_ops};
    uint64_t hash = XXH3_64bits(about, sizeof about);
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        const uint64_t fields[] = {(uint64_t)op->kind,
                                   (uint64_t)op->component,
                                   (uint64_t)op->update,
                                   (uint64_t)op->from,
                                   (uint64_t)op->to,
                                   (uint64_t)op->stream,
                                   (uint64_t)op->group,
                                   op->peer,
                                   op->unit,
                                   op->after[0],
                                   op->after[1],
                                   op->from_offset_bytes,
                                   op->offset_bytes,
                                   op->bytes,
                                   op->params};
        hash = XXH3_64bits_withSeed(fields, sizeof fields, hash);
    }
    for (uint32_t i = 0; i < movement->transfer.n_pieces; i++) {
        const stw_piece *piece = &movement->transfer.pieces[i];
        const uint64_t fields[] = {piece->peer, piece->tensor, piece->first, piece->n};
        hash = XXH3_64bits_withSeed(fields, sizeof fields, hash);
    }
    return hash;
}

uint64_t stw_program_schedule_hash(const stw_program *program, const stw_movement *movement) {
    uint64_t hash = 1469598103934665603ull;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++)
        if (stw_op_is(&program->ops[i], STW_OP_CLASS_COLLECTIVE))
            hash = stw_op_hash(hash, &program->ops[i]);
    return hash;
}
