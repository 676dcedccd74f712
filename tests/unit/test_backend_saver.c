/* SPDX-License-Identifier: Apache-2.0 */
/* A step that changes state which a slow disk has not written yet: it waits, and less with more
 * buckets (checkpoint.copies). What is saved is the state of the moment at which the save began,
 * whatever the buckets' number and size. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/checkpoint/load.h"
#include "backend/checkpoint/save.h"
#include "backend/nvme/plain.h"
#include "backend/process.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#define BUCKET (64u << 10)
#define BUCKET_S 0.02 /* in which the disk writes one */

static const fixture_size size = {2, 64, 136, 515};

stw_status __real_stw_plain_write(stw_plain *file, uint64_t offset, const void *from,
                                  uint64_t bytes, stw_error *err);
stw_status __wrap_stw_plain_write(stw_plain *file, uint64_t offset, const void *from,
                                  uint64_t bytes, stw_error *err);
/* A disk that does one thing at a time, however many ask. */
static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;

stw_status __wrap_stw_plain_write(stw_plain *file, uint64_t offset, const void *from,
                                  uint64_t bytes, stw_error *err) {
    pthread_mutex_lock(&disk);
    (void)usleep((useconds_t)(1e6 * BUCKET_S * (double)bytes / BUCKET));
    pthread_mutex_unlock(&disk);
    return __real_stw_plain_write(file, offset, from, bytes, err);
}

/* ---- state ---- */

/* All entries of the files, one after the other in memory; the step comes to them by tensor: its
 * parameters, then its state. */
typedef struct state {
    stw_model *model;
    stw_saved_files *saved;
    unsigned char *memory;
    uint64_t bytes;
    uint32_t n; /* turns */
    stw_save_item *items;
    uint32_t n_items;
} state;

static unsigned char value_of(uint64_t at) { return (unsigned char)(at * 2654435761u >> 13); }

static state *state_new(void) {
    const stw_saved_options options = {
        .kinds = (1u << STW_N_SAVED) - 1,
        .dtypes = {STW_DTYPE_BF16, STW_DTYPE_F32, STW_DTYPE_F32, STW_DTYPE_BF16},
        .file_bytes = 300 << 10};
    state *s = calloc(1, sizeof *s);
    s->model = fixture_model(size);
    CHECK_OK(stw_saved_make(s->model, &options, &s->saved, err));
    s->items = calloc(s->saved->n_entries, sizeof *s->items);
    for (uint32_t t = 0; t < s->model->n_tensors; t++) {
        s->n++;
        for (uint32_t k = 0; k < STW_N_SAVED; k++) {
            uint32_t parts;
            const stw_saved_part *part = stw_saved_parts(s->saved, (stw_saved_kind)k, t, &parts);
            const stw_saved_entry *e = &s->saved->entries[part->entry];
            CU_ASSERT_EQUAL(parts, 1);
            s->items[s->n_items++] = (stw_save_item){.offset = e->offset,
                                                     .bytes = e->bytes,
                                                     .file = e->file,
                                                     .turn = s->n,
                                                     .at = s->bytes};
            s->bytes += e->bytes;
        }
    }
    CU_ASSERT_EQUAL(s->n_items, s->saved->n_entries);
    s->memory = malloc(s->bytes);
    return s;
}

static void state_free(state *s) {
    stw_saved_free(s->saved);
    stw_model_free(s->model);
    free(s->items);
    free(s->memory);
    free(s);
}

static stw_status read_item(void *of, const stw_save_item *item, uint64_t skip, void *to,
                            uint64_t bytes, stw_error *err) {
    const state *s = of;
    (void)err;
    memcpy(to, s->memory + item->at + skip, bytes);
    return STW_STATUS_OK;
}

typedef struct waiter {
    const state *state;
    stw_saver *saver;
} waiter;

static void *wait_for_all(void *of) {
    const waiter *w = of;
    stw_saver_wait(w->saver, w->state->n, 60);
    return NULL;
}

/* The next step, by several threads that wait at the same time: seconds from first to last. */
static double wait_together(const state *s, stw_saver *saver) {
    waiter w = {s, saver};
    pthread_t threads[4];
    const double begin_s = stw_process_now_s();
    for (int i = 0; i < 4; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, wait_for_all, &w), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return stw_process_now_s() - begin_s;
}

/* The next step: every turn's state becomes another one. */
static void step(state *s, stw_saver *saver) {
    uint32_t i = 0;
    for (uint32_t turn = 1; turn <= s->n; turn++) {
        stw_saver_wait(saver, turn, 60);
        for (; i < s->n_items && s->items[i].turn == turn; i++)
            memset(s->memory + s->items[i].at, 0xee, s->items[i].bytes);
    }
}

