#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What stowage predicts for cases of rl_torch.py, before they are run, and the errors afterwards.

    rl_rows.py predict CASES.jsonl CLUSTER > predicted.jsonl     CLUSTER: h200-x1, h200-x2 or a file, by the case's GPUs: {}
    rl_rows.py compare predicted.jsonl rows.jsonl

CLUSTER may contain {}, which becomes the number of GPUs of a case. STOWAGE names the program (default:
build/bin/stowage). Bytes in GiB of the worst rank; host bytes are the growth since the process began.

The step is the third one of a run: torch's host allocator has the blocks of page-locked copies by then. Left out
are bytes below 0.5 GiB (the process itself grows by 0.1 GiB); the host in steps of cases that save, whose runs
save after all steps, while a plan has what a first save leaves; and the host in steps with offload, where
gradients did not come from the GPU (rows without "gradients_from_gpu")."""
import json
import os
import statistics
import subprocess
import sys

LEAST = 0.5  # GiB
STOWAGE = os.environ.get("STOWAGE", "build/bin/stowage")
GIB = 1 << 30
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
# of others than the trainer, or of no tensor
OUTSIDE = ("context", "comm", "slack", "kv_cache", "rollout_weights", "rollout_work", "role_process", "process")
FORMATS = {"dcp": ("dcp", "false"), "dcp_async": ("dcp", "true"), "hf": ("hf", "false")}


def settings(case):
    dtype = DTYPES[case.get("params", "float32")]
    keys = {"engine": "fsdp2", "batch.seq_len": 512, "recompute.granularity": "full", "load.method": "sharded_read",
            "precision.params": dtype, "precision.exp_avg": dtype, "precision.exp_avg_sq": dtype, "precision.grads": dtype,
            "optimizer.implementation": "fused" if case.get("fused", True) else "foreach", "optimizer.clip_norm": "none"}
    if case.get("offload"):
        keys["fsdp.offload_policy"] = "true"
        keys["optimizer.cpu_threads"] = case.get("threads", 16)
    for what in case.get("park", []):
        keys[f"park.{what}"] = "host"
    if case.get("sync"):
        keys["weight_sync.method"] = case["sync"]
        # small, and asleep without copies on the host: the figures are the trainer's
        keys["roles"] = ("[{name: rollout, update_bucket: %d MiB, gpu_memory_utilization: 0.35, max_model_len: 2048, "
                         "enforce_eager: true, sleep_level: 2}]" % case.get("bucket", 512))
    if case.get("save"):
        keys["checkpoint.every"] = 10
        keys["checkpoint.format"], keys["checkpoint.async"] = FORMATS[case["save"]]
        if case["save"] == "hf":
            keys["checkpoint.contents"] = "[model]"
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


def of_trainer(components):
    return sum(n for name, n in components.items() if name not in OUTSIDE) / GIB


def predict(cases, cluster):
    for line in open(cases, encoding="utf-8"):
        case = json.loads(line)
        gpus = case.get("gpus", 1)
        command = [STOWAGE, "plan", "--json", "--model", model_of(case), "--cluster", cluster.replace("{}", str(gpus))]
        for key, value in settings(case).items():
            command += ["--set", f"{key}={value}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            print(f"{case['name']}: {done.stderr.strip()[-300:]}", file=sys.stderr)
            continue
        plan = json.loads(done.stdout)
        gpu = lambda phase: max(of_trainer(r["phases"][phase]["components"]) for r in plan["ranks"])
        host = lambda phase: max(of_trainer(r["phases"][phase]["host"]["components"]) for r in plan["ranks"])
        locked = lambda phase: plan["nodes"][0]["phases"][phase].get("page_locked", 0) / GIB / gpus
        out = {"name": case["name"], "settings": settings(case), "step_gpu": gpu("optimizer_step"),
               "step_host": host("optimizer_step"), "step_locked": locked("optimizer_step"),
               "step_s": plan["time_s"]["optimizer_step"]}
        if case.get("sync"):
            out.update(sync_gpu=gpu("weight_sync"), sync_s=plan["time_s"]["weight_sync"])
        if case.get("save"):
            out.update(save_gpu=gpu("checkpoint"), save_host=host("checkpoint"), save_locked=locked("checkpoint"))
        print(json.dumps(out))


def measured(row):
    case, phases, seconds = row["case"], row["phases"], row["seconds"]
    most = lambda what, *names: max(phases[n][what] for n in names if n in phases)
    growth = lambda *names: most("host_hwm", *names) - phases["start"]["rss"]
    last = ("moments_back2", "step2", "leave2")
    out = {"step_gpu": most("peak_alloc", *last), "step_host": growth(*last), "step_locked": most("pinned_peak", *last),
           "step_s": sum(seconds[n] for n in last if n in seconds)}
    if case.get("sync"):
        around = ("before_sync", "sync", "after_sync")
        out.update(sync_gpu=most("peak_alloc", *around), sync_s=sum(seconds[n] for n in around))
    if case.get("save"):
        around = ("before_save", "stage", "save")
        out.update(save_gpu=most("peak_alloc", *around), save_host=growth(*around), save_locked=most("pinned_peak", *around))
    return out


def comparable(row):
    """The measured figures that have a counterpart in a plan."""
    case = row["case"]
    other_host = case.get("save") or case.get("offload") and not row.get("gradients_from_gpu")
    return {name: value for name, value in measured(row).items()
            if (name.endswith("_s") or value >= LEAST) and not (other_host and name in ("step_host", "step_locked"))}


def compare(predicted, rows):
    truth = {r["case"]["name"]: comparable(r) for r in map(json.loads, open(rows, encoding="utf-8"))}
    errors = {}
    for line in open(predicted, encoding="utf-8"):
        guess = json.loads(line)
        for figure, value in truth.get(guess["name"], {}).items():
            error = guess[figure] / value - 1
            errors.setdefault(figure, []).append(abs(error))
            print(f"{guess['name']:24} {figure:12} {guess[figure]:10.4f} {value:10.4f} {100 * error:+7.2f}%")
    for figure, all_errors in errors.items():
        print(f"{figure}: {len(all_errors)} rows, median {100 * statistics.median(all_errors):.2f}%, "
              f"worst {100 * max(all_errors):.2f}%")


if len(sys.argv) == 4 and sys.argv[1] == "predict":
    predict(sys.argv[2], sys.argv[3])
elif len(sys.argv) == 4 and sys.argv[1] == "compare":
    compare(sys.argv[2], sys.argv[3])
else:
    sys.exit(__doc__)
