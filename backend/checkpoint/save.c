/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "backend/checkpoint/save.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "backend/nvme/names.h"
#include "backend/nvme/plain.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/locale.h"
#include "core/units.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define BLOCK STW_PLAIN_BLOCK_BYTES
/* A bucket is filled and written part by part, and all parts but one may be on their way: the disk
 * has requests while a part is filled. Measured in bench/results/2026-11-29-muon-saves. */
#define PARTS 4u
#define WRITERS 7u
#define NO_FILE UINT32_MAX

/* Bytes of a file, somewhere in a part's memory. */
typedef struct piece {
    uint32_t file;
    uint64_t offset, bytes, at;
} piece;

/* Of a bucket. */
typedef struct part {
    unsigned char *memory; /* of the bucket */
    uint64_t used;
    uint32_t n;
    size_t room;
    piece *pieces;
    bool full, taken; /* taken: a writer has it */
} part;

struct stw_saver {
    stw_saver_options options;
    stw_save_head head; /* of the save */
    stw_plain_io *io;
    uint32_t n_buckets, n_parts; /* n_parts: of all buckets */
    uint64_t part_bytes;
    unsigned char **memories; /* [n_buckets] */
    part *parts;              /* [n_parts]; they take turns */
    stw_plain **files;        /* [n_files] opened by writers, under `opening` */
    pthread_mutex_t opening;
    /* of a save */
    bool begun, reading; /* reading: there is a reader */
    pthread_t reader, writers[WRITERS];
    uint32_t n_writers;
    stw_pool *pool;
    stw_marker marker;
    stw_partial partial;
    stw_save_text *texts;
    uint32_t n_texts;
    uint32_t next; /* item, and bytes of it, that are read next */
    uint64_t done;
    uint32_t filling;   /* which part is filled next */
    XXH3_state_t *hash; /* of the marker's last bucket, until all of its bytes are filled in */
    uint32_t hashed;    /* its file */
    double start_s;
    pthread_mutex_t mutex; /* of what follows, of part.full and part.taken */
    pthread_cond_t change;
    double waited_s, waiting_since_s; /* steps; since the first of those that wait now */
    uint32_t waiting;                 /* calls of stw_saver_wait */
    uint32_t writing;                 /* which part is written next */
    uint32_t at_work;                 /* writers that have not ended */
    uint32_t turn;                    /* of the item that is read next; UINT32_MAX: none is left */
    bool read, finished;              /* all items are; and written, or given up */
    bool marked;       /* this rank's marker is written: what is there may be whole */
    stw_status status; /* the first failure */
    stw_error error;
    stw_saver_result result;
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
}

/* The first failure ends the save. */
static void note(stw_saver *s, stw_status status, const stw_error *error) {
    pthread_mutex_lock(&s->mutex);
    if (s->status == STW_STATUS_OK && status != STW_STATUS_OK) {
        s->status = status;
        s->error = *error;
    }
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->mutex);
}

static bool has_failed(stw_saver *s) {
    pthread_mutex_lock(&s->mutex);
    const bool failed = s->status != STW_STATUS_OK;
    pthread_mutex_unlock(&s->mutex);
    return failed;
}

/* ---- filling ---- */

static stw_status add_piece(part *b, const piece *p, stw_error *err) {
    if (b->n == b->room) {
        const size_t room = b->room * 2 + 64;
        piece *grown = realloc(b->pieces, room * sizeof *grown);
        if (grown == NULL) return no_memory(err);
        b->pieces = grown;
        b->room = room;
    }
    b->pieces[b->n++] = *p;
    return STW_STATUS_OK;
}

static piece *last_piece(const part *b) { return b->n > 0 ? &b->pieces[b->n - 1] : NULL; }

/* Does a byte of a file follow the last one? */
static bool follows(const piece *last, uint32_t file, uint64_t offset) {
    return last != NULL && last->file == file && last->offset + last->bytes == offset;
}

