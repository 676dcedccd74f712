/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* Whole programs against tests/golden/programs.csv: what must not move unseen. Small jobs of every
 * engine, whose decisions are drawn at random (no solver: optima are not unique), so that each
 * placement, update, policy and load stands in some program. A row for each phase, summed over the
 * kinds of ranks; sizes and hashes are equal, seconds within 1e-6. UPDATE=1 writes the file anew.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/file.h"
#include "plan/program/collectives.h"
#include "plan/program/demand.h"
#include "plan/program/roles.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif

static const char golden_path[] = STW_SOURCE_DIR "/tests/golden/programs.csv";
static const double SAME = 1e-6;

/* ---- jobs ---- */

#define MOST_SETTINGS 12
typedef struct job_case {
    const char *name, *model; /* of the zoo */
    unsigned layers;          /* instead of its own; 0: its own */
    uint32_t choices;         /* drawn decisions */
    const char *settings[MOST_SETTINGS];
} job_case;

#define TIGHT "node.gpu.memory=4 GiB", "batch.seq_len=1024"
#define MEASURED                                                                                   \
    "node.gpu.update=3.1 TB/s", "node.gpu.norm=2.9 TB/s", "node.gpu.norm_bf16=2.5 TB/s",           \
        "node.host.dma_up=70 GB/s", "node.host.dma_down=80 GB/s", "node.host.cache=96 MiB"
#define RING "prefetch.depth=2", "prefetch.bucket=16 MiB"
#define BF16 "precision.params=bf16", "precision.grads=bf16", "precision.reduce=bf16"
#define MASTER "precision.params=bf16", "precision.master=fp32"
#define BF16_STATE BF16, "precision.exp_avg=bf16", "precision.exp_avg_sq=bf16"
#define FSDP2 "engine=fsdp2", "nodes=1"
#define MEGATRON "engine=megatron", MASTER
#define ZERO "engine=deepspeed", BF16, "precision.master=fp32"
#define ROLLOUT "{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.4, max_model_len: 2k"

