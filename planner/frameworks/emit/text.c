/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of files: arguments, scripts, Hydra lines, JSON, YAML. */
#include <stdlib.h>
#include <string.h>

#include "core/tree_write.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emission.h"

static bool is_word(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,/:=+@%-",
                   text[i]) == NULL)
            return false;
    return length > 0;
}

/* What the file has for a flag that is as it was, in words of a shell, or NULL. */
static const char *source_of(const stw_emission *e, const stw_emit_flag *f) {
    const stw_flag *own = e->import != NULL ? stw_flags_find(&e->import->flags, f->name) : NULL;
    const bool same =
        own != NULL && own->line > 0 && f->value != NULL && strcmp(own->value, f->value) == 0;
    return same ? own->source : NULL;
}

/* In quotes where a shell would change it. */
static void append_word(stw_text *out, const char *text, size_t length) {
    if (is_word(text, length)) {
        stw_text_append(out, text, length);
        return;
    }
    stw_text_printf(out, "'");
    for (size_t i = 0; i < length; i++)
        stw_text_printf(out, text[i] == '\'' ? "'\\''" : "%c", text[i]);
    stw_text_printf(out, "'");
}

/* Several words of a list stay several; a value with quotes or braces is one. */
void stw_emit_append_words(stw_text *out, const char *text, bool one) {
    const char *between = "";
    one = one || *text == '\0' || strpbrk(text, "{}\"'$") != NULL;
    if (one) append_word(out, text, strlen(text));
    for (const char *at = text + strspn(text, " "); !one && *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        stw_text_printf(out, "%s", between);
        append_word(out, at, length);
        between = " ";
        at += length;
    }
}

static void append_name(stw_text *out, const char *name, char dash) {
    stw_text_printf(out, "--");
    for (const char *c = name; *c != '\0'; c++) stw_text_printf(out, "%c", *c == '-' ? dash : *c);
}

/* ms-swift has other names than Megatron-LM. */
static const char *swift_name(const char *name) {
    static const char *const renamed[][2] = {
        {"num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size"},
        {"microbatch-group-size-per-virtual-pipeline-stage", "microbatch-group-size-per-vp-stage"}};
    for (size_t k = 0; k < 2; k++)
        if (strcmp(name, renamed[k][0]) == 0) return renamed[k][1];
    return name;
}

/* Before an argument of Hydra's: ++ sets a key whether the config has it or not. */
static const char *hydra_prefix(const char *name) {
    const bool option = strncmp(name, "config-", 7) == 0;
    const bool added = strstr(name, "override_") != NULL || strstr(name, "_kwargs") != NULL;
    return option ? "--" : added ? "++" : "";
}

void stw_emit_append_name(stw_text *out, const char *framework, const char *name) {
    if (strcmp(framework, "verl") == 0)
        stw_text_printf(out, "%s%s", hydra_prefix(name), name);
    else if (strcmp(framework, "ms-swift") == 0)
        append_name(out, swift_name(name), '_');
    else
        append_name(out, name, '-');
}

/* "--name value"; a switch that is off is left out. */
static void append_argument(stw_text *out, const char *name, const char *value, const char *source,
                            char dash) {
    append_name(out, name, dash);
    stw_text_printf(out, " ");
    if (source != NULL && *source != '\0')
        stw_text_printf(out, "%s", source);
    else
        stw_emit_append_words(out, value, false);
}

const char *stw_emit_exported(const stw_import *import, const char *name) {
    const size_t n = strlen(name);
    for (size_t i = 0; import != NULL && i < import->n_exports; i++)
        if (strncmp(import->exports[i], name, n) == 0 && import->exports[i][n] == '=')
            return import->exports[i] + n + 1;
    return NULL;
}

/* What the script sets and its words expand when it runs. */
static void append_variables(const stw_emission *e, stw_text *out) {
    for (size_t i = 0; e->import != NULL && i < e->import->n_variables; i++)
        stw_text_printf(out, "%s\n", e->import->variables[i]);
}

