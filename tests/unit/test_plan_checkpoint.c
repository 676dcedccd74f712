/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes which bytes of a checkpoint: of every file every byte is written once, with the value
 * that belongs there, whatever the ranks hold; and quickly. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdlib.h>
#include <time.h>

#include "backend/element.h"
#include "engines/save_plan.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* ---- every byte once ---- */

typedef struct extent {
    uint32_t file;
    uint64_t offset, bytes;
} extent;

typedef struct extents {
    const stw_saved_files *saved;
    extent *list;
    size_t n, room;
} extents;

static void add(extents *x, uint32_t file, uint64_t offset, uint64_t bytes) {
    if (x->n == x->room) {
        x->room = x->room * 2 + 1024;
        x->list = realloc(x->list, x->room * sizeof *x->list);
        CU_ASSERT_PTR_NOT_NULL_FATAL(x->list);
    }
    x->list[x->n++] = (extent){file, offset, bytes};
}

static stw_status add_row(void *state, const stw_saved_row *row, stw_error *err) {
    extents *x = state;
    (void)err;
    add(x, x->saved->entries[row->entry].file, row->offset, row->bytes);
    return STW_STATUS_OK;
}

static int compare(const void *a, const void *b) {
    const extent *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void add_shares(extents *x, const stw_shares *shares) {
    for (uint32_t r = 0; r < shares->world; r++) {
        const size_t before = x->n;
        uint64_t bytes = 0;
        for (uint32_t i = shares->first[r]; i < shares->first[r + 1]; i++)
            for (uint32_t k = 0; k < STW_N_SAVED; k++) {
                const stw_share *s = &shares->shares[i];
                if ((s->kinds & 1u << k) == 0) continue;
                const stw_saved_source source =
                    stw_saved_in_tensor(x->saved, (stw_saved_kind)k, s->tensor, &s->box);
                CHECK_OK(stw_saved_rows(x->saved, &source, add_row, x, err));
            }
        for (size_t i = before; i < x->n; i++) bytes += x->list[i].bytes;
        CU_ASSERT_EQUAL(bytes, shares->bytes[r]);
    }
}

/* With the headers every byte of every file is there once. */
static void every_byte_once(extents *x) {
    uint64_t file_end = 0;
    uint32_t wrong = 0;
    for (uint32_t f = 0; f < x->saved->n_files; f++) add(x, f, 0, x->saved->files[f].header_bytes);
    qsort(x->list, x->n, sizeof *x->list, compare);
    for (size_t i = 0; i < x->n; i++) {
        if (i == 0 || x->list[i].file != x->list[i - 1].file) file_end = 0;
        wrong += x->list[i].offset != file_end;
        file_end += x->list[i].bytes;
        if (i + 1 == x->n || x->list[i + 1].file != x->list[i].file)
            wrong += file_end != x->saved->files[x->list[i].file].bytes;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    free(x->list);
}

static double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Every rank finds its part from those with which it divides; together these are everything. The
 * planner's figures are the same, of every rank. */
static void job_is_saved(const char *model, const char *const *settings, double most) {
    stw_plan *plan = case_zoo(model, settings);
    const stw_job *job = plan->job;
    const stw_save_plan *planned = NULL;
    stw_pool *pool = stw_pool_new();
    stw_saved_files *saved = NULL;
    uint64_t largest = 0, all = 0;
    uint32_t ranks = 0, wrong = 0;
    const double begin = now_s();
    CHECK_OK(stw_save_plan_of(job, &planned, err));
    CHECK_OK(stw_job_saved(job, &saved, err));
    CU_ASSERT_TRUE_FATAL(planned != NULL && saved != NULL);
    extents x = {.saved = saved};
    for (uint32_t r = 0; r < job->world; r++) {
        stw_job_shares of;
        if (job->engine->representative(job, r) != r) continue;
        CHECK_OK(stw_job_share(job, saved, r, pool, &of, err));
        CU_ASSERT_EQUAL(of.ranks[of.own], r);
        add_shares(&x, &of.shares);
        for (uint32_t i = 0; i < of.n; i++) {
            const uint64_t headers = of.ranks[i] == 0 ? planned->header_bytes : 0;
            wrong += planned->rank_bytes[of.ranks[i]] != of.shares.bytes[i] + headers;
            largest = stw_max_u64(largest, of.shares.bytes[i]);
            all += of.shares.bytes[i];
            ranks++;
        }
    }
    CU_ASSERT(now_s() - begin < 2.0);
    CU_ASSERT_EQUAL(ranks, job->world);
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(planned->bytes, all + planned->header_bytes);
    CU_ASSERT_EQUAL(planned->n_files, saved->n_files);
    for (uint32_t k = 0; k < job->n_kinds; k++)
        CU_ASSERT_EQUAL(planned->kinds[k].bytes, planned->rank_bytes[planned->kinds[k].rank]);
    every_byte_once(&x);
    CU_ASSERT((double)largest * job->world / (double)all <= most);
    stw_saved_free(saved);
    stw_pool_free(pool);
    stw_plan_free(plan);
}

static void ranks_of_a_job(void) {
    job_is_saved("Qwen3-0.6B", (const char *[]){"nodes=1", "node.gpus=1", NULL}, 1.001);
    job_is_saved("Qwen3-0.6B",
                 (const char *[]){"nodes=1", "node.gpus=7", "precision.params=bf16",
                                  "precision.master=fp32", NULL},
                 1.01);
    job_is_saved("Qwen3-30B-A3B",
                 (const char *[]){"nodes=4", "node.gpus=8", "parallel.ep=8",
                                  "precision.params=bf16", "precision.master=fp32",
                                  "precision.exp_avg=bf16", NULL},
                 1.01);
}

/* Replicas divide the work. */
static void replicas_of_a_job(void) {
    job_is_saved("Qwen3-0.6B",
                 (const char *[]){"nodes=4", "node.gpus=8", "parallel.dp_replicate=8", NULL}, 1.1);
    job_is_saved("Qwen3-30B-A3B",
                 (const char *[]){"nodes=3", "node.gpus=4", "parallel.dp_replicate=3",
                                  "parallel.ep=4", "placement.params=host", NULL},
                 1.1);
    job_is_saved("Qwen3-0.6B",
                 (const char *[]){"engine=fsdp2", "optimizer.implementation=stowage", "nodes=2",
                                  "node.gpus=6", "parallel.dp_replicate=4",
                                  "checkpoint.contents=[model]", "checkpoint.every=1", NULL},
                 1.3);
}

/* Thousands of ranks: planned from a few of them. */
static void many_ranks(void) {
    static const char *const replicas[] = {"1", "1024", NULL};
    for (int i = 0; replicas[i] != NULL; i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "parallel.dp_replicate=%s", replicas[i]);
        stw_plan *plan =
            case_zoo("Qwen3-30B-A3B", (const char *[]){"nodes=1024", "node.gpus=8", setting, NULL});
        const stw_save_plan *planned = NULL;
        uint64_t all = 0;
        const double begin = now_s();
        CHECK_OK(stw_save_plan_of(plan->job, &planned, err));
        CU_ASSERT(now_s() - begin < 2.0);
        CU_ASSERT_TRUE_FATAL(planned != NULL);
        for (uint32_t r = 0; r < plan->job->world; r++) all += planned->rank_bytes[r];
        CU_ASSERT_EQUAL(all, planned->bytes);
        stw_plan_free(plan);
    }
}

/* ---- values, whatever ranks hold ---- */

enum { RANKS = 5, TENSORS = 7, MOST = 4096 };

typedef struct values {
    const stw_saved_files *saved;
    unsigned char *files[64];
    uint32_t kind, tensor;
    const uint32_t *memory; /* of the piece at hand */
} values;

static uint32_t value_of(uint32_t kind, uint32_t tensor, uint64_t element) {
    return (uint32_t)stw_mix64(element * 64 + tensor * 4 + kind);
}

static stw_status write_row(void *state, const stw_saved_row *row, stw_error *err) {
    values *v = state;
    (void)err;
    unsigned char *to = v->files[v->saved->entries[row->entry].file] + row->offset;
    for (uint64_t i = 0; i < row->n; i++) {
        const uint64_t width = row->bytes / row->n;
        memcpy(to + i * width, &v->memory[row->first + i], width);
    }
    return STW_STATUS_OK;
}

/* A piece as its rank has it: rows with a gap. @return elements of memory */
static uint64_t lay(const stw_held *h, const uint64_t *shape, uint32_t kind, uint32_t *memory,
                    stw_saved_source *source) {
    uint64_t step = 1, at[STW_BOX_DIMS];
    *source = (stw_saved_source){
        .kind = (stw_saved_kind)kind, .tensor = h->tensor, .box = h->box, .first = 3};
    for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
        source->stride[d] = step;
        step = step * h->box.count[d] + (d == 2 ? 1 : 0);
    }
    const uint64_t n = stw_box_volume(&h->box);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t rest = i, place = source->first, element = 0;
        for (int d = STW_BOX_DIMS - 1; d >= 0; d--) {
            at[d] = rest % h->box.count[d];
            rest /= h->box.count[d];
            place += at[d] * source->stride[d];
        }
        for (int d = 0; d < STW_BOX_DIMS; d++)
            element = element * shape[d] + h->box.first[d] + at[d];
        memory[place] = value_of(kind, h->tensor, element);
    }
    return n;
}