static const job_case cases[] = {
    {"stowage", "Qwen3-0.6B", 6, 4, {"nodes=1", "node.gpus=2", TIGHT, MEASURED, RING}},
    {"stowage-alone", "Qwen3-8B", 2, 3, {"nodes=1", "node.gpus=1", "loss.fused=true", RING}},
    {"stowage-nvme",
     "Qwen3-0.6B",
     4,
     3,
     {"node.gpus=2", "placement.moments=nvme", "node.nvme.both=4 GB/s", "node.host.cache=64 MiB",
      RING}},
    {"stowage-nvme-once",
     "Qwen3-0.6B",
     3,
     2,
     {"node.gpus=1", "placement.moments=nvme", "placement.nvme_copies=2", "load.weights=/weights",
      "load.page_cached=true", RING}},
    {"stowage-shares",
     "Qwen3-0.6B",
     4,
     2,
     {"nodes=2", "node.gpus=2", "update.resident=0.2", "update.stream=0.3", "update.direct=0.2",
      "update.cpu=0.3", BF16, "load.weights=/weights", RING}},
    {"stowage-experts",
     "Qwen3-30B-A3B",
     3,
     2,
     {"nodes=2", "node.gpus=2", "parallel.ep=4", MASTER, "placement.master=host", RING}},
    {"stowage-uneven", "Qwen3-0.6B", 5, 2, {"nodes=3", "node.gpus=5", RING}},
    {"fsdp2", "Qwen3-8B", 3, 2, {FSDP2, "optimizer.implementation=fused", "batch.epochs=2"}},
    {"fsdp2-streamed",
     "Qwen3-8B",
     3,
     3,
     {FSDP2, "optimizer.implementation=streamed", "placement.moments=host", "node.gpus=4"}},
    {"fsdp2-offload",
     "Qwen3-1.7B",
     3,
     2,
     {FSDP2, "fsdp.offload_policy=true", "node.gpus=4", "node.torch.launcher=1 GiB",
      "node.pcie.pageable=7 GB/s"}},
    {"fsdp2-replicated",
     "Qwen3-8B",
     3,
     1,
     {"engine=fsdp2", "nodes=2", "parallel.dp_replicate=2", "batch.grad_accumulation=3",
      "fsdp.reshard_after_forward=false", BF16_STATE}},
    {"fsdp2-tp",
     "Qwen3-8B",
     3,
     1,
     {"engine=fsdp2", "nodes=2", "parallel.tp=2", "parallel.sequence_parallel=true",
      "batch.grad_accumulation=2"}},
    {"fsdp2-experts", "DeepSeek-V2-Lite", 4, 1, {"engine=fsdp2", "nodes=2", "parallel.ep=8"}},
    {"fsdp2-parked",
     "Qwen3-4B",
     3,
     1,
     {FSDP2, "park.params=host", "park.moments=host", "park.moments_back=forward_backward",
      "roles=[" ROLLOUT "}]"}},
    {"fsdp2-lora",
     "Qwen2.5-7B",
     3,
     1,
     {FSDP2, BF16_STATE, "batch.grad_accumulation=2",
      "trainable.lora={rank: 16, targets: [q_proj, k_proj, v_proj]}"}},
    {"fsdp2-vision",
     "Qwen2.5-VL-3B-Instruct",
     3,
     1,
     {FSDP2, "batch.image_tokens=512", "checkpoint.every=10", "recompute.granularity=full"}},
    {"fsdp2-steps",
     "Qwen3-4B",
     2,
     1,
     {FSDP2, "batch.mini_batches=4", "batch.log_prob_micro_batch=2", "batch.epochs=2",
      "checkpoint.every=5", "checkpoint.async=true"}},
    {"fsdp2-hybrid", "Qwen3.5-0.8B", 0, 1, {FSDP2, "node.gpus=2", "batch.seq_len=2048"}},
    {"megatron", "Qwen3-8B", 4, 1, {MEGATRON, "nodes=1", "megatron.overlap_grad_reduce=true"}},
    {"megatron-stages",
     "Qwen3-8B",
     8,
     1,
     {MEGATRON, "nodes=2", "parallel.pp=4", "parallel.vpp=2", "parallel.tp=2",
      "parallel.sequence_parallel=true", "batch.grad_accumulation=8"}},
    {"megatron-experts",
     "Qwen3-30B-A3B",
     4,
     1,
     {MEGATRON, "nodes=2", "parallel.ep=8", "recompute.granularity=full",
      "recompute.method=uniform", "recompute.num_layers=1"}},
    {"megatron-offload",
     "Qwen3-4B",
     4,
     1,
     {MEGATRON, "nodes=1", "megatron.optimizer_offload_fraction=0.5",
      "megatron.precision_aware=true", "node.torch.process=3 GiB"}},
    {"megatron-attention",
     "DeepSeek-V2-Lite",
     4,
     1,
     {MEGATRON, "nodes=1", "parallel.tp=2", "parallel.ep=4", "parallel.sequence_parallel=true",
      "attention=eager", "recompute.granularity=selective"}},
    {"megatron-saved",
     "Llama-3.1-8B",
     3,
     1,
     {MEGATRON, "nodes=1", "checkpoint.every=10", "park.params=host", "park.moments=host"}},
    {"deepspeed-1", "Qwen3-4B", 3, 1, {ZERO, "deepspeed.zero_stage=1", "node.gpus=2"}},
    {"deepspeed-2",
     "Qwen3-4B",
     3,
     1,
     {ZERO, "deepspeed.zero_stage=2", "deepspeed.offload_optimizer=cpu",
      "batch.grad_accumulation=2"}},
    {"deepspeed-3",
     "Qwen3-4B",
     4,
     2,
     {ZERO, "nodes=2", "deepspeed.sub_group_size=1e7", "deepspeed.prefetch_bucket=1e7"}},
    {"deepspeed-cpu",
     "Qwen3-4B",
     4,
     2,
     {ZERO, "deepspeed.offload_optimizer=cpu", "deepspeed.offload_param=cpu",
      "deepspeed.sub_group_size=1e8", "optimizer.cpu_threads=4", "node.host.bandwidth=400 GB/s"}},
    {"deepspeed-nvme",
     "Qwen3-0.6B",
     3,
     2,
     {ZERO, "node.gpus=1", "deepspeed.param_buffer_size=2e8", "deepspeed.offload_optimizer=nvme",
      "deepspeed.offload_param=nvme", "deepspeed.sub_group_size=1e8",
      "deepspeed.pipeline_write=true", "deepspeed.optimizer_buffer_count=12"}},
    {"roles",
     "Qwen3-4B",
     3,
     1,
     {"engine=fsdp2", "nodes=1",
      "roles=[" ROLLOUT ", sleep_level: 1}, {name: b, kind: reference}, {name: c, kind: critic}]"}},
    {"roles-apart",
     "Qwen3-4B",
     3,
     1,
     {"engine=megatron", MASTER, "nodes=3",
      "roles=[" ROLLOUT ", with: none, nodes: 1, engine: sglang}, "
      "{name: b, kind: reward, with: a}]"}},
    {"host-only", "Qwen3-0.6B", 2, 2, {"nodes=1", "node.gpus=0"}},
};

