/* SPDX-License-Identifier: Apache-2.0 */
#include "core/pattern.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static bool same_letter(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static bool matches_whole(const char *name, const char *pattern) {
    if (*pattern == '*')
        return matches_whole(name, pattern + 1) ||
               (*name != '\0' && matches_whole(name + 1, pattern));
    if (*pattern == '\0' || *name == '\0') return *pattern == *name;
    return (*pattern == '?' || same_letter(*pattern, *name)) &&
           matches_whole(name + 1, pattern + 1);
}

bool stw_name_matches(const char *name, const char *pattern) {
    if (pattern == NULL) return true;
    if (strpbrk(pattern, "*?") != NULL) return matches_whole(name, pattern);
    for (size_t n = strlen(pattern); strlen(name) >= n; name++)
        if (strncasecmp(name, pattern, n) == 0) return true;
    return false;
}
