/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a plan this plan: model, run spec, cluster, decisions, layout and program, as lines
 * "key = value" with keys as --set takes them (those outside the run spec with the name of their
 * part before them), and a hash of all. A run belongs to the plan whose lines it keeps. Pure
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

/** Of a plan whose layouts and programs are derived. The caller frees the lines. */
STW_MUST_USE stw_status stw_plan_terms_of(const stw_plan *plan, stw_plan_terms *out,
                                          stw_error *err);
/** Append one line per scalar of a JSON object; a list without items is "[]". */
STW_MUST_USE stw_status stw_terms_flatten(const char *json, size_t length, stw_text *out,
                                          stw_error *err);

/** Append lines as a member, an object of strings; nothing where there are none. */
STW_MUST_USE stw_status stw_terms_write(const char *lines, const char *key, stw_json *json,
                                        stw_error *err);
/** Append the lines of such a member of the document; nothing where it has none. */
STW_MUST_USE stw_status stw_terms_read(const stw_tree *tree, const char *key, stw_text *out,
                                       stw_error *err);

/** A line of a text of lines; past its end the lengths are 0. */
typedef struct stw_term {
    const char *key, *value;
    int key_length, value_length;
} stw_term;
/** The line that begins at `text`, and the text behind it. */
stw_term stw_term_at(const char *text);
const char *stw_term_next(const stw_term *term);
bool stw_terms_have_same_key(const stw_term *a, const stw_term *b);
bool stw_terms_are_same(const stw_term *a, const stw_term *b);

/** "optimizer.lr: 0.5 in the run, 0.001 in the plan; ...", the first few keys whose values differ,
 * and how many more there are; what follows from settings (layout, program, decisions) only where
 * nothing else differs. Nothing where no key differs. */
void stw_terms_differences(const char *run, const char *plan, stw_text *out);

#endif
