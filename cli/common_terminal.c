/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* ioctl, struct winsize */
#endif
/* What depends on the terminal: its width, colour, and text that is wrapped to 80 columns. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/common.h"

#define BOLD "\033[1m"
#define RED "\033[31m"
#define GREEN "\033[32m"
#define YELLOW "\033[33m"
#define PLAIN "\033[0m"

enum { LEAST_COLUMNS = 40, MOST_COLUMNS = 10000 };

unsigned stw_terminal_columns(int fd) {
    const char *given = getenv("COLUMNS");
    long columns = given != NULL ? strtol(given, NULL, 10) : 0;
    if (isatty(fd) != 1 && given != NULL && columns == 0) return 0;
    struct winsize size;
    if (columns <= 0 && isatty(fd) == 1 && ioctl(fd, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
    if (columns <= 0) columns = 80;
    return (unsigned)(columns < LEAST_COLUMNS  ? LEAST_COLUMNS
                      : columns > MOST_COLUMNS ? MOST_COLUMNS
                                               : columns);
}

bool stw_terminal_has_colour(int fd) {
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    if (none != NULL && none[0] != '\0') return false;
    if (term == NULL || term[0] == '\0' || strcmp(term, "dumb") == 0) return false;
    return isatty(fd) == 1;
}

/* Words of a report that are coloured. The longer one comes first. */
static const struct {
    const char *word, *colour;
} marks[] = {{"does not fit", RED},
             {"fits with little headroom", YELLOW},
             {"may run out of memory", YELLOW},
             {"fits on", GREEN},
             {"OVER", RED},
             {"outside", RED}};

static bool is_alone(const char *line, size_t at, size_t length, size_t line_length) {
    bool before = at == 0 || !isalnum((unsigned char)line[at - 1]);
    return before && (at + length == line_length || !isalnum((unsigned char)line[at + length]));
}

static void colour_line(const char *line, size_t length, stw_text *out) {
    for (size_t at = 0; at < length;) {
        size_t marked = 0;
        for (size_t i = 0; i < sizeof marks / sizeof marks[0] && marked == 0; i++) {
            size_t n = strlen(marks[i].word);
            if (n > length - at || strncmp(line + at, marks[i].word, n) != 0) continue;
            if (!is_alone(line, at, n, length)) continue;
            stw_text_printf(out, "%s%s%s", marks[i].colour, marks[i].word, PLAIN);
            marked = n;
        }
        if (marked == 0) stw_text_append(out, line + at, 1);
        at += marked > 0 ? marked : 1;
    }
}

void stw_text_colour(const stw_text *in, stw_text *out) {
    const char *end = in->data + in->length;
    for (const char *line = in->data; line != NULL && line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((newline != NULL ? newline : end) - line);
        if (length > 0 && line[0] != ' ') {
            stw_text_printf(out, BOLD);
            stw_text_append(out, line, length);
            stw_text_printf(out, PLAIN);
        } else {
            colour_line(line, length, out);
        }
        if (newline != NULL) stw_text_append(out, "\n", 1);
        line += length + 1;
    }
}

void stw_print_wrapped(const char *text, size_t indent, size_t column) {
    enum { WIDTH = 80 };
    bool begun = column > indent; /* something stands before the first word */
    while (*text != '\0') {
        if (*text == '\n') { /* a line break that the text asks for */
            printf("\n");
            text++;
            column = 0;
            begun = false;
            continue;
        }
        size_t n = strcspn(text, " \n");
        if (begun && column + 1 + n > WIDTH) {
            printf("\n");
            column = 0;
            begun = false;
        }
        if (column < indent) {
            printf("%*s", (int)(indent - column), "");
            column = indent;
        } else if (begun) {
            printf(" ");
            column++;
        }
        printf("%.*s", (int)n, text);
        column += n;
        begun = true;
        text += n;
        while (*text == ' ') text++;
    }
    printf("\n");
}
