/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of files: arguments, scripts, Hydra lines, JSON, YAML. */
#include <stdlib.h>
#include <string.h>

#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emission.h"

static bool is_word(const char *text) {
    for (const char *c = text; *c != '\0'; c++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,/:=+@%-",
                   *c) == NULL)
            return false;
    return *text != '\0';
}

/* Is $HOME or ${HOME} in it, of a shell, which a script reads when it runs? ${actor.path} is a
 * reference of Hydra's. */
static bool has_variable(const char *text) {
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    bool found = false;
    if (strpbrk(text, "\"`\\!") != NULL) return false;
    for (const char *at = strchr(text, '$'); at != NULL; at = strchr(at + 1, '$')) {
        const bool braces = at[1] == '{';
        const char *start = at + (braces ? 2 : 1);
        const size_t length = strspn(start, name);
        if (length == 0 || strchr("0123456789", *start) != NULL || (braces && start[length] != '}'))
            return false;
        found = true;
    }
    return found;
}

/* In quotes where a shell would change it: double ones around its own variables. */
static void append_word(stw_text *out, const char *text) {
    if (is_word(text)) {
        stw_text_printf(out, "%s", text);
        return;
    }
    if (has_variable(text)) {
        stw_text_printf(out, "\"%s\"", text);
        return;
    }
    stw_text_printf(out, "'");
    for (const char *c = text; *c != '\0'; c++)
        stw_text_printf(out, *c == '\'' ? "'\\''" : "%c", *c);
    stw_text_printf(out, "'");
}

/* Several words of a list stay several; a value with quotes or braces is one. */
static void append_words(stw_text *out, const char *text) {
    const bool one = *text == '\0' || strpbrk(text, "{}\"'$") != NULL;
    if (one) {
        stw_text_printf(out, " ");
        append_word(out, text);
    }
    for (const char *at = text + strspn(text, " "); !one && *at != '\0';) {
        const size_t length = strcspn(at, " ");
        char word[512];
        const size_t n = length < sizeof word - 1 ? length : sizeof word - 1;
        memcpy(word, at, n);
        word[n] = '\0';
        stw_text_printf(out, " ");
        append_word(out, word);
        at += length;
        at += strspn(at, " ");
    }
}

/* "--name value"; a switch that is off is left out. */
static void append_argument(stw_text *out, const char *name, const char *value, char dash) {
    stw_text_printf(out, "--");
    for (const char *c = name; *c != '\0'; c++) stw_text_printf(out, "%c", *c == '-' ? dash : *c);
    append_words(out, value);
}

static void append_environment(const stw_emission *e, stw_text *out) {
    if (e->allocator != NULL) stw_text_printf(out, "PYTORCH_CUDA_ALLOC_CONF=%s \\\n", e->allocator);
}

/* ---- launches of Megatron-LM ---- */

/* Is it --NAME, spelt with - or _, maybe with =value? */
static bool is_option(const char *word, const char *name) {
    if (strncmp(word, "--", 2) != 0) return false;
    for (word += 2; *name != '\0'; word++, name++)
        if (*word != *name && !(*word == '-' && *name == '_')) return false;
    return *word == '\0' || *word == '=';
}

/* The words of the file, with the nodes and GPUs of the plan. */
static void append_own_launch(const stw_import *import, const stw_cluster *c, stw_text *out) {
    bool nodes = false;
    for (size_t i = 0; i < import->n_launch; i++) {
        const char *word = import->launch[i];
        const bool gpus = is_option(word, "nproc_per_node"), all = is_option(word, "nnodes");
        nodes = nodes || all;
        if (gpus || all) {
            const size_t length = strcspn(word, "=");
            stw_text_printf(out, "%.*s %u ", (int)length, word, gpus ? c->gpus : c->nodes);
            if (word[length] == '\0') i++;
            continue;
        }
        const bool last = i + 1 == import->n_launch;
        if (last && !nodes && c->nodes > 1) stw_text_printf(out, "--nnodes %u ", c->nodes);
        append_word(out, word);
        if (!last) stw_text_printf(out, " ");
    }
}

/* arguments.py, validate_args: before Blackwell tensor and context parallelism need one connection,
 * and FSDP needs more. Without a launch of a file or a model of the zoo these are arguments alone.
 */
static void append_launch(const stw_emission *e, stw_text *out) {
    const stw_parallel *p = &e->plan->run.parallel;
    const stw_cluster *c = &e->plan->cluster;
    bool fsdp = false;
    if (e->import != NULL && e->import->n_launch == 0) return;
    for (size_t i = 0; i < e->n; i++)
        fsdp = fsdp || (e->flags[i].value != NULL && strcmp(e->flags[i].value, "true") == 0 &&
                        strcmp(e->flags[i].name, "use-megatron-fsdp") == 0);
    if ((p->tp > 1 || p->cp > 1) && !fsdp)
        stw_text_printf(out, "CUDA_DEVICE_MAX_CONNECTIONS=1 \\\n");
    append_environment(e, out);
    if (e->import != NULL) {
        append_own_launch(e->import, c, out);
    } else {
        stw_text_printf(out, "torchrun --nproc_per_node %u", c->gpus > 0 ? c->gpus : 1);
        if (c->nodes > 1)
            stw_text_printf(out,
                            " --nnodes %u --node_rank \"$NODE_RANK\" --master_addr "
                            "\"$MASTER_ADDR\" --master_port 29500",
                            c->nodes);
        stw_text_printf(out, " pretrain_gpt.py");
    }
    stw_text_printf(out, " \\\n");
}

