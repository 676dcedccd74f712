/* SPDX-License-Identifier: Apache-2.0 */
/* Stowage's optimizer in a job of FSDP2: bytes of parameters, gradients and activations are
 * torch's, those of master and moments Stowage's; rows hold the walk; what its keys refuse. */
#include <string.h>

#include "core/checked.h"
#include "plan/files/plan_file.h"
#include "planner/planner.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define DISK "node.nvme.capacity=1000GiB", "node.nvme.read=6GB/s", "node.nvme.write=3GB/s"
#define BF16 "precision.params=bf16", "precision.grads=bf16"
#define FSDP2 "engine=fsdp2", BF16
#define INSIDE                                                                                     \
    FSDP2, "optimizer.implementation=stowage", "precision.master=fp32", "optimizer.overlap=true"
/* As much state beside torch's optimizer, so that nothing else differs. */
#define LAYERS "recompute.granularity=full", "batch.seq_len=4096", "load.method=sharded_read"

static stw_plan *planned(const char *model, const char *const *settings) {
    stw_plan *plan = case_zoo(model, settings);
    const stw_planner_options options = {.simulate = stw_sim_seconds, .no_fixes = true};
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CHECK_OK(stw_sim_plan(plan, NULL, err));
    return plan;
}
#define PLAN(model, ...) planned(model, (const char *const[]){__VA_ARGS__, NULL})

static const stw_peak *peak_of(const stw_plan *plan, stw_phase phase, stw_tier tier) {
    return &plan->peaks[plan->job->largest].phase[phase][tier];
}

static uint64_t state_of(const stw_peak *peak) {
    return peak->components[STW_COMPONENT_MASTER] + peak->components[STW_COMPONENT_EXP_AVG] +
           peak->components[STW_COMPONENT_EXP_AVG_SQ];
}

static void refused(const char *word, const char *const *settings) {
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    size_t n = 0;
    while (settings[n] != NULL) n++;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_specs_set_all(&cluster, &run, settings, n, "case", err));
    CHECK_FAILS(stw_run_spec_check(&run, "case", err), STW_STATUS_BAD_INPUT, word);
    stw_run_spec_free(&run);
}
#define REFUSED(word, ...) refused(word, (const char *const[]){__VA_ARGS__, NULL})

/* All state resident: but for master and moments, which differ in dtype, both plans have the same
 * bytes on the GPU in every phase. */
static void all_else_is_torchs(void) {
    stw_plan *torch = PLAN("Qwen3-4B", FSDP2, "precision.exp_avg=bf16", "precision.exp_avg_sq=bf16",
                           "optimizer.implementation=fused", LAYERS);
    stw_plan *inside = PLAN("Qwen3-4B", INSIDE, "update.resident=1", LAYERS);
    const stw_phase phases[] = {STW_PHASE_FORWARD_BACKWARD, STW_PHASE_OPTIMIZER_STEP};
    const uint64_t params = stw_job_placed_params(inside->job, inside->job->largest);
    for (size_t i = 0; i < 2; i++) {
        const stw_peak *a = peak_of(torch, phases[i], STW_TIER_GPU);
        const stw_peak *b = peak_of(inside, phases[i], STW_TIER_GPU);
        CU_ASSERT_EQUAL(state_of(a), 4 * params);
        CU_ASSERT_EQUAL(state_of(b), 12 * params);
        CU_ASSERT_EQUAL(a->total - state_of(a), b->total - state_of(b));
        for (int c = 0; c < STW_N_COMPONENTS; c++)
            if (c != STW_COMPONENT_MASTER && c != STW_COMPONENT_EXP_AVG &&
                c != STW_COMPONENT_EXP_AVG_SQ)
                CU_ASSERT_EQUAL(a->components[c], b->components[c]);
    }
    stw_plan_free(torch);
    stw_plan_free(inside);
}

/* Half of the state on the host: page-locked to the byte, in one arena, with its page tables and a
 * ring that stays on the GPU. */
