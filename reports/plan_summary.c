/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/plan_sections.h"

#include <math.h>

/* One line of times: "load 12.1 s, forward_backward 1.20 s, ..." */
static void put_times(const stw_section *s) {
    stw_text line = STW_TEXT_INIT;
    if (s->plan->verdict == STW_VERDICT_DOES_NOT_FIT) return;
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const stw_phase_facts *f = &s->facts->phases[p];
        if (!f->present || !isfinite(f->time_s)) continue;
        stw_text_printf(&line, "%s%s %s", line.length > 0 ? ", " : "", stw_phase_name((stw_phase)p),
                        stw_word_seconds(f->time_s).text);
    }
    if (line.failed) s->out->failed = true;
    if (line.length > 0) stw_doc_line(s->out, s->format, "Phase times: %s.", line.data);
    stw_text_free(&line);
}

stw_status stw_report_plan_summary(const stw_plan *plan, stw_text *out, stw_error *err) {
    stw_plan_facts facts;
    stw_remarks remarks;
    stw_plan_facts_get(plan, &facts);
    stw_plan_remarks_get(plan, &facts, &remarks);
    stw_section section = {plan, &facts, &remarks, STW_FORMAT_TERMINAL, stw_pool_new(), out};
    if (section.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    if (remarks.failed) out->failed = true;
    stw_section_verdict(&section);
    put_times(&section);
    stw_section_solver(&section);
    stw_section_layouts(&section);
    stw_section_roles(&section);
    stw_doc_heading(out, section.format, "State placement");
    stw_section_decisions(&section);
    if (plan->decisions.n_blocks > 0) {
        stw_doc_heading(out, section.format, "Activations");
        stw_section_activations(&section);
    }
    stw_text_printf(out, "\n");
    stw_section_ring(&section);
    stw_section_infeasible(&section);
    stw_pool_free(section.pool);
    return stw_text_status(out, err);
}
