/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* Whole programs against tests/golden/programs.csv: what must not move unseen. Small jobs of every
 * engine, whose decisions are drawn at random (no solver: optima are not unique), so that each
 * placement, update, policy and load stands in some program. A row for each phase, summed over the
 * kinds of ranks; sizes and hashes are equal, seconds within 1e-6. UPDATE=1 writes the file anew.
 */
#include "plan/program/collectives.h"
#include "plan/program/demand.h"
#include "plan/program/roles.h"
#include "sim/sim.h"
#include "tests/unit/golden_case.h"

static const char golden_path[] = STW_SOURCE_DIR "/tests/golden/programs.csv";

/* ---- rows ---- */

static const uint64_t EMPTY = 14695981039346656037ull;

static uint64_t mix(uint64_t hash, uint64_t value) {
    for (int i = 0; i < 8; i++) hash = (hash ^ (value >> 8 * i & 0xff)) * 1099511628211ull;
    return hash;
}

static uint64_t mix_text(uint64_t hash, const char *text) {
    for (; text != NULL && *text != '\0'; text++) hash = mix(hash, (unsigned char)*text);
    return mix(hash, text != NULL);
}

#define MIX(hash, ...) mix_all(hash, (const uint64_t[]){__VA_ARGS__}, MIX_N(__VA_ARGS__))
#define MIX_N(...) (sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
static uint64_t mix_all(uint64_t hash, const uint64_t *values, size_t n) {
    for (size_t i = 0; i < n; i++) hash = mix(hash, values[i]);
    return hash;
}

/* A phase, summed over kinds of ranks. Each resource's seconds count times its number, so that two
 * that are exchanged differ. */
typedef struct row {
    bool any;
    uint64_t ops, bytes, hash;
    double flops, demand_s, startup_s, priority, alone_s, busy_s, seconds;
    uint64_t memory[STW_N_MEMORIES], allocated, reserved, cached;
} row;

static void add_op(const stw_job *job, const stw_op *op, row *r) {
    stw_demand demand;
    r->ops++;
    r->bytes += op->bytes;
    r->flops += op->flops;
    r->hash = MIX(r->hash, op->kind, op->component, op->update, op->from, op->to, op->stream,
                  op->pageable, op->ranks, op->group, op->peer, op->unit, op->once_in, op->calls,
                  op->after[0], op->after[1], op->from_offset_bytes, op->offset_bytes, op->bytes,
                  op->params, op->stored_bytes, op->ring_bytes, op->n_work, stw_op_takes_time(op));
    r->hash = mix_text(r->hash, op->from_what);
    r->hash = mix_text(r->hash, stw_op_kind_name(op->kind));
    stw_demand_op(job, op, &demand);
    for (unsigned i = 0; i < STW_N_RESOURCES; i++) r->demand_s += (i + 1) * demand.seconds[i];
    r->startup_s += demand.startup_s;
    r->priority += demand.priority;
    r->alone_s += stw_demand_alone_s(&demand);
}

static void add_movement(const stw_plan *plan, const stw_program *program,
                         const stw_movement *movement, row *r) {
    const stw_transfer *t = &movement->transfer;
    r->hash = MIX(r->hash, movement->role_number, movement->by_stowage, movement->executable,
                  movement->repeat, movement->threading, movement->barrier, movement->empties_cache,
                  movement->micro_batches, movement->files, movement->first_op, movement->n_ops,
                  t->used, t->from_files, t->own, t->whole, t->from, t->to, t->n_pieces,
                  stw_program_movement_hash(program, movement),
                  stw_program_schedule_hash(program, movement));
    r->hash = mix_text(r->hash, movement->role);
    for (uint32_t i = 0; i < t->n_pieces; i++)
        r->hash = MIX(r->hash, t->pieces[i].peer, t->pieces[i].tensor, t->pieces[i].first,
                      t->pieces[i].n, t->pieces[i].room_bytes);
    for (uint32_t i = 0; i < movement->n_ops; i++)
        add_op(plan->job, &program->ops[movement->first_op + i], r);
}

