#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `stowage size` finds is the smallest: plans fit there and do not fit on one GPU or one node fewer; one step
# more of the longest sequence and of the largest micro batch does not fit.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 4
field() { tail -n 1 "$1" | cut -d, -f"$2"; }

# part GPUS: that share of the node in tiny.yaml
part() {
    awk -v g="$1" 'function scale(key, unit,    at, tail) {
            if (!match($0, key ": [0-9.]+ " unit)) return
            at = RSTART; tail = substr($0, RSTART + RLENGTH)
            match(substr($0, at), ": [0-9.]+")
            value = substr($0, at + RSTART + 1, RLENGTH - 2)
            $0 = substr($0, 1, at - 1) key ": " value * g / 4 " " unit tail
        }
        /gpus:/ { sub(/gpus: 4/, "gpus: " g) }
        /host:/ { scale("memory", "GiB"); scale("limit", "GiB"); scale("bandwidth", "GB/s"); scale("dma", "GB/s")
            sub(/cores: 2/, "cores: " (g * 2 < 8 ? 1 : 2)) }
        /nvme:/ { scale("capacity", "GiB"); scale("read", "GB/s"); scale("write", "GB/s") }
        /cpu_adamw:/ { scale("cpu_adamw", "Gparam/s") }
        { print }' tiny.yaml >"part$1.yaml"
}
for gpus in 1 2 3 4; do part $gpus; done
plan() { # plan CLUSTER SETTINGS...: exit code
    cluster=$1
    shift
    code=0
    "$STOWAGE" plan --model tiny --cluster "$cluster" "$@" -o plan.json -q >/dev/null 2>plan.err || code=$?
}

# parts of a node
set -- --set placement.moments=gpu --set batch.seq_len=256
for memory in 200:1 150:2 120:4; do
    planned "$STOWAGE" size --model tiny --gpus tiny.yaml --set "node.gpu.memory=${memory%:*}MiB" "$@" -o size.csv >summary.txt
    grep -q "The smallest clusters on which tiny" summary.txt || fail "no summary beside size.csv"
    gpus=$(field size.csv 4)
    [ "$gpus" = "${memory#*:}" ] || fail "$memory: found $gpus GPUs"
    [ "$(field size.csv 2)" = true ] || [ "$(field size.csv 20)" = at_risk ] || fail "$memory: does not fit"
    plan "part$gpus.yaml" --set "node.gpu.memory=${memory%:*}MiB" "$@"
    [ $code = 0 ] || [ $code = 9 ] || fail "$memory: $gpus GPUs do not fit"
    [ "$(member plan.json peak)" = "$(field size.csv 6)" ] || fail "$memory: another peak"
    [ "$(member plan.json iteration)" = "$(field size.csv 8)" ] || fail "$memory: other seconds"
    [ "$gpus" = 1 ] && continue
    for layout in parallel.search=none parallel.search=all; do
        plan "part$((gpus - 1)).yaml" --set "node.gpu.memory=${memory%:*}MiB" "$@" --set "$layout"
        [ $code = 4 ] || fail "$memory: one GPU fewer with $layout: exit $code"
    done
done

# nodes, by bisection: 22 is no power of two
planned "$STOWAGE" size --model tiny --gpus tiny.yaml --set node.gpu.memory=100MiB "$@" --json >size.json
nodes=$(member size.json nodes)
[ "$nodes" -gt 2 ] || fail "found $nodes nodes"
plan tiny.yaml --set node.gpu.memory=100MiB "$@" --set "nodes=$nodes"
[ $code = 0 ] || [ $code = 9 ] || fail "$nodes nodes do not fit"
for layout in nodes=$((nodes - 1)) parallel.cp=2 parallel.cp=4 parallel.cp=8 parallel.tp=2 parallel.ep=2 parallel.pp=2; do
    plan tiny.yaml --set node.gpu.memory=100MiB "$@" --set "nodes=$((nodes - 1))" --set "$layout"
    [ $code != 0 ] || fail "one node fewer fits with $layout"
done

