/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* strcasecmp */
#include "planner/frameworks/import/launch.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- flags ---- */

static bool is_flag(const char *text) { return text[0] == '-' && text[1] == '-' && text[2] != 0; }

/* A list or a text of flags that is set elsewhere, such as ${EXTRA_ARGS[@]}. */
static bool is_unknown_list(const stw_shell_word *word) {
    static const char *const names[] = {"ARG", "OPT", "FLAG", "PARAM", "CONFIG"};
    const char *text = word->text;
    if (!word->unknown || (*text != '$' && *text != '`')) return false;
    if (strstr(text, "[@]") != NULL || strstr(text, "[*]") != NULL) return true;
    for (const char *at = text; *at != '\0'; at++)
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            if (strncasecmp(at, names[i], strlen(names[i])) == 0) return true;
    return false;
}

static void refuse_word(stw_reading *r, const stw_shell_word *word) {
    if (word->unknown)
        stw_reading_fail(
            r, stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, word->line, 1,
                           "found \"%.80s\", which this file does not set; set it above the "
                           "command, or remove it",
                           word->text));
    else
        stw_reading_fail(r, stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, word->line, 1,
                                        "found \"%.60s\", expected --flag", word->text));
}

static bool matters(const stw_flag_row *row, const char *name) {
    return row == NULL ? stw_reading_moves_bytes(name) : row->use != STW_FLAG_IDLE;
}

void stw_launch_check_open(stw_reading *r, const stw_shell_word *word, const char *name,
                           const char *value, const stw_flag_row *row) {
    if (word->maybe == 0 || !matters(row, name)) return;
    stw_reading_fail(
        r,
        stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, word->maybe, 1,
                    "%s%.60s %.60s: whether this line runs depends on what the file does not "
                    "say (a test, a loop, an argument or another file); set it without a condition",
                    stw_flags_dashes(&r->flags), name, value));
}

typedef struct flag_reader {
    stw_reading *r;
    const stw_flag_table *table;
    bool plain;
} flag_reader;

static void add(const flag_reader *f, const char *name, const char *value,
                const stw_shell_word *word) {
    stw_reading *r = f->r; /* the word's source is that of the value */
    const stw_flag_row *row = stw_flag_row_named(f->table, name);
    stw_launch_check_open(r, word, name, value, row);
    if (f->plain && matters(row, name) && word->unknown)
        stw_reading_fail(
            r, stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, word->line, 1,
                           "--%.60s: found \"%.80s\", which this file does not set; set it above "
                           "the command",
                           name, value));
    else
        stw_reading_fail(r,
                         stw_flags_add(&r->flags, r->out->pool, name, value, word->line, r->err));
    if (r->status == STW_STATUS_OK) stw_flags_set_source(&r->flags, name, word->source);
}

void stw_launch_read_flags(stw_reading *r, const stw_shell *shell, size_t begin,
                           const stw_flag_table *table, bool plain) {
    const flag_reader f = {r, table, plain};
    stw_pool *pool = r->out->pool;
    for (size_t i = begin; i < shell->n_words && r->status == STW_STATUS_OK;) {
        stw_shell_word word = shell->words[i++];
        if (!is_flag(word.text)) {
            refuse_word(r, &word);
            return;
        }
        const size_t length = strcspn(word.text + 2, "=");
        if (word.unknown && memchr(word.text, '$', length + 2) != NULL) { /* of which name? */
            refuse_word(r, &word);
            return;
        }
        char *name = stw_pool_printf(pool, "%.*s", (int)length, word.text + 2);
        const char *value = word.text[2 + length] == '=' ? word.text + 3 + length : NULL;
        const bool given = value != NULL;
        const char *equals = given ? strchr(word.source, '=') : NULL;
        /* quotes around all of the word are those of the value, too */
        const char *quote = given && strchr("\"'", word.source[0]) != NULL ? word.source : "";
        word.source = equals != NULL ? stw_pool_printf(pool, "%.1s%s", quote, equals + 1) : NULL;
        for (char *c = name; c != NULL && *c != '\0'; c++)
            if (*c == '_') *c = '-';
        if (!given) value = "true";
        for (size_t first = i; !given && i < shell->n_words && !is_flag(shell->words[i].text) &&
                               value != NULL && name != NULL;
             i++) {
            const stw_shell_word *next = &shell->words[i];
            if (plain && is_unknown_list(next)) {
                refuse_word(r, next);
                return;
            }
            if (next->maybe > 0) word.maybe = next->maybe;
            word.unknown = word.unknown || next->unknown;
            value = i == first ? next->text : stw_pool_printf(pool, "%s %s", value, next->text);
            word.source = i == first ? next->source
                                     : stw_pool_printf(pool, "%s %s", word.source, next->source);
        }
        if (name == NULL || value == NULL)
            stw_reading_fail(
                r, stw_fail(r->err, STW_STATUS_NO_MEMORY, r->flags.path, "out of memory"));
        else
            add(&f, name, value, &word);
    }
}

