/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that move between ranks, through the library: random pieces on the host backend, with
 * casts, and what a caller may get wrong. Every rank lies in this process. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/boxes.h"
#include "tests/unit/library_case.h"
#include "tests/unit/sync_case.h"

typedef struct run {
    sync_case c;
    stw_sync_tensor_t *tensors;
    stw_sync_piece_t *pieces[2];
    stw_schedule_t *schedule;
    stw_schedule_info_t info[SYNC_MOST_RANKS];
    stw_sync_t *syncs[SYNC_MOST_RANKS];
    unsigned char *memory[2][SYNC_MOST_RANKS][SYNC_MEMORIES];
    unsigned char *buffers[3][SYNC_MOST_RANKS]; /* send, receive, bucket */
    unsigned char *sets[3][2][SYNC_MOST_RANKS]; /* the same, of the loop */
} run;

static const char *const dtype_names[STW_N_DTYPES] = {
    [STW_DTYPE_F32] = "F32", [STW_DTYPE_BF16] = "BF16", [STW_DTYPE_F16] = "F16"};

/* Bits of a source's element, NaNs and numbers beyond half precision among them. */
static uint32_t source_bits(uint32_t tensor, uint64_t element, stw_dtype dtype) {
    const uint64_t h = stw_mix64(element * 64 + tensor);
    const uint32_t wide = (uint32_t)h;
    if (dtype == STW_DTYPE_F32) /* half of them where half precision has numbers */
        return h >> 63 ? wide : (wide & 0x87FFFFFFu) + 0x38000000u;
    return wide & 0xFFFFu;
}

static double widened(uint32_t bits, stw_dtype dtype) {
    if (dtype == STW_DTYPE_F32) return (double)stw_float_from_bits(bits);
    if (dtype == STW_DTYPE_BF16) return (double)stw_float_from_bits(bits << 16);
    const double sign = bits & 0x8000u ? -1 : 1;
    const int exponent = (int)(bits >> 10 & 31u);
    const double mantissa = (double)(bits & 0x3FFu);
    if (exponent == 31) return mantissa > 0 ? (double)NAN : sign * (double)INFINITY;
    return exponent == 0 ? sign * ldexp(mantissa, -24)
                         : sign * ldexp(mantissa + 1024, exponent - 25);
}

/* The nearest number of a kind with `bits` mantissa bits and exponents from `least` on, ties to
 * even, computed another way than the library does. */
static uint32_t rounded(double x, int mantissa_bits, int least, uint32_t infinity, uint32_t nan) {
    const uint32_t sign = signbit(x) ? 0x8000u : 0;
    int exponent = 0;
    if (isnan(x)) return nan;
    if (isinf(x)) return sign | infinity;
    if (x == 0) return sign;
    (void)frexp(fabs(x), &exponent); /* x = f 2^exponent, f from 1/2 to 1 */
    if (exponent - 1 < least) exponent = least + 1;
    const double units = nearbyint(ldexp(fabs(x), mantissa_bits + 1 - exponent));
    uint64_t bits = (uint64_t)units;
    bits += (uint64_t)(exponent - 1 - least) << mantissa_bits;
    return bits >= infinity ? sign | infinity : sign | (uint32_t)bits;
}

/* Bits that arrive. A NaN of F16 has one of two patterns, by its sign. */
static uint32_t expected_bits(uint32_t bits, stw_dtype from, stw_dtype to) {
    const double x = widened(bits, from);
    if (from == to) return bits;
    if (to == STW_DTYPE_BF16) return rounded(x, 7, -126, 0x7F80u, 0x7FC0u);
    if (to == STW_DTYPE_F16)
        return rounded(x, 10, -14, 0x7C00u,
                       0x7E00u | (from == STW_DTYPE_F32 ? bits >> 16 & 0x8000u : bits & 0x8000u));
    if (from == STW_DTYPE_BF16) return bits << 16;
    if (isnan(x)) return (bits & 0x8000u) << 16 | 0x7F800000u | (bits & 0x3FFu) << 13;
    return stw_bits_from_float((float)x);
}

