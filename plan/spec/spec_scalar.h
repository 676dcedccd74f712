/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the spec readers: where a value comes from, and one scalar into its row. Nothing
 * outside plan/spec_*.c includes this. */
#ifndef STW_PLAN_SPEC_SCALAR_H
#define STW_PLAN_SPEC_SCALAR_H

#include "plan/spec/spec_keys.h"

/* Where the value comes from that is being read; every error names it. */
typedef struct stw_spec_source {
    const stw_spec *spec;
    const char *file;   /* or "--set" and the like */
    const char *prefix; /* "roles.0." inside an item */
    bool has_lines;     /* false: the value stood on a command line */
    int line, column;
} stw_spec_source;

/** The same source at another place; nowhere for a command line. */
stw_spec_source stw_spec_at(const stw_spec_source *from, int line, int column);
stw_status stw_spec_no_memory(const stw_spec_source *from, stw_error *err);
/** BAD_INPUT "key: found ..., expected ..." at the source's place. */
stw_status stw_spec_refuse(const stw_spec_source *from, const char *key, const char *found,
                           const char *expected, stw_error *err);
/** "auto | none or <other>": the row's words and what else it takes (NULL: nothing). */
void stw_spec_expected(const stw_spec_row *row, const char *other, char *out, size_t out_size);
/** Parse number `index` of a row that holds one double or a pair. */
STW_MUST_USE stw_status stw_spec_put_number(const stw_spec_source *from, const stw_spec_row *row,
                                            size_t index, const char *text, stw_error *err);
/** Refuse what is no printable UTF-8. */
STW_MUST_USE stw_status stw_spec_check_text(const stw_spec_source *from, const stw_spec_row *row,
                                            const char *text, stw_error *err);
/** A word, number, truth value or string into a row that is no list. */
STW_MUST_USE stw_status stw_spec_put_scalar(const stw_spec_source *from, const stw_spec_row *row,
                                            const char *text, stw_error *err);

#endif
