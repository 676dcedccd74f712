/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/pattern.h"

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

/* Where the items of a pattern begin. @return how many; the last place is its end */
static size_t items_of(const char *pattern, const char *items[STW_PATTERN_MOST + 1]) {
    size_t n = 0;
    for (const char *p = pattern; *p != '\0'; n++) {
        const char *end = *p == '[' ? set_end(p) : NULL;
        items[n] = p;
        p = end != NULL ? end : p + 1 + (*p == '\\' && p[1] != '\0');
    }
    items[n] = pattern + strlen(pattern);
    return n;
}

static bool fits(const char *item, const char *end, char c) {
    if (*item == '?') return true;
    if (*item == '[' && end > item + 1) return in_set(item, end, c);
    return (*item == '\\' && end > item + 1 ? item[1] : *item) == c;
}

static int better(int a, int b, bool longest) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    return (a > b) == longest ? a : b;
}

/* ends[k]: where the part ends that matches the items from k on. From the end of the text on. */
bool stw_pattern_lengths(const char *pattern, const char *text, bool longest, bool at_end,
                         int *out) {
    const char *items[STW_PATTERN_MOST + 1];
    int ends[STW_PATTERN_MOST + 1], next[STW_PATTERN_MOST + 1];
    const size_t n = strlen(text);
    if (n > STW_PATTERN_MOST || strlen(pattern) > STW_PATTERN_MOST) return false;
    const size_t m = items_of(pattern, items);
    for (size_t k = 0; k <= m; k++) next[k] = -1;
    for (size_t i = n + 1; i-- > 0;) {
        ends[m] = !at_end || i == n ? (int)i : -1;
        for (size_t k = m; k-- > 0;) {
            if (*items[k] == '*')
                ends[k] = better(ends[k + 1], next[k], longest);
            else
                ends[k] = i < n && fits(items[k], items[k + 1], text[i]) ? next[k + 1] : -1;
        }
        out[i] = ends[0] < 0 ? -1 : ends[0] - (int)i;
        memcpy(next, ends, (m + 1) * sizeof *next);
    }
    return true;
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
