/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/plan_sections.h"
#include "reports/cost.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/cpu_step.h"
#include "plan/files/plan_file.h"
#include "plan/program/demand.h"
#include "reports/plan_flops.h"
#include "reports/verdict.h"

void stw_section_cluster_name(const stw_cluster *c, char *out, size_t out_size) {
    char nodes[24] = "";
    if (c->nodes > 1) snprintf(nodes, sizeof nodes, "%u x ", c->nodes);
    snprintf(out, out_size, "%s%s", nodes, c->name);
}

void stw_section_machine(const stw_cluster *c, char *out, size_t out_size) {
    char gpus[96] = "without GPU (emulated in host memory)";
    if (c->gpus > 0 && !stw_cluster_has_gpus(c))
        snprintf(gpus, sizeof gpus, "without GPU (%u%s emulated in host memory)", c->gpus,
                 c->nodes > 1 ? " each" : "");
    else if (c->gpus > 0)
        snprintf(gpus, sizeof gpus, "with %u x %s%s", c->gpus, c->gpu.name,
                 c->nodes > 1 ? " each" : "");
    snprintf(out, out_size, "%u node%s %s", c->nodes, c->nodes > 1 ? "s" : "", gpus);
}

static const char *a_gpu(const stw_plan *plan) {
    return stw_cluster_has_gpus(&plan->cluster) ? "GPU" : "emulated GPU";
}

/* "GPU memory: peak 57.97 GiB allocated, 77.90 GiB reserved, of 79.10 GiB per GPU (98.5%) in
 * forward_backward.": the allocator's reserve is what runs out. */
static void put_reserved(const stw_section *s) {
    const stw_plan_facts *f = s->facts;
    char phase[64] = "";
    if (f->gpu_phase != f->reserved_phase)
        snprintf(phase, sizeof phase, " in %s", stw_phase_name(f->gpu_phase));
    stw_doc_line(s->out, s->format,
                 "GPU memory: peak %s allocated%s, %s reserved, of %s per %s (%s) in %s.",
                 stw_word_gib(f->gpu_peak).text, phase, stw_word_gib(f->gpu_reserved).text,
                 stw_word_gib(f->gpu_capacity).text, a_gpu(s->plan),
                 stw_word_share((double)f->gpu_reserved, (double)f->gpu_capacity).text,
                 stw_phase_name(f->reserved_phase));
}

/* "GPU memory: peak 61.03 GiB of 139.80 GiB per GPU (43.7%) in optimizer_step." */
static void put_use(const stw_section *s, bool gpu) {
    const stw_plan_facts *f = s->facts;
    if (gpu && f->gpu_reserved > f->gpu_peak) {
        put_reserved(s);
        return;
    }
    const uint64_t bytes = gpu ? f->gpu_peak : f->host_peak;
    const uint64_t limit = gpu ? f->gpu_capacity : f->host_capacity;
    const char *per = gpu ? a_gpu(s->plan) : "node";
    stw_doc_line(s->out, s->format, "%s memory: peak %s of %s per %s (%s) in %s.",
                 gpu ? "GPU" : "Host", stw_word_gib(bytes).text, stw_word_gib(limit).text, per,
                 stw_word_share((double)bytes, (double)limit).text,
                 stw_phase_name(gpu ? f->gpu_phase : f->host_phase));
}

/* Where a scheduler kills before the memory is full. */
static void put_kill_share(const stw_section *s) {
    const stw_cluster *c = &s->plan->cluster;
    if (c->host.kill_share >= 1) return;
    const uint64_t whole =
        c->host.limit_bytes < c->host.memory_bytes ? c->host.limit_bytes : c->host.memory_bytes;
    stw_doc_line(s->out, s->format,
                 "The scheduler kills at %g%% of the %s of a node (node.host.kill_share).",
                 100 * c->host.kill_share, stw_word_gib(whole).text);
}

/* "4 x forward_backward 402 ms + optimizer_step 415 ms + 1/100 of checkpoint 72 s" */
static void format_passes(const stw_section *s, stw_text *out) {
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        uint64_t passes = stw_plan_passes(s->plan, (stw_phase)p);
        if (passes == 0) continue;
        stw_text_printf(out, "%s", out->length > 0 ? " + " : "");
        if (passes > 1) stw_text_printf(out, "%" PRIu64 " x ", passes);
        stw_text_printf(out, "%s %s", stw_phase_name((stw_phase)p),
                        stw_word_seconds(s->facts->phases[p].time_s).text);
        if (stw_plan_is_unexecuted(s->plan, (stw_phase)p))
            stw_text_printf(out, ", planned, not executed");
        if (p == STW_PHASE_OPTIMIZER_STEP && stw_plan_hidden_s(s->plan) > 0)
            stw_text_printf(out, " of %s",
                            stw_word_seconds(s->plan->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP]).text);
    }
    const uint64_t every = s->plan->run.checkpoint.every;
    if (every > 0 && isfinite(s->facts->phases[STW_PHASE_CHECKPOINT].time_s))
        stw_text_printf(out, " + 1/%" PRIu64 " of checkpoint %s", every,
                        stw_word_seconds(s->facts->phases[STW_PHASE_CHECKPOINT].time_s).text);
}