/* ---- a job of the library's ---- */

static void describe(run *x) {
    const stw_sync_job *job = &x->c.job;
    x->tensors = calloc(job->n_tensors, sizeof *x->tensors);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x->tensors);
    for (uint32_t i = 0; i < job->n_tensors; i++) {
        x->tensors[i] = (stw_sync_tensor_t){.name = job->tensors[i].name,
                                            .dtype = dtype_names[job->tensors[i].dtype],
                                            .dims = job->tensors[i].dims};
        for (int d = 0; d < STOWAGE_MAX_DIMS; d++)
            x->tensors[i].shape[d] = job->tensors[i].shape[d];
    }
    for (int k = 0; k < 2; k++) {
        x->pieces[k] = calloc(x->c.n[k] + 1, sizeof *x->pieces[k]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(x->pieces[k]);
        for (uint32_t i = 0; i < x->c.n[k]; i++) {
            const stw_sync_piece *p = &x->c.pieces[k][i];
            stw_sync_piece_t *to = &x->pieces[k][i];
            *to = (stw_sync_piece_t){.rank = p->rank,
                                     .tensor = p->tensor,
                                     .memory = p->memory,
                                     .offset = p->offset,
                                     .dtype = dtype_names[p->dtype]};
            for (int d = 0; d < STOWAGE_MAX_DIMS; d++) {
                to->first[d] = p->box.first[d];
                to->count[d] = p->box.count[d];
                to->stride[d] = p->stride[d];
            }
        }
    }
}

static void fill(run *x) {
    const stw_sync_job *job = &x->c.job;
    for (uint32_t i = 0; i < job->n_sources; i++) {
        const stw_sync_piece *p = &job->sources[i];
        const stw_sync_tensor *t = &job->tensors[p->tensor];
        const uint64_t width = stw_sync_width(p->dtype);
        for (uint64_t k = 0; k < stw_box_volume(&p->box); k++) {
            const uint64_t element = sync_element(t, &p->box, k);
            const uint32_t bits = source_bits(p->tensor, element, p->dtype);
            memcpy(x->memory[0][p->rank][p->memory] + sync_at(t, p, element) * width, &bits, width);
        }
    }
}

static stw_status_t plan(run *x) {
    const stw_sync_options_t options = {.tensors = x->tensors,
                                        .sources = x->pieces[0],
                                        .targets = x->pieces[1],
                                        .n_tensors = x->c.job.n_tensors,
                                        .n_sources = x->c.n[0],
                                        .n_targets = x->c.n[1],
                                        .world = x->c.job.world,
                                        .bucket_bytes = x->c.job.bucket_bytes};
    return stw_plan_sync(&options, sizeof options, &x->schedule, error);
}

static stw_open_sync_t memories(run *x, uint32_t r) {
    return (stw_open_sync_t){.backend = "host",
                             .sources = (const void *const *)x->memory[0][r],
                             .targets = (void *const *)x->memory[1][r],
                             .n_sources = SYNC_MEMORIES,
                             .n_targets = SYNC_MEMORIES};
}

static void start(run *x, uint64_t seed, uint32_t world) {
    sync_case_make(&x->c, seed, world, 1u << 12);
    describe(x);
    library_ok(plan(x), "plan a sync");
    for (uint32_t r = 0; r < world; r++) {
        library_ok(stw_get_schedule_info(x->schedule, r, &x->info[r], sizeof x->info[r], error),
                   "info");
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < SYNC_MEMORIES; m++)
                x->memory[k][r][m] = calloc(x->c.elements[k][r][m] + 1, m == 0 ? 4 : 2);
        x->buffers[0][r] = malloc(x->info[r].send_bytes + 1);
        x->buffers[1][r] = malloc(x->info[r].receive_bytes + 1);
        x->buffers[2][r] = malloc(x->info[r].bucket_bytes + 1);
        const stw_open_sync_t options = memories(x, r);
        library_ok(stw_open_sync(x->schedule, r, &options, sizeof options, &x->syncs[r], error),
                   "open");
    }
    fill(x);
}