/* Peaks by component, what each role holds, and what passes through torch's allocator. */
static void add_bytes(const stw_plan *plan, uint32_t k, stw_phase phase,
                      const stw_role_peaks *roles, row *r) {
    const stw_peaks *all[] = {&plan->peaks[k], &plan->shown[k]};
    for (size_t a = 0; a < sizeof all / sizeof all[0]; a++)
        for (int t = 0; t < STW_N_TIERS; t++) {
            const stw_peak *peak = &all[a]->phase[phase][t];
            r->hash = MIX(r->hash, peak->total, peak->page_locked);
            r->hash = mix_all(r->hash, peak->components, STW_N_COMPONENTS);
        }
    for (uint32_t i = 0; i < plan->job->n_roles; i++) {
        stw_peaks alone, meanwhile;
        stw_program_walk_alone(plan->programs[k], i, &alone);
        stw_program_walk_while(plan->programs[k], i, &meanwhile);
        r->hash = mix(r->hash, roles[i].has[phase]);
        for (int t = 0; t < STW_N_TIERS; t++)
            r->hash = MIX(r->hash, roles[i].bytes[phase][t], alone.phase[phase][t].total,
                          meanwhile.phase[phase][t].total);
    }
    for (int i = 0; i < STW_REPLAY_ITERATIONS; i++) {
        const stw_replayed_phase *p = &plan->replayed[k].iteration[i][phase];
        r->hash = MIX(r->hash, p->has, p->allocated_bytes, p->reserved_bytes, p->cached_bytes);
    }
}

static void add_program(const stw_plan *plan, uint32_t k, row rows[STW_N_PHASES]) {
    const stw_program *program = plan->programs[k];
    stw_role_peaks *roles = stw_pool_array(plan->pool, plan->job->n_roles, sizeof *roles);
    stw_sim *sim = NULL;
    stw_program_walk_roles(program, plan->job->n_roles, roles);
    CHECK_OK(stw_sim_run(plan->job, program, &sim, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(sim);
    for (uint32_t m = 0; m < program->n_movements; m++) {
        row *r = &rows[program->movements[m].phase];
        add_movement(plan, program, &program->movements[m], r);
        r->any = true;
    }
    for (int p = 0; p < STW_N_PHASES; p++) {
        row *r = &rows[p];
        const double seconds = stw_sim_phase_seconds(sim, (stw_phase)p);
        const stw_replayed_phase *torch = &plan->replayed[k].most[p];
        add_bytes(plan, k, (stw_phase)p, roles, r);
        for (unsigned i = 0; i < STW_N_RESOURCES; i++) r->busy_s += (i + 1) * sim->busy_s[p][i];
        r->seconds += isnan(seconds) ? 0 : seconds;
        for (uint32_t m = 0; m < STW_N_MEMORIES; m++)
            r->memory[m] += stw_peaks_bytes(&plan->peaks[k], (unsigned)p, m);
        r->allocated += torch->allocated_bytes;
        r->reserved += torch->reserved_bytes;
        r->cached += torch->cached_bytes;
    }
    stw_sim_free(sim);
}

static void print_row(const char *name, stw_phase phase, const row *r, stw_text *out) {
    stw_text_printf(out, "%s,%s,%llu,%llu,%016llx,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g", name,
                    stw_phase_name(phase), (unsigned long long)r->ops, (unsigned long long)r->bytes,
                    (unsigned long long)r->hash, r->flops, r->demand_s, r->startup_s, r->priority,
                    r->alone_s, r->busy_s, r->seconds);
    for (uint32_t m = 0; m < STW_N_MEMORIES; m++)
        stw_text_printf(out, ",%llu", (unsigned long long)r->memory[m]);
    stw_text_printf(out, ",%llu,%llu,%llu\n", (unsigned long long)r->allocated,
                    (unsigned long long)r->reserved, (unsigned long long)r->cached);
}

static uint64_t hash_of_layout(const stw_plan *plan, uint32_t k, uint64_t hash) {
    const stw_layout *layout = plan->layouts[k];
    const stw_replayed *replayed = &plan->replayed[k];
    hash = mix_text(hash, layout->hash);
    for (uint32_t i = 0; i < layout->n_buckets; i++)
        hash = MIX(hash, layout->order[i], layout->buckets[i].slot, layout->buckets[i].params);
    return MIX(hash, replayed->retries, replayed->last_retries, replayed->retried_at,
               replayed->full, replayed->full_at, replayed->full_bytes,
               stw_page_table_bytes(plan->job, layout), layout->arena_bytes[STW_TIER_GPU],
               layout->arena_bytes[STW_TIER_HOST], layout->arena_bytes[STW_TIER_NVME]);
}

/* Layouts, what a full device did, and collectives. */
static void print_rest(const char *name, const stw_plan *plan, stw_text *out) {
    uint64_t hash = EMPTY, count = 0, bytes = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        stw_collectives all;
        hash = hash_of_layout(plan, k, hash);
        CHECK_OK(stw_program_collectives(plan->job, plan->programs[k], plan->pool, &all, err));
        for (uint32_t i = 0; i < all.n; i++) {
            const stw_collectives_row *c = &all.rows[i];
            count += c->count;
            bytes += c->bytes;
            hash = MIX(hash, c->phase, c->group, c->ranks, c->kind, c->tier, c->count, c->bytes);
        }
    }
    stw_text_printf(out, "%s,layouts and collectives,%llu,%llu,%016llx\n", name,
                    (unsigned long long)count, (unsigned long long)bytes, (unsigned long long)hash);
}

static void print_ledgers(const char *name, const stw_plan *plan, stw_text *out) {
    uint64_t hash = EMPTY, lines = 0, bytes = 0;
    for (uint32_t i = 0; i < plan->job->n_node_kinds * STW_N_PHASES; i++) {
        stw_ledger ledger;
        CHECK_OK(
            stw_plan_ledger(plan, i / STW_N_PHASES, (stw_phase)(i % STW_N_PHASES), &ledger, err));
        lines += ledger.n;
        for (uint32_t n = 0; n < ledger.n; n++) {
            const stw_ledger_line *line = &ledger.lines[n];
            bytes += line->bytes;
            hash = MIX(mix_text(hash, line->from), line->component, line->page_locked, line->bytes);
        }
    }
    stw_text_printf(out, "%s,ledgers,%llu,%llu,%016llx\n", name, (unsigned long long)lines,
                    (unsigned long long)bytes, (unsigned long long)hash);
}

static void print_phases(const char *name, const stw_plan *plan, stw_text *out) {
    row rows[STW_N_PHASES] = {{0}};
    for (int p = 0; p < STW_N_PHASES; p++) rows[p].hash = EMPTY;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) add_program(plan, k, rows);
    for (int p = 0; p < STW_N_PHASES; p++)
        if (rows[p].any) print_row(name, (stw_phase)p, &rows[p], out);
}