# the longest sequence and the largest micro batch: one step more does not fit
planned "$STOWAGE" size --model tiny --gpus tiny.yaml --set node.gpu.memory=2GiB "$@" -o size.csv
for key in seq_len:12:1024 micro_batch:13:1; do
    name=${key%%:*}
    step=${key##*:}
    column=${key#*:}
    most=$(field size.csv "${column%:*}")
    plan part1.yaml --set node.gpu.memory=2GiB --set placement.moments=gpu --set "batch.seq_len=256" --set "batch.$name=$most"
    [ $code = 0 ] || [ $code = 9 ] || fail "$name $most does not fit"
    plan part1.yaml --set node.gpu.memory=2GiB --set placement.moments=gpu --set "batch.seq_len=256" \
        --set "batch.$name=$((most + step))"
    [ $code = 4 ] || fail "$name $most is not the most: exit $code"
done

# a layout that makes it smaller; the run's own where it is set
set -- --set engine=fsdp2 --set batch.seq_len=8k --set node.gpu.memory=600MiB --set placement.activations=keep
planned "$STOWAGE" size --model tiny --gpus tiny.yaml "$@" -o layout.csv -q
layout=$(field layout.csv 5)
case $layout in *cp=*) ;; *) cat layout.csv >&2; fail "no layout with cp: $layout" ;; esac
[ "$(field layout.csv 3)" = 1 ] || fail "more than one node with $layout"
gpus=$(field layout.csv 4)
settings=
for word in $layout; do
    case $word in *.*=*) settings="$settings --set $word" ;; *) settings="$settings --set parallel.$word" ;; esac
done
# shellcheck disable=SC2086
plan "part$gpus.yaml" "$@" $settings
[ $code = 0 ] || [ $code = 9 ] || fail "it does not fit with $layout"
plan "part$gpus.yaml" "$@"
[ $code = 4 ] || fail "it fits without $layout"
planned "$STOWAGE" size --model tiny --gpus tiny.yaml "$@" --set parallel.cp=1 -o own.csv -q || true
case $(field own.csv 5) in *cp=*) fail "a layout that the run sets was changed" ;; esac

# three GPUs are enough where one and two are not
planned "$STOWAGE" size --model tiny --gpus tiny.yaml --set node.gpu.memory=132MiB --set placement.moments=gpu --set batch.seq_len=256 -o three.csv
[ "$(field three.csv 4)" = 3 ] || fail "$(field three.csv 4) GPUs, not three"

# the cheapest of 1, 2 and 4 times as many GPUs; the longest sequence of its own
hours=$(field three.csv 10)
awk -v a="$hours" -v b="$(field three.csv 17)" 'BEGIN { exit !(b > 0 && b <= a) }' || fail "not the cheapest"

# with fixed tokens of a step: counts of nodes that cannot share them say nothing of fewer; what is longest, largest
# and cheapest is not held to those tokens or to the micro batches of the smallest
fixed() {
    planned "$STOWAGE" size --set batch.grad_accumulation=auto "$@" -o fixed.csv -q
}
fixed --model Llama-3.1-70B --gpus l40s --set engine=deepspeed --set batch.seq_len=4096 --set batch.tokens_per_step=512k \
    --set precision.params=bf16 --set precision.master=fp32 || fail "no size where 1024 nodes have too few sequences"
[ "$(field fixed.csv 3)" = 8 ] || fail "$(field fixed.csv 3) nodes, not 8"
fixed --model tiny --gpus tiny.yaml --set engine=megatron --set batch.seq_len=256 --set batch.tokens_per_step=16384 \
    --set node.gpu.memory=250MiB
[ "$(field fixed.csv 12)" = 1024 ] || fail "longest sequence $(field fixed.csv 12), not 1024"
fixed --model Llama-3.1-8B --gpus h100-80g --set engine=megatron --set batch.seq_len=8k --set batch.tokens_per_step=4096k \
    --set precision.params=bf16 --set precision.master=fp32
awk -v a="$(field fixed.csv 10)" -v b="$(field fixed.csv 17)" 'BEGIN { exit !(b < 0.9 * a) }' || fail "more GPUs are not cheaper"