/* @param set that are written already, NULL at the end */
static void append_environment(const stw_emission *e, const char *const *set, stw_text *out) {
    for (size_t i = 0; e->import != NULL && i < e->import->n_exports; i++) {
        bool own = false;
        for (size_t k = 0; set[k] != NULL; k++)
            own = own || stw_emit_exported(e->import, set[k]) ==
                             e->import->exports[i] + strcspn(e->import->exports[i], "=") + 1;
        if (!own) stw_text_printf(out, "%s \\\n", e->import->exports[i]);
    }
    if (e->allocator != NULL) stw_text_printf(out, "PYTORCH_CUDA_ALLOC_CONF=%s \\\n", e->allocator);
}

/* The script's own arguments go on. */
static void append_rest(const stw_emission *e, stw_text *out) {
    if (e->import != NULL && e->import->rest != NULL)
        stw_text_printf(out, " \\\n%s", e->import->rest);
}

/* ---- launches of Megatron-LM ---- */

/* Is it --NAME, spelt with - or _, maybe with =value? */
static bool is_option(const char *word, const char *name) {
    if (strncmp(word, "--", 2) != 0) return false;
    for (word += 2; *name != '\0'; word++, name++)
        if (*word != *name && !(*word == '-' && *name == '_')) return false;
    return *word == '\0' || *word == '=';
}

/* Of several nodes each has a rank of its own, and all have the address of the first. */
static const char *const places[][2] = {
    {"node_rank", "\"$NODE_RANK\""}, {"master_addr", "\"$MASTER_ADDR\""}, {"master_port", "29500"}};
enum { N_PLACES = sizeof places / sizeof places[0] };

/* The variable in place of a value that is the same on all nodes, or NULL. */
static const char *place_of(const char *word, const char *source) {
    for (size_t k = 0; k + 1 < N_PLACES; k++)
        if (is_option(word, places[k][0]))
            return strpbrk(source, "$`") == NULL ? places[k][1] : NULL;
    return NULL;
}

/* Where the launch of one node is one of several. */
static void append_places(const stw_import *import, stw_text *out) {
    for (size_t k = 0; k < N_PLACES; k++) {
        bool given = false;
        for (size_t i = 0; i < import->n_launch; i++)
            given = given || is_option(import->launch[i], places[k][0]) ||
                    is_option(import->launch[i], "rdzv_endpoint");
        if (!given) stw_text_printf(out, "--%s %s ", places[k][0], places[k][1]);
    }
}

/* The words of the file, with the nodes and GPUs of the plan. */
static void append_own_launch(const stw_import *import, const stw_cluster *c, stw_text *out) {
    bool nodes = false, launcher = false;
    for (size_t i = 0; i < import->n_launch; i++) {
        const char *word = import->launch[i];
        const bool gpus = is_option(word, "nproc_per_node"), all = is_option(word, "nnodes");
        const size_t length = strcspn(word, "=");
        const bool last = i + 1 == import->n_launch, apart = word[length] == '\0';
        const char *value = import->launch_source[i + (apart && !last)];
        const char *place = c->nodes > 1 ? place_of(word, value) : NULL;
        launcher = launcher || gpus;
        nodes = nodes || all;
        if (c->nodes > 1 && is_option(word, "standalone")) continue;
        if (gpus || all || place != NULL) {
            stw_text_printf(out, "%.*s ", (int)length, word);
            if (place != NULL)
                stw_text_printf(out, "%s ", place);
            else
                stw_text_printf(out, "%u ", gpus ? c->gpus : c->nodes);
            i += apart;
            continue;
        }
        if (last && !nodes && c->nodes > 1) stw_text_printf(out, "--nnodes %u ", c->nodes);
        if (last && launcher && c->nodes > 1) append_places(import, out);
        stw_text_printf(out, "%s%s", import->launch_source[i], last ? "" : " ");
    }
}

bool stw_emit_one_connection_harms(const stw_emission *e) {
    bool fsdp = false;
    for (size_t i = 0; i < e->n; i++)
        fsdp = fsdp || (e->flags[i].value != NULL && strcmp(e->flags[i].value, "true") == 0 &&
                        strcmp(e->flags[i].name, "use-megatron-fsdp") == 0);
    return fsdp;
}

