/* SPDX-License-Identifier: Apache-2.0 */
/* Weight sync: pieces that cover the model, what is gathered, and what is on the GPU meanwhile for
 * every placement of the trainer's parameters. */
#include "engines/weight_sync.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "engines/gather.h"
#include "engines/sync_plan.h"
#include "plan/files/plan_file.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {4, 1024, 4096, 32000};
enum { GPUS = 4 };
#define BUCKET (32ull << 20)
#define ROLLOUT "roles=[{name: rollout, update_bucket: 32 MiB}]"
#define APART "roles=[{name: rollout, update_bucket: 32 MiB, with: none}]"
#define FSDP2 "engine=fsdp2"
#define BF16                                                                                       \
    "precision.params=bf16", "precision.grads=bf16", "precision.exp_avg=bf16",                     \
        "precision.exp_avg_sq=bf16"
#define MEGATRON "engine=megatron", "precision.params=bf16", "precision.master=fp32"

static stw_plan *make(const char *const *settings) {
    stw_cluster cluster = fixture_cluster(GPUS);
    for (size_t i = 0; settings[i] != NULL; i++)
        if (strcmp(settings[i], APART) == 0) cluster.nodes = 2;
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

static const stw_movement *sync_of(const stw_plan *plan) {
    return stw_program_movement(plan->programs[0], STW_PHASE_WEIGHT_SYNC);
}

static uint64_t moved(const stw_plan *plan, stw_op_kind kind) {
    const stw_movement *m = sync_of(plan);
    uint64_t bytes = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (plan->programs[0]->ops[i].kind == kind) bytes += plan->programs[0]->ops[i].bytes;
    return bytes;
}

/* Most bytes of a component on the GPU in the movement. */
static uint64_t most(const stw_plan *plan, stw_component component) {
    const stw_movement *m = sync_of(plan);
    stw_live live = {0};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->first_op + m->n_ops; i++) {
        stw_live_apply(&live, &plan->programs[0]->ops[i]);
        if (i >= m->first_op) bytes = stw_max_u64(bytes, live.bytes[STW_TIER_GPU][component]);
    }
    return bytes;
}

static uint64_t largest(const stw_plan *plan) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < plan->job->model->n_tensors; t++)
        n = stw_max_u64(n, plan->job->model->tensors[t].numel);
    return n;
}

/* Without a rollout there is no sync. */
static void only_for_a_rollout(void) {
    const char *none[] = {FSDP2, NULL};
    const char *critic[] = {FSDP2, "roles=[{name: critic, kind: critic}]", NULL};
    stw_plan *a = make(none), *b = make(critic);
    CU_ASSERT_PTR_NULL(sync_of(a));
    CU_ASSERT_PTR_NULL(sync_of(b));
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Pieces cover the model's numbering without gap, none larger than a bucket: what an executor packs
 * and places is their meet with two spaces. */
static void pieces_cover_the_model(void) {
    const char *settings[] = {FSDP2, ROLLOUT, NULL};
    stw_plan *plan = make(settings);
    const stw_transfer *t = &sync_of(plan)->transfer;
    const stw_space *params = &plan->job->kinds[0].spaces[STW_SPACE_PARAMS];
    uint64_t next = 0, mine = 0;
    CU_ASSERT_TRUE(t->used && t->whole && !t->from_files);
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        const stw_view piece = {&plan->job->files, t->pieces[i].first, t->pieces[i].n};
        CU_ASSERT_EQUAL(t->pieces[i].first, next);
        CU_ASSERT_TRUE(t->pieces[i].room_bytes <= BUCKET);
        next += t->pieces[i].n;
        mine += stw_meet_count(piece, stw_space_whole(params));
    }
    CU_ASSERT_EQUAL(next, plan->job->model->params);
    CU_ASSERT_EQUAL(mine, params->n);
    stw_plan_free(plan);
}