# one table for several models and kinds, the same rows as alone, whatever the number of threads
sed 's/"num_hidden_layers": 4/"num_hidden_layers": 8/' tiny/config.json >deeper.json
planned "$STOWAGE" size --model tiny,deeper.json --gpus tiny.yaml,h200 -o both.csv
[ "$(wc -l <both.csv)" = 5 ] || fail "two models on two kinds"
planned "$STOWAGE" size --model tiny --model deeper.json --gpus tiny.yaml,h200 --jobs 1 -o again.csv
cmp -s both.csv again.csv || fail "given twice, or on one thread"
planned "$STOWAGE" size --model deeper.json --gpus tiny.yaml,h200 -o alone.csv
[ "$(tail -n 2 both.csv)" = "$(tail -n 2 alone.csv)" ] || fail "a model among others"
planned "$STOWAGE" size --model tiny,deeper.json --gpus h200 --json >both.json
[ "$(grep -c '"kinds"' both.json)" = 2 ] || fail "two models in JSON"
expect 2 "given twice" "$STOWAGE" size --model tiny,tiny --gpus h200
expect 2 "empty name" "$STOWAGE" size --model tiny,,tiny --gpus h200

# with parallel=auto the fastest layout of the smallest size, not the first that fits
planned "$STOWAGE" size --model tiny --gpus tiny.yaml "$@" -o first.csv -q
planned "$STOWAGE" size --model tiny --gpus tiny.yaml "$@" --set parallel=auto -o fastest.csv -q
[ "$(field first.csv 4)" = "$(field fastest.csv 4)" ] || fail "another size with parallel=auto"
awk -v a="$(field fastest.csv 9)" -v b="$(field first.csv 9)" 'BEGIN { exit !(a >= b * 0.995) }' || fail "slower with parallel=auto"

# where it does not fit: what would help
expect 4 "does not fit: a GPU needs .* It fits with --set engine=megatron (" \
    planned "$STOWAGE" size -v --model Qwen3-0.6B --gpus h200 --set node.gpu.memory=2950MiB

# on what a row depends, and what its figures are without
planned "$STOWAGE" size --model Qwen3-32B --gpus h100-80g --set engine=fsdp2 --set batch.seq_len=4096 -v >needs.txt 2>/dev/null
grep -q 'Qwen3-32B on .* of h100-80g: It needs a streamed optimizer step' needs.txt || fail "a streamed step is not named"
planned "$STOWAGE" size --model Qwen3-32B --gpus h100-80g --set engine=fsdp2 --set batch.seq_len=4096 \
    --set optimizer.implementation=fused >needs.txt
! grep -q 'It needs' needs.txt || fail "torch has a fused step"

# one table for several kinds; errors
planned "$STOWAGE" size --model tiny --gpus a100-80g,h200,tiny.yaml >table.txt
[ "$(grep -v Cheapest table.txt | grep -c "1 GPU")" = 3 ] || fail "three kinds"
expect 4 "none up to 1024 nodes" "$STOWAGE" size --model tiny --gpus tiny.yaml --set node.gpu.memory=16MiB
{ cat tiny.yaml; echo 'network: {nic: 0 GB/s}'; } >alone.yaml
expect 4 "network.nic: found 0" "$STOWAGE" size --model tiny --gpus alone.yaml,h200 --set node.gpu.memory=100MiB --set placement.moments=gpu
expect 2 "nodes is what size finds" "$STOWAGE" size --model tiny --gpus h200 --set nodes=2
expect 2 "empty name" "$STOWAGE" size --model tiny --gpus h200,,a100-80g
expect 2 "h200 is given twice" "$STOWAGE" size --model tiny --gpus "h200, h200"
expect 3 "h300" "$STOWAGE" size --model tiny --gpus h300
expect 2 "required" "$STOWAGE" size --gpus h200
expect 2 "unknown key" "$STOWAGE" size --model tiny --gpus h200 --set fridge=1
echo "size: ok"
