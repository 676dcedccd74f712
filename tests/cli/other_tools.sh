#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Files for other tools: the snapshot of a plan loads in Python and its peak is the simulated one, OpenMetrics text has the
# plan's figures and passes prometheus_client's parser where that is installed; what is no plan is refused.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"

"$STOWAGE" plan --model Qwen3-4B --cluster h100-80g-x8 --set engine=fsdp2 --time-limit 5 -q -o fits.json || [ $? -eq 9 ] || fail "a plan"
code=0
"$STOWAGE" plan --model Qwen3-32B --cluster h100-80g-x8:1 --set engine=fsdp2 --time-limit 5 -q -o over.json || code=$?
[ $code -eq 4 ] || fail "a plan that does not fit"
"$STOWAGE" plan --model Qwen3-8B --cluster "2 x h100-80g-x8" --set engine=megatron --set parallel.pp=2 --set batch.grad_accumulation=4 --time-limit 5 -q -o stages.json ||
    [ $? -eq 9 ] || fail "a plan of two stages"
for plan in fits over stages; do
    code=0
    "$STOWAGE" simulate $plan.json --snapshot $plan.pickle -q >/dev/null || code=$?
    case $code in 0 | 4 | 9) ;; *) fail "snapshot of $plan" ;; esac
done
"$STOWAGE" report fits.json over.json stages.json -o plans.om || fail "OpenMetrics"
"$STOWAGE" report fits.json over.json stages.json -o plans.prom || fail "OpenMetrics as .prom"
cmp plans.om plans.prom || fail ".om and .prom differ"
rm -f sweep.json
"$STOWAGE" sweep --model Qwen3-4B --cluster h100-80g-x8 --vary nodes=1,2 --time-limit 5 -q -o sweep.json || fail "a sweep"
"$STOWAGE" report sweep.json -o sweep.om 2>said && fail "a sweep as OpenMetrics"
grep -q 'sweep.json: OpenMetrics requires plans' said || fail "$(cat said)"
"$STOWAGE" report fits.json --open 2>said && fail "--open without a page"
grep -q -e '--open: requires -o FILE.html' said || fail "$(cat said)"

cat >check.py <<'P'
import json, pickle, re
text = open("plans.om").read()
assert text.endswith("\n# EOF\n")
samples = {}
for line in text.splitlines():
    if line.startswith("#"):
        continue
    name, labels, value = re.fullmatch(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\} (\S+)', line).groups()
    assert (name, labels) not in samples, line
    samples[name, labels] = float(value)
for plan in ("fits", "over", "stages"):
    snapshot = pickle.load(open(plan + ".pickle", "rb"))
    live = peak = 0
    for event in snapshot["device_traces"][0]:
        live += event["size"] if event["action"] == "alloc" else -event["size"] if event["action"] == "free_completed" else 0
        peak = max(peak, live)
    assert live == sum(s["total_size"] for s in snapshot["segments"]), plan
    totals = [v for (n, labels), v in samples.items() if n == "stowage_plan_bytes" and f'plan="{plan}.json"' in labels and 'section="gpu_peak"' in labels and 'what="total"' in labels]
    assert peak == max(totals) > 0, (plan, peak, max(totals))
assert any(n == "stowage_plan_info" and 'verdict="does_not_fit"' in labels for n, labels in samples)
try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError:
    print("no prometheus_client: its parser is not asked")
else:
    assert sum(len(f.samples) for f in text_string_to_metric_families(text)) == len(samples)
P
python3 check.py || fail "check.py"
