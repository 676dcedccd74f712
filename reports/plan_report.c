/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/units.h"
#include "reports/plan_files.h"
#include "reports/plan_sections.h"

static void put_model(const stw_section *s) {
    const stw_model *m = s->plan->model;
    const stw_job *job = s->plan->job;
    stw_doc_heading(s->out, s->format, "Model");
    stw_doc_line(s->out, s->format, "%s%s%s: %s parameters in %s tensors, digest %s.", m->name,
                 *m->model_type != '\0' ? ", " : "", m->model_type, stw_word_count(m->params).text,
                 stw_word_count(m->n_tensors).text, m->digest);
    stw_doc_line(s->out, s->format,
                 "%u rank(s), state sharded over %u; the largest shard has %s parameters.",
                 job->world, job->group, stw_word_count(job->kinds[job->largest].params).text);
    const stw_run_spec *run = &s->plan->run;
    stw_doc_line(s->out, s->format,
                 "Engine %s; params %s, grads %s, exp_avg %s, exp_avg_sq %s, %s; %llu tokens per "
                 "rank and micro batch.",
                 stw_engine_name(run->engine), stw_dtype_name(run->precision.params),
                 stw_dtype_name(run->precision.grads), stw_dtype_name(run->precision.exp_avg),
                 stw_dtype_name(run->precision.exp_avg_sq),
                 run->precision.has_master ? "fp32 master" : "no master",
                 (unsigned long long)job->tokens);
}

static stw_word rate(double bps) {
    stw_word w;
    if (bps > 0)
        stw_quantity_format(bps, STW_UNIT_BPS, w.text, sizeof w.text);
    else
        snprintf(w.text, sizeof w.text, "none");
    return w;
}

/* The rate of reads and writes that run at the same time. */
static stw_word combined(double bps) {
    stw_word w, total = rate(bps);
    if (bps > 0)
        snprintf(w.text, sizeof w.text, "combined %.*s", (int)(sizeof w.text - 16), total.text);
    else
        snprintf(w.text, sizeof w.text, "not at the same time");
    return w;
}

static void put_cluster(const stw_section *s) {
    const stw_cluster *c = &s->plan->cluster;
    stw_word adamw;
    stw_quantity_format(c->cpu_adamw_pps, STW_UNIT_PPS, adamw.text, sizeof adamw.text);
    stw_doc_heading(s->out, s->format, "Cluster");
    stw_doc_line(s->out, s->format,
                 "%s: %u node(s), each with %u x %s. Memory limits: %s per %s, %s per host.",
                 c->name, c->nodes, c->gpus, c->gpus > 0 ? c->gpu.name : "GPU",
                 stw_word_gib(s->facts->gpu_capacity).text, c->gpus > 0 ? "GPU" : "device",
                 stw_word_gib(s->facts->host_capacity).text);
    stw_doc_line(s->out, s->format,
                 "PCIe: %s host to GPU, %s GPU to host, %s each way if both are busy. "
                 "Host memory: %s, at most %s for DMA. CPU AdamW: %s.",
                 rate(c->pcie.h2d_bps).text, rate(c->pcie.d2h_bps).text,
                 rate(c->pcie.both_bps).text, rate(c->host.bandwidth_bps).text,
                 rate(c->host.dma_bps).text, adamw.text);
    stw_doc_line(s->out, s->format, "NVLink: %s. Network: %s. NVMe: %s (read %s, write %s, %s).",
                 rate(c->nvlink_bps).text, rate(c->nic_bps).text,
                 stw_word_gib(c->nvme.capacity_bytes).text, rate(c->nvme.read_bps).text,
                 rate(c->nvme.write_bps).text, combined(c->nvme.both_bps).text);
    if (c->host.page_lock_limit_bytes != STW_UNLIMITED)
        stw_doc_line(s->out, s->format, "Page-locked memory: at most %s per node.",
                     stw_word_gib(c->host.page_lock_limit_bytes).text);
    if (c->calibration.measured)
        stw_doc_line(s->out, s->format, "Rates: measured on %s (%s).", c->calibration.date,
                     c->calibration.versions);
}

static void peak_row(stw_table *t, const char *of, const char *who, unsigned phase, uint64_t bytes,
                     uint64_t capacity) {
    stw_table_cell(t, "%s", of);
    stw_table_cell(t, "%s", who);
    stw_table_cell(t, "%s", stw_phase_name((stw_phase)phase));
    stw_table_cell(t, "%s", stw_word_gib(bytes).text);
    stw_table_cell(t, "%s", stw_word_gib(capacity).text);
    stw_table_cell(t, "%s", stw_word_share((double)bytes, (double)capacity).text);
    stw_table_cell(t, "%s", stw_word_bar(bytes, capacity).text);
}

static bool same_totals(const stw_peaks *a, const stw_peaks *b, stw_tier tier) {
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (a->has[p] != b->has[p] || a->phase[p][tier].total != b->phase[p][tier].total)
            return false;
    return true;
}

