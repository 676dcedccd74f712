#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Values near 2^31, 2^32, 2^63 and 2^64 of the keys that are multiplied: each is refused with the key,
# what was found and what is accepted, or planned and called what it is. Nothing wraps, nothing is a bug.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
cluster=$STW_SOURCE_DIR/models/examples/h200-x1.yaml
plan() { "$STOWAGE" plan --model "${model:-tiny}" --cluster "$cluster" --time-limit 1 "$@"; }

# the commands with which a wrapped product was once called a fit
model=Qwen3-0.6B
expect 3 "batch.micro_batch: found \"1125899906842624\", expected 1 to 65536" plan --set batch.micro_batch=1125899906842624
expect 3 "batch.seq_len: found \"4611686018427387904\", expected auto or 1 to" plan --set batch.seq_len=4611686018427387904
expect 3 "batch.micro_batch: found 65536, expected at most 3 with sequences of 16777216 tokens" plan \
    --set batch.micro_batch=65536 --set batch.seq_len=16777216 --set attention=eager
expect 4 "does not fit" plan --set batch.micro_batch=2 --set batch.seq_len=16777216 --set attention=eager
# twice the batch is never less
last=0
for micro in 1 2 4 8 16 32 64 128 256 512 1024 4096 16384; do
    plan --set batch.micro_batch=$micro --set batch.seq_len=4194304 --set attention=eager -q -o huge.json 2>/dev/null ||
        [ $? = 4 ] || break
    bytes=$(sed -n '/"peaks"/,/}/s/^ *"peak": *\([0-9]*\).*/\1/p' huge.json | head -n 1)
    [ "$bytes" -gt "$last" ] || fail "micro_batch $micro takes $bytes bytes, half of it $last"
    last=$bytes
    rm -f huge.json
done
[ "$last" -gt 0 ] || fail "no batch was planned"

model=tiny
for key in batch.micro_batch batch.seq_len batch.grad_accumulation loss.chunk prefetch.depth prefetch.bucket \
    parallel.dp_shard parallel.cp parallel.ep nodes node.gpus node.host.cores node.gpu.memory node.gpu.context \
    node.host.memory node.host.process node.host.page_lock_limit node.nvme.capacity node.host.cache; do
    case $key in *memory | *context | *process | *limit | *capacity | *cache | *bucket) unit=B ;; *) unit= ;; esac
    for value in 0 2147483647 2147483648 4294967293 4294967295 4294967296 1152921504606846975 4611686018427387904 \
        9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616 1e30 1e308; do
        code=0
        plan --set "$key=$value$unit" >huge.txt 2>&1 || code=$?
        case $code in
        0 | 4 | 7) ;;
        3) grep -q "found" huge.txt && grep -q "expected\|needs\|divide" huge.txt || { cat huge.txt; fail "$key=$value: no bounds"; } ;;
        *) cat huge.txt; fail "$key=$value: exit $code" ;;
        esac
    done
done

# sizes of a model
for pair in hidden_size:1099511627776 intermediate_size:4611686018427387904 vocab_size:9223372036854775807 head_dim:2305843009213693952 \
    num_attention_heads:4294967296; do
    mkdir -p large
    sed "s/\"${pair%:*}\": [0-9]*/\"${pair%:*}\": ${pair#*:}/" tiny/config.json >large/config.json
    code=0
    "$STOWAGE" plan --model large --cluster "$cluster" --time-limit 1 >huge.txt 2>&1 || code=$?
    [ $code = 3 ] || [ $code = 4 ] || { cat huge.txt; fail "$pair: exit $code"; }
done
echo "huge values: ok"
