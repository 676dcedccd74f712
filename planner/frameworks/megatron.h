/* SPDX-License-Identifier: Apache-2.0 */
/* Import of Megatron-LM's arguments (megatron/training/arguments.py). */
#ifndef STW_PLANNER_MEGATRON_H
#define STW_PLANNER_MEGATRON_H

#include "planner/frameworks/import.h"

/** What a flag is to the import. */
typedef enum stw_megatron_use {
    STW_MEGATRON_READ,    /* megatron.c reads it by its name */
    STW_MEGATRON_MODEL,   /* `key` of the model's config */
    STW_MEGATRON_RUN,     /* `key` of the run spec */
    STW_MEGATRON_IDLE,    /* changes neither bytes nor seconds of a step */
    STW_MEGATRON_LISTED,  /* has an effect that is not modelled */
    STW_MEGATRON_REFUSED, /* nothing that is planned would be true */
} stw_megatron_use;

typedef enum stw_megatron_type {
    STW_MEGATRON_TEXT,
    STW_MEGATRON_COUNT,
    STW_MEGATRON_NUMBER,
    STW_MEGATRON_SWITCH
} stw_megatron_type;

typedef struct stw_megatron_flag {
    const char *name; /* a final * stands for any characters */
    stw_megatron_use use;
    stw_megatron_type type;
    const char *key;      /* MODEL, RUN; LISTED: a value that is read by its name, or NULL */
    const char *harmless; /* LISTED, REFUSED: a value with which it has no effect, or NULL */
    const char *note;     /* LISTED, REFUSED: what is planned, what to use instead */
} stw_megatron_flag;

/** The row of a flag, or NULL. */
const stw_megatron_flag *stw_megatron_flag_named(const char *name);
/** Read arguments into `out`, whose pool and path are set. */
STW_MUST_USE stw_status stw_megatron_import(const char *text, size_t length, stw_import *out,
                                            stw_error *err);

#endif
