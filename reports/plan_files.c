/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/plan_files.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engines/save_plan.h"
#include "plan/checkpoint/buckets.h"
#include "plan/files/plan_file.h"
#include "reports/plan_sections.h"

/* Rows of one plan. */
typedef struct rows {
    stw_text *out;
    const char *plan; /* the first cell of each */
    const char *unit; /* samples of OpenMetrics, of the rows with this unit; NULL: CSV */
} rows;

/* The first label, `plan`, is always there; others are left out where they are empty. */
static void put_label(stw_text *out, const char *name, const char *value) {
    const bool first = strcmp(name, "plan") == 0;
    if (*value == '\0' && !first) return;
    stw_text_printf(out, "%s%s=\"", first ? "" : ",", name);
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            stw_text_printf(out, "\\n");
        else
            stw_text_printf(out, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    }
    stw_text_printf(out, "\"");
}

/* Units of rows, and the families of their samples. */
static const struct {
    const char *unit, *family, *suffix;
} families[] = {{"B", "stowage_plan_bytes", "bytes"},
                {"s", "stowage_plan_seconds", "seconds"},
                {"count", "stowage_plan_count", ""},
                {"1/s", "stowage_plan_per_second", ""}};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static void put_sample(const rows *out, const char *const labels[4], const char *value) {
    static const char *const names[] = {"section", "of", "phase", "what"};
    const char *family = "";
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].unit, out->unit) == 0) family = families[i].family;
    stw_text_printf(out->out, "%s{", family);
    put_label(out->out, "plan", out->plan);
    for (int i = 0; i < 4; i++) put_label(out->out, names[i], labels[i]);
    stw_text_printf(out->out, "} %s\n", value);
}

static void row(const rows *out, const char *section, const char *of, const char *phase,
                const char *what, const char *value, const char *unit) {
    if (out->unit != NULL) {
        if (strcmp(unit, out->unit) == 0 && *value != '\0')
            put_sample(out, (const char *const[]){section, of, phase, what}, value);
        return;
    }
    const char *const cells[] = {out->plan, section, of, phase, what, value, unit};
    stw_csv_row(out->out, cells, 7);
}

static void row_u64(const rows *out, const char *section, const char *of, const char *phase,
                    const char *what, uint64_t value, const char *unit) {
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    row(out, section, of, phase, what, digits, unit);
}

static void row_double(const rows *out, const char *section, const char *of, const char *phase,
                       const char *what, double value, const char *unit) {
    row(out, section, of, phase, what, stw_word_plain_double(value).text, unit);
}

/* What the text report begins with. */
static void put_headline(const stw_plan *plan, const stw_plan_facts *f, const rows *out) {
    static const char *const section = "headline";
    const double iteration_s = stw_plan_iteration_s(plan);
    const double tokens = plan->model->facts_known ? stw_plan_iteration_tokens(plan) : (double)NAN;
    char cluster[96];
    stw_remarks remarks;
    stw_section_cluster_name(&plan->cluster, cluster, sizeof cluster);
    row(out, section, "", "", "model", plan->model->name, "");
    row(out, section, "", "", "cluster", cluster, "");
    row(out, section, "", "", "engine", stw_engine_name(plan->run.engine), "");
    row_u64(out, section, "", "", "nodes", plan->cluster.nodes, "count");
    row(out, section, "", "", "verdict", stw_verdict_name(plan->verdict), "");
    row_double(out, section, "", "", "tokens_per_iteration", tokens, "count");
    row_double(out, section, "", "", "iteration", iteration_s, "s");
    row_double(out, section, "", "", "tokens_per_second", tokens / iteration_s, "1/s");
    row_double(out, section, "", "", "gpu_hours_per_1000_iterations",
               iteration_s * 1000 / 3600 * plan->job->ranks, "h");
    if (plan->cluster.usd_per_gpu_hour > 0)
        row_double(out, section, "", "", "cost_of_1000_iterations",
                   iteration_s * 1000 / 3600 * plan->job->ranks * plan->cluster.usd_per_gpu_hour,
                   "USD");
    stw_plan_remarks_get(plan, f, &remarks);
    if (remarks.failed) out->out->failed = true;
    for (uint32_t i = 0; i < remarks.n; i++)
        row(out, section, "", "", "warning", remarks.items[i].text, "");
}

