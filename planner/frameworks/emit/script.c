/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in a launch script: the user's script with other values of the arguments that changed,
 * each where its word comes from (shell/places.h). What it becomes is read as --from reads it, and
 * every command of it is compared, word by word; where anything else than meant would change, the
 * command is written anew (text.c). */
#include <inttypes.h>
#include <string.h>

#include "plan/spec/registry.h"
#include "planner/frameworks/emit/commands.h"
#include "planner/frameworks/emit/emission.h"
#include "planner/frameworks/emit/script_words.h"
#include "planner/frameworks/import/reading.h"

enum { MOST_EDITS = 512 };

/* Text in place of bytes of the file. */
typedef struct edit {
    size_t begin, end;
    const char *put;
} edit;

typedef struct editing {
    stw_emission *e;
    const char *framework;
    bool dashed;   /* --name value; else name=value */
    bool switches; /* --name without a value, absent where it is off */
    stw_script script;
    size_t n;
    edit edits[MOST_EDITS];
    size_t n_changes;
    stw_commands_change changes[MOST_EDITS];
    bool failed; /* not in place */
} editing;

static void no_memory(editing *d) {
    d->failed = true;
    if (d->e->status == STW_STATUS_OK)
        d->e->status = stw_fail(d->e->err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
}

static void put(editing *d, size_t begin, size_t end, const char *text) {
    if (d->n == MOST_EDITS || text == NULL) {
        d->failed = true;
        return;
    }
    size_t i = d->n++;
    for (; i > 0 && d->edits[i - 1].begin > begin; i--) d->edits[i] = d->edits[i - 1];
    d->edits[i] = (edit){begin, end, text};
}

/* The file with its edits. */
static void apply(editing *d, stw_text *out) {
    const stw_import *import = d->e->import;
    size_t at = 0;
    for (size_t i = 0; i < d->n && !d->failed; i++) {
        const edit *x = &d->edits[i];
        if (x->begin < at || x->end > import->text_length) {
            d->failed = true; /* two changes of one text */
            return;
        }
        stw_text_append(out, import->text + at, x->begin - at);
        stw_text_append(out, x->put, strlen(x->put));
        at = x->end;
    }
    stw_text_append(out, import->text + at, import->text_length - at);
    if (out->failed) no_memory(d);
}

static const stw_flag *own_flag(const stw_emission *e, const char *name) {
    const stw_flag *own = stw_flags_find(&e->import->flags, name);
    return own != NULL && own->line > 0 ? own : NULL;
}

static bool is_off(const editing *d, const char *value) {
    return value == NULL || (d->switches && strcmp(value, "false") == 0);
}

/* ---- changes ---- */

static stw_argument_name name_of(editing *d, const char *name) {
    stw_text text = STW_TEXT_INIT;
    stw_argument_name out = {.name = name};
    stw_emit_append_name(&text, d->framework, name);
    if (text.data != NULL) out.alias = stw_pool_string(d->e->pool, text.data);
    if (out.alias == NULL)
        no_memory(d);
    else
        out.alias += strspn(out.alias, "-+");
    stw_text_free(&text);
    return out;
}

/* What commands are to get in place of what they got. */
static void expect(editing *d, stw_argument_name name, const char *before, const char *after) {
    if (d->n_changes == MOST_EDITS) d->failed = true;
    if (d->failed) return;
    if (before != NULL && d->switches && strcmp(before, "true") == 0) before = "";
    if (after != NULL && d->switches && strcmp(after, "true") == 0) after = "";
    d->changes[d->n_changes++] = (stw_commands_change){name, before, after};
}

static bool is_text(char kind) { return kind == STW_SCRIPT_SINGLE || kind == STW_SCRIPT_DOUBLE; }

/* A value in words of a shell. @param one as a single word */
static const char *words_of(editing *d, const char *value, bool one) {
    stw_text out = STW_TEXT_INIT;
    stw_emit_append_words(&out, value, one);
    const char *words = out.data != NULL ? stw_pool_string(d->e->pool, out.data) : NULL;
    stw_text_free(&out);
    if (words == NULL) no_memory(d);
    return words;
}

/* Does it mean itself in quotes, too? */
static bool is_plain(const char *words) { return strpbrk(words, "'\"\\$`!") == NULL; }

/* Put a value in place of another one. */
static void put_value(editing *d, size_t begin, size_t end, const char *value, bool joined) {
    const stw_script *s = &d->script;
    const char *words = words_of(d, value, joined);
    if (words == NULL) return;
    const bool quoted = begin > 0 && is_text(s->kinds[begin - 1]) && is_text(s->kinds[end]) &&
                        s->text[begin - 1] == s->text[end] && strchr("\"'", s->text[end]) != NULL;
    if (!is_plain(words) && quoted)
        begin--, end++; /* with its quotes */
    else if (!is_plain(words) &&
             (is_text(s->kinds[begin]) || (begin > 0 && is_text(s->kinds[begin - 1]))))
        d->failed = true;
    put(d, begin, end, words);
}

/* @param one a value of one word, of a launcher */
static void replace(editing *d, stw_argument_name name, size_t from, size_t to, const char *before,
                    const char *after, bool one) {
    const stw_shell *shell = d->e->import->shell;
    const size_t word = stw_argument_find(shell, &name, d->dashed, from, to);
    size_t begin = 0, end = 0;
    if (word == 0 ||
        !stw_argument_value_place(&d->script, shell, word - 1, d->dashed, one, &begin, &end)) {
        d->failed = true;
        return;
    }
    const bool joined = stw_argument_value(shell->words[word - 1].text, d->dashed) != NULL;
    put_value(d, begin, end, after, joined);
    expect(d, name, before, after);
}

/* All of this name: of two the last one counts. */
static void take_out(editing *d, stw_argument_name name, size_t from, const char *before) {
    const stw_shell *shell = d->e->import->shell;
    size_t begin, end, n = 0;
    for (size_t to = shell->n_words; to > from && !d->failed; n++) {
        to = stw_argument_find(shell, &name, d->dashed, from, to);
        if (to == 0) break;
        to--;
        if (!stw_argument_place(&d->script, shell, to, d->dashed, &begin, &end)) {
            d->failed = true;
            return;
        }
        stw_script_widen(&d->script, &begin, &end);
        put(d, begin, end, "");
    }
    if (n == 0) d->failed = true;
    expect(d, name, before, NULL);
}

/* At the command itself, behind its last word but "$@". */
static void add(editing *d, stw_argument_name name, const char *flag, const char *value) {
    const size_t at = d->e->import->shell->insert;
    const char *words = words_of(d, value, !d->dashed);
    stw_text line = STW_TEXT_INIT;
    if (at == 0 || at > d->script.length || words == NULL ||
        (is_text(d->script.kinds[at]) && !is_plain(words))) {
        d->failed = true;
        return;
    }
    stw_text_printf(&line, " ");
    stw_emit_append_name(&line, d->framework, flag);
    if (!d->switches || strcmp(value, "true") != 0)
        stw_text_printf(&line, d->dashed ? " %s" : "=%s", words);
    put(d, at, at, line.data != NULL ? stw_pool_string(d->e->pool, line.data) : NULL);
    stw_text_free(&line);
    expect(d, name, NULL, value);
}

static void change_flags(editing *d) {
    stw_emission *e = d->e;
    const size_t from = e->import->n_launch;
    for (size_t i = 0; i < e->n && !d->failed; i++) {
        const stw_emit_flag *flag = &e->flags[i];
        const stw_flag *own = own_flag(e, flag->name);
        const char *before = own != NULL ? own->value : NULL;
        if (is_off(d, flag->value) && is_off(d, before)) continue;
        if (flag->value != NULL && before != NULL && strcmp(before, flag->value) == 0) continue;
        const stw_argument_name name = name_of(d, flag->name);
        if (d->failed) return;
        if (is_off(d, flag->value))
            take_out(d, name, from, before);
        else if (own == NULL || is_off(d, before))
            add(d, name, flag->name, flag->value);
        else
            replace(d, name, from, e->import->shell->n_words, before, flag->value, false);
    }
}

/* ---- the launch and its environment ---- */

static const char *count_text(const editing *d, uint64_t n) {
    return stw_pool_printf(d->e->pool, "%" PRIu64, n > 0 ? n : 1);
}

static void change_count(editing *d, const char *flag, uint32_t n) {
    const stw_shell *shell = d->e->import->shell;
    const stw_argument_name name = {.name = flag};
    const size_t end = d->e->import->n_launch;
    const size_t word = stw_argument_find(shell, &name, true, 0, end);
    if (word == 0) {
        d->failed = true;
        return;
    }
    const char *own = stw_argument_value(shell->words[word - 1].text, true);
    if (own == NULL && word < end) own = shell->words[word].text;
    const char *now = count_text(d, n);
    if (own == NULL || now == NULL)
        d->failed = true;
    else if (strcmp(own, now) != 0)
        replace(d, name, 0, end, own, now, true);
}

/* Its default is one process; what starts others is not in the file. */
static bool is_torchrun(const stw_import *import) {
    for (size_t i = 0; i < import->n_launch; i++)
        if (strstr(import->launch[i], "torchrun") != NULL ||
            strstr(import->launch[i], "torch.distributed") != NULL)
            return true;
    return false;
}

/* --nproc_per_node and --nnodes of another machine. */
static void change_launch(editing *d) {
    const stw_import *import = d->e->import;
    const stw_cluster *c = &d->e->plan->cluster;
    const uint64_t gpus = (uint64_t)c->nodes * (c->gpus > 0 ? c->gpus : 1);
    const bool swift = strcmp(d->framework, "ms-swift") == 0;
    static const stw_argument_name nodes = {.name = "nnodes"};
    if (strcmp(d->framework, "verl") == 0) return; /* these are its arguments */
    if (import->gpus == gpus && (import->nodes == 0 ? c->nodes == 1 : import->nodes == c->nodes))
        return;
    if (!swift && import->n_launch == 0) return;
    if (swift || c->nodes > 1 || import->nodes > 1) {
        d->failed = true;
        return;
    }
    static const stw_argument_name each = {.name = "nproc_per_node"};
    if (import->gpus == 0 && !is_torchrun(import) &&
        stw_argument_find(import->shell, &each, true, 0, import->n_launch) == 0) {
        stw_text_printf(&d->e->notes,
                        "%s does not say on how many GPUs it runs; the plan has %" PRIu64 "\n",
                        import->path, gpus);
        return;
    }
    change_count(d, "nproc_per_node", c->gpus);
    if (import->nodes == 0 &&
        stw_argument_find(import->shell, &nodes, true, 0, import->n_launch) > 0)
        change_count(d, "nnodes", c->nodes);
}

/* A line before all that runs. */
static void export_first(editing *d, const char *name, const char *value) {
    const size_t at = stw_script_top(&d->script);
    put(d, at, at, stw_pool_printf(d->e->pool, "export %s=%s\n", name, value));
}

/* Does the file say the plan's allocator? */
static bool same_allocator(const editing *d) {
    static const char *const keys[] = {"allocator.expandable_segments", "allocator.max_split_size",
                                       "allocator.roundup_power2_divisions"};
    const stw_run_spec *planned = &d->e->plan->run;
    stw_run_spec run;
    bool same = stw_run_spec_init(&run, NULL) == STW_STATUS_OK;
    if (!same) return false;
    same = stw_import_run(d->e->import, &run, NULL) == STW_STATUS_OK;
    for (size_t i = 0; i < 3 && same; i++) {
        stw_text a = STW_TEXT_INIT, b = STW_TEXT_INIT;
        const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), keys[i], strlen(keys[i]));
        stw_spec_write_value(row, planned, &a);
        stw_spec_write_value(row, &run, &b);
        same = a.data != NULL && b.data != NULL && strcmp(a.data, b.data) == 0;
        stw_text_free(&a);
        stw_text_free(&b);
    }
    stw_run_spec_free(&run);
    return same;
}

