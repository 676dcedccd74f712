#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A plan that is meant to fit is planned to fit, with reserved bytes, margins and the host's limits; --accept at_risk plans to the old limits.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
export COLUMNS=0
plan() { name=$1; shift; code=0; "$STOWAGE" plan -v "$@" -o "$name.json" >"$name.txt" 2>/dev/null || code=$?; }
seconds() { sed -n '/^  "time_s"/,/}/s/^ *"iteration": *\([0-9.e-]*\),\{0,1\}$/\1/p' "$1.json"; }
verdict() { sed -n 's/^  "verdict": "\([a-z_]*\)".*/\1/p' "$1.json"; }
slower() { awk -v a="$(seconds "$1")" -v b="$(seconds "$2")" -v most="$3" 'BEGIN { exit !(a > b && a < b * (1 + most)) }'; }

# engines of frameworks fit where a plan to 98% of allocated bytes is at risk, for a little more time
set -- fsdp2 "Qwen3-8B --set batch.seq_len=16384" deepspeed "Qwen3-14B --set batch.seq_len=8192" \
    megatron "Qwen3-14B --set batch.seq_len=8192 --set batch.micro_batch=2 --set parallel.tp=4 --set parallel.sequence_parallel=true"
while [ $# -gt 0 ]; do
    run="--cluster h100-80g-x8 --set engine=$1 --model $2"
    plan calm $run
    [ $code = 0 ] && [ "$(verdict calm)" = fits ] || fail "$1: exit code $code, $(head -n 4 calm.txt)"
    plan full $run --accept at_risk
    [ $code = 9 ] && [ "$(verdict full)" = at_risk ] || fail "$1, --accept at_risk: exit code $code"
    slower calm full 0.25 || fail "$1: $(seconds calm) s, at risk $(seconds full) s"
    grep -q '"rule": "placement.accept"' calm.json || fail "$1: what the headroom costs is not told"
    ! grep -q "No plan without risk" full.txt || fail "$1: a plan that was asked for is no last resort"
    shift 2
done

# the key of run.yaml is the same, for sweeps, too
printf 'engine: deepspeed\nplacement: {accept: at_risk}\n' >run.yaml
plan key --model Qwen3-14B --cluster h100-80g-x8 --set batch.seq_len=8192 --run run.yaml
[ $code = 9 ] || fail "placement.accept in run.yaml: exit code $code"
for accept in fits at_risk; do
    "$STOWAGE" sweep --model Qwen3-14B --cluster h100-80g-x8 --set engine=deepspeed --vary batch.seq_len=8192 --accept $accept -o $accept.csv >sweep.txt 2>&1 ||
        fail "sweep: $(cat sweep.txt)"
    grep -q "^8192,$accept," $accept.csv || fail "sweep --accept $accept: $(cat $accept.csv)"
done
code=0
"$STOWAGE" plan --model Qwen3-0.6B --cluster h100-80g-x8 --accept never >never.txt 2>&1 || code=$?
[ $code = 2 ] && grep -q 'found "never", expected at_risk or fits' never.txt || fail "--accept never: exit $code: $(cat never.txt)"

# nothing fits without risk: at risk, with changes that do, which the command confirms; a remedy is named only where it helps
safer() { # NAME RUN... the first change of NAME.txt, planned
    name=$1
    shift
    [ $code = 9 ] || fail "$name: exit code $code"
    grep -q "It fits without risk with (fastest first; each was planned):" $name.txt || fail "$name: no change: $(cat $name.txt)"
    ! grep -q "No plan without risk was found" $name.txt || fail "$name: a change was found"
    change=$(sed -n '/It fits without risk with/{n;s/^ *- \(--set [^:]*\): .*/\1/p;}' $name.txt)
    plan changed "$@" $change
    [ $code = 0 ] || fail "$name: exit code $code with $change"
}
risky="--model Qwen3-32B --cluster h100-80g-x8 --set engine=fsdp2"
plan none $risky
! grep -q "Try --set allocator.expandable_segments" none.txt || fail "32B: a remedy that does not help"
safer none $risky
[ "$change" = "--set loss.fused=true --set optimizer.implementation=stowage" ] || fail "32B: $change"
plan fused $risky --set batch.seq_len=16384 --set loss.fused=true
safer fused $risky --set batch.seq_len=16384 --set loss.fused=true
[ "$change" = "--set optimizer.implementation=stowage" ] || fail "32B, 16384 tokens: $change"
slower changed fused 0.1 || fail "32B: $(seconds changed) s, at risk $(seconds fused) s"
plan two $risky --set batch.seq_len=16384 --set nodes=2
safer two $risky --set batch.seq_len=16384 --set nodes=2
[ "$change" = "--set loss.fused=true" ] || fail "32B on 2 nodes: $change"
# the host is at risk, and no setting changes that
plan host --model Qwen3-30B-A3B --cluster h100-80g-x8 --set node.host.memory=1007.51GB --set node.host.limit=1007.51GB \
    --set node.host.kill_share=0.99 --set node.host.object_store=180GB --run "$STW_SOURCE_DIR/models/examples/slime-1851.yaml"
[ $code = 9 ] && grep -q "No plan without risk was found" host.txt || fail "it is not said that none was found: exit code $code"
plan segments --model Qwen3-32B --cluster a100-80g-x8 --set engine=megatron --set batch.seq_len=16384 --set parallel.tp=4 \
    --set parallel.sequence_parallel=true --set parallel.pp=2
[ $code = 9 ] && grep -q "Try --set allocator.expandable_segments=true" segments.txt || fail "exit code $code: no remedy"
plan helped --model Qwen3-32B --cluster a100-80g-x8 --set engine=megatron --set batch.seq_len=16384 --set parallel.tp=4 \
    --set parallel.sequence_parallel=true --set parallel.pp=2 --set allocator.expandable_segments=true
[ $code = 0 ] || fail "the remedy does not help: exit code $code"

# two policies of blocks tear the allocator's memory, one fits
plan one --model Qwen3-32B --cluster h100-80g-x8 --set engine=fsdp2 --set node.gpus=6
[ $code = 0 ] || fail "6 GPUs, as with recompute.granularity=full: exit code $code"

# the search of layouts ends for what is slower than what fits without risk, and finds the same: of 266 layouts most are not solved to the end
plan auto --model Qwen3-8B --cluster h100-80g-x8 --set engine=fsdp2 --set parallel=auto --set batch.seq_len=16384 --set batch.tokens_per_step=1048576
[ $code = 0 ] && [ "$(verdict auto)" = fits ] || fail "auto: exit code $code"
planned=$(sed -n 's/.*admissible layouts: \([0-9]*\) planned.*/\1/p' auto.txt)
[ "${planned:-999}" -lt 100 ] || fail "auto: $planned layouts are planned: $(grep Layout auto.txt)"
awk -v s="$(seconds auto)" 'BEGIN { exit !(s < 23.9) }' || fail "auto: $(seconds auto) s"

# size: the longest sequence is one that `plan` calls without risk where the row has none; the next one is at risk
"$STOWAGE" size --model Qwen3-0.6B --gpus h100-80g --set engine=fsdp2 -o size.csv >size.txt 2>&1 || fail "size: $(cat size.txt)"
longest=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "longest_seq_len") at = i } NR == 2 { print $at }' size.csv)
for more in 0 1024; do
    plan longest --model Qwen3-0.6B --cluster h100-80g-x8:1 --set engine=fsdp2 --set batch.seq_len=$((longest + more))
    [ "$code" = $((more > 0 ? 9 : 0)) ] || fail "a sequence of $((longest + more)) tokens: exit code $code, the longest is $longest"
done
"$STOWAGE" size --model Qwen3-8B --gpus h100-80g --set engine=fsdp2 >risky.txt 2>&1 || [ $? = 9 ] || fail "size: $(cat risky.txt)"
grep -q "^  h100-80g .* at risk .* [0-9]*,[0-9]* at risk" risky.txt || fail "the longest sequence of a row at risk is not: $(cat risky.txt)"

echo "accept: ok"