static void put_inputs(const stw_plan *plan, const stw_plan_facts *f, const rows *out) {
    row(out, "plan", "", "", "model", plan->model->name, "");
    row(out, "plan", "", "", "cluster", plan->cluster.name, "");
    row(out, "plan", "", "", "verdict", stw_verdict_name(plan->verdict), "");
    row(out, "plan", "", "", "outcome", stw_outcome_name(plan->outcome), "");
    row_u64(out, "plan", "", "", "params", plan->model->params, "count");
    row_u64(out, "plan", "", "", "ranks", plan->job->world, "count");
    row_u64(out, "plan", "", "", "gpu_limit", f->gpu_capacity, "B");
    row_u64(out, "plan", "", "", "host_limit", f->host_capacity, "B");
    row_u64(out, "plan", "", "", "nvme_limit", f->nvme_capacity, "B");
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        char ranks[128];
        stw_job_kind_words(plan->job, k, ranks, sizeof ranks);
        row(out, "kind", plan->job->kinds[k].name, "", "ranks", ranks, "");
    }
    row_double(out, "plan", "", "", "iteration", stw_plan_iteration_s(plan), "s");
    for (uint32_t i = 0; i < f->n_excesses; i++)
        row_u64(out, "over", f->excesses[i].resource, stw_phase_name(f->excesses[i].phase),
                "over_bytes", f->excesses[i].bytes, "B");
}

/* Seconds of the planner's model, not simulated ones. */
static void put_solver(const stw_plan *plan, const rows *out) {
    row_double(out, "solver", "", "", "gap", plan->solver.gap, "");
    row_double(out, "solver", "", "", "estimate", stw_plan_estimate_s(plan, plan->objective_s),
               "s");
    row_double(out, "solver", "", "", "bound", stw_plan_estimate_s(plan, plan->solver.bound), "s");
}

static void put_decisions(const stw_plan *plan, const stw_plan_facts *f, const rows *out) {
    for (uint32_t i = 0; i < plan->decisions.n_state && i < STW_MAX_PLACES; i++) {
        char place[96];
        stw_place_format(&plan->decisions.state[i].place, place, sizeof place);
        row_u64(out, "state", place, "", "params", f->place_params[i], "count");
        for (unsigned t = 0; t < STW_N_TIERS; t++)
            row_u64(out, "state", place, "", stw_tier_name((stw_tier)t), f->place_bytes[i][t], "B");
    }
    if (f->frozen_params > 0)
        row_u64(out, "state", "frozen", "", "params", f->frozen_params, "count");
    for (unsigned t = 0; t < STW_N_TIERS && f->frozen_params > 0; t++)
        row_u64(out, "state", "frozen", "", stw_tier_name((stw_tier)t), f->frozen_bytes[t], "B");
    for (uint32_t i = 0; i < plan->decisions.n_blocks; i++) {
        const stw_block_decision *d = &plan->decisions.blocks[i];
        row_u64(out, "activations", plan->job->model->groups[d->group].name, "",
                stw_act_name(d->act), d->count, "blocks");
    }
    if (stw_plan_streams(plan)) {
        row_u64(out, "prefetch", "", "", "depth", plan->decisions.prefetch.depth, "count");
        row_u64(out, "prefetch", "", "", "bucket", plan->decisions.prefetch.bucket_bytes, "B");
    }
    row(out, "load", "", "", "method", stw_load_name(plan->decisions.load), "");
}

static void put_peak(const char *tier, const char *of, unsigned phase, const stw_peak *peak,
                     const rows *out) {
    const char *name = stw_phase_name((stw_phase)phase);
    char section[32];
    snprintf(section, sizeof section, "%s_peak", tier);
    row_u64(out, section, of, name, "total", peak->total, "B");
    for (unsigned c = 0; c < STW_N_COMPONENTS; c++)
        if (peak->components[c] > 0)
            row_u64(out, section, of, name, stw_component_name((stw_component)c),
                    peak->components[c], "B");
}

/* The table of roles, and what one of their ranks holds. */
static void put_roles(const stw_plan *plan, const rows *out) {
    const stw_job *job = plan->job;
    for (uint32_t r = 1; r < job->n_roles; r++) {
        const stw_job_role *role = &job->roles[r];
        stw_role_fact facts[STW_MAX_ROLE_FACTS];
        const size_t n = role->engine->facts != NULL ? role->engine->facts(job, r, facts) : 0;
        row(out, "role", role->name, "", "kind", stw_role_kind_name(role->spec->kind), "");
        row(out, "role", role->name, "", "engine", role->engine->name, "");
        row_u64(out, "role", role->name, "", "nodes", role->n_nodes, "count");
        row_u64(out, "role", role->name, "", "ranks", stw_job_role_ranks(job, r), "count");
        row(out, "role", role->name, "", "with",
            role->home == r ? "none" : job->roles[role->home].name, "");
        for (size_t i = 0; i < n; i++)
            row_u64(out, "role", role->name, "", facts[i].name, facts[i].value,
                    strstr(facts[i].name, "_bytes") != NULL ? "B" : "count");
    }
}

