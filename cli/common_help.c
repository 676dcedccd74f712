/* SPDX-License-Identifier: Apache-2.0 */
/* Help, manual pages and words for completion: three forms of one table of options. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/common.h"
#include "stw_config.h"

/* ---- for people ---- */

static void print_text(const stw_usage *usage, const stw_option *options, size_t n) {
    printf("Usage: %s%s%s%s%s%s\n\n", usage->program, usage->command != NULL ? " " : "",
           usage->command != NULL ? usage->command : "", usage->arguments[0] != '\0' ? " " : "",
           usage->arguments, strstr(usage->arguments, "[options]") != NULL ? "" : " [options]");
    stw_print_wrapped(usage->summary, 0, 0);
    printf("\nOptions:\n");
    for (size_t i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s%s",
                 options[i].letter != NULL ? options[i].letter : "",
                 options[i].letter != NULL ? ", " : "", options[i].name,
                 options[i].metavar != NULL ? " " : "",
                 options[i].metavar != NULL ? options[i].metavar : "");
        int column = printf("  %-26s", left);
        stw_print_wrapped(options[i].help, 29, column > 0 ? (size_t)column : 0);
    }
}

/* ---- manual pages ---- */

void stw_print_roff(const char *text) {
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '\\')
            fputs("\\e", stdout);
        else if (*at == '-')
            fputs("\\-", stdout);
        else if ((*at == '.' || *at == '\'') && (at == text || at[-1] == '\n'))
            printf("\\&%c", *at);
        else
            putchar(*at);
    }
}

void stw_print_roff_head(const char *name, const char *summary) {
    printf(".TH ");
    for (const char *at = name; *at != '\0'; at++) putchar(toupper((unsigned char)*at));
    printf(" 1 \"\" \"stowage %s\" \"Stowage\"\n.SH NAME\n", STW_VERSION);
    stw_print_roff(name);
    printf(" \\- ");
    stw_print_roff(summary);
    printf("\n");
}

/* The first sentence, without its full stop. */
static void first_sentence(const char *text, char *out, size_t out_size) {
    const char *end = strstr(text, ". ");
    size_t n = end != NULL ? (size_t)(end - text) : strlen(text);
    if (n > 0 && text[n - 1] == '.') n--;
    snprintf(out, out_size, "%.*s", (int)n, text);
}

static void print_man(const stw_usage *usage, const stw_option *options, size_t n) {
    char name[64], summary[300];
    snprintf(name, sizeof name, "%s%s%s", usage->program, usage->command != NULL ? "-" : "",
             usage->command != NULL ? usage->command : "");
    first_sentence(usage->summary, summary, sizeof summary);
    stw_print_roff_head(name, summary);
    printf(".SH SYNOPSIS\n.B %s", usage->program);
    if (usage->command != NULL) printf(" %s", usage->command);
    printf("\n");
    stw_print_roff(usage->arguments);
    printf("\n[options]\n.SH DESCRIPTION\n");
    stw_print_roff(usage->summary);
    printf("\n.SH OPTIONS\n");
    for (size_t i = 0; i < n; i++) {
        printf(".TP\n");
        if (options[i].letter != NULL) {
            printf("\\fB");
            stw_print_roff(options[i].letter);
            printf("\\fR, ");
        }
        printf("\\fB");
        stw_print_roff(options[i].name);
        printf("\\fR");
        if (options[i].metavar != NULL) {
            printf(" \\fI");
            stw_print_roff(options[i].metavar);
            printf("\\fR");
        }
        printf("\n");
        stw_print_roff(options[i].help);
        printf("\n");
    }
    printf(".SH SEE ALSO\n.BR stowage (1),\nthe documentation in share/doc/stowage\n");
}

/* ---- words ---- */

static void print_words(const stw_usage *usage, const stw_option *options, size_t n) {
    printf("arguments\t%s\t%s\n", usage->command != NULL ? usage->command : usage->program,
           usage->arguments);
    for (size_t i = 0; i < n; i++)
        printf("option\t%s\t%s\t%s\t%s\n", options[i].name,
               options[i].letter != NULL ? options[i].letter : "",
               options[i].metavar != NULL ? options[i].metavar : "", options[i].help);
}

void stw_usage_print(const stw_usage *usage) {
    stw_option options[STW_MOST_OPTIONS];
    stw_general none = {0};
    const size_t n = stw_usage_options(usage, &none, options);
    switch (stw_help_form_asked()) {
    case STW_HELP_TEXT:
        print_text(usage, options, n);
        break;
    case STW_HELP_MAN:
        print_man(usage, options, n);
        break;
    case STW_HELP_WORDS:
        print_words(usage, options, n);
    }
}
