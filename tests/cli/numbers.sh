#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One number for one thing: the seconds of all outputs agree, and files that state others are refused.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1
tight="--model tiny --cluster tiny.yaml --set node.gpu.memory=160MiB --set batch.seq_len=64"

# seconds FILE MEMBER: of time_s
seconds() { sed -n '/^  "time_s"/,/}/s/^ *"'"$2"'": *\([0-9.e+-]*\),\{0,1\}$/\1/p' "$1"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a > b ? a - b : b - a; exit !(b > 0 && d <= 1e-9 * b) }'; }

# An iteration is its simulated phases, each as often as it happens.
# shellcheck disable=SC2086
"$STOWAGE" plan $tight --set batch.grad_accumulation=3 -o plan.json >plan.txt || fail "no plan"
"$STOWAGE" report --full plan.json >report.txt
"$STOWAGE" report plan.json -o report.csv
"$STOWAGE" simulate plan.json --json --trace trace.json >simulated.json
forward=$(seconds plan.json forward_backward)
step=$(seconds plan.json optimizer_step)
iteration=$(awk -v f="$forward" -v s="$step" 'BEGIN { printf "%.17g", 3 * f + s }')
near "$(seconds plan.json iteration)" "$iteration" || fail "the iteration is not its phases: $forward, $step"
near "$(sed -n 's/^plan.json,plan,,,iteration,\([^,]*\),s$/\1/p' report.csv)" "$iteration" || fail "the CSV report's iteration"
[ "$(seconds simulated.json iteration)" = "$(seconds plan.json iteration)" ] || fail "simulate has another iteration"
grep -h "Iteration time" plan.txt | grep -q "3 x forward_backward" || fail "the summary does not count micro batches"
[ "$(grep "Iteration time" plan.txt)" = "$(grep "Iteration time" report.txt)" ] || fail "report and summary differ"
# The planner's estimate stands in its own line, in words.
[ "$(grep -c "Estimates before simulation" report.txt)" = 1 ] || fail "the planner's estimate is not named"
# The estimate leaves the load out, so that it is beside the simulated seconds what they are.
"$STOWAGE" plan --model Qwen3-0.6B --cluster h200-x1 --set node.pcie.h2d=1GB/s -o slow.json >slow.txt
estimate=$("$STOWAGE" report slow.json -o slow.csv && sed -n 's/^slow.json,solver,,,estimate,\([^,]*\),s$/\1/p' slow.csv)
awk -v e="$estimate" -v s="$(seconds slow.json iteration)" 'BEGIN { exit !(e > 0.99 * s && e < 1.01 * s) }' ||
    fail "the estimate is $estimate s beside $(seconds slow.json iteration) s"
# More bandwidth for the load alone gains nothing in an iteration.
"$STOWAGE" report --full slow.json | grep -q "No plan found that is more than 0.5% faster: .*PCIe bandwidth" || fail "the load is in the prices"
awk '/"cat":"forward_backward"/ { found = 1 } END { exit !found }' trace.json || fail "no forward_backward in the trace"

# What a file states is computed again.
refused() {
    sed "$2" plan.json >edited.json
    cmp -s plan.json edited.json && fail "nothing edited by $2"
    for command in report simulate; do
        expect 3 "$1" "$STOWAGE" "$command" edited.json
    done
}
refused "verdict: found does_not_fit" 's/"verdict": "fits"/"verdict": "does_not_fit"/'
refused "limits give does_not_fit" 's/"memory": 167772160/"memory": 73400320/'
refused "time_s.iteration" '/^  "time_s"/,/}/s/"optimizer_step": 0/"optimizer_step": 1/'
refused "time_s: was changed" '/^  "time_s"/,/}/s/"load": 0/"load": 1/'
refused "ranks\[0\].gpu_bytes" 's/"gpu_bytes": \([0-9]\)/"gpu_bytes": 1\1/'

# A plan that does not fit has no seconds, in any format, and says by how much it is over.
code=0
# shellcheck disable=SC2086
"$STOWAGE" plan $tight --set placement.moments=gpu --set node.gpu.memory=70MiB -o over.json >over.txt || code=$?
[ "$code" = 4 ] || { cat over.txt; fail "exit $code, expected 4"; }
grep -q "GPU memory is over by [0-9.]* GiB" over.txt || fail "nothing is over"
"$STOWAGE" report over.json >over.report.txt
"$STOWAGE" report over.json -o over.md
"$STOWAGE" report over.json -o over.csv
for file in over.txt over.report.txt over.md; do
    ! grep -i "tokens/s\|-hours\|Iteration time\|Phase times\|estimate" "$file" || fail "$file has seconds"
done
! grep '^over.json,time,.*predicted,[0-9]' over.csv || fail "over.csv has seconds"
[ "$(sed -n '/^  "time_s"/,/}/p' over.json | grep -c ': [0-9]')" = 0 ] || fail "over.json has seconds"
rm -f over.trace.json
code=0
"$STOWAGE" simulate over.json --trace over.trace.json >over.simulated.txt 2>&1 || code=$?
[ "$code" = 4 ] && [ ! -e over.trace.json ] || fail "a time line of what cannot run (exit $code)"

# Without GPUs nobody trains: load and step are timed, forward and backward are not.
"$STOWAGE" plan --model tiny --cluster "$STW_SOURCE_DIR/models/examples/cpu-only.yaml" --set batch.seq_len=64 -v -o cpu.json >cpu.txt 2>/dev/null ||
    fail "no plan without GPU"
grep -q "not predicted: the cluster has no GPU" cpu.txt || fail "forward and backward without GPU"
! grep "forward_backward [0-9]\|tokens/s\|-hours" cpu.txt || fail "seconds of what nobody runs"
[ "$(sed -n '/^  "time_s"/,/}/s/^ *"forward_backward": *//p' cpu.json)" = null, ] || fail "cpu.json times forward and backward"
grep -q "^  load .* [0-9.]* m\{0,1\}s  disk" cpu.txt || fail "the load is not timed"

# One median of one run.
"$STOWAGE" run cpu.json --backend host --steps 4 -o run.json >run.txt
"$STOWAGE" report run.json >run.report.txt
said=$(sed -n 's/^optimizer step: median \([^;]*\);.*/\1/p' run.txt)
[ -n "$said" ] || fail "run states no median"
grep -q "median $said of 3 steps after the first" run.report.txt || { cat run.txt run.report.txt; fail "another median"; }

# What is assumed of a framework's optimizer is said, with what the other one needs.
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 -v >auto.txt 2>/dev/null || fail "fsdp2"
grep -q "optimizer.implementation is auto, taken as AdamW(fused=True)" auto.txt || fail "the assumed optimizer is not named"
"$STOWAGE" plan --model tiny --cluster tiny.yaml --set engine=fsdp2 --set optimizer.implementation=foreach -v >named.txt 2>/dev/null || fail "foreach"
! grep -q "taken as" named.txt || fail "an optimizer that was named is not assumed"
echo "numbers: ok"
