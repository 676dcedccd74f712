/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of bytes against the walk of the program derived from the same choice: never below it, and
 * close to it where state decides. The walk knows nothing of the planner. */
#include "planner/planner.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static uint64_t largest_gpu_row(const stw_cost *cost, const stw_choice *choice, stw_phase phase) {
    uint64_t row = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++)
        if (cost->byte_rows[r].tier == STW_TIER_GPU && cost->byte_rows[r].phase == phase)
            row = stw_max_u64(row, stw_cost_row_bytes(cost, &cost->byte_rows[r], choice));
    return row;
}

/* Derive the choice's programs; every row must hold. @return the tightest GPU row over its walk */
static double check_choice(stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                           stw_phase tight_phase) {
    stw_error error = STW_ERROR_INIT;
    CHECK_OK(stw_cost_decide(cost, choice, plan->pool, &plan->decisions, err));
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, false, err));
    stw_status status = stw_cost_check_walk(cost, choice, plan->peaks, plan->node_peaks, &error);
    CU_ASSERT_EQUAL(status, STW_STATUS_OK);
    if (status != STW_STATUS_OK) fprintf(stderr, "%s\n", error.text);
    const uint64_t row = largest_gpu_row(cost, choice, tight_phase);
    uint64_t walked = plan->peaks[plan->job->largest].phase[tight_phase][STW_TIER_GPU].total;
    return walked > 0 ? (double)row / (double)walked : 1;
}

