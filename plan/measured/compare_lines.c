/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/measured/compare_lines.h"

#include <inttypes.h>
#include <math.h>

#include "core/checked.h"

bool stw_compare_within(const stw_comparer *c, const stw_compare_line *line) {
    double off = fabs(line->predicted - line->measured), about = fabs(line->measured);
    if (line->is_time) return off <= fmax(c->tolerance.time * about, c->tolerance.time_floor_s);
    uint64_t floor = line->processes > 0
                         ? stw_times(line->processes, c->tolerance.process_floor_bytes)
                         : c->tolerance.memory_floor_bytes;
    return off <= fmax(c->tolerance.memory * about, (double)floor);
}

double stw_compare_error(double predicted, double measured) {
    if (predicted == 0 && measured == 0) return 0.0;
    return (predicted - measured) / measured; /* infinite where nothing was measured to be there */
}

/* Bytes of a command that failed or was ended before the phase was over once: they can refute the
 * plan, not confirm it. */
static bool is_lower_bound(const stw_comparer *c, const stw_compare_line *line) {
    if (c->run->exit_code == 0 || line->is_time || line->verdict == STW_LINE_NOT_MEASURED)
        return false;
    if (!isnan(c->run->time_s[line->phase])) return false;
    return line->predicted >= line->measured || stw_compare_within(c, line);
}

void stw_compare_add(stw_comparer *c, stw_compare_line line) {
    if (c->status != STW_STATUS_OK) return;
    stw_comparison *out = c->out;
    stw_compare_line *lines = stw_pool_grow(out->pool, out->lines, out->n_lines,
                                            (size_t)out->n_lines + 1, &c->capacity, sizeof *lines);
    if (lines == NULL) {
        c->status = stw_fail(c->err, STW_STATUS_NO_MEMORY, "comparison", "out of memory");
        return;
    }
    out->lines = lines;
    line.error = stw_compare_error(line.predicted, line.measured);
    if (line.note == NULL && is_lower_bound(c, &line))
        line.note = stw_pool_printf(out->pool,
                                    "the command ended with exit code %" PRIu32 ": a lower bound",
                                    c->run->exit_code);
    if (line.verdict != STW_LINE_NOT_MEASURED)
        line.verdict = line.note != NULL              ? STW_LINE_NOT_JUDGED
                       : stw_compare_within(c, &line) ? STW_LINE_WITHIN
                                                      : STW_LINE_OUTSIDE;
    if (line.verdict == STW_LINE_WITHIN || line.verdict == STW_LINE_OUTSIDE) out->judged++;
    out->shown += !isnan(line.predicted) && !isnan(line.measured);
    if (line.verdict == STW_LINE_OUTSIDE) out->outside++;
    out->lines[out->n_lines++] = line;
}

const char *stw_compare_who(stw_comparer *c, const char *what, uint32_t index, uint32_t of) {
    char *text =
        of > 1 ? stw_pool_printf(c->out->pool, "%s %" PRIu32 ", worst of %" PRIu32, what, index, of)
               : stw_pool_printf(c->out->pool, "%s %" PRIu32, what, index);
    if (text == NULL && c->status == STW_STATUS_OK)
        c->status = stw_fail(c->err, STW_STATUS_NO_MEMORY, "comparison", "out of memory");
    return text;
}

void stw_compare_keep_worse(stw_compare_line *worst, bool *any, const stw_compare_line *line) {
    if (*any && fabs(stw_compare_error(line->predicted, line->measured)) <=
                    fabs(stw_compare_error(worst->predicted, worst->measured)))
        return;
    *worst = *line;
    *any = true;
}
