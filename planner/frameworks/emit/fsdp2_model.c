/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/fsdp2_model.h"

#include <ctype.h>
#include <string.h>

#include "core/printable.h"
#include "engines/bytes.h"
#include "engines/fsdp_keys.h"

static void *take(stw_emission *e, size_t n, size_t size) {
    void *made = stw_pool_array(e->pool, n, size);
    if (made == NULL && e->status == STW_STATUS_OK)
        e->status = stw_fail(e->err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
    return made;
}

void stw_emit_python_text(stw_emission *e, const char *name, stw_text *out) {
    const size_t size = stw_printable_copy(name, NULL, 0) + 1;
    char *line = take(e, size, 1);
    if (line == NULL) return;
    (void)stw_printable_copy(name, line, size);
    for (const char *c = line; *c != '\0'; c++)
        stw_text_printf(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
}

/* "a", "b" */
static void write_texts(stw_emission *e, const char *const *texts, uint32_t n, stw_text *out) {
    for (uint32_t i = 0; i < n; i++) {
        stw_text_printf(out, "%s\"", i > 0 ? ", " : "");
        stw_emit_python_text(e, texts[i], out);
        stw_text_printf(out, "\"");
    }
}

static void add_once(const char **list, uint32_t *n, const char *text) {
    for (uint32_t i = 0; i < *n; i++)
        if (strcmp(list[i], text) == 0) return;
    list[(*n)++] = text;
}

/* The rest of a tensor's name behind the first part that is a number, or NULL. @param list out: the
 * length of what stands before that number and its dot */
static const char *within_layer(const char *name, size_t *list) {
    for (const char *at = strchr(name, '.'); at != NULL; at = strchr(at + 1, '.')) {
        const char *end = at + 1;
        while (isdigit((unsigned char)*end)) end++;
        if (end == at + 1 || *end != '.') continue;
        *list = (size_t)(at - name);
        return end + 1;
    }
    return NULL;
}

static bool is_layer(const stw_emission *e, uint32_t block) {
    const stw_model *model = e->plan->model;
    const stw_block_group *group = &model->groups[model->blocks[block].group];
    return group->facts.transformer || (!model->facts_known && group->count > 1);
}

/* ---- where layers are ---- */

static const char *list_of(stw_emission *e, const char *name) {
    size_t length = 0;
    if (within_layer(name, &length) == NULL) return NULL;
    char *list = take(e, length + 1, 1);
    if (list != NULL) memcpy(list, name, length), list[length] = '\0';
    return list;
}

/* Lists of modules in which all layers are, in the order of the model; 0: not all are in lists. */
static uint32_t layer_lists(stw_emission *e, const char **lists) {
    const stw_model *model = e->plan->model;
    uint32_t n = 0;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        const char *list = NULL;
        if (!is_layer(e, b)) continue;
        if (model->blocks[b].n_tensors > 0)
            list = list_of(e, model->tensors[model->blocks[b].first_tensor].name);
        if (list == NULL) return 0;
        add_once(lists, &n, list);
    }
    return n;
}

void stw_emit_python_layers(stw_emission *e, stw_text *out) {
    const char **lists = take(e, e->plan->model->n_blocks + 1, sizeof *lists);
    const uint32_t n = lists != NULL ? layer_lists(e, lists) : 0;
    stw_text_printf(out, "\n\ndef layers(model):\n"
                         "    \"\"\"The list and the index of every layer, in the order of "
                         "forward.\"\"\"\n");
    if (n > 0) {
        stw_text_printf(out, "    lists = [model.get_submodule(name) for name in [");
        write_texts(e, lists, n, out);
        stw_text_printf(out, "]]\n");
    } else {
        stw_text_printf(out,
                        "    lists = [m for m in model.modules() if isinstance(m, "
                        "torch.nn.ModuleList)]\n"
                        "    lists.sort(key=lambda m: -sum(p.numel() for p in m.parameters()))\n"
                        "    lists = lists[:1]  # the one with most parameters\n");
    }
    stw_text_printf(out, "    return [(blocks, index) for blocks in lists for index in "
                         "range(len(blocks))]\n");
}

/* ---- parts of layers ---- */

/* Names of layers' own modules, by what the reference implementations call them. */
static bool is_mlp(const char *part) {
    return strstr(part, "mlp") != NULL || strstr(part, "feed_forward") != NULL ||
           strstr(part, "moe") != NULL;
}
static bool is_attention(const char *part) { return strstr(part, "attn") != NULL; }

static bool is_norm(const char *part) {
    return strncmp(part, "ln_", 3) == 0 || strstr(part, "norm") != NULL;
}

/* The module of a layer that a tensor is in; NULL: it is the layer's own. */
static const char *part_of(stw_emission *e, const char *name) {
    size_t list = 0;
    const char *rest = within_layer(name, &list);
    const char *end = rest != NULL ? strchr(rest, '.') : NULL;
    if (end == NULL) return NULL;
    char *part = take(e, (size_t)(end - rest) + 1, 1);
    if (part != NULL) memcpy(part, rest, (size_t)(end - rest)), part[end - rest] = '\0';
    return part;
}

void stw_emit_python_parts(stw_emission *e, stw_text *out) {
    const stw_model *model = e->plan->model;
    const stw_fsdp_modules modules = stw_fsdp_modules_of(&e->plan->run);
    const char **parts = take(e, model->n_tensors + 1, sizeof *parts);
    uint32_t n = 0;
    for (uint32_t b = 0; b < model->n_blocks && parts != NULL; b++) {
        const stw_block *block = &model->blocks[b];
        if (!is_layer(e, b) || block->instance > 0) continue;
        for (uint32_t t = block->first_tensor; t < block->first_tensor + block->n_tensors; t++) {
            const char *part = part_of(e, model->tensors[t].name);
            if (part != NULL &&
                ((modules.mlp && is_mlp(part)) || (modules.self_attn && is_attention(part)) ||
                 (modules.layernorm && is_norm(part))))
                add_once(parts, &n, part);
        }
    }
    stw_text_printf(out, "PARTS = [");
    if (parts != NULL) write_texts(e, parts, n, out);
    stw_text_printf(out, "]  # of every layer, made again in backward\n");
}

/* ---- groups of parameters ---- */

void stw_emit_python_groups(stw_emission *e, stw_text *out) {
    const stw_run_spec *run = &e->plan->run;
    stw_text_printf(out, "\n\ndef groups(model):\n"
                         "    \"\"\"The first group that a parameter's name or shape matches; all "
                         "others first.\"\"\"\n"
                         "    rates = [\n");
    for (uint32_t g = 0; g < run->optimizer.n_groups; g++) {
        const stw_param_group *group = &run->optimizer.groups[g];
        stw_text_printf(out, "        ([");
        write_texts(e, group->match.items, group->match.n, out);
        stw_text_printf(out, "], {");
        if (group->lr < STW_AUTO_NUMBER) stw_text_printf(out, "\"lr\": %.15g", group->lr);
        if (group->weight_decay < STW_AUTO_NUMBER)
            stw_text_printf(out, "%s\"weight_decay\": %.15g",
                            group->lr < STW_AUTO_NUMBER ? ", " : "", group->weight_decay);
        stw_text_printf(out, "}),\n");
    }
    stw_text_printf(
        out,
        "    ]\n"
        "    made = [{\"params\": [], **rate} for rate in [{}, *(rate for _, rate in rates)]]\n"
        "    for name, param in model.named_parameters():\n"
        "        name = name.replace(\"_checkpoint_wrapped_module.\", \"\")\n"
        "        at = next((i for i, (match, _) in enumerate(rates, 1) for pattern in match\n"
        "                   if (param.dim() == 1 if pattern == \"1d\" else fnmatchcase(name, "
        "pattern))), 0)\n"
        "        made[at][\"params\"].append((name, param))\n"
        "    return [group for group in made if group[\"params\"]]\n");
}
