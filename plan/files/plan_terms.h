/* SPDX-License-Identifier: Apache-2.0 */
/* The terms that identify a plan: model, run spec, cluster, decisions, layout and program, as lines
 * "key = value", and a hash of all lines. Keys are as --set takes them; keys outside the run spec
 * start with the name of their part. A run belongs to the plan whose lines it stores. Pure
 * functions; any thread. */
#ifndef STW_PLAN_PLAN_TERMS_H
#define STW_PLAN_PLAN_TERMS_H

#include "core/json.h"
#include "core/tree.h"
#include "plan/files/plan.h"

typedef struct stw_plan_terms {
    char hash[17];  /* XXH3-64 of the lines, hexadecimal */
    stw_text lines; /* each ends in a line break */
} stw_plan_terms;
#define STW_PLAN_TERMS_INIT                                                                        \
    { "", STW_TEXT_INIT }

/** Make the terms of a plan with derived layouts and programs. The caller frees the lines. */
STW_MUST_USE stw_status stw_plan_terms_of(const stw_plan *plan, stw_plan_terms *out,
                                          stw_error *err);
/** Append one line per scalar of a JSON object; a list without items is "[]". */
STW_MUST_USE stw_status stw_terms_flatten(const char *json, size_t length, stw_text *out,
                                          stw_error *err);

/** Append lines as a member, an object of strings; nothing if there are no lines. */
STW_MUST_USE stw_status stw_terms_write(const char *lines, const char *key, stw_json *json,
                                        stw_error *err);
/** Append the lines of such a member of the document; nothing if it has none. */
STW_MUST_USE stw_status stw_terms_read(const stw_tree *tree, const char *key, stw_text *out,
                                       stw_error *err);

/** One line of a text; past its end the lengths are 0. */
typedef struct stw_term {
    const char *key, *value;
    int key_length, value_length;
} stw_term;
/** The line that begins at `text`, and the text after that line. */
stw_term stw_term_at(const char *text);
const char *stw_term_next(const stw_term *term);
bool stw_terms_have_same_key(const stw_term *a, const stw_term *b);
bool stw_terms_are_same(const stw_term *a, const stw_term *b);

/** Append the first few keys whose values differ, and the number of others: "optimizer.lr: 0.5 in
 * the run, 0.001 in the plan; ...". Derived keys (layout, program, decisions) are listed only if no
 * other key differs. Appends nothing if no key differs. */
void stw_terms_differences(const char *run, const char *plan, stw_text *out);

#endif
