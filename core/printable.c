/* SPDX-License-Identifier: Apache-2.0 */
#include "core/printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Characters that show nothing and change how the others are shown: order of writing (bidi), line
 * separators, zero width, tags. */
static bool is_format(uint32_t code) {
    static const uint32_t ranges[][2] = {
        {0x00ad, 0x00ad}, {0x034f, 0x034f}, {0x061c, 0x061c}, {0x180e, 0x180e}, {0x200b, 0x200f},
        {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1]) return true;
    return false;
}

size_t stw_printable_length(const char *at) {
    const unsigned char *p = (const unsigned char *)at;
    if (p[0] >= 0x20 && p[0] < 0x7f) return 1;
    if (p[0] < 0xc2 || p[0] >= 0xf5) return 0;
    size_t length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    uint32_t code = p[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (p[i] < 0x80 || p[i] > 0xbf) return 0;
        code = code << 6 | (p[i] & 0x3fu);
    }
    if (code < (length == 4 ? 0x10000u : length == 3 ? 0x800u : 0xa0u)) return 0;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    if (is_format(code) || (code & 0xfffe) == 0xfffe) return 0;
    return length;
}

/* What stands for the character at `at`, whose bytes are `length`, 0: it is not printable. */
static size_t piece_of(const char *at, size_t length, char piece[5]) {
    static const char pairs[] = "\nn\rr\tt";
    const char *pair = strchr(pairs, *at);
    if (length > 0) {
        memcpy(piece, at, length);
        return length;
    }
    if (pair != NULL) return (size_t)snprintf(piece, 5, "\\%c", pair[1]);
    return (size_t)snprintf(piece, 5, "\\x%02x", (unsigned)(unsigned char)*at);
}

size_t stw_printable_copy(const char *string, char *out, size_t out_size) {
    static const char dots[] = "...";
    size_t total = 0, used = 0, cut = 0; /* cut: where dots would still have room */
    for (const char *at = string; *at != '\0';) {
        char piece[5];
        size_t length = stw_printable_length(at), n = piece_of(at, length, piece);
        if (total == used && used + n < out_size) {
            memcpy(out + used, piece, n);
            used += n;
            if (used + sizeof dots <= out_size) cut = used;
        }
        total += n;
        at += length > 0 ? length : 1;
    }
    if (out_size == 0) return total;
    out[used] = '\0';
    if (used < total && out_size >= sizeof dots) memcpy(out + cut, dots, sizeof dots);
    return total;
}
