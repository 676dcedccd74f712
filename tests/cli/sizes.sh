#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sizes that run away are refused by name, and what is not refused takes seconds and little memory. bench/hostile.py has more.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
E=$STW_SOURCE_DIR/models/examples

# sanitizers reserve more address space than the limit
limit="ulimit -t 20"
(ulimit -v 4000000 && "$STOWAGE" --version) >/dev/null 2>&1 && limit="$limit && ulimit -v 1048576"
plan() { sh -c "$limit && exec \"\$@\"" sh "$STOWAGE" plan --cluster "$E/h200-x2.yaml" "$@"; }

# with KEY VALUE: tiny/config.json with another number
with() {
    tiny_model
    sed "s/\"$1\": [0-9]*/\"$1\": $2/" tiny/config.json >tiny/changed.json
    mv tiny/changed.json tiny/config.json
}
with hidden_size 1000000000
expect 3 "parameters (8000000000000 in model.embed_tokens.weight), expected at most 8796093022208" plan --model tiny
with intermediate_size 2147483647
expect 4 "does not fit" plan --model tiny
with num_hidden_layers 1000000000
expect 3 "\"num_hidden_layers\" is the number 1000000000: expected at most 1024 blocks" plan --model tiny
with num_hidden_layers 0
expect 3 "\"num_hidden_layers\": found the number 0, expected at least 1" plan --model tiny
with num_hidden_layers 1024
expect 0 "fits" plan --model tiny
tiny_model
expect 3 "found 65536 nodes of 256 GPUs, expected at most 262144 GPUs" plan --model tiny --set nodes=65536 --set node.gpus=256

expect 3 "batch.micro_batch: found 65536, expected at most" \
    plan --model GLM-4.5-Air --set batch.micro_batch=65536 --set batch.seq_len=16777216

# every block has a shape of its own
awk 'BEGIN {
    print "name,shape,dtype\nmodel.embed_tokens.weight,\"[8000, 64]\",BF16"
    for (i = 0; i < 4000; i++)
        printf "model.layers.%d.attn.weight,\"[64, 64]\",BF16\nmodel.layers.%d.mlp.weight,\"[%d, 64]\",BF16\n", i, i, 100 + i
}' >shapes.csv
for engine in stowage fsdp2; do
    expect 9 "state fits on .*; forward and backward are unknown" plan --model shapes.csv --set engine=$engine --time-limit 20
done

# the time limit covers all: reading, programs, the search, the simulation
expect 5 "the time limit passed while" plan --model Qwen3-4B --time-limit 0.001
size() { "$STOWAGE" size --gpus h100-80g "$@"; }
expect 5 "no size was shown to fit: .* raise --time-limit" size --model Qwen3-4B --time-limit 0.0001
with num_hidden_layers 1000
expect 5 "the time limit passed while" plan --model tiny --time-limit 0.01
echo "sizes: ok"