static void end(run *x) {
    for (uint32_t r = 0; r < x->c.job.world; r++) {
        stw_free_sync(x->syncs[r]);
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < SYNC_MEMORIES; m++) free(x->memory[k][r][m]);
        for (int k = 0; k < 3; k++) free(x->buffers[k][r]);
    }
    stw_free_schedule(x->schedule);
    free(x->tensors);
    for (int k = 0; k < 2; k++) free(x->pieces[k]);
    stw_pool_free(x->c.pool);
}

/* ---- rounds ---- */

static const stw_sync_message_t *messages_of(run *x, uint32_t r, uint32_t round, uint32_t *n) {
    const stw_sync_message_t *all = NULL;
    library_ok(stw_get_sync_messages(x->schedule, r, round, &all, n, error), "messages");
    return all;
}

/* Bytes go from send to receive buffers, and have the same sum on both sides. */
static void send(run *x, uint32_t round) {
    for (uint32_t r = 0; r < x->c.job.world; r++) {
        uint32_t n = 0, n_sent = 0, next[SYNC_MOST_RANKS] = {0};
        const stw_sync_message_t *mine = messages_of(x, r, round, &n);
        for (uint32_t i = 0; i < n; i++) {
            if (mine[i].sends) continue;
            const uint32_t peer = mine[i].peer;
            const stw_sync_message_t *its = messages_of(x, peer, round, &n_sent);
            uint32_t *at = &next[peer];
            while (*at < n_sent && !(its[*at].sends && its[*at].peer == r)) ++*at;
            CU_ASSERT_FATAL(*at < n_sent && its[*at].bytes == mine[i].bytes);
            unsigned char *to = x->buffers[1][r] + mine[i].offset;
            unsigned char *from = x->buffers[0][peer] + its[(*at)++].offset;
            uint64_t sums[2] = {0, 1};
            memcpy(to, from, mine[i].bytes);
            library_ok(stw_sum_bytes(x->syncs[r], to, mine[i].bytes, NULL, &sums[0], error), "sum");
            library_ok(stw_sum_bytes(x->syncs[peer], from, mine[i].bytes, NULL, &sums[1], error),
                       "sum");
            CU_ASSERT_EQUAL(sums[0], sums[1]);
            if (mine[i].bytes > 0) {
                to[mine[i].bytes - 1] ^= 1;
                library_ok(stw_sum_bytes(x->syncs[r], to, mine[i].bytes, NULL, &sums[0], error),
                           "sum");
                to[mine[i].bytes - 1] ^= 1;
                CU_ASSERT_NOT_EQUAL(sums[0], sums[1]);
            }
        }
    }
}

static void take_parts(run *x, uint32_t r, uint32_t round) {
    const stw_sync_part_t *parts = NULL;
    uint32_t n = 0;
    library_ok(stw_get_sync_parts(x->schedule, r, round, &parts, &n, error), "parts");
    for (uint32_t i = 0; i < n; i++) {
        const stw_sync_piece *p = &x->c.job.targets[parts[i].target];
        const stw_sync_tensor *t = &x->c.job.tensors[parts[i].tensor];
        const uint64_t width = stw_sync_width(t->dtype);
        stw_box box;
        memcpy(box.first, parts[i].first, sizeof box.first);
        memcpy(box.count, parts[i].count, sizeof box.count);
        for (uint64_t k = 0; k < stw_box_volume(&box); k++) {
            const uint64_t element = sync_element(t, &box, k);
            memcpy(x->memory[1][r][t->dtype == STW_DTYPE_F32 ? 0 : 1] +
                       sync_at(t, p, element) * width,
                   x->buffers[2][r] + parts[i].offset + k * width, width);
        }
    }
}

