/* SPDX-License-Identifier: Apache-2.0 */
/* A quoted field of CSV. Programs link one of two: libcsv's (quote_csv.c), or none (quote_none.c),
 * for stowage-run, which writes no CSV and does not link libcsv. */
#ifndef STW_REPORTS_QUOTE_H
#define STW_REPORTS_QUOTE_H

#include "core/text.h"

/** Append `text` as a field in quotation marks. Any thread may call; failures mark `out`. */
void stw_csv_quote(const char *text, stw_text *out);

#endif
