#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for layouts that are faster than what `parallel: auto` chooses, by the simulator's seconds: random values
of every key that the engine searches, for the same model, cluster and tokens of a step. Every second one changes
just one to three keys of the chosen layout.

Usage: bench/layouts_rivals.py STOWAGE [--cases N,N] [--plans N] [--seed N] [--jobs N] [--csv FILE] [--only KEY,KEY]

A rival counts where it fits without risk (or where the searched plan does not). `--only` draws these keys alone
and leaves the others as the search has chosen them. Prints each offender as a command; exit 1 where a rival is
more than 0.5% faster, which is what a search gives up for a plainer layout."""
import argparse
import concurrent.futures
import csv
import json
import random
import re
import shlex
import subprocess
import sys

# model, cluster, nodes, engine, tokens of a sequence, sequences of a step
CASES = [
    ("Qwen3-8B", "h100-80g-x8", 1, "stowage", 8192, 32),
    ("Qwen3-8B", "h100-80g-x8", 1, "megatron", 8192, 16),
    ("Qwen3-8B", "h100-80g-x8", 1, "fsdp2", 8192, 32),
    ("Qwen3-8B", "h100-80g-x8", 1, "deepspeed", 8192, 32),
    ("Qwen3-30B-A3B", "h100-80g-x8", 4, "stowage", 4096, 256),
    ("Qwen3-30B-A3B", "h100-80g-x8", 4, "megatron", 4096, 256),
    ("Llama-3.1-70B", "h100-80g-x8", 8, "megatron", 8192, 128),
    ("Llama-3.1-70B", "h200-x8", 8, "fsdp2", 8192, 64),
    ("Qwen3-32B", "a100-80g-x8", 4, "fsdp2", 16384, 64),
    ("Qwen3-235B-A22B", "h200-x8", 16, "megatron", 4096, 512),
    ("gpt-oss-120b", "h200-x8", 4, "stowage", 4096, 128),
    ("DeepSeek-V2-Lite", "a100-80g-x8", 2, "megatron", 4096, 128),
    ("Qwen3-Next-80B-A3B", "b200-x8", 2, "megatron", 8192, 64),
    ("Llama-3.1-8B", "a100-80g-x8", 2, "deepspeed", 8192, 64),
]
WAYS = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate")
DRAWN = {
    "stowage": ("cp", "ep", "dp_replicate", "fsdp.reshard_after_forward", "fsdp.reshard_to_node", "loss.fused"),
    "fsdp2": ("tp", "parallel.sequence_parallel", "cp", "ep", "dp_replicate", "fsdp.reshard_after_forward",
              "fsdp.reshard_to_node", "loss.fused"),
    "megatron": ("tp", "parallel.sequence_parallel", "pp", "vpp", "cp", "ep", "etp"),
    "deepspeed": ("deepspeed.zero_stage", "loss.fused"),
}
SLACK = 0.005


def plan(stowage, case, settings):
    model, cluster, nodes, engine, seq_len, sequences = case
    command = [stowage, "plan", "-m", model, "-c", cluster, "--json", "-q", "--time-limit", "120"]
    for setting in [f"nodes={nodes}", f"engine={engine}", f"batch.seq_len={seq_len}",
                    f"batch.tokens_per_step={seq_len * sequences}"] + settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    proposed = re.search(r"unequal stages: megatron.pipeline_layout \('([^']+)'\)", done.stderr)
    if proposed and "pipeline_layout" not in " ".join(settings):
        return plan(stowage, case, settings + [f"megatron.pipeline_layout={proposed[1]}"])
    if done.returncode not in (0, 3, 4, 7, 9):
        print(f"exit {done.returncode}: {shlex.join(command)}: {done.stderr.strip()}", file=sys.stderr)
    if done.returncode not in (0, 4, 9):
        return None
    answer = json.loads(done.stdout)
    return {"verdict": answer["verdict"], "s": answer["time_s"]["iteration"], "layouts": answer.get("layouts"),
            "command": shlex.join(c for c in command if c not in ("--json", "-q"))}


def value_of(key, rng, nodes):
    if key == "deepspeed.zero_stage":
        return rng.choice([1, 2, 3])
    if key not in WAYS:
        return rng.choice(["true", "false"])
    most = {"tp": 8, "etp": 8, "vpp": 8}.get(key, 8 * nodes)
    values = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
    if key in ("vpp", "pp"):
        values += [v for v in (3, 5, 6, 12) if v <= most]
    return rng.choice(values if rng.random() < 0.6 else [1])


def draw(case, rng, only, chosen):
    keys = DRAWN[case[3]] + ("micro_batch",)
    if not only and rng.random() < 0.5:
        only = rng.sample(keys, rng.choice([1, 2, 2, 3]))
    values = {k: v for k, v in chosen.items() if k != "megatron.pipeline_layout"} if only else {}
    for key in keys:
        if key == "micro_batch" and (not only or key in only):
            values["batch.micro_batch"] = rng.choice([1, 1, 2, 4, 8])
        elif not only or key in only:
            values["parallel." + key if key in WAYS else key] = value_of(key, rng, case[2])
    if str(values.get("parallel.tp", 1)) == "1":
        values.pop("parallel.sequence_parallel", None)
    ways = 1
    for key in ("tp", "pp", "cp"):
        ways *= int(values.get("parallel." + key, 1))
    once = 8 * case[2] // ways * int(values.get("batch.micro_batch", 1)) if ways <= 8 * case[2] else 0
    if once == 0 or 8 * case[2] % ways != 0 or case[5] % once != 0:
        return None
    values["batch.grad_accumulation"] = case[5] // once
    return [f"{k}={v}" for k, v in values.items()]


def rivals(arguments, number, pool):
    case = CASES[number]
    rng = random.Random(f"{arguments.seed}/{number}")
    found = plan(arguments.stowage, case, ["parallel=auto"])
    rows, seen = [], set()
    if found is None:
        return rows
    best = found["layouts"]["best"][0]["settings"]
    chosen = dict(word.split("=", 1) for word in best.split())
    only = arguments.only.split(",") if arguments.only else None
    tries = 0
    while len(rows) < arguments.plans and tries < 60 * arguments.plans:
        batch = []
        while len(batch) < arguments.jobs and tries < 60 * arguments.plans:
            tries += 1
            settings = draw(case, rng, only, chosen)
            if settings is not None and tuple(sorted(settings)) not in seen:
                seen.add(tuple(sorted(settings)))
                batch.append(settings)
        for settings, rival in zip(batch, pool.map(lambda s: plan(arguments.stowage, case, s), batch)):
            if rival is not None and len(rows) < arguments.plans:
                counts = rival["verdict"] == "fits" or rival["verdict"] == found["verdict"]
                gain = found["s"] / rival["s"] - 1 if counts and rival["s"] and found["s"] else None
                rows.append([number, *case, found["verdict"], found["s"], best, " ".join(settings), rival["verdict"],
                             rival["s"], gain, rival["command"]])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stowage")
    parser.add_argument("--cases", help="numbers of the list, from 0")
    parser.add_argument("--plans", type=int, default=20, help="rivals of a case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="keys to draw, such as tp,loss.fused")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    wanted = [int(n) for n in arguments.cases.split(",")] if arguments.cases else range(len(CASES))
    rows, bad = [], 0
    print("| model | GPUs | engine | searched | s | rivals | fit | fastest rival | s |")
    print("|---|---|---|---|--:|--:|--:|---|--:|")
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for number in wanted:
            some = rivals(arguments, number, pool)
            rows += some
            fit = sorted((r for r in some if r[13] is not None), key=lambda r: r[12])
            model, cluster, nodes, engine = CASES[number][:4]
            head = some[0] if some else [""] * 15
            print(f"| {model} | {nodes} x {cluster} | {engine} | {head[9] or 'its own'} | "
                  f"{head[8] and format(head[8], '.4f')} | {len(some)} | {len(fit)} | {fit[0][10] if fit else ''} | "
                  f"{format(fit[0][12], '.4f') if fit else ''} |", flush=True)
            for row in fit:
                if row[13] > SLACK:
                    bad += 1
                    print(f"  {100 * row[13]:.2f}% faster: {row[14]}", file=sys.stderr, flush=True)
    if arguments.csv:
        with open(arguments.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