static void execute(run *x) {
    for (uint32_t round = 0; round < x->info[0].rounds; round++) {
        for (uint32_t r = 0; r < x->c.job.world; r++)
            library_ok(stw_pack_round(x->syncs[r], round, x->buffers[0][r], NULL, error), "pack");
        send(x, round);
        for (uint32_t r = 0; r < x->c.job.world; r++) {
            library_ok(stw_place_round(x->syncs[r], round, x->buffers[1][r], x->buffers[2][r], NULL,
                                       error),
                       "place");
            take_parts(x, r, round);
        }
    }
}

/* Every element of every target, and no byte beside them. */
static uint64_t wrong_elements(run *x) {
    const stw_sync_job *job = &x->c.job;
    stw_dtype from[SYNC_MOST_TENSORS] = {0};
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < job->n_sources; i++)
        from[job->sources[i].tensor] = job->sources[i].dtype;
    for (uint32_t i = 0; i < job->n_targets; i++) {
        const stw_sync_piece *p = &job->targets[i];
        const stw_sync_tensor *t = &job->tensors[p->tensor];
        const uint64_t width = stw_sync_width(t->dtype);
        for (uint64_t k = 0; k < stw_box_volume(&p->box); k++) {
            const uint64_t element = sync_element(t, &p->box, k);
            const uint32_t bits = source_bits(p->tensor, element, from[p->tensor]);
            const uint32_t expected = expected_bits(bits, from[p->tensor], t->dtype);
            unsigned char *at = x->memory[1][p->rank][t->dtype == STW_DTYPE_F32 ? 0 : 1] +
                                sync_at(t, p, element) * width;
            wrong += memcmp(at, &expected, width) != 0;
            memset(at, 0, width);
        }
    }
    for (uint32_t r = 0; r < job->world; r++)
        for (int m = 0; m < SYNC_MEMORIES; m++)
            for (uint64_t i = 0; i < x->c.elements[1][r][m] * (m == 0 ? 4 : 2); i++)
                wrong += x->memory[1][r][m][i] != 0;
    return wrong;
}

static void random_jobs_arrive(void) {
    library_files();
    for (uint64_t seed = 1000; seed < 1120; seed++) {
        run x = {.c = {.casts = seed % 4 != 0, .buckets = seed % 3 == 0}};
        start(&x, seed, 1 + (uint32_t)(seed % SYNC_MOST_RANKS));
        execute(&x);
        CU_ASSERT_EQUAL(wrong_elements(&x), 0);
        for (uint32_t r = 1; r < x.c.job.world; r++)
            CU_ASSERT(x.info[r].sum == x.info[0].sum && x.info[r].rounds == x.info[0].rounds);
        end(&x);
    }
}

/* ---- the same by the loop: ranks take turns, and messages wait where they come ---- */

typedef struct letter {
    bool posted[64]; /* rounds */
    unsigned char *sent[64];
} letter;

static void run_action(run *x, letter *letters, uint32_t r, int action, uint32_t round,
                       uint32_t set) {
    uint32_t n = 0, n_sent = 0, next[SYNC_MOST_RANKS] = {0};
    const stw_sync_message_t *mine = messages_of(x, r, round, &n);
    CU_ASSERT_FATAL(round < 64 && set == round % 2);
    if (action == STOWAGE_SYNC_POST) {
        CU_ASSERT_FALSE(letters[r].posted[round]);
        letters[r].posted[round] = true;
        letters[r].sent[round] = malloc(x->info[r].send_bytes + 1);
        memcpy(letters[r].sent[round], x->sets[0][set][r], x->info[r].send_bytes);
    }
    for (uint32_t i = 0; i < n && action == STOWAGE_SYNC_RECEIVE; i++) {
        if (mine[i].sends) continue;
        const uint32_t peer = mine[i].peer;
        const stw_sync_message_t *its = messages_of(x, peer, round, &n_sent);
        uint32_t *at = &next[peer];
        while (!(its[*at].sends && its[*at].peer == r)) ++*at;
        memcpy(x->sets[1][set][r] + mine[i].offset, letters[peer].sent[round] + its[(*at)++].offset,
               mine[i].bytes);
    }
    if (action == STOWAGE_SYNC_TAKE) {
        memcpy(x->buffers[2][r], x->sets[2][set][r], x->info[r].bucket_bytes);
        take_parts(x, r, round);
    }
}