/* Is an iteration what the rows of a table of phases add up to? */
static bool is_plain_sum(const stw_plan *plan) {
    bool plain = plan->run.checkpoint.every == 0 && !(stw_plan_hidden_s(plan) > 0);
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        plain = plain && stw_plan_passes(plan, (stw_phase)p) <= 1 &&
                !stw_plan_is_unexecuted(plan, (stw_phase)p);
    return plain;
}

/* The roles whose seconds are not predicted: "rollout, reference" */
static void name_untimed(const stw_job *job, stw_text *out) {
    for (uint32_t r = 1; r < job->n_roles; r++)
        stw_text_printf(out, "%s%.60s", out->length > 0 ? ", " : "", job->roles[r].name);
}

/* Times of several roles are those of the trainer; the GPUs are those of all. */
static const char *whose_of(const stw_plan *plan) {
    return plan->job->n_roles > 1 ? " of the trainer" : "";
}

/* Where a step goes on beside the next forward. Less is no more than rounding. */
#define LEAST_HIDDEN 1e-3
static void put_hidden(const stw_section *s) {
    const double hidden_s = stw_plan_hidden_s(s->plan);
    const double step_s = s->plan->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP];
    if (!(hidden_s > LEAST_HIDDEN * step_s)) return;
    stw_doc_line(s->out, s->format,
                 "Hidden: %s of a step of %s go by beside the next forward, whose modules wait for "
                 "their parameters (optimizer.overlap).",
                 stw_word_seconds(hidden_s).text, stw_word_seconds(step_s).text);
}

void stw_section_iteration(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const double iteration_s = stw_plan_iteration_s(plan);
    stw_text passes = STW_TEXT_INIT, untimed = STW_TEXT_INIT;
    if (!(iteration_s > 0)) return;
    if (s->format == STW_FORMAT_BLOCKS || !is_plain_sum(plan)) format_passes(s, &passes);
    name_untimed(plan->job, &untimed);
    if (passes.failed || untimed.failed) s->out->failed = true;
    if (untimed.length > 0)
        stw_doc_line(s->out, s->format,
                     "The seconds of %s are not predicted: the following lines are without them.",
                     untimed.data);
    stw_doc_line(s->out, s->format, "Iteration time%s: %s for %s tokens%s%s%s.", whose_of(plan),
                 stw_word_seconds(iteration_s).text,
                 stw_word_count((uint64_t)stw_plan_iteration_tokens(plan)).text,
                 passes.length > 0 ? " (" : "", passes.length > 0 ? passes.data : "",
                 passes.length > 0 ? ")" : "");
    stw_text_free(&passes);
    stw_text_free(&untimed);
    put_hidden(s);
}

void stw_section_spent(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const char *rank = stw_cluster_has_gpus(&plan->cluster) ? "GPU" : "rank",
               *whose = whose_of(plan);
    const double iteration_s = stw_plan_iteration_s(plan);
    const uint32_t ranks = plan->job->ranks;
    stw_text untimed = STW_TEXT_INIT;
    if (!(iteration_s > 0)) return;
    name_untimed(plan->job, &untimed);
    if (untimed.failed) s->out->failed = true;
    double per_s = stw_plan_iteration_tokens(plan) / iteration_s;
    char mfu[64] = "";
    const double used = stw_plan_mfu(plan);
    if (isfinite(used)) snprintf(mfu, sizeof mfu, ", MFU %s", stw_word_share(used, 1).text);
    stw_doc_line(s->out, s->format, "Throughput%s: %s tokens/s (%s per %s)%s.", whose,
                 stw_word_count((uint64_t)(per_s + 0.5)).text,
                 stw_word_count((uint64_t)(per_s / ranks + 0.5)).text, rank, mfu);
    stw_doc_line(s->out, s->format, "1000 iterations%s take %s on %u %s%s: %s %s-hours%s%s.", whose,
                 stw_word_seconds(iteration_s * 1000).text, ranks, rank, ranks > 1 ? "s" : "",
                 stw_word_number(iteration_s * 1000 / 3600 * ranks).text, rank,
                 untimed.length > 0 ? ", without those of " : "",
                 untimed.length > 0 ? untimed.data : "");
    stw_text_free(&untimed);
    stw_cost_of_plan(plan, s->format, s->out);
}