/* Cut a tensor over ranks in one of several ways; some ranks have replicas, some nothing. */
static void hold(stw_held *held, uint32_t *n, uint64_t *state, uint32_t tensor,
                 const uint64_t *shape, uint32_t kinds) {
    const uint32_t way = case_random(state, 3);
    const int dim = (int)case_random(state, 3);
    const uint32_t parts = 1 + case_random(state, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        stw_held h = {.rank = r, .tensor = tensor, .kinds = kinds};
        memcpy(h.box.count, shape, sizeof h.box.count);
        const uint64_t size = (shape[dim] + parts - 1) / parts, p = way == 2 ? r : r % parts;
        const uint64_t first = stw_min_u64(p * size, shape[dim]);
        if (way > 0) {
            h.box.first[dim] = first;
            h.box.count[dim] = stw_min_u64(size, shape[dim] - first);
        }
        held[(*n)++] = h;
    }
}

static void check_entries(const values *v, const uint64_t shapes[TENSORS][STW_BOX_DIMS],
                          stw_model *model) {
    uint32_t wrong = 0;
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t k = 0; k < STW_N_SAVED; k++) {
            uint32_t n;
            const stw_saved_part *parts = stw_saved_parts(v->saved, (stw_saved_kind)k, t, &n);
            const stw_saved_entry *e = &v->saved->entries[parts[0].entry];
            CU_ASSERT_EQUAL(n, 1);
            const uint64_t width = stw_dtype_bits(e->dtype) / 8;
            for (uint64_t i = 0; i < model->tensors[t].numel; i++) {
                const uint32_t expected = value_of(k, t, i);
                wrong += memcmp(v->files[e->file] + e->offset + i * width, &expected, width) != 0;
            }
        }
    CU_ASSERT_EQUAL(wrong, 0);
    (void)shapes;
}

