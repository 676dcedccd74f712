/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* readlink, access, strncasecmp */
#include "cli/common.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "core/tree.h"
#include "core/units.h"

static stw_help_form form = STW_HELP_TEXT;

stw_help_form stw_help_form_asked(void) { return form; }

bool stw_help_form_take(const char *name) {
    static const char *const names[] = {"text", "man", "words"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            form = (stw_help_form)i;
            return true;
        }
    return false;
}

static bool has_option(const stw_usage *usage, const char *name) {
    for (size_t i = 0; i < usage->n_options; i++)
        if (strcmp(usage->options[i].name, name) == 0) return true;
    return false;
}

size_t stw_usage_options(const stw_usage *usage, stw_general *general, stw_option *out) {
    const stw_option shared[] = {
        {"--output", "-o", "FILE", "output file; - is stdout", STW_OPTION_VALUE, &general->output},
        {"--json", NULL, NULL, "write complete JSON to stdout, also beside -o FILE",
         STW_OPTION_FLAG, &general->json},
        {"--verbose", "-v", NULL, "details beside the summary, and more messages on stderr",
         STW_OPTION_FLAG, &general->verbose},
        {"--quiet", "-q", NULL, "only errors on stderr, and no summary if -o is given",
         STW_OPTION_FLAG, &general->quiet},
        {"--help", "-h", NULL, "print this help", STW_OPTION_FLAG, &general->help},
    };
    size_t n = 0;
    for (size_t i = 0; i < usage->n_options; i++) out[n++] = usage->options[i];
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (!has_option(usage, shared[i].name)) out[n++] = shared[i];
    return n;
}

static const stw_option *find_option(const stw_option *options, size_t n, const char *word,
                                     size_t length) {
    for (size_t i = 0; i < n; i++) {
        const stw_option *o = &options[i];
        if (strlen(o->name) == length && strncmp(o->name, word, length) == 0) return o;
        if (o->letter != NULL && length == 2 && strncmp(o->letter, word, 2) == 0) return o;
    }
    return NULL;
}

static stw_status unknown_option(const stw_usage *usage, const stw_option *options, size_t n,
                                 const char *word, stw_error *err) {
    const char *names[STW_MOST_OPTIONS];
    for (size_t i = 0; i < n; i++) names[i] = options[i].name;
    char hint[512];
    if (usage->hint != NULL && usage->hint(word, hint, sizeof hint))
        return stw_fail(err, STW_STATUS_USAGE, word, "unknown option%s", hint);
    const char *near = stw_nearest(word, names, n);
    return stw_fail(err, STW_STATUS_USAGE, word, "unknown option; %s%s%s",
                    near != NULL ? "did you mean " : "", near != NULL ? near : "see --help",
                    near != NULL ? "?" : "");
}

static stw_status set_option(const stw_option *option, const char *value, stw_error *err) {
    if (option->kind == STW_OPTION_FLAG) {
        *(bool *)option->out = true;
    } else if (option->kind == STW_OPTION_VALUE || option->kind == STW_OPTION_ONCE) {
        const char **out = option->out;
        if (option->kind == STW_OPTION_ONCE && *out != NULL)
            return stw_fail(err, STW_STATUS_USAGE, option->name,
                            "found \"%.60s\" and \"%.60s\", expected one", *out, value);
        *out = value;
    } else {
        stw_values *values = option->out;
        if (values->n == sizeof values->items / sizeof values->items[0])
            return stw_fail(err, STW_STATUS_USAGE, option->name, "given more than %zu times",
                            values->n);
        values->items[values->n++] = value;
    }
    return STW_STATUS_OK;
}

