/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/remarks.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "plan/measured/learn.h"
#include "reports/table.h"

static void add(stw_remarks *out, bool of_time, const char *format, ...) STW_PRINTF(3, 4);
static void add(stw_remarks *out, bool of_time, const char *format, ...) {
    if (out->n == STW_MAX_REMARKS) return;
    stw_remark *remark = &out->items[out->n++];
    va_list args;
    va_start(args, format);
    vsnprintf(remark->text, sizeof remark->text, format, args);
    va_end(args);
    remark->of_time = of_time;
    remark->advice = false;
}

static void add_advice(stw_remarks *out, const char *text) {
    const uint32_t n = out->n;
    add(out, true, "%s", text);
    if (out->n > n) out->items[n].advice = true;
}

static void add_assumed(const stw_plan *plan, stw_remarks *out) {
    stw_text keys = STW_TEXT_INIT;
    if (stw_cluster_assumed_words(&plan->cluster, &keys) > 0 && !keys.failed)
        add(out, false,
            "Warning: the file of cluster %s lacks these keys; defaults for an H200 node are "
            "assumed: %s.",
            plan->cluster.name, keys.data);
    out->failed |= keys.failed;
    stw_text_free(&keys);
}

static void add_learned(const stw_plan *plan, stw_remarks *out) {
    stw_text words = STW_TEXT_INIT;
    if (stw_cluster_learned_words(&plan->cluster, &words) > 0 && !words.failed)
        add(out, false, "Cluster %s: %s.", plan->cluster.name, words.data);
    out->failed |= words.failed;
    stw_text_free(&words);
}

static void add_omissions(const stw_plan *plan, stw_remarks *out) {
    if (!plan->model->facts_known)
        add(out, true, "Forward and backward are not included: the architecture is unknown.");
    else if (!stw_cluster_has_gpus(&plan->cluster))
        add(out, true,
            "The time of forward and backward is not predicted: the cluster has no GPU.");
}

/* An update by the CPU that takes this share of an iteration is worth a change. */
static const double NOTABLE = 0.1;

static void add_cpu_advice(const stw_plan *plan, const stw_plan_facts *f, stw_remarks *out) {
    const stw_engine *engine = plan->job->engine;
    const stw_phase_facts *step = &f->phases[STW_PHASE_OPTIMIZER_STEP];
    const double iteration_s = stw_plan_iteration_s(plan);
    char advice[320] = "";
    if (engine->cpu_advice == NULL || !step->is_bound || step->binds != STW_RESOURCE_CPU ||
        !(step->busy_s >= NOTABLE * iteration_s))
        return;
    engine->cpu_advice(plan->job, advice, sizeof advice);
    if (advice[0] == '\0') return;
    char text[640];
    snprintf(text, sizeof text,
             "The CPU is busy for %s of the optimizer step's %s, in an iteration of %s: %s",
             stw_word_seconds(step->busy_s).text, stw_word_seconds(step->time_s).text,
             stw_word_seconds(iteration_s).text, advice);
    add_advice(out, text);
}

/* Giving memory back waits for all that the GPU does (cudaFree, cuMemUnmap); taking it again costs
 * as much. The simulation has no seconds for it. */
static void add_retries(const stw_plan *plan, stw_remarks *out) {
    uint64_t most = 0;
    for (uint32_t k = 0; plan->replayed != NULL && k < plan->job->n_kinds; k++)
        if (plan->replayed[k].last_retries > most) most = plan->replayed[k].last_retries;
    if (most == 0) return;
    char text[640];
    snprintf(
        text, sizeof text,
        "In each iteration torch's allocator finds the GPU full %llu time%s and gives its free "
        "memory back to the driver, which the seconds here leave out (a measured run was "
        "slower by a third). %sore recomputation or another layout (parallel.*) may avoid it.",
        (unsigned long long)most, most == 1 ? "" : "s",
        plan->job->run->batch.micro_batch > 1 ? "A smaller batch.micro_batch, m" : "M");
    add_advice(out, text);
}

/* Where what long runs reach of the GPU's rate is too much. */
static void add_reach(const stw_plan *plan, stw_remarks *out) {
    const stw_learned *learned = &plan->cluster.learned[STW_LEARN_EFFICIENCY];
    const double seconds = plan->time_s[STW_PHASE_FORWARD_BACKWARD];
    if (!stw_cluster_holds_learned(&plan->cluster, STW_LEARN_EFFICIENCY) || !(seconds > 0)) return;
    if (stw_learn_is_short(plan, seconds))
        add(out, true,
            "Forward and backward may take longer than predicted: issuing their operations from "
            "Python takes about %s, and the compute efficiency was learned from a longer run (%s).",
            stw_word_seconds(stw_learn_issue_s(plan)).text, learned->model);
}

/* What others have reported of these settings. */
static void add_known_failure(const stw_plan *plan, stw_remarks *out) {
    char text[480] = "";
    if (plan->job->engine->known_failure == NULL) return;
    plan->job->engine->known_failure(plan->job, text, sizeof text);
    if (text[0] != '\0') add(out, false, "Warning: %s.", text);
}

/* Settings that no command of the framework has. */
static void add_lacks(const stw_plan *plan, stw_remarks *out) {
    char text[480] = "";
    if (plan->job->engine->lacks == NULL) return;
    plan->job->engine->lacks(plan->job, text, sizeof text);
    if (text[0] != '\0') add(out, false, "Warning: %s.", text);
}

static void add_no_text(const stw_plan *plan, stw_remarks *out) {
    const uint64_t images = plan->run.batch.image_tokens, all = plan->run.batch.seq_len;
    if (images == 0 || images < all) return;
    add(out, false,
        "Warning: batch.image_tokens fill all %llu tokens of a sequence: no token of text is left.",
        (unsigned long long)all);
}

/* The key still says what a run removes and what settings are written; only its bytes are open. */
static void add_unheld(const stw_plan *plan, stw_remarks *out) {
    const stw_run_spec *run = &plan->run;
    if (run->checkpoint.every == 0 || run->checkpoint.keep == 0 ||
        plan->cluster.nvme.capacity_bytes > 0)
        return;
    add(out, false,
        "The bytes of checkpoint.keep: %llu are not held to a disk, because node.nvme.capacity "
        "is 0.",
        (unsigned long long)run->checkpoint.keep);
}

void stw_plan_remarks_get(const stw_plan *plan, const stw_plan_facts *facts, stw_remarks *out) {
    out->n = 0;
    out->failed = false;
    add_known_failure(plan, out);
    add_lacks(plan, out);
    add_no_text(plan, out);
    add_unheld(plan, out);
    add_assumed(plan, out);
    add_learned(plan, out);
    if (plan->verdict == STW_VERDICT_DOES_NOT_FIT) return;
    add_omissions(plan, out);
    add_cpu_advice(plan, facts, out);
    add_retries(plan, out);
    add_reach(plan, out);
    if (!plan->cluster.calibration.measured)
        add(out, true,
            "The rates of this cluster are %snot measured. `stowage calibrate` measures them.",
            plan->cluster.calibration.versions[0] != '\0' ? "from data sheets, " : "");
}
