/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "backend/checkpoint/load.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/host/pool.h"
#include "backend/nvme/plain.h"
#include "core/checked.h"
#include "core/locale.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define BLOCK STW_PLAIN_BLOCK_BYTES
#define READERS 4u
/* While a bucket is hashed or placed, the disk has the requests of others. */
#define AHEAD_READERS 2u
#define AHEAD 3u /* buckets in memory */
#define NONE UINT32_MAX
#define MOST_BUCKET (4ull << 30) /* larger ones are no buckets of ours */
#define MOST_HEADER (128ull << 20)

/* A file that buckets are of. */
typedef struct source {
    stw_plain *file;
    char *path;
    uint32_t number;                    /* in manifest.files; NONE: not one with tensors */
    uint64_t first[STW_N_LOAD_WHO + 1]; /* needs of the file, by who: up to those of the next */
} source;

/* A bucket to be read. */
typedef struct task {
    uint32_t rank, bucket, source;
} task;

/* A bucket in memory, or why it is not. */
typedef struct loaded {
    void *memory;
    uint64_t hash;
    stw_status status;
    stw_error error;
} loaded;

typedef struct slot {
    loaded loaded;
    bool full; /* it is read, and not placed */
} slot;

typedef struct loader {
    const stw_checkpoint *c;
    const stw_load_options *options;
    bool verifies; /* damage is counted, not an error */
    stw_plain_io *io;
    source *sources;
    uint32_t n_sources;
    size_t n_tasks, room;
    task *tasks;
    stw_pool *pool;
    pthread_mutex_t placing; /* held by the thread that places */
    uint64_t placed;         /* bytes */
    stw_checkpoint_damage damage;
    pthread_mutex_t mutex; /* of what follows, and of slot.full */
    pthread_cond_t change;
    stw_status status; /* the first failure */
    stw_error error;
    slot *slots;               /* [AHEAD] of load_in_turn */
    size_t next, placed_tasks; /* task that is read next; tasks that were placed */
} loader;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

/* A header is a bucket of its own, which rank 0 wrote. Nothing is made of a damaged one. */
static stw_status check_header(const stw_checkpoint *c, const char *name, const char *path,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_marker *m = &c->markers[0];
    const stw_marked_bucket *b = m->buckets, *end = m->buckets + m->n_buckets;
    stw_plain_io *io = NULL;
    stw_plain *file = NULL;
    void *memory = NULL;
    for (; b < end; b++)
        if (strcmp(m->files[b->file], name) == 0 && m->extents[b->first_extent].offset == 0) break;
    if (b == end || b->n_extents != 1 || m->extents[b->first_extent].count != 1 ||
        b->bytes > MOST_HEADER)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, path,
                         "found no header in what rank 0's marker lists"));
    memory = malloc((size_t)b->bytes);
    if (memory == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_plain_io_open(&io, err));
    STW_TRY(stw_plain_open(io, path, false, &file, err));
    STW_TRY(stw_plain_read(file, 0, memory, b->bytes, err));
    const uint64_t hash = XXH3_64bits(memory, (size_t)b->bytes);
    if (hash != b->hash)
        status =
            stw_fail(err, STW_STATUS_DISAGREE, path,
                     "is damaged: its %" PRIu64 " bytes from 0 to %" PRIu64
                     " that rank 0 wrote (header) have hash %016" PRIx64 ", expected %016" PRIx64,
                     b->bytes, b->bytes, hash, b->hash);
out:
    stw_plain_close(file);
    stw_plain_io_close(io);
    free(memory);
    return status;
}

stw_status stw_checkpoint_header(const stw_checkpoint *checkpoint, uint32_t file,
                                 stw_safetensors **out, stw_error *err) {
    char path[STW_CHECKPOINT_PATH + 256];
    const char *name = checkpoint->manifest.files[file].name;
    snprintf(path, sizeof path, "%s/%s", checkpoint->path, name);
    *out = NULL;
    const stw_status status = check_header(checkpoint, name, path, err);
    return status == STW_STATUS_OK ? stw_safetensors_open(path, out, err) : status;
}

/* ---- what is wanted ---- */