static void put_peaks(const stw_plan *plan, const stw_plan_facts *f, const rows *out) {
    for (uint32_t k = 0; plan->peaks != NULL && k < plan->job->n_kinds; k++)
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            if (plan->peaks[k].has[p])
                put_peak("gpu", plan->job->kinds[k].name, p, &plan->peaks[k].phase[p][STW_TIER_GPU],
                         out);
    for (uint32_t n = 0; plan->node_peaks != NULL && n < plan->job->n_node_kinds; n++) {
        char name[32];
        snprintf(name, sizeof name, "node %u", plan->job->node_kinds[n].first_node);
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            if (plan->node_peaks[n].has[p])
                put_peak("host", name, p, &plan->node_peaks[n].phase[p][STW_TIER_HOST], out);
    }
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (f->phases[p].nvme_bytes > 0)
            row_u64(out, "nvme_peak", "fullest node", stw_phase_name((stw_phase)p), "total",
                    f->phases[p].nvme_bytes, "B");
}

static void put_times(const stw_plan *plan, const stw_plan_facts *f, const stw_run_result *run,
                      const rows *out) {
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const char *name = stw_phase_name((stw_phase)p);
        const stw_phase_facts *phase = &f->phases[p];
        if (!phase->present) continue;
        row_double(out, "time", "", name, "predicted", phase->time_s, "s");
        if (stw_plan_is_unexecuted(plan, (stw_phase)p))
            row(out, "time", "", name, "executed_by", "planned, not executed", "");
        row_u64(out, "time", "", name, "passes_per_iteration", stw_plan_passes(plan, (stw_phase)p),
                "count");
        if (phase->is_bound && isfinite(phase->time_s))
            row_double(out, "time", stw_resource_name(phase->binds), name, "binding", phase->busy_s,
                       "s");
        if (run != NULL) row_double(out, "time", "", name, "measured", run->time_s[p], "s");
    }
}

static void put_answers(const stw_plan *plan, const rows *out) {
    if (plan->turned != NULL) {
        row(out, "turned", "", "", "settings", plan->turned, "");
        row_double(out, "turned", "", "", "iteration_without", plan->unturned_s, "s");
    }
    for (uint32_t i = 0; i < plan->n_alternatives; i++) {
        const stw_alternative *other = &plan->alternatives[i];
        row_double(out, "alternative", other->rule, "", "iteration", other->seconds, "s");
        row_double(out, "alternative", other->rule, "", "saves", other->share, "");
        row(out, "alternative", other->rule, "", "needs", other->needs, "");
        if (strcmp(other->rule, "setting") == 0)
            row(out, "alternative", other->rule, "", "verdict", stw_verdict_name(other->verdict),
                "");
    }
    for (uint32_t i = 0; i < plan->n_prices; i++) {
        const stw_price *price = &plan->prices[i];
        row_double(out, "price", price->resource, price->phase, "more", price->amount, price->unit);
        row_double(out, "price", price->resource, price->phase, "iteration", price->seconds, "s");
    }
    for (uint32_t i = 0; i < plan->n_bindings; i++) {
        const stw_binding *b = &plan->bindings[i];
        row_u64(out, "conflict", b->resource, b->phase, "enough_bytes", b->enough_bytes, "B");
    }
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        char name[32];
        snprintf(name, sizeof name, "fix%u", i + 1);
        for (uint32_t c = 0; c < plan->fixes[i].n_changes; c++)
            row(out, name, plan->fixes[i].changes[c].set, "", "value",
                plan->fixes[i].changes[c].value, "");
        if (!(plan->fixes[i].iteration_s > 0)) continue;
        row_double(out, name, "plan", "", "iteration", plan->fixes[i].iteration_s, "s");
        row_double(out, name, "plan", "", "tokens", plan->fixes[i].tokens_per_s, "1/s");
    }
}

static void put_comparison(const stw_comparison *comparison, const rows *out) {
    for (uint32_t i = 0; i < comparison->n_lines; i++) {
        const stw_compare_line *l = &comparison->lines[i];
        const char *phase = stw_phase_name(l->phase);
        char of[96];
        const char *unit = l->is_time ? "s" : "B";
        snprintf(of, sizeof of, "%s %s", l->kind, l->what);
        row_double(out, "compare", of, phase, "predicted", l->predicted, unit);
        row_double(out, "compare", of, phase, "measured",
                   l->verdict == STW_LINE_NOT_MEASURED ? NAN : l->measured, unit);
        row_double(out, "compare", of, phase, "error",
                   l->verdict == STW_LINE_NOT_MEASURED ? NAN : l->error, "");
    }
}

