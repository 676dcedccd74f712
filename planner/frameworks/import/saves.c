/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/saves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char by_data[] =
    "steps of an epoch follow from the data: planned without checkpoints; set checkpoint.every";

/* ---- transformers' trainer ---- */

/* Names as a file writes them: two spellings of each. */
typedef struct hf_names {
    const char *strategy, *steps, *most, *only_model, *limit;
} hf_names;

static const hf_names spellings[2] = {
    {"save_strategy", "save_steps", "max_steps", "save_only_model", "save_total_limit"},
    {"save-strategy", "save-steps", "max-steps", "save-only-model", "save-total-limit"}};

/* Optimizer steps between saves; 0: none, or they are not known. A number below 1 is a share of
 * max_steps. */
static uint64_t hf_steps(stw_reading *r, const hf_names *names) {
    const char *strategy = stw_reading_text(r, names->strategy, "steps");
    const char *steps = stw_reading_text(r, names->steps, NULL);
    if (strcmp(strategy, "no") == 0) return 0;
    if (strcmp(strategy, "steps") != 0) {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, names->strategy, strategy, by_data);
        return 0;
    }
    if (steps == NULL && stw_flags_find(&r->flags, names->strategy) == NULL) return 0;
    if (steps == NULL) {
        stw_reading_assume_key(r, names->steps, "500", "the trainer's default", "checkpoint.every");
        return 500;
    }
    char *end = NULL;
    const double value = strtod(steps, &end);
    if (end == steps || *end != '\0' || !(value > 0)) return 0;
    if (value >= 1) return (uint64_t)value;
    const double all = strtod(stw_reading_text(r, names->most, "-1"), NULL);
    if (all > 0) return (uint64_t)ceil(value * all);
    stw_reading_line(r, STW_IMPORT_NOT_MODELLED, names->steps, steps,
                     "a share of all steps, which max_steps does not say: planned without "
                     "checkpoints; set checkpoint.every");
    return 0;
}

/* trainer.py, _save_checkpoint: the model, then the optimizer unless save_only_model. A wrapped
 * model's adapters are small; DeepSpeed leaves frozen parameters out. */
void stw_hf_set_saves(stw_reading *r, bool dashes, stw_hf_backend backend, bool lora) {
    const hf_names *names = &spellings[dashes];
    const uint64_t every = hf_steps(r, names);
    const bool only_model = stw_reading_is_set(r, names->only_model);
    const uint64_t limit = stw_reading_count(r, names->limit, 0);
    if (every == 0 || r->status != STW_STATUS_OK) return;
    if (lora && only_model) {
        stw_reading_line(r, STW_IMPORT_NO_EFFECT, names->only_model, "true",
                         "adapters alone are written");
        return;
    }
    stw_reading_set_count(r, "checkpoint.every", every);
    if (limit > 0) stw_reading_set_count(r, "checkpoint.keep", limit);
    if (only_model) {
        stw_reading_set(r, "checkpoint.format", "hf");
        stw_reading_set(r, "checkpoint.contents", "[model]");
    } else if (lora) {
        stw_reading_set(r, "checkpoint.contents", "[optimizer]");
    }
    if (!only_model && backend == STW_HF_DEEPSPEED)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, names->steps, "model",
                         "16-bit weights that the trainer writes beside DeepSpeed's files are not "
                         "planned");
    if (!only_model && backend != STW_HF_DEEPSPEED)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, names->steps, "state dict",
                         "planned as torch.distributed.checkpoint writes shards; a full state dict "
                         "takes rank 0 the whole model and optimizer on its host");
}

/* ---- ms-swift's Megatron ---- */

void stw_ms_swift_megatron_set_saves(stw_reading *r, bool lora) {
    uint64_t every = stw_reading_count(r, "save-interval", 0); /* up to 3.x */
    if (every == 0) every = hf_steps(r, &spellings[1]);
    const uint64_t limit = stw_reading_count(r, "save-total-limit", 0);
    if (every == 0 || r->status != STW_STATUS_OK) return;
    if (lora) {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "save-steps", "adapters",
                         "checkpoints of adapters are not planned with Megatron-LM");
        return;
    }
    stw_reading_set_count(r, "checkpoint.every", every);
    if (limit > 0) stw_reading_set_count(r, "checkpoint.keep", limit);
    if (stw_reading_is_set(r, "no-save-optim"))
        stw_reading_set(r, "checkpoint.contents", "[model]");
    if (stw_reading_is_set(r, "async-save")) stw_reading_set(r, "checkpoint.async", "true");
}

/* ---- AReaL ---- */

/* A timer's steps; 0: none. What it says in epochs or seconds is a line. */
static uint64_t timer_steps(stw_reading *r, const char *steps, const char *epochs,
                            const char *seconds) {
    const uint64_t n = stw_reading_number(r, steps, 0);
    const char *others[2] = {epochs, seconds};
    for (int i = 0; i < 2 && n == 0; i++) {
        const char *value = stw_reading_value(r, others[i], NULL);
        if (value != NULL) stw_reading_line(r, STW_IMPORT_NOT_MODELLED, others[i], value, by_data);
    }
    return n;
}

static bool recovers(stw_reading *r) {
    static const char *const off[] = {"disabled", "off"};
    const char *mode = stw_reading_value(r, "recover.mode", "disabled");
    return strcmp(mode, off[0]) != 0 && strcmp(mode, off[1]) != 0;
}

void stw_areal_set_saves(stw_reading *r, bool whole) {
    const uint64_t recover = recovers(r) ? timer_steps(r, "recover.freq_steps",
                                                       "recover.freq_epochs", "recover.freq_secs")
                                         : 0;
    const uint64_t saver =
        timer_steps(r, "saver.freq_steps", "saver.freq_epochs", "saver.freq_secs");
    if (recover > 0) {
        stw_reading_set_count(r, "checkpoint.every", recover);
        if (stw_reading_is_on(r, "recover.no_save_optim", false))
            stw_reading_set(r, "checkpoint.contents", "[model]");
        if (saver > 0)
            stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "saver.freq_steps",
                             stw_reading_value(r, "saver.freq_steps", ""),
                             "checkpoints of `recover` are planned, those of `saver` are not");
        stw_reading_set_count(r, "checkpoint.keep", 1); /* one folder, recover_checkpoint */
        return;
    }
    if (saver == 0) return;
    stw_reading_set_count(r, "checkpoint.every", saver);
    stw_reading_set(r, "checkpoint.contents", "[model]");
    if (whole)
        stw_reading_set(r, "checkpoint.format", "hf");
    else
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "saver.freq_steps",
                         stw_reading_value(r, "saver.freq_steps", ""),
                         "whole tensors for others are planned as shards that ranks write");
}