static void state_is_stowages(void) {
    stw_plan *plan = PLAN("Qwen3-4B", INSIDE, "update.resident=0.5", "prefetch.bucket=16MiB",
                          "prefetch.depth=3", LAYERS);
    const stw_layout *layout = plan->layouts[plan->job->largest];
    const uint64_t params = stw_job_placed_params(plan->job, plan->job->largest);
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_FITS);
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (!plan->peaks[0].has[p] || p == STW_PHASE_LOAD) continue;
        const stw_peak *gpu = peak_of(plan, (stw_phase)p, STW_TIER_GPU);
        const stw_peak *host = peak_of(plan, (stw_phase)p, STW_TIER_HOST);
        CU_ASSERT_EQUAL(state_of(gpu) + state_of(host), 12 * params);
        CU_ASSERT_EQUAL(state_of(host), host->page_locked);
        CU_ASSERT_EQUAL(host->components[STW_COMPONENT_PAGE_LOCK_ROUNDING], 0);
        CU_ASSERT(gpu->components[STW_COMPONENT_STAGE] >= 48ull << 20);
        CU_ASSERT_EQUAL(gpu->components[STW_COMPONENT_CONTEXT],
                        plan->cluster.gpu.context_bytes + stw_page_table_bytes(plan->job, layout));
    }
    CU_ASSERT(stw_page_table_bytes(plan->job, layout) >= 6 * params / STW_PAGE_TABLE_SHARE);
    CU_ASSERT_EQUAL(layout->rings[STW_RING_GPU].slots, 3);
    stw_plan_free(plan);
}

/* Moments in 16 bits: 8 bytes of a parameter in 16 bits, 4 of one in 32. The ring that the planner
 * chooses has three slots or more of 32 MiB or more: smaller buckets hide less (measured). */
static void moments_have_16_bits(void) {
#define HALF "precision.exp_avg=bf16", "precision.exp_avg_sq=bf16"
    static const char groups[] = "optimizer.groups=[{match: [1d], weight_decay: 0}]";
    stw_plan *plans[] = {PLAN("Qwen3-0.6B", INSIDE, HALF, "update.stream=1", groups, LAYERS),
                         PLAN("Qwen3-0.6B", "engine=fsdp2", "optimizer.implementation=stowage",
                              HALF, "update.stream=1", groups, LAYERS)};
    for (size_t i = 0; i < 2; i++) {
        const stw_peak *host = peak_of(plans[i], STW_PHASE_OPTIMIZER_STEP, STW_TIER_HOST);
        const stw_ring *ring = &plans[i]->layouts[plans[i]->job->largest]->rings[STW_RING_GPU];
        const uint64_t params = stw_job_placed_params(plans[i]->job, plans[i]->job->largest);
        CU_ASSERT_EQUAL(state_of(host), (i == 0 ? 8 : 4) * params);
        CU_ASSERT(ring->slots >= 3 && plans[i]->decisions.prefetch.bucket_bytes >= 32ull << 20);
        stw_plan_free(plans[i]);
    }
}

/* The step is Stowage's, everything else the framework's, and no run of stowage-run has it. */
static void movements_are_of_both(void) {
    stw_plan *plan = PLAN("Qwen3-0.6B", INSIDE);
    const stw_program *program = plan->programs[0];
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const bool steps = movement->phase == STW_PHASE_OPTIMIZER_STEP ||
                           movement->phase == STW_PHASE_FIRST_OPTIMIZER_STEP;
        CU_ASSERT_STRING_EQUAL(stw_plan_movement_by(plan, movement), steps ? "stowage" : "fsdp2");
        CU_ASSERT_FALSE(movement->executable);
    }
    stw_plan_free(plan);
}

/* torch's AdamW finds no room for moments in 16 bits where this one has them, and master weights,
 * in 32 bits on the host. */
static void fits_where_torch_does_not(void) {
#define SMALL                                                                                      \
    "node.gpus=1", "nodes=1", "node.gpu.memory=60GiB", "node.host.memory=256GiB",                  \
        "node.host.limit=256GiB"
    stw_plan *torch = PLAN("Qwen3-8B", FSDP2, SMALL, "precision.exp_avg=bf16",
                           "precision.exp_avg_sq=bf16", "optimizer.implementation=fused");
    stw_plan *inside = PLAN("Qwen3-8B", INSIDE, SMALL);
    CU_ASSERT_EQUAL(torch->verdict, STW_VERDICT_DOES_NOT_FIT);
    CU_ASSERT_EQUAL(inside->verdict, STW_VERDICT_FITS);
    CU_ASSERT(state_of(peak_of(inside, STW_PHASE_OPTIMIZER_STEP, STW_TIER_HOST)) > 0);
    stw_plan_free(torch);
    stw_plan_free(inside);
}

