/* SPDX-License-Identifier: Apache-2.0 */
/* Did ranks that read the same elements of weights files read the same bytes? The sample that ranks
 * compare before they load sees a share of the files; here everything counts that two ranks read.
 *
 * Before the load ranks tell for each tensor which parts of it they read. Where another rank reads
 * the same parts, the threads that read hash what they have just read, while it is in their caches,
 * and ranks compare the sums after the load. What nobody else reads is neither hashed nor compared,
 * so that loads without copies cost nothing more. With --compare-weights everything is hashed, and
 * after the load each rank reads once more what another one has read, through its own files. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/executor/read_sums.h"
#include "backend/executor/run.h"
#include "backend/readers.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/units.h"

#define BATCH_BYTES (1u << 20) /* of what all ranks tell of some tensors */

/* What a rank tells of a tensor. */
typedef struct told {
    uint64_t parts /* 0: nothing to compare */, content, witness;
} told;

/* The first tensor that two ranks read differently, and how many there are. */
typedef struct difference {
    uint32_t tensors, last, tensor, base, other;
} difference;

/* ---- before the load ---- */

static void add_part(void *state, const stw_read_chunk *chunk) {
    stw_read_sums *sums = state;
    uint64_t *parts = &sums->parts[chunk->tensor];
    *parts += stw_read_sum(chunk, 0);
    if (*parts == 0) *parts = 1;
}

static uint32_t batch_of(const stw_rank_run *run, size_t size) {
    return (uint32_t)stw_max_u64(1, BATCH_BYTES / size / run->ranks.world);
}

/* Which tensors does another rank read in the same parts? Collective. */
static stw_status find_shared(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_read_sums *sums = run->sums;
    const uint32_t world = run->ranks.world, batch = batch_of(run, sizeof *sums->parts);
    uint64_t *all = calloc((size_t)batch * world, sizeof *all), shared = 0;
    if (all == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory"));
    for (uint32_t t = 0; t < sums->n; t += batch) {
        const uint32_t n = (uint32_t)stw_min_u64(batch, sums->n - t);
        STW_TRY(stw_exec_gather(run, sums->parts + t, all, n * sizeof *all, err));
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < world && !sums->shared[t + i]; r++)
                sums->shared[t + i] = r != run->ranks.rank && sums->parts[t + i] != 0 &&
                                      all[(size_t)r * n + i] == sums->parts[t + i];
    }
    for (uint32_t t = 0; t < sums->n; t++) shared += sums->shared[t];
    STW_TRY(stw_comm_sum_u64(run->comm, &shared, 1, err));
    sums->any = shared > 0;
out:
    free(all);
    return status;
}

static void count_bytes(void *state, const stw_read_chunk *chunk) {
    stw_rank_run *run = state;
    const uint64_t bytes = stw_read_chunk_bytes(run, chunk);
    run->sums->bytes[0] += bytes;
    if (run->sums->all || run->sums->shared[chunk->tensor]) run->sums->bytes[1] += bytes;
}

/* One whose files may be others: of the next node where there are several. */
static uint32_t peer_of(const stw_rank_run *run, uint32_t rank) {
    const uint32_t on_node = run->job->ranks_per_node, world = run->ranks.world;
    return (rank + (world > on_node ? on_node : 1)) % world;
}

stw_status stw_same_prepare(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t n = run->job->model->n_tensors;
    if (run->ranks.world == 1 || run->weights_path == NULL) return STW_STATUS_OK;
    stw_read_sums *sums = stw_pool_alloc(run->pool, sizeof *sums);
    if (sums == NULL) goto no_memory;
    sums->n = n;
    sums->all = run->options->compare_weights;
    sums->peer = peer_of(run, run->ranks.rank);
    sums->parts = stw_pool_array(run->pool, n, sizeof *sums->parts);
    sums->content = stw_pool_array(run->pool, n, sizeof *sums->content);
    sums->witness = stw_pool_array(run->pool, n, sizeof *sums->witness);
    sums->shared = stw_pool_array(run->pool, n, sizeof *sums->shared);
    if (sums->parts == NULL || sums->content == NULL || sums->witness == NULL ||
        sums->shared == NULL)
        goto no_memory;
    STW_TRY(stw_transfer_walk_reads(run, run->ranks.rank, add_part, sums, err));
    run->sums = sums;
    stw_comm_about(run->comm, "who reads what of the weights");
    STW_TRY(find_shared(run, err));
    STW_TRY(stw_transfer_walk_reads(run, run->ranks.rank, count_bytes, run, err));
    STW_TRY(stw_comm_sum_u64(run->comm, sums->bytes, 2, err));
    run->weights_read = sums->bytes[0];
    run->weights_compared = sums->bytes[1];
out:
    return status;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory");
}

