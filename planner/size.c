/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/size.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "planner/clock.h"
#include "planner/sweep.h"

#define MOST_LAYOUTS 96
#define MOST_JOBS 64u
#define SEQ_STEP 1024u
#define MOST_SEQ_LEN (16ull << 20)
#define MOST_MICRO_BATCH 4096u

/* ---- parts of a node ---- */

static uint64_t part_u64(uint64_t whole, double share) {
    return whole == STW_UNLIMITED ? whole : (uint64_t)((double)whole * share);
}

void stw_size_part_of_node(const stw_cluster *node, uint32_t gpus, stw_cluster *out) {
    const double share = node->gpus > 0 ? (double)gpus / node->gpus : 1;
    *out = *node;
    out->gpus = gpus;
    if (share == 1) return;
    uint64_t *const bytes[] = {&out->host.memory_bytes,          &out->host.limit_bytes,
                               &out->host.page_lock_limit_bytes, &out->host.object_store_bytes,
                               &out->host.data_loaders_bytes,    &out->host.shm_bytes,
                               &out->host.cache_bytes,           &out->nvme.capacity_bytes};
    double *const rates[] = {
        &out->host.bandwidth_bps,    &out->host.dma_bps,           &out->host.dma_beside_bps,
        &out->host.dma_up_bps,       &out->host.dma_down_bps,      &out->host.page_lock_bps,
        &out->host.file_read_bps,    &out->nvme.read_bps,          &out->nvme.write_bps,
        &out->nvme.both_bps,         &out->torch.loop.all_pps,     &out->torch.loop.one_pps,
        &out->torch.foreach.all_pps, &out->torch.foreach.one_pps,  &out->torch.fused.all_pps,
        &out->torch.fused.one_pps,   &out->torch.cpu_adam.all_pps, &out->torch.cpu_adam.one_pps,
        &out->cpu_adamw_pps,         &out->cpu_adamw_ring_pps,     &out->cpu_norm_pps};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        *bytes[i] = part_u64(*bytes[i], share);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) *rates[i] *= share;
    out->host.cores = (uint32_t)fmax(1, floor(out->host.cores * share));
    if (gpus == 1) out->gpu.comm_bytes = 0; /* no communicator with one rank */
}

/* ---- layouts ---- */

typedef struct layout {
    uint32_t n;
    char settings[STW_SIZE_MOST_SETTINGS][40];
    uint64_t ranks; /* that work on the same sequences */
} layout;

static const char *const layout_keys[] = {"parallel.cp", "parallel.ep", "parallel.tp",
                                          "parallel.pp"};
enum { N_LAYOUT_KEYS = sizeof layout_keys / sizeof layout_keys[0] };

typedef struct layouts {
    uint32_t n;
    layout list[MOST_LAYOUTS];
} layouts;

static void add_layout(layouts *all, const uint32_t *keys, const uint64_t *values, uint32_t n) {
    if (all->n == MOST_LAYOUTS) return;
    layout *l = &all->list[all->n];
    *l = (layout){.n = n, .ranks = 1};
    for (uint32_t i = 0; i < n; i++) {
        snprintf(l->settings[i], sizeof l->settings[i], "%s=%" PRIu64, layout_keys[keys[i]],
                 values[i]);
        l->ranks *= values[i];
    }
    uint32_t at = all->n++; /* fewest ranks first; of equal ones the first found */
    while (at > 0 && all->list[at - 1].ranks > all->list[at].ranks) {
        layout moved = all->list[at];
        all->list[at] = all->list[at - 1];
        all->list[--at] = moved;
    }
}

/* One key or two, in powers of two, on so many ranks. */
static void make_layouts(const bool *is_free, uint64_t world, layouts *all) {
    all->n = 0;
    for (uint32_t a = 0; a < N_LAYOUT_KEYS; a++)
        for (uint64_t v = 2; is_free[a] && v <= world && v <= 64; v <<= 1) {
            add_layout(all, &a, &v, 1);
            for (uint32_t b = a + 1; b < N_LAYOUT_KEYS; b++)
                for (uint64_t w = 2; is_free[b] && v * w <= world && w <= 8; w <<= 1)
                    add_layout(all, (const uint32_t[]){a, b}, (const uint64_t[]){v, w}, 2);
        }
}

