/* SPDX-License-Identifier: Apache-2.0 */
/* Counts calls and makes one of them fail: STOWAGE_FAIL=call:n in the environment names the n-th
 * `call` of the process (from 1), of those that table.h lists; "cuda*" all whose names begin so.
 * STOWAGE_FAIL=call:n@rank: only in
 * the process of that rank. With STOWAGE_FAIL_LOG=FILE the failed call and, when the process ends
 * or is replaced, the number of calls of each kind are appended to FILE. Any thread. Only programs
 * for tests have this; what people run holds no hook. */
#ifndef STW_TESTS_FAULTS_H
#define STW_TESTS_FAULTS_H

#include <stdbool.h>

/** Calls of one name, or one place that makes them; static storage, zeroed but for the name. */
typedef struct stw_fault_call {
    const char *name; /* up to a '(' */
    unsigned long long count;
    struct stw_fault_call *first; /* the first place that made a call of this name */
    struct stw_fault_call *next;  /* of the first places */
} stw_fault_call;

/** Count a call. @param from whence it was made, for the log. @return must it fail? */
bool stw_fault_now(stw_fault_call *call, const void *from);
/** Fail the n-th `name` from now, instead of what the environment says; NULL: none. */
void stw_fault_set(const char *name, unsigned long long n);
/** Calls of all kinds whose names begin with `prefix` since the last stw_fault_set. */
unsigned long long stw_fault_count(const char *prefix);

/** Count nothing until stw_fault_begin: what libraries do before `main` is not the program's. */
void stw_fault_hold(void);
void stw_fault_begin(void);
/** Appends the counts to the log; once a process, at its end or before another program replaces it.
 */
void stw_fault_tell(void);

/* In a wrapper: has this call to fail? */
#define STW_FAULT_NOW(text)                                                                        \
    __extension__({                                                                                \
        static stw_fault_call call_ = {.name = text};                                              \
        stw_fault_now(&call_, __builtin_return_address(0));                                        \
    })

/* A wrapper; see table.h. errno stays where `code` is 0. */
#define STW_FAULT_WRAP(name, type, parameters, arguments, value, code)                             \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters {                                                                \
        if (!STW_FAULT_NOW(#name)) return __real_##name arguments;                                 \
        if ((code) != 0) errno = (code);                                                           \
        return value;                                                                              \
    }

/* The same for a call that is made all the same. */
#define STW_FAULT_WRAP_DONE(name, type, parameters, arguments, value, code)                        \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters {                                                                \
        bool fails = STW_FAULT_NOW(#name);                                                         \
        type result = __real_##name arguments;                                                     \
        if (!fails) return result;                                                                 \
        errno = (code);                                                                            \
        return value;                                                                              \
    }

#endif