/* ---- once more, what another rank has read ---- */

typedef struct second_pass {
    stw_rank_run *run;
    stw_read_chunk *chunks;
    size_t n, room;
    pthread_mutex_t mutex; /* of the two below */
    stw_status status;
    stw_error error;
} second_pass;

static void list_chunk(void *state, const stw_read_chunk *chunk) {
    second_pass *pass = state;
    if (pass->n == pass->room) {
        size_t room = pass->room > 0 ? 2 * pass->room : 256;
        stw_read_chunk *more = realloc(pass->chunks, room * sizeof *more);
        if (more == NULL) pass->status = STW_STATUS_NO_MEMORY;
        if (more == NULL) return;
        pass->chunks = more;
        pass->room = room;
    }
    pass->chunks[pass->n++] = *chunk;
}

static void read_again(void *arg, uint64_t first, uint64_t count) {
    second_pass *pass = arg;
    stw_rank_run *run = pass->run;
    stw_error error = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    void *buffer = malloc((size_t)2 * STW_READ_BYTES); /* fp64 is read as fp32 */
    if (buffer == NULL)
        status = stw_fail(&error, STW_STATUS_NO_MEMORY, "--compare-weights", "out of memory");
    for (uint64_t i = first; i < first + count && status == STW_STATUS_OK; i++) {
        const stw_read_chunk *c = &pass->chunks[i];
        status = stw_weights_read(run->weights, c->tensor, c->first, c->n, buffer, &error);
        const uint64_t sum = status == STW_STATUS_OK ? stw_read_sum_of(run, c, buffer) : 0;
        __atomic_fetch_add(&run->sums->witness[c->tensor], sum, __ATOMIC_RELAXED);
        stw_exec_progress_add(run, 1);
    }
    free(buffer);
    if (status == STW_STATUS_OK) return;
    pthread_mutex_lock(&pass->mutex);
    if (pass->status == STW_STATUS_OK) {
        pass->status = status;
        pass->error = error;
    }
    pthread_mutex_unlock(&pass->mutex);
}

