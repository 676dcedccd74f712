/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/units.h"
#include "plan/files/plan_file.h"
#include "reports/plan_files.h"
#include "reports/plan_sections.h"

/* Nothing where forward and backward are unknown: no key of a batch has an effect there. */
static void put_tokens(const stw_section *s) {
    const stw_job *job = s->plan->job;
    const stw_run_spec *run = &s->plan->run;
    if (!s->plan->model->facts_known) return;
    const uint64_t steps = stw_run_spec_steps(run);
    stw_text times = STW_TEXT_INIT;
    if (steps > 1) stw_text_printf(&times, "%s optimizer steps of ", stw_word_count(steps).text);
    stw_doc_line(
        s->out, s->format, "Tokens per iteration: %s (%s%u rank%s, %s micro batch%s of %s%s each).",
        stw_word_count((uint64_t)stw_plan_iteration_tokens(s->plan)).text,
        times.data != NULL ? times.data : "", job->world, job->world > 1 ? "s" : "",
        stw_word_count(run->batch.grad_accumulation).text,
        run->batch.grad_accumulation > 1 ? "es" : "",
        run->batch.tokens_per_step > 0 && run->batch.max_tokens_per_gpu > 0 ? "at most " : "",
        stw_word_count(job->tokens).text);
    if (times.failed) s->out->failed = true;
    stw_text_free(&times);
}

/* "8 ranks, state sharded over 8 of them; ..." */
static void put_shards(const stw_section *s) {
    const stw_job *job = s->plan->job;
    const stw_rank_kind *most = &job->kinds[job->largest];
    const uint64_t updates = most->spaces[STW_SPACE_OPTIMIZER].n;
    char held[160];
    if (job->world == 1) {
        stw_doc_line(s->out, s->format, "1 rank, which holds all state.");
        return;
    }
    if (updates == most->params)
        snprintf(held, sizeof held, "the largest shard has %s parameters",
                 stw_word_count(updates).text);
    else
        snprintf(held, sizeof held, "the largest rank holds %s parameters and updates %s of them",
                 stw_word_count(most->params).text, stw_word_count(updates).text);
    stw_doc_line(s->out, s->format, "%u ranks, state sharded over %u of them; %s.", job->world,
                 job->group, held);
}

static void put_model(const stw_section *s) {
    const stw_model *m = s->plan->model;
    stw_doc_heading(s->out, s->format, "Model");
    stw_doc_line(s->out, s->format, "%s%s%s: %s parameters in %s tensors, digest %s.", m->name,
                 *m->model_type != '\0' ? ", " : "", m->model_type, stw_word_count(m->params).text,
                 stw_word_count(m->n_tensors).text, m->digest);
    put_shards(s);
    const stw_run_spec *run = &s->plan->run;
    stw_doc_line(
        s->out, s->format, "Engine %s; params %s, grads %s, exp_avg %s, exp_avg_sq %s, %s.",
        stw_engine_name(run->engine), stw_word_dtype(run->precision.params).text,
        stw_word_dtype(run->precision.grads).text, stw_word_dtype(run->precision.exp_avg).text,
        stw_word_dtype(run->precision.exp_avg_sq).text,
        run->precision.has_master ? "fp32 master" : "no master");
    put_tokens(s);
}

static stw_word quantity(double value, stw_unit unit) {
    stw_word w;
    stw_quantity_format(value, unit, w.text, sizeof w.text);
    return w;
}

static stw_word rate(double bps) {
    stw_word none = {"none"};
    return bps > 0 ? quantity(bps, STW_UNIT_BPS) : none;
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
    stw_doc_heading(s->out, s->format, "Cluster");
    char machine[192];
    stw_section_machine(c, machine, sizeof machine);
    stw_doc_line(s->out, s->format, "%s: %s. Memory limits: %s per %s, %s per node.", c->name,
                 machine, stw_word_gib(s->facts->gpu_capacity).text,
                 stw_cluster_has_gpus(c) ? "GPU" : "emulated GPU",
                 stw_word_gib(s->facts->host_capacity).text);
    stw_doc_line(s->out, s->format, "Per GPU: %s in bf16; memory bandwidth %s.",
                 quantity(c->gpu.bf16_flops, STW_UNIT_FLOPS).text, rate(c->gpu.hbm_bps).text);
    stw_doc_line(s->out, s->format,
                 "Per GPU: PCIe %s host to GPU, %s GPU to host, %s each way if both are busy; "
                 "NVLink %s; network %s.",
                 rate(c->pcie.h2d_bps).text, rate(c->pcie.d2h_bps).text,
                 rate(c->pcie.both_bps).text, rate(c->nvlink_bps).text, rate(c->nic_bps).text);
    stw_doc_line(s->out, s->format, "Per node: host memory %s, at most %s for DMA; CPU AdamW %s.",
                 rate(c->host.bandwidth_bps).text, rate(c->host.dma_bps).text,
                 quantity(c->cpu_adamw_pps, STW_UNIT_PPS).text);
    if (c->nvme.capacity_bytes > 0)
        stw_doc_line(s->out, s->format, "NVMe per node: %s (read %s, write %s, %s).",
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
    const bool limited = capacity != STW_UNLIMITED;
    stw_table_cell(t, "%s", limited ? stw_word_gib(capacity).text : "none");
    stw_table_cell(t, "%s", limited ? stw_word_share((double)bytes, (double)capacity).text : "");
    stw_table_cell(t, "%s", limited ? stw_word_bar(bytes, capacity).text : "");
}

/* Kinds whose peaks differ by at most this share are shown as one. */
static const double ALIKE = 0.01;

static bool alike(const stw_peaks *a, const stw_peaks *b, uint32_t memory) {
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        double x = (double)stw_peaks_bytes(a, p, memory), y = (double)stw_peaks_bytes(b, p, memory);
        if (a->has[p] != b->has[p] || fabs(x - y) > ALIKE * fmax(x, y)) return false;
    }
    return true;
}

