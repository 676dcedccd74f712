/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: bytes that ranks write, what they hold on the host for that, and when. */
#include "engines/checkpoint.h"

#include "core/checked.h"
#include "engines/bytes.h"
#include "sim/sim.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {4, 1024, 4096, 32000};
enum { GPUS = 4 };

static stw_plan *make(const char *const *settings) {
    const stw_cluster cluster = fixture_cluster(GPUS);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    stw_place places[STW_MAX_PLACES];
    stw_decisions *d = &plan->decisions;
    CU_ASSERT_TRUE_FATAL(plan->job->engine->places(plan->job, places, NULL) > 0);
    d->n_state = 1;
    d->state[0] = (stw_state_decision){places[0], plan->job->n_units};
    d->prefetch.by_group = true;
    d->prefetch.depth = 1;
    d->prefetch.bucket_bytes = 0;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    return plan;
}

/* Bytes that all ranks write together. */
static uint64_t written(const stw_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        const stw_program *p = plan->programs[k];
        const stw_movement *m = stw_program_movement(p, STW_PHASE_CHECKPOINT);
        for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
            if (p->ops[i].kind == STW_OP_FILE_WRITE)
                bytes += p->ops[i].bytes * plan->job->kinds[k].n_ranks;
    }
    return bytes;
}

static uint64_t staged(const stw_plan *plan, uint32_t kind, stw_phase phase) {
    return plan->peaks[kind]
        .phase[phase][STW_TIER_HOST]
        .components[STW_COMPONENT_CHECKPOINT_STAGING];
}

#define FSDP2 "engine=fsdp2", "checkpoint.every=10"
#define ZERO "engine=deepspeed", "checkpoint.every=10"
#define MEGATRON                                                                                   \
    "engine=megatron", "precision.params=bf16", "precision.master=fp32", "checkpoint.every=10"

/* Every element of the state is written once, replicas or not. */
static void everything_is_written_once(void) {
    const char *shards[] = {FSDP2, NULL};
    const char *replicas[] = {FSDP2, "parallel.dp_replicate=2", NULL};
    const char *model[] = {FSDP2, "checkpoint.contents=[model]", NULL};
    const char *ranges[] = {MEGATRON, NULL};
    stw_plan *a = make(shards), *b = make(replicas), *c = make(model), *d = make(ranges);
    const uint64_t params = a->job->model->params;
    CU_ASSERT_EQUAL(written(a), 12 * params);
    CU_ASSERT_EQUAL(stw_program_movement(a->programs[0], STW_PHASE_CHECKPOINT)->files, 1);
    CU_ASSERT_EQUAL(stw_program_movement(d->programs[0], STW_PHASE_CHECKPOINT)->files, 2);
    CU_ASSERT_EQUAL(written(b), 12 * params);
    CU_ASSERT_EQUAL(written(c), 4 * params);
    /* Megatron's parameters are padded to whole buckets; sums are split into equal shares */
    CU_ASSERT_TRUE(written(d) >= 14 * params - 64 && written(d) < 14 * params + (16 << 20));
    stw_plan_free(a);
    stw_plan_free(b);
    stw_plan_free(c);
    stw_plan_free(d);
}

/* An asynchronous save has a copy of all, pageable, while the next iterations run; a synchronous
 * one has page-locked copies of all until the file is complete, whose blocks stay. */