bool stw_emit_needs_one_connection(const stw_emission *e) {
    const stw_parallel *p = &e->plan->run.parallel;
    return (p->tp > 1 || p->cp > 1) && !stw_emit_one_connection_harms(e);
}

/* Without a launch of a file or a model of the zoo these are arguments alone. */
static void append_launch(const stw_emission *e, stw_text *out) {
    const stw_cluster *c = &e->plan->cluster;
    const bool fsdp = stw_emit_one_connection_harms(e);
    if (e->import != NULL && e->import->n_launch == 0) return;
    static const char connections[] = "CUDA_DEVICE_MAX_CONNECTIONS";
    const char *own = stw_emit_exported(e->import, connections);
    append_variables(e, out);
    if (stw_emit_needs_one_connection(e))
        stw_text_printf(out, "%s=1 \\\n", connections);
    else if (own != NULL && !(fsdp && strcmp(own, "1") == 0))
        stw_text_printf(out, "%s=%s \\\n", connections, own);
    append_environment(e, (const char *const[]){connections, NULL}, out);
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
            append_argument(out, f->name, f->value, source_of(e, f), '-');
        between = " \\\n";
    }
    append_rest(e, out);
    stw_text_printf(out, "\n");
}

void stw_emit_as_script(const stw_emission *e, stw_text *out) {
    const stw_cluster *c = &e->plan->cluster;
    const bool megatron = strcmp(stw_run_spec_engine(&e->plan->run)->name, "megatron") == 0;
    append_variables(e, out);
    append_environment(e, (const char *const[]){"NNODES", "NPROC_PER_NODE", NULL}, out);
    stw_text_printf(out, "NNODES=%u NPROC_PER_NODE=%u \\\n%s sft", c->nodes,
                    c->gpus > 0 ? c->gpus : 1, megatron ? "megatron" : "swift");
    for (size_t i = 0; i < e->n; i++) {
        const char *name = e->flags[i].name;
        if (e->flags[i].value == NULL) continue;
        stw_text_printf(out, " \\\n  ");
        append_argument(out, swift_name(name), e->flags[i].value, source_of(e, &e->flags[i]), '_');
    }
    append_rest(e, out);
    stw_text_printf(out, "\n");
}

void stw_emit_as_hydra(const stw_emission *e, stw_text *out) {
    const char *program = e->import != NULL ? e->import->program : NULL;
    const bool module =
        program != NULL && strchr(program, '/') == NULL && strstr(program, ".py") == NULL;
    append_variables(e, out);
    append_environment(e, (const char *const[]){NULL}, out);
    stw_text_printf(out, "python3 -m %s", module ? program : "verl.trainer.main_ppo");
    for (size_t i = 0; i < e->n; i++) {
        const stw_emit_flag *f = &e->flags[i];
        stw_text argument = STW_TEXT_INIT;
        if (f->value == NULL) continue;
        stw_text_printf(&argument, "%s%s=%s", hydra_prefix(f->name), f->name, f->value);
        stw_text_printf(out, " \\\n  ");
        if (source_of(e, f) != NULL)
            stw_text_printf(out, "%s", source_of(e, f));
        else if (argument.data != NULL)
            append_word(out, argument.data, argument.length);
        stw_text_free(&argument);
    }
    append_rest(e, out);
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
        stw_text_printf(out, "%*s", (int)(2 * depth), "");
        stw_tree_write_key(out, name + b->length, length, json);
        stw_text_printf(out, ":");
        first = false;
        if (name[b->length + length] == '.') {
            const branch below = {b->e, name, b->length + length + 1};
            stw_text_printf(out, json ? " {\n" : "\n");
            write_branch(&below, depth + 1, json, out);
            if (json) stw_text_printf(out, "\n%*s}", (int)(2 * depth), "");
        } else {
            stw_text_printf(out, " ");
            stw_tree_write_value(out, b->e->flags[i].value, false, json);
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
