/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that cannot be kept together, and changes that make a plan fit: their words and tables. */
#include <stdio.h>
#include <string.h>

#include "reports/plan_sections.h"

/* As options of a command line: --set nodes=2 --set "node.host.limit=141 GiB" */
void stw_fix_options(const stw_fix_change *changes, uint32_t n_changes, char *out,
                     size_t out_size) {
    size_t used = 0;
    for (uint32_t i = 0; i < n_changes && used < out_size; i++) {
        const stw_fix_change *c = &changes[i];
        const char *quote = strpbrk(c->value, " *?[]{}()|;&<>$'") != NULL ? "\"" : "";
        int n = snprintf(out + used, out_size - used, "%s--set %s%s=%s%s", i > 0 ? " " : "", quote,
                         c->set, c->value, quote);
        used += n > 0 ? (size_t)n : 0;
    }
}

static bool is_timed(const stw_fix *fix) { return fix->iteration_s > 0 && fix->tokens_per_s > 0; }

void stw_fix_effect(const stw_fix *fix, char *out, size_t out_size) {
    const char *why = fix->why != NULL ? fix->why : "";
    if (is_timed(fix))
        snprintf(out, out_size, "%s%s%s per iteration, %s tokens/s", why,
                 why[0] != '\0' ? "; " : "", stw_word_seconds(fix->iteration_s).text,
                 stw_word_number(fix->tokens_per_s).text);
    else
        snprintf(out, out_size, "%s", why);
}

bool stw_binding_is_elsewhere(const stw_plan *plan, const stw_binding *binding) {
    const bool of_host = strcmp(binding->resource, "host memory") == 0 ||
                         strcmp(binding->resource, "page-locked memory") == 0;
    return !of_host || binding->enough_bytes > plan->cluster.host.memory_bytes;
}

static void put_limits(const stw_section *s) {
    static const char *const heads[] = {"resource", "phase", ">fits with", "options to add"};
    bool any = false;
    stw_table t;
    stw_doc_heading(s->out, s->format, "Limits that cannot be kept together");
    for (uint32_t i = 0; i < s->plan->n_bindings; i++) any |= s->plan->bindings[i].n_changes > 0;
    if (any)
        stw_doc_line(s->out, s->format,
                     "Any one of these limits, raised to the figure, with the others unchanged, "
                     "would make a plan fit. Each figure was planned.");
    stw_table_begin(&t, s->pool, heads, 4);
    for (uint32_t i = 0; i < s->plan->n_bindings; i++) {
        const stw_binding *b = &s->plan->bindings[i];
        char resource[64], changes[256] = "";
        stw_resource_name_words(b->resource, resource, sizeof resource);
        stw_fix_options(b->changes, b->n_changes, changes, sizeof changes);
        stw_table_cell(&t, "%s", resource);
        stw_table_cell(&t, "%s", b->phase != NULL ? b->phase : "");
        stw_table_cell(&t, "%s", b->enough_bytes > 0 ? stw_word_gib(b->enough_bytes).text : "");
        stw_table_cell(&t, "%s", changes);
    }
    stw_table_write(&t, s->format, s->out);
}

static void put_fix_table(const stw_section *s, bool at_risk) {
    static const char *const heads[] = {"options to add", "effect", ">iteration", ">tokens/s"};
    const stw_plan *plan = s->plan;
    char changes[512];
    uint32_t n = 0;
    bool timed = false;
    stw_table t;
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        if (plan->fixes[i].at_risk != at_risk) continue;
        n++;
        timed = timed || is_timed(&plan->fixes[i]);
    }
    if (n == 0) return;
    stw_doc_heading(
        s->out, s->format,
        at_risk ? "Changes within limits, but at risk, smallest first (each row was planned)"
        : plan->verdict == STW_VERDICT_AT_RISK
            ? "Changes with which it fits without risk, fastest first (each row was planned)"
            : "Changes that make the plan fit, smallest first (each row was planned)");
    stw_table_begin(&t, s->pool, heads, timed ? 4 : 2);
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        const stw_fix *fix = &plan->fixes[i];
        if (fix->at_risk != at_risk) continue;
        stw_fix_options(fix->changes, fix->n_changes, changes, sizeof changes);
        stw_table_cell(&t, "%s", changes);
        stw_table_cell(&t, "%s", fix->why != NULL ? fix->why : "");
        if (!timed) continue;
        stw_table_cell(&t, "%s", is_timed(fix) ? stw_word_seconds(fix->iteration_s).text : "");
        stw_table_cell(&t, "%s", is_timed(fix) ? stw_word_number(fix->tokens_per_s).text : "");
    }
    stw_table_write(&t, s->format, s->out);
}

void stw_section_infeasible(const stw_section *s) {
    const stw_plan *plan = s->plan;
    stw_doc_part(s->out, s->format, "change");
    if (plan->n_bindings > 0) put_limits(s);
    if (plan->n_fixes == 0) {
        if (plan->n_bindings > 0 && plan->verdict == STW_VERDICT_DOES_NOT_FIT)
            stw_doc_line(s->out, s->format,
                         "None of the changes that were tried, alone or together, makes the plan "
                         "fit%s%s.",
                         plan->tried != NULL ? ": " : "", plan->tried != NULL ? plan->tried : "");
        return;
    }
    put_fix_table(s, false);
    put_fix_table(s, true);
}
