/* SPDX-License-Identifier: Apache-2.0 */
/* Words of a script as they are expanded: braces, variables, sums, output of a few commands,
 * splitting. One thread at a time. */
#ifndef STW_PLANNER_SHELL_EXPAND_H
#define STW_PLANNER_SHELL_EXPAND_H

#include "planner/frameworks/shell/places.h"
#include "planner/frameworks/shell/state.h"

/* How a text is read. */
typedef enum stw_shell_mode {
    STW_SHELL_WORDS,  /* of a command: braces are expanded, values are split */
    STW_SHELL_VALUE,  /* an assignment, a subject: one word */
    STW_SHELL_MATCH,  /* a pattern, with a backslash before quoted characters */
    STW_SHELL_DOUBLE, /* within double quotes: sums */
    STW_SHELL_INPUT,  /* a here-document */
} stw_shell_mode;

/** Append the words that a word of a command becomes. */
void stw_shell_expand_words(stw_shell_reader *r, stw_shell_raw raw, stw_shell_list *out);
/** One word; modes but WORDS. */
stw_shell_word stw_shell_expand(stw_shell_reader *r, stw_shell_raw raw, stw_shell_mode mode);
/** A text that a word may have, as one: without marks, `unknown` and `source` set. */
void stw_shell_finish(stw_shell_reader *r, stw_shell_word *word);
/** The value of a sum, whose text is expanded first. */
struct stw_shell_sum stw_shell_sum_of(stw_shell_reader *r, stw_shell_raw raw);
/** May a shell make several words of it, or none, or other ones? */
bool stw_shell_is_several(const stw_shell_word *word);
/** Has a word of a command { } that make several of it? */
bool stw_shell_has_braces(stw_shell_raw raw);
/** The characters between which unquoted values are split. */
const char *stw_shell_separators(stw_shell_reader *r);
/** Refuse a sum that bash ends the line for. */
void stw_shell_check_sum(stw_shell_reader *r, const struct stw_shell_sum *sum);
/** Is the word's text known, whatever else runs? */
bool stw_shell_is_known(const stw_shell_word *word);

/* ---- for parameters.c ---- */

/* A word that grows. */
typedef struct stw_shell_expander {
    stw_shell_reader *r;
    stw_shell_mode mode;
    stw_shell_list *out; /* WORDS: those that are finished */
    stw_text text;
    bool any;       /* also "" */
    bool as_stored; /* expansions keep the quotes that they had where an array was set */
    bool splits;    /* text without quotes is split, too: in a default */
    bool spaced;    /* blanks have ended a word, and a separator may follow */
    size_t glob;    /* WORDS: 1 + where the first pattern of files is; 0: none */
    int maybe, line, depth;
    stw_shell_place_list places; /* of `text` */
    stw_shell_place unit;        /* of the expansion that is read */
} stw_shell_expander;

void stw_shell_expand_text(stw_shell_expander *x, const char *at, const char *end, bool quoted);
/** The same of the text of ${name:-text}. */
void stw_shell_expand_inner(stw_shell_expander *x, const char *at, const char *end, bool quoted);
/** Append a value that was set before. */
void stw_shell_append(stw_shell_expander *x, const stw_shell_word *from, bool quoted);
/** Append what only a running shell knows. */
void stw_shell_append_unknown(stw_shell_expander *x, const char *text, size_t length, bool quoted);
/** The same with its value if nothing else is set. */
void stw_shell_append_assumed(stw_shell_expander *x, stw_shell_raw source, const char *value,
                              bool quoted);
/** A value of a variable that is odd. */
void stw_shell_append_odd(stw_shell_expander *x, const char *name, size_t length, bool quoted);
void stw_shell_end_word(stw_shell_expander *x);
/** ${...} with `n` characters between the braces. */
void stw_shell_expand_parameter(stw_shell_expander *x, const char *in, size_t n, bool quoted);
/** $name, $1, $@ ... */
void stw_shell_expand_name(stw_shell_expander *x, const char *name, size_t n, bool quoted);
/** The output of a command, if it is one of a few that are known; the state has its status then.
 * @return NULL: it is not */
const char *stw_shell_output(stw_shell_reader *r, const char *text, size_t length, int *maybe);

#endif
