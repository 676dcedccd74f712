/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in a launch script: the user's script with other values of the arguments that changed.
 * What it becomes is read as --from reads it, argument by argument and variable by variable; where
 * anything else than meant would change, the command is written anew (text.c). */
#include <string.h>

#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emission.h"
#include "planner/frameworks/emit/script_words.h"
#include "planner/frameworks/import/reading.h"

typedef struct editing {
    stw_emission *e;
    const char *framework;
    bool dashed;   /* --name value; else name=value */
    bool switches; /* --name without a value, absent where it is off */
    bool last;     /* of places that have an argument: other commands may have it, too */
    stw_text *text;
    stw_script script; /* of the text as it is now */
    bool failed;       /* not in place */
} editing;

static void no_memory(editing *d) {
    d->failed = true;
    if (d->e->status == STW_STATUS_OK)
        d->e->status = stw_fail(d->e->err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
}

static void lex(editing *d) {
    const char *text = d->text->data != NULL ? d->text->data : "";
    if (d->text->failed || !stw_script_read(text, d->text->length, d->e->pool, &d->script))
        no_memory(d);
}

/* Put text in place of bytes from `from` to `to`. */
static void splice(editing *d, size_t from, size_t to, const char *put) {
    stw_text out = STW_TEXT_INIT;
    stw_text_append(&out, d->text->data, from);
    stw_text_append(&out, put, strlen(put));
    stw_text_append(&out, d->text->data + to, d->text->length - to);
    stw_text_free(d->text);
    *d->text = out;
    lex(d);
}

static const stw_flag *own_flag(const stw_emission *e, const char *name) {
    const stw_flag *own = stw_flags_find(&e->import->flags, name);
    return own != NULL && own->line > 0 ? own : NULL;
}

static bool is_off(const editing *d, const char *value) {
    return value == NULL || (d->switches && strcmp(value, "false") == 0);
}

/* The words of a value where they are to stand; NULL: they cannot stand there. */
static const char *words_of(editing *d, const stw_script_site *site, const char *value,
                            bool equals) {
    stw_text out = STW_TEXT_INIT;
    stw_emit_append_words(&out, value, equals);
    const char *words = out.data != NULL ? stw_pool_string(d->e->pool, out.data) : NULL;
    stw_text_free(&out);
    const bool safe = words == NULL || !site->in_quotes || strpbrk(words, "'\"\\$`") == NULL;
    return safe ? words : NULL;
}

/* ---- changes ---- */

static bool find(const editing *d, const char *name, stw_script_site *site) {
    return stw_script_find(&d->script, name, d->dashed, d->last, site);
}

static void replace(editing *d, const stw_emit_flag *flag) {
    stw_script_site site;
    if (!find(d, flag->name, &site)) {
        d->failed = true;
        return;
    }
    const char *put = words_of(d, &site, flag->value, site.equals);
    if (put == NULL || site.value_end == site.value_begin)
        d->failed = true;
    else
        splice(d, site.value_begin, site.value_end, put);
}

static void take_out(editing *d, const char *name) {
    stw_script_site site;
    size_t from, to;
    if (!find(d, name, &site)) {
        d->failed = true;
        return;
    }
    stw_script_without(&d->script, &site, &from, &to);
    splice(d, from, to, "");
}

/* Beside the last of the command's arguments that stands in the text. */
static void add(editing *d, const stw_emit_flag *flag) {
    const stw_flags *flags = &d->e->import->flags;
    stw_text line = STW_TEXT_INIT;
    const bool named = d->switches && strcmp(flag->value, "true") == 0;
    for (size_t i = flags->n; i-- > 0;) {
        stw_script_site site;
        if (flags->items[i].line == 0 || !find(d, flags->items[i].name, &site)) continue;
        const char *put = words_of(d, &site, flag->value, !d->dashed);
        if (put == NULL) continue;
        stw_text_printf(&line, " ");
        stw_emit_append_name(&line, d->framework, flag->name);
        if (!named) stw_text_printf(&line, d->dashed ? " %s" : "=%s", put);
        splice(d, site.end, site.end, line.data != NULL ? line.data : "");
        stw_text_free(&line);
        return;
    }
    d->failed = true;
}

static void change_flags(editing *d) {
    stw_emission *e = d->e;
    for (size_t i = 0; i < e->n && !d->failed; i++) {
        const stw_emit_flag *flag = &e->flags[i];
        const stw_flag *own = own_flag(e, flag->name);
        const char *before = own != NULL ? own->value : NULL;
        if (is_off(d, flag->value) && is_off(d, before)) continue;
        if (flag->value != NULL && before != NULL && strcmp(before, flag->value) == 0) continue;
        if (is_off(d, flag->value))
            take_out(d, flag->name);
        else if (own == NULL || is_off(d, before))
            add(d, flag);
        else
            replace(d, flag);
    }
}

/* ---- the launch and its environment ---- */

static const char *count_text(const editing *d, uint32_t n) {
    return stw_pool_printf(d->e->pool, "%u", n > 0 ? n : 1);
}

/* --nproc_per_node and --nnodes of another machine. */
static void change_launch(editing *d) {
    const stw_import *import = d->e->import;
    const stw_cluster *c = &d->e->plan->cluster;
    const uint64_t gpus = (uint64_t)c->nodes * (c->gpus > 0 ? c->gpus : 1);
    const bool swift = strcmp(d->framework, "ms-swift") == 0;
    if (strcmp(d->framework, "verl") == 0) return; /* these are its arguments */
    if (import->gpus == gpus && (import->nodes == 0 ? c->nodes == 1 : import->nodes == c->nodes))
        return;
    if (!swift && import->n_launch == 0) return;
    if (swift || c->nodes > 1 || import->nodes > 1) {
        d->failed = true;
        return;
    }
    const stw_emit_flag each = {"nproc_per_node", count_text(d, c->gpus)};
    replace(d, &each);
    if (import->nodes == 0) {
        stw_script_site site;
        if (!find(d, "nnodes", &site)) return;
        const stw_emit_flag all = {"nnodes", count_text(d, c->nodes)};
        replace(d, &all);
    }
}

static void export_first(editing *d, const char *name, const char *value) {
    const char *line = stw_pool_printf(d->e->pool, "export %s=%s\n", name, value);
    const size_t at = stw_script_top(&d->script);
    if (line == NULL)
        d->failed = true;
    else
        splice(d, at, at, line);
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
        d->failed = d->failed || d->text->data == NULL || d->e->allocator == NULL ||
                    strstr(d->text->data, "ALLOC_CONF") != NULL;
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

static bool same_launch(const stw_import *before, const stw_import *now) {
    if (before->n_launch != now->n_launch) return false;
    size_t others = 0; /* the numbers of GPUs and nodes */
    for (size_t i = 0; i < now->n_launch; i++)
        others += strcmp(before->launch_source[i], now->launch_source[i]) != 0;
    return others <= 2 && equal(before->program, now->program) && equal(before->rest, now->rest);
}

static bool is_meant(editing *d) {
    const stw_import *before = d->e->import;
    stw_import now = {.pool = NULL};
    stw_error ignored = STW_ERROR_INIT;
    const stw_status status = stw_import_parse(d->framework, before->path, d->text->data,
                                               d->text->length, &now, &ignored);
    if (status == STW_STATUS_NO_MEMORY) no_memory(d);
    bool same = status == STW_STATUS_OK;
    same = same && same_flags(d, &now) && same_launch(before, &now) &&
           same_lines(before->exports, before->n_exports, now.exports, now.n_exports) &&
           same_lines(before->variables, before->n_variables, now.variables, now.n_variables);
    stw_import_free(&now);
    return same;
}

static bool edit(editing *d) {
    const stw_import *import = d->e->import;
    const size_t said = d->e->notes.length;
    stw_text_append(d->text, import->text, import->text_length);
    lex(d);
    if (!d->failed) change_flags(d);
    if (!d->failed) change_launch(d);
    if (!d->failed) change_environment(d);
    if (!d->failed && !d->text->failed && is_meant(d)) return true;
    stw_text_free(d->text);
    if (d->e->notes.length > said) d->e->notes.data[d->e->notes.length = said] = '\0';
    return false;
}

bool stw_emit_as_own_script(stw_emission *e, const char *framework, stw_text *out) {
    const bool verl = strcmp(framework, "verl") == 0;
    const bool megatron = strcmp(framework, "megatron") == 0;
    if (e->status != STW_STATUS_OK || e->import == NULL || e->import->text == NULL) return false;
    if (!verl && !megatron && strcmp(framework, "ms-swift") != 0) return false;
    for (int last = 1; last >= 0; last--) {
        editing d = {.e = e,
                     .framework = framework,
                     .dashed = !verl,
                     .switches = megatron,
                     .last = last == 1,
                     .text = out};
        if (edit(&d) || e->status != STW_STATUS_OK) return true;
    }
    return false;
}