/* Any choice: rows of bytes are at least the walk, which the simulation holds. */
static void check_rows(const char *model, const char *const *settings) {
    stw_plan *plan = case_zoo(model, settings);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = 7;
    for (int i = 0; i < 12; i++) {
        case_choice(cost, &seed, &choice);
        CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
        plan->verdict = STW_VERDICT_FITS;
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_sim_plan(plan, NULL, err));
        CHECK_OK(stw_cost_check_walk(cost, &choice, plan->peaks, plan->node_peaks, err));
        CHECK_OK(stw_plan_check(plan, true, err));
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}
#define ROWS(model, ...) check_rows(model, (const char *const[]){__VA_ARGS__, NULL})

static void rows_hold_the_walk(void) {
    ROWS("Qwen3-0.6B", INSIDE, "optimizer.overlap=false");
    ROWS("Qwen3-0.6B", INSIDE);
    ROWS("Qwen3-0.6B", "engine=fsdp2", "optimizer.implementation=stowage", "node.gpus=1");
    ROWS("Qwen3-0.6B", INSIDE, "nodes=2", "parallel.tp=2", "batch.grad_accumulation=2");
    ROWS("Qwen3-0.6B", INSIDE, "park.params=host", "checkpoint.every=4");
    ROWS("Qwen3-30B-A3B", INSIDE, "nodes=2", "parallel.ep=4");
    ROWS("Qwen2.5-7B", "engine=fsdp2", "precision.params=bf16", "optimizer.implementation=stowage",
         "trainable.lora={rank: 8, targets: [q_proj]}");
    ROWS("Qwen3-4B", INSIDE, "roles=[{name: a, kind: reference}]");
    ROWS("Qwen3-0.6B", INSIDE, DISK);
    ROWS("Qwen3-0.6B", INSIDE, DISK, "optimizer.overlap=false", "update.stream=1",
         "placement.moments=nvme", "placement.master=nvme");
}

/* State on NVMe passes through page-locked slots and the ring on the GPU, in place: one copy. The
 * disk is what a step waits for. A host without room sends there what it cannot hold. */
static void state_on_nvme(void) {
    const uint64_t mib = 1 << 20;
    stw_plan *all = PLAN("Qwen3-4B", INSIDE, LAYERS, DISK, "nodes=1", "update.stream=1",
                         "placement.moments=nvme", "placement.master=nvme", "prefetch.bucket=32MiB",
                         "prefetch.depth=4");
    const uint64_t bytes = 12 * stw_job_placed_params(all->job, 0);
    const stw_peak *host = peak_of(all, STW_PHASE_OPTIMIZER_STEP, STW_TIER_HOST);
    CU_ASSERT_EQUAL(state_of(peak_of(all, STW_PHASE_OPTIMIZER_STEP, STW_TIER_NVME)), bytes);
    CU_ASSERT_EQUAL(state_of(host), 0);
    CU_ASSERT(host->components[STW_COMPONENT_STAGE] > 127 * mib);
    CU_ASSERT(host->components[STW_COMPONENT_STAGE] <= 128 * mib);
    const double all_bytes = (double)bytes * all->job->ranks_per_node;
    const double read_s = all_bytes / all->cluster.nvme.read_bps,
                 write_s = all_bytes / all->cluster.nvme.write_bps;
    CU_ASSERT(all->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] >= read_s);
    CU_ASSERT(all->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] <= 1.05 * (read_s + write_s));
    stw_plan_free(all);

    stw_plan *part = PLAN("Qwen3-4B", INSIDE, LAYERS, DISK, "nodes=1", "node.gpus=1",
                          "update.stream=1", "node.host.memory=24GiB", "node.host.limit=24GiB");
    const uint64_t whole = 12 * stw_job_placed_params(part->job, 0);
    const uint64_t on_host = state_of(peak_of(part, STW_PHASE_OPTIMIZER_STEP, STW_TIER_HOST));
    const uint64_t on_nvme = state_of(peak_of(part, STW_PHASE_OPTIMIZER_STEP, STW_TIER_NVME));
    CU_ASSERT_EQUAL(on_host + on_nvme, whole);
    CU_ASSERT(on_host > whole / 4 && on_nvme > whole / 4);
    stw_plan_free(part);
    REFUSED("expected auto or 0, because placement.moments is nvme", INSIDE, DISK,
            "placement.moments=nvme", "update.resident=0.5");
}

/* ---- the step beside the next forward ---- */