/* Have all senders of a round posted? */
static bool has_come(run *x, const letter *letters, uint32_t r, uint32_t round) {
    uint32_t n = 0;
    const stw_sync_message_t *mine = messages_of(x, r, round, &n);
    for (uint32_t i = 0; i < n; i++)
        if (!mine[i].sends && !letters[mine[i].peer].posted[round]) return false;
    return true;
}

static void execute_loop(run *x, bool releases) {
    const uint32_t world = x->c.job.world;
    letter *letters = calloc(world, sizeof *letters);
    int actions[SYNC_MOST_RANKS] = {0};
    uint32_t round[SYNC_MOST_RANKS] = {0}, set[SYNC_MOST_RANKS] = {0}, done = 0;
    uint32_t taken[SYNC_MOST_RANKS] = {0}, released[SYNC_MOST_RANKS] = {0};
    for (uint32_t r = 0; r < world; r++) {
        stw_begin_sync_t options = {.releases = releases};
        for (int s = 0; s < 2; s++) {
            const uint64_t bytes[3] = {x->info[r].send_bytes, x->info[r].receive_bytes,
                                       x->info[r].bucket_bytes};
            for (int k = 0; k < 3; k++) x->sets[k][s][r] = malloc(bytes[k] + 1);
            options.send[s] = x->sets[0][s][r];
            options.receive[s] = x->sets[1][s][r];
            options.bucket[s] = x->sets[2][s][r];
        }
        library_ok(stw_begin_sync(x->syncs[r], &options, sizeof options, error), "begin");
        actions[r] = STOWAGE_SYNC_WAIT;
    }
    for (uint32_t turn = 0; done < world; turn++) {
        const uint32_t r = turn % world;
        CU_ASSERT_FATAL(turn < 100000);
        if (actions[r] == STOWAGE_SYNC_DONE ||
            (actions[r] == STOWAGE_SYNC_RECEIVE && !has_come(x, letters, r, round[r])))
            continue;
        if (actions[r] != STOWAGE_SYNC_WAIT)
            run_action(x, letters, r, actions[r], round[r], set[r]);
        library_ok(stw_step_sync(x->syncs[r], &actions[r], &round[r], &set[r], error), "step");
        taken[r] += actions[r] == STOWAGE_SYNC_TAKE;
        released[r] += actions[r] == STOWAGE_SYNC_RELEASE;
        if (actions[r] == STOWAGE_SYNC_DONE) done++;
    }
    for (uint32_t r = 0; r < world; r++) {
        CU_ASSERT_EQUAL(released[r], releases ? taken[r] : 0);
        for (int k = 0; k < 3; k++)
            for (int s = 0; s < 2; s++) free(x->sets[k][s][r]);
        for (uint32_t i = 0; i < 64; i++) free(letters[r].sent[i]);
    }
    free(letters);
}

static void loops_arrive(void) {
    library_files();
    for (uint64_t seed = 2000; seed < 2060; seed++) {
        run x = {.c = {.casts = seed % 4 != 0, .buckets = seed % 3 == 0}};
        start(&x, seed, 1 + (uint32_t)(seed % SYNC_MOST_RANKS));
        for (int again = 0; again < 2; again++) {
            execute_loop(&x, seed % 2 == 1);
            CU_ASSERT_EQUAL(wrong_elements(&x), 0);
        }
        end(&x);
    }
}