stw_status stw_load_needs_add(stw_load_needs *needs, const stw_load_need *need, stw_error *err) {
    if (needs->n == needs->room) {
        const size_t room = needs->room * 2 + 1024;
        stw_load_need *grown = realloc(needs->all, room * sizeof *grown);
        if (grown == NULL) return no_memory(err);
        needs->all = grown;
        needs->room = room;
    }
    needs->all[needs->n++] = *need;
    return STW_STATUS_OK;
}

static int compare(const void *a, const void *b) {
    const stw_load_need *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->who != y->who) return x->who < y->who ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static stw_status find_source(loader *l, const char *name, uint32_t *out, stw_error *err) {
    for (*out = 0; *out < l->n_sources; ++*out)
        if (strcmp(l->sources[*out].path + strlen(l->c->path) + 1, name) == 0) return STW_STATUS_OK;
    source *s = stw_pool_array(l->pool, l->n_sources + 1u, sizeof *s);
    if (s == NULL) return no_memory(err);
    if (l->n_sources > 0) memcpy(s, l->sources, l->n_sources * sizeof *s);
    l->sources = s;
    s += l->n_sources;
    *s = (source){.number = NONE, .path = stw_pool_printf(l->pool, "%s/%s", l->c->path, name)};
    if (s->path == NULL) return no_memory(err);
    for (uint32_t f = 0; f < l->c->manifest.n_files; f++)
        if (strcmp(l->c->manifest.files[f].name, name) == 0) s->number = f;
    const stw_load_options *o = l->options;
    uint64_t n = 0;
    while (n < o->n_needs && o->needs[n].file < s->number) n++;
    for (int who = 0; who < STW_N_LOAD_WHO; who++) {
        s->first[who] = n;
        while (n < o->n_needs && o->needs[n].file == s->number && (int)o->needs[n].who == who) n++;
    }
    s->first[STW_N_LOAD_WHO] = n;
    l->n_sources++;
    return STW_STATUS_OK;
}

