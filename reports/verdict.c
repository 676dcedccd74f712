/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/verdict.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/facts.h"
#include "reports/table.h"

static const char resource_of_gpus[] = "gpu memory";

const char *stw_word_verdict(stw_verdict verdict) {
    static const char *const words[] = {"fits", "at risk", "does not fit", "unknown"};
    return (unsigned)verdict < STW_N_VERDICTS ? words[verdict] : "?";
}

const char *stw_word_sweep_verdict(stw_sweep_verdict verdict) {
    static const char *const words[STW_SWEEP_N_VERDICTS] = {
        [STW_SWEEP_NOT_PLANNED] = "not planned", [STW_SWEEP_FITS] = "fits",
        [STW_SWEEP_AT_RISK] = "at risk",         [STW_SWEEP_DOES_NOT_FIT] = "does not fit",
        [STW_SWEEP_REFUSED] = "refused",         [STW_SWEEP_TIME_LIMIT] = "time limit",
        [STW_SWEEP_FAILED] = "solver failed",    [STW_SWEEP_UNKNOWN] = "unknown"};
    return (unsigned)verdict < STW_SWEEP_N_VERDICTS ? words[verdict] : "?";
}

/* "GPU memory and host memory": what may run out. */
static void name_resources(const stw_plan *plan, char *out, size_t out_size) {
    stw_risk risks[STW_MAX_RISKS];
    const uint32_t n = stw_plan_risks(plan, 0, risks);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n && used < out_size; i++) {
        char words[64];
        if (i > 0 && strcmp(risks[i].resource, risks[i - 1].resource) == 0) continue;
        stw_resource_name_words(risks[i].resource, words, sizeof words);
        const int length =
            snprintf(out + used, out_size - used, "%s%s", used > 0 ? " or " : "", words);
        used += length > 0 ? (size_t)length : 0;
    }
}

void stw_verdict_headline(const stw_plan *plan, const char *machine, stw_text *out) {
    const bool risky = stw_plan_bytes_verdict(plan) == STW_VERDICT_AT_RISK;
    const char *name = plan->model->name;
    char resources[160];
    switch (plan->verdict) {
    case STW_VERDICT_FITS:
        stw_text_printf(out, "%s fits on %s.", name, machine);
        return;
    case STW_VERDICT_AT_RISK:
        name_resources(plan, resources, sizeof resources);
        stw_text_printf(out, "%s is at risk on %s", name, machine);
        if (resources[0] != '\0') stw_text_printf(out, ": it may run out of %s", resources);
        stw_text_printf(out, ".");
        return;
    case STW_VERDICT_UNKNOWN:
        stw_text_printf(out, "%s: state %s on %s; forward and backward are unknown.", name,
                        risky ? "is at risk" : "fits", machine);
        return;
    default:
        stw_text_printf(out, "%s does not fit on %s.", name, machine);
    }
}

/* Said where it was tried and helps. */
static const char *remedy_of(const stw_plan *plan) {
    return stw_plan_segments_help(plan) ? " Try --set allocator.expandable_segments=true." : "";
}

static void tell_torn(const stw_plan *plan, const stw_risk *r, char *out, size_t out_size) {
    snprintf(out, out_size,
             "In %s torch's allocator has split the GPU's memory up and finds no room for %s, "
             "although all bytes fit.%s",
             stw_phase_name(r->phase), stw_word_gib(r->bytes).text, remedy_of(plan));
}

static void tell_retries(const stw_plan *plan, const stw_risk *r, char *out, size_t out_size) {
    snprintf(
        out, out_size,
        "In %s what torch's allocator reserves reaches the GPU's memory: it gives cached memory "
        "back and tries again, and a run whose order of allocations differs may find no room.%s",
        stw_phase_name(r->phase), remedy_of(plan));
}

static void tell_margin(const stw_plan *plan, const stw_risk *r, const char *what, char *out,
                        size_t out_size) {
    const bool reserved = r->kind == STW_RISK_RESERVED;
    snprintf(out, out_size,
             "%s: measured runs of engine %s %s up to %.1f%% more than was predicted for them, "
             "which here is %s of %s.%s",
             what, plan->job->engine->spec.name, reserved ? "reserved" : "held", 100 * r->margin,
             stw_word_gib(r->most_bytes).text, stw_word_gib(r->limit_bytes).text,
             reserved ? remedy_of(plan) : "");
}

static void tell_full(const stw_plan *plan, const stw_risk *r, const char *what, char *out,
                      size_t out_size) {
    if (strcmp(r->resource, resource_of_gpus) != 0) {
        snprintf(out, out_size, "%s: %s of %s are used; more than %.0f%% leaves no headroom.", what,
                 stw_word_gib(r->bytes).text, stw_word_gib(r->limit_bytes).text,
                 100 * STW_RISK_SHARE);
        return;
    }
    snprintf(out, out_size,
             "Other processes on the GPU or a larger CUDA context can make the run fail. To leave "
             "more GPU memory free: %s.",
             plan->run.placement.gpu_fill > STW_RISK_SHARE
                 ? "--set placement.gpu_fill=0.98"
                 : "a smaller batch.micro_batch or batch.seq_len, or more GPUs");
}

/* The limit that leaves room is rounded down. */
static void tell_alarm(const stw_risk *r, char *out, size_t out_size) {
    const double memory = (double)r->limit_bytes, tenths = (double)(1ull << 30) / 10;
    snprintf(out, out_size,
             "Host memory is filled to %s of node.host.memory. Some systems stop jobs above %.0f%% "
             "(Ray does); --set node.host.limit=%.1fGiB leaves that room.",
             stw_word_share((double)r->bytes, memory).text, 100 * STW_HOST_ALARM,
             floor(STW_HOST_ALARM * memory / tenths) / 10);
}

bool stw_verdict_reason(const stw_plan *plan, uint32_t i, char *out, size_t out_size) {
    stw_risk risks[STW_MAX_RISKS];
    char what[64];
    const uint32_t n = stw_plan_risks(plan, 0, risks);
    const bool none = n > 0 && plan->n_fixes == 0 && !stw_verdict_accepts_risk(&plan->run);
    if (i == n && none)
        snprintf(out, out_size, "No plan without risk was found for these settings.");
    if (i >= n) return i == n && none;
    const stw_risk *r = &risks[i];
    stw_resource_name_words(r->resource, what, sizeof what);
    what[0] = (char)toupper((unsigned char)what[0]);
    switch (r->kind) {
    case STW_RISK_TORN:
        tell_torn(plan, r, out, out_size);
        break;
    case STW_RISK_RETRIES:
        tell_retries(plan, r, out, out_size);
        break;
    case STW_RISK_RESERVED:
    case STW_RISK_MARGIN:
        tell_margin(plan, r, what, out, out_size);
        break;
    case STW_RISK_ALARM:
        tell_alarm(r, out, out_size);
        break;
    default:
        tell_full(plan, r, what, out, out_size);
    }
    return true;
}