static void mistakes_of_loops(void) {
    run x = {.c = {.casts = false}};
    int action = 7;
    uint32_t round = 0, set = 0;
    library_files();
    start(&x, 12, 2);
    stw_begin_sync_t options = {.timeout_s = 1};
    library_ok(stw_step_sync(x.syncs[0], &action, &round, &set, error), "step before begin");
    CU_ASSERT_EQUAL(action, STOWAGE_SYNC_DONE);
    library_refused(stw_begin_sync(x.syncs[0], &options, 8, error), STOWAGE_USAGE, "size");
    library_refused(stw_begin_sync(NULL, &options, sizeof options, error), STOWAGE_USAGE, "sync");
    library_refused(stw_step_sync(x.syncs[0], NULL, &round, &set, error), STOWAGE_USAGE, "action");
    library_ok(stw_begin_sync(x.syncs[0], &options, sizeof options, error), "begin");
    library_refused(stw_step_sync(x.syncs[0], &action, &round, &set, error), STOWAGE_USAGE, "send");
    options.comm = &options; /* never looked at: this process has no NCCL */
    const stw_status_t status = stw_begin_sync(x.syncs[0], &options, sizeof options, error);
    CU_ASSERT(status == STOWAGE_NOT_BUILT_IN || status == STOWAGE_DEVICE);
    end(&x);
}

/* Targets and sources that moved. */
static void memories_move(void) {
    run x = {.c = {.casts = true, .buckets = false}};
    library_files();
    start(&x, 7, 4);
    execute(&x);
    CU_ASSERT_EQUAL(wrong_elements(&x), 0);
    for (uint32_t r = 0; r < 4; r++) {
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < SYNC_MEMORIES; m++) {
                const size_t bytes = (x.c.elements[k][r][m] + 1) * (m == 0 ? 4 : 2);
                unsigned char *moved = calloc(1, bytes);
                CU_ASSERT_PTR_NOT_NULL_FATAL(moved);
                memcpy(moved, x.memory[k][r][m], bytes);
                memset(x.memory[k][r][m], 0xAB, bytes);
                free(x.memory[k][r][m]);
                x.memory[k][r][m] = moved;
            }
        library_ok(stw_bind_sync(x.syncs[r], (const void *const *)x.memory[0][r], SYNC_MEMORIES,
                                 (void *const *)x.memory[1][r], SYNC_MEMORIES, error),
                   "bind");
    }
    execute(&x);
    CU_ASSERT_EQUAL(wrong_elements(&x), 0);
    end(&x);
}

/* ---- mistakes ---- */

static void mistakes_of_plans(void) {
    run x = {.c = {.casts = false}};
    stw_schedule_info_t info;
    const stw_sync_message_t *messages = NULL;
    uint32_t n = 0;
    library_files();
    start(&x, 11, 3);
    stw_schedule_t *kept = x.schedule;
    library_refused(stw_plan_sync(NULL, 0, &x.schedule, error), STOWAGE_USAGE, "options");
    const stw_sync_options_t options = {.world = 1};
    library_refused(stw_plan_sync(&options, 8, &x.schedule, error), STOWAGE_USAGE, "size");
    x.schedule = NULL;
    x.c.job.bucket_bytes = 1000;
    library_refused(plan(&x), STOWAGE_USAGE, "bucket_bytes");
    x.c.job.bucket_bytes = 1u << 20;
    x.tensors[0].dtype = "I64";
    library_refused(plan(&x), STOWAGE_BAD_INPUT, "tensor0");
    x.tensors[0].dtype = "what";
    library_refused(plan(&x), STOWAGE_BAD_INPUT, "\"what\"");
    x.tensors[0].dtype = NULL;
    library_refused(plan(&x), STOWAGE_USAGE, "tensor0");
    x.tensors[0].dtype = "F32";
    x.tensors[0].dims = 5;
    library_refused(plan(&x), STOWAGE_BAD_INPUT, "dimensions");
    CU_ASSERT_PTR_NULL(x.schedule);
    x.schedule = kept;
    library_refused(stw_get_schedule_info(x.schedule, 3, &info, sizeof info, error), STOWAGE_USAGE,
                    "rank");
    library_refused(stw_get_sync_messages(x.schedule, 0, x.info[0].rounds, &messages, &n, error),
                    STOWAGE_USAGE, "round");
    end(&x);
    stw_free_schedule(NULL);
}