static void change_environment(editing *d) {
    const bool megatron = strcmp(d->framework, "megatron") == 0;
    if (!same_allocator(d)) {
        d->failed = d->failed || d->e->allocator == NULL ||
                    strstr(d->e->import->text, "ALLOC_CONF") != NULL;
        if (!d->failed) export_first(d, "PYTORCH_CUDA_ALLOC_CONF", d->e->allocator);
    }
    if (d->failed || !megatron || d->e->import->n_launch == 0) return;
    const char *own = stw_emit_exported(d->e->import, "CUDA_DEVICE_MAX_CONNECTIONS");
    if (!stw_emit_needs_one_connection(d->e)) {
        d->failed = own != NULL && stw_emit_one_connection_harms(d->e) && strcmp(own, "1") == 0;
    } else if (own == NULL) {
        export_first(d, "CUDA_DEVICE_MAX_CONNECTIONS", "1");
        stw_text_printf(&d->e->notes, "CUDA_DEVICE_MAX_CONNECTIONS=1 is exported: GPUs before "
                                      "Blackwell need it with tensor or context parallelism\n");
    } else {
        d->failed = strcmp(own, "1") != 0;
    }
}

/* ---- is it what was meant? ---- */

static bool equal(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_flags(const editing *d, const stw_import *now) {
    const stw_emission *e = d->e;
    for (size_t i = 0; i < e->n; i++) {
        const stw_flag *flag = stw_flags_find(&now->flags, e->flags[i].name);
        const stw_flag *own = own_flag(e, e->flags[i].name);
        const char *value = e->flags[i].value;
        if (flag != NULL && flag->line == 0) flag = NULL;
        if (is_off(d, value) ? flag != NULL && !is_off(d, flag->value)
                             : flag == NULL || strcmp(flag->value, value) != 0)
            return false;
        if (flag != NULL && own != NULL && strcmp(own->value, flag->value) == 0 &&
            !equal(own->source, flag->source))
            return false;
    }
    for (size_t i = 0; i < now->flags.n; i++) {
        const stw_flag *flag = &now->flags.items[i];
        bool known = flag->line == 0;
        for (size_t k = 0; k < e->n && !known; k++) known = equal(e->flags[k].name, flag->name);
        if (!known) return false;
    }
    return true;
}

/* Variables are those of the file, but for these two and what no argument mentions any more. */
static bool same_lines(const char *const *before, size_t n, const char *const *now, size_t n_now) {
    static const char *const own[] = {"CUDA_DEVICE_MAX_CONNECTIONS=", "PYTORCH_CUDA_ALLOC_CONF="};
    for (size_t k = 0; k < n_now; k++) {
        bool known = strncmp(now[k], own[0], strlen(own[0])) == 0 ||
                     strncmp(now[k], own[1], strlen(own[1])) == 0;
        for (size_t i = 0; i < n && !known; i++) known = strcmp(before[i], now[k]) == 0;
        if (!known) return false;
    }
    return true;
}

/* Every command gets what it got, but for the changes. */
static bool same_commands(editing *d, const stw_import *now) {
    stw_text others = STW_TEXT_INIT;
    const stw_import *before = d->e->import;
    const stw_commands of = {.before = before->shell,
                             .now = now->shell,
                             .dashed = d->dashed,
                             .n = d->n_changes,
                             .changes = d->changes};
    int line = 0;
    const bool same = equal(before->program, now->program) && equal(before->rest, now->rest) &&
                      now->shell != NULL && stw_commands_same(&of, &others, &line);
    if (same && others.length > 0) stw_text_append(&d->e->notes, others.data, others.length);
    stw_text_free(&others);
    return same;
}

static bool same_gpus(const editing *d, const stw_import *now) {
    const stw_cluster *c = &d->e->plan->cluster;
    if (strcmp(d->framework, "megatron") != 0 || now->gpus == 0) return true;
    return now->gpus == (uint64_t)c->nodes * (c->gpus > 0 ? c->gpus : 1);
}

static bool is_meant(editing *d, const stw_text *text) {
    const stw_import *before = d->e->import;
    stw_import now = {.pool = NULL};
    stw_error ignored = STW_ERROR_INIT;
    const stw_status status = stw_import_parse(d->framework, stw_import_place(before), text->data,
                                               text->length, &now, &ignored);
    if (status == STW_STATUS_NO_MEMORY) no_memory(d);
    bool same = status == STW_STATUS_OK;
    same = same && same_flags(d, &now) && same_gpus(d, &now) &&
           same_lines(before->exports, before->n_exports, now.exports, now.n_exports) &&
           same_lines(before->variables, before->n_variables, now.variables, now.n_variables) &&
           same_commands(d, &now);
    stw_import_free(&now);
    return same;
}

static bool edit_file(editing *d, stw_text *out) {
    const size_t said = d->e->notes.length;
    if (!stw_script_read(d->e->import->text, d->e->import->text_length, d->e->pool, &d->script))
        no_memory(d);
    if (!d->failed) change_flags(d);
    if (!d->failed) change_launch(d);
    if (!d->failed) change_environment(d);
    if (!d->failed) apply(d, out);
    if (!d->failed && is_meant(d, out)) return true;
    stw_text_free(out);
    *out = (stw_text)STW_TEXT_INIT;
    if (d->e->notes.length > said) d->e->notes.data[d->e->notes.length = said] = '\0';
    return false;
}

static bool begin(stw_emission *e, const char *framework, editing *d) {
    const bool verl = strcmp(framework, "verl") == 0;
    const bool megatron = strcmp(framework, "megatron") == 0;
    if (e->status != STW_STATUS_OK || e->import == NULL || e->import->text == NULL) return false;
    if (!verl && !megatron && strcmp(framework, "ms-swift") != 0) return false;
    memset(d, 0, sizeof *d); /* it is large */
    d->e = e;
    d->framework = framework;
    d->dashed = !verl;
    d->switches = megatron;
    return true;
}

bool stw_emit_as_own_script(stw_emission *e, const char *framework, stw_text *out) {
    editing *d = stw_pool_alloc(e->pool, sizeof *d);
    if (d == NULL || !begin(e, framework, d) || e->import->shell == NULL) return false;
    return edit_file(d, out) || e->status != STW_STATUS_OK;
}

/* ---- a command that is written anew ---- */

static bool is_kept(editing *d, const stw_import *now) {
    const stw_import *before = d->e->import;
    const size_t n = before->n_launch, m = now->n_launch;
    if (n > 0 && (m == 0 || !equal(before->launch_source[n - 1], now->launch_source[m - 1])))
        return false;
    for (size_t i = 0; i < d->e->n; i++) { /* 4$HOOK would be 2 */
        const stw_flag *own = own_flag(d->e, d->e->flags[i].name);
        const size_t length = own != NULL ? strlen(own->value) : 0;
        if (own == NULL || own->source == NULL || equal(own->value, d->e->flags[i].value)) continue;
        if (strncmp(own->source, own->value, length) == 0 && own->source[length] == '$')
            return false;
    }
    return same_flags(d, now) && same_gpus(d, now) && equal(before->program, now->program) &&
           equal(before->rest, now->rest);
}

void stw_emit_check_command(stw_emission *e, const char *framework, const stw_text *text) {
    editing *d = stw_pool_alloc(e->pool, sizeof *d);
    stw_import now = {.pool = NULL};
    stw_error ignored = STW_ERROR_INIT;
    if (d == NULL || !begin(e, framework, d) || e->import->shell == NULL) return;
    const stw_import *import = e->import;
    if (import->between > 0) {
        e->status = stw_fail_at(
            e->err, STW_STATUS_NOT_BUILT_IN, import->path, import->between, 1,
            "--emit would write the command anew, and this line has text that only a running shell "
            "knows between its arguments; nothing is written. Write that at the end of the "
            "command");
        return;
    }
    const stw_status status = stw_import_parse(framework, stw_import_place(import), text->data,
                                               text->length, &now, &ignored);
    if (status == STW_STATUS_NO_MEMORY) no_memory(d);
    /* what cannot be read is refused where it is read back */
    if (status == STW_STATUS_OK && !is_kept(d, &now)) {
        const int line = import->shell->n_words > 0 ? import->shell->words[0].line : 1;
        e->status = stw_fail_at(
            e->err, STW_STATUS_NOT_BUILT_IN, import->path, line, 1,
            "--emit cannot write this command with the changes alone; nothing is written. Give the "
            "arguments that change as --name value in the command itself");
    }
    stw_import_free(&now);
}
