/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/size.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "core/locale.h"
#include "planner/clock.h"
#include "planner/sweep.h"

#define MOST_JOBS 64u
#define SEQ_STEP 1024u
#define MOST_SEQ_LEN (16ull << 20)
#define MOST_MICRO_BATCH 4096u
#define ACCUMULATION "batch.grad_accumulation="

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

/* ---- does it fit? ---- */

typedef struct search {
    const stw_point_base *base;
    const stw_size_options *options;
    stw_pool *pool; /* of the thread */
    stw_size_answer *answer;
    uint64_t seq_len, micro_batch; /* of the run */
    const char *free_tokens;       /* settings with which the tokens of a step are not fixed */
    bool searches;                 /* the run asks for a layout (parallel: auto) */
    bool refused;                  /* the last point asked */
    bool strict;                   /* what fits is planned to the end before it is believed */
    uint32_t least_gpus;           /* of a node, that were shown not to fit */
    uint32_t least_nodes;          /* the same, whole ones; 0: none were */
    stw_cluster node;              /* a whole one */
    stw_cluster cluster;           /* of the point */
    const char *more;              /* a setting for every point; NULL: none */
    const char *best;              /* layout with which it fits, words of stw_point_fit */
    stw_status refusal;            /* of the settings, on every cluster; OK: there is none */
    stw_error why;                 /* of `refusal` */
} search;

static bool add_words(const search *s, const char *words, const char **out, size_t *n) {
    for (const char *at = words; *at != '\0';) {
        const size_t length = strcspn(at, " ");
        if (*n + 1 > STW_SIZE_MOST_SETTINGS) return false;
        out[*n] = stw_pool_printf(s->pool, "%.*s", (int)length, at);
        if (out[(*n)++] == NULL) return false;
        at += length + strspn(at + length, " ");
    }
    return true;
}

/* Settings of a point: s->more, the words of a layout, then those of `extra`. @param out
 * [STW_SIZE_MOST_SETTINGS] */
static bool make_settings(const search *s, const char *layout, const char *extra, const char **out,
                          size_t *n) {
    *n = 0;
    if (s->more != NULL) out[(*n)++] = s->more;
    return add_words(s, layout, out, n) && (extra == NULL || add_words(s, extra, out, n));
}

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory");
}

/* Does it fit? What is refused, or has no plan in time, does not. The latter is counted. @param
 * layout NULL: any */
static stw_status ask(search *s, const char *layout, const char *extra, stw_point_fit *out,
                      stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    stw_point_base base = *s->base;
    const stw_point_fit_options options = {s->options->time_limit_s, layout == NULL};
    const char *settings[STW_SIZE_MOST_SETTINGS];
    size_t n;
    base.cluster = &s->cluster;
    s->answer->planned++;
    s->refused = false;
    *out = (stw_point_fit){false, ""};
    if (!make_settings(s, layout != NULL ? layout : "", extra, settings, &n)) return no_memory(err);
    stw_status status = stw_point_fits(&base, settings, n, &options, s->pool, out, &why);
    if (status == STW_STATUS_OK) return status;
    out->fits = false;
    s->refused = stw_point_refuses(status);
    s->answer->late += status == STW_STATUS_TIME_LIMIT;
    if (s->refused || status == STW_STATUS_TIME_LIMIT || status == STW_STATUS_SOLVER)
        return STW_STATUS_OK;
    if (err != NULL) *err = why;
    return status;
}

/* ---- the smallest ---- */

static stw_status plan(search *s, const char *layout, stw_plan **out, stw_error *err) {
    stw_point_base base = *s->base;
    const stw_point_options options = {s->options->time_limit_s, false};
    const char *settings[STW_SIZE_MOST_SETTINGS];
    size_t n;
    base.cluster = &s->cluster;
    s->answer->planned++;
    if (!make_settings(s, layout, NULL, settings, &n)) return no_memory(err);
    return stw_point_plan(&base, settings, n, &options, out, err);
}

