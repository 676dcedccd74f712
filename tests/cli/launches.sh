#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# People's launches: LoRA on one GPU, the DeepSpeed config that a file names, scripts that start files, Ray's line, images.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
plan() { "$STOWAGE" plan -v "$@"; }
# said WORD COMMAND...: it plans, be that at risk, and says WORD
said() {
    word=$1
    shift
    planned "$@" >expect.out 2>&1 || { cat expect.out >&2; fail "not planned: $*"; }
    grep -q -e "$word" expect.out || { cat expect.out >&2; fail "\"$word\" is not said by: $*"; }
}

# LoRA of a model with a vision tower on one GPU of 24 GiB; images are assumed, and can be set
cat >lora.yaml <<'EOF'
model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
image_max_pixels: 262144
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
template: qwen2_vl
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
EOF
set -- --from llamafactory:lora.yaml --cluster h200-x1 --set node.gpu.memory=24GiB
said "Qwen2.5-VL-7B-Instruct fits on 1 node with 1 x" plan "$@"
grep -q "images of a sequence: not given; assumed 1: batch.image_tokens 334 (784 pixels make a token; .*image_max_pixels" expect.out ||
    fail "no word of the images: $(cat expect.out)"
grep -q "torch on one GPU" expect.out || fail "no word of the engine"
grep -q "frozen .*8,292,166,656" expect.out || fail "the model is not frozen"
expect 3 "batch.image_tokens: found 4096, expected at most batch.seq_len, 2048" plan "$@" --set batch.image_tokens=4k
said "batch.image_tokens" plan "$@" --set batch.image_tokens=2k
{ planned plan --from llamafactory:lora.yaml --cluster h200-x4 2>/dev/null; } | grep -q "on 1 node with 4 x" || fail "not on four GPUs"
plan "$@" --emit llamafactory 2>/dev/null >same.yaml
cmp -s lora.yaml same.yaml || fail "the file is another one: $(diff lora.yaml same.yaml)"
{ sed 's/lora$/full/' lora.yaml && echo 'optim: adamw_torch_fused'; } >full.yaml
said "on 1 node with 1 x" plan --from llamafactory:full.yaml --cluster h200-x1
expect 7 "DistributedDataParallel with all parameters" plan --from llamafactory:full.yaml --cluster h200-x4