void stw_section_costs(const stw_section *s) {
    stw_section_iteration(s);
    stw_section_spent(s);
}

/* A step that the CPU binds takes this share of an iteration: its threads are told. */
static const double NOTABLE = 0.1;

/* "optimizer.cpu_threads is auto: ..." */
void stw_section_threads(const stw_section *s) {
    const double iteration_s = stw_plan_iteration_s(s->plan);
    const stw_job *job = s->plan->job;
    const stw_phase_facts *step = &s->facts->phases[STW_PHASE_OPTIMIZER_STEP];
    if (job->engine->cpu_advice == NULL || s->plan->run.optimizer.cpu_threads != STW_AUTO ||
        !step->is_bound || step->binds != STW_RESOURCE_CPU ||
        !(step->busy_s >= NOTABLE * iteration_s))
        return;
    const uint32_t threads = stw_cpu_threads(job);
    stw_doc_line(s->out, s->format,
                 "Assumed: the optimizer has %u thread%s of the CPU on each rank, as where "
                 "OMP_NUM_THREADS is not set; --set optimizer.cpu_threads=N for others.",
                 threads, threads == 1 ? "" : "s");
}

void stw_section_bottleneck(const stw_section *s) {
    const double iteration_s = stw_plan_iteration_s(s->plan);
    unsigned longest = STW_N_PHASES;
    double most_s = 0;
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const double seconds =
            (double)stw_plan_passes(s->plan, (stw_phase)p) * s->facts->phases[p].time_s;
        if (!(seconds > most_s)) continue;
        most_s = seconds;
        longest = p;
    }
    if (longest == STW_N_PHASES || !s->facts->phases[longest].is_bound || !(iteration_s > 0))
        return;
    const stw_phase_facts *f = &s->facts->phases[longest];
    stw_doc_line(s->out, s->format,
                 "Bottleneck: %s, busy for %s of %s, which is %s of the iteration.",
                 stw_resource_words(f->binds), stw_word_share(f->busy_s, f->whole_s).text,
                 stw_phase_name((stw_phase)longest), stw_word_share(most_s, iteration_s).text);
}

/* Less than this is lost in the noise of a training run. */
static const double WORTH_TELLING = 0.002;

/* Faster plans that were passed over, and what they need: those that a key rules out stand with the
 * costs, the more complicated ones with the solver. */
void stw_section_alternatives(const stw_section *s, bool by_key) {
    if (!isfinite(stw_plan_iteration_s(s->plan))) return;
    for (uint32_t i = 0; i < s->plan->n_alternatives; i++) {
        const stw_alternative *other = &s->plan->alternatives[i];
        if ((strchr(other->rule, '.') != NULL) != by_key || other->share < WORTH_TELLING) continue;
        if (strcmp(other->rule, "setting") == 0) continue;
        bool headroom = strcmp(other->rule, "headroom") == 0;
        char rule[96] = "the simpler plan was preferred";
        if (headroom)
            snprintf(rule, sizeof rule, "the plan with more free GPU memory was preferred");
        if (by_key) snprintf(rule, sizeof rule, "%s excludes it", other->rule);
        stw_doc_line(s->out, s->format, "A plan with %s takes %s per iteration (%.1f%% less); %s.",
                     other->needs, stw_word_seconds(other->seconds).text, 100 * other->share, rule);
    }
}

/* "--set A=1 --set B=2" of "A=1 B=2". */
static void write_options(const char *settings, stw_text *out) {
    for (const char *at = settings; *at != '\0';) {
        const int length = (int)strcspn(at, " ");
        stw_text_printf(out, "%s--set %.*s", at > settings ? " " : "", length, at);
        at += length;
        while (*at == ' ') at++;
    }
}

void stw_section_turned(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const double now_s = stw_plan_iteration_s(plan);
    if (plan->turned == NULL || !(plan->unturned_s > 0)) return;
    if (now_s < plan->unturned_s)
        stw_doc_line(s->out, s->format,
                     "Set by the planner: %s; without it an iteration takes %s (%.1f%% more).",
                     plan->turned, stw_word_seconds(plan->unturned_s).text,
                     100 * (plan->unturned_s / now_s - 1));
    else
        stw_doc_line(s->out, s->format, "Set by the planner: %s.", plan->turned);
}

