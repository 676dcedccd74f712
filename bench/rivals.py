#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for plans that are better than the planner's own, by the simulator's seconds.

    rivals.py forced   [--instances N] [--plans N] [--seed N] [--jobs N] [--csv FILE]
    rivals.py monotone [--instances N] [--steps N] [--seed N] [--jobs N] [--csv FILE]

STOWAGE names the program. `forced` plans instances drawn at random (model, cluster, memory, length) and
then the same instances with keys that force placements, shares, policies or rings: none should be
faster. Plans that fill the GPU beyond placement.gpu_fill, because nothing else fits, do not count:
the others may not. `monotone` gives an instance more GPU memory, host memory (1 GiB steps) or bandwidth (5%
steps): the iteration should never get slower. Prints each offender as a command; exit 1 where a forced
plan is more than 1% faster, or more resources make a plan more than 0.5% slower.
"""

import argparse
import concurrent.futures
import csv
import json
import os
import random
import subprocess
import sys

STOWAGE = os.environ.get("STOWAGE", "stowage")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLUSTERS = {  # GPU memory limits tried, GiB; GPUs
    "h200-x1": ((14, 139), 1),
    "h200-x2": ((14, 139), 2),
    "h200-x4": ((20, 139), 4),
    "h100-80g-x8": ((20, 79), 8),
    "p4d.24xlarge": ((14, 39), 8),
    "g6e.48xlarge": ((14, 44), 8),
}
MODELS = {  # worth a plan there
    "h200-x1": ["GPT-2", "Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Llama-3.1-8B", "Qwen2.5-7B"],
    "h200-x2": ["Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Mistral-7B-v0.3", "Phi-4", "Qwen2.5-VL-7B-Instruct"],
    "h200-x4": ["Qwen3-4B", "Qwen3-8B", "Phi-4", "Gemma-3-27b", "Qwen3-30B-A3B", "Qwen3-32B", "OLMo-2-7B"],
    "h100-80g-x8": ["Qwen3-8B", "Phi-4", "Qwen3-32B", "Qwen3-30B-A3B", "Mixtral-8x7B", "Qwen2.5-VL-32B-Instruct",
                    "Llama-3.1-8B", "Gemma-3-27b"],
    "p4d.24xlarge": ["Qwen3-4B", "Qwen3-8B", "Llama-3.1-8B", "Phi-4", "Qwen3-30B-A3B"],
    "g6e.48xlarge": ["Qwen3-4B", "Qwen2.5-7B", "Phi-4", "Qwen3-30B-A3B"],
}
GAIN, LOSS = 0.01, 0.005


def plan(settings):
    """Seconds of one simulated iteration, outcome, share of the GPU; None where the plan is refused or does not fit."""
    command = [STOWAGE, "plan", "--json"]
    for key, value in settings:
        command += ["--" + key, value] if key in ("model", "cluster") else ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3, 4, 7, 9):
        print(f"exit {done.returncode}: {words(settings)}: {done.stderr.strip()}", file=sys.stderr)
    if done.returncode not in (0, 9):
        return None
    answer = json.loads(done.stdout)
    time_s = answer["time_s"]
    repeats = int(dict(settings).get("batch.grad_accumulation", 1))
    forward = time_s.get("forward_backward") or 0
    full = answer["peaks"]["gpu_bytes"]["peak"] / answer["cluster"]["node"]["gpu"]["memory"]
    return forward * repeats + time_s["optimizer_step"], answer["outcome"], full


def words(settings):
    out = "stowage plan"
    for key, value in settings:
        flag = f"--{key} {value}" if key in ("model", "cluster") else f"--set {key}={value}"
        out += " " + (flag if " " not in str(value) else f'--set "{key}={value}"')
    return out


def instance(rng):
    cluster = rng.choice(list(CLUSTERS))
    (least, most), gpus = CLUSTERS[cluster]
    file = os.path.join(ROOT, "models", "examples", cluster + ".yaml")
    settings = [("model", rng.choice(MODELS[cluster])),
                ("cluster", file if os.path.exists(file) else cluster)]
    if CLUSTERS[cluster][1] == 8:
        settings.append(("nodes", str(rng.choice([1, 1, 2, 4]))))
    settings.append(("node.gpu.memory", f"{rng.randint(least, most)} GiB"))
    settings.append(("batch.seq_len", str(rng.choice([1024, 2048, 4096, 8192, 32768]))))
    if rng.random() < 0.3:
        settings.append(("batch.grad_accumulation", str(rng.choice([2, 4]))))
    if rng.random() < 0.3:
        settings += [("precision.params", "bf16"), ("precision.grads", "bf16"), ("precision.master", "fp32")]
    if rng.random() < 0.25:
        settings.append(("loss.fused", "true"))
    if rng.random() < 0.2:
        settings.append(("engine", "fsdp2"))
    if gpus > 1 and rng.random() < 0.4:
        settings.append(("parallel.dp_replicate", str(rng.choice([2, gpus // 2]))))
    elif gpus > 2 and rng.random() < 0.2:
        settings.append(("parallel.cp", "2"))
    if "A3B" in settings[0][1] and rng.random() < 0.4:
        settings.append(("parallel.ep", str(gpus)))
    if rng.random() < 0.1:
        settings.append(("placement.gpu_fill", rng.choice(["0.9", "1"])))
    return settings


def force(rng, given):
    """Keys that force a part of the plan."""
    out = []
    whole = dict(given).get("engine") == "fsdp2"  # there, params on the host are a policy of the framework, taken on request
    if rng.random() < 0.4:
        out.append(("placement.params", rng.choice(["gpu", "gpu" if whole else "host"])))
    if rng.random() < 0.4:
        out.append(("placement.grads", rng.choice(["gpu", "gpu" if whole else "host"])))
    if rng.random() < 0.4:
        out.append(("placement.moments", rng.choice(["gpu", "host"])))
    if rng.random() < 0.5:
        out.append(rng.choice([("placement.activations", w) for w in ("keep", "recompute", "offload")] +
                              [("recompute.granularity", w) for w in ("none", "full")]))
    if rng.random() < 0.5 and not whole:
        kind = rng.choice(["update.cpu", "update.stream", "update.resident"])
        out.append((kind, str(round(rng.choice([0, 0, 1, rng.random()]), 4))))
    if rng.random() < 0.25:
        out.append(("prefetch.depth", str(rng.choice([1, 2, 3, 4]))))
    if rng.random() < 0.15 and not whole:
        out.append(("prefetch.bucket", f"{rng.choice([4, 8, 16, 32])} MiB"))
    return out or force(rng, given)


def feasible_instances(rng, n, pool):
    found, tried = [], 0
    while len(found) < n and tried < 40 * n:
        batch = [instance(rng) for _ in range(8)]
        tried += len(batch)
        for settings, answer in zip(batch, pool.map(plan, batch)):
            if answer is not None and answer[1] == "optimal" and len(found) < n:
                found.append((settings, answer))
    return found


def forced(arguments, pool):
    rng = random.Random(arguments.seed)
    rows, worst = [], []
    for number, (settings, best) in enumerate(feasible_instances(rng, arguments.instances, pool)):
        tries = [force(rng, settings) for _ in range(arguments.plans)]
        answers = list(pool.map(plan, [settings + keys for keys in tries]))
        fill = max(best[2], float(dict(settings).get("placement.gpu_fill", 0.98)))
        answers = [a if a is not None and a[2] <= fill else None for a in answers]
        for keys, answer in zip(tries, answers):
            gain = None if answer is None else best[0] / answer[0] - 1
            rows.append((number, words(settings), words(keys), best[0], answer[0] if answer else "", gain))
            if gain is not None and gain > 0:
                worst.append((gain, best[0], answer[0], words(settings), words(keys)[13:]))
        print(f"\r{number + 1} instances, {len(rows)} plans", end="", file=sys.stderr)
    print(file=sys.stderr)
    fits = [r[5] for r in rows if r[5] is not None]
    worst.sort(reverse=True)
    over = [w for w in worst if w[0] > GAIN]
    print(f"{len(rows)} forced plans of {arguments.instances} instances, {len(fits)} fit, "
          f"{len(over)} more than {100 * GAIN:g}% faster; most {100 * max(fits, default=0):.2f}%")
    for gain, before, after, case, keys in worst[:arguments.show]:
        print(f"  {100 * gain:6.2f}%  {before:.4f} s -> {after:.4f} s  {case} [{keys}]")
    return rows, not over


def monotone(arguments, pool):
    rng = random.Random(arguments.seed)
    rows, worst = [], []
    for number, (settings, start) in enumerate(feasible_instances(rng, arguments.instances, pool)):
        values = dict(settings)
        memory = int(values["node.gpu.memory"].split()[0])
        base = cluster_rates(values["cluster"])
        series = {
            "node.gpu.memory": [f"{memory + i} GiB" for i in range(arguments.steps)],
            "node.host.limit": [f"{base['limit'] // 4 + i} GiB" for i in range(arguments.steps)],
            "pcie": [1.05 ** i for i in range(arguments.steps)],
            "host": [1.05 ** i for i in range(arguments.steps)],
        }
        for what, steps in series.items():
            cases = [[s for s in settings if s[0] != what] + more_of(what, step, base) for step in steps]
            answers = list(pool.map(plan, cases))
            last = None
            for step, case, answer in zip(steps, cases, answers):
                if answer is None or answer[2] > float(values.get("placement.gpu_fill", 0.98)):
                    continue
                loss = 0 if last is None else answer[0] / last - 1
                rows.append((number, words(settings), what, step, answer[0], loss))
                if loss > 0:
                    worst.append((loss, last, answer[0], words(case), what))
                last = answer[0] if last is None else min(last, answer[0])
        print(f"\r{number + 1} instances, {len(rows)} plans", end="", file=sys.stderr)
    print(file=sys.stderr)
    worst.sort(reverse=True)
    over = [w for w in worst if w[0] > LOSS]
    print(f"{len(rows)} plans with more of one resource, {len(over)} more than {100 * LOSS:g}% slower; "
          f"most {100 * (worst[0][0] if worst else 0):.2f}%")
    for loss, before, after, case, what in worst[:arguments.show]:
        print(f"  {100 * loss:6.2f}%  {before:.4f} s -> {after:.4f} s  {what}: {case}")
    return rows, not over


def cluster_rates(name):
    """Rates in B/s and the limit of host memory in GiB, as the program reads them."""
    done = subprocess.run([STOWAGE, "plan", "--json", "--model", "GPT-2", "--cluster", name], capture_output=True, text=True, check=False)
    node = json.loads(done.stdout)["cluster"]["node"]
    pcie = {key: rate for key, rate in node["pcie"].items() if key != "latency" and rate > 0}
    host = {key: node["host"][key] for key in ("bandwidth", "dma")}
    return {"pcie": pcie, "host": host, "limit": node["host"]["limit"] >> 30}


def more_of(what, step, base):
    if what in ("pcie", "host"):
        return [(f"node.{what}.{key}", f"{rate * step / 1e9:.4f} GB/s") for key, rate in base[what].items()]
    return [(what, step)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["forced", "monotone"])
    parser.add_argument("--instances", type=int, default=60)
    parser.add_argument("--plans", type=int, default=50)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        rows, good = (forced if arguments.mode == "forced" else monotone)(arguments, pool)
    if arguments.csv:
        with open(arguments.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
