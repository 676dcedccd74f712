/* SPDX-License-Identifier: Apache-2.0 */
/* Weight sync: pieces that cover the model, what is gathered, and what is on the GPU meanwhile for
 * every placement of the trainer's parameters. */
#include "plan/engines/weight_sync.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "plan/engines/gather.h"
#include "plan/engines/piece_sync.h"
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

/* Stowage's own: piece by piece through slots, whatever lies where, in the rollout's dtype; each
 * receiver gets what its layers hold. Planned, not executed. */
static void pieces_of_stowage(void) {
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
        const uint64_t params = plan->job->model->params, part = BUCKET / GPUS;
        const double share = i >= 2 ? 0.5 : 1; /* norms are whole on both ranks */
        CU_ASSERT_PTR_NOT_NULL_FATAL(m);
        CU_ASSERT_TRUE(m->by_stowage && !m->executable && m->transfer.own);
        CU_ASSERT_STRING_EQUAL(stw_plan_movement_by(plan, m), "planned, not executed");
        CU_ASSERT(fabs((double)moved(plan, STW_OP_PLACE) / (share * 2 * (double)params) - 1) <
                  0.03);
        CU_ASSERT_EQUAL(moved(plan, STW_OP_COPY_PIECE), i % 2 ? 4 * plan->job->kinds[0].params : 0);
        CU_ASSERT_EQUAL(most(plan, STW_COMPONENT_UNSHARD), 0);
        /* what comes from three others, this rank's part, and that in fp32 from the host */
        CU_ASSERT_EQUAL(most(plan, STW_COMPONENT_STAGE),
                        3 * part + part * (i % 2 ? 3 : 1) + STW_COMM_SCRATCH_BYTES);
        stw_plan_free(plan);
    }
}

/* What one rank does in a sync of Stowage's own, piece by piece: what it packs is its meet with the
 * piece, and fits the room. */
static void walk_rank(const stw_plan *plan, uint32_t rank, uint64_t bucket, uint64_t *packed,
                      uint64_t *received) {
    const uint32_t k = stw_job_kind_of(plan->job, rank);
    const stw_program *program = plan->programs[k];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_WEIGHT_SYNC);
    stw_pool *pool = stw_pool_new();
    stw_space own;
    CHECK_OK(stw_job_space(plan->job, STW_SPACE_PARAMS, rank, pool, &own, err));
    *packed = *received = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        const stw_piece *piece = &m->transfer.pieces[op->unit == STW_OP_NONE ? 0 : op->unit];
        const stw_view view = {m->transfer.own ? &own : &plan->job->files, piece->first, piece->n};
        if (op->kind == STW_OP_PACK) {
            const uint64_t meet = 2 * stw_meet_count(view, stw_space_whole(&own));
            CU_ASSERT_TRUE(meet <= op->bytes && op->bytes <= piece->room_bytes);
            CU_ASSERT_TRUE(op->bytes <= bucket);
            *packed += meet;
        }
        if (op->kind != STW_OP_ALL_TO_ALL) continue;
        const uint64_t comes = op->bytes - op->bytes / GPUS;
        CU_ASSERT_TRUE(comes <= bucket);
        *received += comes;
    }
    CU_ASSERT_EQUAL(*packed, 2 * own.n);
    stw_pool_free(pool);
}

/* No rank packs or receives more than there is room for, however unequal the parts of a piece are
 * that ranks hold: with buckets smaller than a tensor, and with a vocabulary that 4 does not
 * divide. What comes to a rank is what it lacks. */
static void rooms_hold_every_meet(void) {
    const char *settings[] = {ROLLOUT, NULL};
    const stw_cluster cluster = fixture_cluster(GPUS);
    const fixture_size sizes[] = {size, {3, 768, 2048, 50257}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        stw_plan *plan = fixture_plan(sizes[i], &cluster, settings);
        const stw_place place = {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_STREAM};
        uint64_t all = 0;
        plan->decisions.n_state = 1;
        plan->decisions.state[0] = (stw_state_decision){place, plan->job->n_units};
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_plan_check(plan, true, err));
        for (uint32_t rank = 0; rank < GPUS; rank++) {
            uint64_t packed, received;
            walk_rank(plan, rank, BUCKET, &packed, &received);
            const uint64_t lacks = 2 * plan->job->model->params - packed;
            CU_ASSERT_TRUE(received >= lacks && received < lacks + 4096);
            all += packed;
        }
        CU_ASSERT_EQUAL(all, 2 * plan->job->model->params);
        stw_plan_free(plan);
    }
}

/* Two engines of two ranks on four: a rank's shard is a quarter of the rows, of which its engine's
 * slice has all or none. Of merged tensors it has half of every shard. */
static void receivers_lack_what_they_have_not(void) {
    static const char *const halves[] = {
        "roles=[{name: rollout, update_bucket: 32 MiB, parallel: {tp: 2}}]", NULL};
    static const char *const apart[] = {APART, NULL};
    stw_cluster cluster = fixture_cluster(GPUS);
    stw_plan *plan = fixture_plan(size, &cluster, halves);
    const stw_model *model = plan->job->model;
    uint64_t merged = 0, whole = 0; /* qkv and gate_up; vectors */
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        if (strstr(tensor->name, "qkv") != NULL || strstr(tensor->name, "gate_up") != NULL)
            merged += tensor->numel;
        if (tensor->rank < 2) whole += tensor->numel;
    }
    const uint64_t rows = model->params - merged - whole;
    stw_sync_needs of = {0, 0};
    CHECK_OK(stw_sync_needs_of(plan->job, 0, &of, err));
    CU_ASSERT_EQUAL(of.needs, rows / 2 + merged / 2 + whole);
    /* rank 1: the second quarter of the rows, the second half of them is its engine's */
    uint64_t worst = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        CHECK_OK(stw_sync_needs_of(plan->job, k, &of, err));
        worst = stw_max_u64(worst, of.lacks);
    }
    CU_ASSERT_EQUAL(worst, rows / 2 + merged / 2 + whole - merged / 8 - whole / 4);
    stw_plan_free(plan);
    /* on nodes of their own they have nothing */
    cluster.nodes = 2;
    plan = fixture_plan(size, &cluster, apart);
    CHECK_OK(stw_sync_needs_of(plan->job, 0, &of, err));
    CU_ASSERT_TRUE(of.needs == of.lacks && of.needs == plan->job->model->params);
    stw_plan_free(plan);
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
}

STW_TEST_MAIN("engine weight sync", {"pieces of Stowage", pieces_of_stowage},
              {"rooms hold every meet", rooms_hold_every_meet},
              {"receivers lack what they have not", receivers_lack_what_they_have_not},
              {"pieces have a bound", pieces_have_a_bound},
              {"ZeRO gathers in stage 3", zero_gathers_in_stage_3},
              {"only for a rollout", only_for_a_rollout},
              {"pieces cover the model", pieces_cover_the_model},
              {"tensor by tensor", tensor_by_tensor},
              {"from every placement", from_every_placement},
              {"bucket by bucket", bucket_by_bucket},
              {"to nodes of their own", to_nodes_of_their_own},
              {"Megatron merges", megatron_merges})