void stw_section_turns(const stw_section *s) {
    const double now_s = stw_plan_iteration_s(s->plan);
    if (!isfinite(now_s)) return;
    for (uint32_t i = 0; i < s->plan->n_alternatives; i++) {
        const stw_alternative *other = &s->plan->alternatives[i];
        stw_text options = STW_TEXT_INIT;
        if (strcmp(other->rule, "setting") != 0) continue;
        write_options(other->needs, &options);
        if (options.failed) s->out->failed = true;
        stw_doc_line(s->out, s->format, "Faster with %s: %.1f%% (%s instead of %s), %s%s%s.",
                     options.data != NULL ? options.data : "", 100 * other->share,
                     stw_word_seconds(other->seconds).text, stw_word_seconds(now_s).text,
                     other->verdict == STW_VERDICT_FITS ? "fits" : "at risk",
                     other->asks != NULL ? "; " : "", other->asks != NULL ? other->asks : "");
        stw_text_free(&options);
    }
}

void stw_section_remarks(const stw_section *s, bool of_time) {
    for (uint32_t i = 0; i < s->remarks->n; i++)
        if (s->remarks->items[i].of_time == of_time)
            stw_doc_line(s->out, s->format, "%s", s->remarks->items[i].text);
}

/* A limit that is to be raised, where no change is a remedy. */
static void put_limit_remedy(const stw_section *s) {
    const stw_plan *plan = s->plan;
    char changes[512];
    if (plan->n_bindings == 0 || plan->bindings[0].n_changes == 0) return;
    const stw_binding *b = &plan->bindings[0];
    stw_fix_options(b->changes, b->n_changes, changes, sizeof changes);
    stw_doc_line(s->out, s->format,
                 "It fits with %s%s; no other change that was tried %s. Everything that was found "
                 "is listed below.",
                 changes,
                 stw_binding_is_elsewhere(plan, b) ? ", on another machine"
                                                   : ", memory that the node has",
                 plan->n_fixes > 0 ? "keeps a comparable length of sequences" : "is enough");
}

/* The first change that helps; the others follow in a section of their own. */
static void put_remedy(const stw_section *s) {
    const stw_plan *plan = s->plan;
    char changes[512], effect[512];
    bool all_risky = true;
    if (plan->n_fixes == 0 || !stw_plan_fix_is_remedy(plan, &plan->fixes[0])) {
        put_limit_remedy(s);
        return;
    }
    const stw_fix *first = &plan->fixes[0];
    stw_fix_options(first->changes, first->n_changes, changes, sizeof changes);
    stw_fix_effect(first, effect, sizeof effect);
    for (uint32_t i = 0; i < plan->n_fixes; i++) all_risky = all_risky && plan->fixes[i].at_risk;
    stw_doc_line(s->out, s->format,
                 "It %s with %s (%s). %sEverything that was found is listed below.",
                 first->at_risk ? "is within limits, but at risk," : "fits", changes, effect,
                 all_risky ? "No change that was found leaves more room. " : "");
}

void stw_section_risks(const stw_section *s) {
    char reason[480];
    for (uint32_t i = 0; stw_verdict_reason(s->plan, i, reason, sizeof reason); i++)
        stw_doc_line(s->out, s->format, "%s", reason);
}

/* Times, or why there are none. */
static void put_time(const stw_section *s) {
    const stw_plan *plan = s->plan;
    if (plan->verdict == STW_VERDICT_DOES_NOT_FIT) {
        stw_doc_line(s->out, s->format, "No times are predicted, because the plan does not fit.");
        stw_doc_part(s->out, s->format, "change");
        put_remedy(s);
        return;
    }
    stw_section_risks(s);
    stw_section_costs(s);
    stw_doc_part(s->out, s->format, "binds");
    stw_section_bottleneck(s);
    stw_section_threads(s);
    stw_doc_part(s->out, s->format, "change");
    stw_section_turned(s);
    stw_section_turns(s);
    stw_section_alternatives(s, true);
    stw_doc_part(s->out, s->format, "assumptions");
    stw_section_remarks(s, true);
}

void stw_section_excesses(const stw_section *s) {
    for (uint32_t i = 0; i < s->facts->n_excesses; i++) {
        const stw_excess *e = &s->facts->excesses[i];
        char resource[64];
        stw_resource_name_words(e->resource, resource, sizeof resource);
        char share[64] = "";
        if (e->limit_bytes > 0)
            snprintf(share, sizeof share, " (%s of the limit)",
                     stw_word_share((double)e->bytes, (double)e->limit_bytes).text);
        stw_doc_line(s->out, s->format, "Over the limit: %s by %s%s in %s.", resource,
                     stw_word_gib(e->bytes).text, share, stw_phase_name(e->phase));
    }
}

