/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "planner/point.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "plan/job/effect.h"
#include "planner/layouts.h"
#include "planner/problem.h"

/* All settings, those of the base first; what follows from them comes last, as in a plan. */
static stw_status read_specs(const stw_point_base *base, const char *const *all, size_t n_all,
                             stw_cluster *cluster, stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (base->import != NULL) STW_TRY(stw_import_run(base->import, run, err));
    if (base->run != NULL) STW_TRY(stw_run_spec_from_node(base->run, base->run->root, run, err));
    STW_TRY(stw_specs_set_all(cluster, run, all, n_all, "--set", err));
    if (base->import != NULL) {
        STW_TRY(stw_import_batch(base->import, cluster, run, err));
        STW_TRY(stw_specs_set_all(cluster, run, all, n_all, "--set", err));
    }
    STW_TRY(stw_cluster_check(cluster, "--set", err));
    STW_TRY(stw_run_spec_check(run, "--set", err));
out:
    return status;
}

/* Of the GPU's memory: rows lie above the bytes of the walk by less. */
static const double LOOSE_ROWS = 0.35;

/* Of the time of a point, what a search of its layout may take. */
static const double LAYOUT_SHARE = 0.7;

/* Points share the cores already. */
static stw_status choose_layout(const stw_point_base *base, const stw_cluster *cluster,
                                const stw_point_options *options, stw_run_spec *run,
                                stw_layout_search *out, stw_error *err) {
    const stw_layouts_options layouts = {.time_limit_s = LAYOUT_SHARE * options->time_limit_s,
                                         .jobs = 1,
                                         .fits_only = options->fits_only,
                                         .tells_turns = base->import != NULL,
                                         .brief = options->quick,
                                         .most_s = options->most_s,
                                         .simulate = base->simulate,
                                         .finish = base->finish};
    return stw_layouts_choose(base->model, cluster, run, &layouts, run->pool, out, err);
}

static stw_status make_plan(const stw_point_base *base, const char *const *all, size_t n_all,
                            const stw_point_options *options, stw_plan **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = *base->cluster;
    stw_run_spec run = {0};
    stw_plan *plan = NULL;
    stw_layout_search layouts = {.searched = NULL};
    stw_planner_sieve sieve = {.most_s = options->most_s, .most_share = LOOSE_ROWS};
    const stw_planner_options planner = {.time_limit_s = options->time_limit_s,
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .no_alternatives = true,
                                         .no_reasons = true,
                                         .tells_turns = base->import != NULL,
                                         .only_stage1 = options->fits_only || options->quick,
                                         .sieve = options->quick ? &sieve : NULL,
                                         .simulate = base->simulate};
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(read_specs(base, all, n_all, &cluster, &run, err));
    STW_TRY(choose_layout(base, &cluster, options, &run, &layouts, err));
    STW_TRY(stw_plan_new_sharing(base->model, &cluster, &run, &plan, err));
    plan->layout_search = layouts;
    for (size_t i = 0; i < n_all; i++)
        STW_TRY(stw_job_check_setting(plan->job, all[i], "--set", err));
    STW_TRY(stw_planner_solve(plan, &planner, err));
    *out = NULL;
    if (sieve.too_slow || sieve.too_big) goto out;
    if (!options->fits_only) STW_TRY(base->finish(plan, err));
    STW_TRY(stw_layouts_settle(&layouts, plan->verdict, options->time_limit_s, err));
    *out = plan;
    plan = NULL;
out:
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    return status;
}

/* The settings of a base, then further ones. NULL: no memory. */
static const char *const *all_settings(const stw_point_base *base, const char *const *settings,
                                       size_t n, stw_pool *pool) {
    const char **all =
        pool != NULL ? stw_pool_array(pool, base->n_settings + n + 1, sizeof *all) : NULL;
    for (size_t i = 0; all != NULL && i < base->n_settings + n; i++)
        all[i] = i < base->n_settings ? base->settings[i] : settings[i - base->n_settings];
    return all;
}