static void check_files(const state *s, const char *path) {
    stw_checkpoint *checkpoint = NULL;
    stw_checkpoint_damage damage;
    uint32_t wrong = 0;
    CHECK_OK(stw_checkpoint_open(path, &checkpoint, err));
    if (checkpoint == NULL) return;
    CHECK_OK(stw_checkpoint_verify(checkpoint, NULL, NULL, &damage, err));
    CU_ASSERT_EQUAL(damage.damaged, 0);
    for (uint32_t i = 0; i < s->n_items; i++) {
        char name[400];
        unsigned char *found = malloc(s->items[i].bytes);
        snprintf(name, sizeof name, "%s/%s", path, s->saved->files[s->items[i].file].name);
        FILE *file = fopen(name, "rb");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        fseek(file, (long)s->items[i].offset, SEEK_SET);
        CU_ASSERT_EQUAL(fread(found, 1, s->items[i].bytes, file), s->items[i].bytes);
        fclose(file);
        for (uint64_t b = 0; b < s->items[i].bytes; b++)
            wrong += found[b] != value_of(s->items[i].at + b);
        free(found);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    stw_checkpoint_close(checkpoint);
}

/* ---- saves ---- */

/* Save, with the next step right behind. The first n_now items are read at once.
 * @param begin_s seconds of the begin; NULL: not wanted
 * @param together_s wait_together is the step, and takes this long; NULL: one thread steps
 * @return seconds that the step waited */
static double stall_of(state *s, uint64_t copies_bytes, uint32_t n_now, double *begin_s,
                       double *together_s) {
    const stw_saver_options options = {
        .saved = s->saved, .world = 1, .bucket_bytes = BUCKET, .copies_bytes = copies_bytes};
    stw_pool *pool = stw_pool_new();
    stw_saver *saver = NULL;
    stw_saver_result result = {0};
    stw_save_text texts[STW_SAVE_TEXTS];
    stw_save_head head = {.folder = "saver",
                          .keep = 1,
                          .texts = texts,
                          .items = s->items,
                          .n_items = s->n_items,
                          .n_now = n_now,
                          .read = read_item,
                          .state = s};
    CHECK_OK(stw_saver_new(&options, &saver, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(saver);
    CU_ASSERT_EQUAL(stw_saver_buckets(saver), 2 + (copies_bytes + BUCKET - 1) / BUCKET);
    for (uint64_t save = 1; save <= 2; save++) { /* the second one uses the buckets again */
        stw_manifest manifest = {.pool = pool, .save = save, .step = save, .world = 1};
        manifest.model = s->model->name;
        manifest.sample = "";
        head.step = head.save = save;
        for (uint64_t b = 0; b < s->bytes; b++) s->memory[b] = value_of(b);
        CHECK_OK(stw_save_texts(pool, &manifest, s->saved, NULL, texts, &head.n_texts, err));
        CHECK_OK(stw_saver_begin(saver, &head, err));
        if (together_s != NULL)
            *together_s = wait_together(s, saver);
        else
            step(s, saver);
        CHECK_OK(stw_saver_finish(saver, &result, err));
        CU_ASSERT_TRUE(result.published);
        check_files(s, save == 1 ? "saver/step-00000001" : "saver/step-00000002");
    }
    if (begin_s != NULL) *begin_s = result.begin_s;
    stw_saver_free(saver);
    CHECK_OK(stw_checkpoint_remove("saver/step-00000002", err));
    stw_pool_free(pool);
    return result.stall_s;
}

static void copies_shorten_the_stall(void) {
    state *s = state_new();
    const uint64_t buckets = s->bytes / BUCKET;
    const double none_s = stall_of(s, 0, 0, NULL, NULL);
    const double some_s = stall_of(s, 8 * BUCKET, 0, NULL, NULL);
    const double all_s = stall_of(s, 2 * s->bytes, 0, NULL, NULL);
    CU_ASSERT_TRUE_FATAL(buckets >= 20);
    printf("%u buckets: the step waits %.3f s, %.3f s with 8 copies, %.3f s with all ... ",
           (unsigned)buckets, none_s, some_s, all_s);
    /* all but two, or ten, of the buckets are written before the step has the last one */
    CU_ASSERT_TRUE(none_s > 0.9 * BUCKET_S * (double)(buckets - 2));
    CU_ASSERT_TRUE(some_s > 0.9 * BUCKET_S * (double)(buckets - 10));
    CU_ASSERT_TRUE(some_s < none_s);
    CU_ASSERT_TRUE(all_s < none_s / 2);
    state_free(s);
}

/* The same of what is read before the save's begin returns. */
static void copies_shorten_the_begin(void) {
    state *s = state_new();
    double none_s, all_s;
    (void)stall_of(s, 0, s->n_items, &none_s, NULL);
    (void)stall_of(s, 2 * s->bytes, s->n_items, &all_s, NULL);
    CU_ASSERT_TRUE(none_s > 0.9 * BUCKET_S * (double)(s->bytes / BUCKET - 2));
    CU_ASSERT_TRUE(all_s < none_s / 2);
    (void)stall_of(s, BUCKET, s->n_items / 2, NULL, NULL);
    state_free(s);
}

static void what_waits_together_counts_once(void) {
    state *s = state_new();
    double together_s;
    const double stall_s = stall_of(s, 0, 0, NULL, &together_s);
    CU_ASSERT_TRUE(stall_s <= together_s);
    CU_ASSERT_TRUE(stall_s > 0.9 * BUCKET_S * (double)(s->bytes / BUCKET - 2));
    state_free(s);
}

STW_TEST_MAIN("backend saver", {"copies shorten the stall", copies_shorten_the_stall},
              {"copies shorten the begin", copies_shorten_the_begin},
              {"what waits together counts once", what_waits_together_counts_once})