static void staging_of_shards(void) {
    const char *at_once[] = {FSDP2, NULL}, *later[] = {FSDP2, "checkpoint.async=true", NULL};
    stw_plan *a = make(at_once), *b = make(later);
    const uint64_t all = 12 * a->job->kinds[0].params;
    const stw_phase fb = STW_PHASE_FORWARD_BACKWARD, save = STW_PHASE_CHECKPOINT;
    CU_ASSERT_EQUAL(staged(b, 0, save), all);
    CU_ASSERT_EQUAL(staged(b, 0, fb), all);
    CU_ASSERT_EQUAL(b->peaks[0].phase[save][STW_TIER_HOST].page_locked, 0);
    const stw_peak *host = &a->peaks[0].phase[save][STW_TIER_HOST];
    const uint64_t rounding = 3 * stw_state_rounding_bytes(a->job, 0, STW_COMPONENT_PARAMS);
    CU_ASSERT_EQUAL(staged(a, 0, save), all);
    CU_ASSERT_EQUAL(staged(a, 0, fb), all);
    CU_ASSERT_EQUAL(host->components[STW_COMPONENT_PAGE_LOCK_ROUNDING], rounding);
    CU_ASSERT_EQUAL(host->page_locked, all + rounding);
    CU_ASSERT_EQUAL(stw_plan_passes(a, save), 0);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Rank 0 has all weights on its host for files that hold whole tensors; others have nothing. */
static void whole_tensors_through_rank_0(void) {
    const char *settings[] = {FSDP2, "checkpoint.format=hf", "checkpoint.contents=[model]", NULL};
    stw_plan *plan = make(settings);
    const stw_job *job = plan->job;
    const uint64_t all = 4 * job->model->params;
    uint64_t gathered = 0;
    CU_ASSERT_EQUAL(written(plan), all);
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        CU_ASSERT_EQUAL(staged(plan, k, STW_PHASE_CHECKPOINT), job->kinds[k].first ? all : 0);
        CU_ASSERT_EQUAL(staged(plan, k, STW_PHASE_FORWARD_BACKWARD), 0);
        CU_ASSERT_EQUAL(stw_program_movement(plan->programs[k], STW_PHASE_CHECKPOINT)->files,
                        job->kinds[k].first);
    }
    const stw_program *p = plan->programs[0];
    const stw_movement *m = stw_program_movement(p, STW_PHASE_CHECKPOINT);
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (p->ops[i].kind == STW_OP_ALL_GATHER) gathered += p->ops[i].bytes;
    CU_ASSERT_EQUAL(gathered, all);
    stw_plan_free(plan);
}

/* Everything on the GPU goes to page-locked memory before anything is written; blocks stay. */
static void torch_dist_stages_all(void) {
    const char *settings[] = {MEGATRON, NULL};
    const char *hosted[] = {MEGATRON, "megatron.optimizer_offload_fraction=1",
                            "megatron.precision_aware=true", NULL};
    stw_plan *a = make(settings), *b = make(hosted);
    const uint64_t shares = 14 * a->job->model->params / GPUS;
    const uint64_t half = 2 * a->job->model->params / GPUS;
    CU_ASSERT_TRUE(staged(a, 0, STW_PHASE_FORWARD_BACKWARD) >= shares - 64);
    CU_ASSERT_TRUE(staged(a, 0, STW_PHASE_FORWARD_BACKWARD) < shares + (4 << 20));
    CU_ASSERT_TRUE(a->peaks[0].phase[STW_PHASE_CHECKPOINT][STW_TIER_HOST].page_locked >= shares);
    /* state that is on the host is written from there */
    CU_ASSERT_TRUE(staged(b, 0, STW_PHASE_CHECKPOINT) >= half - 64);
    CU_ASSERT_TRUE(staged(b, 0, STW_PHASE_CHECKPOINT) < half + (1 << 20));
    CU_ASSERT_TRUE(written(b) >= written(a) - 64 && written(b) <= written(a) + 64);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Megatron-FSDP writes shards as they lie: through the writer of torch.distributed.checkpoint. */
static void shards_of_megatron_fsdp(void) {
    const char *settings[] = {MEGATRON, "megatron.fsdp=optim_grads_params", NULL};
    stw_plan *plan = make(settings);
    const uint64_t all = 14 * plan->job->model->params;
    CU_ASSERT_TRUE(written(plan) >= all - 4096 && written(plan) <= all + (16 << 20));
    CU_ASSERT_TRUE(staged(plan, 0, STW_PHASE_CHECKPOINT) >= all / GPUS - 4096);
    CU_ASSERT_TRUE(staged(plan, 0, STW_PHASE_CHECKPOINT) <= all / GPUS + (4 << 20));
    CU_ASSERT_EQUAL(stw_program_movement(plan->programs[0], STW_PHASE_CHECKPOINT)->files, 1);
    stw_plan_free(plan);
}

/* Stages 1 and 2: rank 0 writes 16-bit weights, of which torch.save copies the flat buffer; every
 * rank its part of master weights and moments, one flat buffer after the other. Stage 3: master
 * weights are the weights. */
static void files_of_deepspeed(void) {
    const char *second[] = {ZERO, "deepspeed.zero_stage=2", NULL};
    const char *third[] = {ZERO, "deepspeed.zero_stage=3", NULL};
    const char *offloaded[] = {ZERO, "deepspeed.zero_stage=2", "deepspeed.offload_optimizer=cpu",
                               "checkpoint.keep=2", NULL};
    stw_plan *a = make(second), *b = make(third), *c = make(offloaded);
    const uint64_t params = a->job->model->params, save = 12 * params + 2 * params;
    CU_ASSERT_EQUAL(written(a), save);
    CU_ASSERT_EQUAL(written(b), 12 * params);
    CU_ASSERT_EQUAL(written(c), save);
    for (uint32_t k = 0; k < a->job->n_kinds; k++) {
        const bool first = a->job->kinds[k].first;
        const uint64_t part = 4 * params / GPUS, weights = 2 * params;
        CU_ASSERT_EQUAL(staged(a, k, STW_PHASE_CHECKPOINT), first ? weights : part);
        CU_ASSERT_EQUAL(staged(c, k, STW_PHASE_CHECKPOINT), first ? weights : 0);
        CU_ASSERT_EQUAL(staged(a, k, STW_PHASE_FORWARD_BACKWARD), 0);
        CU_ASSERT_EQUAL(stw_program_movement(a->programs[k], STW_PHASE_CHECKPOINT)->files,
                        first ? 2 : 1);
    }
    /* two are kept, and one more is written */
    const stw_peaks *node = c->node_peaks;
    CU_ASSERT_EQUAL(node->phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_NVME].total, 2 * save);
    CU_ASSERT_EQUAL(node->phase[STW_PHASE_CHECKPOINT][STW_TIER_NVME].total, 3 * save);
    stw_plan_free(a);
    stw_plan_free(b);
    stw_plan_free(c);
}

