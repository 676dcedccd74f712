#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Seconds of roles beside the trainer are not predicted, and the reports say so; GPU-hours count the GPUs of all roles. How large the
# share of a rollout may be is what plans with this share and a larger one say.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
cat >roles.yaml <<'EOF'
engine: fsdp2
batch: {seq_len: 256}
roles:
- {name: sampler, with: none, gpu_memory_utilization: 0.5, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024, update_bucket: 64 MiB}
EOF
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set nodes=2 --run roles.yaml -o plan.json >plan.txt
grep -q "The seconds of sampler are not predicted" plan.txt || fail "nothing is said of the rollout's seconds"
grep -q "1000 iterations of the trainer take .* on 2 GPUs" plan.txt || fail "GPU-hours are not those of all roles"
total=$(sed -n 's/.*Throughput of the trainer: \([0-9,]*\) tokens.*/\1/p' plan.txt | tr -d ,)
each=$(sed -n 's/.*(\([0-9,]*\) per GPU).*/\1/p' plan.txt | tr -d ,)
[ $((total - 2 * each)) -ge -1 ] && [ $((total - 2 * each)) -le 1 ] || fail "$each tokens/s per GPU of $total"
"$STOWAGE" sweep --model tiny --cluster tiny.yaml --set nodes=2 --run roles.yaml --vary batch.seq_len=256 -o sweep.csv -q
[ "$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "gpus") c = i } NR == 2 { print $c }' sweep.csv)" = 2 ] || fail "a sweep's GPUs"
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 -o alone.json >alone.txt
grep -q "^  Iteration time: " alone.txt || fail "a trainer alone has no other words"
# the embedding has 8000 x 256 bf16 elements: 3.9 MiB
"$STOWAGE" report --full plan.json >fits.txt
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set nodes=2 --run roles.yaml --set roles.0.update_bucket=2MiB -q -o small.json
"$STOWAGE" report --full small.json >small.txt
grep -q "embed_tokens.* has 3.91 MiB, more than update_bucket of role sampler" small.txt || fail "a tensor larger than the bucket"
! grep -q "more than update_bucket" fits.txt || fail "no tensor is larger than the bucket"
share() { # SHARE FILE: plan with a rollout beside the trainer
    "$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --set engine=fsdp2 --set batch.seq_len=1024 \
        --set "roles=[{name: sampler, gpu_memory_utilization: $1, max_model_len: 8k}]" -v -o share.json >"$2" 2>/dev/null
}
share 0.5 half.txt
largest=$(sed -n 's/.*sampler: gpu_memory_utilization up to \([0-9.]*\) takes no more than 98% of the GPU.*/\1/p' half.txt)
[ -n "$largest" ] || fail "nothing is said of the largest share"
share "$largest" largest.txt
grep -q "sampler .* fit$" largest.txt || fail "a share of $largest does not fit"
grep -q "gpu_memory_utilization up to" largest.txt && fail "$largest is not the largest share"
share "$(awk -v x="$largest" 'BEGIN { print x + 0.02 }')" more.txt || true
grep -q "sampler .* fit$" more.txt && fail "a larger share than $largest fits"
echo "roles_costs: ok"