/* Kinds of ranks or of nodes, and how many members each kind has. */
typedef struct kinds {
    const stw_job *job;
    const stw_peaks *peaks; /* [n] */
    uint32_t n;
    stw_tier tier;
    uint32_t (*members)(const stw_job *job, uint32_t i);
} kinds;

/* Kinds with equal peaks share their rows. The first such kind prints them: `total` counts the
 * members of all, `others` says whether there is more than one kind. Returns false for the rest. */
static bool prints_rows(const kinds *all, uint32_t i, uint32_t *total, bool *others) {
    for (uint32_t k = 0; k < i; k++)
        if (same_totals(&all->peaks[k], &all->peaks[i], all->tier)) return false;
    *total = all->members(all->job, i);
    *others = false;
    for (uint32_t k = i + 1; k < all->n; k++) {
        if (!same_totals(&all->peaks[k], &all->peaks[i], all->tier)) continue;
        *total += all->members(all->job, k);
        *others = true;
    }
    return true;
}

static uint32_t ranks_of(const stw_job *job, uint32_t i) { return job->kinds[i].n_ranks; }
static uint32_t nodes_of(const stw_job *job, uint32_t i) { return job->node_kinds[i].n_nodes; }

static void rank_rows(const stw_section *s, stw_table *t) {
    const stw_plan *plan = s->plan;
    const stw_job *job = plan->job;
    char who[64];
    uint32_t total;
    bool others;
    const kinds all = {job, plan->peaks, job->n_kinds, STW_TIER_GPU, ranks_of};
    for (uint32_t k = 0; plan->peaks != NULL && k < job->n_kinds; k++) {
        if (!prints_rows(&all, k, &total, &others)) continue;
        snprintf(who, sizeof who, "%s%s (%u)", job->kinds[k].name, others ? " and others" : "",
                 total);
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            if (plan->peaks[k].has[p])
                peak_row(t, "GPU", who, p, plan->peaks[k].phase[p][STW_TIER_GPU].total,
                         s->facts->gpu_capacity);
    }
}

static void node_rows(const stw_section *s, stw_table *t) {
    const stw_plan *plan = s->plan;
    const stw_job *job = plan->job;
    char who[64];
    uint32_t total;
    bool others;
    const kinds all = {job, plan->node_peaks, job->n_node_kinds, STW_TIER_HOST, nodes_of};
    for (uint32_t n = 0; plan->node_peaks != NULL && n < job->n_node_kinds; n++) {
        if (!prints_rows(&all, n, &total, &others)) continue;
        snprintf(who, sizeof who, "node %u%s (%u)", job->node_kinds[n].first_node,
                 others ? " and others" : "", total);
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            if (plan->node_peaks[n].has[p])
                peak_row(t, "host", who, p, plan->node_peaks[n].phase[p][STW_TIER_HOST].total,
                         s->facts->host_capacity);
    }
}

static void put_peaks(const stw_section *s) {
    static const char *const heads[] = {"memory", "rank or node", "phase", ">peak",
                                        ">limit", ">share",       ""};
    const stw_plan_facts *f = s->facts;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 7);
    rank_rows(s, &t);
    node_rows(s, &t);
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (f->phases[p].nvme_bytes > 0)
            peak_row(&t, "NVMe", "worst node", p, f->phases[p].nvme_bytes, f->nvme_capacity);
    stw_doc_heading(s->out, s->format, "Peak memory");
    stw_table_write(&t, s->format, s->out);
}

static void put_components(const stw_section *s) {
    static const char *const heads[] = {"component", ">GPU", ">GPU share", ">host", ">host share"};
    const stw_plan *plan = s->plan;
    const stw_plan_facts *f = s->facts;
    if (f->gpu_phase == STW_N_PHASES || plan->node_peaks == NULL) return;
    const stw_peak *gpu =
        &plan->peaks[f->phases[f->gpu_phase].gpu_kind].phase[f->gpu_phase][STW_TIER_GPU];
    const stw_peak *host =
        &plan->node_peaks[f->phases[f->host_phase].host_kind].phase[f->host_phase][STW_TIER_HOST];
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 5);
    for (unsigned c = 0; c < STW_N_COMPONENTS; c++) {
        if (gpu->components[c] == 0 && host->components[c] == 0) continue;
        stw_table_cell(&t, "%s", stw_component_name((stw_component)c));
        for (unsigned side = 0; side < 2; side++) {
            const stw_peak *peak = side == 0 ? gpu : host;
            uint64_t bytes = peak->components[c];
            stw_table_cell(&t, "%s", bytes > 0 ? stw_word_gib(bytes).text : "");
            stw_table_cell(
                &t, "%s", bytes > 0 ? stw_word_share((double)bytes, (double)peak->total).text : "");
        }
    }
    stw_doc_heading(s->out, s->format, "Peak memory by component");
    stw_doc_line(s->out, s->format, "GPU: %s in %s. Host: all ranks of one node in %s.",
                 plan->job->kinds[f->phases[f->gpu_phase].gpu_kind].name,
                 stw_phase_name(f->gpu_phase), stw_phase_name(f->host_phase));
    stw_table_write(&t, s->format, s->out);
}

