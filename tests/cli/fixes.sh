#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Changes that make a plan fit: each, pasted, gives the verdict and the seconds that are told beside
# it; those that fit come before those at risk. A disk and buffers that are not page-locked are among
# them.
set -eu

# check ARGUMENTS: every fix of this plan
check() {
    "$STOWAGE" plan -q -o plan.json "$@" > /dev/null 2>&1 || [ $? = 4 ]
    python3 - "$@" << 'EOF'
import json, os, subprocess, sys

plan = json.load(open("plan.json"))
fixes = plan["infeasible"]["fixes"]
assert fixes, "no fixes"
risky = [f["at_risk"] for f in fixes]
assert risky == sorted(risky), "at risk before what fits"
for fix in fixes:
    options = []
    for c in fix["changes"]:
        options += ["--set", c["set"] + "=" + c["value"]]
    subprocess.run([os.environ["STOWAGE"], "plan", "-q", "-o", "fixed.json", *sys.argv[1:], *options],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    fixed = json.load(open("fixed.json"))
    verdict = "at_risk" if fix["at_risk"] else "fits"
    assert fixed["verdict"] == verdict, (options, verdict, fixed["verdict"])
    subprocess.run([os.environ["STOWAGE"], "report", "-q", "fixed.json", "-o", "fixed.csv"],
                   stdout=subprocess.DEVNULL)
    seconds = [float(line.split(",")[5]) for line in open("fixed.csv")
               if ",headline,,,iteration," in line]
    assert seconds and abs(seconds[0] - fix["iteration_s"]) <= 0.001 * seconds[0], \
        (options, seconds, fix["iteration_s"])
with open("fixes", "a") as f:
    f.write("".join(c["set"] + "=" + c["value"] + "\n" for fix in fixes for c in fix["changes"]))
EOF
}

: > fixes
check -m Qwen3-1.7B -c h100-80g-x1 --set node.gpu.memory=12GiB --set node.host.memory=64GiB \
    --set node.host.limit=8GiB --set node.nvme.capacity=0 --set batch.seq_len=512
grep -q '^node.host.limit=' fixes
grep -q '^node.nvme.capacity=' fixes
grep -q '^nodes=' fixes
check -m Qwen3-14B -c h100-80g-x4 --set engine=deepspeed --set deepspeed.zero_stage=3 \
    --set deepspeed.offload_optimizer=cpu --set node.host.page_lock_limit=20GiB
grep -q '^deepspeed.pin_memory=false' fixes
grep -q '^node.host.page_lock_limit=' fixes
check -m Qwen3-8B -c h100-80g-x4 --set engine=megatron --set node.gpu.memory=39.3GiB \
    --set megatron.transformer_impl=transformer_engine --set batch.seq_len=8192
grep -q '^parallel.tp=' fixes
