#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Predicted tokens per second are near published ones (tests/measured/throughput.csv), and an H200 is never slower than an H100.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"

# tokens per second and GPU of a plan
rate() { # CLUSTER MICRO_BATCH ACCUMULATION SEQ settings...
    cluster=$1 sequences=$(($2 * $3)) seq_len=$4 batch="--set batch.micro_batch=$2 --set batch.grad_accumulation=$3"
    shift 4
    # shellcheck disable=SC2086 # several words
    "$STOWAGE" plan -q --json --model config.json --cluster "$cluster" --set engine=fsdp2 --set node.gpu.memory=400GiB \
        --set node.host.memory=16TiB --set node.host.limit=16TiB --set batch.seq_len="$seq_len" $batch "$@" >plan.json 2>plan.txt ||
        fail "$cluster: $(cat plan.txt)"
    sed -n 's/^ *"iteration": *\([0-9.e-]*\).*/\1/p' plan.json | head -n 1 |
        awk -v tokens=$((sequences * seq_len)) '{ printf "%.1f\n", tokens / $1 }'
}
config() { # HIDDEN HEADS LAYERS POSITIONS
    printf '{"model_type": "gpt2", "n_embd": %d, "n_head": %d, "n_layer": %d, "vocab_size": 50368, "n_positions": %d}\n' "$@" >config.json
}

rows=0
while IFS=, read -r model hidden heads layers seq nodes micro accumulation recompute published tolerance; do
    case $model in "#"* | model) continue ;; esac
    config "$hidden" "$heads" "$layers" "$seq"
    found=$(rate "$nodes x h100-80g-x8" "$micro" "$accumulation" "$seq" --set recompute.granularity="$recompute" --set attention=flash_triton \
        --set precision.reduce=bf16 --set optimizer.implementation=fused)
    echo "$model $seq: $found, published $published" >>rates.txt
    awk -v a="$found" -v b="$published" -v t="$tolerance" 'BEGIN { exit !(a > 0 && a / b - 1 <= t && 1 - a / b <= t) }' ||
        fail "$model at $seq tokens: found ${found:-nothing}, expected $published within $tolerance: $(cat plan.txt)"
    rows=$((rows + 1))
done <"$STW_SOURCE_DIR/tests/measured/throughput.csv"
[ "$rows" -ge 5 ] || fail "$rows rows"

for seq in 512 4096 65536; do
    config 2048 16 4 "$seq"
    h100=$(rate h100-80g-x1 1 1 "$seq")
    h200=$(rate h200-x1 1 1 "$seq")
    awk -v a="$h100" -v b="$h200" 'BEGIN { exit !(a > 0 && b >= 0.999 * a) }' || fail "at $seq tokens an H200 has $h200 tokens/s, an H100 $h100"
done
echo "throughput: ok"