static void mistakes_of_syncs(void) {
    const stw_sync_tensor_t tensor = {.name = "w", .dtype = "F32", .dims = 1, .shape = {8}};
    const stw_sync_piece_t source = {
        .count = {8, 1, 1, 1}, .memory = 2, .stride = {1}, .dtype = "F32"};
    const stw_sync_piece_t target = {.count = {8, 1, 1, 1}, .stride = {1}, .dtype = "F32"};
    const stw_sync_options_t plan_options = {.tensors = &tensor,
                                             .sources = &source,
                                             .targets = &target,
                                             .n_tensors = 1,
                                             .n_sources = 1,
                                             .n_targets = 1,
                                             .world = 1,
                                             .bucket_bytes = 1u << 20};
    _Alignas(16) unsigned char from[48], to[48];
    const void *sources[3] = {NULL, NULL, from};
    void *targets[1] = {to};
    stw_open_sync_t options = {
        .backend = "host", .sources = sources, .targets = targets, .n_sources = 3, .n_targets = 1};
    stw_schedule_t *schedule = NULL;
    stw_sync_t *sync = NULL;
    uint64_t sum = 0;
    library_files();
    library_ok(stw_plan_sync(&plan_options, sizeof plan_options, &schedule, error), "plan");
    options.n_sources = 2;
    library_refused(stw_open_sync(schedule, 0, &options, sizeof options, &sync, error),
                    STOWAGE_USAGE, "expected 3");
    options.n_sources = 3;
    sources[2] = NULL;
    library_refused(stw_open_sync(schedule, 0, &options, sizeof options, &sync, error),
                    STOWAGE_USAGE, "memory 2: found NULL");
    sources[2] = from + 2;
    library_refused(stw_open_sync(schedule, 0, &options, sizeof options, &sync, error),
                    STOWAGE_USAGE, "multiple of 4");
    sources[2] = from;
    options.backend = "tpu";
    library_refused(stw_open_sync(schedule, 0, &options, sizeof options, &sync, error),
                    STOWAGE_USAGE, "tpu");
    options.backend = "host";
    library_refused(stw_open_sync(schedule, 1, &options, sizeof options, &sync, error),
                    STOWAGE_USAGE, "rank");
    library_ok(stw_open_sync(schedule, 0, &options, sizeof options, &sync, error), "open");
    library_refused(stw_pack_round(sync, 1, NULL, NULL, error), STOWAGE_USAGE, "round");
    library_refused(stw_sum_bytes(sync, from + 1, 8, NULL, &sum, error), STOWAGE_USAGE, "address");
    const pid_t child = fork();
    if (child == 0) {
        const stw_status_t status = stw_pack_round(sync, 0, NULL, NULL, error);
        stw_free_sync(sync);
        _exit(status == STOWAGE_USAGE ? 0 : 1);
    }
    int code = -1;
    CU_ASSERT_EQUAL(waitpid(child, &code, 0), child);
    CU_ASSERT_EQUAL(code, 0);
    memset(from, 7, sizeof from);
    library_ok(stw_pack_round(sync, 0, NULL, NULL, error), "pack nothing");
    library_ok(stw_place_round(sync, 0, NULL, NULL, NULL, error), "place");
    CU_ASSERT_EQUAL(memcmp(from, to, 32), 0);
    stw_free_sync(sync);
    stw_free_sync(NULL);
    stw_free_schedule(schedule);
}

STW_TEST_MAIN("library: weights that move", {"random jobs arrive", random_jobs_arrive},
              {"memories move", memories_move}, {"mistakes of plans", mistakes_of_plans},
              {"mistakes of syncs", mistakes_of_syncs}, {"loops arrive", loops_arrive},
              {"mistakes of loops", mistakes_of_loops})
