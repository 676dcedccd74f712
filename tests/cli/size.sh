#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `stowage size` finds is the smallest: plans fit there and do not fit on one GPU or one node fewer; one step
# more of the longest sequence and of the largest micro batch is at risk or does not fit.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 4
field() { tail -n 1 "$1" | cut -d, -f"$2"; }

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
    plan "tiny.yaml:$gpus" --set "node.gpu.memory=${memory%:*}MiB" "$@"
    [ $code = 0 ] || [ $code = 9 ] || fail "$memory: $gpus GPUs do not fit"
    [ "$(member plan.json peak)" = "$(field size.csv 6)" ] || fail "$memory: another peak"
    [ "$(member plan.json iteration)" = "$(field size.csv 8)" ] || fail "$memory: other seconds"
    [ "$gpus" = 1 ] && continue
    for layout in parallel.search=none parallel.search=all; do
        plan "tiny.yaml:$((gpus - 1))" --set "node.gpu.memory=${memory%:*}MiB" "$@" --set "$layout"
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

# the longest sequence and the largest micro batch are without risk, as the row is: one step more is at risk or does not fit
planned "$STOWAGE" size --model tiny --gpus tiny.yaml --set node.gpu.memory=2GiB "$@" -o size.csv
for key in seq_len:12:1024 micro_batch:13:1; do
    name=${key%%:*}
    step=${key##*:}
    column=${key#*:}
    most=$(field size.csv "${column%:*}")
    plan tiny.yaml:1 --set node.gpu.memory=2GiB --set placement.moments=gpu --set "batch.seq_len=256" --set "batch.$name=$most"
    [ $code = 0 ] || fail "$name $most does not fit without risk: exit $code"
    plan tiny.yaml:1 --set node.gpu.memory=2GiB --set placement.moments=gpu --set "batch.seq_len=256" \
        --set "batch.$name=$((most + step))"
    [ $code = 4 ] || [ $code = 9 ] || fail "$name $most is not the most: exit $code"
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
plan "tiny.yaml:$gpus" "$@" $settings
[ $code = 0 ] || [ $code = 9 ] || fail "it does not fit with $layout"
plan "tiny.yaml:$gpus" "$@"
[ $code = 4 ] || fail "it fits without $layout"
planned "$STOWAGE" size --model tiny --gpus tiny.yaml "$@" --set parallel.cp=1 -o own.csv -q || true
case $(field own.csv 5) in *cp=*) fail "a layout that the run sets was changed" ;; esac

# three GPUs are enough where one and two are not
planned "$STOWAGE" size --model tiny --gpus tiny.yaml --set node.gpu.memory=132MiB --set placement.moments=gpu --set batch.seq_len=256 -o three.csv
[ "$(field three.csv 4)" = 3 ] || fail "$(field three.csv 4) GPUs, not three"

# the cheapest: no count that the kind offers is 2% cheaper with parallel=auto; the commands of a row give its plan
column() { awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } END { print $at }' "$1"; }
least=$(column three.csv cheapest_gpu_hours_per_1e9_tokens)
bound=$(column three.csv compute_gpu_hours_per_1e9_tokens)
awk -v a="$(field three.csv 10)" -v b="$least" -v c="$bound" 'BEGIN { exit !(b > 0 && b <= a && c > 0 && c <= b) }' ||
    fail "not the cheapest: $least, bound $bound"
set -- --set node.gpu.memory=132MiB --set placement.moments=gpu --set batch.seq_len=256
for count in tiny.yaml:3:1 tiny.yaml:1 tiny.yaml:2 tiny.yaml:4 tiny.yaml:8 tiny.yaml:16; do
    nodes=${count##*:}
    cluster=${count%:*}
    planned "$STOWAGE" sweep --model tiny --cluster "$cluster" "$@" --set parallel=auto --vary "nodes=$nodes" -q -o point.csv
    awk -F, -v least="$least" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "gpu_hours_per_1e9_tokens") at = i }
        END { exit $at != "" && $at < 0.98 * least }' point.csv || fail "$count is cheaper than $least"
done
for name in "" cheapest_; do
    verdict=$(column three.csv "${name}verdict")
    command=$(column three.csv "${name}command")
    code=0
    (eval "\"\$STOWAGE\" ${command#stowage } -q -o row.json" >/dev/null 2>&1) || code=$?
    [ "$(member row.json verdict)" = "$verdict" ] || fail "$command: exit $code, not $verdict"