static stw_model *random_model(uint64_t *state, uint64_t shapes[TENSORS][STW_BOX_DIMS]) {
    stw_pool *pool = stw_pool_new();
    stw_model *model = stw_pool_alloc(pool, sizeof *model);
    model->pool = pool;
    model->name = model->source = "random";
    model->model_type = "";
    model->n_tensors = TENSORS;
    model->tensors = stw_pool_array(pool, TENSORS, sizeof *model->tensors);
    for (uint32_t t = 0; t < TENSORS; t++) {
        stw_tensor *tensor = &model->tensors[t];
        tensor->name = stw_pool_printf(pool, "layers.%u.\"w\"", t);
        tensor->rank = case_random(state, 6);
        tensor->dtype = STW_DTYPE_F32;
        tensor->experts = 1;
        tensor->numel = 1;
        for (uint32_t d = 0; d < tensor->rank; d++) {
            tensor->shape[d] = 1 + case_random(state, 6);
            tensor->numel *= tensor->shape[d];
        }
        stw_saved_fold(tensor->rank, tensor->shape, shapes[t]);
    }
    CHECK_OK(stw_model_group_by_name(model, NULL, err));
    CHECK_OK(stw_model_finish(model, err));
    return model;
}

static void values_arrive_of(uint64_t seed) {
    static uint32_t memory[MOST * 4];
    uint64_t state = seed, shapes[TENSORS][STW_BOX_DIMS];
    stw_model *model = random_model(&state, shapes);
    stw_saved_files *saved = NULL;
    stw_pool *pool = stw_pool_new();
    stw_held held[TENSORS * RANKS * 3];
    stw_shares shares;
    uint32_t n = 0;
    const stw_saved_options options = {.kinds = (1u << STW_N_SAVED) - 1,
                                       .dtypes = {STW_DTYPE_BF16, STW_DTYPE_F32,
                                                  seed % 2 ? STW_DTYPE_BF16 : STW_DTYPE_F32,
                                                  STW_DTYPE_F32},
                                       .file_bytes = seed % 3 == 0 ? 64 : 0};
    CHECK_OK(stw_saved_make(model, &options, &saved, err));
    for (uint32_t t = 0; t < TENSORS; t++) {
        hold(held, &n, &state, t, shapes[t], 1u << STW_SAVED_PARAMS);
        hold(held, &n, &state, t, shapes[t], STW_SAVED_STATE);
    }
    CHECK_OK(stw_shares_make(pool, saved, RANKS, held, n, &shares, err));
    CHECK_OK(stw_shares_check(saved, &shares, err));
    extents x = {.saved = saved};
    add_shares(&x, &shares);
    every_byte_once(&x);
    values v = {.saved = saved, .memory = memory};
    CU_ASSERT_FATAL(saved->n_files <= 64);
    for (uint32_t f = 0; f < saved->n_files; f++) v.files[f] = calloc(1, saved->files[f].bytes);
    for (uint32_t i = 0; i < shares.first[RANKS]; i++)
        for (uint32_t k = 0; k < STW_N_SAVED; k++) {
            const stw_share *s = &shares.shares[i];
            stw_saved_source whole, part;
            if ((s->kinds & 1u << k) == 0) continue;
            (void)lay(&held[s->held], shapes[s->tensor], k, memory, &whole);
            part = whole;
            part.box = s->box;
            for (int d = 0; d < STW_BOX_DIMS; d++)
                part.first += (s->box.first[d] - whole.box.first[d]) * whole.stride[d];
            CHECK_OK(stw_saved_rows(saved, &part, write_row, &v, err));
        }
    check_entries(&v, (const uint64_t(*)[STW_BOX_DIMS])shapes, model);
    for (uint32_t f = 0; f < saved->n_files; f++) free(v.files[f]);
    stw_saved_free(saved);
    stw_pool_free(pool);
    stw_model_free(model);
}