#define HIDING INSIDE, LAYERS, "nodes=1", "prefetch.bucket=32MiB", "prefetch.depth=3"

/* What a step adds is at least its own kernels and what a forward cannot hide, and at most all of
 * it; where all is resident nothing is hidden. Bits of the program's step do not depend on it. */
static void steps_hide(void) {
    static const char *const tokens[] = {"batch.seq_len=512", "batch.seq_len=4096",
                                         "batch.seq_len=32768"};
    static const char *const shares[] = {"update.stream=1", "update.resident=0.5",
                                         "update.resident=1"};
    for (size_t t = 0; t < 3; t++)
        for (size_t s = 0; s < 3; s++) {
            stw_plan *in_sight =
                PLAN("Qwen3-4B", HIDING, tokens[t], shares[s], "optimizer.overlap=false");
            stw_plan *hidden = PLAN("Qwen3-4B", HIDING, tokens[t], shares[s]);
            const double all_s = in_sight->time_s[STW_PHASE_OPTIMIZER_STEP];
            const double left_s = hidden->time_s[STW_PHASE_OPTIMIZER_STEP];
            const double pass_s = hidden->time_s[STW_PHASE_FORWARD_BACKWARD];
            const double first_s = hidden->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP];
            const double bytes = 28.0 * (double)stw_job_placed_params(hidden->job, 0);
            const double kernels_s = bytes / hidden->cluster.gpu.hbm_bps;
            CU_ASSERT(left_s >= kernels_s && left_s >= all_s - pass_s);
            CU_ASSERT(left_s <= first_s);
            CU_ASSERT_DOUBLE_EQUAL(stw_plan_iteration_s(hidden), pass_s + left_s, 1e-9);
            CU_ASSERT_DOUBLE_EQUAL(stw_plan_hidden_s(hidden), first_s - left_s, 1e-9);
            CU_ASSERT_EQUAL(stw_plan_hidden_s(in_sight), 0);
            if (s == 2) CU_ASSERT_DOUBLE_EQUAL(left_s, all_s, 1e-2 * all_s);
            if (s == 0 && t == 2) CU_ASSERT(left_s < 0.2 * all_s); /* the forward is long */
            if (s == 0 && t == 0) CU_ASSERT(left_s > 0.7 * all_s);
            stw_plan_free(in_sight);
            stw_plan_free(hidden);
        }
}

/* Gradients that the step still needs go block by block before the activations come. */
static void peaks_do_not_rise(void) {
    stw_plan *in_sight = PLAN("Qwen3-4B", HIDING, "update.stream=1", "optimizer.overlap=false");
    stw_plan *hidden = PLAN("Qwen3-4B", HIDING, "update.stream=1");
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (!hidden->peaks[0].has[p]) continue;
        CU_ASSERT_EQUAL(peak_of(hidden, (stw_phase)p, STW_TIER_GPU)->total,
                        peak_of(in_sight, (stw_phase)p, STW_TIER_GPU)->total);
        CU_ASSERT(hidden->shown[0].phase[p][STW_TIER_GPU].total <=
                  in_sight->shown[0].phase[p][STW_TIER_GPU].total);
    }
    stw_plan_free(in_sight);
    stw_plan_free(hidden);
}

/* On one GPU gradients lie where autograd made them. Those that a step still needs keep their
 * segments when the next forward begins, so that activations that stay break those of the logits:
 * torch reserves more (measured: 20.0 and 24.7 GiB, 16.6 GiB of them allocated; 17.6 GiB in an
 * iteration without a step). Gradients of several ranks are made on a stream of their own. */