/* Does the plan that `stowage plan` makes fit? */
static stw_status ask_plan(search *s, bool *fits, stw_error *err) {
    stw_plan *found = NULL;
    stw_error why = STW_ERROR_INIT;
    stw_status status = plan(s, s->best, &found, &why);
    *fits = status == STW_STATUS_OK && found->verdict != STW_VERDICT_DOES_NOT_FIT;
    stw_plan_free(found);
    s->answer->late += status == STW_STATUS_TIME_LIMIT;
    if (status == STW_STATUS_OK || stw_point_refuses(status) || status == STW_STATUS_TIME_LIMIT)
        return STW_STATUS_OK;
    if (err != NULL) *err = why;
    return status;
}

/* Does it fit on so many nodes, with some layout? */
static stw_status ask_nodes(search *s, uint32_t nodes, bool *fits, stw_error *err) {
    stw_point_fit found;
    s->cluster.nodes = nodes;
    stw_status status = ask(s, NULL, NULL, &found, err);
    s->best = found.layout;
    *fits = found.fits;
    if (status == STW_STATUS_OK && *fits && s->strict) status = ask_plan(s, fits, err);
    return status;
}

/* One by one; where a few are not enough, the most that there are first, since these seldom help
 * where bytes of every GPU are too many. These say nothing where the tokens of a step cannot be
 * divided among them. */
static stw_status find_nodes(search *s, const stw_cluster *node, bool *fits, stw_error *err) {
    enum { FEW_NODES = 4 };
    stw_status status = STW_STATUS_OK;
    uint32_t least = s->least_nodes > 1 ? s->least_nodes : 1; /* does not fit */
    uint32_t most = STW_SIZE_MOST_NODES;
    const char *best = "";
    s->cluster = *node;
    for (; !*fits && least < STW_SIZE_TRIED_NODES; least++) {
        if (least == FEW_NODES) STW_TRY(ask_nodes(s, most, fits, err));
        if (least == FEW_NODES && !*fits && !s->refused) goto out;
        STW_TRY(ask_nodes(s, least + 1, fits, err));
    }
    if (*fits) goto out;
    while (!*fits && least < STW_SIZE_MOST_NODES) {
        most = 2 * least < STW_SIZE_MOST_NODES ? 2 * least : STW_SIZE_MOST_NODES;
        STW_TRY(ask_nodes(s, most, fits, err));
        if (!*fits) least = most;
    }
    best = s->best;
    while (*fits && most - least > 1) {
        const uint32_t middle = least + (most - least) / 2;
        bool here = false;
        STW_TRY(ask_nodes(s, middle, &here, err));
        if (here) best = s->best;
        *(here ? &most : &least) = middle;
    }
    s->cluster.nodes = most;
    s->best = best;
out:
    return status;
}

static stw_status find_size(search *s, const stw_cluster *node, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *fits = false;
    for (uint32_t gpus = s->least_gpus + 1; !*fits && s->least_nodes == 0; gpus++) {
        if (gpus > 1 && gpus > node->gpus) break;
        stw_size_part_of_node(node, node->gpus > 0 ? gpus : 0, &s->cluster);
        STW_TRY(ask_nodes(s, 1, fits, err));
    }
    if (!*fits) STW_TRY(find_nodes(s, node, fits, err));
out:
    return status;
}

/* ---- what the smallest can do ---- */

/* The largest multiple of `step` above `from`, or `from`, with which it fits. The micro batches of
 * a step stay, not its tokens. */
static stw_status find_most(search *s, const char *key, uint64_t from, uint64_t step, uint64_t cap,
                            uint64_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char setting[160];
    uint64_t least = from, most = from;
    stw_point_fit at = {true, ""};
    while (at.fits && most < cap) {
        least = most;
        most = most / step > 0 ? most / step * step * 2 : step;
        snprintf(setting, sizeof setting, "%s%s=%" PRIu64, s->free_tokens, key, most);
        STW_TRY(ask(s, s->best, setting, &at, err));
    }
    if (at.fits) {
        *out = most;
        goto out;
    }
    while (most - least > step) {
        uint64_t middle = (least + (most - least) / 2) / step * step;
        if (middle <= least) middle = (least / step + 1) * step;
        if (middle >= most) break;
        snprintf(setting, sizeof setting, "%s%s=%" PRIu64, s->free_tokens, key, middle);
        STW_TRY(ask(s, s->best, setting, &at, err));
        *(at.fits ? &least : &most) = middle;
    }
    *out = least;
out:
    return status;
}

