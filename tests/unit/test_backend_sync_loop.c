/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a weight sync over a communicator that the caller lends: every rank is a thread of
 * this process, messages go through a table. What arrives is what packing, sending and placing one
 * round after another brings. */
#include <pthread.h>

#include "backend/executor/sync_loop.h"
#include "tests/unit/sync_case.h"

#define MOST_LETTERS 20000

/* ---- a communicator ---- */

typedef struct letter {
    uint32_t from, to;
    uint64_t bytes;
    unsigned char *data; /* NULL: it was taken */
} letter;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static letter letters[MOST_LETTERS];
static uint32_t n_letters;
static uint32_t calls_left = UINT32_MAX; /* of messages(), before one fails */

static void post(uint32_t from, const stw_comm_message *m, const void *send) {
    letter *l = &letters[n_letters++];
    *l = (letter){from, m->peer, m->bytes, malloc(m->bytes + 1)};
    memcpy(l->data, (const unsigned char *)send + m->offset, m->bytes);
}

/* The oldest one between two ranks that was not taken. */
static letter *find_letter(uint32_t from, uint32_t to) {
    for (uint32_t i = 0; i < n_letters; i++)
        if (letters[i].from == from && letters[i].to == to && letters[i].data != NULL)
            return &letters[i];
    return NULL;
}

static stw_status find(stw_error *e) {
    (void)e;
    return STW_STATUS_OK;
}

/* As NCCL: sends do not wait for receivers, the stream (here the host) waits for what comes. */
static stw_status messages(void *comm, const stw_comm_message *list, uint32_t n,
                           const stw_lent_buffers *buffers, void *stream, double timeout_s,
                           stw_error *e) {
    const uint32_t me = *(const uint32_t *)comm;
    (void)stream;
    (void)timeout_s;
    pthread_mutex_lock(&mutex);
    if (calls_left-- == 0) {
        pthread_mutex_unlock(&mutex);
        return stw_fail(e, STW_STATUS_DEVICE, "links", "the cable is cut");
    }
    for (uint32_t i = 0; i < n; i++)
        if (list[i].sends) post(me, &list[i], buffers->send);
    pthread_cond_broadcast(&posted);
    for (uint32_t i = 0; i < n; i++) {
        letter *l = NULL;
        if (list[i].sends) continue;
        while ((l = find_letter(list[i].peer, me)) == NULL) pthread_cond_wait(&posted, &mutex);
        if (l->bytes == list[i].bytes)
            memcpy((unsigned char *)buffers->receive + list[i].offset, l->data, l->bytes);
        free(l->data);
        l->data = NULL;
    }
    pthread_mutex_unlock(&mutex);
    return STW_STATUS_OK;
}

static stw_status check(void *comm, stw_error *e) {
    (void)comm;
    (void)e;
    return STW_STATUS_OK;
}

static const stw_lent_ops table = {.find = find, .messages = messages, .check = check};

/* ---- ranks ---- */

typedef struct rank_run {
    uint32_t rank;
    const sync_case *c;
    uint32_t rounds, taken, failed_in;
    uint64_t wrong; /* elements in buckets */
    unsigned char *memory[2][SYNC_MEMORIES];
    stw_sync_buffers sets[STW_SYNC_SETS];
    const stw_sync_view *view;
    stw_sync_device *device;
    stw_sync_loop *loop;
    stw_status status;
} rank_run;

/* The bits of an element, which travel as they are. */
static bool is_right(const void *at, uint32_t tensor, uint64_t element, uint64_t width) {
    const uint64_t bits = stw_mix64(element * 64 + tensor);
    return memcmp(at, &bits, width) == 0;
}

static void fill(const rank_run *r) {
    for (uint32_t i = 0; i < r->c->job.n_sources; i++) {
        const stw_sync_piece *p = &r->c->job.sources[i];
        const stw_sync_tensor *t = &r->c->job.tensors[p->tensor];
        const uint64_t width = stw_sync_width(p->dtype);
        for (uint64_t k = 0; k < stw_box_volume(&p->box) && p->rank == r->rank; k++) {
            const uint64_t element = sync_element(t, &p->box, k);
            const uint64_t bits = stw_mix64(element * 64 + p->tensor);
            memcpy(r->memory[0][p->memory] + sync_at(t, p, element) * width, &bits, width);
        }
    }
}

static void open_rank(rank_run *r, sync_case *c, stw_sync_schedule *schedule) {
    const void *sources[SYNC_MEMORIES];
    void *targets[SYNC_MEMORIES];
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < SYNC_MEMORIES; m++) {
            const size_t bytes = c->elements[k][r->rank][m] * (m == 0 ? 4 : 2) + 8;
            r->memory[k][m] = calloc(1, bytes);
        }
    r->c = c;
    fill(r);
    for (int m = 0; m < SYNC_MEMORIES; m++) {
        sources[m] = r->memory[0][m];
        targets[m] = r->memory[1][m];
    }
    const stw_sync_memories memories = {sources, targets, SYNC_MEMORIES, SYNC_MEMORIES};
    const stw_sync_options options = {.backend = "host"};
    CHECK_OK(stw_sync_schedule_view(schedule, r->rank, &r->view, err));
    CHECK_OK(stw_sync_device_open(schedule, r->rank, &options, &memories, &r->device, err));
    r->rounds = stw_sync_schedule_rounds(schedule);
    CHECK_OK(stw_sync_loop_open(r->device, r->rounds, &r->loop, err));
    for (int s = 0; s < STW_SYNC_SETS; s++)
        r->sets[s] =
            (stw_sync_buffers){malloc(r->view->send_bytes + 4), malloc(r->view->receive_bytes + 4),
                               calloc(1, r->view->bucket_bytes + 4)};
}

