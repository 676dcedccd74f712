/* SPDX-License-Identifier: Apache-2.0 */
/* src/llamafactory/cli.py and launcher.py at 0.9.5: `llamafactory-cli train FILE key=value ...`, or
 * with flags; torchrun starts NPROC_PER_NODE processes (all visible GPUs) on each of NNODES nodes
 * where there is more than one GPU. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "planner/frameworks/import/deepspeed_file.h"
#include "planner/frameworks/import/launch.h"
#include "planner/frameworks/import/llamafactory.h"
#include "planner/frameworks/import/ray.h"
#include "planner/frameworks/shell/shell.h"

enum { MOST_BYTES = 1 << 20 };

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* @return index of the word after which arguments begin; 0: no such command */
static size_t arguments_begin(const stw_shell_word *words, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *text = words[i].text;
        if (i + 1 < n && ends_with(text, "llamafactory-cli") &&
            strcmp(words[i + 1].text, "train") == 0)
            return i + 2;
        if (ends_with(text, "src/train.py") || ends_with(text, "llamafactory/launcher.py"))
            return i + 1;
    }
    return 0;
}

static bool is_wanted(const stw_shell_word *words, size_t n) {
    return arguments_begin(words, n) > 0;
}

static bool is_file(const char *text) {
    return ends_with(text, ".yaml") || ends_with(text, ".yml") || ends_with(text, ".json");
}

/* The file of settings, whose path is that of the script from here on in errors. */
static void read_file(stw_reading *r, const stw_shell_word *word) {
    const char *found = stw_deepspeed_find(r->out, word->text);
    char *text = NULL;
    uint64_t length = 0;
    stw_status status = STW_STATUS_OK;
    if (found == NULL) {
        status =
            stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, word->line, 1,
                        "%.100s: no such file beside this one, in its parents or here", word->text);
    } else {
        status = stw_file_read(found, MOST_BYTES, &text, &length, r->err);
        if (status == STW_STATUS_OK)
            status =
                stw_flags_parse_paths(found, text, (size_t)length, r->out->pool, &r->flags, r->err);
        if (status == STW_STATUS_OK) {
            r->out->text = stw_pool_string(r->out->pool, text);
            r->out->text_length = r->out->text != NULL ? (size_t)length : 0;
        }
        r->out->path = found;
    }
    free(text);
    stw_reading_fail(r, status);
}

/* --name value ..., key=value, --name (true). */
static void read_arguments(stw_reading *r, const stw_shell *shell, size_t begin) {
    stw_pool *pool = r->out->pool;
    for (size_t i = begin; i < shell->n_words && r->status == STW_STATUS_OK; i++) {
        const stw_shell_word *word = &shell->words[i];
        const char *text = word->text + strspn(word->text, "-");
        const size_t length = strcspn(text, "=");
        if (*text == '\0' || *text == '$') continue; /* arguments of the script */
        char *name = stw_pool_printf(pool, "%.*s", (int)length, text);
        const char *value = text[length] == '=' ? text + length + 1 : NULL;
        for (char *c = name; c != NULL && *c != '\0'; c++)
            if (*c == '-') *c = '_';
        if (value == NULL && word->text[0] != '-') {
            stw_reading_fail(r, stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, word->line,
                                            1, "found \"%.60s\", expected --flag or key=value",
                                            word->text));
            return;
        }
        const bool has_value = i + 1 < shell->n_words && strncmp(shell->words[i + 1].text, "--", 2);
        if (value == NULL) value = has_value ? shell->words[++i].text : "true";
        stw_reading_fail(r, stw_flags_add(&r->flags, pool, name, value, word->line, r->err));
    }
}

static void count_gpus(stw_reading *r, const stw_shell *shell) {
    stw_import *out = r->out;
    const char *nodes = stw_launch_value(r, shell, "NNODES", NULL);
    const char *each = stw_launch_value(r, shell, "NPROC_PER_NODE", NULL);
    bool known;
    const char *visible = stw_launch_value(r, shell, "CUDA_VISIBLE_DEVICES", &known);
    static const char none[] = "no whole number; GPUs are the cluster's";
    uint64_t n = 1, per_node = 0;
    if (nodes != NULL && stw_reading_parse_count(nodes, &n) && n > 0 && n <= 65536) {
        out->nodes = n;
        out->nodes_name = stw_pool_printf(out->pool, "NNODES %s", nodes);
        stw_reading_line(r, STW_IMPORT_TAKEN, "NNODES", nodes, "GPUs are the cluster's");
    } else {
        if (nodes != NULL) stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "NNODES", nodes, none);
        n = 1;
    }
    if (each != NULL && stw_reading_parse_count(each, &per_node) && per_node <= 65536) {
        stw_reading_line(r, STW_IMPORT_TAKEN, "NPROC_PER_NODE", each, "GPUs are the cluster's");
    } else if (each != NULL) {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "NPROC_PER_NODE", each, none);
    } else if (known && *visible != '\0') {
        per_node = 1;
        for (const char *c = visible; *c != '\0'; c++) per_node += *c == ',';
        stw_reading_line(r, STW_IMPORT_TAKEN, "CUDA_VISIBLE_DEVICES", visible,
                         "GPUs are the cluster's");
    }
    out->gpus = per_node * n;
}

bool stw_llamafactory_is_script(const char *path) { return ends_with(path, ".sh"); }

void stw_llamafactory_read_script(stw_reading *r, const char *text, size_t length) {
    stw_shell shell;
    stw_status status = stw_launch_find(r->out, text, length, is_wanted, &shell, r->err);
    r->flags = (stw_flags){.path = r->out->path, .dashes = ""};
    if (status == STW_STATUS_OK && shell.n_found == 0)
        status = stw_fail(r->err, STW_STATUS_BAD_INPUT, r->out->path,
                          "found no command `llamafactory-cli train` with a file or flags");
    stw_reading_fail(r, status);
    if (r->status != STW_STATUS_OK) return;
    size_t begin = arguments_begin(shell.words, shell.n_words);
    stw_launch_check_found(r, &shell);
    if (begin < shell.n_words && is_file(shell.words[begin].text))
        read_file(r, &shell.words[begin++]);
    if (r->status == STW_STATUS_OK) read_arguments(r, &shell, begin);
    count_gpus(r, &shell);
    const char *ray = stw_launch_value(r, &shell, "USE_RAY", NULL);
    if (ray != NULL && !stw_reading_denies(ray)) stw_reading_ray(r, &shell);
}