/* Is it refused with the same words on a GPU, a node and two nodes? */
static bool is_of_settings(search *s, const stw_cluster *node, const char *text) {
    const stw_cluster largest = s->cluster;
    bool same = true;
    for (uint32_t i = 0; same && i < 3; i++) {
        char words[1200];
        stw_plan *none = NULL;
        stw_error why = STW_ERROR_INIT;
        stw_size_part_of_node(node, i > 0 ? node->gpus : node->gpus > 0, &s->cluster);
        s->cluster.nodes = i < 2 ? 1 : 2;
        same = stw_point_refuses(plan(s, "", &none, &why));
        stw_plan_free(none);
        stw_error_format(&why, words, sizeof words);
        same = same && strcmp(words, text) == 0;
    }
    s->cluster = largest;
    return same;
}

/* What is refused is a row with the reason. */
static stw_status note_refusal(search *s, stw_status refusal, const stw_error *why,
                               stw_error *err) {
    char text[1200];
    s->answer->fits = false;
    s->answer->row.verdict = STW_SWEEP_REFUSED;
    stw_error_format(why, text, sizeof text);
    s->answer->row.reason = stw_pool_string(s->pool, text);
    if (!is_of_settings(s, &s->node, text)) refusal = STW_STATUS_OK;
    s->refusal = refusal;
    s->why = *why;
    return s->answer->row.reason != NULL ? STW_STATUS_OK : no_memory(err);
}

/* Whether it fits is not known: the time was over. */
static stw_status note_late(search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    if (a->late == 0 && !a->fits) { /* all were looked at, and only its plan is missing */
        a->row.verdict = STW_SWEEP_DOES_NOT_FIT;
        return STW_STATUS_OK;
    }
    a->fits = false;
    a->row.verdict = STW_SWEEP_TIME_LIMIT;
    a->row.reason =
        stw_pool_printf(s->pool,
                        "no size was shown to fit: %" PRIu32 " of %" PRIu32
                        " searches and plans ended at the limit of %.3g s; raise --time-limit",
                        a->late > 0 ? a->late : 1, a->planned, s->options->time_limit_s);
    return a->row.reason != NULL ? STW_STATUS_OK : no_memory(err);
}

static void note_setup(const stw_plan *plan, stw_size_setup *out) {
    const stw_run_spec *run = &plan->run;
    *out = (stw_size_setup){.engine = stw_engine_name(run->engine),
                            .params = run->precision.params,
                            .grads = run->precision.grads,
                            .exp_avg = run->precision.exp_avg,
                            .exp_avg_sq = run->precision.exp_avg_sq,
                            .has_master = run->precision.has_master,
                            .step_tokens =
                                plan->model->facts_known ? stw_job_step_tokens(plan->job) : 0};
}

/* The layout of a plan: what was set, then what a search of the run's own has chosen. It is the one
 * of all that follows. */
static stw_status note_layout(search *s, const stw_plan *plan, stw_error *err) {
    const stw_layout_search *searched = &plan->layout_search;
    const bool more = searched->searched != NULL && searched->n_rows > 0;
    s->best = stw_pool_printf(s->pool, "%s%s%s", s->best, more && s->best[0] != '\0' ? " " : "",
                              more ? searched->rows[0].settings : "");
    size_t n;
    if (s->best == NULL || !make_settings(s, s->best, NULL, s->answer->settings, &n))
        return no_memory(err);
    s->answer->n_settings = (uint32_t)n;
    return STW_STATUS_OK;
}

/* The plan of the fastest layout where the run asks for a search (parallel: auto); else, and where
 * that finds none, of the one that was found to fit. */
static stw_status plan_best(search *s, stw_plan **out, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    const char *found = s->best;
    stw_plan *plan_of_run = NULL;
    if (found[0] != '\0' && s->searches) {
        s->best = "";
        (void)plan(s, s->best, &plan_of_run, &why);
        if (plan_of_run != NULL && plan_of_run->verdict != STW_VERDICT_DOES_NOT_FIT) {
            *out = plan_of_run;
            return STW_STATUS_OK;
        }
        stw_plan_free(plan_of_run);
        s->best = found;
    }
    return plan(s, s->best, out, err);
}