/* Training stops until all is copied, and where the save before is still being written. */
static void asynchronous_saves_stop_training(void) {
    const char *rare[] = {"engine=fsdp2", "checkpoint.every=1000", "checkpoint.async=true",
                          "batch.seq_len=128", NULL};
    const char *often[] = {"engine=fsdp2", "checkpoint.every=1", "checkpoint.async=true",
                           "batch.seq_len=128", NULL};
    stw_plan *plans[] = {make(rare), make(often)};
    stw_sim *sims[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        CHECK_OK(stw_sim_run(plans[i]->job, plans[i]->programs[0], &sims[i], err));
    const double bytes = 12.0 * (double)plans[0]->job->model->params;
    const double save_s = sims[0]->phase_s[STW_PHASE_CHECKPOINT];
    const double iteration_s =
        sims[0]->phase_s[STW_PHASE_FORWARD_BACKWARD] + sims[0]->phase_s[STW_PHASE_OPTIMIZER_STEP];
    /* pageable copies at 9 GB/s; the disk writes at 2 GB/s for all ranks */
    CU_ASSERT_TRUE(sims[0]->stall_s > bytes / GPUS / 9e9);
    CU_ASSERT_TRUE(sims[0]->stall_s < bytes / GPUS / 9e9 + 0.02);
    CU_ASSERT_DOUBLE_EQUAL(save_s - sims[0]->stall_s, bytes / 2e9, 0.01);
    CU_ASSERT_DOUBLE_EQUAL(sims[1]->stall_s, save_s - iteration_s, 1e-9);
    for (int i = 0; i < 2; i++) {
        stw_sim_free(sims[i]);
        stw_plan_free(plans[i]);
    }
}

STW_TEST_MAIN("engine checkpoint", {"shards of Megatron-FSDP", shards_of_megatron_fsdp},
              {"everything is written once", everything_is_written_once},
              {"staging of shards", staging_of_shards},
              {"whole tensors through rank 0", whole_tensors_through_rank_0},
              {"torch_dist stages all", torch_dist_stages_all},
              {"files of DeepSpeed", files_of_deepspeed},
              {"asynchronous saves stop training", asynchronous_saves_stop_training})