stw_status stw_point_plan(const stw_point_base *base, const char *const *settings,
                          size_t n_settings, const stw_point_options *options, stw_plan **out,
                          stw_error *err) {
    stw_pool *pool = stw_pool_new();
    const char *const *all = all_settings(base, settings, n_settings, pool);
    stw_status status = STW_STATUS_NO_MEMORY;
    if (all == NULL) {
        stw_pool_free(pool);
        return stw_planner_no_memory(err);
    }
    double before = stw_deadline_set(stw_now_s() + options->time_limit_s);
    status = make_plan(base, all, base->n_settings + n_settings, options, out, err);
    (void)stw_deadline_set(before);
    stw_pool_free(pool);
    return status;
}

/* ---- does it fit? ---- */

static stw_status fit_layout(const stw_point_base *base, const stw_cluster *cluster,
                             stw_run_spec *run, const stw_point_fit_options *options, bool *fits,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_planner_sieve sieve = {
        .state_first = true, .bytes_alone = !options->without_risk, .most_share = LOOSE_ROWS};
    const stw_planner_options planner = {.time_limit_s = options->time_limit_s,
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .no_alternatives = true,
                                         .no_reasons = true,
                                         .only_stage1 = true,
                                         .sieve = &sieve,
                                         .simulate = base->simulate};
    STW_TRY(stw_plan_new_sharing(base->model, cluster, run, &plan, err));
    plan->walk_alone = !options->without_risk;
    STW_TRY(stw_planner_solve(plan, &planner, err));
    *fits = !sieve.too_big && plan->verdict != STW_VERDICT_DOES_NOT_FIT;
    if (options->without_risk) *fits = *fits && plan->verdict != STW_VERDICT_AT_RISK;
out:
    stw_plan_free(plan);
    return status;
}

/* Load methods are searched as layouts are: where it does not fit with what the engine usually
 * does, with the one that holds the least. @param run its layout is fixed @param out in: does it
 * fit with that load, the words of its layout; out: those of the load are added */
static stw_status fit_load(const stw_point_base *base, const stw_cluster *cluster,
                           stw_run_spec *run, const stw_point_fit_options *options, stw_pool *pool,
                           stw_point_fit *out, stw_error *err) {
    static const char *const words = "load.method=sharded_read";
    const stw_engine *engine = stw_engine_of(run);
    stw_error why = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    const bool open = run->load.method == STW_AUTO && engine->usual_load != NULL &&
                      engine->usual_load(run) != STW_LOAD_SHARDED_READ;
    const bool sharded = out->fits;
    if (open || !sharded) STW_TRY(fit_layout(base, cluster, run, options, &out->fits, err));
    if (!open || out->fits || !options->any_layout) goto out;
    run->load.method = STW_LOAD_SHARDED_READ;
    out->fits = sharded;
    if (!sharded) status = fit_layout(base, cluster, run, options, &out->fits, &why);
    if (stw_point_refuses(status)) { /* an engine that has no such load */
        out->fits = false;
        return STW_STATUS_OK;
    }
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    if (status != STW_STATUS_OK || !out->fits) goto out;
    out->layout =
        stw_pool_printf(pool, "%s%s%s", out->layout, out->layout[0] != '\0' ? " " : "", words);
    if (out->layout == NULL) status = stw_planner_no_memory(err);
out:
    return status;
}

static stw_status find_fit(const stw_point_base *base, const char *const *all, size_t n_all,
                           const stw_point_fit_options *options, stw_pool *pool, stw_point_fit *out,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = *base->cluster;
    stw_run_spec run = {0};
    stw_layout_search found = {.searched = NULL};
    *out = (stw_point_fit){false, ""};
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(read_specs(base, all, n_all, &cluster, &run, err));
    if (options->any_layout) (void)stw_layouts_open(base->model, &run);
    if (!stw_run_spec_is_open(&run)) {
        STW_TRY(fit_load(base, &cluster, &run, options, pool, out, err));
        goto out;
    }
    const stw_point_options point = {.time_limit_s = options->time_limit_s / LAYOUT_SHARE,
                                     .fits_only = true};
    STW_TRY(choose_layout(base, &cluster, &point, &run, &found, err));
    if (found.n_rows == 0) goto out;
    out->fits = found.rows[0].verdict != STW_VERDICT_DOES_NOT_FIT;
    STW_TRY(stw_layouts_settle(&found, found.rows[0].verdict, options->time_limit_s, err));
    out->layout = stw_pool_string(pool, found.rows[0].settings);
    if (out->layout == NULL) STW_TRY(stw_planner_no_memory(err));
    if (out->fits) STW_TRY(fit_load(base, &cluster, &run, options, pool, out, err));
out:
    stw_run_spec_free(&run);
    return status;
}