/* Kinds of ranks or of nodes. */
typedef struct kinds {
    const stw_job *job;
    const stw_peaks *peaks; /* [n] */
    uint32_t n;
    uint32_t of; /* a tier or STW_MEMORY_PAGE_LOCKED */
    const char *memory;
    uint64_t capacity;
    void (*words)(const stw_job *job, const bool *kinds, char *out, size_t out_size);
} kinds;

/* The largest peak of a phase over some kinds. */
static uint64_t largest(const kinds *all, const bool *of, unsigned phase) {
    uint64_t most = 0;
    for (uint32_t k = 0; k < all->n; k++)
        if (of[k]) most = stw_max_u64(most, stw_peaks_bytes(&all->peaks[k], phase, all->of));
    return most;
}

/* Kinds with nearly equal peaks share their rows. */
static void kind_rows(const stw_section *s, stw_table *t, const kinds *all) {
    char who[128];
    bool *like = stw_pool_array(s->pool, all->n, sizeof *like);
    bool *shown = stw_pool_array(s->pool, all->n, sizeof *shown);
    if (like == NULL || shown == NULL) {
        s->out->failed = true;
        return;
    }
    for (uint32_t i = 0; i < all->n; i++) {
        if (shown[i]) continue;
        for (uint32_t k = 0; k < all->n; k++) {
            like[k] = !shown[k] && alike(&all->peaks[i], &all->peaks[k], all->of);
            shown[k] |= like[k];
        }
        all->words(all->job, like, who, sizeof who);
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            if (all->peaks[i].has[p] && (all->of < STW_N_TIERS || largest(all, like, p) > 0))
                peak_row(t, all->memory, who, p, largest(all, like, p), all->capacity);
    }
}

static void put_peaks(const stw_section *s) {
    static const char *const heads[] = {"memory", "where",  "phase", ">peak",
                                        ">limit", ">share", ""};
    const stw_plan_facts *f = s->facts;
    const stw_plan *plan = s->plan;
    const stw_job *job = plan->job;
    const kinds ranks = {job,
                         plan->peaks,
                         plan->peaks != NULL ? job->n_kinds : 0,
                         STW_TIER_GPU,
                         "GPU",
                         f->gpu_capacity,
                         stw_job_ranks_words};
    const kinds nodes = {job,
                         plan->node_peaks,
                         plan->node_peaks != NULL ? job->n_node_kinds : 0,
                         STW_TIER_HOST,
                         "host",
                         f->host_capacity,
                         stw_job_nodes_words};
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 7);
    kind_rows(s, &t, &ranks);
    if (!job->engine->spec.own_process) { /* with what the framework's allocator holds in reserve */
        kinds reserved = ranks;
        reserved.peaks = plan->shown;
        reserved.n = plan->shown != NULL ? job->n_kinds : 0;
        reserved.memory = "GPU reserved";
        kind_rows(s, &t, &reserved);
    }
    kind_rows(s, &t, &nodes);
    if (!job->engine->spec
             .own_process) { /* Stowage's own host bytes are page-locked, all of them */
        kinds locked = nodes;
        locked.of = STW_MEMORY_PAGE_LOCKED;
        locked.memory = "page-locked";
        locked.capacity = plan->cluster.host.page_lock_limit_bytes;
        kind_rows(s, &t, &locked);
    }
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (f->phases[p].nvme_bytes > 0)
            peak_row(&t, "NVMe", "worst node", p, f->phases[p].nvme_bytes, f->nvme_capacity);
    stw_doc_heading(s->out, s->format, "Peak memory");
    stw_table_write(&t, s->format, s->out);
}