/* The plan on the cluster that was found, or on the largest one. */
static stw_status take_plan(search *s, bool fits, stw_error *err) {
    stw_size_answer *a = s->answer;
    stw_status status = STW_STATUS_OK;
    stw_plan *found = NULL;
    stw_error why = STW_ERROR_INIT;
    a->cluster = s->cluster;
    a->fits = fits;
    a->row.iteration_s = a->row.tokens_per_s = NAN;
    status = plan_best(s, &found, &why);
    if (stw_point_refuses(status)) return note_refusal(s, status, &why, err);
    if (status == STW_STATUS_TIME_LIMIT) return note_late(s, err);
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    if (status != STW_STATUS_OK) return status;
    a->cluster.gpu.memory_bytes = found->cluster.gpu.memory_bytes; /* that of --set */
    s->seq_len = found->run.batch.seq_len;
    s->micro_batch = found->run.batch.micro_batch;
    if (found->run.batch.tokens_per_step > 0)
        s->free_tokens =
            stw_pool_printf(s->pool, "batch.tokens_per_step=none " ACCUMULATION "%" PRIu64 " ",
                            (uint64_t)found->run.batch.grad_accumulation);
    if (s->free_tokens == NULL) STW_TRY(no_memory(err));
    a->needs = stw_plan_streamed_note(found);
    a->of_trainer = found->job->n_roles > 1;
    note_setup(found, &a->setup);
    a->fits = fits && found->verdict != STW_VERDICT_DOES_NOT_FIT;
    STW_TRY(stw_sweep_fill_row(found, s->pool, &a->row, err));
    STW_TRY(note_layout(s, found, err));
    if (!a->fits && a->late > 0) status = note_late(s, err);
out:
    stw_plan_free(found);
    return status;
}

/* ---- what else to buy ---- */

/* So many times the GPUs: of the node, then whole nodes. */
static void enlarge(const stw_cluster *node, const stw_cluster *smallest, uint32_t times,
                    stw_cluster *out) {
    const uint32_t whole = node->gpus > 0 ? node->gpus : 1,
                   gpus = (smallest->gpus > 0 ? smallest->gpus : 1) * smallest->nodes * times;
    if (gpus < whole)
        stw_size_part_of_node(node, gpus, out);
    else
        *out = *node;
    out->nodes = (gpus + whole - 1) / whole;
}

/* The plan of a layout on s->cluster as a row; NOT_PLANNED where it is refused or takes too long.
 */
static stw_status plan_row(search *s, const char *layout, stw_sweep_row *row, stw_error *err) {
    stw_plan *found = NULL;
    stw_error why = STW_ERROR_INIT;
    *row = (stw_sweep_row){.verdict = STW_SWEEP_NOT_PLANNED};
    stw_status status = plan(s, layout, &found, &why);
    if (status == STW_STATUS_OK) status = stw_sweep_fill_row(found, s->pool, row, &why);
    stw_plan_free(found);
    if (stw_point_refuses(status) || status == STW_STATUS_TIME_LIMIT) return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    return status;
}

enum { LAYOUTS = 2 };

/* Layouts of more GPUs. One that is only there to fit is not kept where it is not needed. Where the
 * tokens of a step are fixed and the micro batches were searched, more ranks have fewer of them.
 * @return how many; 0: no memory */
static int layouts_of_more(const search *s, const char **out) {
    const bool fixed = s->free_tokens[0] != '\0' && strstr(s->best, ACCUMULATION) != NULL;
    out[0] = fixed ? ACCUMULATION "auto" : "";
    out[1] = fixed ? stw_pool_printf(s->pool, "%s " ACCUMULATION "auto", s->best) : s->best;
    return out[1] == NULL ? 0 : s->best[0] != '\0' ? LAYOUTS : 1;
}

static void note_safe(search *s, const char *layout, const stw_sweep_row *row) {
    if (row->verdict != STW_SWEEP_FITS) return;
    s->answer->safe = s->cluster;
    s->answer->safe_layout = layout;
}

