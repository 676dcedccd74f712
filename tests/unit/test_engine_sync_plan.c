/* SPDX-License-Identifier: Apache-2.0 */
/* The planned weight sync of engine stowage is the one that the library executes: rounds, buffers,
 * bytes and messages are those of stw_plan_sync for pieces that this test cuts by itself. */
#include "engines/sync_plan.h"

#include "core/checked.h"
#include "engines/rollout_weights.h"
#include "include/stowage.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

enum { NODE = 4, MOST_PIECES = 1 << 16, MOST_TENSORS = 512 };

typedef struct described {
    const stw_job *job;
    uint32_t tp, first, receivers; /* first and number of the rollout's ranks */
    bool alone;
    const char *from; /* dtype of parameters */
    stw_sync_tensor_t tensors[MOST_TENSORS];
    stw_sync_piece_t *sources, *targets; /* [MOST_PIECES] */
    uint32_t n_sources, n_targets;
    stw_schedule_t *schedule;
} described;

static bool has(const char *name, const char *part) { return strstr(name, part) != NULL; }

static void add(described *d, bool target, uint32_t rank, uint32_t t, const uint64_t range[4]) {
    uint32_t *n = target ? &d->n_targets : &d->n_sources;
    stw_sync_piece_t *p = &(target ? d->targets : d->sources)[*n];
    CU_ASSERT_TRUE_FATAL(*n < MOST_PIECES);
    if (range[1] == 0 || range[3] == 0) return;
    *p = (stw_sync_piece_t){.rank = rank,
                            .tensor = t,
                            .first = {range[0], range[2], 0, 0},
                            .count = {range[1], range[3], 1, 1},
                            .memory = target && !d->alone ? STOWAGE_NONE : 0,
                            .dtype = target ? "BF16" : d->from};
    ++*n;
}

static void add_rows(described *d, uint32_t rank, uint32_t t, uint64_t first, uint64_t rows) {
    const uint64_t columns = d->tensors[t].dims > 1 ? d->tensors[t].shape[1] : 1;
    add(d, true, rank, t, (const uint64_t[]){first, rows, 0, columns});
}

/* What vLLM's layers on rank p of tp hold of the tensors of the models below. */
static void describe_target(described *d, uint32_t rank, uint32_t p, uint32_t t) {
    const char *name = d->tensors[t].name;
    const uint64_t rows = d->tensors[t].shape[0], columns = d->tensors[t].shape[1];
    const stw_model *model = d->job->model;
    const stw_block_facts *f = &model->groups[model->blocks[model->tensors[t].block].group].facts;
    if (d->tensors[t].dims == 1) {
        add_rows(d, rank, t, 0, rows);
    } else if (has(name, "embed") || has(name, "lm_head")) { /* padded to 64 entries */
        const uint64_t share = (rows + 63) / 64 * 64 / d->tp, begin = share * p;
        add_rows(d, rank, t, begin, begin + share <= rows ? share : rows - begin);
    } else if (has(name, "qkv")) {
        const uint64_t q = f->q_heads * f->qk_dim, k = f->kv_heads * f->qk_dim;
        const uint64_t ways = d->tp < f->kv_heads ? d->tp : f->kv_heads, own = p * ways / d->tp;
        add_rows(d, rank, t, q / d->tp * p, q / d->tp);
        add_rows(d, rank, t, q + k / ways * own, k / ways);
        add_rows(d, rank, t, q + k + k / ways * own, k / ways);
    } else if (has(name, "gate_up")) {
        add_rows(d, rank, t, rows / 2 / d->tp * p, rows / 2 / d->tp);
        add_rows(d, rank, t, rows / 2 + rows / 2 / d->tp * p, rows / 2 / d->tp);
    } else if (has(name, "o_proj") || has(name, "down_proj") || has(name, ".o.") ||
               has(name, ".down.")) {
        add(d, true, rank, t, (const uint64_t[]){0, rows, columns / d->tp * p, columns / d->tp});
    } else if (has(name, "k_proj") || has(name, "v_proj")) { /* fewer heads than ranks: shared */
        const uint64_t ways = d->tp < f->kv_heads ? d->tp : f->kv_heads, own = p * ways / d->tp;
        add_rows(d, rank, t, rows / ways * own, rows / ways);
    } else { /* q, gate and up */
        add_rows(d, rank, t, rows / d->tp * p, rows / d->tp);
    }
}

