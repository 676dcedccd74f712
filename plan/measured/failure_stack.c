/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of Python stacks, as Python, rich and IPython print them. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "plan/measured/failure_parts.h"

enum { MOST_NAME = 120, MOST_PATH = 400 };

/* The last parts of a path, without what is before a package's folder: names of users stay away. */
static const char *short_path(const char *path, size_t n, stw_pool *pool) {
    static const char *const before[] = {"site-packages/", "dist-packages/", "site-packages\\"};
    char whole[MOST_PATH];
    if (n >= sizeof whole) {
        path += n - (sizeof whole - 1);
        n = sizeof whole - 1;
    }
    memcpy(whole, path, n);
    whole[n] = '\0';
    const char *from = whole;
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        const char *at = strstr(whole, before[i]);
        if (at != NULL) from = at + strlen(before[i]);
    }
    for (char *c = whole; *c != '\0'; c++)
        if (*c == '\\') *c = '/';
    return stw_pool_string(pool, from);
}

static const char *name_at(const char *at, stw_pool *pool) {
    size_t n = 0;
    while (at[n] != '\0' && n < MOST_NAME &&
           (isalnum((unsigned char)at[n]) || strchr("_<>.", at[n])))
        n++;
    return stw_pool_printf(pool, "%.*s", (int)n, at);
}

static bool make(const char *path, size_t n, const char *function, uint64_t line, stw_pool *pool,
                 stw_frame *out) {
    *out = (stw_frame){short_path(path, n, pool), name_at(function, pool), "", line};
    return out->file != NULL && out->function != NULL;
}

/*   File "torch/optim/adamw.py", line 148, in step */
static bool is_python(const char *line, stw_pool *pool, stw_frame *out) {
    const char *at = strstr(line, "File \"");
    if (at == NULL) return false;
    at += strlen("File \"");
    const char *end = strchr(at, '"');
    if (end == NULL || strncmp(end, "\", line ", 8) != 0) return false;
    char *rest = NULL;
    const uint64_t number = strtoull(end + 8, &rest, 10);
    const char *in = strstr(rest, ", in ");
    return make(at, (size_t)(end - at), in != NULL ? in + 5 : "", number, pool, out);
}

/* torch/optim/adamw.py:566 in _multi_tensor_adamw        (rich) */
static bool is_rich(const char *line, stw_pool *pool, stw_frame *out) {
    const char *dot = strstr(line, ".py:");
    char *rest = NULL;
    if (dot == NULL || !isdigit((unsigned char)dot[4])) return false;
    const uint64_t number = strtoull(dot + 4, &rest, 10);
    if (strncmp(rest, " in ", 4) != 0) return false;
    const char *begin = dot;
    while (begin > line && begin[-1] != ' ' && begin[-1] != '\t') begin--;
    return make(begin, (size_t)(dot + 3 - begin), rest + 4, number, pool, out);
}

/* ~/torch/nn/modules/module.py in _call_impl(self, *input)        (IPython) */
static bool is_ipython(const char *line, stw_pool *pool, stw_frame *out) {
    const char *dot = strstr(line, ".py in ");
    const size_t blank = strspn(line, " ");
    if (dot == NULL || strchr(line, '(') == NULL || strchr(line + blank, ' ') != dot + 3)
        return false;
    return make(line + blank, (size_t)(dot + 3 - line - (ptrdiff_t)blank), dot + 7, 0, pool, out);
}

bool stw_frame_read(const char *line, stw_pool *pool, stw_frame *out) {
    return is_python(line, pool, out) || is_rich(line, pool, out) || is_ipython(line, pool, out);
}

bool stw_frame_begins(const char *line) {
    return strstr(line, "Traceback (most recent call last)") != NULL;
}

size_t stw_line_tag(const char *line, const char **tag) {
    static const struct {
        const char *begin;
        char end;
    } tags[] = {{"[rank", ']'}, {"pid=", ')'}, {"[default", ']'}};
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        const char *at = strstr(line, tags[i].begin);
        const char *end = at != NULL && at - line < 60 ? strchr(at, tags[i].end) : NULL;
        if (end == NULL || end - at > 40) continue;
        size_t n = (size_t)(end - at);
        const char *comma = memchr(at, ',', n); /* "pid=12, ip=10.0.0.1" */
        if (comma != NULL) n = (size_t)(comma - at);
        *tag = at;
        return n;
    }
    return 0;
}