void stw_section_headline(const stw_section *s) {
    const stw_plan *plan = s->plan;
    char machine[192];
    stw_section_machine(&plan->cluster, machine, sizeof machine);
    stw_text headline = STW_TEXT_INIT;
    stw_verdict_headline(plan, machine, &headline);
    if (headline.failed) s->out->failed = true;
    if (headline.data != NULL) stw_doc_line(s->out, s->format, "%s", headline.data);
    stw_text_free(&headline);
    stw_section_streamed(s);
}

void stw_section_streamed(const stw_section *s) {
    if (stw_plan_streamed_note(s->plan) != NULL)
        stw_doc_line(s->out, s->format, "%s", stw_plan_streamed_note(s->plan));
}

void stw_section_uses(const stw_section *s) {
    const stw_plan_facts *f = s->facts;
    if (f->gpu_phase == STW_N_PHASES) return;
    put_use(s, true);
    put_use(s, false);
    put_kill_share(s);
    if (f->nvme_peak > 0)
        stw_doc_line(s->out, s->format, "NVMe: %s of %s per node (%s)%s.",
                     stw_word_gib(f->nvme_peak).text, stw_word_gib(f->nvme_capacity).text,
                     stw_word_share((double)f->nvme_peak, (double)f->nvme_capacity).text,
                     !s->plan->job->engine->nvme_commits || f->state_bytes[STW_TIER_NVME] == 0 ? ""
                     : stw_nvme_copies(s->plan->job) > 1 ? ", two copies of the state"
                                                         : ", one copy of the state");
}

void stw_section_verdict(const stw_section *s) {
    stw_section_headline(s);
    stw_section_uses(s);
    stw_doc_part(s->out, s->format, "binds");
    stw_section_excesses(s);
    stw_doc_part(s->out, s->format, "assumptions");
    stw_section_remarks(s, false);
    stw_doc_part(s->out, s->format, "verdict");
    put_time(s);
}

/* How many copies of the state on NVMe the plan counts, and what the other number would mean. */
static void put_copies(const stw_section *s) {
    const uint64_t one = s->facts->nvme_peak, two = stw_times(2, one);
    if (stw_nvme_copies(s->plan->job) > 1)
        stw_doc_line(s->out, s->format,
                     "State on NVMe: two copies; the last step survives a crash of the run.");
    else
        stw_doc_line(s->out, s->format,
                     "State on NVMe: one copy, written in place; a crash loses it. Two copies "
                     "(--set placement.nvme_copies=2, which run --keep-state needs) take %s per "
                     "node%s.",
                     stw_word_gib(two).text,
                     two > s->facts->nvme_capacity ? ", more than it has" : "");
}

/* State that waits on the host is not resident. */
static const char *update_words(const stw_plan *plan, const stw_place *place) {
    const bool parked = (plan->run.park.params && place->params == STW_TIER_GPU) ||
                        (plan->run.park.grads && place->grads == STW_TIER_GPU) ||
                        (plan->run.park.moments && place->moments == STW_TIER_GPU);
    return parked && place->update == STW_UPDATE_RESIDENT ? "on the GPU"
                                                          : stw_update_name(place->update);
}

/* What the words of the column "update" mean, for those that occur. */
static void put_update_words(const stw_section *s) {
    static const char *const words[STW_N_UPDATES] = {
        [STW_UPDATE_RESIDENT] = "updated on the GPU, in place",
        [STW_UPDATE_STREAM] = "updated on the GPU, copied in and out through a ring of buffers",
        [STW_UPDATE_DIRECT] = "updated by GPU kernels that access host memory",
        [STW_UPDATE_CPU] = "updated on the CPU"};
    const stw_decisions *decisions = &s->plan->decisions;
    stw_text line = STW_TEXT_INIT;
    for (int u = 0; u < STW_N_UPDATES; u++) {
        bool occurs = false;
        for (uint32_t i = 0; i < decisions->n_state; i++)
            occurs |= decisions->state[i].units > 0 &&
                      strcmp(update_words(s->plan, &decisions->state[i].place),
                             stw_update_name((stw_update)u)) == 0;
        if (occurs)
            stw_text_printf(&line, "%s%s: %s", line.length > 0 ? "; " : "",
                            stw_update_name((stw_update)u), words[u]);
    }
    if (line.failed) s->out->failed = true;
    if (line.length > 0) stw_doc_line(s->out, s->format, "%s.", line.data);
    stw_text_free(&line);
}