static void describe(described *d) {
    const stw_model *model = d->job->model;
    d->sources = calloc(MOST_PIECES, sizeof *d->sources);
    d->targets = calloc(MOST_PIECES, sizeof *d->targets);
    CU_ASSERT_TRUE_FATAL(d->sources != NULL && d->targets != NULL &&
                         model->n_tensors <= MOST_TENSORS);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_tensor *of = &model->tensors[t];
        d->tensors[t] = (stw_sync_tensor_t){.name = of->name,
                                            .dtype = "BF16",
                                            .dims = of->rank,
                                            .shape = {of->shape[0], of->shape[1], 1, 1}};
        if (of->rank < 2) d->tensors[t].shape[1] = 1;
        const uint64_t chunk = (of->shape[0] + d->job->group - 1) / d->job->group;
        for (uint32_t r = 0; r < d->job->world; r++) {
            const uint64_t first = chunk * (r % d->job->group);
            const uint64_t left = of->shape[0] > first ? of->shape[0] - first : 0;
            add(d, false, r, t,
                (const uint64_t[]){first, left < chunk ? left : chunk, 0, d->tensors[t].shape[1]});
        }
        for (uint32_t r = 0; r < d->receivers; r++) describe_target(d, d->first + r, r % d->tp, t);
    }
    const stw_sync_options_t options = {.tensors = d->tensors,
                                        .sources = d->sources,
                                        .targets = d->targets,
                                        .n_tensors = model->n_tensors,
                                        .n_sources = d->n_sources,
                                        .n_targets = d->n_targets,
                                        .world = d->job->ranks,
                                        .bucket_bytes = 32ull << 20};
    CU_ASSERT_EQUAL_FATAL(stw_plan_sync(&options, sizeof options, &d->schedule, NULL), 0);
}

/* ---- what is compared ---- */

typedef struct bytes {
    uint64_t near_sent, near_received, far_sent, far_received, packed, handed;
    uint32_t messages;
} bytes;

/* One round of a rank, from the lists of the library. A group goes to several ranks from one place
 * of the send buffer. */
static bytes of_round(const described *d, uint32_t rank, uint32_t round) {
    const stw_sync_message_t *messages = NULL;
    const stw_sync_part_t *parts = NULL;
    uint32_t n = 0, n_parts = 0;
    bytes sum = {0};
    CU_ASSERT_EQUAL(stw_get_sync_messages(d->schedule, rank, round, &messages, &n, NULL), 0);
    CU_ASSERT_EQUAL(stw_get_sync_parts(d->schedule, rank, round, &parts, &n_parts, NULL), 0);
    uint64_t last = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const stw_sync_message_t *m = &messages[i];
        const bool near = m->peer / NODE == rank / NODE;
        if (m->sends)
            *(near ? &sum.near_sent : &sum.far_sent) += m->bytes;
        else
            *(near ? &sum.near_received : &sum.far_received) += m->bytes;
        if (m->sends && m->offset != last) sum.packed += m->bytes;
        if (m->sends) last = m->offset;
        sum.messages++;
    }
    for (uint32_t i = 0; i < n_parts; i++)
        sum.handed +=
            2 * parts[i].count[0] * parts[i].count[1] * parts[i].count[2] * parts[i].count[3];
    return sum;
}

