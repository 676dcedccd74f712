/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of a script as a tree. Everything lies in the caller's pool and points into the
 * text. One thread at a time. */
#ifndef STW_PLANNER_SHELL_TREE_H
#define STW_PLANNER_SHELL_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/pool.h"
#include "core/status.h"

/* A part of the text as it is written. */
typedef struct stw_shell_raw {
    const char *text;
    size_t length;
    int line;
} stw_shell_raw;

typedef enum stw_shell_kind {
    STW_SHELL_SIMPLE,     /* words: assignments, the command, its arguments */
    STW_SHELL_PIPE,       /* left | right */
    STW_SHELL_AND,        /* left && right */
    STW_SHELL_OR,         /* left || right */
    STW_SHELL_NOT,        /* ! left */
    STW_SHELL_BACKGROUND, /* left & */
    STW_SHELL_SUBSHELL,   /* ( left ) */
    STW_SHELL_GROUP,      /* { left } */
    STW_SHELL_IF,         /* if left; then right; else other */
    STW_SHELL_WHILE,      /* while left; do right */
    STW_SHELL_UNTIL,
    STW_SHELL_FOR,      /* for words[0] in words[1...]; do right */
    STW_SHELL_SELECT,   /* the same, and somebody chooses */
    STW_SHELL_COUNT,    /* for ((words[0]; words[1]; words[2])); do right */
    STW_SHELL_CASE,     /* case words[0] in left */
    STW_SHELL_ITEM,     /* words[0] | words[1] ...) left, then `end` */
    STW_SHELL_FUNCTION, /* words[0] () left */
    STW_SHELL_SUM,      /* ((words[0])) */
    STW_SHELL_TEST,     /* [[ words ]] */
} stw_shell_kind;

typedef struct stw_shell_node {
    stw_shell_kind kind;
    int line;
    struct stw_shell_node *left, *right, *other;
    struct stw_shell_node *next; /* the command after it in its list */
    stw_shell_raw *words;
    size_t n, capacity;
    stw_shell_raw input;     /* of a here-document */
    bool has_input, literal; /* a here-document; in which nothing is expanded */
    bool tabs, alone;        /* that loses tabs; it is the only redirection */
    bool redirected;         /* input or output of the command */
    bool in;                 /* for: a list is given */
    char end;                /* item: ; for ;;, & for ;&, t for ;;& */
} stw_shell_node;

enum { STW_SHELL_MAX_HERE = 8 };

typedef struct stw_shell_parser {
    stw_pool *pool;
    const char *path;
    const char *at, *end;
    int line;
    bool one_line; /* all of the text counts as this line */
    stw_status status;
    stw_error *err;
    int depth;
    int n_here; /* here-documents that begin at the next line */
    struct {
        stw_shell_node *node;
        stw_shell_raw end;
        bool tabs;
    } here[STW_SHELL_MAX_HERE];
} stw_shell_parser;

/** The commands up to the end of a line, as a list.
 * @param out NULL: the text has ended
 * @return BAD_INPUT: what is no command, with its line */
STW_MUST_USE stw_status stw_shell_parse(stw_shell_parser *p, stw_shell_node **out);

#endif
