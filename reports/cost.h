/* SPDX-License-Identifier: Apache-2.0 */
/* What GPU-hours cost (node.price_per_gpu_hour, USD): lines of reports, and which kind of GPU has
 * the cheapest tokens. Nothing is said without a price. Any thread. */
#ifndef STW_REPORTS_COST_H
#define STW_REPORTS_COST_H

#include "reports/facts.h"
#include "reports/reports.h"
#include "reports/table.h"

/** "0.12 USD", "1,234 USD" */
stw_word stw_word_usd(double usd);
/** The cost of a plan's iterations and tokens, in a line. */
void stw_cost_of_plan(const stw_plan *plan, stw_format format, stw_text *out);

/** Of each model the kind with the cheapest tokens: by price where every kind on which it fits has
 * one, else by GPU-hours, and which of the two. What is at risk counts where nothing else
 * fits, and is called so. @param answers [n] by model */
void stw_size_recommend(const stw_size_answer *answers, uint32_t n, stw_format format,
                        stw_text *out);
/** Is an answer the cheapest of its model? */
bool stw_size_is_cheapest(const stw_size_answer *answers, uint32_t n, const stw_size_answer *a);

#endif