# a DeepSpeed config: beside the file, in a parent, or known by its name
mkdir -p own/examples/train own/examples/deepspeed
cat >own/examples/deepspeed/mine.json <<'EOF'
{"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "zero_optimization": {"stage": 2, "reduce_bucket_size": 123456}}
EOF
for path in examples/deepspeed/mine.json "$PWD/own/examples/deepspeed/mine.json"; do
    { cat full.yaml && echo "deepspeed: $path"; } >own/examples/train/a.yaml
    "$STOWAGE" inspect -v llamafactory:own/examples/train/a.yaml >inspected.txt 2>&1 || fail "$path: $(cat inspected.txt)"
    grep -q "zero_optimization.reduce_bucket_size: 123456" inspected.txt || fail "$path is not read: $(cat inspected.txt)"
done
for name in examples/deepspeed/ds_z3_offload_config.json ds_z3_offload.json; do
    { cat full.yaml && echo "deepspeed: $name"; } >named.yaml
    said "contents of deepspeed: not given; assumed $name (no such file here; as LLaMA-Factory ships" \
        plan --from llamafactory:named.yaml --cluster h100-80g-x8
done
echo "deepspeed: nowhere.json" | cat full.yaml - >named.yaml
expect 7 "nowhere.json: not implemented: no such file" plan --from llamafactory:named.yaml --cluster h100-80g-x8

# a script starts a file, on its nodes
echo 'FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train lora.yaml cutoff_len=1024' >start.sh
said "NNODES 2: planned on 2 x h100-80g-x8" plan --from llamafactory:start.sh --cluster h100-80g-x8
grep -q "for 131,072 tokens" expect.out || fail "cutoff_len of the script does not count: $(cat expect.out)"
# GPUs without a number of nodes are those of one node: the cluster's count
{ cat lora.yaml && echo "ray_num_workers: 4"; } >workers.yaml
said "on 1 node with 1 x" plan --from llamafactory:workers.yaml --cluster h200-x1
grep -q "a launch on 4 GPUs is planned on the cluster's 1 (1 x 1)" expect.out || fail "no word of the GPUs: $(cat expect.out)"
echo 'llamafactory-cli train --model_name_or_path Qwen/Qwen3-0.6B --stage sft --do_train --bf16 --lora_target all-linear' >flags.sh
said "Qwen3-0.6B " plan --from llamafactory:flags.sh --cluster h100-80g-x1

# ms-swift: pixels of the environment, by the patches of each tower
for case in "Qwen2.5-VL-7B-Instruct MAX_PIXELS=1003520 1280" "Qwen3-VL-8B-Instruct MAX_PIXELS=1048576 1024" \
    "Qwen3-VL-8B-Instruct IMAGE_MAX_TOKEN_NUM=512 512" "Qwen2.5-VL-7B-Instruct VIDEO_MAX_PIXELS=50176;FPS_MAX_FRAMES=12 384"; do
    # shellcheck disable=SC2086
    set -- $case
    echo "$(echo "$2" | tr ';' ' ') swift sft --model Qwen/$1 --max_length 4096 --torch_dtype bfloat16 --target_modules all-linear" >swift.sh
    said "assumed 1: batch.image_tokens $3 " plan --from ms-swift:swift.sh --cluster h200-x1
done

# verl with every combination of the three offload flags, on its own nodes; Ray's line is the host's limit
cat >verl.sh <<'EOF'
export RAY_memory_usage_threshold=0.9
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=2048 data.max_response_length=6144 \
    actor_rollout_ref.model.path=Qwen/Qwen3.5-35B-A3B actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.fsdp_config.offload_policy=POLICY actor_rollout_ref.actor.fsdp_config.param_offload=PARAM \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=OPTIMIZER actor_rollout_ref.actor.fsdp_config.fsdp_size=64 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.mode=async actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=8 trainer.nnodes=8
EOF
for policy in True False; do
    for param in True False; do
        for optimizer in True False; do
            sed "s/POLICY/$policy/;s/PARAM/$param/;s/OPTIMIZER/$optimizer/" verl.sh >offload.sh
            said "on 8 nodes with 8 x NVIDIA H200 each" plan --from verl:offload.sh --cluster h200-x8
            grep "^  GPU  \[\|^  host \[" expect.out
        done
    done
done >peaks.txt
[ "$(paste - - <peaks.txt | sort -u | wc -l)" -ge 4 ] || fail "the flags change nothing: $(cat peaks.txt)"
grep -q "kills at 90% of" expect.out || fail "no word of Ray's line: $(cat expect.out)"
grep -q "^  host \[.* of 1798.20 GiB" expect.out || fail "the limit is not 90% of 1998 GiB: $(cat expect.out)"
{ planned plan --from verl:offload.sh --cluster h200-x8 --set node.host.kill_share=1 2>/dev/null; } | grep -q "of 1998.00 GiB per node" || fail "kill_share=1"
sed 1d offload.sh >usual.sh
{ planned plan --from verl:usual.sh --cluster h200-x8 2>/dev/null; } | grep -q "kills at 95% of" || fail "Ray's default"
said "64 GPUs (trainer.nnodes 8) is planned on the cluster's 128 (16 x 8)" plan --from verl:offload.sh --cluster "16 x h200-x8"

# adapters beside all linear layers of the language model; a map without a space
said "frozen" plan --model Qwen2.5-VL-7B-Instruct --cluster h100-80g-x8 --set engine=fsdp2 \
    --set 'trainable.lora={rank: 8, targets: all-linear}'
grep -q " 20,185,088 \|  2,523,136 " expect.out || fail "adapters of the tower, too: $(cat expect.out)"
expect 3 'found "rank:8", which YAML reads as one key; write a space after the colon: {rank: 8}' \
    plan --model Qwen3-0.6B --cluster h100-80g-x8 --set engine=fsdp2 --set 'trainable.lora={rank:8}'
exit 0