static void put_components(const stw_section *s) {
    static const char *const heads[] = {"component", ">GPU",        ">GPU share",
                                        ">host",     ">host share", "what it is"};
    const stw_plan *plan = s->plan;
    const stw_plan_facts *f = s->facts;
    if (f->gpu_phase == STW_N_PHASES || plan->node_peaks == NULL) return;
    const stw_peak *gpu =
        &plan->peaks[f->phases[f->gpu_phase].gpu_kind].phase[f->gpu_phase][STW_TIER_GPU];
    const stw_peak *host =
        &plan->node_peaks[f->phases[f->host_phase].host_kind].phase[f->host_phase][STW_TIER_HOST];
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 6);
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
        stw_table_cell(&t, "%s", stw_component_words((stw_component)c));
    }
    stw_doc_heading(s->out, s->format, "Peak memory by component");
    char who[128];
    stw_job_kind_words(plan->job, f->phases[f->gpu_phase].gpu_kind, who, sizeof who);
    stw_doc_line(s->out, s->format, "GPU: %s in %s. Host: all ranks of one node in %s.", who,
                 stw_phase_name(f->gpu_phase), stw_phase_name(f->host_phase));
    stw_table_write(&t, s->format, s->out);
}

static const char *executor_of(const stw_plan *plan, stw_phase phase) {
    const stw_program *program = plan->programs != NULL ? plan->programs[plan->job->largest] : NULL;
    const stw_movement *m = program != NULL ? stw_program_movement(program, phase) : NULL;
    if (m == NULL) return "";
    /* Stowage itself trains nothing: its plans are for a script that does. */
    if (!m->by_stowage && m->role_number == 0 && plan->job->engine->spec.trains_as != NULL)
        return "training script";
    return stw_plan_movement_by(plan, m);
}

static void time_row(const stw_section *s, stw_table *t, unsigned p, const stw_run_result *run) {
    const stw_phase_facts *f = &s->facts->phases[p];
    const uint64_t passes = stw_plan_passes(s->plan, (stw_phase)p);
    const bool known = isfinite(f->time_s);
    char times[32] = "";
    if (passes > 1) snprintf(times, sizeof times, " (%" PRIu64 " x)", passes);
    stw_table_cell(t, "%s", stw_phase_name((stw_phase)p));
    stw_table_cell(t, "%s", executor_of(s->plan, (stw_phase)p));
    stw_table_cell(t, "%s", known ? stw_word_seconds(f->time_s).text : "not predicted");
    if (known && passes > 0)
        stw_table_cell(t, "%s%s", stw_word_seconds(f->time_s * (double)passes).text, times);
    else
        stw_table_cell(t, "%s", "");
    stw_table_cell(t, "%s",
                   run == NULL             ? ""
                   : isnan(run->time_s[p]) ? "not measured"
                                           : stw_word_seconds(run->time_s[p]).text);
    stw_table_cell(t, "%s", known && f->is_bound ? stw_resource_words(f->binds) : "");
    stw_table_cell(t, "%s", known && f->is_bound ? stw_word_share(f->busy_s, f->whole_s).text : "");
}

static void put_times(const stw_section *s, const stw_run_result *run) {
    static const char *const heads[] = {"phase",           "executed by", ">predicted",
                                        ">per iteration",  ">measured",   "bottleneck",
                                        ">bottleneck busy"};
    const double iteration_s = stw_plan_iteration_s(s->plan);
    stw_table t;
    if (s->plan->verdict == STW_VERDICT_DOES_NOT_FIT && run == NULL) return;
    stw_table_begin(&t, s->pool, heads, 7);
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (s->facts->phases[p].present) time_row(s, &t, p, run);
    if (isfinite(iteration_s)) {
        const stw_word sum = stw_word_seconds(iteration_s);
        const char *const cells[] = {"iteration", "", "", sum.text, "", "", ""};
        for (unsigned i = 0; i < 7; i++) stw_table_cell(&t, "%s", cells[i]);
    }
    stw_doc_heading(s->out, s->format, "Phase times (simulated)");
    stw_table_write(&t, s->format, s->out);
}

static void put_solver(const stw_section *s) {
    stw_doc_heading(s->out, s->format, "Solver");
    stw_section_solver(s);
    stw_section_layouts(s);
    stw_doc_line(s->out, s->format,
                 "Solver figures, prices and fixes are as the planner wrote them. Bytes, verdict "
                 "and times were derived again from inputs and decisions.");
}