/* A config of the zoo with another number of layers, through a file of its own. */
static stw_status open_model(const job_case *c, stw_model **out, stw_error *err) {
    static const char key[] = "\"num_hidden_layers\":";
    char from[512], to[] = "/tmp/stw_golden_XXXXXX", *text = NULL;
    uint64_t length = 0;
    if (c->layers == 0) return stw_model_open(c->model, STW_SOURCE_MODELS, out, err);
    snprintf(from, sizeof from, "%s/zoo/%s.json", STW_SOURCE_MODELS, c->model);
    stw_status status = stw_file_read(from, 1 << 20, &text, &length, err);
    if (status != STW_STATUS_OK) return status;
    char *at = strstr(text, key), *end = NULL;
    int fd = mkstemp(to);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (at == NULL || file == NULL) exit(2);
    at += strlen(key);
    (void)strtoul(at, &end, 10);
    fprintf(file, "%.*s %u%s", (int)(at - text), text, c->layers, end);
    fclose(file);
    status = stw_model_read_config(to, STW_SOURCE_MODELS, out, err);
    unlink(to);
    free(text);
    return status;
}

static stw_plan *new_plan(const job_case *c) {
    stw_error error = STW_ERROR_INIT, *err = &error;
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    size_t n = 0;
    while (n < MOST_SETTINGS && c->settings[n] != NULL) n++;
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, c->settings, n, c->name, err));
    STW_TRY(stw_cluster_check(&cluster, c->name, err));
    STW_TRY(stw_run_spec_check(&run, c->name, err));
    STW_TRY(open_model(c, &model, err));
    STW_TRY(stw_plan_new(model, &cluster, &run, &plan, err));
out:
    if (status != STW_STATUS_OK) {
        fprintf(stderr, "%s: %s: %s\n", c->name, error.where, error.text);
        stw_plan_free(plan);
        return NULL;
    }
    return plan;
}

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
    stw_plan *plan = new_plan(c);
    CU_ASSERT_PTR_NOT_NULL(plan);
    if (plan == NULL) return;
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = (uint64_t)(c - cases) + 1;
    for (uint32_t i = 0; i < c->choices; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%u", c->name, i + 1);
        stw_evaluation evaluation;
        case_choice(cost, &seed, &choice);
        if (!stw_choice_keeps_shares(cost, &choice))
            (void)stw_greedy_solve(cost, &choice, &evaluation);
        CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
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

/* Equal up to the rounding of numbers with a point. */
static bool is_same(const char *a, const char *b) {
    while (*a != '\0' || *b != '\0') {
        const size_t n = strcspn(a, ",\n"), m = strcspn(b, ",\n");
        char *a_end = NULL, *b_end = NULL;
        const double x = strtod(a, &a_end), y = strtod(b, &b_end);
        const bool numbers = a_end == a + n && b_end == b + m &&
                             (memchr(a, '.', n) != NULL || memchr(b, '.', m) != NULL);
        if (numbers ? !(fabs(x - y) <= SAME * fabs(y)) : n != m || memcmp(a, b, n) != 0)
            return false;
        if (a[n] != b[m]) return false;
        a += n + (a[n] != '\0');
        b += m + (b[m] != '\0');
    }
    return true;
}

static void check_table(char *golden, char *found) {
    unsigned moved = 0;
    while (*golden != '\0' || *found != '\0') {
        char *g_end = golden + strcspn(golden, "\n"), *f_end = found + strcspn(found, "\n");
        char *g_next = g_end + (*g_end != '\0'), *f_next = f_end + (*f_end != '\0');
        *g_end = *f_end = '\0';
        if (!is_same(golden, found) && moved++ < 10)
            fprintf(stderr, "golden: %s\nfound:  %s\n", golden, found);
        golden = g_next;
        found = f_next;
    }
    if (moved > 0)
        fprintf(stderr, "%u rows moved; UPDATE=1 test_plan_golden where that is meant\n", moved);
    CU_ASSERT_EQUAL(moved, 0);
}

static void programs_are_golden(void) {
    stw_text found = STW_TEXT_INIT;
    char *golden = NULL;
    uint64_t length = 0;
    stw_text_printf(&found, "%s", head);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) print_case(&cases[i], &found);
    CHECK_OK(stw_text_status(&found, err));
    if (getenv("UPDATE") != NULL) {
        FILE *file = fopen(golden_path, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        CU_ASSERT_EQUAL(fwrite(found.data, 1, found.length, file), found.length);
        CU_ASSERT_EQUAL(fclose(file), 0);
    } else {
        CHECK_OK(stw_file_read(golden_path, 1 << 24, &golden, &length, err));
        if (golden != NULL) check_table(golden, found.data);
    }
    free(golden);
    stw_text_free(&found);
}

STW_TEST_MAIN("plan_golden", {"whole programs are those of the table", programs_are_golden})