static void segments_of_logits_break(void) {
    static const char *const ranks[] = {"node.gpus=1", "node.gpus=2"};
    for (size_t i = 0; i < 2; i++) {
        stw_plan *in_sight = PLAN("Qwen3-4B", HIDING, "update.stream=1", "optimizer.overlap=false",
                                  ranks[i], "node.gpu.memory=79GiB");
        stw_plan *hidden =
            PLAN("Qwen3-4B", HIDING, "update.stream=1", ranks[i], "node.gpu.memory=79GiB");
        const stw_replayed_phase *a = &in_sight->replayed[0].most[STW_PHASE_FORWARD_BACKWARD];
        const stw_replayed_phase *b = &hidden->replayed[0].most[STW_PHASE_FORWARD_BACKWARD];
        const double gib = 1024.0 * 1024 * 1024;
        CU_ASSERT_DOUBLE_EQUAL((double)b->allocated_bytes, (double)a->allocated_bytes, 0.02 * gib);
        if (i == 0) {
            CU_ASSERT_DOUBLE_EQUAL((double)a->allocated_bytes / gib, 16.6, 0.2);
            CU_ASSERT_DOUBLE_EQUAL((double)a->reserved_bytes / gib, 20.0, 0.5);
            CU_ASSERT_DOUBLE_EQUAL((double)b->reserved_bytes / gib, 24.7, 0.5);
        } else {
            CU_ASSERT_DOUBLE_EQUAL((double)b->reserved_bytes, (double)a->reserved_bytes, 0.1 * gib);
        }
        stw_plan_free(in_sight);
        stw_plan_free(hidden);
    }
}

/* Measured with bench/adamw_torch.py on an H100 and an H200 (bench/results/2026-11-23-torch and
 * -24-torch), one decimal of GiB: the most that torch's allocator handed out; a loss of all tokens
 * at once, or 4,096 at a time under a checkpoint. */