done
[ "$(member row.json iteration)" = "$(planned "$STOWAGE" size --model tiny --gpus tiny.yaml "$@" --json |
    awk '/"cheapest"/ { in_it = 1 } in_it && /"iteration_s"/ { gsub(/[^0-9.e-]*"iteration_s": |,/, ""); print; exit }')" ] ||
    fail "the command of the cheapest takes other seconds"
set -- --set engine=fsdp2 --set batch.seq_len=8k --set node.gpu.memory=600MiB --set placement.activations=keep

# with fixed tokens of a step: counts of nodes that cannot share them say nothing of fewer; what is longest, largest
# and cheapest is not held to those tokens or to the micro batches of the smallest
fixed() {
    planned "$STOWAGE" size --set batch.grad_accumulation=auto "$@" -o fixed.csv -q
}
fixed --model Llama-3.1-70B --gpus l40s --set engine=deepspeed --set batch.seq_len=4096 --set batch.tokens_per_step=512k \
    --set precision.params=bf16 --set precision.master=fp32 || fail "no size where 1024 nodes have too few sequences"
[ "$(field fixed.csv 3)" = 8 ] || fail "$(field fixed.csv 3) nodes, not 8"
fixed --model tiny --gpus tiny.yaml --set engine=megatron --set batch.seq_len=256 --set batch.tokens_per_step=16384 \
    --set node.gpu.memory=300MiB
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
    planned "$STOWAGE" size -v --model Qwen3-0.6B --gpus h200 --set engine=stowage --set node.gpu.memory=2950MiB
# where nothing says the engine, the other one is the answer, and the row says so
planned "$STOWAGE" size --model Qwen3-0.6B --gpus h200 --set node.gpu.memory=2950MiB -o other.csv -q
[ "$(column other.csv engine)" = megatron ] || fail "engine $(column other.csv engine)"
case $(column other.csv command) in *"--set engine=megatron"*) ;; *) fail "$(column other.csv command)" ;; esac
[ "$(column other.csv precision)" = bf16/fp32/fp32/fp32 ] || fail "precision $(column other.csv precision)"

# on what a row depends, and what its figures are without
planned "$STOWAGE" size --model Qwen3-32B --gpus h100-80g --set engine=fsdp2 --set batch.seq_len=4096 -v >needs.txt 2>/dev/null
grep -q 'Qwen3-32B on .* of h100-80g: It needs a streamed optimizer step' needs.txt || fail "a streamed step is not named"
planned "$STOWAGE" size --model Qwen3-32B --gpus h100-80g --set engine=fsdp2 --set batch.seq_len=4096 \
    --set optimizer.implementation=fused >needs.txt
! grep -q 'It needs' needs.txt || fail "torch has a fused step"

# one table for several kinds; errors
planned "$STOWAGE" size --model tiny --gpus a100-80g,h200,tiny.yaml >table.txt
[ "$(grep -v Cheapest table.txt | grep -cE "(h200|a100-80g|tiny.yaml) +1 GPU")" = 3 ] || fail "three kinds"
expect 4 "none up to 1024 nodes" "$STOWAGE" size --model tiny --gpus tiny.yaml --set node.gpu.memory=16MiB
{ cat tiny.yaml; echo 'network: {nic: 0 GB/s}'; } >alone.yaml
expect 4 "network.nic: found 0" "$STOWAGE" size --model tiny --gpus alone.yaml,h200 --set node.gpu.memory=100MiB --set placement.moments=gpu
expect 3 "a node of it has 4 GPUs, found 5" "$STOWAGE" plan --model tiny --cluster tiny.yaml:5
expect 2 "nodes is what size finds" "$STOWAGE" size --model tiny --gpus h200 --set nodes=2
expect 2 "empty name" "$STOWAGE" size --model tiny --gpus h200,,a100-80g
expect 2 "h200 is given twice" "$STOWAGE" size --model tiny --gpus "h200, h200"
expect 3 "h300" "$STOWAGE" size --model tiny --gpus h300
expect 2 "required" "$STOWAGE" size --gpus h200
expect 2 "unknown key" "$STOWAGE" size --model tiny --gpus h200 --set fridge=1
echo "size: ok"