void stw_emit_as_arguments(const stw_emission *e, stw_text *out) {
    const char *between = "";
    append_launch(e, out);
    for (size_t i = 0; i < e->n; i++) {
        const stw_emit_flag *f = &e->flags[i];
        if (f->value == NULL || strcmp(f->value, "false") == 0) continue;
        stw_text_printf(out, "%s", between);
        if (strcmp(f->value, "true") == 0)
            stw_text_printf(out, "--%s", f->name);
        else
            append_argument(out, f->name, f->value, '-');
        between = " \\\n";
    }
    stw_text_printf(out, "\n");
}

void stw_emit_as_script(const stw_emission *e, stw_text *out) {
    static const char *const renamed[][2] = {
        {"num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size"},
        {"microbatch-group-size-per-virtual-pipeline-stage", "microbatch-group-size-per-vp-stage"}};
    const stw_cluster *c = &e->plan->cluster;
    const bool megatron = strcmp(stw_run_spec_engine(&e->plan->run)->name, "megatron") == 0;
    append_environment(e, out);
    stw_text_printf(out, "NNODES=%u NPROC_PER_NODE=%u \\\n%s sft", c->nodes,
                    c->gpus > 0 ? c->gpus : 1, megatron ? "megatron" : "swift");
    for (size_t i = 0; i < e->n; i++) {
        const char *name = e->flags[i].name;
        if (e->flags[i].value == NULL) continue;
        for (size_t k = 0; k < 2; k++)
            if (strcmp(name, renamed[k][0]) == 0) name = renamed[k][1];
        stw_text_printf(out, " \\\n  ");
        append_argument(out, name, e->flags[i].value, '_');
    }
    stw_text_printf(out, "\n");
}

void stw_emit_as_hydra(const stw_emission *e, stw_text *out) {
    const char *program = e->import != NULL ? e->import->program : NULL;
    const bool module =
        program != NULL && strchr(program, '/') == NULL && strstr(program, ".py") == NULL;
    append_environment(e, out);
    stw_text_printf(out, "python3 -m %s", module ? program : "verl.trainer.main_ppo");
    for (size_t i = 0; i < e->n; i++) {
        const stw_emit_flag *f = &e->flags[i];
        stw_text argument = STW_TEXT_INIT;
        if (f->value == NULL) continue;
        const bool option = strncmp(f->name, "config-", 7) == 0;
        /* ++ sets a key whether the config has it or not */
        const bool added =
            strstr(f->name, "override_") != NULL || strstr(f->name, "_kwargs") != NULL;
        stw_text_printf(&argument, "%s%s=%s", option ? "--" : added ? "++" : "", f->name, f->value);
        stw_text_printf(out, " \\\n  ");
        if (argument.data != NULL) append_word(out, argument.data);
        stw_text_free(&argument);
    }
    stw_text_printf(out, "\n");
}

/* ---- trees ---- */

typedef struct branch {
    const stw_emission *e;
    const char *prefix; /* with its dot */
    size_t length;
} branch;

static bool is_below(const branch *b, size_t i) {
    return b->e->flags[i].value != NULL && strncmp(b->e->flags[i].name, b->prefix, b->length) == 0;
}

/* The first flag of its name at this level: later ones with it were written with it. */
static bool is_first(const branch *b, size_t i, size_t length) {
    for (size_t k = 0; k < i; k++)
        if (is_below(b, k) &&
            strncmp(b->e->flags[k].name, b->e->flags[i].name, b->length + length) == 0 &&
            (b->e->flags[k].name[b->length + length] == '.' ||
             b->e->flags[k].name[b->length + length] == '\0'))
            return false;
    return true;
}

static bool is_number(const char *text) {
    char *end;
    (void)strtod(text, &end);
    return *text != '\0' && *end == '\0' && strspn(text, "0123456789+-.eE") == strlen(text);
}

static void write_scalar(stw_text *out, const char *value) {
    const bool bare = is_number(value) || strcmp(value, "true") == 0 ||
                      strcmp(value, "false") == 0 || strcmp(value, "null") == 0;
    if (bare) {
        stw_text_printf(out, "%s", value);
        return;
    }
    stw_text_printf(out, "\"");
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') stw_text_printf(out, "\\");
        stw_text_printf(out, (unsigned char)*c < 32 ? " " : "%c", *c);
    }
    stw_text_printf(out, "\"");
}

/* Depth is bounded by the dots of a name; a name of a file's tree has at most as many as its
 * reader allows. */
static void write_branch(const branch *b, unsigned depth, bool json, stw_text *out) {
    bool first = true;
    for (size_t i = 0; i < b->e->n; i++) {
        if (!is_below(b, i)) continue;
        const char *name = b->e->flags[i].name;
        const size_t length = strcspn(name + b->length, ".");
        if (!is_first(b, i, length)) continue;
        if (json && !first) stw_text_printf(out, ",\n");
        stw_text_printf(out, "%*s%s%.*s%s:", (int)(2 * depth), "", json ? "\"" : "", (int)length,
                        name + b->length, json ? "\"" : "");
        first = false;
        if (name[b->length + length] == '.') {
            const branch below = {b->e, name, b->length + length + 1};
            stw_text_printf(out, json ? " {\n" : "\n");
            write_branch(&below, depth + 1, json, out);
            if (json) stw_text_printf(out, "\n%*s}", (int)(2 * depth), "");
        } else {
            stw_text_printf(out, " ");
            write_scalar(out, b->e->flags[i].value);
            if (!json) stw_text_printf(out, "\n");
        }
    }
}

void stw_emit_as_json(const stw_emission *e, stw_text *out) {
    const branch root = {e, "", 0};
    stw_text_printf(out, "{\n");
    write_branch(&root, 1, true, out);
    stw_text_printf(out, "\n}\n");
}

void stw_emit_as_yaml(const stw_emission *e, stw_text *out) {
    const branch root = {e, "", 0};
    write_branch(&root, 0, false, out);
}