/* The first need of a file that ends beyond a byte. */
static uint64_t need_at(const loader *l, const source *s, stw_load_who who, uint64_t offset) {
    uint64_t low = s->first[who], high = s->first[who + 1];
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const stw_load_need *n = &l->options->needs[middle];
        if (n->offset + n->bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_needed(const loader *l, const task *t, stw_load_who who) {
    const source *s = &l->sources[t->source];
    const stw_marker *m = &l->c->markers[t->rank];
    const stw_marked_bucket *b = &m->buckets[t->bucket];
    if (s->first[who] == s->first[who + 1]) return false;
    for (uint32_t e = b->first_extent; e < b->first_extent + b->n_extents; e++) {
        const stw_marked_extent *x = &m->extents[e];
        for (uint64_t r = 0; r < x->count; r++) {
            const uint64_t offset = x->offset + r * x->stride, n = need_at(l, s, who, offset);
            if (n < s->first[who + 1] && l->options->needs[n].offset < offset + x->bytes)
                return true;
        }
    }
    return false;
}

static stw_status add_task(loader *l, const task *t, stw_error *err) {
    l->tasks =
        stw_pool_regrow(l->pool, l->tasks, l->n_tasks, l->n_tasks + 1, &l->room, sizeof *l->tasks);
    if (l->tasks == NULL) return no_memory(err);
    l->tasks[l->n_tasks++] = *t;
    return STW_STATUS_OK;
}

static stw_status find_tasks(loader *l, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t number = 0;
    for (uint32_t r = 0; r < l->c->manifest.world; r++) {
        const stw_marker *m = &l->c->markers[r];
        uint32_t file = NONE;
        task t = {.rank = r};
        for (t.bucket = 0; t.bucket < m->n_buckets; t.bucket++, number++) {
            const stw_marked_bucket *b = &m->buckets[t.bucket];
            if (b->file != file) STW_TRY(find_source(l, m->files[b->file], &t.source, err));
            file = b->file;
            const uint32_t parts = l->options->parts;
            if (is_needed(l, &t, STW_LOAD_HERE) || is_needed(l, &t, STW_LOAD_HERE_TOO) ||
                (parts > 0 && number % parts == l->options->part &&
                 !is_needed(l, &t, STW_LOAD_ANY_RANK)))
                STW_TRY(add_task(l, &t, err));
        }
    }
out:
    return status;
}

/* ---- one bucket ---- */

/* Rows of a bucket as they are read: where each lies in memory. */
typedef struct rows {
    const stw_marker *m;
    const stw_marked_bucket *b;
    uint32_t extent;
    uint64_t row, end; /* end: of what the rows so far take in memory */
} rows;

static bool next_row(rows *r, uint64_t *offset, uint64_t *bytes, uint64_t *at) {
    while (r->extent < r->b->n_extents) {
        const stw_marked_extent *x = &r->m->extents[r->b->first_extent + r->extent];
        if (r->row == x->count) {
            r->extent++;
            r->row = 0;
            continue;
        }
        *offset = x->offset + r->row++ * x->stride;
        *bytes = x->bytes;
        *at = r->end / BLOCK * BLOCK + *offset % BLOCK;
        if (*at < r->end) *at += BLOCK;
        r->end = *at + *bytes;
        return true;
    }
    return false;
}

static stw_status read_rows(const source *s, rows r, unsigned char *memory, uint64_t *hash,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t offset, bytes, at;
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL) return no_memory(err);
    XXH3_64bits_reset(state);
    while (next_row(&r, &offset, &bytes, &at)) {
        STW_TRY(stw_plain_read(s->file, offset, memory + at, bytes, err));
        XXH3_64bits_update(state, memory + at, bytes);
    }
    *hash = XXH3_64bits_digest(state);
out:
    XXH3_freeState(state);
    return status;
}

/* The tensor with a byte of a file, for messages. */
static void name_tensor(const loader *l, const source *s, uint64_t offset, char *out,
                        size_t out_size) {
    stw_safetensors *set = NULL;
    snprintf(out, out_size, "%s", s->number != NONE && offset == 0 ? " (header)" : "");
    if (s->number == NONE || stw_checkpoint_header(l->c, s->number, &set, NULL) != STW_STATUS_OK)
        return;
    for (uint32_t e = 0; e < set->n_entries; e++)
        if (offset >= set->entries[e].offset_bytes &&
            offset - set->entries[e].offset_bytes < set->entries[e].bytes)
            snprintf(out, out_size, " (from %.200s on)", set->entries[e].name);
    stw_safetensors_free(set);
}

static stw_status damaged(const loader *l, const task *t, uint64_t hash, stw_error *err) {
    const stw_marker *m = &l->c->markers[t->rank];
    const stw_marked_bucket *b = &m->buckets[t->bucket];
    const stw_marked_extent *first = &m->extents[b->first_extent],
                            *last = &m->extents[b->first_extent + b->n_extents - 1];
    char tensor[256];
    name_tensor(l, &l->sources[t->source], first->offset, tensor, sizeof tensor);
    return stw_fail(err, STW_STATUS_DISAGREE, l->sources[t->source].path,
                    "is damaged: its %" PRIu64 " bytes from %" PRIu64 " to %" PRIu64
                    " that rank %u wrote%s have hash %016" PRIx64 ", expected %016" PRIx64,
                    b->bytes, first->offset,
                    last->offset + (last->count - 1) * last->stride + last->bytes, t->rank, tensor,
                    hash, b->hash);
}

/* Hand over what is needed of a bucket, as the one thread that places. */
static stw_status place_rows(loader *l, const source *s, stw_load_who who, rows r,
                             const unsigned char *memory, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t offset, bytes, at;
    while (next_row(&r, &offset, &bytes, &at)) {
        for (uint64_t n = need_at(l, s, who, offset); n < s->first[who + 1]; n++) {
            const stw_load_need *need = &l->options->needs[n];
            if (need->offset >= offset + bytes) break;
            const uint64_t first = stw_max_u64(need->offset, offset);
            const uint64_t end = stw_min_u64(need->offset + need->bytes, offset + bytes);
            STW_TRY(l->options->place(l->options->state, need, first - need->offset,
                                      memory + at + (first - offset), end - first, err));
            l->placed += end - first;
        }
    }
out:
    return status;
}

static uint64_t memory_of(rows r) {
    uint64_t offset, bytes, at;
    while (next_row(&r, &offset, &bytes, &at)) continue;
    return r.end;
}

static void note(loader *l, stw_status status, const stw_error *error) {
    if (l->verifies && status == STW_STATUS_DISAGREE) {
        if (l->damage.damaged++ == 0)
            stw_error_format(error, l->damage.first, sizeof l->damage.first);
        return;
    }
    pthread_mutex_lock(&l->mutex);
    if (l->status == STW_STATUS_OK && status != STW_STATUS_OK) {
        l->status = status;
        l->error = *error;
        pthread_cond_broadcast(&l->change);
    }
    pthread_mutex_unlock(&l->mutex);
}

static bool has_failed(loader *l) {
    pthread_mutex_lock(&l->mutex);
    const bool failed = l->status != STW_STATUS_OK;
    pthread_mutex_unlock(&l->mutex);
    return failed;
}

/* Any thread. */
static void read_one(const loader *l, const task *t, loaded *out) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = &out->error;
    const source *s = &l->sources[t->source];
    const rows r = {&l->c->markers[t->rank], &l->c->markers[t->rank].buckets[t->bucket], 0, 0, 0};
    out->error = (stw_error)STW_ERROR_INIT;
    out->memory = NULL;
    if (r.b->bytes > MOST_BUCKET)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, s->path, "found a bucket of %" PRIu64 " bytes",
                         r.b->bytes));
    if (posix_memalign(&out->memory, BLOCK, (size_t)memory_of(r) + 1) != 0) {
        out->memory = NULL;
        STW_TRY(no_memory(err));
    }
    STW_TRY(read_rows(s, r, out->memory, &out->hash, err));
