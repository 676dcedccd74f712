/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/roles.h"

#include <string.h>

/* ---- merging ---- */

/* Place of a phase in an iteration. A role that trains finishes its update before the trainer
 * begins. */
static int turn_of(const stw_movement *movement) {
    const stw_phase phase = movement->phase;
    static const int turns[STW_N_PHASES] = {
        [STW_PHASE_LOAD] = 0,           [STW_PHASE_FIRST_OPTIMIZER_STEP] = 1,
        [STW_PHASE_LOG_PROB] = 2,       [STW_PHASE_FORWARD_BACKWARD] = 3,
        [STW_PHASE_OPTIMIZER_STEP] = 4, [STW_PHASE_WEIGHT_SYNC] = 5,
        [STW_PHASE_ROLLOUT] = 6,        [STW_PHASE_CHECKPOINT] = 7};
    const bool updates = phase == STW_PHASE_FORWARD_BACKWARD || phase == STW_PHASE_OPTIMIZER_STEP;
    if (updates && movement->role_number > 0) return 2 * turns[STW_PHASE_LOG_PROB] + 1;
    return 2 * turns[phase];
}

/* The programs that are merged: the trainer's, and one of each other role. */
typedef struct merge {
    stw_program *into;
    stw_program **from; /* [n] */
    uint32_t *next;     /* [n] the movement that comes next */
    uint32_t n;
    uint32_t **places; /* [n][ops] where an operation has gone */
    stw_op *ops;
    stw_movement *movements;
    bool lost; /* out of memory */
} merge;

static bool is_before(const stw_movement *a, const stw_movement *b) {
    const int x = turn_of(a), y = turn_of(b);
    const bool last = a->phase == STW_PHASE_WEIGHT_SYNC;
    if (x != y) return x < y;
    if (last && (a->role_number == 0) != (b->role_number == 0)) return b->role_number == 0;
    return a->role_number < b->role_number;
}

/* The program whose next movement comes first; n: all are done. */
static uint32_t pick(const merge *m) {
    uint32_t best = m->n;
    for (uint32_t i = 0; i < m->n; i++) {
        if (m->next[i] == m->from[i]->n_movements) continue;
        if (best == m->n ||
            is_before(&m->from[i]->movements[m->next[i]], &m->from[best]->movements[m->next[best]]))
            best = i;
    }
    return best;
}

static void take(merge *m, uint32_t i) {
    const stw_program *from = m->from[i];
    const stw_movement *movement = &from->movements[m->next[i]++];
    stw_program *into = m->into;
    stw_movement *copy = &m->movements[into->n_movements++];
    *copy = *movement;
    copy->first_op = into->n_ops;
    for (uint32_t o = movement->first_op; o < movement->first_op + movement->n_ops; o++) {
        stw_op op = from->ops[o];
        for (int a = 0; a < 2; a++)
            if (op.after[a] != STW_OP_NONE) op.after[a] = m->places[i][op.after[a]];
        if (op.n_work > 0 && from->pool != into->pool) {
            op.work = stw_work_keep(into->pool, op.work, op.n_work);
            m->lost |= op.work == NULL;
        }
        m->places[i][o] = into->n_ops;
        m->ops[into->n_ops++] = op;
    }
}

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "program", "out of memory for roles");
}

/* @param from the program itself, as it was, and those of roles @param scratch of the merge */
static stw_status merge_all(stw_program *program, stw_program **from, uint32_t n, stw_pool *scratch,
                            stw_error *err) {
    size_t ops = 0, movements = 0;
    merge m = {.into = program, .from = from, .n = n};
    m.next = stw_pool_array(scratch, n, sizeof *m.next);
    m.places = stw_pool_array(scratch, n, sizeof *m.places);
    if (m.next == NULL || m.places == NULL) return no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        ops += from[i]->n_ops;
        movements += from[i]->n_movements;
        m.places[i] = stw_pool_array(scratch, from[i]->n_ops, sizeof(uint32_t));
        if (m.places[i] == NULL) return no_memory(err);
    }
    if (ops > STW_MAX_OPS)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "program",
                        "found more than %u operations in the program of a rank, expected at most "
                        "so many",
                        STW_MAX_OPS);
    m.ops = stw_pool_array(program->pool, ops, sizeof *m.ops);
    m.movements = stw_pool_array(program->pool, movements, sizeof *m.movements);
    if (m.ops == NULL || m.movements == NULL) return no_memory(err);
    program->n_ops = program->n_movements = 0;
    for (uint32_t i = pick(&m); i < n; i = pick(&m)) take(&m, i);
    if (m.lost) return no_memory(err);
    program->ops = m.ops;
    program->movements = m.movements;
    program->movement_room = movements;
    return STW_STATUS_OK;
}

/* A role's own program, in the scratch pool. */
static stw_status build_role(const stw_job *job, uint32_t role, const stw_program *like,
                             stw_pool *scratch, stw_program **out, stw_error *err) {
    stw_program *program = stw_pool_alloc(scratch, sizeof *program);
    if (program == NULL) return no_memory(err);
    program->pool = scratch;
    program->kind = like->kind;
    program->phases = like->phases;
    *out = program;
    return job->roles[role].engine->build(job, role, program, err);
}

stw_status stw_program_add_roles(const stw_job *job, stw_program *program, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t home = job->kinds[program->kind].home;
    uint32_t n = 1;
    if (job->n_roles <= 1 || program->with_tensors) return STW_STATUS_OK;
    stw_pool *scratch = stw_pool_new();
    stw_program **from =
        scratch == NULL ? NULL : stw_pool_array(scratch, job->n_roles, sizeof *from);
    stw_program before = *program;
    if (from == NULL) {
        status = no_memory(err);
        goto out;
    }
    from[0] = &before;
    for (uint32_t r = 1; r < job->n_roles; r++)
        if (job->roles[r].home == home)
            STW_TRY(build_role(job, r, program, scratch, &from[n++], err));
    if (n > 1) STW_TRY(merge_all(program, from, n, scratch, err));
out:
    stw_pool_free(scratch);
    return status;
}

/* ---- what each role holds ---- */

typedef struct shares {
    uint64_t (*bytes)[STW_N_TIERS]; /* [n_roles] live */
    uint64_t total[STW_N_TIERS], peak[STW_N_PHASES][STW_N_TIERS];
    uint32_t n;
    stw_role_peaks *out;
} shares;

static void note(shares *s, stw_phase phase, int tier) {
    if (s->total[tier] < s->peak[phase][tier]) return;
    s->peak[phase][tier] = s->total[tier];
    for (uint32_t r = 0; r < s->n; r++) s->out[r].bytes[phase][tier] = s->bytes[r][tier];
}

/* The moments are those of stw_program_walk. */
void stw_program_walk_roles(const stw_program *program, uint32_t n_roles, stw_role_peaks *out) {
    uint64_t live[1 + STW_SPEC_MAX_ITEMS][STW_N_TIERS];
    shares s = {.bytes = live, .n = n_roles, .out = out};
    memset(live, 0, sizeof live);
    memset(out, 0, n_roles * sizeof *out);
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const uint32_t role = movement->role_number;
        out[role].has[movement->phase] = true;
        for (int t = 0; t < STW_N_TIERS; t++) note(&s, movement->phase, t);
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            if (op->kind != STW_OP_ALLOC && op->kind != STW_OP_FREE) continue;
            const uint64_t change = op->kind == STW_OP_ALLOC ? op->bytes : 0 - op->bytes;
            live[role][op->to] += change;
            s.total[op->to] += change;
            if (op->kind == STW_OP_ALLOC) note(&s, movement->phase, op->to);
        }
    }
}
