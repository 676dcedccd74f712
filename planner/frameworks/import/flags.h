/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of a framework's training script, read from a file: a YAML map (flag: value), alone or
 * under a section such as MODEL_ARGS, or a command line (--flag value). Flags keep neither leading
 * dashes nor underscores. Everything lies in the caller's pool; one thread at a time. */
#ifndef STW_PLANNER_IMPORT_FLAGS_H
#define STW_PLANNER_IMPORT_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/pool.h"
#include "core/status.h"

typedef struct stw_flag {
    const char *name;  /* "num-layers" */
    const char *value; /* as written, without quotes; "true" for a flag without a value */
    int line;
    const char *source; /* of a script: words that a shell expands to it; NULL: as `value` has it */
} stw_flag;

typedef struct stw_flags {
    const char *path;
    const char *dashes; /* before names, in errors; NULL: "--" */
    size_t n, capacity;
    stw_flag *items;
} stw_flags;

/** Read `length` bytes. The last one of equal flags counts. A YAML null leaves a flag out.
 * @param path for errors
 * @param section YAML key of the map of flags where the document has one, else the root is the map
 */
STW_MUST_USE stw_status stw_flags_parse(const char *path, const char *text, size_t length,
                                        const char *section, stw_pool *pool, stw_flags *out,
                                        stw_error *err);
/** Read a JSON or YAML document: flags are named by their path, "a.b.c", as they are written. The
 * items of a list are one value, separated by spaces. */
STW_MUST_USE stw_status stw_flags_parse_paths(const char *path, const char *text, size_t length,
                                              stw_pool *pool, stw_flags *out, stw_error *err);
/** Add a flag, or give another value to one of this name. */
STW_MUST_USE stw_status stw_flags_add(stw_flags *flags, stw_pool *pool, const char *name,
                                      const char *value, int line, stw_error *err);
/** Give the flag of this name words of a shell. */
void stw_flags_set_source(stw_flags *flags, const char *name, const char *source);
/** What stands before names in messages. */
const char *stw_flags_dashes(const stw_flags *flags);
/** The flag of this name, or NULL. */
const stw_flag *stw_flags_find(const stw_flags *flags, const char *name);
/** BAD_INPUT at a flag: "--name value: expected ...". */
stw_status stw_flag_fail(const stw_flags *flags, const stw_flag *flag, const char *expected,
                         stw_error *err);

#endif