/* The fewest GPU-hours for the same tokens. */
static stw_status find_cheapest(search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_size_answer *a = s->answer;
    const char *layouts[LAYOUTS];
    const int n = layouts_of_more(s, layouts);
    if (n == 0) return no_memory(err);
    a->cheapest = a->cluster;
    a->cheapest_row = a->row;
    for (uint32_t times = 2; times <= STW_SIZE_MOST_TIMES; times *= 2) {
        enlarge(&s->node, &a->cluster, times, &s->cluster);
        for (int i = 0; i < n; i++) {
            stw_sweep_row row;
            STW_TRY(plan_row(s, layouts[i], &row, err));
            if (a->row.verdict == STW_SWEEP_AT_RISK && a->safe.nodes == 0)
                note_safe(s, layouts[i], &row);
            if (!stw_sweep_row_fits(&row)) continue;
            if (stw_sweep_gpu_hours(&row) < stw_sweep_gpu_hours(&a->cheapest_row)) {
                a->cheapest = s->cluster;
                a->cheapest_row = row;
            }
        }
    }
out:
    s->cluster = a->cluster;
    return status;
}

/* ---- without risk ---- */

/* Size `i` above the smallest: the GPUs of its node one by one, then whole nodes. */
static void size_above(const search *s, uint32_t i, stw_cluster *out) {
    const stw_cluster *least = &s->answer->cluster;
    const uint32_t parts = s->node.gpus > least->gpus ? s->node.gpus - least->gpus : 0;
    stw_size_part_of_node(&s->node, i < parts ? least->gpus + i : s->node.gpus, out);
    out->nodes = i > parts ? least->nodes + i - parts : least->nodes;
}

static bool are_as_many(const stw_cluster *a, const stw_cluster *b) {
    return a->nodes == b->nodes && a->gpus == b->gpus;
}

/* Fits size `i` without risk? */
static stw_status ask_safe(search *s, uint32_t i, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *layouts[LAYOUTS];
    const int n = layouts_of_more(s, layouts);
    if (n == 0) return no_memory(err);
    size_above(s, i, &s->cluster);
    *fits = false;
    for (int k = 0; k < n && !*fits; k++) {
        stw_sweep_row row;
        STW_TRY(plan_row(s, layouts[k], &row, err));
        *fits = row.verdict == STW_SWEEP_FITS;
        note_safe(s, layouts[k], &row);
    }
out:
    return status;
}

/* Between the smallest, which is at risk, and 2 or 4 times as many GPUs, which are not: by
 * bisection. */
static stw_status find_safe(search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_size_answer *a = s->answer;
    uint32_t least = 0, most = 1;
    if (a->safe.nodes == 0) return status;
    for (;; most++) {
        stw_cluster at;
        size_above(s, most, &at);
        if (are_as_many(&at, &a->safe)) break;
        if (at.nodes > a->safe.nodes) return status;
    }
    while (most - least > 1) {
        const uint32_t middle = least + (most - least) / 2;
        bool fits = false;
        STW_TRY(ask_safe(s, middle, &fits, err));
        *(fits ? &most : &least) = middle;
    }
out:
    s->cluster = a->cluster;
    return status;
}

/* ---- help ---- */

static stw_status note_help(search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    const stw_cluster *c = &s->cluster;
    char where[64];
    if (c->nodes > 1)
        snprintf(where, sizeof where, "%" PRIu32 " nodes x %" PRIu32, c->nodes, c->gpus);
    else
        snprintf(where, sizeof where, "%" PRIu32 " GPU%s", c->gpus, c->gpus == 1 ? "" : "s");
    a->help = stw_pool_printf(s->pool, "--set %s (%s%s%s)", s->more, where,
                              s->best[0] != '\0' ? ", " : "", s->best);
    return a->help != NULL ? STW_STATUS_OK : no_memory(err);
}

