#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The exported problem, all ring options in one, solved to a gap of 0 by another solver, has the optimum that the planner
# proved with one problem for each ring option.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
command -v cbc >/dev/null 2>&1 || { echo "coinor-cbc is not installed"; exit 77; }
tiny_model
tiny_cluster 1

compare() {
    name=$1
    shift
    planned "$STOWAGE" plan "$@" --gap 0 --time-limit 120 --write-lp "$name.lp" -o "$name.json" >/dev/null || fail "$name: no plan"
    case $(member "$name.json" outcome) in optimal | feasible) ;; *) fail "$name: $(member "$name.json" outcome)" ;; esac
    # -increment: by default cbc takes two objectives within 1e-5 s for equal. -preprocess: the
    # objective that cbc prints after its preprocessing may differ from that of its own solution.
    cbc "$name.lp" -ratioGap 0 -allowableGap 0 -increment 1e-10 -primalTolerance 1e-9 -integerTolerance 1e-9 \
        -preprocess off -sec 120 -solve >"$name.cbc" 2>&1 || fail "$name: cbc"
    # the stated bound is about the problem that was written
    ours=$(sed -n 's/^    "bound": *\([0-9.e-]*\),*$/\1/p' "$name.json" | head -n 1)
    theirs=$(sed -n 's/^Cbc0001I Search completed - best objective \([^,]*\),.*/\1/p' "$name.cbc" | tail -n 1)
    [ -n "$theirs" ] || theirs=$(sed -n 's/^Objective value: *//p' "$name.cbc" | tail -n 1)
    awk -v a="$ours" -v b="$theirs" -v name="$name" 'BEGIN {
        printf "%s: %.9g and %.9g\n", name, a, b
        exit !(a > 0 && a <= b * (1 + 1e-6) && a >= b * (1 - 1e-4)) }' || fail "$name: bound $ours, cbc $theirs"
}

compare tiny-resident --model tiny --cluster tiny.yaml
compare tiny-streamed --model tiny --cluster tiny.yaml --set placement.moments=host
compare tiny-tight --model tiny --cluster tiny.yaml --set node.gpu.memory=160MiB --set batch.seq_len=64
compare tiny-cpu --model tiny --cluster tiny.yaml --set optimizer.implementation=cpu
compare tiny-shares --model tiny --cluster tiny.yaml --set update.stream=0.3 --set update.cpu=0.2
compare tiny-direct --model tiny --cluster tiny.yaml --set node.gpu.memory=160MiB --set batch.seq_len=64 --set optimizer.implementation=direct
compare tiny-master --model tiny --cluster tiny.yaml --set precision.params=bf16 --set precision.master=fp32 --set placement.moments=host
compare qwen3-4b --model Qwen3-4B --cluster "$STW_SOURCE_DIR/models/examples/h200-x1.yaml" --set node.gpu.memory=60GiB
h100=$STW_SOURCE_DIR/models/examples/h100-80g-x8.yaml
compare qwen3-32b --model Qwen3-32B --cluster "$h100"
compare qwen3.5-35b --model Qwen3.5-35B-A3B --cluster "$h100" --set node.gpu.memory=30GiB
compare deepseek-v3 --model DeepSeek-V3 --cluster "$h100" --set nodes=32 --set parallel.ep=32
echo "other solver: ok"