/* One whole tensor in fp32, its bf16 copy and a bucket. */
static void tensor_by_tensor(void) {
    const char *settings[] = {FSDP2, ROLLOUT, NULL}, *same[] = {FSDP2, ROLLOUT, BF16, NULL};
    stw_plan *a = make(settings), *b = make(same);
    const uint64_t params = a->job->model->params;
    CU_ASSERT_EQUAL(moved(a, STW_OP_ALL_GATHER), 4 * params);
    CU_ASSERT_EQUAL(moved(a, STW_OP_PLACE), 2 * params);
    CU_ASSERT_EQUAL(moved(a, STW_OP_SEND), 0);
    CU_ASSERT_EQUAL(moved(a, STW_OP_COPY), 0);
    CU_ASSERT_EQUAL(most(a, STW_COMPONENT_UNSHARD), 6 * largest(a));
    CU_ASSERT_EQUAL(most(b, STW_COMPONENT_UNSHARD), 2 * largest(b));
    CU_ASSERT_EQUAL(most(a, STW_COMPONENT_STAGE), BUCKET);
    /* moments stay where they are */
    CU_ASSERT_EQUAL(most(a, STW_COMPONENT_EXP_AVG), 4 * a->job->kinds[0].params);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* verl issue 5995: weights come from every placement of the parameters. */
static void from_every_placement(void) {
    const char *policy[] = {FSDP2, ROLLOUT, "fsdp.offload_policy=true", NULL};
    const char *parked[] = {FSDP2, ROLLOUT, "park.params=host", NULL};
    stw_plan *a = make(policy), *b = make(parked);
    const uint64_t mine = 4 * a->job->kinds[0].params;
    /* from the host: shard by shard; a shard's copy is gone before the whole tensor is cast */
    CU_ASSERT_EQUAL(most(a, STW_COMPONENT_PARAMS), 0);
    CU_ASSERT_EQUAL(moved(a, STW_OP_COPY), mine);
    CU_ASSERT_EQUAL(most(a, STW_COMPONENT_UNSHARD), 6 * largest(a));
    /* parked: all shards come back first and leave afterwards */
    CU_ASSERT_EQUAL(most(b, STW_COMPONENT_PARAMS), mine);
    CU_ASSERT_EQUAL(moved(b, STW_OP_COPY), 2 * mine);
    CU_ASSERT_EQUAL(most(b, STW_COMPONENT_UNSHARD), 6 * largest(b));
    CU_ASSERT_TRUE(sync_of(b)->empties_cache);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Tensors that fill a bucket are there together, then once more in it. */
static void bucket_by_bucket(void) {
    const char *settings[] = {FSDP2, ROLLOUT, "weight_sync.method=buckets", BF16, NULL};
    stw_plan *plan = make(settings);
    const uint64_t big = 2 * largest(plan); /* larger than a bucket: by itself */
    CU_ASSERT_TRUE(big > BUCKET);
    CU_ASSERT_EQUAL(most(plan, STW_COMPONENT_UNSHARD), big);
    CU_ASSERT_EQUAL(most(plan, STW_COMPONENT_STAGE), big);
    CU_ASSERT_EQUAL(moved(plan, STW_OP_PLACE), 2 * plan->job->model->params);
    stw_plan_free(plan);
}

/* Buckets travel to other nodes by broadcast, from two buffers in turn. */
static void to_nodes_of_their_own(void) {
    const char *settings[] = {FSDP2, APART, NULL};
    stw_plan *plan = make(settings);
    const stw_movement *m = sync_of(plan);
    CU_ASSERT_EQUAL(moved(plan, STW_OP_SEND), 2 * plan->job->model->params);
    CU_ASSERT_EQUAL(most(plan, STW_COMPONENT_STAGE), 2 * BUCKET);
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (plan->programs[0]->ops[i].kind == STW_OP_SEND)
            CU_ASSERT_EQUAL(plan->programs[0]->ops[i].group, STW_RANK_GROUP_SYNC);
    stw_plan_free(plan);
}

/* Parts of a TP group are gathered and merged into a second copy. */
static void megatron_merges(void) {
    const char *one[] = {MEGATRON, ROLLOUT, NULL};
    const char *two[] = {MEGATRON, ROLLOUT, "parallel.tp=2", NULL};
    stw_plan *a = make(one), *b = make(two);
    CU_ASSERT_EQUAL(most(a, STW_COMPONENT_UNSHARD), 0);
    CU_ASSERT_TRUE(most(b, STW_COMPONENT_UNSHARD) >= 2 * 2 * largest(b));
    CU_ASSERT_TRUE(moved(b, STW_OP_ALL_GATHER) > 2 * b->job->model->params * 9 / 10);
    CU_ASSERT_TRUE(moved(b, STW_OP_PLACE) >= 2 * b->job->model->params);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* Stowage's own: round by round through two sets of buffers, whatever lies where, in the rollout's
 * dtype; each receiver gets what its layers hold. */
static void rounds_of_stowage(void) {
    const char *whole[] = {ROLLOUT, NULL},
               *halves[] = {"roles=[{name: rollout, update_bucket: 32 MiB, parallel: {tp: 2}}]",
                            NULL};
    const stw_cluster cluster = fixture_cluster(GPUS);
    for (int i = 0; i < 4; i++) {
        stw_plan *plan = fixture_plan(size, &cluster, i >= 2 ? halves : whole);
        const stw_tier tier = i % 2 ? STW_TIER_HOST : STW_TIER_GPU;
        const stw_place place = {tier, tier, STW_TIER_HOST, STW_UPDATE_STREAM};
        stw_decisions *d = &plan->decisions;
        d->n_state = 1;
        d->state[0] = (stw_state_decision){place, plan->job->n_units};
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_plan_check(plan, true, err));
        const stw_movement *m = sync_of(plan);
        const uint64_t params = plan->job->model->params;
        const double share = i >= 2 ? 0.5 : 1; /* norms are whole on both ranks */
        const stw_sync_plan *sync = NULL;
        CHECK_OK(stw_sync_plan_of(plan->job, &sync, err));
        const stw_sync_load *t = &sync->kinds[0].total;
        CU_ASSERT_PTR_NOT_NULL_FATAL(m);
        CU_ASSERT_TRUE(m->by_stowage && m->executable);
        CU_ASSERT_STRING_EQUAL(stw_plan_movement_by(plan, m), "stowage");
        /* into the bucket, and out of it into the rollout's weights */
        CU_ASSERT(fabs((double)moved(plan, STW_OP_PLACE) / (share * 4 * (double)params) - 1) <
                  0.03);
        /* fp32 on the host: each element that the rank sends or keeps crosses the link once */
        CU_ASSERT_EQUAL(moved(plan, STW_OP_COPY_PIECE),
                        i % 2 ? 2 * (t->packed + t->own - t->own_sent) : 0);
        CU_ASSERT(t->own_sent > 0 && t->own_sent <= t->own);
        CU_ASSERT_EQUAL(most(plan, STW_COMPONENT_UNSHARD), 0);
        CU_ASSERT_EQUAL(most(plan, STW_COMPONENT_STAGE),
                        2 * stw_sync_room(&sync->trainer) + STW_COMM_SCRATCH_BYTES);
        CU_ASSERT(stw_sync_room(&sync->trainer) <= BUCKET);
        stw_plan_free(plan);
    }
}

/* ZeRO-3 gathers tensors; in earlier stages every rank has them whole. */
static void zero_gathers_in_stage_3(void) {
    const char *third[] = {"engine=deepspeed",
                           "precision.params=bf16",
                           "precision.grads=bf16",
                           "precision.reduce=bf16",
                           "precision.master=fp32",
                           ROLLOUT,
                           NULL};
    const char *second[] = {"engine=deepspeed",       "precision.params=bf16",
                            "precision.grads=bf16",   "precision.reduce=bf16",
                            "precision.master=fp32",  ROLLOUT,
                            "deepspeed.zero_stage=2", NULL};
    stw_plan *a = make(third), *b = make(second);
    CU_ASSERT_TRUE(moved(a, STW_OP_ALL_GATHER) >= 2 * a->job->model->params);
    CU_ASSERT_EQUAL(moved(b, STW_OP_ALL_GATHER), 0);
    CU_ASSERT_EQUAL(moved(b, STW_OP_PLACE), 2 * b->job->model->params);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* A list of pieces takes memory and time: 16 million of them took minutes. */
static void pieces_have_a_bound(void) {
    static const char *const few[] = {
        FSDP2, "roles=[{name: a, kind: reference}, {name: rollout, update_bucket: 4 KiB}]", NULL};
    static const fixture_size large = {16, 8192, 28672, 128256};
    stw_cluster cluster = fixture_cluster(GPUS);
    stw_plan *plan = fixture_plan(large, &cluster, few);
    stw_place places[STW_MAX_PLACES];
    CU_ASSERT_TRUE_FATAL(plan->job->engine->places(plan->job, places, NULL) > 0);
    plan->decisions.n_state = 1;
    plan->decisions.state[0] = (stw_state_decision){places[0], plan->job->n_units};
    plan->decisions.prefetch.by_group = true;
    plan->decisions.prefetch.depth = 1;
    CHECK_FAILS(stw_plan_derive(plan, err), STW_STATUS_BAD_INPUT,
                "roles.1.update_bucket: found 4.00 KiB, expected at least");
    stw_plan_free(plan);
    /* the same of Stowage's own: parts of an eighth of the bucket */
    static const char *const own[] = {"roles=[{name: rollout, update_bucket: 512 KiB}]", NULL};
    plan = fixture_plan(size, &cluster, own);
    plan->decisions.n_state = 1;
    plan->decisions.state[0] = (stw_state_decision){
        {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_STREAM}, plan->job->n_units};
    CHECK_FAILS(stw_plan_derive(plan, err), STW_STATUS_BAD_INPUT,
                "roles.0.update_bucket: found 512.00 KiB, expected at least 1.00 MiB");
    stw_plan_free(plan);
}

STW_TEST_MAIN("engine weight sync", {"rounds of Stowage", rounds_of_stowage},
              {"pieces have a bound", pieces_have_a_bound},
              {"ZeRO gathers in stage 3", zero_gathers_in_stage_3},
              {"only for a rollout", only_for_a_rollout},
              {"pieces cover the model", pieces_cover_the_model},
              {"tensor by tensor", tensor_by_tensor},
              {"from every placement", from_every_placement},
              {"bucket by bucket", bucket_by_bucket},
              {"to nodes of their own", to_nodes_of_their_own},
              {"Megatron merges", megatron_merges})