/* Where it does not fit: with lower precision, else as another engine cuts it? */
static stw_status find_help(search *s, const stw_cluster *node, stw_error *err) {
    static const char *const precisions[] = {"precision.reduce=bf16", "precision.grads=bf16"};
    enum { N_PRECISIONS = sizeof precisions / sizeof precisions[0] };
    stw_status status = STW_STATUS_OK;
    const stw_cluster largest = s->cluster;
    const char *best = s->best;
    bool fits = false;
    for (uint32_t i = 0; !fits; i++) {
        const stw_engine_spec *engine =
            i < N_PRECISIONS ? NULL : stw_engine_spec_at(i - N_PRECISIONS);
        if (i >= N_PRECISIONS && engine == NULL) break;
        s->more =
            i < N_PRECISIONS ? precisions[i] : stw_pool_printf(s->pool, "engine=%s", engine->name);
        if (s->more == NULL) STW_TRY(no_memory(err));
        s->cluster = largest;
        if (engine == NULL) STW_TRY(ask_nodes(s, STW_SIZE_MOST_NODES, &fits, err));
        if (fits) STW_TRY(find_size(s, node, &fits, err));
        /* the layouts of another engine may be many: any size will do */
        for (uint32_t n = 1; engine != NULL && n <= STW_SIZE_MOST_NODES && !fits; n *= 4)
            STW_TRY(ask_nodes(s, n, &fits, err));
        if (fits) STW_TRY(note_help(s, err));
    }
out:
    s->more = NULL;
    s->cluster = largest;
    s->best = best;
    return status;
}

/* The smallest whose plan fits: rows of a search of sizes are bounds, so its answer is planned, and
 * where that does not fit, all further ones are. */
static stw_status find_planned(search *s, const stw_cluster *node, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool fits = false;
    STW_TRY(find_size(s, node, &fits, err));
    STW_TRY(take_plan(s, fits, err));
    if (!fits || s->answer->fits || s->answer->row.verdict == STW_SWEEP_REFUSED ||
        s->answer->row.verdict == STW_SWEEP_TIME_LIMIT)
        goto out;
    s->strict = true;
    s->least_gpus = s->cluster.gpus;
    s->least_nodes = s->cluster.gpus < node->gpus ? 0 : s->cluster.nodes;
    STW_TRY(find_size(s, node, &fits, err));
    STW_TRY(take_plan(s, fits, err));
out:
    return status;
}

/* Settings that no point can have are an error, not a row. @param searches does the run ask for a
 * search of layouts? */
static stw_status check_settings(const stw_point_base *base, bool *searches, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = {0};
    stw_cluster cluster = *base->cluster;
    STW_TRY(stw_run_spec_init(&run, err));
    if (base->import != NULL) STW_TRY(stw_import_run(base->import, &run, err));
    if (base->run != NULL) STW_TRY(stw_run_spec_from_node(base->run, base->run->root, &run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, base->settings, base->n_settings, "--set", err));
    *searches = stw_run_spec_is_open(&run);
out:
    stw_run_spec_free(&run);
    return status;
}

static stw_status answer_kind(search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    stw_status status = STW_STATUS_OK;
    double start_s = stw_now_s();
    s->node = a->cluster;
    STW_TRY(check_settings(s->base, &s->searches, err));
    STW_TRY(find_planned(s, &s->node, err));
    if (a->row.verdict == STW_SWEEP_DOES_NOT_FIT && !a->fits) STW_TRY(find_help(s, &s->node, err));
    if (a->fits && a->row.verdict != STW_SWEEP_UNKNOWN) {
        STW_TRY(find_most(s, "batch.seq_len", s->seq_len, SEQ_STEP, MOST_SEQ_LEN,
                          &a->longest_seq_len, err));
        STW_TRY(find_most(s, "batch.micro_batch", s->micro_batch, 1, MOST_MICRO_BATCH,
                          &a->largest_micro_batch, err));
        STW_TRY(find_cheapest(s, err));
        STW_TRY(find_safe(s, err));
    }
    a->seconds = stw_now_s() - start_s;
out:
    return status;
}

/* ---- all ---- */

typedef struct sizing {
    const stw_point_base *const *bases;
    const stw_size_options *options;
    stw_size_answer *answers;
    uint32_t n, next;
    uint32_t *order;       /* [n] large models first: what takes longest does not begin last */
    pthread_mutex_t mutex; /* of what follows and of `next` and `pool` */
    uint32_t n_refused;    /* answers whose settings every cluster refuses */
    uint32_t first_refused;
    stw_status refusal; /* of the first of them */
    stw_error why;
    stw_pool *pool;
    stw_status status;
    stw_error err;
} sizing;