static void a_loop_holds_what_was_measured(void) {
    static const struct {
        const char *model, *sequences, *layers, *chunked, *overlap;
        double allocated_gib;
    } cases[] = {
        {"Qwen3-4B", "4", "full", "false", "false", 38.6},
        {"Qwen3-4B", "1", "full", "false", "true", 16.7},
        {"Qwen3-4B", "1", "full", "true", "true", 16.7},
        {"Qwen3-4B", "2", "full", "true", "true", 17.0},
        {"Qwen3-4B", "4", "full", "true", "true", 18.6},
        {"Qwen3-4B", "8", "full", "true", "false", 21.8},
        {"Qwen3-4B", "2", "none", "true", "true", 62.4},
        {"Qwen3-8B", "1", "full", "true", "true", 30.8},
        {"Qwen3-8B", "4", "full", "true", "true", 33.6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char sequences[32], layers[48], chunked[32], overlap[40];
        snprintf(sequences, sizeof sequences, "batch.micro_batch=%s", cases[i].sequences);
        snprintf(layers, sizeof layers, "recompute.granularity=%s", cases[i].layers);
        snprintf(chunked, sizeof chunked, "loss.checkpoint=%s", cases[i].chunked);
        snprintf(overlap, sizeof overlap, "optimizer.overlap=%s", cases[i].overlap);
        const bool cut = strcmp(cases[i].chunked, "true") == 0;
        stw_plan *plan =
            PLAN(cases[i].model, INSIDE, "nodes=1", "node.gpus=1", "batch.seq_len=4096",
                 "node.gpu.memory=139GiB", "load.method=sharded_read", sequences, layers, chunked,
                 cut ? "loss.chunk=4096" : "loss.chunk=0", overlap, "update.stream=1",
                 "prefetch.bucket=42MiB", "prefetch.depth=3");
        uint64_t walked = 0, replayed = 0;
        const stw_phase phases[] = {STW_PHASE_FORWARD_BACKWARD, STW_PHASE_OPTIMIZER_STEP};
        for (size_t p = 0; p < 2; p++) {
            const stw_peak *peak = peak_of(plan, phases[p], STW_TIER_GPU);
            walked = stw_max_u64(walked, peak->total - peak->components[STW_COMPONENT_CONTEXT]);
            replayed = stw_max_u64(replayed, plan->replayed[0].most[phases[p]].allocated_bytes);
        }
        const double gib = 1024.0 * 1024 * 1024, most = cases[i].allocated_gib;
        CU_ASSERT_DOUBLE_EQUAL((double)walked / gib, most, 0.01 * most);
        CU_ASSERT_DOUBLE_EQUAL((double)replayed / gib, most, 0.01 * most);
        stw_plan_free(plan);
    }
}

/* A checkpointed loss costs the head's forward once more, and no memory where it is one chunk. */
static void chunks_cost_a_forward(void) {
    stw_plan *whole = PLAN("Qwen3-8B", HIDING, "update.stream=1");
    stw_plan *one =
        PLAN("Qwen3-8B", HIDING, "update.stream=1", "loss.checkpoint=true", "loss.chunk=4096");
    stw_plan *four = PLAN("Qwen3-8B", HIDING, "update.stream=1", "loss.checkpoint=true");
    const double head_s = 2.0 * 4096 * 151936 * 4096 / whole->cluster.gpu.bf16_flops;
    const stw_phase pass = STW_PHASE_FORWARD_BACKWARD;
    CU_ASSERT(one->time_s[pass] > whole->time_s[pass] + head_s);
    CU_ASSERT(one->time_s[pass] < whole->time_s[pass] + 3 * head_s);
    CU_ASSERT(peak_of(one, pass, STW_TIER_GPU)->total <= peak_of(whole, pass, STW_TIER_GPU)->total);
    CU_ASSERT(peak_of(four, pass, STW_TIER_GPU)->total < peak_of(one, pass, STW_TIER_GPU)->total);
    stw_plan_free(whole);
    stw_plan_free(one);
    stw_plan_free(four);
    REFUSED("false, because loss.fused is true", FSDP2, "loss.fused=true", "loss.checkpoint=true");
    REFUSED("because engine is megatron", "engine=megatron", "loss.checkpoint=true");
}

/* Resident buckets first, all in the order of the model. */
static void buckets_ascend(void) {
    stw_plan *plan = PLAN("Qwen3-4B", HIDING, "update.resident=0.5");
    const stw_layout *layout = plan->layouts[0];
    for (uint32_t i = 1; i < layout->n_buckets; i++)
        CU_ASSERT(layout->buckets[layout->order[i - 1]].first_param <
                  layout->buckets[layout->order[i]].first_param);
    stw_plan_free(plan);
}

/* ---- keys ---- */

static void keys_without_effect_are_refused(void) {
    static const char with[] = "because engine is fsdp2 with optimizer.implementation: stowage";
    REFUSED("auto | fused | foreach, because engine is megatron", "engine=megatron",
            "optimizer.implementation=stowage");
    REFUSED("because engine is deepspeed", "engine=deepspeed", "optimizer.implementation=stowage");
    REFUSED("because engine is stowage", "engine=stowage", "optimizer.implementation=stowage");
    REFUSED(with, INSIDE, "placement.params=nvme");
    REFUSED(with, INSIDE, "placement.params=host");
    REFUSED(with, INSIDE, "placement.grads=host");
    REFUSED("engine stowage", INSIDE, "update.cpu=0.5");
    REFUSED("engine stowage", INSIDE, "update.direct=0.5");
    REFUSED(with, INSIDE, "park.moments=host");
    REFUSED(with, INSIDE, "fsdp.offload_policy=true");
    REFUSED("a sum of at most 1", INSIDE, "update.resident=0.7", "update.stream=0.7");
    REFUSED("expected fp32, because optimizer", FSDP2, "optimizer.implementation=stowage");
    REFUSED("bf16 as precision.exp_avg, because", INSIDE, "precision.exp_avg=bf16");
    REFUSED("fp32 or bf16, because", INSIDE, "precision.exp_avg=fp16", "precision.exp_avg_sq=fp16");
    REFUSED("(it has an effect with engine", FSDP2, HALF,
            "optimizer.groups=[{match: [1d], lr: 1}]");
    REFUSED("precision.grads", INSIDE, "precision.grads=fp32");
    REFUSED("none, because optimizer.implementation is stowage and what is trained is fp32",
            "engine=fsdp2", "optimizer.implementation=stowage", "precision.master=fp32");
    REFUSED("fsdp2 with optimizer.implementation: stowage)", "engine=fsdp2",
            "optimizer.overlap=true");
    REFUSED("not implemented with it", INSIDE, "roles=[{name: a, kind: critic}]");
    REFUSED("because engine is fsdp2", "engine=fsdp2", "update.resident=0.5");
}

STW_TEST_MAIN("engine inside", {"all else is torch's", all_else_is_torchs},
              {"state is Stowage's", state_is_stowages},
              {"moments have 16 bits", moments_have_16_bits},
              {"movements are of both", movements_are_of_both},
              {"fits where torch's optimizer does not", fits_where_torch_does_not},
              {"rows hold the walk", rows_hold_the_walk}, {"state on NVMe", state_on_nvme},
              {"steps hide", steps_hide}, {"peaks do not rise", peaks_do_not_rise},
              {"segments of logits break", segments_of_logits_break},
              {"a loop holds what was measured", a_loop_holds_what_was_measured},
              {"chunks cost a forward", chunks_cost_a_forward}, {"buckets ascend", buckets_ascend},
              {"keys without effect are refused", keys_without_effect_are_refused})
