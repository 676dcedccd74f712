/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/pattern.h"

#include <stdint.h>
#include <string.h>

/* [...] at `at`. @return behind it; NULL: it does not close, and stands for itself */
static const char *set_end(const char *at) {
    const char *c = at + 1;
    if (*c == '!' || *c == '^') c++;
    if (*c == ']') c++;
    for (; *c != '\0' && *c != ']'; c++)
        if (*c == '\\' && c[1] != '\0') c++;
    return *c == ']' ? c + 1 : NULL;
}

static bool in_set(const char *at, const char *end, char wanted) {
    const char *c = at + 1;
    const bool negated = *c == '!' || *c == '^';
    bool found = false;
    c += negated;
    for (bool first = true; c < end - 1; first = false) {
        if (*c == '\\' && c + 1 < end - 1) c++;
        char low = *c++, high = low;
        if (c + 1 < end - 1 && *c == '-') {
            c++;
            if (*c == '\\' && c + 1 < end - 1) c++;
            high = *c++;
        }
        (void)first;
        found = found || ((unsigned char)wanted >= (unsigned char)low &&
                          (unsigned char)wanted <= (unsigned char)high);
    }
    return found != negated;
}

/* One character of a pattern that is no *. @return behind it; NULL: it does not match */
static const char *one(const char *p, char c) {
    if (*p == '\0') return NULL;
    if (*p == '?') return p + 1;
    const char *end = *p == '[' ? set_end(p) : NULL;
    if (end != NULL) return in_set(p, end, c) ? end : NULL;
    if (*p == '\\' && p[1] != '\0') p++;
    return *p == c ? p + 1 : NULL;
}

bool stw_pattern_matches(const char *pattern, const char *text, size_t length) {
    const char *p = pattern, *star = NULL;
    size_t i = 0, back = 0;
    while (i < length) {
        if (*p == '*') {
            star = ++p;
            back = i;
            continue;
        }
        const char *next = one(p, text[i]);
        if (next != NULL) {
            p = next;
            i++;
        } else if (star != NULL) {
            p = star;
            i = ++back;
        } else {
            return false;
        }
    }
    while (*p == '*') p++;
    return *p == '\0';
}

size_t stw_pattern_end(const char *pattern, const char *text, bool at_end, bool longest) {
    const size_t n = strlen(text);
    for (size_t k = 0; k <= n; k++) {
        const size_t length = longest ? n - k : k;
        if (stw_pattern_matches(pattern, at_end ? text + n - length : text, length)) return length;
    }
    return SIZE_MAX;
}

bool stw_pattern_is_extended(const char *pattern) {
    for (const char *c = pattern; *c != '\0'; c++) {
        if (*c == '\\' && c[1] != '\0') {
            c++;
            continue;
        }
        if (*c == '(' && c > pattern && strchr("?*+@!", c[-1]) != NULL) return true;
        if (*c == '[' && c[1] == '[' && strchr(":.=", c[2]) != NULL) return true;
    }
    return false;
}