/* What each rank writes of a checkpoint of Stowage's own; ranks that write as much in one row. */
static stw_status put_saves(const stw_plan *plan, const rows *out, stw_error *err) {
    static const char *const section = "checkpoint";
    const stw_save_plan *saves = NULL;
    char ranks[48];
    if (!stw_run_spec_saves_own(&plan->run)) return STW_STATUS_OK;
    const stw_status status = stw_save_plan_of(plan->job, &saves, err);
    if (status != STW_STATUS_OK) return status;
    row_u64(out, section, "", section, "files", saves->n_files, "count");
    row_u64(out, section, "", section, "bytes", saves->bytes, "B");
    row_u64(out, section, "every rank", section, "buckets",
            stw_save_buckets(STW_SAVE_BUCKET_BYTES, stw_run_spec_copies(&plan->run)), "count");
    for (uint32_t r = 0, end = 0; r < plan->job->world; r = end) {
        while (end < plan->job->world && saves->rank_bytes[end] == saves->rank_bytes[r]) end++;
        if (end == r + 1)
            snprintf(ranks, sizeof ranks, "rank %" PRIu32, r);
        else
            snprintf(ranks, sizeof ranks, "ranks %" PRIu32 "-%" PRIu32, r, end - 1);
        row_u64(out, section, ranks, section, "written", saves->rank_bytes[r], "B");
    }
    return STW_STATUS_OK;
}

stw_status stw_report_plan_csv(const stw_plan *plan, const stw_run_result *run,
                               const stw_comparison *comparison, const char *name, bool heads,
                               stw_text *text, stw_error *err) {
    stw_plan_facts facts;
    const rows all = {text, name, NULL}, *out = &all;
    stw_plan_facts_get(plan, &facts);
    if (heads) row(&(rows){text, "plan", NULL}, "section", "of", "phase", "what", "value", "unit");
    put_headline(plan, &facts, out);
    put_inputs(plan, &facts, out);
    put_decisions(plan, &facts, out);
    put_roles(plan, out);
    put_peaks(plan, &facts, out);
    put_times(plan, &facts, run, out);
    const stw_status status = put_saves(plan, out, err);
    if (status != STW_STATUS_OK) return status;
    put_solver(plan, out);
    put_answers(plan, out);
    if (comparison != NULL) put_comparison(comparison, out);
    return stw_text_status(text, err);
}

static void put_samples(const stw_plan *plan, const rows *out) {
    stw_plan_facts facts;
    stw_plan_facts_get(plan, &facts);
    put_headline(plan, &facts, out);
    put_inputs(plan, &facts, out);
    put_decisions(plan, &facts, out);
    put_roles(plan, out);
    put_peaks(plan, &facts, out);
    put_times(plan, &facts, NULL, out);
}

stw_status stw_report_plans_openmetrics(const stw_plan *const *plans, const char *const *names,
                                        size_t n, stw_text *out, stw_error *err) {
    stw_text_printf(out, "# TYPE stowage_plan info\n");
    for (size_t i = 0; i < n; i++) {
        stw_text_printf(out, "stowage_plan_info{");
        put_label(out, "plan", names[i]);
        put_label(out, "model", plans[i]->model->name);
        put_label(out, "cluster", plans[i]->cluster.name);
        put_label(out, "engine", stw_engine_name(plans[i]->run.engine));
        put_label(out, "verdict", stw_verdict_name(plans[i]->verdict));
        stw_text_printf(out, "} 1\n");
    }
    for (int f = 0; f < N_FAMILIES; f++) {
        stw_text_printf(out, "# TYPE %s gauge\n", families[f].family);
        if (families[f].suffix[0] != '\0')
            stw_text_printf(out, "# UNIT %s %s\n", families[f].family, families[f].suffix);
        for (size_t i = 0; i < n; i++)
            put_samples(plans[i], &(rows){out, names[i], families[f].unit});
    }
    stw_text_printf(out, "# EOF\n");
    return stw_text_status(out, err);
}

stw_status stw_report_plan_json(const stw_plan *plan, const stw_run_result *run,
                                const stw_comparison *comparison, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text_printf(out, "{\n\"schema\": \"stowage.report/1\",\n\"plan\": ");
    STW_TRY(stw_plan_to_json(plan, out, err));
    stw_text_printf(out, ",\n\"run\": %s", run != NULL ? "" : "null\n");
    if (run != NULL) STW_TRY(stw_run_result_to_json(run, out, err));
    stw_text_printf(out, ",\n\"comparison\": %s", comparison != NULL ? "" : "null\n");
    if (comparison != NULL) STW_TRY(stw_comparison_to_json(comparison, out, err));
    stw_text_printf(out, "}\n");
    STW_TRY(stw_text_status(out, err));
out:
    return status;
}
