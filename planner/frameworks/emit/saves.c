/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints in the settings of trainers: the inverse of import/saves.c. Where a plan has none,
 * what a file says in epochs or seconds stays. */
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/emit/emission.h"

/* The value of a flag of the file; NULL: it has none. */
static const char *own(stw_emission *e, const char *name) {
    const stw_emit_flag *flag = stw_emit_find(e, name);
    return flag != NULL ? flag->value : NULL;
}

static void put_keep(stw_emission *e, const char *name) {
    const uint64_t keep = e->plan->run.checkpoint.keep;
    if (keep > 0)
        stw_emit_put_count(e, name, keep);
    else
        stw_emit_put(e, name, NULL);
}

void stw_emit_put_hf_saves(stw_emission *e, bool dashes) {
    static const char *const names[2][4] = {
        {"save_strategy", "save_steps", "save_only_model", "save_total_limit"},
        {"save-strategy", "save-steps", "save-only-model", "save-total-limit"}};
    const char *const *name = names[dashes];
    const uint64_t every = e->plan->run.checkpoint.every;
    const char *strategy = own(e, name[0]), *steps = own(e, name[1]);
    const bool by_steps = strategy == NULL || strcmp(strategy, "steps") == 0;
    if (every == 0) {
        if (by_steps && (strategy != NULL || (steps != NULL && strtod(steps, NULL) >= 1)))
            stw_emit_put(e, name[0], "no");
        return;
    }
    if (!by_steps) stw_emit_put(e, name[0], "steps");
    stw_emit_put_count(e, name[1], every);
    if (!e->plan->run.checkpoint.optimizer || own(e, name[2]) != NULL)
        stw_emit_put_switch(e, name[2], !e->plan->run.checkpoint.optimizer);
    put_keep(e, name[3]);
}

/* ms-swift 3 calls it save_interval. */
void stw_emit_put_megatron_swift_saves(stw_emission *e) {
    const bool old = own(e, "save-interval") != NULL;
    const uint64_t every = e->plan->run.checkpoint.every;
    if (e->plan->run.trainable.lora_rank > 0) return; /* imports plan none */
    if (!old) stw_emit_put_hf_saves(e, true);
    stw_emit_put(e, "save-only-model", NULL);
    if (old && every == 0) stw_emit_put(e, "save-interval", NULL);
    if (every == 0) return;
    if (old) stw_emit_put_count(e, "save-interval", every);
    stw_emit_put_switch(e, "no-save-optim", !e->plan->run.checkpoint.optimizer);
    stw_emit_put_switch(e, "async-save", stw_emit_on(e, "checkpoint.async"));
}

/* `saver` writes a model for others, `recover` all. */
void stw_emit_put_areal_saves(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    const bool whole = run->checkpoint.format == STW_CHECKPOINT_HF;
    const char *mode = own(e, "recover.mode");
    const bool off = mode == NULL || strcmp(mode, "disabled") == 0 || strcmp(mode, "off") == 0;
    if (run->checkpoint.every == 0) {
        if (!off) stw_emit_put(e, "recover.freq_steps", NULL);
        stw_emit_put(e, "saver.freq_steps", NULL);
        return;
    }
    if (whole) {
        if (!off) stw_emit_put(e, "recover.freq_steps", NULL);
        stw_emit_put_count(e, "saver.freq_steps", run->checkpoint.every);
        return;
    }
    if (off) stw_emit_put(e, "recover.mode", "auto");
    stw_emit_put_count(e, "recover.freq_steps", run->checkpoint.every);
    stw_emit_put_switch(e, "recover.no_save_optim", !run->checkpoint.optimizer);
}

void stw_emit_put_verl_saves(stw_emission *e, bool megatron) {
#define ACTOR "actor_rollout_ref.actor."
    const stw_run_spec *run = &e->plan->run;
    if (run->checkpoint.every == 0) {
        stw_emit_put(e, "trainer.save_freq", "-1");
        return;
    }
    stw_emit_put_count(e, "trainer.save_freq", run->checkpoint.every);
    stw_emit_put(e, ACTOR "checkpoint.save_contents",
                 run->checkpoint.optimizer ? "[model,optimizer,extra]" : "[model,extra]");
    put_keep(e, "trainer.max_actor_ckpt_to_keep");
    if (megatron)
        stw_emit_put_switch(e, ACTOR "checkpoint.async_save", stw_emit_on(e, "checkpoint.async"));
}