static void put_tiers(stw_table *t, const uint64_t *bytes) {
    for (unsigned tier = 0; tier < STW_N_TIERS; tier++)
        stw_table_cell(t, "%s", bytes[tier] > 0 ? stw_word_gib(bytes[tier]).text : "");
}

void stw_section_parked(const stw_section *s) {
    static const char *const names[] = {"parameters", "gradients", "moments"};
    const bool parked[] = {s->plan->run.park.params, s->plan->run.park.grads,
                           s->plan->run.park.moments};
    stw_text line = STW_TEXT_INIT;
    for (int i = 0; i < 3; i++)
        if (parked[i]) stw_text_printf(&line, "%s%s", line.length > 0 ? ", " : "", names[i]);
    if (line.length > 0)
        stw_doc_line(s->out, s->format,
                     "Parked on the host between uses: %s; bytes on the GPU are those of a use.",
                     line.data);
    if (line.failed) s->out->failed = true;
    stw_text_free(&line);
}

static void put_tier(stw_table *t, stw_tier tier, bool parked) {
    stw_table_cell(t, "%s",
                   parked && tier == STW_TIER_GPU ? "parked on host" : stw_tier_name(tier));
}

/* Parameters without gradients and moments. */
static void put_frozen(const stw_plan_facts *f, stw_table *t) {
    if (f->frozen_params == 0) return;
    stw_tier in = STW_TIER_GPU;
    for (unsigned tier = 0; tier < STW_N_TIERS; tier++)
        if (f->frozen_bytes[tier] > 0) in = (stw_tier)tier;
    stw_table_cell(t, "%s", stw_tier_name(in));
    stw_table_cell(t, "%s", "");
    stw_table_cell(t, "%s", "");
    stw_table_cell(t, "%s", "frozen");
    stw_table_cell(t, "%s", stw_word_count(f->frozen_params).text);
    stw_table_cell(t, "%s", "");
    put_tiers(t, f->frozen_bytes);
}

void stw_section_decisions(const stw_section *s) {
    static const char *const heads[] = {"params",        "grads",          "moments",
                                        "update",        ">parameters",    ">share",
                                        ">GPU per rank", ">host per rank", ">NVMe per rank"};
    const stw_plan *plan = s->plan;
    const stw_plan_facts *f = s->facts;
    uint64_t all = 0;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 9);
    for (uint32_t i = 0; i < plan->decisions.n_state && i < STW_MAX_PLACES; i++)
        all = stw_plus(all, f->place_params[i]);
    for (uint32_t i = 0; i < plan->decisions.n_state && i < STW_MAX_PLACES; i++) {
        const stw_place *place = &plan->decisions.state[i].place;
        if (plan->decisions.state[i].units == 0) continue;
        put_tier(&t, place->params, plan->run.park.params);
        put_tier(&t, place->grads, plan->run.park.grads);
        put_tier(&t, place->moments, plan->run.park.moments);
        stw_table_cell(&t, "%s", update_words(plan, place));
        stw_table_cell(&t, "%s", stw_word_count(f->place_params[i]).text);
        stw_table_cell(&t, "%s", stw_word_share((double)f->place_params[i], (double)all).text);
        put_tiers(&t, f->place_bytes[i]);
    }
    put_frozen(f, &t);
    stw_table_write(&t, s->format, s->out);
    put_update_words(s);
    stw_section_parked(s);
    if (plan->job->engine->whole)
        stw_doc_line(s->out, s->format,
                     "Parameters are those that the rank updates; bytes are all parameters, "
                     "gradients, master weights and moments that it has at the peaks of the step.");
}

