/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict in words: one place for all reports. Pure; any thread may call. */
#ifndef STW_REPORTS_VERDICT_H
#define STW_REPORTS_VERDICT_H

#include "core/text.h"
#include "plan/files/sweep.h"
#include "plan/files/verdict.h"

/** For cells of tables: "fits", "at risk", "does not fit", "unknown". */
const char *stw_word_verdict(stw_verdict verdict);
/** The same of a row of a sweep, which may also be "refused", "time limit" ... */
const char *stw_word_sweep_verdict(stw_sweep_verdict verdict);

/** The headline of a plan, one sentence without indentation: "Qwen3-4B fits on 1 node with 8 x
 * H100." @param machine "1 node with 8 x H100" */
void stw_verdict_headline(const stw_plan *plan, const char *machine, stw_text *out);
/** Why a run may fail, a sentence or two for each risk, and what avoids it.
 * @param i of stw_plan_risks of the trainer's nodes @return false: there is none */
bool stw_verdict_reason(const stw_plan *plan, uint32_t i, char *out, size_t out_size);

#endif