/* Where in the part a byte of a file goes: as it lies in the file, modulo a block. */
static uint64_t place_of(const part *b, uint32_t file, uint64_t offset) {
    if (follows(last_piece(b), file, offset)) return b->used;
    const uint64_t at = b->used / BLOCK * BLOCK + offset % BLOCK;
    return at >= b->used ? at : at + BLOCK;
}

static void end_hash(stw_saver *s) {
    if (s->hashed != NO_FILE)
        s->marker.buckets[s->marker.n_buckets - 1].hash = XXH3_64bits_digest(s->hash);
    s->hashed = NO_FILE;
}

/* These bytes of an item are in memory. The marker has a bucket for each file of a bucket. */
static stw_status mark_item(stw_saver *s, const stw_save_item *item, const void *data,
                            uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (s->hashed != item->file) {
        end_hash(s);
        STW_TRY(stw_marker_begin(&s->marker, s->options.saved->files[item->file].name, err));
        XXH3_64bits_reset(s->hash);
        s->hashed = item->file;
    }
    STW_TRY(stw_marker_add(&s->marker, item->offset + s->done, bytes, err));
    XXH3_64bits_update(s->hash, data, bytes);
out:
    return status;
}

/* As much of the next item as the part has room for. *full: it has none. */
static stw_status fill_item(stw_saver *s, part *b, bool *full, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_save_item *item = &s->head.items[s->next];
    const uint64_t offset = item->offset + s->done, room = s->part_bytes;
    const uint64_t at = place_of(b, item->file, offset);
    *full = at >= room;
    if (*full) return status;
    const uint64_t bytes = stw_min_u64(item->bytes - s->done, room - at);
    piece *last = last_piece(b);
    STW_TRY(s->head.read(s->head.state, item, s->done, b->memory + at, bytes, err));
    STW_TRY(mark_item(s, item, b->memory + at, bytes, err));
    if (follows(last, item->file, offset))
        last->bytes += bytes;
    else
        STW_TRY(add_piece(b, &(piece){item->file, offset, bytes, at}, err));
    b->used = at + bytes;
    s->done += bytes;
    if (s->done == item->bytes) {
        s->next++;
        s->done = 0;
    }
    *full = b->used >= room;
out:
    return status;
}

/* The next part, once it is empty; NULL where the save has failed. */
static part *take_empty(stw_saver *s) {
    part *b = &s->parts[s->filling];
    pthread_mutex_lock(&s->mutex);
    while (b->full && s->status == STW_STATUS_OK) pthread_cond_wait(&s->change, &s->mutex);
    const bool failed = s->status != STW_STATUS_OK;
    pthread_mutex_unlock(&s->mutex);
    if (failed) return NULL;
    if (s->filling % (s->n_parts / s->n_buckets) == 0) end_hash(s); /* a bucket begins */
    s->filling = (s->filling + 1) % s->n_parts;
    b->n = 0;
    b->used = 0;
    return b;
}

/* Items up to `end`. */
static stw_status fill_until(stw_saver *s, uint32_t end, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    part *b;
    while (s->next < end && (b = take_empty(s)) != NULL) {
        bool full = false;
        while (s->next < end && !full) STW_TRY(fill_item(s, b, &full, err));
        pthread_mutex_lock(&s->mutex);
        b->full = true;
        s->turn = s->next < s->head.n_items ? s->head.items[s->next].turn : UINT32_MAX;
        pthread_cond_broadcast(&s->change);
        pthread_mutex_unlock(&s->mutex);
    }
    end_hash(s);
out:
    return status;
}

static void end_reading(stw_saver *s, stw_status status, const stw_error *error) {
    note(s, status, error);
    pthread_mutex_lock(&s->mutex);
    s->read = true;
    s->turn = UINT32_MAX;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->mutex);
}

static void *read_rest(void *state) {
    stw_saver *s = state;
    (void)stw_locale_enter();
    stw_error error = STW_ERROR_INIT;
    const stw_status status = fill_until(s, s->head.n_items, &error);
    end_reading(s, status, &error);
    return NULL;
}

