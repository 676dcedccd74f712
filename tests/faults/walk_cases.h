/* SPDX-License-Identifier: Apache-2.0 */
/* What the walk over failing calls runs (walk.c). "{in}" is the folder of the inputs, "{models}"
 * the data folder. */
#ifndef STW_TESTS_FAULTS_WALK_CASES_H
#define STW_TESTS_FAULTS_WALK_CASES_H

#include <stdbool.h>
#include <stddef.h>

enum { WALK_MOST_ARGUMENTS = 24, WALK_MOST_OUTPUTS = 3 };

/* State on NVMe that runs left, which a case works on. */
typedef enum walk_state {
    WALK_STATE_NONE,
    WALK_STATE_STAYS, /* it is looked at */
    WALK_STATE_GOES,  /* it is removed; after a failure what is left of it may stay */
    WALK_STATE_LEFT,  /* a run may leave some: what `state list` then calls whole must verify */
    WALK_STATE_SAVED  /* a run saves checkpoints into "saves": complete ones must verify */
} walk_state;

typedef struct walk_case {
    const char *name;
    const char *arguments[WALK_MOST_ARGUMENTS]; /* the program first */
    const char *outputs[WALK_MOST_OUTPUTS];     /* files that it writes */
    int code;                                   /* of an undisturbed run */
    bool exact;                                 /* digits are compared as well */
    bool named;                                 /* slow, or needs a GPU: only where -c names it */
    unsigned long most; /* a walk over all calls takes so many of each; 0: all */
    const char *calls;  /* only those whose names begin so; NULL: all */
    bool asks;          /* about the machine: what cannot be learnt is left out */
    const char *environment[2];
    const char *needs; /* a file beside the folder of the programs, else the case is left out */
    walk_state state;
    const char *rank; /* "@1": the call fails on that rank alone */
} walk_case;

typedef struct walk_file {
    const char *name, *text;
} walk_file;

extern const walk_file walk_files[];
extern const walk_case walk_setup[], walk_cases[];
extern const size_t walk_n_files, walk_n_setup, walk_n_cases;

#endif
