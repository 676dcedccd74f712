#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the examples of this folder anew, from the root of the sources: STOWAGE=build/bin/stowage sh reports/examples/make.sh
set -e
stowage=$(realpath "${STOWAGE:-build/bin/stowage}")
out=reports/examples
plans=$(mktemp -d)
trap 'rm -r "$plans"' EXIT

# plan NAME ARGUMENT...: a plan that may also be at risk or not fit
plan() {
    name=$1
    shift
    code=0
    "$stowage" plan "$@" -q -o "$plans/$name.json" >/dev/null || code=$?
    case $code in 0 | 4 | 9) ;; *) exit $code ;; esac
}

# page NAME FILE...: a report of these plans and runs
page() {
    name=$1
    shift
    (cd "$plans" && "$stowage" report "$@" -o "$name.html")
    cp "$plans/$name.html" $out/
}

# ---- the five public cases of docs/cases ----
plan streamed --model Qwen3.5-35B-A3B --cluster models/examples/h100-80g-x8.yaml --set nodes=4 --run models/examples/megatron-4910.yaml
page megatron-4910 streamed.json

load='--model Qwen3-32B --cluster h100-80g-x8 --set nodes=4 --set node.host.memory=256GiB'
plan before $load --run models/examples/areal-1182-before.yaml
plan after $load --run models/examples/areal-1182-after.yaml
plan after-on-gpus $load --run models/examples/areal-1182-after.yaml --set load.method=all_ranks_gpu
page areal-1182 before.json after.json after-on-gpus.json

node='--model Llama-3.1-70B --cluster models/examples/h100-80g-x8.yaml --run models/examples/verl-4914-lean.yaml'
bf16='--set precision.params=bf16 --set precision.grads=bf16 --set precision.exp_avg=bf16 --set precision.exp_avg_sq=bf16'
plan lean $node
plan shard-bf16 $node --set roles.0.builds_trainer_model=true $bf16
plan shard-fp32 $node --set roles.0.builds_trainer_model=true
page verl-4914 lean.json shard-bf16.json shard-fp32.json

plan baseline --model Qwen2.5-VL-32B-Instruct --cluster h100-80g-x8 --run models/examples/verl-5364-baseline.yaml
plan streamed-step --model Qwen2.5-VL-32B-Instruct --cluster h100-80g-x8 --run models/examples/verl-5364-streamed.yaml
page verl-5364 baseline.json streamed-step.json

for setting in none policy; do # the others are in docs/cases
    plan $setting --model Qwen3.5-35B-A3B --cluster h200-x8 --set nodes=8 --run models/examples/verl-5995-$setting.yaml
done
page verl-5995 none.json policy.json

# ---- three models on three clusters ----
set --
for model in Llama-3.2-3B Llama-3.1-8B Qwen3-32B; do
    for cluster in h100-80g-x8 h200-x8 '2 x a100-80g-x8'; do
        name=$model-on-$(echo "$cluster" | tr -d ' ')
        plan "$name" --model $model --cluster "$cluster" --set engine=fsdp2 --set batch.seq_len=8192
        set -- "$@" "$name.json"
    done
done
page models-and-clusters "$@"

# ---- Qwen3-32B RL, 1 to 16 nodes, 4k to 64k tokens: what should I book? ----
"$stowage" sweep --model Qwen3-32B --cluster h100-80g-x8 --run models/examples/rl-qwen3-32b.yaml --set node.price_per_gpu_hour=2.99 \
    --vary nodes=1:16 --vary batch.seq_len=4k:64k --vary parallel.cp=1,2 -q -o $out/what-to-book.html

# ---- a run on two H200, beside its plan with what a run of another model taught (bench/results/2026-11-23-learn) ----
runs=bench/results/2026-11-23-learn
cp $runs/cluster.yaml "$plans"
job="--cluster $plans/cluster.yaml --set engine=fsdp2 --set precision.params=fp32 --set precision.exp_avg=fp32 --set precision.exp_avg_sq=fp32
    --set precision.grads=fp32 --set placement.activations=recompute --set optimizer.implementation=fused"
plan other --model Qwen3-4B $job --set batch.seq_len=16384
"$stowage" validate "$plans/other.json" $runs/q4.json --learn "$plans/cluster.yaml" -q >/dev/null || [ $? -eq 8 ]
plan plan --model Qwen3-8B $job --set batch.seq_len=8192
cp $runs/q8.json "$plans/run.json"
page run-on-two-h200 plan.json run.json
