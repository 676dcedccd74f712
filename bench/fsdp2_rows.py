#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What stowage predicts for cases of fsdp2_torch.py, before they are run, and the errors afterwards.

    fsdp2_rows.py predict CASES.jsonl CLUSTER.yaml > predicted.jsonl
    fsdp2_rows.py compare predicted.jsonl rows.jsonl

STOWAGE names the program (default: build/bin/stowage). Bytes in GiB, of the worst rank."""
import json
import os
import re
import statistics
import subprocess
import sys

STOWAGE = os.environ.get("STOWAGE", "build/bin/stowage")
GIB = 1 << 30
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def settings(case, others=0):
    """A case of fsdp2_torch.py as keys of run.yaml. `others`: bytes of the GPU that torch's allocator does not have."""
    dtype = DTYPES[case.get("params", "float32")]
    keys = {"engine": "fsdp2", "batch.seq_len": case.get("seq", 2048), "batch.micro_batch": case.get("mbs", 1),
            "precision.params": dtype, "precision.exp_avg": dtype, "precision.exp_avg_sq": dtype,
            "precision.grads": dtype, "placement.activations": "recompute" if case.get("ac") else "keep",
            "optimizer.implementation": "fused" if case.get("fused", True) else "foreach"}
    if case.get("accumulate", 1) > 1:
        keys["batch.grad_accumulation"] = case["accumulate"]
        if not case.get("sync_each", True):
            keys["fsdp.sync_each_micro_batch"] = "false"
    if not case.get("reshard_between", True):
        keys["fsdp.reshard_after_backward"] = "false"
    if case.get("log_prob"):
        keys["batch.log_prob_micro_batch"] = case["log_prob"]
        keys["batch.log_prob_method"] = case.get("log_prob_method", "whole")
        keys["batch.log_prob_entropy"] = str(case.get("log_prob_entropy", False)).lower()
    if case.get("expandable"):
        keys["allocator.expandable_segments"] = "true"
    if case.get("memory_limit"):  # the device as the allocator sees it, and what others hold of it
        keys["node.gpu.memory"] = f"{int(case['memory_limit'] * GIB) + others} B"
    if case.get("gpus"):
        keys["node.gpus"] = case["gpus"]
    if not case.get("reshard", True):
        keys["fsdp.reshard_after_forward"] = "false"
    if case.get("hsdp", 1) > 1:
        keys["parallel.dp_replicate"] = case["hsdp"]
    if case.get("offload"):
        keys["fsdp.offload_policy"] = "true"
        keys["optimizer.cpu_threads"] = case.get("threads", 16)
    if case.get("streamed"):
        keys["optimizer.implementation"] = "streamed"
        keys["prefetch.depth"] = case["streamed"]
    if case.get("park"):
        keys["park.moments"] = "host"
    if case.get("lora"):
        lora = case["lora"]
        keys["trainable.lora"] = "{rank: %d, targets: [%s]}" % (lora["rank"], ", ".join(lora["targets"]))
    return keys


def model_of(case, folder="models/zoo"):
    if not case.get("layers"):
        return case["model"]
    with open(f"{folder}/{case['model']}.json", encoding="utf-8") as file:
        facts = json.load(file)
    facts["num_hidden_layers"] = case["layers"]
    path = f"/tmp/{case['model']}-{case['layers']}/config.json"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    return path


def bytes_of_others(cluster):
    """Context and communicators of a cluster file."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    text = open(cluster, encoding="utf-8").read()
    found = (re.search(rf"^ *{key}: ([0-9.]+) (\w+)", text, re.M) for key in ("context", "comm"))
    return sum(int(float(f[1]) * units[f[2]]) for f in found if f)


def predict(cases, cluster):
    for line in open(cases, encoding="utf-8"):
        case = json.loads(line)
        command = [STOWAGE, "plan", "--json", "--model", model_of(case), "--cluster", cluster]
        for key, value in settings(case, bytes_of_others(cluster)).items():
            command += ["--set", f"{key}={value}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            print(f"{case['name']}: {done.stderr.strip()[-300:]}", file=sys.stderr)
            continue
        plan = json.loads(done.stdout)
        most = lambda phase, figure: max(r["phases"][phase][figure] for r in plan["ranks"]) / GIB
        locked = max(p.get("page_locked", 0) for n in plan["nodes"] for p in n["phases"].values())
        phases = [p for p in ("log_prob", "forward_backward", "optimizer_step") if p in plan["ranks"][0]["phases"]]
        print(json.dumps({
            "name": case["name"], "settings": settings(case, bytes_of_others(cluster)),
            **{p: most(p, "allocated") for p in phases}, "reserved": max(most(p, "reserved") for p in phases),
            "page_locked": locked / GIB / plan["cluster"]["node"]["gpus"], "step_s": plan["time_s"]["optimizer_step"]}))


def measured(row):
    phases, seconds = row["phases"], row["seconds"]
    most = lambda what, *names: max(p[what] for n, p in phases.items() if n.startswith(names))
    out = {"forward_backward": most("peak_alloc", "forward1", "backward1"), "optimizer_step": most("peak_alloc", "step1"),
           "reserved": most("peak_reserved", "log_prob", "forward", "backward", "step"),
           "page_locked": most("pinned_peak", ""), "step_s": seconds["step1"]}
    if "log_prob1" in phases:
        out["log_prob"] = most("peak_alloc", "log_prob1")
    return out


def compare(predicted, rows):
    truth = {r["case"]["name"]: measured(r) for r in map(json.loads, open(rows, encoding="utf-8"))}
    errors = {}
    for line in open(predicted, encoding="utf-8"):
        guess = json.loads(line)
        for figure, value in truth.get(guess["name"], {}).items():
            if value < 0.1 and figure != "step_s":
                continue
            error = guess[figure] / value - 1
            errors.setdefault(figure, []).append(abs(error))
            print(f"{guess['name']:24} {figure:18} {guess[figure]:10.4f} {value:10.4f} {100 * error:+7.2f}%")
    for figure, all_errors in errors.items():
        print(f"{figure}: {len(all_errors)} rows, median {100 * statistics.median(all_errors):.2f}%, "
              f"worst {100 * max(all_errors):.2f}%")


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "predict":
        predict(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        compare(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