stw_status stw_point_fits(const stw_point_base *base, const char *const *settings,
                          size_t n_settings, const stw_point_fit_options *options, stw_pool *pool,
                          stw_point_fit *out, stw_error *err) {
    const char *const *all = all_settings(base, settings, n_settings, pool);
    if (all == NULL) return stw_planner_no_memory(err);
    const double before = stw_deadline_set(stw_now_s() + options->time_limit_s);
    stw_status status = find_fit(base, all, base->n_settings + n_settings, options, pool, out, err);
    (void)stw_deadline_set(before);
    return status;
}

/* ---- bounds and layouts of sizes ---- */

stw_status stw_point_layouts(const stw_point_base *base, const char *const *settings,
                             size_t n_settings, const stw_point_options *options, stw_pool *pool,
                             stw_layout_search *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = *base->cluster;
    stw_run_spec run = {0};
    const char *const *all = all_settings(base, settings, n_settings, pool);
    *out = (stw_layout_search){.searched = NULL};
    if (all == NULL) return stw_planner_no_memory(err);
    const double before = stw_deadline_set(stw_now_s() + options->time_limit_s);
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(read_specs(base, all, base->n_settings + n_settings, &cluster, &run, err));
    STW_TRY(choose_layout(base, &cluster, options, &run, out, err));
    if (out->searched != NULL) out->searched = "";
    for (uint32_t i = 0; i < out->n_rows; i++) {
        out->rows[i].settings = stw_pool_string(pool, out->rows[i].settings);
        if (out->rows[i].settings == NULL) STW_TRY(stw_planner_no_memory(err));
    }
out:
    (void)stw_deadline_set(before);
    stw_run_spec_free(&run);
    return status;
}

stw_status stw_point_compute_seconds(const stw_point_base *base, const char *const *settings,
                                     size_t n_settings, double *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = *base->cluster;
    stw_run_spec run = {0};
    stw_plan *plan = NULL;
    stw_cost *cost = NULL;
    stw_pool *pool = stw_pool_new();
    const char *const *all = all_settings(base, settings, n_settings, pool);
    *out = 0;
    if (all == NULL) STW_TRY(stw_planner_no_memory(err));
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(read_specs(base, all, base->n_settings + n_settings, &cluster, &run, err));
    STW_TRY(stw_plan_new_sharing(base->model, &cluster, &run, &plan, err));
    STW_TRY(stw_cost_new(plan->job, base->simulate, &cost, err));
    *out = stw_cost_compute_seconds(cost);
out:
    stw_cost_free(cost);
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    stw_pool_free(pool);
    return status;
}

stw_status stw_point_inputs_hash(const stw_point_base *base, stw_pool *pool, const char **out,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = {0};
    stw_text text = STW_TEXT_INIT;
    stw_json *json = NULL;
    STW_TRY(stw_run_spec_init(&run, err));
    if (base->import != NULL) STW_TRY(stw_import_run(base->import, &run, err));
    if (base->run != NULL) STW_TRY(stw_run_spec_from_node(base->run, base->run->root, &run, err));
    json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_cluster_write_json(base->cluster, json, "cluster");
    stw_run_spec_write_json(&run, json, "run");
    stw_json_u64(json, "searched", run.searches.keys);
    stw_json_u64(json, "given", run.search_all ? run.searches.given : 0);
    stw_json_u64(json, "global_batch", base->import != NULL ? base->import->global_batch : 0);
    if (base->import != NULL && base->import->triple) {
        stw_json_u64(json, "micro", base->import->micro);
        stw_json_u64(json, "accumulation", base->import->accumulation);
    }
    stw_json_u64(json, "step_sequences", base->import != NULL ? base->import->step_sequences : 0);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    *out = stw_pool_printf(pool, "%016" PRIx64, (uint64_t)XXH3_64bits(text.data, text.length));
    if (*out == NULL) status = stw_planner_no_memory(err);
out:
    stw_text_free(&text);
    stw_run_spec_free(&run);
    return status;
}
