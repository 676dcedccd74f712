/* SPDX-License-Identifier: Apache-2.0 */
/* What a sweep over node counts answers: how many nodes to book, for each value of another key. */
#ifndef STW_REPORTS_BOOK_H
#define STW_REPORTS_BOOK_H

#include "core/pool.h"
#include "reports/reports.h"

/** The answer in a sentence and a table with one row for each value of batch.seq_len, or of the
 * other key with the most values. Nothing where the number of nodes does not vary.
 * @return rows of the table */
uint32_t stw_book_put(const stw_sweep *sweep, stw_format format, stw_pool *pool, stw_text *out);

#endif