void stw_section_activations(const stw_section *s) {
    static const char *const heads[] = {"tensor group", "activations", ">blocks", ">GPU per rank",
                                        ">host per rank"};
    const stw_plan *plan = s->plan;
    stw_table t;
    stw_table_begin(&t, s->pool, heads, 5);
    for (uint32_t i = 0; i < plan->decisions.n_blocks; i++) {
        const stw_block_decision *d = &plan->decisions.blocks[i];
        if (d->count == 0 || stw_activation_bytes(plan->job, d->group, STW_ACT_KEEP) == 0) continue;
        if (plan->job->engine->stage != NULL) { /* stages differ; their peaks are listed */
            stw_table_cell(&t, "%s", plan->job->model->groups[d->group].name);
            stw_table_cell(&t, "%s", stw_act_name(d->act));
            stw_table_cell(&t, "%u", d->count);
            stw_table_cell(&t, "%s", "");
            stw_table_cell(&t, "%s", "");
            continue;
        }
        uint64_t gpu = stw_activation_bytes(plan->job, d->group, d->act) * d->count;
        uint64_t host = stw_activation_bytes(plan->job, d->group, STW_ACT_KEEP) * d->count;
        stw_table_cell(&t, "%s", plan->job->model->groups[d->group].name);
        stw_table_cell(&t, "%s", stw_act_name(d->act));
        stw_table_cell(&t, "%u", d->count);
        stw_table_cell(&t, "%s", stw_word_gib(gpu).text);
        stw_table_cell(&t, "%s", d->act == STW_ACT_OFFLOAD ? stw_word_gib(host).text : "");
    }
    stw_table_write(&t, s->format, s->out);
    char acts[256] = "";
    if (s->plan->job->engine->acts_note != NULL)
        s->plan->job->engine->acts_note(s->plan->job, &s->plan->decisions, acts, sizeof acts);
    if (acts[0] != '\0') stw_doc_line(s->out, s->format, "Recomputed with: %s.", acts);
}

/* State that moves by groups of tensors, and what it takes beside the work areas of the step. */
static void put_prefetch(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const uint32_t depth = plan->decisions.prefetch.depth;
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        bytes = stw_max_u64(bytes, plan->peaks[k]
                                       .phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_GPU]
                                       .components[STW_COMPONENT_STAGE]);
    const uint64_t work = stw_workspace_bytes(plan->job);
    stw_doc_line(s->out, s->format,
                 "Prefetch: %u tensor group%s ahead; the step holds at most %s of streamed state "
                 "on a GPU.",
                 depth, depth > 1 ? "s" : "", stw_word_gib(bytes - stw_min_u64(bytes, work)).text);
}

void stw_section_load_method(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const stw_engine *engine = plan->job->engine;
    const bool chosen = plan->run.load.method == STW_AUTO;
    stw_doc_line(s->out, s->format, "Load method: %s%s.", stw_load_name(plan->decisions.load),
                 !chosen                      ? ""
                 : engine->usual_load != NULL ? " (auto: the usual one)"
                                              : " (chosen by the planner)");
}

static void put_load(const stw_section *s) {
    const stw_engine *engine = s->plan->job->engine;
    const bool chosen = s->plan->run.load.method == STW_AUTO;
    stw_section_load_method(s);
    if (chosen && engine->load_note != NULL)
        stw_doc_line(s->out, s->format, "%s", engine->load_note);
}

void stw_section_load_seconds(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const stw_cluster *c = &plan->cluster;
    const bool executes = plan->job->engine->spec.own_process;
    const double reader = stw_demand_reader_bps(plan->job);
    uint64_t bytes = 0;
    char disk[128] = "", thread[160] = "";
    for (uint32_t t = 0; t < plan->job->model->n_tensors; t++) {
        const stw_tensor *tensor = &plan->job->model->tensors[t];
        bytes = stw_plus(bytes, stw_tensor_run_bytes(tensor, 0, tensor->numel));
    }
    if (plan->run.load.page_cached)
        snprintf(disk, sizeof disk, "in the page cache");
    else if (c->nvme.read_bps > 0)
        snprintf(disk, sizeof disk, "on disk, %s GB/s per node",
                 stw_word_number(c->nvme.read_bps / 1e9).text);
    else
        snprintf(disk, sizeof disk, "on disks of unknown rate, at no time");
    if (reader > 0 && (!executes || plan->run.load.page_cached))
        snprintf(thread, sizeof thread, "; a reading rank takes %s GB/s at most%s",
                 stw_word_number(reader / 1e9).text, executes ? "" : ", by one thread");
    stw_doc_line(s->out, s->format, "Load seconds: %s of weights files, %s%s.",
                 stw_word_gib(bytes).text, disk, thread);
    if (executes && plan->run.load.weights == NULL)
        stw_doc_line(s->out, s->format,
                     "Without load.weights `stowage run` makes weights from a seed and reads no "
                     "file.");
}

