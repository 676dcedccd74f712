/* SPDX-License-Identifier: Apache-2.0 */
/* Whether points fit, and where they begin and cease to. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/size_search.h"

/* Where so many nodes are not enough, the most that there are come first: these seldom help where
 * bytes of every GPU are too many. They say nothing where the tokens of a step cannot be divided
 * among them. */
#define FEW_NODES 4u

void stw_size_go(stw_size_search *s, uint32_t at) {
    const uint32_t parts = s->node.gpus > 0 ? s->node.gpus : 1;
    s->at = at;
    stw_cluster_part(&s->node, at < parts && s->node.gpus > 0 ? at + 1 : s->node.gpus, &s->cluster);
    s->cluster.nodes = at < parts ? 1 : at - parts + 2;
}

uint32_t stw_size_of_nodes(const stw_size_search *s, uint32_t nodes) {
    return (s->node.gpus > 0 ? s->node.gpus : 1) + nodes - 2;
}

static bool add_words(const stw_size_search *s, const char *words, const char **out, size_t *n) {
    for (const char *at = words; *at != '\0';) {
        const size_t length = strcspn(at, " ");
        if (*n + 1 > STW_SIZE_MOST_SETTINGS) return false;
        out[*n] = stw_pool_printf(s->pool, "%.*s", (int)length, at);
        if (out[(*n)++] == NULL) return false;
        at += length + strspn(at + length, " ");
    }
    return true;
}

bool stw_size_settings(const stw_size_search *s, const char *layout, const char *extra,
                       const char **out, size_t *n) {
    *n = 0;
    if (s->more != NULL) out[(*n)++] = s->more;
    return add_words(s, layout, out, n) && (extra == NULL || add_words(s, extra, out, n));
}

stw_status stw_size_no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "size", "out of memory");
}

stw_status stw_size_plan(stw_size_search *s, const char *layout, const stw_point_options *how,
                         stw_plan **out, stw_error *err) {
    stw_point_base base = *s->base;
    const char *settings[STW_SIZE_MOST_SETTINGS];
    size_t n;
    base.cluster = &s->cluster;
    s->answer->planned++;
    if (!stw_size_settings(s, layout, NULL, settings, &n)) return stw_size_no_memory(err);
    return stw_point_plan(&base, settings, n, how, out, err);
}

void stw_size_note_setup(const stw_plan *plan, stw_size_setup *out) {
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

/* Failures that are answers. Those of the time limit are counted. */
static stw_status answer_of(stw_size_search *s, stw_status status, const stw_error *why,
                            stw_error *err) {
    s->refused = stw_point_refuses(status);
    s->answer->late += status == STW_STATUS_TIME_LIMIT;
    if (s->refused || status == STW_STATUS_TIME_LIMIT || status == STW_STATUS_SOLVER)
        return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = *why;
    return status;
}

/* Does it fit? What is refused, or has no plan in time, does not. @param layout NULL: any
 * @param without_risk of a layout: what is at risk does not either */
static stw_status ask(stw_size_search *s, const char *layout, const char *extra, bool without_risk,
                      stw_point_fit *out, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    stw_point_base base = *s->base;
    const stw_point_fit_options options = {s->options->time_limit_s, layout == NULL, without_risk};
    const char *settings[STW_SIZE_MOST_SETTINGS];
    size_t n;
    base.cluster = &s->cluster;
    s->answer->planned++;
    *out = (stw_point_fit){false, ""};
    if (!stw_size_settings(s, layout != NULL ? layout : "", extra, settings, &n))
        return stw_size_no_memory(err);
    stw_status status = stw_point_fits(&base, settings, n, &options, s->pool, out, &why);
    if (status != STW_STATUS_OK) out->fits = false;
    return answer_of(s, status, &why, err);
}

/* Does the plan that `stowage plan` makes fit? */
static stw_status ask_plan(stw_size_search *s, bool *fits, stw_error *err) {
    const stw_point_options how = {.time_limit_s = s->options->time_limit_s};
    stw_plan *found = NULL;
    stw_error why = STW_ERROR_INIT;
    stw_status status = stw_size_plan(s, s->best, &how, &found, &why);
    *fits = status == STW_STATUS_OK && found->verdict != STW_VERDICT_DOES_NOT_FIT;
    stw_plan_free(found);
    return answer_of(s, status, &why, err);
}

stw_status stw_size_ask(stw_size_search *s, bool *fits, stw_error *err) {
    stw_point_fit found;
    stw_status status = ask(s, NULL, NULL, false, &found, err);
    s->best = found.layout;
    *fits = found.fits;
    if (status == STW_STATUS_OK && *fits && s->strict) status = ask_plan(s, fits, err);
    return status;
}

stw_status stw_size_find_first(stw_size_search *s, uint32_t from, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *fits = false;
    for (uint32_t at = from; at < s->n_counts; at++) {
        if (at == stw_size_of_nodes(s, FEW_NODES) + 1) {
            stw_size_go(s, s->n_counts - 1);
            STW_TRY(stw_size_ask(s, fits, err));
            if (!*fits && !s->refused) break;
        }
        stw_size_go(s, at);
        STW_TRY(stw_size_ask(s, fits, err));
        if (*fits) break;
    }
out:
    return status;
}

stw_status stw_size_find_most(stw_size_search *s, const char *key, uint64_t from, uint64_t step,
                              uint64_t cap, uint64_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char setting[160];
    uint64_t least = from, most = 0; /* fits; does not, 0: not known */
    const bool calm = s->answer->row.verdict == STW_SWEEP_FITS;
    while (most == 0 || most - least > step) {
        uint64_t at = least / step * step * 2;
        if (most > 0) at = (least + (most - least) / 2) / step * step;
        if (at <= least) at = (least / step + 1) * step;
        if (most > 0 ? at >= most : least >= cap) break;
        stw_point_fit here;
        snprintf(setting, sizeof setting, "%s%s=%" PRIu64, s->free_tokens, key, at);
        STW_TRY(ask(s, s->best, setting, calm, &here, err));
        *(here.fits ? &least : &most) = at;
    }
    *out = least;
out:
    return status;
}
