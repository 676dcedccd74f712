/* SPDX-License-Identifier: Apache-2.0 */
/* Plain data of a Python pickle (protocols 2 to 5): None, bools, integers, floats, strings, lists,
 * tuples and dicts. Nothing is imported and nothing is called: an opcode that would is refused with
 * its position. A document owns its values and is read-only; lists may contain themselves. */
#ifndef STW_CORE_PICKLE_H
#define STW_CORE_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

typedef enum stw_pickle_kind {
    STW_PICKLE_NONE,
    STW_PICKLE_BOOL,
    STW_PICKLE_INT,
    STW_PICKLE_REAL,
    STW_PICKLE_STRING, /* also bytes */
    STW_PICKLE_LIST,   /* also tuples */
    STW_PICKLE_DICT    /* key, value, key, value, ... as they were set */
} stw_pickle_kind;

typedef struct stw_pickle_value {
    stw_pickle_kind kind;
    int64_t integer; /* INT; BOOL: 0 or 1 */
    double real;
    const char *text; /* STRING, with NUL; it may contain others */
    size_t n_items;
    size_t capacity;
    struct stw_pickle_value **items;
} stw_pickle_value;

/** Does the text begin as a pickle of protocol 2 to 5? */
bool stw_pickle_begins(const char *data, size_t length);
/** Values are allocated in `pool`, too. @param file for errors. BAD_INPUT names the byte. */
STW_MUST_USE stw_status stw_pickle_parse(stw_pool *pool, const char *file, const char *data,
                                         size_t length, const stw_pickle_value **out,
                                         stw_error *err);
/** The value of a string key, the last that was set; NULL: there is none, or it is no dict. */
const stw_pickle_value *stw_pickle_get(const stw_pickle_value *dict, const char *key);

#endif
