#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `stowage size` says of what it found: `plan` confirms it, and nothing is said that is not known.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"

# the load that fsdp2 usually does has no room on any number of nodes: the answer names the one that has
set -- --set engine=fsdp2 --set precision.params=fp32 --set parallel.cp=1
expect 9 "load.method=sharded_read" "$STOWAGE" size --model DeepSeek-V3 --gpus h200 --set parallel.ep=8 "$@" -o load.csv
grep -q "does.not.fit" load.csv && fail "a row that does not fit is listed"
nodes=$(tail -n 1 load.csv | cut -d, -f3)
plan() { "$STOWAGE" plan --model DeepSeek-V3 --cluster h200-x8 --set parallel.ep=8 "$@"; }
expect 9 "at risk" plan "$@" --set "nodes=$nodes" --set load.method=sharded_read
expect 4 "does not fit" plan "$@" --set "nodes=$nodes"
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
echo "size answers: ok"