stw_status stw_options_parse(int argc, char **argv, const stw_usage *usage, stw_general *general,
                             const char **positional, size_t *n_positional, stw_error *err) {
    stw_option options[STW_MOST_OPTIONS];
    size_t n = stw_usage_options(usage, general, options);
    bool only_positional = false;
    stw_status status = STW_STATUS_OK;
    *n_positional = 0;
    general->argc = argc;
    general->argv = argv;
    for (int i = 1; i < argc && status == STW_STATUS_OK; i++) {
        const char *word = argv[i];
        if (only_positional || word[0] != '-' || strcmp(word, "-") == 0) {
            if (*n_positional == usage->most)
                return stw_fail(err, STW_STATUS_USAGE, word, "unexpected argument, expected %s",
                                usage->arguments);
            positional[(*n_positional)++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_positional = true;
            continue;
        }
        const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
        size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word);
        const stw_option *option = find_option(options, n, word, length);
        if (option == NULL) return unknown_option(usage, options, n, word, err);
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (equals != NULL && strcmp(option->name, "--help") == 0 && stw_help_form_take(value))
            value = equals = NULL;
        if (option->kind == STW_OPTION_FLAG && equals != NULL)
            return stw_fail(err, STW_STATUS_USAGE, option->name, "takes no value");
        if (option->kind != STW_OPTION_FLAG && value == NULL) {
            if (i + 1 == argc)
                return stw_fail(err, STW_STATUS_USAGE, option->name, "requires a value: %s",
                                option->metavar);
            value = argv[++i];
        }
        status = set_option(option, value, err);
    }
    if (status == STW_STATUS_OK && !general->help && *n_positional < usage->least)
        status = stw_fail(err, STW_STATUS_USAGE,
                          usage->command != NULL ? usage->command : usage->program,
                          "expected %s; see --help", usage->arguments);
    return status;
}

stw_status stw_option_u64(const char *name, const char *text, uint64_t least, uint64_t *out,
                          stw_error *err) {
    if (text == NULL) return STW_STATUS_OK;
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < least)
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "found \"%s\", expected a whole number of at least %llu", text,
                        (unsigned long long)least);
    *out = value;
    return STW_STATUS_OK;
}

stw_status stw_option_double(const char *name, const char *text, double *out, stw_error *err) {
    if (text == NULL) return STW_STATUS_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0.0)
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "found \"%s\", expected a number of at least 0", text);
    *out = value;
    return STW_STATUS_OK;
}

stw_status stw_option_share(const char *name, const char *text, double *out, stw_error *err) {
    double value = 0;
    if (text == NULL) return STW_STATUS_OK;
    if (stw_quantity_parse(text, STW_UNIT_RATIO, &value, name, NULL) != STW_STATUS_OK || value > 1)
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "found \"%s\", expected a share from 0 to 1, such as 0.01 or 1%%", text);
    *out = value;
    return STW_STATUS_OK;
}

int stw_exit(stw_status status, const stw_error *err) {
    if (status != STW_STATUS_OK && (err == NULL || !err->told)) {
        char text[1400], line[1500]; /* one write: other threads and ranks write, too */
        stw_failure_format(status, err, text, sizeof text);
        bool colour = stw_terminal_has_colour(STDERR_FILENO);
        snprintf(line, sizeof line, "%sstowage: error:%s %s\n", colour ? "\033[1;31m" : "",
                 colour ? "\033[0m" : "", text);
        fputs(line, stderr);
    }
    return stw_status_exit_code(status);
}

stw_status stw_emit(const stw_general *general, const stw_text *text, stw_error *err) {
    stw_status status = stw_text_status(text, err);
    if (status != STW_STATUS_OK) return status;
    const char *path = general->output != NULL ? general->output : "-";
    const bool twice = general->json && !stw_file_is_stdout(path);
    stw_text coloured = STW_TEXT_INIT;
    if (!general->json && strcmp(path, "-") == 0 && stw_terminal_has_colour(STDOUT_FILENO)) {
        stw_text_colour(text, &coloured);
        text = &coloured;
        status = stw_text_status(text, err);
    }
    if (status == STW_STATUS_OK)
        status = stw_file_write(path, text->data != NULL ? text->data : "", text->length, err);
    if (status == STW_STATUS_OK && twice)
        status = stw_file_write("-", text->data != NULL ? text->data : "", text->length, err);
    stw_text_free(&coloured);
    return status;
}

