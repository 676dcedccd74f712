#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Settings with which a framework stops at its start are neither written nor read without a word.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
CLUSTER="$STW_SOURCE_DIR/models/examples/h100-80g-x8.yaml"
plan() { planned "$STOWAGE" plan --cluster "$CLUSTER" --set nodes=1 "$@" >out.txt 2>err.txt || fail "$*: $(cat err.txt)"; }
refused() { # WORDS OPTION...
    words=$1
    shift
    expect 3 "$words" "$STOWAGE" plan --cluster "$CLUSTER" --set nodes=1 "$@"
}
# the product of DeepSpeed's _batch_assertion: 0 without train_batch_size
agrees() {
    python3 - "$1" <<'EOP' || fail "$1: $(cat "$1")"
import json, sys
is_ = json.load(open(sys.argv[1]))
micro, steps = is_.get("train_micro_batch_size_per_gpu", 0), is_.get("gradient_accumulation_steps", 0)
whole = is_.get("train_batch_size")
if whole is not None:
    steps = steps or (whole // micro // 8 if micro else 1)
    micro = micro or whole // 8 // steps
    assert whole == micro * steps * 8, is_
assert micro > 0, is_
EOP
}

# DeepSpeed: three values that agree, whichever the file has and whatever is changed beside it
zero='"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}'
for batch in '"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,' \
    '"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,' \
    '"train_batch_size": 64, "gradient_accumulation_steps": 4,' '"train_batch_size": 64,'; do
    echo "{$batch $zero}" >ds.json
    for set in batch.seq_len=1024 batch.grad_accumulation=8 batch.micro_batch=1; do
        plan --from deepspeed:ds.json --model Qwen3-0.6B --set batch.seq_len=1024 --set recompute.granularity=full --set "$set" \
            --emit deepspeed:new.json
        agrees new.json
    done
done
echo "{\"train_batch_size\": 63, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, $zero}" >ds.json
refused 'train_batch_size 63 is not train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 4 x 8' --from deepspeed:ds.json \
    --model Qwen3-0.6B
# the folder on NVMe is written, not only said
echo "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, $zero}" >ds.json
plan --from deepspeed:ds.json --model Qwen3-0.6B --set batch.seq_len=1024 --set recompute.granularity=full --emit deepspeed:new.json \
    --set deepspeed.offload_optimizer=nvme --set node.nvme.capacity=10TB --set node.nvme.read=10GB/s --set node.nvme.write=5GB/s
grep -q '"nvme_path": *"/local_nvme"' new.json || fail "no folder: $(cat new.json)"

# transformers: values of the config that are not those of its arguments
cat >lf.yaml <<'EOS'
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
finetuning_type: full
deepspeed: ds.json
cutoff_len: 1024
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
EOS
refused 'ds.json:1:1: gradient_accumulation_steps: found "4", expected auto, or 8, gradient_accumulation_steps of lf.yaml' \
    --from llamafactory:lf.yaml
sed 's/"gradient_accumulation_steps": 4/"gradient_accumulation_steps": "auto"/' ds.json >auto.json
sed 's/ds.json/auto.json/' lf.yaml >auto.yaml
plan --from llamafactory:auto.yaml

# Megatron-LM (arguments.py, validate_args; dot_product_attention.py)
cat >meg.sh <<'EOS'
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \
  --max-position-embeddings 1024 --bf16 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer \
  --attention-backend ATTENTION --context-parallel-size 2 --optimizer-cpu-offload --save x --save-interval 10 --async-save
EOS
sed 's/ATTENTION/unfused/' meg.sh >unfused.sh
refused 'parallel.cp: found 2, expected 1, or attention: flash' --from megatron:unfused.sh
sed 's/ATTENTION/flash/' meg.sh >flash.sh
plan --from megatron:flash.sh --emit megatron:new.sh
grep -q 'use-precision-aware-optimizer: not given; assumed true' err.txt || fail "the optimizer: $(cat err.txt)"
grep -q 'async-save true: not modelled: planned as saves that training waits for' err.txt || fail "the save: $(cat err.txt)"
grep -q -e '--use-precision-aware-optimizer' new.sh || fail "without it Megatron-LM stops: $(cat new.sh)"
plan --from megatron:flash.sh --set checkpoint.async=true --emit megatron:new.sh
grep -q -e '--use-persistent-ckpt-worker' new.sh || fail "Megatron-LM switches the save off: $(cat new.sh)"

# verl (utils/config.py, validate_config)
cat >verl.sh <<'EOS'
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=512 \
  data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=True actor_rollout_ref.actor.use_kl_loss=True trainer.n_gpus_per_node=8 \
  trainer.save_freq=10 LORA actor_rollout_ref.rollout.max_model_len=LENGTH
EOS
sed 's/LORA//; s/LENGTH/1024/' verl.sh >full.sh
asked() { # N: of the rollout and the reference
    for who in ref rollout; do
        grep -q "actor_rollout_ref.$who.log_prob_micro_batch_size_per_gpu=$1" new.sh || fail "verl asks for it of $who: $(cat new.sh)"
    done
}
sed 's/ppo_micro_batch_size_per_gpu=4/use_dynamic_bsz=True/' full.sh >packed.sh
plan --from verl:packed.sh --set batch.max_tokens_per_gpu=none --set batch.micro_batch=4 --emit verl:new.sh
asked 16
plan --from verl:packed.sh --emit verl:new.sh # with tokens it does not
! grep -q log_prob new.sh || fail "$(cat new.sh)"
plan --from verl:full.sh --emit verl:new.sh # a file that lacks it already stays, and is told
cmp -s full.sh new.sh || fail "$(diff full.sh new.sh)"
grep -q 'ref.log_prob_micro_batch_size_per_gpu: the file lacks it' out.txt err.txt || fail "$(cat out.txt err.txt)"
sed 's/LORA/actor_rollout_ref.model.lora_rank=8/; s/LENGTH/1023/' verl.sh >lora.sh
plan --from verl:lora.sh
grep -q 'log-probabilities of the reference: not modelled' err.txt || fail "the reference: $(cat err.txt)"
grep -q 'max_model_len 1023: not modelled: less than max_prompt_length + max_response_length' err.txt || fail "the length: $(cat err.txt)"
# what the file sets and the command takes away
plan --from verl:full.sh --set park.moments=none
plan --from verl:full.sh --set checkpoint.every=0
plan --from verl:full.sh --set checkpoint.contents=model

# advice is never cut inside a value: who follows it, twice where there was more, gets settings
advice=
for round in 1 2 3; do
    code=0
    planned "$STOWAGE" plan --model Qwen3-0.6B --cluster "$CLUSTER" --set nodes=1 --set engine=fsdp2 --set batch.seq_len=2048 \
        --set 'roles=[{name: r, kind: rollout}, {name: k, kind: reference}]' --set park.moments=host --set park.params=host $advice --emit verl:new.sh \
        >out.txt 2>err.txt || code=$?
    [ $code != 0 ] || break
    sed -n 's/.*nothing is written\. Use\(.*\)/\1/p' err.txt | sed 's/\. .*//; s/ and more//; s/, or --emit.*//' >advice.txt
    grep -q -e '--set' advice.txt || fail "no advice: $(cat err.txt)"
    advice="$advice $(cat advice.txt)"
    echo "$advice" >"round.$round"
done
[ -f round.1 ] || fail "verl says this plan at once"
[ $code = 0 ] || fail "after $advice: $(cat err.txt)"
grep -q 'rollout.max_model_len=2048 ' new.sh || fail "$(cat new.sh)"
asked 1