/* ---- writing ---- */

/* @param out of the saver, which closes it */
static stw_status open_file(stw_saver *s, uint32_t file, stw_plain **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char path[STW_CHECKPOINT_PATH + 64];
    const stw_saved_file *of = &s->options.saved->files[file];
    pthread_mutex_lock(&s->opening);
    if (s->files[file] == NULL) {
        snprintf(path, sizeof path, "%s/%s", s->partial.path, of->name);
        STW_TRY(stw_plain_open(s->io, path, true, &s->files[file], err));
        STW_TRY(stw_plain_extend(s->files[file], of->bytes, err));
    }
    *out = s->files[file];
out:
    pthread_mutex_unlock(&s->opening);
    return status;
}

static stw_status write_part(stw_saver *s, const part *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plain *file = NULL;
    for (uint32_t i = 0; i < b->n; i++) {
        const piece *p = &b->pieces[i];
        STW_TRY(open_file(s, p->file, &file, err));
        STW_TRY(stw_plain_write(file, p->offset, b->memory + p->at, p->bytes, err));
    }
out:
    return status;
}

static uint64_t bytes_of(const part *b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->n; i++) bytes += b->pieces[i].bytes;
    return bytes;
}

/* Is there a part to write? They are filled in turn: behind one that is not, none is. */
static bool has_full(const stw_saver *s) {
    const part *b = &s->parts[s->writing];
    return b->full && !b->taken;
}

/* The next full part; NULL where none comes any more. */
static part *take_full(stw_saver *s) {
    part *b = NULL;
    pthread_mutex_lock(&s->mutex);
    while (!has_full(s) && !s->read && s->status == STW_STATUS_OK)
        pthread_cond_wait(&s->change, &s->mutex);
    if (has_full(s) && s->status == STW_STATUS_OK) {
        b = &s->parts[s->writing];
        b->taken = true;
        s->writing = (s->writing + 1) % s->n_parts;
    }
    pthread_mutex_unlock(&s->mutex);
    return b;
}

static stw_status write_parts(stw_saver *s, stw_error *err) {
    for (part *b = take_full(s); b != NULL; b = take_full(s)) {
        const stw_status status = write_part(s, b, err);
        if (status != STW_STATUS_OK) return status;
        pthread_mutex_lock(&s->mutex);
        s->result.bytes += bytes_of(b);
        b->full = b->taken = false;
        pthread_cond_broadcast(&s->change);
        pthread_mutex_unlock(&s->mutex);
    }
    return STW_STATUS_OK;
}

/* A whole range of memory as a bucket of its own. */
static stw_status mark(stw_saver *s, const char *file, const void *data, uint64_t bytes,
                       stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_marker_begin(&s->marker, file, err));
    STW_TRY(stw_marker_add(&s->marker, 0, bytes, err));
    s->marker.buckets[s->marker.n_buckets - 1].hash = XXH3_64bits(data, bytes);
    s->result.bytes += bytes;
out:
    return status;
}

/* What rank 0 writes besides its share. */
static stw_status write_head(stw_saver *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char path[STW_CHECKPOINT_PATH + 64];
    const stw_saved_files *saved = s->options.saved;
    stw_plain *to = NULL;
    for (uint32_t f = 0; f < saved->n_files; f++) {
        const stw_saved_file *file = &saved->files[f];
        STW_TRY(open_file(s, f, &to, err));
        STW_TRY(stw_plain_write(to, 0, file->header, file->header_bytes, err));
        STW_TRY(mark(s, file->name, file->header, file->header_bytes, err));
    }
    for (uint32_t i = 0; i < s->n_texts; i++) {
        const stw_save_text *t = &s->texts[i];
        snprintf(path, sizeof path, "%s/%s", s->partial.path, t->name);
        STW_TRY(stw_file_write(path, t->data, t->bytes, err));
        STW_TRY(mark(s, t->name, t->data, t->bytes, err));
    }
out:
    return status;
}