/* ---- one kind ---- */

typedef struct search {
    const stw_point_base *base;
    const stw_size_options *options;
    stw_pool *pool; /* of the thread */
    stw_size_answer *answer;
    bool is_free[N_LAYOUT_KEYS];
    uint64_t seq_len, micro_batch; /* of the run */
    stw_cluster cluster;           /* of the point */
    layout best;                   /* with which it fits */
    layouts others;
} search;

static stw_status plan(search *s, const layout *l, const char *extra, bool fits_only,
                       stw_plan **out, stw_error *err) {
    stw_point_base base = *s->base;
    const stw_point_options options = {s->options->time_limit_s, fits_only};
    const char *settings[STW_SIZE_MOST_SETTINGS + 1];
    size_t n = 0;
    for (; n < l->n; n++) settings[n] = l->settings[n];
    if (extra != NULL) settings[n++] = extra;
    base.cluster = &s->cluster;
    s->answer->planned++;
    return stw_point_plan(&base, settings, n, &options, out, err);
}

/* Does it fit? What is refused, or has no plan in time, does not. */
static stw_status ask(search *s, const layout *l, const char *extra, bool *fits, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    stw_plan *found = NULL;
    stw_status status = plan(s, l, extra, true, &found, &why);
    *fits = status == STW_STATUS_OK && found->verdict != STW_VERDICT_DOES_NOT_FIT;
    stw_plan_free(found);
    if (status == STW_STATUS_OK || stw_point_refuses(status) || status == STW_STATUS_TIME_LIMIT ||
        status == STW_STATUS_SOLVER)
        return STW_STATUS_OK;
    if (err != NULL) *err = why;
    return status;
}

/* Does it fit on s->cluster, with some layout? That is s->best then. */
static stw_status ask_layouts(search *s, bool *fits, stw_error *err) {
    const layout own = {.n = 0, .ranks = 1};
    stw_status status = STW_STATUS_OK;
    STW_TRY(ask(s, &own, NULL, fits, err));
    if (*fits) s->best = own;
    if (*fits) goto out;
    make_layouts(s->is_free, (uint64_t)s->cluster.nodes * s->cluster.gpus, &s->others);
    for (uint32_t i = 0; i < s->others.n && !*fits; i++) {
        STW_TRY(ask(s, &s->others.list[i], NULL, fits, err));
        if (*fits) s->best = s->others.list[i];
    }
out:
    return status;
}

static stw_status find_nodes(search *s, const stw_cluster *node, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t least = 1, most = 1; /* least: does not fit */
    layout best;
    s->cluster = *node;
    while (!*fits && most < STW_SIZE_MOST_NODES) {
        least = most;
        most *= 2;
        s->cluster.nodes = most;
        STW_TRY(ask_layouts(s, fits, err));
    }
    if (!*fits) goto out;
    best = s->best;
    while (most - least > 1) {
        bool here = false;
        s->cluster.nodes = least + (most - least) / 2;
        STW_TRY(ask_layouts(s, &here, err));
        if (here) best = s->best;
        *(here ? &most : &least) = s->cluster.nodes;
    }
    s->cluster.nodes = most;
    s->best = best;
out:
    return status;
}

static stw_status find_size(search *s, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cluster node = s->answer->cluster;
    const uint32_t whole = node.gpus > 0 ? node.gpus : 1;
    *fits = false;
    for (uint32_t gpus = 1; !*fits; gpus = gpus * 2 < whole ? gpus * 2 : whole) {
        stw_size_part_of_node(&node, node.gpus > 0 ? gpus : 0, &s->cluster);
        STW_TRY(ask_layouts(s, fits, err));
        if (gpus == whole) break;
    }
    if (!*fits) STW_TRY(find_nodes(s, &node, fits, err));
out:
    return status;
}