static void print_case(const job_case *c, stw_text *out) {
    stw_plan *plan = golden_plan(c);
    CU_ASSERT_PTR_NOT_NULL(plan);
    if (plan == NULL) return;
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    const stw_ilp_options descents = {.time_limit_s = 60, .no_solver = true};
    uint64_t seed = (uint64_t)(c - golden_jobs) + 1;
    for (uint32_t i = 0; i < c->choices; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%u", c->name, i + 1);
        stw_ilp_result result;
        case_choice(cost, &seed, &choice);
        if (!stw_choice_keeps_shares(cost, &choice))
            CHECK_OK(stw_ilp_solve_least_over(cost, &descents, &choice, &result, err));
        CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
        plan->decisions.blocks_in_turn = i % 2 == 1;
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_plan_check(plan, true, err));
        print_phases(name, plan, out);
        print_rest(name, plan, out);
        print_ledgers(name, plan, out);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

/* ---- the table ---- */

static const char head[] =
    "case,phase,ops,bytes,hash,flops,demand_s,startup_s,priority,alone_s,busy_s,seconds,"
    "gpu_bytes,host_bytes,nvme_bytes,page_locked_bytes,allocated_bytes,reserved_bytes,"
    "cached_bytes\n";

static void programs_are_golden(void) {
    stw_text found = STW_TEXT_INIT;
    stw_text_printf(&found, "%s", head);
    for (size_t i = 0; i < sizeof golden_jobs / sizeof golden_jobs[0]; i++)
        print_case(&golden_jobs[i], &found);
    golden_check(golden_path, &found);
    stw_text_free(&found);
}

STW_TEST_MAIN("plan_golden", {"whole programs are those of the table", programs_are_golden})