/* All that this rank writes is on the disk before its marker says so. */
static stw_status complete(stw_saver *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    char path[STW_CHECKPOINT_PATH + 64], name[32];
    if (s->options.rank == 0) STW_TRY(write_head(s, err));
    for (uint32_t f = 0; f < s->options.saved->n_files; f++)
        if (s->files[f] != NULL) STW_TRY(stw_plain_sync(s->files[f], err));
    stw_nvme_folder_sync(s->partial.path);
    STW_TRY(stw_marker_write(&s->marker, &text, err));
    stw_marker_name(s->options.rank, name);
    snprintf(path, sizeof path, "%s/%s", s->partial.path, name);
    STW_TRY(stw_file_write(path, text.data, text.length, err));
    s->marked = true;
    STW_TRY(stw_partial_publish(&s->partial, s->head.keep, &s->result.published, err));
out:
    stw_text_free(&text);
    return status;
}

static uint64_t own_bytes(const stw_saver *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->head.n_items; i++) bytes += s->head.items[i].bytes;
    return bytes;
}

/* A full disk: how much is missing. A folder that is gone: another rank has given up. */
static void explain(const stw_saver *s, stw_status status, stw_error *error) {
    struct statvfs room;
    char found[32], expected[32];
    const size_t used = strlen(error->text);
    if (error->native == ENOENT && !stw_file_is_folder(s->partial.path)) {
        snprintf(error->text, sizeof error->text, "another rank has given up this save");
    } else if (status == STW_STATUS_NO_RESOURCES && statvfs(s->head.folder, &room) == 0) {
        stw_bytes_format((uint64_t)room.f_bavail * room.f_frsize, found, sizeof found);
        stw_bytes_format(own_bytes(s) - stw_min_u64(own_bytes(s), s->result.bytes), expected,
                         sizeof expected);
        snprintf(error->text + used, sizeof error->text - used,
                 "; found %s free, expected %s for the rest of rank %u", found, expected,
                 s->options.rank);
    }
}

static void fail(stw_saver *s, stw_status status, stw_error *error) {
    if (status == STW_STATUS_OK) return;
    pthread_mutex_lock(&s->mutex);
    explain(s, status, error);
    pthread_mutex_unlock(&s->mutex);
    note(s, status, error);
}

/* By the last writer. */
static void end_writing(stw_saver *s) {
    stw_error error = STW_ERROR_INIT;
    if (!has_failed(s)) fail(s, complete(s, &error), &error);
    for (uint32_t f = 0; f < s->options.saved->n_files; f++) {
        stw_plain_close(s->files[f]);
        s->files[f] = NULL;
    }
    if (has_failed(s) && !s->marked) stw_partial_drop(&s->partial);
    pthread_mutex_lock(&s->mutex);
    s->finished = true;
    s->result.seconds = stw_process_now_s() - s->start_s;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->mutex);
}

static void *write_all(void *state) {
    stw_saver *s = state;
    (void)stw_locale_enter();
    stw_error error = STW_ERROR_INIT;
    fail(s, write_parts(s, &error), &error);
    pthread_mutex_lock(&s->mutex);
    const bool last = --s->at_work == 0;
    pthread_mutex_unlock(&s->mutex);
    if (last) end_writing(s);
    return NULL;
}

/* ---- saves ---- */

static stw_status take_texts(stw_saver *s, const stw_save_head *head, stw_error *err) {
    s->n_texts = head->n_texts;
    s->texts = stw_pool_array(s->pool, (size_t)head->n_texts + 1, sizeof *s->texts);
    if (s->texts == NULL) return no_memory(err);
    for (uint32_t i = 0; i < head->n_texts; i++) {
        const stw_save_text *t = &head->texts[i];
        void *data = stw_pool_alloc(s->pool, (size_t)t->bytes);
        const char *name = stw_pool_string(s->pool, t->name);
        if (data == NULL || name == NULL) return no_memory(err);
        memcpy(data, t->data, (size_t)t->bytes);
        s->texts[i] = (stw_save_text){name, data, t->bytes};
    }
    return STW_STATUS_OK;
}