out:
    out->status = status;
}

static void place_one(loader *l, const task *t, loaded *x) {
    const source *s = &l->sources[t->source];
    const rows r = {&l->c->markers[t->rank], &l->c->markers[t->rank].buckets[t->bucket], 0, 0, 0};
    pthread_mutex_lock(&l->placing);
    if (x->status == STW_STATUS_OK && x->hash != r.b->hash)
        x->status = damaged(l, t, x->hash, &x->error);
    for (int who = STW_LOAD_HERE; who <= STW_LOAD_HERE_TOO; who++)
        if (x->status == STW_STATUS_OK && !has_failed(l))
            x->status = place_rows(l, s, (stw_load_who)who, r, x->memory, &x->error);
    note(l, x->status, &x->error);
    l->damage.bytes += r.b->bytes;
    if (l->options->progress != NULL) l->options->progress(l->options->state, r.b->bytes);
    pthread_mutex_unlock(&l->placing);
    free(x->memory);
}

static void load_some(void *state, uint64_t first, uint64_t count) {
    loader *l = state;
    for (uint64_t i = first; i < first + count && !has_failed(l); i++) {
        loaded x;
        read_one(l, &l->tasks[i], &x);
        place_one(l, &l->tasks[i], &x);
    }
}

/* ---- reading ahead of a thread that places ---- */