static void values_arrive(void) {
    for (uint64_t seed = 1; seed <= 60; seed++) values_arrive_of(seed);
}

static void gaps_are_named(void) {
    uint64_t state = 5, shapes[TENSORS][STW_BOX_DIMS];
    stw_model *model = random_model(&state, shapes);
    stw_saved_files *saved = NULL;
    stw_pool *pool = stw_pool_new();
    stw_held held[TENSORS];
    stw_shares shares;
    const stw_saved_options options = {.kinds = 1, .dtypes = {STW_DTYPE_F32}};
    CHECK_OK(stw_saved_make(model, &options, &saved, err));
    for (uint32_t t = 0; t < TENSORS; t++) {
        held[t] = (stw_held){.tensor = t, .kinds = 1};
        memcpy(held[t].box.count, shapes[t], sizeof held[t].box.count);
    }
    CHECK_OK(stw_shares_make(pool, saved, 1, held, TENSORS, &shares, err));
    CHECK_OK(stw_shares_check(saved, &shares, err));
    held[3].box.count[0]--;
    CHECK_OK(stw_shares_make(pool, saved, 1, held, TENSORS, &shares, err));
    CHECK_FAILS(stw_shares_check(saved, &shares, err), STW_STATUS_BAD_INPUT, "layers.3");
    held[3].box.count[0] += 2;
    CHECK_FAILS(stw_shares_make(pool, saved, 1, held, TENSORS, &shares, err), STW_STATUS_BAD_INPUT,
                "outside");
    stw_saved_free(saved);
    stw_pool_free(pool);
    stw_model_free(model);
}

STW_TEST_MAIN("checkpoint shapes", {"ranks of a job write every byte once", ranks_of_a_job},
              {"replicas share the work", replicas_of_a_job}, {"thousands of ranks", many_ranks},
              {"values arrive, whatever ranks hold", values_arrive},
              {"elements that nobody holds are named", gaps_are_named})
