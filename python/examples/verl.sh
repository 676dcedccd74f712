#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# verl, engine FSDP: the four keys of actor.optim make this optimizer the actor's; the rest is a usual GRPO job.
# `stowage plan --from verl:verl.sh --cluster h100-80g-x8` predicts its bytes and seconds.
#
# override_optimizer_config holds the optimizer's other arguments, with + before the key, since verl's default is null.
# verl hands over parameters without the model, so steps are not hidden. It clips by itself (optim.clip_grad).
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
    data.train_files="$HOME/data/gsm8k/train.parquet" data.val_files="$HOME/data/gsm8k/test.parquet" \
    data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=512 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.optimizer_impl=stowage.torch \
    actor_rollout_ref.actor.optim.optimizer=AdamW \
    +actor_rollout_ref.actor.optim.override_optimizer_config.gpu_memory=1GiB \
    trainer.n_gpus_per_node=8 trainer.nnodes=1