static stw_status prepare(stw_saver *s, const stw_save_head *head, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool_free(s->pool);
    s->pool = stw_pool_new();
    if (s->pool == NULL) return no_memory(err);
    s->head = *head;
    s->status = STW_STATUS_OK;
    s->error = (stw_error)STW_ERROR_INIT;
    s->next = 0;
    s->done = 0;
    s->filling = 0;
    s->hashed = NO_FILE;
    s->waited_s = 0;
    s->writing = s->at_work = s->n_writers = 0;
    s->read = s->finished = s->marked = false;
    for (uint32_t b = 0; b < s->n_parts; b++) s->parts[b].full = s->parts[b].taken = false;
    s->result = (stw_saver_result){.step = head->step};
    s->start_s = stw_process_now_s();
    s->partial = (stw_partial){.folder = s->head.folder,
                               .step = head->step,
                               .save = head->save,
                               .world = s->options.world};
    stw_marker_init(&s->marker, s->pool);
    s->marker.save = head->save;
    s->marker.step = head->step;
    s->marker.rank = s->options.rank;
    s->marker.world = s->options.world;
    STW_TRY(take_texts(s, head, err));
    STW_TRY(stw_partial_make(&s->partial, err));
    pthread_mutex_lock(&s->mutex);
    s->turn = s->head.n_items > 0 ? 0 : UINT32_MAX;
    pthread_mutex_unlock(&s->mutex);
out:
    return status;
}

static stw_status no_thread(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_RESOURCES, "checkpoint", "no thread can be started");
}

/* One writer does. None ends before something is read. */
static stw_status start_writers(stw_saver *s, stw_error *err) {
    while (s->n_writers < WRITERS) {
        pthread_mutex_lock(&s->mutex);
        s->at_work++;
        pthread_mutex_unlock(&s->mutex);
        if (pthread_create(&s->writers[s->n_writers], NULL, write_all, s) != 0) {
            pthread_mutex_lock(&s->mutex);
            s->at_work--;
            pthread_mutex_unlock(&s->mutex);
            return s->n_writers > 0 ? STW_STATUS_OK : no_thread(err);
        }
        s->n_writers++;
    }
    return STW_STATUS_OK;
}

stw_status stw_saver_begin(stw_saver *s, const stw_save_head *head, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_error error = STW_ERROR_INIT;
    s->reading = false;
    STW_TRY(prepare(s, head, err));
    STW_TRY(start_writers(s, err));
    s->begun = true;
    status = fill_until(s, s->head.n_now, &error);
    if (status == STW_STATUS_OK && s->head.n_now < s->head.n_items) {
        s->reading = pthread_create(&s->reader, NULL, read_rest, s) == 0;
        if (!s->reading) status = no_thread(&error);
    }
    if (!s->reading) end_reading(s, status, &error);
    status = STW_STATUS_OK; /* stw_saver_finish tells it */
    s->result.begin_s = stw_process_now_s() - s->start_s;
out:
    return status;
}

static bool must_wait(const stw_saver *s, uint32_t turn) {
    return s->turn <= turn && s->turn != UINT32_MAX && s->status == STW_STATUS_OK;
}

void stw_saver_wait(stw_saver *s, uint32_t turn, double most_s) {
    pthread_mutex_lock(&s->mutex);
    if (must_wait(s, turn)) {
        double now_s = stw_process_now_s();
        struct timespec until;
        if (s->waiting++ == 0) s->waiting_since_s = now_s;
        while (must_wait(s, turn)) {
            (void)clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 1;
            (void)pthread_cond_timedwait(&s->change, &s->mutex, &until);
            now_s = stw_process_now_s();
            const double waited_s = s->waited_s + (now_s - s->waiting_since_s);
            if (waited_s < most_s || s->status != STW_STATUS_OK) continue;
            s->status = stw_fail(&s->error, STW_STATUS_IO, s->head.folder,
                                 "found a step that has waited %.0f s for the disk, expected fewer "
                                 "than %.0f s: this save is given up",
                                 waited_s, most_s);
        }
        if (--s->waiting == 0) s->waited_s += now_s - s->waiting_since_s;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->mutex);
}

