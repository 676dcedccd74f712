/* SPDX-License-Identifier: Apache-2.0 */
/* verl 0.9.1: trainer/ppo/ray_trainer.py (fit), workers/config/actor.py, and
 * experimental/fully_async_policy/fully_async_trainer.py. */
#include "planner/frameworks/import/verl_iteration.h"

#include <string.h>

#include "core/checked.h"

#define ACTOR "actor_rollout_ref.actor."

/* Prompts between two weight syncs. Rollouts that generate all the time have no batch of their own:
 * so many mini batches make an update, so many updates go before the rollout gets weights. */
static uint64_t prompts_of(stw_reading *r, uint64_t mini) {
    const uint64_t prompts = stw_reading_number(r, "data.train_batch_size", 1024);
    const bool streams = r->out->program != NULL && strstr(r->out->program, "fully_async") != NULL;
    if (prompts > 0 && !streams) return prompts;
    return stw_times(
        mini, stw_times(stw_reading_number(r, "async_training.require_batches", 1),
                        stw_reading_number(r, "async_training.trigger_parameter_sync_step", 4)));
}

/* utils/checkpoint/checkpoint_manager.py: `model` and `optimizer` are shards, `hf_model` whole
 * tensors beside them. Critics save as often. */
static void set_checkpoints(stw_reading *r, bool sft) {
    static const char *const contents_of[] = {ACTOR "checkpoint.save_contents",
                                              "checkpoint.save_contents"};
    const char *freq = stw_reading_value(r, "trainer.save_freq", "-1");
    const uint64_t keep = stw_reading_number(
        r, sft ? "trainer.max_ckpt_to_keep" : "trainer.max_actor_ckpt_to_keep", 0);
    uint64_t every = 0;
    if (strcmp(freq, "-1") == 0) return;
    if (!stw_reading_parse_count(freq, &every)) {
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "trainer.save_freq", freq,
                         "planned without checkpoints; set checkpoint.every");
        return;
    }
    if (every == 0) return;
    stw_reading_set_count(r, "checkpoint.every", every);
    if (keep > 0) stw_reading_set_count(r, "checkpoint.keep", keep);
    const char *contents = stw_reading_value(r, contents_of[sft], "model optimizer");
    if (strstr(contents, "optimizer") == NULL) stw_reading_set(r, "checkpoint.contents", "[model]");
    if (strstr(contents, "hf_model") != NULL)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, contents_of[sft], "hf_model",
                         "planned as shards alone; whole tensors go through rank 0");
    if (strcmp(stw_reading_value(r, ACTOR "strategy", "fsdp"), "megatron") == 0 &&
        stw_reading_is_on(r, ACTOR "checkpoint.async_save", false)) /* FSDP's manager has none */
        stw_reading_set(r, "checkpoint.async", "true");
}

/* vllm_async_server.py, generate: a response ends where the model's length does. */
static void note_lengths(stw_reading *r) {
    static const char name[] = "actor_rollout_ref.rollout.max_model_len";
    const uint64_t whole = stw_plus(stw_reading_number(r, "data.max_prompt_length", 512),
                                    stw_reading_number(r, "data.max_response_length", 512));
    if (stw_reading_number(r, name, whole) < whole)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, name, stw_reading_value(r, name, ""),
                         "less than max_prompt_length + max_response_length: responses end there, "
                         "or the engine refuses to start; planned with whole sequences");
}

/* ray_trainer.py, _compute_ref_log_prob: with adapters the reference is the actor without them. */
static void note_reference(stw_reading *r) {
    const bool reference = stw_reading_is_on(r, ACTOR "use_kl_loss", false) ||
                           stw_reading_is_on(r, "algorithm.use_kl_in_reward", false);
    if (reference && stw_reading_number(r, "actor_rollout_ref.model.lora_rank", 0) > 0)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "log-probabilities", "of the reference",
                         "the actor without its adapters: a second pass like log_prob, which is "
                         "not counted; an iteration takes that much longer than planned");
}

/* Log-probabilities of a batch, its mini batches ppo_epochs times, then the weights. */
void stw_verl_set_iteration(stw_reading *r, uint64_t mini, bool sft) {
    set_checkpoints(r, sft);
    if (sft || mini == 0) return;
    note_lengths(r);
    note_reference(r);
    const uint64_t prompts = prompts_of(r, mini);
    if (prompts < mini)
        stw_reading_fail(
            r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                        "data.train_batch_size: found %llu, expected at least %llu, " ACTOR
                        "ppo_mini_batch_size",
                        (unsigned long long)prompts, (unsigned long long)mini));
    if (prompts % mini != 0)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "data.train_batch_size",
                         stw_reading_value(r, "data.train_batch_size", "1024"),
                         "no multiple of ppo_mini_batch_size: the last mini batch is planned as a "
                         "whole one");
    stw_reading_set_count(r, "batch.mini_batches", stw_div_up_u64(prompts, mini));
    stw_reading_set_count(r, "batch.epochs", stw_reading_number(r, ACTOR "ppo_epochs", 1));
}