static void compare_kind(const described *d, const stw_sync_plan *plan, uint32_t k) {
    const stw_sync_kind *kind = &plan->kinds[k];
    const stw_sync_load *t = &kind->total;
    stw_schedule_info_t info;
    CU_ASSERT_EQUAL_FATAL(stw_get_schedule_info(d->schedule, kind->rank, &info, sizeof info, NULL),
                          0);
    CU_ASSERT_EQUAL_FATAL(plan->n_rounds, info.rounds);
    CU_ASSERT_EQUAL(t->send_room, info.send_bytes);
    CU_ASSERT_EQUAL(t->receive_room, info.receive_bytes);
    CU_ASSERT_EQUAL(t->bucket_room, info.bucket_bytes);
    CU_ASSERT_EQUAL(t->near_sent + t->far_sent, info.sent_bytes);
    CU_ASSERT_EQUAL(t->near_received + t->far_received, info.received_bytes);
    CU_ASSERT_EQUAL(t->own, info.own_bytes);
    CU_ASSERT_EQUAL(t->placed, info.own_bytes + info.received_bytes);
    for (uint32_t r = 0; r < plan->n_rounds; r++) {
        const bytes b = of_round(d, kind->rank, r);
        const stw_sync_load *l = &kind->rounds[r];
        CU_ASSERT(l->near_sent == b.near_sent && l->near_received == b.near_received);
        CU_ASSERT(l->far_sent == b.far_sent && l->far_received == b.far_received);
        CU_ASSERT(l->packed == b.packed && l->messages == b.messages);
        CU_ASSERT(d->alone || l->placed == b.handed);
        CU_ASSERT(plan->busiest[r].near_bytes >= l->near_sent &&
                  plan->busiest[r].far_bytes >= l->far_received);
    }
}

/* The most of each figure, whichever rank has it. */
static void compare_most(const described *d, const stw_sync_plan *plan) {
    uint64_t near = 0, far = 0, placed = 0;
    for (uint32_t rank = 0; rank < d->job->ranks; rank++) {
        stw_schedule_info_t info;
        bytes sum = {0};
        CU_ASSERT_EQUAL(stw_get_schedule_info(d->schedule, rank, &info, sizeof info, NULL), 0);
        for (uint32_t r = 0; r < plan->n_rounds; r++) {
            const bytes b = of_round(d, rank, r);
            sum.near_received += b.near_received;
            sum.far_received += b.far_received;
        }
        near = stw_max_u64(near, sum.near_received);
        far = stw_max_u64(far, sum.far_received);
        placed = stw_max_u64(placed, info.own_bytes + info.received_bytes);
    }
    CU_ASSERT_EQUAL(plan->near_received, near);
    CU_ASSERT_EQUAL(plan->far_received, far);
    CU_ASSERT_EQUAL(plan->placed, placed);
}

/* The program's operations and rooms are those of the schedule. */
static void compare_program(const described *d, const stw_plan *plan, const stw_sync_plan *sync,
                            uint32_t k) {
    const stw_program *program = plan->programs[k];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_WEIGHT_SYNC);
    const stw_sync_load *t = &sync->kinds[k].total;
    uint64_t comes = 0, packed = 0, placed = 0, rooms = 0, most = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    CU_ASSERT(m->by_stowage && m->executable == !d->alone);
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (op->kind == STW_OP_EXCHANGE) comes += op->bytes;
        if (op->kind == STW_OP_PACK) packed += op->bytes;
        if (op->kind == STW_OP_PLACE) placed += op->bytes;
        if (op->kind == STW_OP_ALLOC && op->component == STW_COMPONENT_STAGE) rooms += op->bytes;
    }
    CU_ASSERT_EQUAL(comes, t->near_received + t->far_received);
    CU_ASSERT_EQUAL(packed, t->packed);
    CU_ASSERT_EQUAL(placed, 2 * t->placed); /* into the bucket, and to the rollout */
    for (uint32_t r = 0; r < d->job->world; r++) {
        stw_schedule_info_t info;
        CU_ASSERT_EQUAL(stw_get_schedule_info(d->schedule, r, &info, sizeof info, NULL), 0);
        most = stw_max_u64(most, info.send_bytes + info.receive_bytes + info.bucket_bytes);
    }
    CU_ASSERT_EQUAL(rooms, sync->sets * most);
}