void stw_section_ring(const stw_section *s) {
    static const char *const what[STW_N_RINGS] = {
        "GPU ring for streamed state", "Host ring for state on NVMe", "Host ring for CPU updates"};
    const stw_plan *plan = s->plan;
    const stw_layout *layout = plan->layouts != NULL ? plan->layouts[plan->job->largest] : NULL;
    bool any = false;
    for (unsigned r = 0; layout != NULL && r < STW_N_RINGS; r++) {
        const stw_ring *ring = &layout->rings[r];
        if (ring->slots == 0) continue;
        any = true;
        stw_doc_line(s->out, s->format, "%s: %u x %s.", what[r], ring->slots,
                     stw_word_size(ring->slot_bytes).text);
    }
    if (plan->decisions.prefetch.by_group && stw_plan_streams(plan)) {
        any = true;
        put_prefetch(s);
    }
    if (!any) stw_doc_line(s->out, s->format, "No state is streamed.");
    uint64_t direct = 0;
    for (uint32_t i = 0; i < plan->decisions.n_state && i < STW_MAX_PLACES; i++)
        if (plan->decisions.state[i].place.update == STW_UPDATE_DIRECT)
            direct += s->facts->place_params[i];
    if (direct > 0)
        stw_doc_line(s->out, s->format,
                     "Direct updates: the GPU reads and writes the moments of %s parameters in "
                     "host memory, without staging.",
                     stw_word_count(direct).text);
    if (s->facts->state_bytes[STW_TIER_NVME] > 0 && plan->job->engine->nvme_commits) put_copies(s);
    put_load(s);
    if (plan->run.optimizer.implementation == STW_OPTIMIZER_AUTO &&
        plan->job->engine->assumed_optimizer != NULL && stw_plan_streamed_note(plan) == NULL)
        stw_doc_line(s->out, s->format, "optimizer.implementation is auto, taken as %s.",
                     plan->job->engine->assumed_optimizer);
}

/* Seconds of the integer program. What it cannot know, as the order of operations, is in the
 * simulated times alone. */
static void put_estimates(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const stw_solver_report *by = &plan->solver;
    if (!isfinite(stw_plan_iteration_s(plan)) || by->n_stages == 0) return;
    stw_doc_line(s->out, s->format,
                 "Estimates before simulation, per iteration: the integer program's optimum %s, "
                 "this plan %s.",
                 stw_word_seconds(stw_plan_estimate_s(plan, by->stages[0].objective)).text,
                 stw_word_seconds(stw_plan_estimate_s(plan, plan->objective_s)).text);
    if (!stw_plan_is_proven(plan)) return;
    stw_doc_line(s->out, s->format,
                 "Lower bound of forward, backward and step within the same limits: %s per "
                 "iteration. Simulated: %s.",
                 stw_word_seconds(stw_plan_estimate_s(plan, by->bound)).text,
                 stw_word_seconds(stw_plan_estimate_s(plan, by->objective)).text);
}

/* "from 143 simulated plans; " */
static void simulated_words(const stw_solver_report *by, char *out, size_t out_size) {
    snprintf(out, out_size, "%s", "");
    if (by->simulated > 1) snprintf(out, out_size, "best of %u simulated plans; ", by->simulated);
}

void stw_section_solver(const stw_section *s) {
    const stw_plan *plan = s->plan;
    const stw_solver_report *by = &plan->solver;
    static const char *const outcome[] = {
        [STW_OUTCOME_OPTIMAL] = "integer program solved",
        [STW_OUTCOME_FEASIBLE] = "integer program not solved to its optimum",
        [STW_OUTCOME_INFEASIBLE] =
            "infeasible; this plan has the smallest excess, as a sum of shares of the limits",
        [STW_OUTCOME_LIMIT] = "the time limit ended the search"};
    if (by->name == NULL || *by->name == '\0') return;
    char gap[96] = "", from[64] = "";
    const bool fits = plan->outcome != STW_OUTCOME_INFEASIBLE;
    const char *word = outcome[plan->outcome];
    if (fits) simulated_words(by, from, sizeof from);
    if (fits && stw_plan_is_proven(plan)) {
        word = "no placement within its limits is";
        snprintf(gap, sizeof gap, " more than %s%% faster%s",
                 stw_word_number(fmax(100 * by->gap, 0.001)).text,
                 s->plan->run.checkpoint.every > 0 ? ", waits for saves apart" : "");
    } else if (fits && by->gap > 0) {
        snprintf(gap, sizeof gap, ", gap at most %s%%",
                 stw_word_number(fmax(100 * by->gap, 0.001)).text);
    }
    stw_doc_line(s->out, s->format, "Plan: %s%s%s (%s %s: %u rows, %u columns, %s).", from, word,
                 gap, by->name, by->version != NULL ? by->version : "", by->rows, by->columns,
                 stw_word_seconds(by->seconds).text);
    put_estimates(s);
    stw_section_alternatives(s, false);
}