bool stw_has_summary(const stw_general *general) {
    const bool to_file = general->output != NULL && strcmp(general->output, "-") != 0;
    return to_file && !general->quiet && !general->json;
}

stw_status stw_check_suffix(const char *path, const char *what, const char *suffixes,
                            stw_error *err) {
    const char *suffix = stw_path_suffix(path);
    size_t length = strlen(suffix);
    if (length == 0) return STW_STATUS_OK;
    for (const char *at = suffixes; *at != '\0';) {
        size_t n = strcspn(at, " ");
        if (n == length && strncasecmp(at, suffix, n) == 0) return STW_STATUS_OK;
        at += n + strspn(at + n, " ");
    }
    return stw_fail(err, STW_STATUS_USAGE, path, "no format %s of %s; formats: %s", suffix, what,
                    suffixes);
}

void stw_general_apply(const stw_general *general) {
    if (general->quiet) stw_log_level_set(STW_LOG_ERROR);
    if (general->verbose) stw_log_level_set(STW_LOG_DEBUG);
}

stw_status stw_program_folder(char *out, size_t out_size, stw_error *err) {
    ssize_t n = readlink("/proc/self/exe", out, out_size - 1);
    if (n <= 0)
        return stw_fail_native(err, STW_STATUS_IO, errno, "/proc/self/exe", "cannot be read: %s",
                               strerror(errno));
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL) *slash = '\0';
    return STW_STATUS_OK;
}

stw_status stw_data_folder(char *out, size_t out_size, stw_error *err) {
    const char *given = getenv("STOWAGE_DATA");
    if (given != NULL && given[0] != '\0') {
        snprintf(out, out_size, "%s", given);
        return STW_STATUS_OK;
    }
    char folder[3072];
    stw_status status = stw_program_folder(folder, sizeof folder, err);
    if (status != STW_STATUS_OK) return status;
    snprintf(out, out_size, "%s/../share/stowage", folder);
    if (stw_file_is_folder(out)) return STW_STATUS_OK;
#ifdef STW_SOURCE_MODELS
    snprintf(out, out_size, "%s", STW_SOURCE_MODELS);
    if (stw_file_is_folder(out)) return STW_STATUS_OK;
#endif
    return stw_fail(err, STW_STATUS_IO, out,
                    "data folder not found; set STOWAGE_DATA to the path of share/stowage");
}

stw_status stw_sibling(const char *name, char *out, size_t out_size, stw_error *err) {
    char folder[3072];
    stw_status status = stw_program_folder(folder, sizeof folder, err);
    if (status != STW_STATUS_OK) return status;
    snprintf(out, out_size, "%s/%s", folder, name);
    if (access(out, X_OK) != 0)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, out,
                        "%s not found; it must be in the same folder as stowage", name);
    return STW_STATUS_OK;
}

int stw_become_run(const char *name, const char *first, int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    char program[4096];
    stw_status status = stw_sibling("stowage-run", program, sizeof program, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    char **args = calloc((size_t)argc + 2, sizeof *args);
    if (args == NULL)
        return stw_exit(stw_fail(&err, STW_STATUS_NO_MEMORY, "run", "out of memory"), &err);
    int n = 0;
    args[n++] = (char *)(uintptr_t)name; /* what its help calls itself */
    if (first != NULL) args[n++] = (char *)(uintptr_t)first;
    for (int i = 1; i < argc; i++) args[n++] = argv[i];
    execv(program, args);
    free(args);
    return stw_exit(stw_fail_native(&err, STW_STATUS_NOT_BUILT_IN, errno, program,
                                    "cannot be started: %s", strerror(errno)),
                    &err);
}