static stw_status bear_witness(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    second_pass pass = {.run = run, .mutex = PTHREAD_MUTEX_INITIALIZER, .error = STW_ERROR_INIT};
    memset(run->sums->witness, 0, run->sums->n * sizeof(uint64_t));
    STW_TRY(stw_transfer_walk_reads(run, run->sums->peer, list_chunk, &pass, err));
    if (pass.status != STW_STATUS_OK)
        STW_TRY(stw_fail(err, pass.status, "--compare-weights", "out of memory"));
    stw_exec_progress(run, "comparing weights", STW_PROGRESS_SHARE, pass.n);
    stw_threads_for(run->readers, pass.n, 1, read_again, &pass);
    status = pass.status;
    if (status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = pass.error;
out:
    pthread_mutex_destroy(&pass.mutex);
    free(pass.chunks);
    return status;
}

/* ---- after the load ---- */

static void note(difference *d, uint32_t tensor, uint32_t base, uint32_t other) {
    if (d->tensors > 0 && d->last == tensor) return;
    d->last = tensor;
    if (d->tensors++ > 0) return;
    d->tensor = tensor;
    d->base = base;
    d->other = other;
}

/* The rank whose bytes most ranks with the same parts have; of as many the first. */
static uint32_t most_common(const told *all, uint32_t n, uint32_t world, uint32_t rank) {
    uint32_t best = rank, most = 0;
    for (uint32_t r = 0; r < world; r++) {
        uint32_t same = 0;
        if (all[(size_t)r * n].parts != all[(size_t)rank * n].parts) continue;
        for (uint32_t o = 0; o < world; o++)
            same += all[(size_t)o * n].parts == all[(size_t)r * n].parts &&
                    all[(size_t)o * n].content == all[(size_t)r * n].content;
        if (same > most) best = r;
        if (same > most) most = same;
    }
    return best;
}

typedef struct sorted {
    uint64_t parts, content;
    uint32_t rank;
} sorted;

static int by_parts(const void *a, const void *b) {
    const sorted *x = a, *y = b;
    if (x->parts != y->parts) return x->parts < y->parts ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* One tensor. @param all [world] of every n-th; @param room [world] */
static void judge(const stw_rank_run *run, uint32_t tensor, const told *all, uint32_t n,
                  sorted *room, difference *d) {
    const uint32_t world = run->ranks.world;
    for (uint32_t r = 0; r < world; r++)
        room[r] = (sorted){all[(size_t)r * n].parts, all[(size_t)r * n].content, r};
    qsort(room, world, sizeof *room, by_parts);
    for (uint32_t i = 1; i < world; i++) {
        if (room[i].parts == 0 || room[i].parts != room[i - 1].parts ||
            room[i].content == room[i - 1].content)
            continue;
        const uint32_t base = most_common(all, n, world, room[i].rank);
        const uint64_t right = all[(size_t)base * n].content;
        note(d, tensor, base, room[i].content != right ? room[i].rank : room[i - 1].rank);
    }
    for (uint32_t r = 0; r < world && run->sums->all; r++) {
        const uint32_t peer = peer_of(run, r);
        if (all[(size_t)r * n].witness != all[(size_t)peer * n].content) note(d, tensor, r, peer);
    }
}

static stw_status exchange(stw_rank_run *run, difference *d, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_read_sums *sums = run->sums;
    const uint32_t world = run->ranks.world, batch = batch_of(run, sizeof(told));
    told *mine = calloc(batch, sizeof *mine), *all = calloc((size_t)batch * world, sizeof *all);
    sorted *room = calloc(world, sizeof *room);
    if (mine == NULL || all == NULL || room == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "load", "out of memory"));
    for (uint32_t t = 0; t < sums->n; t += batch) {
        const uint32_t n = (uint32_t)stw_min_u64(batch, sums->n - t);
        for (uint32_t i = 0; i < n; i++)
            mine[i] = (told){sums->shared[t + i] ? sums->parts[t + i] : 0, sums->content[t + i],
                             sums->witness[t + i]};
        STW_TRY(stw_exec_gather(run, mine, all, n * sizeof *mine, err));
        for (uint32_t i = 0; i < n; i++) judge(run, t + i, all + i, n, room, d);
    }
out:
    free(room);
    free(mine);
    free(all);
    return status;
}

static stw_status fail_difference(stw_rank_run *run, const difference *d, stw_error *err) {
    char file[300] = "", more[64] = "";
    if (run->weights != NULL)
        snprintf(file, sizeof file, " from %.200s", stw_weights_file(run->weights, d->tensor));
    if (d->tensors > 1) snprintf(more, sizeof more, " (tensors that differ: %u)", d->tensors);
    run->agreed = true;
    return stw_fail(
        err, STW_STATUS_DEVICE, "weights",
        "%.200s: the bytes that rank %u reads%s are not those that rank %u reads of the "
        "same elements; give all ranks the same weights files%s",
        run->job->model->tensors[d->tensor].name, d->other, file, d->base, more);
}

/* Once for each run: what the comparison did not see. */
static void say_what_is_left(const stw_rank_run *run) {
    char left[32], all[32];
    const uint64_t alone = run->weights_read - run->weights_compared;
    if (run->ranks.rank != 0 || alone == 0) return;
    stw_bytes_format(alone, left, sizeof left);
    stw_bytes_format(run->weights_read, all, sizeof all);
    stw_log(STW_LOG_INFO,
            "weights: of the %s that ranks read, one rank alone reads %s; of these a sample is "
            "compared (all with --compare-weights)",
            all, left);
}

stw_status stw_same_compare(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    difference d = {0};
    if (run->sums == NULL) return STW_STATUS_OK;
    say_what_is_left(run);
    if (!run->sums->any && !run->sums->all) return STW_STATUS_OK;
    if (run->sums->all) STW_TRY(stw_exec_agree_status(run, bear_witness(run, err), err));
    stw_comm_about(run->comm, "comparing weights");
    STW_TRY(exchange(run, &d, err));
    if (d.tensors > 0) status = fail_difference(run, &d, err);
out:
    return status;
}
