#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Published layouts against searched ones: the bf16 pre-training recipes of NVIDIA Megatron-Bridge
(scripts/performance/configs/*/*_workload_base_configs.py; facts alone: GPUs, global batch, ways), and
what `parallel: auto` chooses for the same model, GPUs and tokens of a step. Both are predictions of
this version: the table says what the search believes, not what was measured.

Usage: bench/layouts_recipes.py STOWAGE [--out FILE.csv] [--only N,N]"""
import argparse
import csv
import json
import subprocess
import sys
import time

# model, cluster, nodes, sequences of a step, tokens of one, {way: value}, further settings
STAGES = ["megatron.account_for_embedding=true", "megatron.account_for_loss=true"]
RECIPES = [
    ("Llama-3.1-8B", "h100-80g-x8", 1, 128, 8192, {"cp": 2}, []),
    ("Llama-3.1-70B", "h100-80g-x8", 8, 128, 8192, {"tp": 4, "pp": 4, "cp": 2, "vpp": 5}, []),
    ("Llama-3.1-405B", "h100-80g-x8", 128, 512, 8192, {"tp": 8, "pp": 8, "cp": 2, "vpp": 8},
     STAGES),
    ("Qwen3-30B-A3B", "h100-80g-x8", 2, 1024, 4096, {"ep": 16}, []),
    ("Qwen3-235B-A22B", "h100-80g-x8", 32, 2048, 4096, {"tp": 2, "pp": 8, "vpp": 4, "ep": 32},
     STAGES),
    ("Qwen3-Next-80B-A3B", "h100-80g-x8", 16, 1024, 4096, {"ep": 128}, []),
    ("gpt-oss-120b", "h100-80g-x8", 8, 512, 4096, {"pp": 4, "ep": 8},
     ["recompute.granularity=selective", "recompute.modules=[layernorm, moe_act]"]),
    ("DeepSeek-V3", "h100-80g-x8", 128, 8192, 4096, {"tp": 2, "pp": 8, "vpp": 4, "ep": 64},
     ["megatron.pipeline_layout=Et|(tt|)*30L", "recompute.granularity=selective",
      "recompute.modules=[mla_up_proj, mlp]"]),
    ("Llama-3.1-70B", "b200-x8", 8, 128, 8192, {"tp": 2, "pp": 4, "cp": 2, "vpp": 5}, []),
    ("Qwen3-30B-A3B", "b200-x8", 1, 512, 4096, {"ep": 8}, []),
    ("Qwen3-235B-A22B", "b200-x8", 8, 1024, 4096, {"pp": 8, "vpp": 4, "ep": 8}, STAGES),
]
COMMON = ["engine=megatron", "megatron.transformer_impl=transformer_engine",
          "megatron.overlap_grad_reduce=true", "megatron.overlap_param_gather=true",
          "megatron.cross_entropy_fusion=true", "megatron.cross_entropy_fusion_impl=te"]
FIELDS = ["model", "cluster", "nodes", "sequences", "seq_len", "recipe", "recipe_verdict",
          "recipe_s", "recipe_gpu_gib", "auto", "auto_verdict", "auto_s", "auto_gpu_gib",
          "admitted", "planned", "search_s", "faster_at_risk"]


def plan(stowage, model, cluster, nodes, settings):
    command = [stowage, "plan", "-m", model, "-c", cluster, "--set", f"nodes={nodes}", "--json",
               "--time-limit", "120"]  # so that the answer does not depend on the clock
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 4, 9):
        print(" ".join(command), done.stderr, file=sys.stderr)
        return None
    return json.loads(done.stdout)


def gib(plan_):
    return f"{plan_['peaks']['gpu_bytes']['peak'] / 2**30:.1f}" if plan_ else ""


def compare(stowage, recipe):
    model, cluster, nodes, sequences, seq_len, ways, more = recipe
    experts = any(word in model for word in ("A3B", "A22B", "oss", "DeepSeek"))
    common = COMMON + (["megatron.grouped_gemm=true"] if experts else [])
    common += [f"batch.seq_len={seq_len}"]
    ranks = nodes * 8 // (ways.get("tp", 1) * ways.get("pp", 1) * ways.get("cp", 1))
    fixed = [f"parallel.{k}={v}" for k, v in ways.items()] + more
    fixed += [f"batch.grad_accumulation={sequences // ranks}"]
    fixed += ["parallel.sequence_parallel=true"] if ways.get("tp", 1) > 1 else []
    fixed += [] if any("recompute" in m for m in more) else ["placement.activations=keep"]
    published = plan(stowage, model, cluster, nodes, common + fixed)
    start = time.monotonic()
    found = plan(stowage, model, cluster, nodes, common + [
        "parallel=auto", f"batch.tokens_per_step={sequences * seq_len}"])
    seconds = time.monotonic() - start
    row = dict.fromkeys(FIELDS, "")
    row.update(model=model, cluster=cluster, nodes=nodes, sequences=sequences, seq_len=seq_len,
               recipe=" ".join(f"{k} {v}" for k, v in ways.items()), search_s=f"{seconds:.1f}",
               recipe_gpu_gib=gib(published), auto_gpu_gib=gib(found))
    if published:
        row.update(recipe_verdict=published["verdict"],
                   recipe_s=published["time_s"]["iteration"] or "")
    if found:
        search = found["layouts"]
        best = search["best"]
        risky = [r for r in best if r["verdict"] == "at_risk" and best[0]["verdict"] == "fits"
                 and r["iteration_s"] < best[0]["iteration_s"]]
        short = [s.split(".", 1)[1].replace("=", " ") for s in best[0]["settings"].split()]
        row.update(auto=" ".join(s for s in short if not s.startswith("sequence")),
                   auto_verdict=found["verdict"], auto_s=found["time_s"]["iteration"] or "",
                   admitted=search["admitted"], planned=search["planned"],
                   faster_at_risk=min((r["iteration_s"] for r in risky), default=""))
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stowage")
    parser.add_argument("--out")
    parser.add_argument("--only", help="numbers of recipes, from 0")
    args = parser.parse_args()
    wanted = [int(n) for n in args.only.split(",")] if args.only else range(len(RECIPES))
    rows = []
    print("| model | GPUs | recipe | verdict | seconds | searched | verdict | seconds | ratio |")
    print("|---|---|---|---|--:|---|---|--:|--:|")
    for n in wanted:
        row = compare(args.stowage, RECIPES[n])
        rows.append(row)
        ratio = float(row["recipe_s"]) / float(row["auto_s"]) \
            if row["recipe_s"] and row["auto_s"] else None
        print(f"| {row['model']} | {row['nodes']} x {row['cluster']} | {row['recipe']} | "
              f"{row['recipe_verdict']} | {row['recipe_s'] and format(row['recipe_s'], '.2f')} | "
              f"{row['auto']} | {row['auto_verdict']} | "
              f"{row['auto_s'] and format(row['auto_s'], '.2f')} | "
              f"{format(ratio, '.2f') if ratio else ''} |", flush=True)
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