/* The largest multiple of `step` above `from`, or `from`, with which it fits. */
static stw_status find_most(search *s, const char *key, uint64_t from, uint64_t step, uint64_t cap,
                            uint64_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char setting[64];
    uint64_t least = from, most = from;
    bool fits = true;
    while (fits && most < cap) {
        least = most;
        most = most / step > 0 ? most / step * step * 2 : step;
        snprintf(setting, sizeof setting, "%s=%" PRIu64, key, most);
        STW_TRY(ask(s, &s->best, setting, &fits, err));
    }
    if (fits) least = most;
    while (!fits && most - least > step) {
        uint64_t middle = (least + (most - least) / 2) / step * step;
        bool here = false;
        if (middle <= least) middle = (least / step + 1) * step;
        if (middle >= most) break;
        snprintf(setting, sizeof setting, "%s=%" PRIu64, key, middle);
        STW_TRY(ask(s, &s->best, setting, &here, err));
        *(here ? &least : &most) = middle;
    }
    *out = least;
out:
    return status;
}

/* The plan on the cluster that was found, or on the largest one. */
static stw_status take_plan(search *s, bool fits, stw_error *err) {
    stw_size_answer *a = s->answer;
    stw_status status = STW_STATUS_OK;
    stw_plan *found = NULL;
    stw_error why = STW_ERROR_INIT;
    char text[1200];
    a->cluster = s->cluster;
    a->fits = fits;
    a->row.iteration_s = a->row.tokens_per_s = NAN;
    if (!fits) s->best.n = 0;
    status = plan(s, &s->best, NULL, false, &found, fits ? err : &why);
    if (!fits && stw_point_refuses(status)) {
        a->row.verdict = STW_SWEEP_REFUSED;
        stw_error_format(&why, text, sizeof text);
        a->row.reason = stw_pool_string(s->pool, text);
        return a->row.reason != NULL ? STW_STATUS_OK : STW_STATUS_NO_MEMORY;
    }
    if (!fits && status != STW_STATUS_OK && err != NULL) *err = why;
    if (status != STW_STATUS_OK) return status;
    s->seq_len = found->run.batch.seq_len;
    s->micro_batch = found->run.batch.micro_batch;
    STW_TRY(stw_sweep_fill_row(found, s->pool, &a->row, err));
    const stw_layout_search *searched = &found->layout_search;
    if (searched->searched != NULL && searched->n_rows > 0) {
        a->settings[0] = stw_pool_string(s->pool, searched->rows[0].settings);
        a->n_settings = 1;
        if (a->settings[0] == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory"));
        goto out;
    }
    a->n_settings = s->best.n;
    for (uint32_t i = 0; i < s->best.n; i++) {
        a->settings[i] = stw_pool_string(s->pool, s->best.settings[i]);
        if (a->settings[i] == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory"));
    }
out:
    stw_plan_free(found);
    return status;
}

static stw_status answer_kind(search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    stw_status status = STW_STATUS_OK;
    double start_s = stw_now_s();
    bool fits = false;
    STW_TRY(find_size(s, &fits, err));
    STW_TRY(take_plan(s, fits, err));
    if (fits) {
        STW_TRY(find_most(s, "batch.seq_len", s->seq_len, SEQ_STEP, MOST_SEQ_LEN,
                          &a->longest_seq_len, err));
        STW_TRY(find_most(s, "batch.micro_batch", s->micro_batch, 1, MOST_MICRO_BATCH,
                          &a->largest_micro_batch, err));
    }
    a->seconds = stw_now_s() - start_s;
out:
    return status;
}

/* ---- all kinds ---- */

typedef struct sizing {
    const stw_point_base *base;
    const stw_size_options *options;
    stw_size_answer *answers;
    bool is_free[N_LAYOUT_KEYS];
    uint32_t n, next;
    pthread_mutex_t mutex; /* of what follows and of `next` and `pool` */
    stw_pool *pool;
    stw_status status;
    stw_error err;
} sizing;

/* Copy the strings of an answer to the caller's pool. The mutex is held. */
static bool keep_strings(stw_pool *pool, stw_size_answer *a) {
    bool kept = true;
    const char **const strings[] = {&a->row.binds, &a->row.reason};
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        bool given = *strings[i] != NULL;
        *strings[i] = stw_pool_string(pool, *strings[i]);
        kept &= !given || *strings[i] != NULL;
    }
    for (uint32_t i = 0; i < a->n_settings; i++) {
        a->settings[i] = stw_pool_string(pool, a->settings[i]);
        kept &= a->settings[i] != NULL;
    }
    return kept;
}

static bool take_kind(sizing *all, uint32_t *out) {
    pthread_mutex_lock(&all->mutex);
    bool more = all->status == STW_STATUS_OK && all->next < all->n;
    if (more) *out = all->next++;
    pthread_mutex_unlock(&all->mutex);
    return more;
}

static void *work(void *user) {
    sizing *all = user;
    uint32_t i = 0;
    while (take_kind(all, &i)) {
        stw_error err = STW_ERROR_INIT;
        stw_pool *pool = stw_pool_new();
        search *s = pool != NULL ? stw_pool_alloc(pool, sizeof *s) : NULL;
        stw_status status = STW_STATUS_NO_MEMORY;
        if (s != NULL) {
            s->base = all->base;
            s->options = all->options;
            s->pool = pool;
            s->answer = &all->answers[i];
            memcpy(s->is_free, all->is_free, sizeof s->is_free);
            status = answer_kind(s, &err);
        }
        pthread_mutex_lock(&all->mutex);
        if (status == STW_STATUS_OK && !keep_strings(all->pool, s->answer))
            status = STW_STATUS_NO_MEMORY;
        if (status == STW_STATUS_NO_MEMORY) (void)stw_fail(&err, status, "size", "out of memory");
        if (status != STW_STATUS_OK && all->status == STW_STATUS_OK) {
            all->status = status;
            all->err = err;
        }
        pthread_mutex_unlock(&all->mutex);
        stw_pool_free(pool);
    }
    return NULL;
}

/* Keys that neither the run nor a setting has changed may be searched. */
static stw_status find_free(sizing *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_point_base *base = all->base;
    stw_run_spec run = {0};
    stw_cluster cluster = *base->cluster;
    STW_TRY(stw_run_spec_init(&run, err));
    if (base->import != NULL) STW_TRY(stw_import_run(base->import, &run, err));
    if (base->run != NULL) STW_TRY(stw_run_spec_from_node(base->run, base->run->root, &run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, base->settings, base->n_settings, "--set", err));
    const uint32_t values[N_LAYOUT_KEYS] = {run.parallel.cp, run.parallel.ep, run.parallel.tp,
                                            run.parallel.pp};
    for (uint32_t k = 0; k < N_LAYOUT_KEYS; k++) {
        const size_t length = strlen(layout_keys[k]);
        all->is_free[k] = values[k] == 1 && !stw_run_spec_is_open(&run); /* else points search */
        for (size_t i = 0; i < base->n_settings; i++)
            if (strncmp(base->settings[i], layout_keys[k], length) == 0 &&
                base->settings[i][length] == '=')
                all->is_free[k] = false;
    }
out:
    stw_run_spec_free(&run);
    return status;
}

stw_status stw_size_find(const stw_point_base *base, const stw_size_options *options,
                         stw_pool *pool, stw_size_answer *answers, uint32_t n, stw_error *err) {
    sizing all = {.base = base,
                  .options = options,
                  .answers = answers,
                  .n = n,
                  .mutex = PTHREAD_MUTEX_INITIALIZER,
                  .pool = pool,
                  .status = STW_STATUS_OK,
                  .err = STW_ERROR_INIT};
    pthread_t threads[MOST_JOBS];
    stw_status status = find_free(&all, err);
    if (status != STW_STATUS_OK) return status;
    uint32_t jobs = options->jobs > 0 ? options->jobs : stw_planner_cores(), started = 0;
    jobs = jobs < MOST_JOBS ? jobs : MOST_JOBS;
    while (started + 1 < jobs && started + 1 < n &&
           pthread_create(&threads[started], NULL, work, &all) == 0)
        started++;
    (void)work(&all); /* this thread works too */
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (all.status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = all.err;
    return all.status;
}