static void compare(stw_plan *plan, uint32_t tp, bool alone) {
    const stw_sync_plan *sync = NULL;
    const stw_place place = FIXTURE_STREAM;
    const stw_job *job = plan->job;
    described *d = calloc(1, sizeof *d);
    CU_ASSERT_PTR_NOT_NULL_FATAL(d);
    plan->decisions.n_state = 1;
    plan->decisions.state[0] = (stw_state_decision){place, job->n_units};
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    d->job = job;
    d->tp = tp;
    d->alone = alone;
    d->first = alone ? job->world : 0;
    d->receivers = alone ? job->ranks - job->world : job->world;
    d->from = stw_job_element_bytes(job, STW_COMPONENT_PARAMS) == 4 ? "F32" : "BF16";
    describe(d);
    CHECK_OK(stw_sync_plan_of(job, &sync, err));
    CU_ASSERT(sync->n_rounds > 1 && sync->sets == 2);
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        compare_kind(d, sync, k);
        if (job->kinds[k].home == 0) compare_program(d, plan, sync, k);
    }
    compare_most(d, sync);
    stw_free_schedule(d->schedule);
    free(d->sources);
    free(d->targets);
    free(d);
}

/* ---- cases ---- */

#define BUCKET "update_bucket: 32 MiB"
#define BF16                                                                                       \
    "precision.params=bf16", "precision.grads=bf16", "precision.exp_avg=bf16",                     \
        "precision.exp_avg_sq=bf16"

static void merged_tensors(void) {
    static const char *const settings[][8] = {
        {"roles=[{name: rollout, " BUCKET "}]"},
        {"roles=[{name: rollout, " BUCKET ", parallel: {tp: 2}}]", BF16},
        {"roles=[{name: rollout, " BUCKET ", parallel: {tp: 4}}]"},
        {"roles=[{name: rollout, " BUCKET ", parallel: {tp: 2}}]", "parallel.dp_replicate=2"},
        {"roles=[{name: rollout, " BUCKET ", parallel: {tp: 2}, with: none}]"}};
    static const uint32_t tp[] = {1, 2, 4, 2, 2};
    static const fixture_size sizes[] = {{4, 1024, 4096, 32000}, {3, 768, 2048, 50257}};
    for (size_t i = 0; i < sizeof tp / sizeof tp[0]; i++)
        for (size_t s = 0; s < 2; s++) {
            stw_cluster cluster = fixture_cluster(NODE);
            cluster.nodes = i == 0 ? 1 : 2;
            stw_plan *plan = fixture_plan(sizes[s], &cluster, settings[i]);
            compare(plan, tp[i], i == 4);
            stw_plan_free(plan);
        }
}

/* A published model, whose matrices are cut by rows, by columns and by heads that ranks share. */
static void published_names(void) {
    stw_cluster cluster = fixture_cluster(NODE);
    stw_model *model = NULL;
    stw_run_spec run;
    stw_plan *plan = NULL;
    cluster.nodes = 2;
    CHECK_OK(stw_model_read_config(STW_SOURCE_MODELS "/zoo/TinyLlama-1.1B.json", STW_SOURCE_MODELS,
                                   &model, err));
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_run_spec_set(&run, "roles", "[{name: rollout, " BUCKET ", parallel: {tp: 8}}]",
                              "test", err));
    CHECK_OK(stw_plan_new(model, &cluster, &run, &plan, err));
    stw_decisions *d = &plan->decisions;
    d->blocks = stw_pool_array(plan->pool, 1, sizeof *d->blocks);
    CU_ASSERT_PTR_NOT_NULL_FATAL(d->blocks);
    d->blocks[0] = (stw_block_decision){1, STW_ACT_KEEP, (uint32_t)model->layers};
    d->n_blocks = 1;
    d->load = STW_LOAD_RANK0_BROADCAST;
    d->prefetch.depth = 3;
    d->prefetch.bucket_bytes = 1ull << 20;
    compare(plan, 8, false);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planned weight sync", {"merged tensors", merged_tensors},
              {"published names", published_names})