/* Copy the strings of an answer to the caller's pool. The mutex is held. */
static bool keep_strings(stw_pool *pool, stw_size_answer *a) {
    bool kept = true;
    const char **const strings[] = {&a->row.binds, &a->row.reason, &a->help, &a->safe_layout,
                                    &a->cheapest_row.binds};
    a->cheapest_row.reason = NULL;
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
    if (more) *out = all->order[all->next++];
    pthread_mutex_unlock(&all->mutex);
    return more;
}

/* The mutex is held. */
static void note_refused(sizing *all, uint32_t i, const search *s) {
    const bool first = all->n_refused++ == 0 || i < all->first_refused;
    if (!first) return;
    all->first_refused = i;
    all->refusal = s->refusal;
    all->why = s->why;
}

static void *work(void *user) {
    sizing *all = user;
    uint32_t i = 0;
    void *locale = stw_locale_enter();
    while (take_kind(all, &i)) {
        stw_error err = STW_ERROR_INIT;
        stw_pool *pool = stw_pool_new();
        search s = {.base = all->bases[i],
                    .options = all->options,
                    .pool = pool,
                    .answer = &all->answers[i],
                    .free_tokens = "",
                    .best = "",
                    .refusal = STW_STATUS_OK,
                    .why = STW_ERROR_INIT};
        stw_status status = pool != NULL ? answer_kind(&s, &err) : STW_STATUS_NO_MEMORY;
        pthread_mutex_lock(&all->mutex);
        if (status == STW_STATUS_OK && !keep_strings(all->pool, s.answer))
            status = STW_STATUS_NO_MEMORY;
        if (s.refusal != STW_STATUS_OK) note_refused(all, i, &s);
        if (status == STW_STATUS_NO_MEMORY) status = no_memory(&err);
        if (status != STW_STATUS_OK && all->status == STW_STATUS_OK) {
            all->status = status;
            all->err = err;
        }
        pthread_mutex_unlock(&all->mutex);
        stw_pool_free(pool);
    }
    stw_locale_leave(locale);
    return NULL;
}

static void put_in_order(sizing *all) {
    for (uint32_t i = 0; i < all->n; i++) {
        uint32_t at = i;
        for (; at > 0 &&
               all->answers[all->order[at - 1]].model->params < all->answers[i].model->params;
             at--)
            all->order[at] = all->order[at - 1];
        all->order[at] = i;
    }
}

stw_status stw_size_find(const stw_point_base *const *bases, const stw_size_options *options,
                         stw_pool *pool, stw_size_answer *answers, uint32_t n, stw_error *err) {
    sizing all = {.bases = bases,
                  .options = options,
                  .answers = answers,
                  .n = n,
                  .order = stw_pool_array(pool, n + 1, sizeof *all.order),
                  .mutex = PTHREAD_MUTEX_INITIALIZER,
                  .pool = pool,
                  .status = STW_STATUS_OK,
                  .refusal = STW_STATUS_OK,
                  .why = STW_ERROR_INIT,
                  .err = STW_ERROR_INIT};
    pthread_t threads[MOST_JOBS];
    bool searches;
    if (all.order == NULL) return no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        stw_status status = i > 0 && bases[i] == bases[i - 1]
                                ? STW_STATUS_OK
                                : check_settings(bases[i], &searches, err);
        if (status != STW_STATUS_OK) return status;
    }
    put_in_order(&all);
    uint32_t jobs = options->jobs > 0 ? options->jobs : stw_planner_cores(), started = 0;
    jobs = jobs < MOST_JOBS ? jobs : MOST_JOBS;
    while (started + 1 < jobs && started + 1 < n &&
           pthread_create(&threads[started], NULL, work, &all) == 0)
        started++;
    (void)work(&all); /* this thread works too */
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (all.status == STW_STATUS_OK && n > 0 && all.n_refused == n) {
        all.status = all.refusal;
        all.err = all.why;
    }
    if (all.status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = all.err;
    return all.status;
}
