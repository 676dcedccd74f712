/* SPDX-License-Identifier: Apache-2.0 */
/* What a script has set so far. Where a test is not decided, each branch has a copy, and a join of
 * them marks what differs. Words are never changed; they lie in the reader's pool, lists in the
 * state. One thread at a time. */
#ifndef STW_PLANNER_SHELL_STATE_H
#define STW_PLANNER_SHELL_STATE_H

#include "planner/frameworks/shell/shell.h"
#include "planner/frameworks/shell/tree.h"
#include "planner/frameworks/shell/value.h"

/* In this order min is "and", max is "or". */
typedef enum stw_shell_truth { STW_SHELL_NO, STW_SHELL_MAYBE, STW_SHELL_YES } stw_shell_truth;

/* A list of words that grows. */
typedef struct stw_shell_list {
    size_t n, capacity;
    stw_shell_word *items;
} stw_shell_list;

typedef struct stw_shell_function {
    const char *name;
    const stw_shell_node *body; /* NULL: it is not known which */
} stw_shell_function;

/* A variable that gets its value back when a function or a command ends. */
typedef struct stw_shell_saved {
    int depth;
    stw_shell_variable before; /* name NULL: there was none */
    size_t index;
} stw_shell_saved;

enum { STW_SHELL_MAX_VARIABLES = 512, STW_SHELL_MAX_SAVED = 64, STW_SHELL_MAX_FUNCTIONS = 256 };

typedef struct stw_shell_state {
    stw_shell_variable *variables;
    size_t n_variables, variables_capacity;
    stw_shell_function *functions;
    size_t n_functions, functions_capacity;
    stw_shell_saved saved[STW_SHELL_MAX_SAVED];
    size_t n_saved;
    stw_shell_word *arguments; /* $1 ... */
    size_t n_arguments;
    bool script_arguments; /* they are the script's, which are not known */
    size_t shifted;        /* of the script's */
    bool odd_arguments;
    bool dead;              /* this place is not reached */
    stw_shell_truth status; /* of the last command: did it succeed? */
    int code;               /* its number, $?; -1: not known */
    bool doubt;             /* it is MAYBE because of a test, not of a program, which succeeds */
    stw_shell_truth errexit, pipefail, nounset;
    bool allexport, noglob, inherits;
    bool moved;  /* it may have left the folder in which it began */
    int changed; /* the line of a command that may have changed any variable; 0: none */
    int poison;  /* the line of what is not read; 0: none */
    const char *poison_text;
} stw_shell_state;

typedef struct stw_shell_loop stw_shell_loop;
typedef struct stw_shell_call stw_shell_call;
struct stw_shell_expander;
struct stw_shell_origin;

/* One reading of a script. */
typedef struct stw_shell_reader {
    stw_pool *pool;
    const char *path;
    stw_error *err;
    stw_status status;
    stw_shell_state *state;
    int line;                  /* of the command that runs */
    int unsure;                /* branches around it that may not run */
    int calls, nested;         /* functions that run; texts that are read in others */
    int sourced;               /* files around the command */
    bool arguments_unknown;    /* the script has some */
    bool checked;              /* a failure of this command ends nothing, whatever `set -e` says */
    bool substituted;          /* a command's output was taken since this was false */
    int inner;                 /* commands whose output is taken run; none of them is found */
    size_t steps, read, words; /* commands and bytes of words so far */
    size_t counted;            /* words whose bytes were counted */
    stw_shell_loop *loop;      /* around the command */
    stw_shell_call *call;      /* the function that runs */
    int torn;                  /* the line of the script that is no command; 0: all are */
    int early;                 /* the line of a command that may have ended the script; 0: none */
    int left;                  /* the same after a command was found */
    const stw_shell_node *last_node;       /* of the last command that was found */
    const struct stw_shell_origin *origin; /* the texts that are read, the innermost first */
    int only;                              /* the line of a word of what is wanted; 0: any */
    bool (*wanted)(const stw_shell_word *words, size_t n);
    /* run the text of a word as commands, all of them at one line */
    void (*execute)(struct stw_shell_reader *r, const stw_shell_word *text, int line);
    /* files of this folder that the others call back */
    void (*expand_name)(struct stw_shell_expander *x, const char *name, size_t n, bool quoted);
    void (*expand_parameter)(struct stw_shell_expander *x, const char *in, size_t n, bool quoted);
    const char *(*output)(struct stw_shell_reader *r, const char *text, size_t length, int *maybe);
    void (*run_simple)(struct stw_shell_reader *r, const stw_shell_node *node);
    void (*run_inner)(struct stw_shell_reader *r, const stw_shell_node *list);
    stw_shell *out;
} stw_shell_reader;

void stw_shell_fail_memory(stw_shell_reader *r);
/** Refuse the script at the line of the command. */
void stw_shell_fail(stw_shell_reader *r, const char *text, const char *what);
/** Refuse it if a command is found after this. */
void stw_shell_poison(stw_shell_reader *r, const char *text);
/** The status of the last command. 0 or 1 is its number, unless another is set after this. */
void stw_shell_set_status(stw_shell_state *s, stw_shell_truth status);
void stw_shell_copy_status(stw_shell_state *to, const stw_shell_state *from);
/** Refuse the reading once the deadline of the thread has passed. */
void stw_shell_check_time(stw_shell_reader *r);
/** The script may end here. */
void stw_shell_may_end(stw_shell_reader *r);
/** Bounds the texts of a reading. */
void stw_shell_count(stw_shell_reader *r, const char *text);
/** Add a word; bounds the words of a reading. */
void stw_shell_list_add(stw_shell_reader *r, stw_shell_list *list, stw_shell_word word);
/** A text of the pool without marks, or with one of the changes of value.h. */
const char *stw_shell_changed(stw_shell_reader *r, const char *text,
                              void (*change)(const char *, stw_text *));
const char *stw_shell_plain(stw_shell_reader *r, const char *text);
/** The text between OPEN and CLOSE. */
const char *stw_shell_opened(stw_shell_reader *r, const char *text);

/** NULL: the script has not named it, and the environment may have it. */
stw_shell_variable *stw_shell_state_find(const stw_shell_state *s, const char *name, size_t length);
/** Give it a value; what it had (exported, readonly) stays. */
void stw_shell_state_assign(stw_shell_reader *r, const char *name, size_t length,
                            stw_shell_variable value);
/** Its value is not known from here on. */
void stw_shell_state_forget(stw_shell_reader *r, const char *name, size_t length);
/** Any variable may have another value, or none. @param sets also those that nothing has set */
void stw_shell_state_change_all(stw_shell_reader *r, bool sets);
/** Remember a variable until `stw_shell_state_restore` to the length that `saved` had. */
void stw_shell_state_save(stw_shell_reader *r, const char *name, size_t length);
void stw_shell_state_restore(stw_shell_reader *r, size_t n_saved);
void stw_shell_state_define(stw_shell_reader *r, const char *name, const stw_shell_node *body);
const stw_shell_function *stw_shell_state_function(const stw_shell_state *s, const char *name);

void stw_shell_state_free(stw_shell_state *s);
/** *to must be empty or freed. */
void stw_shell_state_copy(stw_shell_reader *r, stw_shell_state *to, const stw_shell_state *from);
/** *into becomes what holds after either of both. `from` stays. */
void stw_shell_state_join(stw_shell_reader *r, stw_shell_state *into, const stw_shell_state *from);
/** Is the second the same, or different only in what is not known in both? */
bool stw_shell_state_same(const stw_shell_state *a, const stw_shell_state *b);

#endif
