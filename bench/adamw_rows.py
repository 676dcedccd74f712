#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What stowage predicts for cases of adamw_torch.py, before they are run, and the errors afterwards.

    adamw_torch.py --list ... > cases.jsonl
    adamw_rows.py --predict cases.jsonl --cluster h200-x2 [--set KEY=VALUE ...] > predicted.csv
    adamw_rows.py --compare rows.jsonl predicted.csv

--cluster is a preset or a file with as many GPUs as the cases have ranks. Each case is planned by `stowage
plan`, and the figures are those of `stowage simulate` of that plan: bytes of the worst rank by phase, seconds.
Cases of optimizers that are no keys of a run (layers, offload_adam, torchao, deepspeed) are left out. STOWAGE
names the program (default: build/bin/stowage).

Exposed seconds are what an iteration takes more than that of `none` with the same tokens and
checkpoints; forward and backward are compared where nothing is hidden behind them."""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

from adamw_job import facts_of

STOWAGE = os.environ.get("STOWAGE", "build/bin/stowage")
GIB = 1 << 30
CASE = ["model", "layers", "gpus", "state", "chunked_loss", "variant", "checkpoint", "sequence",
        "tokens", "clip", "tiny"]
FIGURES = ["forward_backward_allocated", "forward_backward_reserved", "step_allocated",
           "step_reserved", "first_step_allocated", "device", "host_state", "host",
           "forward_backward_s", "exposed_s", "iteration_s"]
PLANNED = ["none", "torch", "resident", "after", "hidden", "hidden_bf16"]
RING = {"prefetch.depth": 3, "prefetch.bucket": f"{(1 << 27) // 3 >> 10} KiB"}  # the class's own


def settings(case):
    """A case as keys of run.yaml. `none` is planned as `after`, whose ring is taken off."""
    name, wide = case["variant"], case["state"] == "fp32"
    dtype = "fp32" if wide else "bf16"
    keys = {"engine": "fsdp2", "batch.seq_len": case["sequence"],
            "batch.micro_batch": case["tokens"] // case["sequence"], "attention": "sdpa",
            "recompute.granularity": "full" if case["checkpoint"] else "none",
            "precision.params": dtype, "precision.grads": dtype,
            "optimizer.clip_norm": case["clip"] or "none"}
    if case["chunked_loss"]:
        keys.update({"loss.checkpoint": "true", "loss.chunk": case["sequence"]})
    if name == "torch":
        keys.update({"optimizer.implementation": "fused", "precision.exp_avg": dtype,
                     "precision.exp_avg_sq": dtype})
        return keys
    keys.update({"optimizer.implementation": "stowage", **RING,
                 "update.resident" if name == "resident" else "update.stream": 1})
    if not wide:
        keys["precision.master"] = "fp32"
    if name == "hidden_bf16":
        keys.update({"precision.exp_avg": "bf16", "precision.exp_avg_sq": "bf16"})
    if name.startswith("hidden"):
        keys["optimizer.overlap"] = "true"
    return keys


def planned(case, cluster, extra, folder):
    config, plan = os.path.join(folder, "config.json"), os.path.join(folder, "plan.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump(facts_of(case["model"], case["layers"], case["tiny"]), file)
    command = [STOWAGE, "plan", "-q", "--model", config, "--cluster", cluster, "-o", plan]
    for key, value in settings(case).items():
        command += ["--set", f"{key}={value}"]
    for word in extra:
        command += ["--set", word]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not os.path.exists(plan):
        raise ValueError(done.stderr.strip()[-300:])
    done = subprocess.run([STOWAGE, "simulate", "--json", plan], capture_output=True, text=True,
                          check=False)
    os.unlink(plan)
    if not done.stdout.startswith("{"):
        raise ValueError(done.stderr.strip()[-300:])
    return json.loads(done.stdout)


def predicted(case, plan):
    ranks = [r["phases"] for r in plan["ranks"]]
    out = {}
    for ours, theirs in [("forward_backward", "forward_backward"), ("step", "optimizer_step"),
                         ("first_step", "first_optimizer_step")]:
        for figure in ["allocated", "reserved"]:
            out[f"{ours}_{figure}"] = max(r[theirs][figure] for r in ranks)
    hosts = [p for n in plan["nodes"] for p in n["phases"].values()]
    out.update(device=max(p["device"] for r in ranks for p in r.values()),
               host_state=max(p.get("page_locked", 0) for p in hosts) // case["gpus"],
               host=max(p["host"] for p in hosts) // case["gpus"],
               forward_backward_s=plan["time_s"]["forward_backward"],
               exposed_s=plan["time_s"]["optimizer_step"], iteration_s=plan["time_s"]["iteration"])
    if case["variant"] == "none":
        ring = max(r["forward_backward"]["components"].get("stage", 0) for r in ranks)
        out = {"forward_backward_allocated": out["forward_backward_allocated"] - ring,
               "forward_backward_s": out["forward_backward_s"]}
    return {k: v for k, v in out.items() if k in FIGURES}


def predict(cases, cluster, extra):
    out = csv.DictWriter(sys.stdout, CASE + FIGURES, lineterminator="\n")
    out.writeheader()
    with open(cases, encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        for case in map(json.loads, file):
            if case["variant"] not in PLANNED:
                print(f"{case['variant']}: no plan", file=sys.stderr)
                continue
            try:
                figures = predicted(case, planned(case, cluster, extra, folder))
            except ValueError as error:
                print(f"{key_of(case)}: {error}", file=sys.stderr)
                continue
            out.writerow({**{c: case[c] for c in CASE}, **figures})
            sys.stdout.flush()


def key_of(row):
    """The same for a row of JSON and of CSV."""
    return " ".join("-" if row[c] in (None, "") else str(row[c]) for c in CASE)


def measured(row, bases):
    """The figures of a row, by the names of predicted()."""
    most = lambda figure: max(row[f"forward_{figure}"], row[f"backward_{figure}"])
    out = {"forward_backward_allocated": most("allocated"),
           "forward_backward_reserved": most("reserved"), "step_allocated": row["step_allocated"],
           "step_reserved": row["step_reserved"],
           "first_step_allocated": row["first_step_allocated"], "device": row["gpu_used"],
           "host_state": row.get("state_host", 0), "host": row["host_rss"],
           "iteration_s": row["iteration_s"]}
    if not row["variant"].startswith("hidden"):
        out["forward_backward_s"] = row["forward_s"] + row["backward_s"]
    base = bases.get(key_of({**row, "variant": "none"}))
    if base is not None:
        out["exposed_s"] = row["iteration_s"] - base
    return {k: v for k, v in out.items() if v}


def compare(rows, predictions):
    with open(predictions, encoding="utf-8") as file:
        guesses = {key_of(row): row for row in csv.DictReader(file)}
    with open(rows, encoding="utf-8") as file:
        truth = [row for row in map(json.loads, file) if "error" not in row]
    bases = {key_of(r): r["iteration_s"] for r in truth if r["variant"] == "none"}
    errors = {}
    for row in truth:
        guess = guesses.get(key_of(row))
        if guess is None:
            continue
        name = (f"{row['model']} x {row['gpus']} {row['state']} {row['variant']} {row['tokens']} "
                f"{'checkpointed' if row['checkpoint'] else 'kept'}")
        for figure, value in measured(row, bases).items():
            if not guess[figure]:
                continue
            unit = 1 if figure.endswith("_s") else GIB
            error = float(guess[figure]) / value - 1
            errors.setdefault(figure, []).append(error)
            print(f"{name:48} {figure:27} {float(guess[figure]) / unit:9.3f} {value / unit:9.3f} "
                  f"{100 * error:+7.2f}%")
    for figure, found in errors.items():
        print(f"{figure}: {len(found)} rows, median {100 * statistics.median(map(abs, found)):.2f}%"
              f", worst {100 * max(found, key=abs):+.2f}%")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", metavar="CASES.jsonl")
    parser.add_argument("--cluster")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--compare", nargs=2, metavar=("ROWS.jsonl", "PREDICTED.csv"))
    options = parser.parse_args()
    if options.compare:
        compare(*options.compare)
    elif options.predict and options.cluster:
        predict(options.predict, options.cluster, options.set)
    else:
        parser.error("--predict with --cluster, or --compare")


if __name__ == "__main__":
    main()
