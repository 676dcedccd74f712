/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of imported settings beside a plan. `stowage inspect FRAMEWORK:FILE` has all of it.
 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/log.h"
#include "core/tree.h"
#include "reports/table.h"

/* So many lines are written out; more are summed up, with so many columns of names. */
enum { MOST_LINES = 2, MOST_COLUMNS = 64, MOST_WRITTEN = 3, MOST_NOTE = 100 };

/* What a plan leaves out, and what it takes in place of what the file does not say. */
static const stw_import_use told[] = {STW_IMPORT_UNKNOWN, STW_IMPORT_NOT_MODELLED,
                                      STW_IMPORT_ASSUMED};
enum { N_TOLD = sizeof told / sizeof told[0] };

static bool sets(const stw_values *set, const char *key) {
    const size_t length = strlen(key);
    for (size_t i = 0; i < set->n; i++)
        if (strncmp(set->items[i], key, length) == 0 && set->items[i][length] == '=') return true;
    return false;
}

/* Does the user give the key for which something was assumed? */
static bool is_given(const stw_inputs *in, const stw_tree *run, const stw_import_line *line) {
    if (line->use != STW_IMPORT_ASSUMED || line->key == NULL) return false;
    return sets(&in->set, line->key) ||
           (run != NULL && stw_node_path(run->root, line->key) != NULL);
}

/* Words that are no flag, "length of sequences", have no dashes. */
static const char *dashes_of(const stw_import *import, const stw_import_line *line) {
    return strchr(line->flag, ' ') != NULL ? "" : import->dashes;
}

static void warn_of_one(const stw_import *import, const stw_import_line *line) {
    const char *dashes = dashes_of(import, line);
    if (line->use == STW_IMPORT_UNKNOWN)
        stw_log(STW_LOG_WARN, "%s%.80s %.80s: not known; its effect on bytes is not known", dashes,
                line->flag, line->value);
    else if (line->use == STW_IMPORT_NOT_MODELLED)
        stw_log(STW_LOG_WARN, "%s%.80s %.80s: not modelled: %s", dashes, line->flag, line->value,
                line->note);
    else
        stw_log(STW_LOG_WARN, "%s%.80s: not given; assumed %.80s (%s)", dashes, line->flag,
                line->value, line->note);
}

/* "9 are not modelled: --a, --b, --c, 6 more" */
static void warn_of_several(const stw_inputs *in, const stw_import *import, const stw_tree *run,
                            stw_import_use use, size_t n) {
    static const char *const words[STW_N_IMPORT_USES] = {
        [STW_IMPORT_UNKNOWN] = "settings are not known, and so are their bytes",
        [STW_IMPORT_NOT_MODELLED] = "settings are not modelled",
        [STW_IMPORT_ASSUMED] = "settings are not given and assumed"};
    stw_text names = STW_TEXT_INIT;
    size_t named = 0;
    for (size_t i = 0; i < import->n_lines && names.length < MOST_COLUMNS; i++) {
        const stw_import_line *line = &import->lines[i];
        if (line->use != use || is_given(in, run, line)) continue;
        stw_text_printf(&names, "%s%s%.80s", named++ > 0 ? ", " : "", dashes_of(import, line),
                        line->flag);
        if (use == STW_IMPORT_ASSUMED) stw_text_printf(&names, " %.40s", line->value);
    }
    if (named < n) stw_text_printf(&names, ", %zu more", n - named);
    if (names.data != NULL)
        stw_log(STW_LOG_WARN, "%s: %zu %s: %s", import->path, n, words[use], names.data);
    stw_text_free(&names);
}

void stw_warn_of_flags(const stw_inputs *in, const stw_import *import) {
    stw_tree *run = NULL;
    bool summed = false;
    if (in->run != NULL && strcmp(in->run, "-") != 0) /* its errors are told when it is used */
        (void)!stw_tree_read_yaml(in->run, &run, NULL);
    for (size_t u = 0; u < N_TOLD; u++) {
        size_t n = 0;
        for (size_t i = 0; i < import->n_lines; i++)
            n += import->lines[i].use == told[u] && !is_given(in, run, &import->lines[i]);
        if (n > MOST_LINES && !stw_log_is_verbose()) {
            warn_of_several(in, import, run, told[u], n);
            summed = true;
            continue;
        }
        for (size_t i = 0; i < import->n_lines; i++)
            if (import->lines[i].use == told[u] && !is_given(in, run, &import->lines[i]))
                warn_of_one(import, &import->lines[i]);
    }
    if (summed)
        stw_log(STW_LOG_WARN, "%s: what became of each: -v, or stowage inspect -v %s", import->path,
                in->from);
    stw_tree_free(run);
}

/* Whole words of a long note. */
static void shorten(const char *note, char *out, size_t out_size) {
    size_t n = strlen(note);
    if (n > MOST_NOTE)
        for (n = MOST_NOTE; n > 0 && note[n] != ' ';) n--;
    snprintf(out, out_size, "%.*s%s", (int)n, note, note[n] != '\0' ? "..." : "");
}

void stw_import_write_short(const stw_import *import, const char *from, stw_text *out) {
    static const char *const words[STW_N_IMPORT_USES] = {[STW_IMPORT_TAKEN] = "understood",
                                                         [STW_IMPORT_NO_EFFECT] =
                                                             "without effect on bytes and seconds",
                                                         [STW_IMPORT_UNKNOWN] = "not known",
                                                         [STW_IMPORT_NOT_MODELLED] = "not modelled",
                                                         [STW_IMPORT_ASSUMED] = "assumed"};
    stw_text counts = STW_TEXT_INIT;
    size_t written = 0, left = 0;
    for (int use = 0; use < STW_N_IMPORT_USES; use++) {
        const size_t n = stw_import_count(import, (stw_import_use)use);
        if (n > 0)
            stw_text_printf(&counts, "%s%zu %s", counts.length > 0 ? ", " : "", n, words[use]);
    }
    stw_doc_heading(out, STW_FORMAT_TERMINAL, "Settings");
    if (import->gpus > 0)
        stw_doc_line(out, STW_FORMAT_TERMINAL, "The launch has %llu GPUs.",
                     (unsigned long long)import->gpus);
    if (counts.length > 0)
        stw_doc_line(out, STW_FORMAT_TERMINAL, "%s: %s.", import->path, counts.data);
    if (counts.failed) out->failed = true;
    stw_text_free(&counts);
    for (size_t u = 0; u < N_TOLD; u++)
        for (size_t i = 0; i < import->n_lines; i++) {
            const stw_import_line *line = &import->lines[i];
            if (line->use != told[u]) continue;
            if (written == MOST_WRITTEN) {
                left++;
                continue;
            }
            written++;
            char note[MOST_NOTE + 4];
            shorten(line->note, note, sizeof note);
            stw_doc_item(out, STW_FORMAT_TERMINAL, "%s%.60s %.60s: %s%s%s", dashes_of(import, line),
                         line->flag, line->value, words[line->use], note[0] != '\0' ? ": " : "",
                         note);
        }
    if (left > 0) stw_doc_item(out, STW_FORMAT_TERMINAL, "%zu more", left);
    stw_doc_line(out, STW_FORMAT_TERMINAL, "All of them: stowage inspect -v %s", from);
}

void stw_import_tell(const char *from, stw_text *out) {
    const int name = (int)strcspn(from, ":");
    stw_doc_line(
        out, STW_FORMAT_TERMINAL,
        "Settings: %s; what it leaves out has the defaults of %s. Each key: stowage inspect "
        "-v %s. With changes, as a file: --emit %.*s",
        from, stw_import_defaults(from), from, name, from);
}