/* One item, or a part of the list of what shows no gain. */
static void put_price(const stw_section *s, const stw_price *p, stw_text *nothing) {
    const double iteration_s = stw_plan_iteration_s(s->plan);
    stw_word what;
    stw_resource_name_words(p->resource, what.text, sizeof what.text);
    if (p->seconds < 0)
        stw_doc_item(s->out, s->format, "%s %s more %s: a plan with %s less per iteration (%s).",
                     stw_word_number(p->amount).text, p->unit, what.text,
                     stw_word_seconds(-p->seconds).text,
                     stw_word_share(-p->seconds, iteration_s).text);
    else
        stw_text_printf(nothing, "%s%s %s %s", nothing->length > 0 ? ", " : "",
                        stw_word_number(p->amount).text, p->unit, what.text);
}

static void put_prices(const stw_section *s) {
    const stw_plan *plan = s->plan;
    stw_text nothing = STW_TEXT_INIT;
    if (plan->n_prices == 0 || !isfinite(stw_plan_iteration_s(plan))) return;
    stw_doc_heading(s->out, s->format, "Value of more resources (simulated)");
    stw_doc_line(s->out, s->format,
                 "Each line is for about 10%% more of one resource. The search is short: before "
                 "you buy, plan again with the new values (--set KEY=VALUE).");
    for (uint32_t i = 0; i < plan->n_prices; i++) put_price(s, &plan->prices[i], &nothing);
    if (nothing.length > 0)
        stw_doc_item(s->out, s->format, "No plan found that is more than %.1f%% faster: %s.",
                     100 * STW_LEAST_GAIN, nothing.data);
    if (nothing.failed) s->out->failed = true;
    stw_text_free(&nothing);
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

static stw_status begin(stw_section *section, stw_plan_facts *facts, stw_remarks *remarks,
                        stw_error *err) {
    const stw_plan *plan = section->plan;
    char cluster[96];
    stw_plan_facts_get(plan, facts);
    stw_plan_remarks_get(plan, facts, remarks);
    section->facts = facts;
    section->remarks = remarks;
    section->pool = stw_pool_new();
    if (section->pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (remarks->failed) section->out->failed = true;
    stw_section_cluster_name(&plan->cluster, cluster, sizeof cluster);
    stw_doc_title(section->out, section->format, "Capacity report: %s on %s", plan->model->name,
                  cluster);
    return STW_STATUS_OK;
}

stw_status stw_report_plan_short(const stw_plan *plan, const stw_run_result *run,
                                 const stw_comparison *comparison, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section = {.plan = plan, .format = STW_FORMAT_TERMINAL, .out = out};
    STW_TRY(begin(&section, &facts, &remarks, err));
    stw_section_summary(&section, true);
    if (run != NULL && comparison != NULL) {
        stw_doc_heading(out, section.format, "Predicted and measured");
        STW_TRY(stw_report_comparison_summary(comparison, out, err));
    }
    STW_TRY(stw_text_status(out, err));
out:
    stw_pool_free(section.pool);
    return status;
}

static stw_status report_for_people(const stw_plan *plan, const stw_run_result *run,
                                    const stw_comparison *comparison, stw_format format,
                                    const char *pictures, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_section section = {.plan = plan, .format = format, .out = out, .pictures = pictures};
    STW_TRY(begin(&section, &facts, &remarks, err));
    if (format == STW_FORMAT_BLOCKS)
        stw_section_verdict(&section);
    else
        stw_section_summary(&section, false);
    stw_section_infeasible(&section);
    stw_doc_part(out, format, "assumptions");
    put_model(&section);
    put_cluster(&section);
    stw_doc_part(out, format, "placement");
    stw_doc_heading(out, format, "State placement");
    stw_section_decisions(&section);
    if (plan->decisions.n_blocks > 0) {
        stw_doc_heading(out, format, "Activations");
        stw_section_activations(&section);
    }
    stw_doc_heading(out, format, "Transfers");
    stw_section_ring(&section);
    stw_section_load_seconds(&section);
    stw_doc_part(out, format, "memory");
    put_peaks(&section);
    put_components(&section);
    stw_doc_part(out, format, "placement");
    stw_section_roles(&section);
    stw_doc_part(out, format, "memory");
    stw_section_ledger(&section);
    stw_section_transfers(&section);
    stw_doc_part(out, format, "seconds");
    put_times(&section, run);
    stw_doc_part(out, format, "search");
    put_solver(&section);
    stw_doc_part(out, format, "change");
    put_prices(&section);
    stw_doc_part(out, format, "measured");
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
    if (format == STW_FORMAT_CSV)
        return stw_report_plan_csv(plan, run, comparison, plan->model->name, true, out, err);
    return report_for_people(plan, run, comparison, format, NULL, out, err);
}

stw_status stw_report_plan_pictured(const stw_page_item *item, const char *pictures, stw_text *out,
                                    stw_error *err) {
    return report_for_people(item->plan, item->run, item->comparison, STW_FORMAT_MARKDOWN, pictures,
                             out, err);
}