static const char *executor_of(const stw_plan *plan, stw_phase phase) {
    const stw_program *program = plan->programs != NULL ? plan->programs[plan->job->largest] : NULL;
    const stw_movement *m = program != NULL ? stw_program_movement(program, phase) : NULL;
    if (m == NULL) return "";
    return m->by_stowage ? "stowage" : "framework";
}

static void put_times(const stw_section *s, const stw_run_result *run) {
    static const char *const heads[] = {"phase",     "executed by", ">predicted",
                                        ">measured", "bottleneck",  ">bottleneck busy"};
    const stw_plan *plan = s->plan;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 6);
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const stw_phase_facts *f = &s->facts->phases[p];
        if (!f->present) continue;
        bool known = isfinite(f->time_s);
        stw_table_cell(&t, "%s", stw_phase_name((stw_phase)p));
        stw_table_cell(&t, "%s", executor_of(plan, (stw_phase)p));
        stw_table_cell(&t, "%s", stw_word_seconds(f->time_s).text);
        stw_table_cell(&t, "%s",
                       run == NULL             ? ""
                       : isnan(run->time_s[p]) ? "not measured"
                                               : stw_word_seconds(run->time_s[p]).text);
        stw_table_cell(&t, "%s", known && f->is_bound ? stw_resource_words(f->binds) : "");
        stw_table_cell(&t, "%s",
                       known && f->is_bound ? stw_word_share(f->busy_s, f->time_s).text : "");
    }
    stw_doc_heading(s->out, s->format, "Phase times");
    stw_table_write(&t, s->format, s->out);
    stw_text_printf(s->out, "\n");
    stw_section_solver(s);
}

static void put_prices(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const double negligible_s = 1e-7;
    if (plan->n_prices == 0) return;
    stw_doc_heading(s->out, s->format, "Value of more resources (each line was planned)");
    for (uint32_t i = 0; i < plan->n_prices; i++) {
        const stw_price *p = &plan->prices[i];
        const char *in = p->phase != NULL ? p->phase : "";
        stw_word what;
        stw_resource_name_words(p->resource, what.text, sizeof what.text);
        if (isnan(p->seconds_per_unit))
            stw_doc_item(s->out, s->format, "1 %s more of %s: unknown.", p->unit, what.text);
        else if (fabs(p->seconds_per_unit) < negligible_s)
            stw_doc_item(s->out, s->format, "1 %s more of %s saves nothing.", p->unit, what.text);
        else
            stw_doc_item(s->out, s->format, "1 %s more of %s%s%s%s %s %s per iteration.", p->unit,
                         what.text, *in != '\0' ? " (in " : "", in, *in != '\0' ? ")" : "",
                         p->seconds_per_unit < 0 ? "saves" : "costs",
                         stw_word_seconds(fabs(p->seconds_per_unit)).text);
    }
}

static stw_status put_measured(const stw_section *s, const stw_run_result *run,
                               const stw_comparison *comparison, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (run != NULL) {
        stw_doc_heading(s->out, s->format, "Run");
        STW_TRY(stw_report_run(run, s->format, s->out, err));
    }
    if (comparison != NULL) {
        stw_doc_heading(s->out, s->format, "Predicted and measured values");
        STW_TRY(stw_report_comparison(comparison, s->format, s->out, err));
    }
out:
    return status;
}

static stw_status report_for_people(const stw_plan *plan, const stw_run_result *run,
                                    const stw_comparison *comparison, stw_format format,
                                    stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan_facts facts;
    stw_plan_facts_get(plan, &facts);
    stw_section section = {plan, &facts, format, stw_pool_new(), out};
    if (section.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    stw_doc_title(out, format, "Capacity report: %s on %s", plan->model->name, plan->cluster.name);
    stw_section_verdict(&section);
    stw_section_infeasible(&section);
    put_model(&section);
    put_cluster(&section);
    stw_doc_heading(out, format, "State placement");
    stw_section_decisions(&section);
    if (plan->decisions.n_blocks > 0) {
        stw_doc_heading(out, format, "Activations");
        stw_section_activations(&section);
    }
    stw_doc_heading(out, format, "Transfers");
    stw_section_ring(&section);
    put_peaks(&section);
    put_components(&section);
    put_times(&section, run);
    put_prices(&section);
    STW_TRY(put_measured(&section, run, comparison, err));
    STW_TRY(stw_text_status(out, err));
out:
    stw_pool_free(section.pool);
    return status;
}

stw_status stw_report_plan(const stw_plan *plan, const stw_run_result *run,
                           const stw_comparison *comparison, stw_format format, stw_text *out,
                           stw_error *err) {
    if (format == STW_FORMAT_JSON) return stw_report_plan_json(plan, run, comparison, out, err);
    if (format == STW_FORMAT_CSV) return stw_report_plan_csv(plan, run, comparison, out, err);
    return report_for_people(plan, run, comparison, format, out, err);
}