static void close_rank(rank_run *r) {
    stw_sync_loop_close(r->loop);
    stw_sync_device_close(r->device);
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < SYNC_MEMORIES; m++) free(r->memory[k][m]);
    for (int s = 0; s < STW_SYNC_SETS; s++) {
        free(r->sets[s].send);
        free(r->sets[s].receive);
        free(r->sets[s].bucket);
    }
}

static void take_parts(rank_run *r, const stw_sync_step *step) {
    const stw_sync_view *v = r->view;
    for (uint32_t i = v->first_part[step->round]; i < v->first_part[step->round + 1]; i++) {
        const stw_sync_part *part = &v->parts[i];
        const stw_sync_tensor *t = &r->c->job.tensors[part->tensor];
        const unsigned char *bucket = r->sets[step->set].bucket;
        const uint64_t width = stw_sync_width(t->dtype);
        for (uint64_t k = 0; k < stw_box_volume(&part->box); k++)
            r->wrong += !is_right(bucket + part->offset + k * width, part->tensor,
                                  sync_element(t, &part->box, k), width);
        r->taken++;
    }
}

static void *run_rank(void *arg) {
    rank_run *r = arg;
    stw_error e = STW_ERROR_INIT;
    stw_sync_loop_options options = {.lent = &r->rank, .with = &table, .timeout_s = 1};
    stw_sync_step step = {STW_SYNC_WAIT, 0, 0};
    memcpy(options.sets, r->sets, sizeof options.sets);
    r->status = stw_sync_loop_begin(r->loop, &options, &e);
    while (r->status == STW_STATUS_OK && step.action != STW_SYNC_DONE) {
        r->status = stw_sync_loop_step(r->loop, &step, &e);
        if (r->status != STW_STATUS_OK || step.action != STW_SYNC_TAKE) continue;
        take_parts(r, &step);
    }
    r->failed_in = step.round;
    return NULL;
}

/* Elements in memories that did not come. They are forgotten. */
static uint64_t wrong_elements(const rank_run *r) {
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < r->c->job.n_targets; i++) {
        const stw_sync_piece *p = &r->c->job.targets[i];
        const stw_sync_tensor *t = &r->c->job.tensors[p->tensor];
        if (p->rank != r->rank || p->memory == STW_SYNC_NONE) continue;
        const uint64_t width = stw_sync_width(p->dtype);
        for (uint64_t k = 0; k < stw_box_volume(&p->box); k++) {
            const uint64_t element = sync_element(t, &p->box, k);
            unsigned char *at = r->memory[1][p->memory] + sync_at(t, p, element) * width;
            wrong += !is_right(at, p->tensor, element, width);
            memset(at, 0, width);
        }
    }
    return wrong;
}

static void run_all(rank_run *ranks, uint32_t world) {
    pthread_t threads[SYNC_MOST_RANKS];
    n_letters = 0;
    for (uint32_t r = 0; r < world; r++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    for (uint32_t r = 0; r < world; r++) (void)pthread_join(threads[r], NULL);
}

static void lent_messages_arrive(void) {
    for (uint64_t seed = 3000; seed < 3060; seed++) {
        sync_case c = {.casts = false, .buckets = seed % 3 == 0};
        rank_run ranks[SYNC_MOST_RANKS] = {{.rank = 0}};
        stw_sync_schedule *schedule = NULL;
        sync_case_make(&c, seed, 1 + (uint32_t)(seed % SYNC_MOST_RANKS), 1u << 12);
        const uint32_t world = c.job.world;
        CHECK_OK(stw_sync_schedule_new(c.pool, &c.job, &schedule, err));
        for (uint32_t r = 0; r < world; r++) {
            ranks[r].rank = r;
            open_rank(&ranks[r], &c, schedule);
        }
        for (int again = 0; again < 2; again++) {
            run_all(ranks, world);
            for (uint32_t r = 0; r < world; r++) {
                CU_ASSERT_EQUAL(ranks[r].status, STW_STATUS_OK);
                CU_ASSERT_EQUAL(ranks[r].taken, ranks[r].view->first_part[ranks[r].rounds]);
                CU_ASSERT_EQUAL(ranks[r].wrong + wrong_elements(&ranks[r]), 0);
                ranks[r].taken = 0;
            }
            for (uint32_t i = 0; i < n_letters; i++) CU_ASSERT_PTR_NULL(letters[i].data);
        }
        for (uint32_t r = 0; r < world; r++) close_rank(&ranks[r]);
        stw_sync_schedule_free(schedule);
    }
}

/* An error of the communicator comes with the round that was sent. */
static void errors_name_the_round(void) {
    sync_case c = {.casts = false};
    rank_run rank = {.rank = 0};
    stw_sync_schedule *schedule = NULL;
    sync_case_make(&c, 3001, 3, 1u << 12);
    CHECK_OK(stw_sync_schedule_new(c.pool, &c.job, &schedule, err));
    open_rank(&rank, &c, schedule);
    calls_left = 0;
    (void)run_rank(&rank);
    calls_left = UINT32_MAX;
    CU_ASSERT_EQUAL(rank.status, STW_STATUS_DEVICE);
    const uint32_t *first = rank.view->first_message;
    CU_ASSERT(first[rank.failed_in] < first[rank.failed_in + 1]);
    CU_ASSERT_EQUAL(first[rank.failed_in], 0);
    close_rank(&rank);
    stw_sync_schedule_free(schedule);
}

STW_TEST_MAIN("rounds of a weight sync", {"lent messages arrive", lent_messages_arrive},
              {"errors name the round", errors_name_the_round})
