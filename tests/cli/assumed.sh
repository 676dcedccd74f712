#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A cluster file that lacks keys: the plan names what it assumed, and presets and examples lack nothing.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
plan() { "$STOWAGE" plan --model tiny "$@"; }

printf 'node: {gpus: 1}\n' >one.yaml
expect 3 "one.yaml: node.gpu.memory" plan --cluster one.yaml
printf 'name: mybox\nnode: {gpus: 2, gpu: {name: RTX 4090, memory: 24 GB}, host: {memory: 64 GiB}}\n' >mybox.yaml
expect 0 "mybox lacks these keys; defaults for an H200 node are assumed: node.gpu.bf16 989 TFLOP/s, node.gpu.hbm 4 TB/s" \
    plan --cluster mybox.yaml -o mybox.json
grep -q '"assumed": \["node.gpu.bf16", .*"node.nvlink", "node.cpu_adamw"\]' mybox.json || fail "JSON lacks cluster.assumed"
for format in txt md csv; do
    "$STOWAGE" report mybox.json -o mybox.$format
    grep -q "lacks these keys.*node.cpu_adamw 3 Gparam/s" mybox.$format || fail "the $format report lacks the assumed keys"
done
grep -q "989 TFLOP/s in bf16; memory bandwidth 4 TB/s" mybox.txt || fail "no rates of the GPU"
plan --cluster mybox.yaml --set node.gpu.bf16=165TFLOP/s | grep -q "assumed: node.gpu.hbm" || fail "--set does not give a key"

for cluster in p5.48xlarge "2 x h100-80g-x8" cpu-only "$STW_SOURCE_DIR"/models/examples/h200-x[124].yaml; do
    plan --cluster "$cluster" -o full.json >full.txt
    grep "lacks these keys" full.txt && fail "$cluster lacks keys"
    grep -q '"assumed": \[\]' full.json || fail "$cluster: something assumed"
done
"$STOWAGE" clusters --show p5.48xlarge | grep assumed && fail "a preset shows assumed keys"
"$STOWAGE" clusters --show p5.48xlarge >shown.yaml
plan --cluster shown.yaml | grep "lacks these keys" && fail "a shown cluster lacks keys"

# a launch on more GPUs than the cluster has: a name alone becomes as many nodes; a number of nodes counts, and both are told
echo 'python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=8 trainer.nnodes=2' >launch.sh
"$STOWAGE" plan --from verl:launch.sh --cluster h100-80g-x8 -q -o launch.json 2>launch.err || fail "a launch: $(cat launch.err)"
"$STOWAGE" plan --from verl:launch.sh --cluster h100-80g-x8 -o launch.json >launch.txt 2>launch.err
grep -q "launch.sh: trainer.nnodes 2, 16 GPUs: planned on 2 x h100-80g-x8" launch.err || fail "no word of the launch's nodes: $(cat launch.err)"
grep -q "on 2 nodes with 8 x NVIDIA H100" launch.txt || fail "not on the launch's nodes"
for one in "--cluster 1xh100-80g-x8" "--cluster h100-80g-x8 --set nodes=1"; do
    # shellcheck disable=SC2086
    "$STOWAGE" plan --from verl:launch.sh $one -o launch.json >launch.txt 2>launch.err
    grep -q "16 GPUs (trainer.nnodes 2) is planned on the cluster's 8 (1 x 8).*; to plan the launch: 2 nodes" launch.err ||
        fail "no word of the nodes: $(cat launch.err)"
    grep -q "on 1 node with 8 x NVIDIA H100" launch.txt || fail "$one does not count"
done
grep -q "Settings: verl:launch.sh; what it leaves out has the defaults of verl 0.9.1" launch.txt || fail "no word of the defaults' version"
grep -q -e "stowage inspect -v verl:launch.sh.*--emit verl" launch.txt || fail "no word of settings in verl's words"
grep -q "actor_rollout_ref.actor.strategy: not given; assumed fsdp" launch.err || fail "the strategy: $(cat launch.err)"

# on other GPUs a step has the launch's tokens, and an iteration its four mini batches, and --emit changes the nodes alone
for cluster in "1 x h100-80g-x8" "1 x h100-80g-x4" "4 x h100-80g-x8"; do
    for micro in ppo_micro_batch_size_per_gpu=2 "use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096"; do
        sed "s/ppo_micro_batch_size_per_gpu=1/$micro/" launch.sh >other.sh
        set -- plan --from verl:other.sh --cluster "$cluster"
        "$STOWAGE" "$@" 2>/dev/null | grep -q "for 1,048,576 tokens" || fail "other tokens on $cluster, $micro"
        "$STOWAGE" "$@" --emit verl:out.sh >other.txt 2>/dev/null
        grep -q "^+ trainer" other.txt || fail "no GPUs of $cluster"
        grep -q "ppo_mini_batch_size" other.txt && fail "another batch is emitted: $(grep ppo_mini other.txt)"
    done
done
exit 0
