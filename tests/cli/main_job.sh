#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All commands in order on a small model: inspect, plan, simulate, run, validate, report.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
tiny_model
tiny_cluster 1

"$STOWAGE" inspect tiny >inspect.txt
"$STOWAGE" inspect tiny --json >inspect.json
[ "$(member inspect.json schema)" = stowage.model/1 ] || fail "inspect's schema"
"$STOWAGE" inspect tiny --tensors tensors.csv >/dev/null
[ "$(member inspect.json params)" = "$("$STOWAGE" inspect tensors.csv --json | sed -n 's/^ *"params": *\([0-9]*\),.*/\1/p' | head -n 1)" ] ||
    fail "the CSV list has other parameters than the config"

"$STOWAGE" plan --model tiny --cluster tiny.yaml -o plan.json >plan.txt
[ "$(member plan.json schema)" = stowage.plan/1 ] || fail "plan's schema"
case $(member plan.json outcome) in optimal | feasible) ;; *) fail "outcome $(member plan.json outcome)" ;; esac
"$STOWAGE" simulate plan.json --trace trace.json >simulate.txt
grep -q '"ph"' trace.json || fail "the trace has no events"
"$STOWAGE" simulate plan.json --json >simulated.json
[ "$(member simulated.json schema)" = stowage.plan/1 ] || fail "simulate --json prints the plan's fields"
"$STOWAGE" run plan.json --backend host --steps 3 --trace ran.json -o run.json >run.txt
for phase in load first_optimizer_step optimizer_step; do
    grep -q "\"name\":\"$phase\"" ran.json || fail "the run's trace has no $phase"
done
[ "$(member run.json mismatched)" = 0 ] || fail "elements differ from the reference"
"$STOWAGE" validate plan.json run.json >validate.txt || { cat validate.txt; fail "prediction and measurement disagree"; }
"$STOWAGE" report plan.json run.json -o report.md
"$STOWAGE" report plan.json -o report.csv
"$STOWAGE" report plan.json --json >report.json
grep -q '^#' report.md || fail "the Markdown report has no heading"

# a second run of the same plan gives the same bits; another seed does not
"$STOWAGE" run plan.json --backend host --steps 3 -o again.json >/dev/null
[ "$(digests run.json)" = "$(digests again.json)" ] || fail "two runs of one plan differ"
"$STOWAGE" run plan.json --backend host --steps 3 --seed 2 -o other.json >/dev/null
[ "$(digests run.json)" != "$(digests other.json)" ] || fail "the seed has no effect"

# validate finds other bytes than predicted: allocated bytes plus 5%
awk '/"allocated": [0-9]+/ { n = $2 + 0; sub(/[0-9]+/, int(n + n / 20)) } { print }' run.json >other.run.json
"$STW_SEAL" other.run.json
expect 8 outside "$STOWAGE" validate plan.json other.run.json
# and runs whose verification failed
sed 's/"mismatched": 0/"mismatched": 3/' run.json >wrong.run.json
"$STW_SEAL" wrong.run.json
expect 8 "verification failed" "$STOWAGE" validate plan.json wrong.run.json
"$STOWAGE" run plan.json --steps 1 -o one.run.json >one.txt || fail "one step"
grep -q "first and only" one.txt || fail "the only step has no time"
echo "main job: ok"
