#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `stowage size` says of what it found: `plan` confirms it, and nothing is said that is not known.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"

# the load that fsdp2 usually does has no room on any number of nodes: the answer names the one that has
set -- --set engine=fsdp2 --set precision.params=fp32 --set parallel.cp=1
expect 9 "load.method=sharded_read" env COLUMNS=80 "$STOWAGE" size --model DeepSeek-V3 --gpus h200=3.5 \
    --set parallel.ep=8 "$@" -o load.csv
# key columns stay at 80 columns, a row at risk has a cost; on what it depends, and what is planned
for word in "free" "tokens/s" "per 1e9" "USD per" "Layout of h200: load.method=sharded_read" "It needs a streamed optimizer" \
    "Engine fsdp2; params/grads/master/moments fp32/fp32/none/fp32" "196,608 tokens"; do
    grep -q "$word" expect.out || { cat expect.out >&2; fail "no \"$word\""; }
done
awk '/ h200 .* at risk / { n = NF } END { exit !(n >= 10) }' expect.out || fail "a row at risk without its figures"
grep -q "does.not.fit" load.csv && fail "a row that does not fit is listed"
# more GPUs, which are without risk
nodes=$(tail -n 1 load.csv | cut -d, -f3)
safe=$(tail -n 1 load.csv | awk -F, '{ print $(NF - 13) }')
[ "$safe" -gt "$nodes" ] && [ "$safe" -le $((4 * nodes)) ] || fail "without risk: $safe nodes"
grep -q "Without risk: $safe nodes x 8" expect.out || fail "what is without risk is not said"
plan() { "$STOWAGE" plan --model DeepSeek-V3 --cluster h200-x8 --set parallel.ep=8 "$@"; }
expect 9 "at risk" plan "$@" --set "nodes=$nodes" --set load.method=sharded_read
expect 4 "does not fit" plan "$@" --set "nodes=$nodes"
settings=
for word in $(tail -n 1 load.csv | awk -F, '{ print $(NF - 11) }'); do settings="$settings --set $word"; done
# shellcheck disable=SC2086
expect 0 "fits" plan "$@" --set "nodes=$safe" $settings
# shellcheck disable=SC2086
expect 9 "at risk" plan "$@" --set "nodes=$((safe - 1))" $settings
expect 4 "none up to 1024 nodes" "$STOWAGE" size --model DeepSeek-V3 --gpus h200 --set parallel.ep=8 "$@" \
    --set load.method=rank0_broadcast

# a list of tensors: what batches do is unknown, and not said
printf 'name,shape,dtype\nmodel.embed_tokens.weight,"[8000, 64]",BF16\n' >own.csv
printf 'model.layers.0.attn.weight,"[64, 64]",BF16\nmodel.layers.0.mlp.weight,"[100, 64]",BF16\n' >>own.csv
expect 9 "forward and backward are unknown" "$STOWAGE" size --model own.csv --gpus h100-80g=3
grep -q "longest" expect.out && fail "a longest sequence of an unknown architecture"
planned "$STOWAGE" size --model own.csv --gpus h100-80g=3 --json >own.json
for key in longest_seq_len largest_micro_batch; do
    grep -q "\"$key\": null" own.json || fail "$key of an unknown architecture"
done
planned "$STOWAGE" size --model own.csv --gpus h100-80g=3 -o sizes.csv -q
[ "$(tail -n 1 sizes.csv | cut -d, -f12,13)" = "," ] || fail "batches of an unknown architecture in CSV"
planned "$STOWAGE" plan --model own.csv --cluster h100-80g-x8 -q -o own.plan.json
"$STOWAGE" report own.plan.json >own.txt
grep -q "Tokens per iteration" own.txt && fail "tokens where no key of a batch has an effect"
"$STOWAGE" report own.plan.json -o own.report.csv
grep -q "tokens_per_iteration,," own.report.csv || fail "tokens in the CSV report"

# settings that no cluster can have are an error, as in plan; those of one model of two are a row
expect 3 "precision.grads: found fp32, expected bf16" "$STOWAGE" size --model Qwen3-8B,Qwen3-4B --gpus h200 \
    --set engine=fsdp2 --set precision.params=bf16
expect 3 "precision.grads: found fp32" "$STOWAGE" plan --model Qwen3-8B --cluster h200-x8 --set engine=fsdp2 --set precision.params=bf16
expect 4 "refused" "$STOWAGE" size --model Qwen3-8B,Qwen3-30B-A3B --gpus h200 --set engine=fsdp2 --set parallel.ep=2
echo "size answers: ok"
