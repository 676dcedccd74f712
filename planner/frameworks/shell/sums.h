/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of a shell, 64 bits. One thread at a time. */
#ifndef STW_PLANNER_SHELL_SUMS_H
#define STW_PLANNER_SHELL_SUMS_H

#include <stdint.h>

#include "planner/frameworks/shell/state.h"

typedef struct stw_shell_sum {
    int64_t value;
    bool known;
    int maybe;  /* the line of a branch on which it hangs; 0: none */
    bool error; /* bash says that it is wrong: it divides by 0, or is no whole number */
} stw_shell_sum;

/** The value of an expression without dollar signs; it may assign variables. Of one that is not
 * known the variables that it could assign are forgotten. */
stw_shell_sum stw_shell_calculate(stw_shell_reader *r, const char *text);

#endif
