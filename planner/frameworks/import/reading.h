/* SPDX-License-Identifier: Apache-2.0 */
/* What an import does with a framework's flags: rows say what each of them is to a plan. The import
 * owns what is read; one thread at a time. */
#ifndef STW_PLANNER_IMPORT_READING_H
#define STW_PLANNER_IMPORT_READING_H

#include "core/json.h"
#include "planner/frameworks/import/flags.h"
#include "planner/frameworks/import/import.h"

/** What a flag is to the import. */
typedef enum stw_flag_use {
    STW_FLAG_READ,    /* the framework's file reads it by its name */
    STW_FLAG_MODEL,   /* `key` of the model's config */
    STW_FLAG_RUN,     /* `key` of the run spec */
    STW_FLAG_IDLE,    /* changes neither bytes nor seconds of a step */
    STW_FLAG_LISTED,  /* has an effect that is not modelled */
    STW_FLAG_REFUSED, /* nothing that is planned would be true */
} stw_flag_use;

typedef enum stw_flag_type {
    STW_FLAG_TEXT,
    STW_FLAG_COUNT,
    STW_FLAG_NUMBER,
    STW_FLAG_SWITCH
} stw_flag_type;

typedef struct stw_flag_row {
    const char *name; /* one * stands for any characters */
    stw_flag_use use;
    stw_flag_type type;
    const char *key;      /* MODEL, RUN; LISTED: a value that is read by its name, or NULL;
                             REFUSED: another harmless value, or NULL */
    const char *harmless; /* LISTED, REFUSED: a value with which it has no effect, or NULL */
    const char *note;     /* LISTED, REFUSED: what is planned, what to use instead; RUN: NAME=VALUE
                             of another flag, without which it has no effect, or NULL; several
                             values have bars between them */
} stw_flag_row;

typedef struct stw_flag_table {
    const stw_flag_row *rows;
    size_t n;
} stw_flag_table;

/** The first row that matches a name, or NULL. */
const stw_flag_row *stw_flag_row_named(const stw_flag_table *table, const char *name);

typedef struct stw_reading {
    stw_flags flags;
    const char *dashes; /* before names, in errors: "--" or "" */
    stw_import *out;
    stw_json *json; /* the model's config, NULL if the framework names a model */
    stw_error *err;
    stw_status status; /* the first failure; nothing is read after it */
    /* beginnings of names that this file writes in another way: {as asked, as written}; NULL: none,
     * {NULL} at the end. stw_reading_named applies them. */
    const char *const (*names)[2];
} stw_reading;

void stw_reading_fail(stw_reading *r, stw_status status);
/** Is a value one of those between bars? */
bool stw_flag_is_one_of(const char *values, const char *value);
/** The value of a flag. @return `fallback` without it */
const char *stw_reading_text(const stw_reading *r, const char *name, const char *fallback);
/** The value of a switch, false without the flag; a failure if it is neither true nor false. */
bool stw_reading_is_set(stw_reading *r, const char *name);
/** Equal, as words or as numbers. Python writes True and False. */
bool stw_reading_same(const char *a, const char *b);
/** Is it a word that switches off, a zero, or none? */
bool stw_reading_denies(const char *value);
/** @return `fallback` without the flag, or where it is None; a failure if it is no whole number */
uint64_t stw_reading_count(stw_reading *r, const char *name, uint64_t fallback);
bool stw_reading_parse_count(const char *text, uint64_t *out);

/** A name as the file writes it. */
const char *stw_reading_named(const stw_reading *r, const char *name);

/* Values of Hydra's configs: null is none, ${a.b} and ${oc.select:a.b,default} are those of other
 * keys. */
bool stw_reading_is_reference(const char *text);
const char *stw_reading_value(stw_reading *r, const char *name, const char *fallback);
/** A failure if it is neither true nor false. */
bool stw_reading_is_on(stw_reading *r, const char *name, bool fallback);
/** A failure if it is no whole number. */
uint64_t stw_reading_number(stw_reading *r, const char *name, uint64_t fallback);

/* Flags that a framework's own file stands for. */
typedef struct stw_flag_pair {
    const char *name, *value; /* name NULL ends a list */
} stw_flag_pair;
/** Add them as defaults, on line 0. */
void stw_reading_add_pairs(stw_reading *r, const stw_flag_pair *pairs);

/** Add a line to the import. */
void stw_reading_line(stw_reading *r, stw_import_use use, const char *flag, const char *value,
                      const char *note);
void stw_reading_assume(stw_reading *r, const char *what, const char *value, const char *note);
/** The same of a key of the run spec: where the user sets that, nothing is assumed. */
void stw_reading_assume_key(stw_reading *r, const char *what, const char *value, const char *note,
                            const char *key);
/** NOT_BUILT_IN at a flag: what to use instead. */
void stw_reading_refuse(stw_reading *r, const char *name, const char *note);
/** Add a setting of the run spec. */
void stw_reading_set(stw_reading *r, const char *key, const char *value);
void stw_reading_set_count(stw_reading *r, const char *key, uint64_t value);
void stw_reading_set_switch(stw_reading *r, const char *key, bool value);
/** Does the name of a flag that no table has speak of bytes (offload, recompute, cache, ...)? */
bool stw_reading_moves_bytes(const char *name);
/** What becomes of a flag by its row; NULL: it is not known, which fails where its name speaks of
 * bytes. */
void stw_reading_sort(stw_reading *r, const stw_flag *flag, const stw_flag_row *row);

#endif