stw_status stw_launch_find(stw_import *import, const char *text, size_t length,
                           bool (*wanted)(const stw_shell_word *words, size_t n), stw_shell *out,
                           stw_error *err) {
    import->line_is_read = true;
    out->pool = import->pool;
    return stw_shell_find_at(import->path, text, length, import->line, wanted, out, err);
}

/* What a command starts: its first word, and the program of Python. */
static const char *program_of(stw_pool *pool, const stw_shell_found *found) {
    const char *program = found->n > 1 ? found->words[1].text : "";
    for (size_t i = found->n; i > 1; i--) {
        const char *text = found->words[i - 1].text;
        const size_t n = strlen(text);
        if (n > 3 && strcmp(text + n - 3, ".py") == 0) program = text;
        if (i > 2 && strcmp(found->words[i - 2].text, "-m") == 0) program = text;
    }
    return stw_pool_printf(pool, "%.30s %.60s", found->n > 0 ? found->words[0].text : "", program);
}

/* Several commands train, with different arguments. */
static void refuse_several(stw_reading *r, const stw_shell *shell) {
    stw_text text = STW_TEXT_INIT;
    const int last = shell->several[shell->n_several - 1].line;
    const char *name = strrchr(r->flags.path, '/');
    for (size_t i = 0; i < shell->n_several && i < 6; i++) {
        const char *program = program_of(r->out->pool, &shell->several[i]);
        stw_text_printf(&text, "%s%d (%s)", i > 0 ? ", " : "", shell->several[i].line,
                        program != NULL ? program : "");
    }
    stw_reading_fail(
        r, stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, last, 1,
                       "found %zu commands that train, in lines %s%s; name one by its line: "
                       "%s:%d in place of the file",
                       shell->n_several, text.data != NULL ? text.data : "",
                       shell->n_several > 6 ? ", ..." : "", name != NULL ? name + 1 : r->flags.path,
                       last));
    stw_text_free(&text);
}

void stw_launch_check_found(stw_reading *r, const stw_shell *shell) {
    const char *line = stw_pool_printf(r->out->pool, "line %d", shell->unread);
    if (shell->n_several > 1)
        refuse_several(r, shell);
    else if (shell->ambiguous > 0)
        stw_reading_fail(
            r, stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->flags.path, shell->ambiguous, 1,
                           "found several commands that train, and which of them runs depends on "
                           "what the file does not say (a test, a loop, an argument or another "
                           "file); keep one"));
    for (size_t i = 0; i < shell->n_sources; i++) {
        const stw_shell_source_file *file = &shell->sources[i];
        if (file->read)
            stw_reading_line(r, STW_IMPORT_TAKEN, "source", file->path, "read, beside this file");
        else
            stw_reading_assume(r, "source", file->path, "sets nothing that the launch takes");
    }
    if (shell->unread > 0 && line != NULL)
        stw_reading_assume(r, "end of the script", line, "what follows is no command of a shell");
    if (shell->arguments)
        stw_reading_assume(r, "arguments", "as many as it asks for", "the script ends without");
}

/* ---- the environment ---- */

