#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `stowage diff` says of two plans: every figure is one of the plan files, only what differs is listed, equal plans are
# said to be equal.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 2
plan() { "$STOWAGE" plan --model tiny --cluster tiny.yaml "$@" >/dev/null; }
plan -o one.json
plan --set batch.seq_len=8k --set placement.activations=recompute --set placement.moments=host -o two.json
plan --set engine=fsdp2 --set 'trainable.lora={rank: 8, targets: [q_proj]}' -o lora.json

# equal plans
expect 0 "The plans are the same: settings, decisions, bytes and seconds" "$STOWAGE" diff one.json one.json
"$STOWAGE" diff one.json one.json --json >same.json
for list in settings decisions bytes seconds; do
    grep -q "\"$list\": \[\]" same.json || fail "$list of equal plans"
done

# figures of the files: peaks of GPU and node, seconds of an iteration
"$STOWAGE" diff one.json two.json -o diff.json
grep -q '"schema": "stowage.diff/1"' diff.json || fail "no schema"
nth() { sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1" | sed -n "$3p"; }
[ "$(nth one.json peak 1)" = "$(nth diff.json gpu_peak_bytes 1)" ] || fail "the GPU's peak before"
[ "$(nth two.json peak 1)" = "$(nth diff.json gpu_peak_bytes 2)" ] || fail "the GPU's peak after"
[ "$(nth one.json peak 2)" = "$(nth diff.json host_peak_bytes 1)" ] || fail "the host's peak before"
[ "$(nth two.json peak 2)" = "$(nth diff.json host_peak_bytes 2)" ] || fail "the host's peak after"
[ "$(nth one.json iteration 1)" = "$(nth diff.json iteration_s 1)" ] || fail "seconds before"
[ "$(nth two.json iteration 1)" = "$(nth diff.json iteration_s 2)" ] || fail "seconds after"

# rows of the CSV: each once, none that is equal, components that sum to their total
"$STOWAGE" diff one.json two.json -o diff.csv
[ "$(head -n 1 diff.csv)" = "section,phase,tier,what,before,after,unit" ] || fail "heads of the CSV"
grep -q "^setting,,,batch.seq_len,4096,8192,\$" diff.csv || fail "batch.seq_len"
grep -q "^setting,,,placement.moments,auto,host,\$" diff.csv || fail "placement.moments"
[ "$(grep -c '^setting' diff.csv)" = 3 ] || fail "settings that do not differ are listed"
awk -F, '$1 == "bytes" {
        if ($5 == $6) { print "equal: " $0; bad = 1 }
        if ($4 == "total") { before[$2 $3] = $5; after[$2 $3] = $6 }
        else if ($4 != "page_locked") { was[$2 $3] += $5; is[$2 $3] += $6 }
    }
    $1 == "seconds" && $5 == $6 { print "equal: " $0; bad = 1 }
    END {
        for (k in before) if (after[k] - before[k] != is[k] - was[k]) { print k, is[k] - was[k]; bad = 1 }
        exit bad
    }' diff.csv || fail "bytes of the CSV"
grep -q "^decision,,,blocks of layer: recompute,.*,4,\$" diff.csv || fail "blocks are recomputed"

# sentences, the other way round too; maps that are off have one line
"$STOWAGE" diff one.json two.json >diff.txt
grep -q "^  GPU memory: the peak " diff.txt || fail "no sentence about the GPU"
grep -q "^  Iteration time: .* instead of " diff.txt || fail "no sentence about seconds"
grep -q "^  Settings: .*batch.seq_len: 8192 instead of 4096" diff.txt || fail "no sentence about settings"
"$STOWAGE" diff one.json lora.json -o lora.csv
grep -q "^setting,,,trainable.lora,none,,\$" lora.csv || fail "a map that is off"
grep -q "^setting,,,trainable.lora.rank,,8,\$" lora.csv || fail "a key of a map that is on"
"$STOWAGE" diff one.json two.json -o diff.md
grep -q "^| key " diff.md || fail "no table in Markdown"

# seconds that differ where nobody sees it are not shown as a difference
for rate in 989 989.00001; do
    "$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --set batch.seq_len=1024 --set "node.gpu.bf16=$rate TFLOP/s" -q -o "rate$rate.json" >/dev/null ||
        fail "rate $rate"
done
"$STOWAGE" diff rate989.json rate989.00001.json >diff.txt
grep -q "^  Iteration time: unchanged, " diff.txt || fail "times that look equal: $(cat diff.txt)"
! grep -q "Throughput\|+0.0%\|-0.0%" diff.txt || fail "equal values as a change: $(cat diff.txt)"

# a plan that does not fit has no times
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set node.gpu.memory=32MiB -q -o none.json >/dev/null && fail "it fits"
"$STOWAGE" diff one.json none.json >none.txt || fail "exit code of a plan that does not fit"
grep -q "fits before, does not fit after" none.txt || fail "verdicts"
grep -q "Times are not compared: the second plan has no predicted time" none.txt || fail "times of a plan that does not fit"

# errors
expect 2 "PLAN" "$STOWAGE" diff one.json
expect 3 "missing.json" "$STOWAGE" diff one.json missing.json
expect 2 "standard input" "$STOWAGE" diff - -
expect 2 "" "$STOWAGE" diff one.json two.json -o one.json
sed 's/"seq_len": 4096/"seq_len": 4095/' one.json >edited.json
expect 3 "edited.json" "$STOWAGE" diff edited.json two.json
"$STOWAGE" diff - two.json <one.json >/dev/null || fail "standard input"
echo "diff: ok"
