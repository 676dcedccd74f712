/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/derived_images.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "plan/job/images.h"

enum { USUAL_TOKENS = 4096 }; /* of batch.seq_len: auto, at most */

/* The value of a setting so far, the last one; NULL: none. */
static const char *setting(const stw_import *import, const char *key) {
    const size_t length = strlen(key);
    for (size_t i = import->n_settings; i-- > 0;)
        if (strncmp(import->settings[i], key, length) == 0 && import->settings[i][length] == '=')
            return import->settings[i] + length + 1;
    return NULL;
}

static bool has(const stw_import *import, const char *key, const char *value) {
    const char *text = setting(import, key);
    return text != NULL && strcmp(text, value) == 0;
}

static void assume_none(stw_reading *r, const char *note) {
    stw_reading_assume(r, "images of a sequence", "batch.image_tokens 0", note);
}

/* One image of the largest size in each sequence, unless that is shorter. */
static void set_tokens(stw_reading *r, const stw_model *model) {
    const stw_import_derived *derived = &r->out->derived;
    const uint64_t each = stw_model_token_pixels(model);
    const char *length = setting(r->out, "batch.seq_len");
    const uint64_t most = length != NULL ? strtoull(length, NULL, 10) : USUAL_TOKENS;
    if (has(r->out, "engine", "megatron") && setting(r->out, "trainable.lora.rank") != NULL) {
        assume_none(r, "adapters with images are not planned with engine megatron");
        return;
    }
    if (derived->pixels_name == NULL) {
        assume_none(r, "the file does not say how many image tokens a sequence has: text alone; "
                       "set it");
        return;
    }
    if (each == 0) {
        assume_none(r, "how many tokens an image has does not follow from its pixels; set it");
        return;
    }
    uint64_t tokens = derived->image_tokens > 0 ? derived->image_tokens : derived->pixels / each;
    tokens = stw_min_u64(stw_max_u64(tokens, 1), most);
    const char *value =
        stw_pool_printf(r->out->pool, "1: batch.image_tokens %llu", (unsigned long long)tokens);
    const char *note =
        stw_pool_printf(r->out->pool, "%llu pixels make a token; the largest that %s allows",
                        (unsigned long long)each, derived->pixels_name);
    stw_reading_set_count(r, "batch.image_tokens", tokens);
    stw_reading_assume(r, "images of a sequence", value, note);
}

/* ---- what is frozen ---- */

static bool is_wanted(const stw_import_derived *derived, const stw_block_group *group) {
    if (!group->facts.vision) return derived->freeze_language;
    return strcmp(group->name, "vision_merger") == 0 ? derived->freeze_projector
                                                     : derived->freeze_vision;
}

/* What the names of a group's tensors begin with, up to the last dot. */
static const char *beginning(stw_reading *r, const stw_model *model, uint32_t group) {
    const char *first = NULL;
    size_t n = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const char *name = model->tensors[t].name;
        if (model->blocks[model->tensors[t].block].group != group) continue;
        if (first == NULL) {
            first = name;
            n = strlen(name);
        }
        for (size_t i = 0; i < n; i++)
            if (first[i] != name[i]) n = i;
    }
    return first != NULL ? stw_pool_printf(r->out->pool, "%.*s", (int)n, first) : NULL;
}

static void set_frozen(stw_reading *r, const stw_model *model) {
    const char *list = "", *last = "";
    for (uint32_t g = 0; g < model->n_groups && list != NULL; g++) {
        if (!is_wanted(&r->out->derived, &model->groups[g])) continue;
        const char *begin = beginning(r, model, g);
        if (begin == NULL || strcmp(begin, last) == 0) continue; /* layers of two kinds */
        list = stw_pool_printf(r->out->pool, "%s%s%s*", list, *list != '\0' ? "," : "", begin);
        last = begin;
    }
    if (list == NULL || *list == '\0') return;
    if (has(r->out, "engine", "megatron")) {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "frozen parts", list,
                         "engine megatron is planned with all parameters trained");
        return;
    }
    const char *value = stw_pool_printf(r->out->pool, "[%s]", list);
    stw_reading_set(r, "trainable.freeze", value != NULL ? value : "[]");
}

void stw_derived_images(stw_reading *r, const stw_model *model) {
    stw_import_derived *derived = &r->out->derived;
    if (!derived->sees || !stw_model_has_vision(model)) return;
    set_tokens(r, model);
    if (derived->each_loads && has(r->out, "load.method", "rank0_broadcast")) {
        stw_reading_set(r, "load.method", "all_ranks");
        stw_reading_line(r, STW_IMPORT_ASSUMED, "load of a vision tower's model",
                         "load.method all_ranks",
                         "every rank loads it on its CPU: rank 0 sends models of text alone");
    }
    if (setting(r->out, "trainable.lora.rank") == NULL) {
        set_frozen(r, model);
        return;
    }
    if (derived->pixels_name != NULL && !derived->freeze_vision)
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NOT_BUILT_IN, r->out->path,
                                     "adapters in the vision tower: not implemented; freeze it"));
}