bool stw_saver_is_busy(stw_saver *s) {
    pthread_mutex_lock(&s->mutex);
    const bool busy = s->begun && !s->finished;
    pthread_mutex_unlock(&s->mutex);
    return busy;
}

static void join(stw_saver *s) {
    if (!s->begun) return;
    if (s->reading) (void)pthread_join(s->reader, NULL);
    for (uint32_t i = 0; i < s->n_writers; i++) (void)pthread_join(s->writers[i], NULL);
    s->begun = false;
}

stw_status stw_saver_finish(stw_saver *s, stw_saver_result *out, stw_error *err) {
    if (out != NULL) *out = (stw_saver_result){0};
    if (!s->begun) return STW_STATUS_OK;
    join(s);
    s->result.stall_s = s->waited_s;
    if (out != NULL) *out = s->result;
    if (s->status != STW_STATUS_OK && err != NULL) *err = s->error;
    return s->status;
}

/* Buckets into parts of whole blocks. */
static stw_status cut(stw_saver *s, stw_error *err) {
    const uint64_t blocks = s->options.bucket_bytes / BLOCK;
    const uint32_t of_bucket = (uint32_t)stw_min_u64(PARTS, blocks);
    s->n_parts = of_bucket * s->n_buckets;
    s->part_bytes = blocks / of_bucket * BLOCK;
    s->parts = calloc(s->n_parts, sizeof *s->parts);
    if (s->parts == NULL) return no_memory(err);
    for (uint32_t p = 0; p < s->n_parts; p++)
        s->parts[p].memory = s->memories[p / of_bucket] + p % of_bucket * s->part_bytes;
    return STW_STATUS_OK;
}

stw_status stw_saver_new(const stw_saver_options *options, stw_saver **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_saver *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) return no_memory(err);
    s->options = *options;
    if (options->bucket_bytes == 0) s->options.bucket_bytes = STW_SAVE_BUCKET_BYTES;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_mutex_init(&s->opening, NULL);
    pthread_cond_init(&s->change, NULL);
    s->turn = UINT32_MAX;
    s->files = calloc((size_t)options->saved->n_files + 1, sizeof *s->files);
    s->n_buckets = stw_save_buckets(s->options.bucket_bytes, options->copies_bytes);
    s->memories = calloc(s->n_buckets, sizeof *s->memories);
    s->hash = XXH3_createState();
    if (s->files == NULL || s->memories == NULL || s->hash == NULL) STW_TRY(no_memory(err));
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        void *memory = NULL;
        if (posix_memalign(&memory, BLOCK, (size_t)s->options.bucket_bytes) != 0)
            STW_TRY(no_memory(err));
        s->memories[b] = memory;
    }
    STW_TRY(cut(s, err));
    STW_TRY(stw_plain_io_open(&s->io, err));
    *out = s;
    s = NULL;
out:
    stw_saver_free(s);
    return status;
}

uint32_t stw_saver_buckets(const stw_saver *s) { return s->n_buckets; }

void *stw_saver_bucket(const stw_saver *s, uint32_t number, uint64_t *bytes) {
    *bytes = s->options.bucket_bytes;
    return s->memories[number];
}

void stw_saver_free(stw_saver *s) {
    if (s == NULL) return;
    join(s);
    for (uint32_t b = 0; s->memories != NULL && b < s->n_buckets; b++) free(s->memories[b]);
    for (uint32_t p = 0; s->parts != NULL && p < s->n_parts; p++) free(s->parts[p].pieces);
    free(s->memories);
    free(s->parts);
    XXH3_freeState(s->hash);
    free(s->files);
    stw_plain_io_close(s->io);
    stw_pool_free(s->pool);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->opening);
    pthread_cond_destroy(&s->change);
    free(s);
}