static void check_random_choices(stw_plan *plan, uint32_t n, uint64_t seed) {
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    for (uint32_t i = 0; i < n; i++) {
        case_choice(cost, &seed, &choice);
        double step = check_choice(plan, cost, &choice, STW_PHASE_OPTIMIZER_STEP);
        CU_ASSERT(step >= 1 && step < 1.03);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

static void rows_hold_for_the_fixture(void) {
    static const char *const settings[][4] = {
        {NULL},
        {"batch.seq_len=512", "loss.fused=true", "loss.chunk=128", NULL},
        {"fsdp.reshard_after_forward=false", "batch.seq_len=256"},
        {"fsdp.reshard_after_forward=false", NULL},
        {"precision.master=fp32", "precision.params=bf16", "precision.grads=bf16", NULL},
        {"update.direct=auto", "placement.nvme_copies=2", NULL}};
    const fixture_size sizes[] = {{1, 256, 512, 1000}, {3, 512, 1536, 8000}, {6, 1024, 4096, 500}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        for (uint32_t gpus = 1; gpus <= 4; gpus += 3) {
            stw_cluster cluster = fixture_cluster(gpus);
            cluster.gpu.context_bytes = cluster.gpu.comm_bytes = 0;
            cluster.host.process_bytes = 0;
            stw_plan *plan = fixture_plan(sizes[i % 3], &cluster, settings[i]);
            stw_cost *cost = case_cost(plan);
            stw_choice choice = stw_choice_new(cost, cost->pool);
            uint64_t seed = i * 2 + gpus;
            for (int n = 0; n < 40; n++) {
                case_choice(cost, &seed, &choice);
                (void)check_choice(plan, cost, &choice, STW_PHASE_FORWARD_BACKWARD);
            }
            stw_cost_free(cost);
            stw_plan_free(plan);
        }
}

static void rows_hold_for_dense_models(void) {
    const char *one[] = {"batch.seq_len=8192", "node.gpus=1", NULL};
    const char *many[] = {"nodes=2", NULL};
    check_random_choices(case_zoo("Qwen3-0.6B", one), 25, 11);
    check_random_choices(case_zoo("Qwen3-8B", many), 25, 12);
}

static void rows_hold_for_interleaved_groups(void) {
    const char *settings[] = {"nodes=4", "parallel.ep=8", NULL};
    check_random_choices(case_zoo("Qwen3.5-35B-A3B", settings), 15, 21);
    const char *cut[] = {"nodes=2", "parallel.cp=2", "fsdp.reshard_after_forward=false", NULL};
    check_random_choices(case_zoo("Gemma-3-27b", cut), 15, 22);
}

static void rows_hold_for_uneven_shards(void) {
    const char *settings[] = {"nodes=3", "node.gpus=5", NULL};
    check_random_choices(case_zoo("Qwen3-4B", settings), 15, 31);
}

static void rows_hold_with_nvme(void) {
    const char *settings[] = {"nodes=1", "node.gpus=2", "placement.moments=nvme", NULL};
    const char *once[] = {"nodes=1", "node.gpus=2", "placement.nvme_copies=2", "update.direct=auto",
                          NULL};
    check_random_choices(case_zoo("Qwen3-1.7B", settings), 10, 41);
    check_random_choices(case_zoo("Qwen3-1.7B", once), 10, 42);
}

/* Page tables of the host arena are GPU bytes: with nearly all state on the host they are what rows
 * have to get right. */
static void rows_hold_for_page_tables(void) {
    const char *settings[] = {"nodes=1", "node.gpus=1", "placement.params=host",
                              "placement.moments=host", NULL};
    stw_plan *plan = case_zoo("Qwen3-8B", settings);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = 51;
    for (int i = 0; i < 10; i++) {
        case_choice(cost, &seed, &choice);
        (void)check_choice(plan, cost, &choice, STW_PHASE_OPTIMIZER_STEP);
        const stw_peak *peak = &plan->peaks[0].phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_GPU];
        uint64_t tables = peak->components[STW_COMPONENT_CONTEXT] - plan->cluster.gpu.context_bytes;
        uint64_t row = cost->byte_rows[1].constant_bytes - plan->cluster.gpu.context_bytes +
                       cost->byte_rows[1].load_bytes[choice.load];
        CU_ASSERT_STRING_EQUAL(cost->byte_rows[1].name, "gpu_step");
        for (uint32_t p = 0; p < cost->n_places; p++)
            row += choice.units[p] * cost->byte_rows[1].unit_bytes[p];
        CU_ASSERT(tables > plan->job->kinds[0].params * 16 / 512);
        CU_ASSERT(row >= tables && row < tables + (16ull << 20));
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

static void rows_hold_for_fsdp2(void) {
    static const char *const settings[][5] = {
        {"engine=fsdp2", "nodes=1", NULL},
        {"engine=fsdp2", "optimizer.implementation=foreach", NULL},
        {"engine=fsdp2", "optimizer.implementation=streamed", "placement.moments=host", NULL},
        {"engine=fsdp2", "fsdp.offload_policy=true", "node.gpus=4", NULL},
        {"engine=fsdp2", "park.moments=host", "placement.moments=gpu", NULL}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        stw_plan *plan = case_zoo("Qwen3-8B", settings[i]);
        check_random_choices(plan, 8, 50 + i);
    }
}

/* Where activations decide, the row of the largest instant should still be near the walk. */
static void backward_rows_are_tight(void) {
    const char *settings[] = {"nodes=4", "parallel.ep=8", NULL};
    stw_plan *plan = case_zoo("Qwen3.5-35B-A3B", settings);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    static const stw_act acts[] = {STW_ACT_KEEP, STW_ACT_RECOMPUTE, STW_ACT_OFFLOAD};
    choice.units[0] = cost->n_units;
    for (int i = 0; i < 3; i++) {
        for (uint32_t a = 0; a < cost->n_acts; a++) {
            bool only = (a == 0 || cost->acts[a - 1].group != cost->acts[a].group) &&
                        (a + 1 == cost->n_acts || cost->acts[a + 1].group != cost->acts[a].group);
            choice.acts[a] = only || cost->acts[a].act == acts[i] ? cost->acts[a].blocks : 0;
        }
        double ratio = check_choice(plan, cost, &choice, STW_PHASE_FORWARD_BACKWARD);
        CU_ASSERT(ratio >= 1 && ratio < 1.03);
        if (ratio >= 1.03) fprintf(stderr, "%s: %.4f\n", stw_act_name(acts[i]), ratio);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

/* With replicas, sums of gradients grow until the end of backward, while activations go: rows of
 * mixed policies must not add the most of both. */
static void replicated_rows_are_tight(void) {
    static const char *const settings[][7] = {
        {"nodes=1", "parallel.dp_replicate=2", "precision.params=bf16", "precision.grads=bf16",
         "batch.seq_len=1024", NULL},
        {"nodes=1", "parallel.dp_replicate=4", "precision.params=bf16", "precision.grads=bf16",
         "batch.seq_len=4096", NULL}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        stw_plan *plan = case_zoo("Qwen3-8B", settings[i]);
        stw_cost *cost = case_cost(plan);
        stw_choice choice = stw_choice_new(cost, cost->pool);
        choice.units[0] = cost->n_units;
        for (uint32_t kept = 0; kept <= 36; kept += 6) {
            for (uint32_t a = 0; a < cost->n_acts; a++)
                choice.acts[a] = cost->acts[a].act == STW_ACT_KEEP        ? kept
                                 : cost->acts[a].act == STW_ACT_RECOMPUTE ? 36 - kept
                                                                          : 0;
            double ratio = check_choice(plan, cost, &choice, STW_PHASE_FORWARD_BACKWARD);
            CU_ASSERT(ratio >= 1 && ratio < 1.04);
            if (ratio >= 1.04) fprintf(stderr, "%u kept: %.4f\n", kept, ratio);
        }
        stw_cost_free(cost);
        stw_plan_free(plan);
        check_random_choices(case_zoo("Qwen3-8B", settings[i]), 20, 70 + i);
    }
}

/* A stage's part of a group's blocks is rounded: at some counts bytes fall by a whole block and
 * then stay. Rows ask for no more than that block beyond the walk, at any count. */
static void rows_are_near_for_unequal_stages(void) {
    const char *settings[] = {"engine=megatron",
                              "batch.seq_len=16384",
                              "parallel.pp=8",
                              "batch.grad_accumulation=8",
                              "megatron.first_stage_layers=3",
                              "megatron.last_stage_layers=3",
                              NULL};
    stw_plan *plan = case_zoo("Qwen3-8B", settings);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    const stw_phase phase = STW_PHASE_FORWARD_BACKWARD;
    uint64_t before = 0, block = 1ull << 20; /* so near are lines at most */
    CU_ASSERT_EQUAL_FATAL(cost->n_acts, 2);
    choice.units[0] = cost->n_units;
    for (uint32_t k = 0; k <= cost->acts[0].blocks; k++) {
        choice.acts[0] = k;
        choice.acts[1] = cost->acts[0].blocks - k;
        (void)check_choice(plan, cost, &choice, phase);
        const uint64_t row = largest_gpu_row(cost, &choice, phase);
        uint64_t walked = 0;
        for (uint32_t i = 0; i < plan->job->n_kinds; i++)
            walked = stw_max_u64(walked, plan->peaks[i].phase[phase][STW_TIER_GPU].total);
        if (k == 1) block += before - walked;
        before = walked;
        CU_ASSERT(row <= walked + block);
        if (row > walked + block)
            fprintf(stderr, "%u recomputed: row %.2e, walk %.2e bytes\n", k, (double)row,
                    (double)walked);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner rows", {"hold for the fixture", rows_hold_for_the_fixture},
              {"hold for dense models", rows_hold_for_dense_models},
              {"hold for interleaved groups", rows_hold_for_interleaved_groups},
              {"hold for uneven shards", rows_hold_for_uneven_shards},
              {"hold with NVMe", rows_hold_with_nvme},
              {"hold for page tables", rows_hold_for_page_tables},
              {"hold for fsdp2", rows_hold_for_fsdp2},
              {"are tight in backward", backward_rows_are_tight},
              {"are tight with replicas", replicated_rows_are_tight},
              {"are near for unequal stages", rows_are_near_for_unequal_stages})