/* Task i is read into slot i modulo AHEAD, once task i - AHEAD is placed. */
static void *read_ahead(void *state) {
    loader *l = state;
    (void)stw_locale_enter();
    pthread_mutex_lock(&l->mutex);
    while (l->status == STW_STATUS_OK && l->next < l->n_tasks) {
        const size_t i = l->next++;
        slot *x = &l->slots[i % AHEAD];
        while (l->status == STW_STATUS_OK && l->placed_tasks + AHEAD <= i)
            pthread_cond_wait(&l->change, &l->mutex);
        if (l->status != STW_STATUS_OK) break;
        pthread_mutex_unlock(&l->mutex);
        read_one(l, &l->tasks[i], &x->loaded);
        pthread_mutex_lock(&l->mutex);
        x->full = true;
        pthread_cond_broadcast(&l->change);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static void place_in_turn(loader *l) {
    for (size_t i = 0; i < l->n_tasks && !has_failed(l); i++) {
        slot *x = &l->slots[i % AHEAD];
        pthread_mutex_lock(&l->mutex);
        while (!x->full) pthread_cond_wait(&l->change, &l->mutex);
        pthread_mutex_unlock(&l->mutex);
        place_one(l, &l->tasks[i], &x->loaded);
        pthread_mutex_lock(&l->mutex);
        x->full = false;
        l->placed_tasks++;
        pthread_cond_broadcast(&l->change);
        pthread_mutex_unlock(&l->mutex);
    }
}

/* The calling thread places, others read. Without others it does both. */
static stw_status load_in_turn(loader *l, stw_error *err) {
    pthread_t threads[AHEAD_READERS];
    uint32_t n = 0;
    l->slots = stw_pool_array(l->pool, AHEAD, sizeof *l->slots);
    if (l->slots == NULL) return no_memory(err);
    while (n < AHEAD_READERS && pthread_create(&threads[n], NULL, read_ahead, l) == 0) n++;
    if (n > 0)
        place_in_turn(l);
    else
        load_some(l, 0, l->n_tasks);
    for (uint32_t i = 0; i < n; i++) (void)pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < AHEAD; i++)
        if (l->slots[i].full) free(l->slots[i].loaded.memory);
    return STW_STATUS_OK;
}

/* ---- all of it ---- */

static stw_status check_placed(const loader *l, stw_error *err) {
    uint64_t wanted = 0;
    for (uint64_t i = 0; i < l->options->n_needs; i++)
        if (l->options->needs[i].who != STW_LOAD_ANY_RANK) wanted += l->options->needs[i].bytes;
    if (wanted == l->placed) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DISAGREE, l->c->path,
                    "found %" PRIu64 " of the %" PRIu64
                    " bytes that this rank needs in what the markers list",
                    l->placed, wanted);
}

static stw_status load(loader *l, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_threads *threads = NULL;
    l->pool = stw_pool_new();
    if (l->pool == NULL) return no_memory(err);
    if (l->options->n_needs > 1)
        qsort(l->options->needs, (size_t)l->options->n_needs, sizeof *l->options->needs, compare);
    STW_TRY(find_tasks(l, err));
    STW_TRY(stw_plain_io_open(&l->io, err));
    for (uint32_t s = 0; s < l->n_sources; s++)
        STW_TRY(stw_plain_open(l->io, l->sources[s].path, false, &l->sources[s].file, err));
    if (l->options->one_thread) {
        STW_TRY(load_in_turn(l, err));
    } else {
        const uint32_t cores = stw_threads_cores();
        STW_TRY(stw_threads_new(cores < READERS ? cores : READERS, &threads, err));
        stw_threads_for(threads, l->n_tasks, 1, load_some, l);
    }
    status = l->status;
    if (status != STW_STATUS_OK && err != NULL) *err = l->error;
    if (status == STW_STATUS_OK) status = check_placed(l, err);
out:
    stw_threads_free(threads);
    for (uint32_t s = 0; s < l->n_sources; s++) stw_plain_close(l->sources[s].file);
    stw_plain_io_close(l->io);
    stw_pool_free(l->pool);
    return status;
}

static stw_status load_with(loader *l, stw_error *err) {
    pthread_mutex_init(&l->placing, NULL);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->change, NULL);
    const stw_status status = load(l, err);
    pthread_mutex_destroy(&l->placing);
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->change);
    return status;
}

stw_status stw_checkpoint_load(const stw_checkpoint *checkpoint, const stw_load_options *options,
                               stw_error *err) {
    loader l = {.c = checkpoint, .options = options};
    return load_with(&l, err);
}

stw_status stw_checkpoint_verify(const stw_checkpoint *checkpoint,
                                 void (*progress)(void *state, uint64_t bytes), void *state,
                                 stw_checkpoint_damage *out, stw_error *err) {
    const stw_load_options options = {.parts = 1, .progress = progress, .state = state};
    loader l = {.c = checkpoint, .options = &options, .verifies = true};
    const stw_status status = load_with(&l, err);
    *out = l.damage;
    return status;
}
