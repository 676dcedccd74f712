/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the spec readers: the source of a value, and writing one scalar into its row. Internal
 * to plan/spec. */
#ifndef STW_PLAN_SPEC_SCALAR_H
#define STW_PLAN_SPEC_SCALAR_H

#include "plan/spec/spec_keys.h"

/* The source of the value that is being read; every error names it. */
typedef struct stw_spec_source {
    const stw_spec *spec;
    const char *file;   /* or an origin such as "--set" */
    const char *prefix; /* "roles.0." inside an item */
    bool has_lines;     /* false: the value comes from a command line */
    bool base_units;    /* a number without a unit is in base units, as in JSON; else refused */
    int line, column;
} stw_spec_source;

/** The same source at another line; a command line has none. */
stw_spec_source stw_spec_at(const stw_spec_source *from, int line, int column);
stw_status stw_spec_no_memory(const stw_spec_source *from, stw_error *err);
/** BAD_INPUT "key: found ..., expected ..." at the source's place. */
stw_status stw_spec_refuse(const stw_spec_source *from, const char *key, const char *found,
                           const char *expected, stw_error *err);
/** Write the row's words and what else it accepts: "auto | none or <other>".
 * @param other may be NULL */
void stw_spec_expected(const stw_spec_row *row, const char *other, char *out, size_t out_size);
/** True if `text` is `auto` and the planner may search this key. */
bool stw_spec_is_search(const stw_spec_source *from, const stw_spec_row *row, const char *text);
/** Parse number `index` of a row that holds one double or a pair. */
STW_MUST_USE stw_status stw_spec_put_number(const stw_spec_source *from, const stw_spec_row *row,
                                            size_t index, const char *text, stw_error *err);
/** Refuse text that is not printable UTF-8. */
STW_MUST_USE stw_status stw_spec_check_text(const stw_spec_source *from, const stw_spec_row *row,
                                            const char *text, stw_error *err);
/** Write a word, number, truth value or string into a row that is not a list. */
STW_MUST_USE stw_status stw_spec_put_scalar(const stw_spec_source *from, const stw_spec_row *row,
                                            const char *text, stw_error *err);

#endif