const char *stw_launch_value(stw_reading *r, const stw_shell *shell, const char *name,
                             bool *known) {
    const stw_shell_variable *v = stw_shell_variable_of(shell, name);
    const char *text = stw_shell_value(shell, name);
    if (known != NULL) *known = text != NULL && !v->words[0].unknown;
    if (text != NULL && v->words[0].maybe > 0)
        stw_reading_fail(
            r, stw_fail_at(
                   r->err, STW_STATUS_BAD_INPUT, r->flags.path, v->words[0].maybe, 1,
                   "%s=%.60s: whether this line runs depends on what the file does not "
                   "say (a test, a loop, an argument or another file); set it without a condition",
                   name, text));
    return text;
}

/* "key:value" of a list with commas; brackets hold lists of their own. */
static void set_allocator_item(stw_reading *r, const char *name, const char *item) {
    const char *value = strchr(item, ':');
    uint64_t n = 0;
    if (value == NULL || *item == '\0') return;
    const size_t length = (size_t)(value - item);
    value++;
    if (strncmp(item, "expandable_segments", length) == 0) {
        const bool on = strcasecmp(value, "true") == 0;
        stw_reading_set_switch(r, "allocator.expandable_segments", on);
        stw_reading_line(r, STW_IMPORT_TAKEN, name, item, "allocator.expandable_segments");
    } else if (strncmp(item, "max_split_size_mb", length) == 0 &&
               stw_reading_parse_count(value, &n)) {
        const char *size = stw_pool_printf(r->out->pool, "%s MiB", value);
        stw_reading_set(r, "allocator.max_split_size", size != NULL ? size : "none");
        stw_reading_line(r, STW_IMPORT_TAKEN, name, item, "allocator.max_split_size");
    } else if (strncmp(item, "roundup_power2_divisions", length) == 0 &&
               stw_reading_parse_count(value, &n)) {
        stw_reading_set(r, "allocator.roundup_power2_divisions", value);
        stw_reading_line(r, STW_IMPORT_TAKEN, name, item, "allocator.roundup_power2_divisions");
    } else {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, name, item,
                         "reserved memory is planned without it");
    }
}

void stw_launch_set_allocator(stw_reading *r, const char *name, const char *text) {
    char *items = stw_pool_string(r->out->pool, text);
    int depth = 0;
    if (items == NULL) return;
    char *start = items;
    for (char *c = items;; c++) {
        if (*c == '[') depth++;
        if (*c == ']') depth--;
        if (*c == ' ' && c == start) start++;
        if (*c != '\0' && (*c != ',' || depth > 0)) continue;
        const bool last = *c == '\0';
        *c = '\0';
        set_allocator_item(r, name, start);
        if (last) return;
        start = c + 1;
    }
}

