/* SPDX-License-Identifier: Apache-2.0 */
/* STW_FORMAT_BLOCKS: what a report says, as elements of a JSON array, for the HTML page. Titles,
 * headings, lines and items are ["title", TEXT] and so on, ["part", NAME] says to which part of the
 * page what follows belongs (verdict, binds, change, assumptions, memory, placement, seconds,
 * measured, search); tables are ["table", HEADS, ROWS]. Each
 * block ends with a comma and a line break. The caller owns the text; one thread at a time. */
#ifndef STW_REPORTS_BLOCKS_H
#define STW_REPORTS_BLOCKS_H

#include "core/text.h"

/** Append a JSON string that may stand inside a <script> element: "<" is escaped, too. */
void stw_block_quote(stw_text *out, const char *text);
/** Append [KIND, TEXT]. */
void stw_block_put(stw_text *out, const char *kind, const char *text);
/** Append `blocks` as a JSON array. */
void stw_block_array(stw_text *out, const stw_text *blocks);
/** Append a JSON document of stw_json as stw_block_quote does strings, without its indentation. */
void stw_block_document(stw_text *out, const stw_text *json);

#endif