void stw_launch_read_allocator(stw_reading *r, const stw_shell *shell) {
    static const char *const names[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    for (size_t i = 0; i < 2; i++) {
        const stw_shell_variable *v = stw_shell_variable_of(shell, names[i]);
        if (v == NULL || v->n == 0) continue;
        const char *why = !v->exported ? "without effect, because it is not exported"
                          : v->words[0].maybe > 0
                              ? "it hangs on a test that the file does not decide; set allocator.*"
                          : v->words[0].unknown
                              ? "the file does not say what it is; set allocator.*"
                              : NULL;
        if (why != NULL) {
            stw_reading_line(r, STW_IMPORT_NOT_MODELLED, names[i], v->words[0].text, why);
            continue;
        }
        stw_launch_set_allocator(r, names[i], v->words[0].text);
        return;
    }
}

static bool is_kept(const stw_shell_variable *v) {
    static const char *const own[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    for (size_t i = 0; i < 2; i++)
        if (strcmp(v->name, own[i]) == 0) return false; /* from allocator.* */
    return v->n == 1 && !v->array && v->words[0].maybe == 0 && v->name[0] != '\0';
}

/* Does a word of a shell have $name or ${name in it? */
static bool mentions(const char *source, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = strchr(source, '$'); at != NULL; at = strchr(at + 1, '$')) {
        const char *start = at + 1 + (at[1] == '{');
        if (strncmp(start, name, n) == 0 && !isalnum((unsigned char)start[n]) && start[n] != '_')
            return true;
    }
    return false;
}

/* Variables of the script that words still have, such as ${BASE%.*} and $(dirname $BASE). */
static void keep_variables(stw_reading *r, const stw_shell *shell) {
    stw_pool *pool = r->out->pool;
    const char **lines = stw_pool_array(pool, shell->n_variables + 1, sizeof *lines);
    bool *used = stw_pool_array(pool, shell->n_variables + 1, sizeof *used);
    size_t n = 0;
    if (lines == NULL || used == NULL) return;
    for (size_t i = shell->n_variables; i > 0; i--) { /* those that later ones mention, too */
        const stw_shell_variable *v = &shell->variables[i - 1];
        if (v->n != 1 || v->array || v->words[0].maybe > 0) continue;
        for (size_t k = 0; k < shell->n_words; k++)
            used[i - 1] = used[i - 1] || mentions(shell->words[k].source, v->name);
        for (size_t k = 0; k < shell->n_variables; k++)
            if (k != i - 1 && (used[k] || shell->variables[k].exported) &&
                shell->variables[k].n == 1)
                used[i - 1] = used[i - 1] || mentions(shell->variables[k].words[0].source, v->name);
    }
    for (size_t i = 0; i < shell->n_variables; i++) {
        const stw_shell_variable *v = &shell->variables[i];
        if (!used[i]) continue;
        lines[n] = stw_pool_printf(pool, "%s=%s", v->name, v->words[0].source);
        if (lines[n] != NULL) n++;
    }
    r->out->variables = lines;
    r->out->n_variables = n;
}

void stw_launch_keep_environment(stw_reading *r, const stw_shell *shell) {
    stw_pool *pool = r->out->pool;
    const char **exports = stw_pool_array(pool, shell->n_variables + 1, sizeof *exports);
    size_t n = 0;
    for (size_t i = 0; exports != NULL && i < shell->n_variables; i++) {
        const stw_shell_variable *v = &shell->variables[i];
        if (!v->exported || !is_kept(v)) continue;
        exports[n] = stw_pool_printf(pool, "%s=%s", v->name, v->words[0].source);
        if (exports[n] != NULL) n++;
    }
    r->out->exports = exports;
    r->out->n_exports = n;
    r->out->rest = shell->rest;
    if (shell->between > 0) r->out->between = shell->between;
    stw_shell *copy = stw_pool_alloc(pool, sizeof *copy);
    if (copy != NULL) *copy = *shell;
    r->out->shell = copy;
    keep_variables(r, shell);
}

/* ---- the launcher ---- */

/* The value of a launcher's flag, spelt with - or _. NULL: it is not there */
static const char *launcher_value(const stw_shell *shell, size_t end, const char *name) {
    for (size_t i = 0; i < end; i++) {
        const char *text = shell->words[i].text, *flag = name;
        if (!is_flag(text)) continue;
        for (text += 2; *flag != '\0' && (*text == *flag || (*text == '-' && *flag == '_')); text++)
            flag++;
        if (*flag != '\0') continue;
        if (*text == '=') return text + 1;
        if (*text == '\0' && i + 1 < end) return shell->words[i + 1].text;
    }
    return NULL;
}

void stw_launch_read_gpus(stw_reading *r, const stw_shell *shell, size_t end) {
    const char *each = launcher_value(shell, end, "nproc_per_node");
    const char *nodes = launcher_value(shell, end, "nnodes");
    uint64_t n = 0, m = 1;
    if (nodes != NULL && (!stw_reading_parse_count(nodes, &m) || m == 0 || m > 65536)) return;
    if (nodes != NULL) {
        r->out->nodes = m;
        r->out->nodes_name = stw_pool_printf(r->out->pool, "--nnodes %llu", (unsigned long long)m);
    }
    if (each == NULL || !stw_reading_parse_count(each, &n) || n == 0 || n > 65536) return;
    r->out->gpus = n * m;
}
