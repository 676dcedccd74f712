#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does `parallel: auto` find the best of all the layouts that it says it searches?

    layouts.py [--instances N,N | --engines A,B] [--most N] [--seed N] [--jobs N] [--seconds S] [--csv FILE]

STOWAGE names the program. An instance is a model, a cluster, an engine and the tokens of a step. Every combination of values of the searched keys is planned
as a layout that is given; the program refuses those that the engine does not admit, and where all were tried their number is compared with `admitted` of the
search. Of more than --most combinations a random part is planned. The best one that fits (where `auto` is at risk: of any verdict as good) is compared with
the plan of `auto`, in simulated seconds of an iteration.

Prints a row per instance: layouts planned (of how many admitted), the best, what `auto` gives, its loss, CPU seconds and plans; the worst ten last as commands.
Exit 1 where a loss is above 0.5%, which is what a search gives up for a plainer layout."""
import argparse
import concurrent.futures
import csv
import itertools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time

STOWAGE = os.environ.get("STOWAGE", "stowage")
SLACK = 0.005
MOST_MICRO_BATCH, MOST_CHUNKS, LEAST_CP_TOKENS = 16, 8, 1024
GOOD = {"fits": 0, "at_risk": 1}
# model, cluster, nodes, engine, tokens of a sequence, sequences of a step, further settings
INSTANCES = [
    ("Qwen3-8B", "h100-80g-x8", 1, "stowage", 8192, 64, ""),
    ("Qwen3-8B", "h100-80g-x8", 2, "stowage", 16384, 64, "node.gpu.memory=40GiB"),
    ("Qwen3-30B-A3B", "h100-80g-x8", 4, "stowage", 4096, 256, ""),
    ("gpt-oss-20b", "a100-80g-x8", 2, "stowage", 8192, 64, ""),
    ("Llama-3.1-70B", "h200-x8", 4, "stowage", 8192, 128, ""),
    ("Qwen3-32B", "a100-80g-x8", 4, "stowage", 32768, 64, ""),
    ("Mixtral-8x7B", "h200-x8", 2, "stowage", 8192, 128, ""),
    ("Qwen3-8B", "h100-80g-x8", 1, "fsdp2", 8192, 32, ""),
    ("Qwen3-14B", "h100-80g-x8", 2, "fsdp2", 8192, 64, ""),
    ("Llama-3.1-70B", "h200-x8", 8, "fsdp2", 8192, 128, ""),
    ("Qwen3-32B", "a100-80g-x8", 4, "fsdp2", 16384, 64, ""),
    ("Qwen3-30B-A3B", "h100-80g-x8", 2, "fsdp2", 4096, 128, ""),
    ("Qwen3-4B", "l40s-x8", 2, "fsdp2", 4096, 128, ""),
    ("DeepSeek-V2-Lite", "h100-80g-x8", 2, "fsdp2", 8192, 128, ""),
    ("Qwen2.5-7B", "a100-40g-x8", 2, "fsdp2", 16384, 32, ""),
    ("Qwen3-8B", "h100-80g-x8", 1, "megatron", 8192, 64, ""),
    ("Qwen3-14B", "h200-x8", 2, "megatron", 16384, 64, ""),
    ("Qwen3-30B-A3B", "h100-80g-x8", 4, "megatron", 4096, 256, ""),
    ("Llama-3.1-70B", "h100-80g-x8", 8, "megatron", 8192, 128, ""),
    ("Llama-3.1-8B", "a100-80g-x8", 2, "megatron", 8192, 128, ""),
    ("Qwen3-235B-A22B", "h200-x8", 16, "megatron", 4096, 512, ""),
    ("Qwen3-4B", "b200-x8", 1, "megatron", 6144, 64, "node.gpu.memory=42.4GiB"),
    ("DeepSeek-V2-Lite", "a100-80g-x8", 2, "megatron", 4096, 128, ""),
    ("Qwen3-32B", "h100-80g-x8", 4, "megatron", 32768, 64, ""),
    ("Mixtral-8x7B", "h200-x8", 4, "megatron", 8192, 128, ""),
    ("Qwen3-8B", "h100-80g-x8", 1, "deepspeed", 8192, 64, ""),
    ("Llama-3.1-8B", "a100-80g-x8", 2, "deepspeed", 4096, 256, ""),
    ("Qwen3-14B", "h200-x8", 1, "deepspeed", 16384, 64, "deepspeed.offload_optimizer=cpu"),
    ("Qwen2.5-7B", "a100-40g-x8", 1, "deepspeed", 4096, 128, ""),
    ("Llama-3.1-70B", "h200-x8", 4, "deepspeed", 8192, 256, ""),
]
OWN = {"stowage": ("loss.fused", "fsdp.reshard_after_forward", "fsdp.reshard_to_node"), "megatron": (), "deepspeed": ("loss.fused", "deepspeed.zero_stage"),
       "fsdp2": ("loss.fused", "fsdp.reshard_after_forward", "fsdp.reshard_to_node")}
WAYS = {"stowage": ("cp", "ep", "dp_replicate"), "fsdp2": ("tp", "cp", "ep", "dp_replicate"), "megatron": ("tp", "pp", "vpp", "cp", "ep", "etp"), "deepspeed": ()}
FIELDS = ["instance", "model", "cluster", "nodes", "engine", "seq_len", "sequences", "more", "combinations", "planned", "fit", "admitted", "best_s", "best", "auto_s",
          "auto", "auto_verdict", "loss", "cpu_s", "searched", "compared", "too_slow", "left"]


def call(words):
    """Exit code, stdout, CPU seconds."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([STOWAGE] + words, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return process.returncode, out.read(), usage.ru_utime + usage.ru_stime


def words_of(instance, settings):
    model, cluster, nodes, engine, seq_len, _, more = instance
    words = ["-m", model, "-c", cluster]
    for setting in [f"nodes={nodes}", f"engine={engine}", f"batch.seq_len={seq_len}"] + more.split() + settings:
        words += ["--set", setting]
    return words


def plan_given(instance, settings):
    """Verdict and seconds, as one point of a sweep, which looks for no fixes; stages that do not divide the layers are made unequal as the program proposes."""
    steps = [s for s in settings if s.startswith("batch.grad_accumulation=")][0]
    code, out, _ = call(["sweep"] + words_of(instance, [s for s in settings if s != steps]) + ["--vary", steps, "-j", "1", "--json", "-q", "--time-limit", "60"])
    if code != 0:
        return settings, "refused", None
    row = json.loads(out)["rows"][0]
    proposed = re.search(r"unequal stages: megatron.pipeline_layout \('([^']+)'\)", row["reason"] or "")
    if proposed and not any("pipeline_layout" in s for s in settings):
        return plan_given(instance, settings + [f"megatron.pipeline_layout={proposed[1]}"])
    return settings, row["verdict"], row["iteration_s"]


# ---- what is searched ----

def values(key, world, seq_len, model):
    if key in ("tp", "etp"):
        return [v for v in range(1, 9) if 8 % v == 0]
    if key == "vpp":
        return range(1, MOST_CHUNKS + 1)
    if key == "cp":
        return [v for v in range(1, max(seq_len // LEAST_CP_TOKENS, 1) + 1) if world % v == 0 and (v == 1 or seq_len % (2 * v) == 0)]
    if key == "ep":
        return [v for v in range(1, world + 1) if world % v == 0 and (v == 1 or model["experts"] > 0 and model["experts"] % v == 0)]
    if key == "micro_batch":
        return [v for v in (1, 2, 4, 8, 16) if v <= MOST_MICRO_BATCH]
    if key == "deepspeed.zero_stage":
        return [1, 2, 3]
    if key.startswith(("loss", "fsdp", "parallel.seq")):
        return ["false", "true"]
    return [v for v in range(1, min(world, 64) + 1) if world % v == 0]


def is_chunked(value, tp, cp, ep, world):
    """stw_layout_admits_chunks (engines/layouts.c): the group over which state is cut."""
    replicas = value.get("dp_replicate", 1)
    if world % (replicas * cp * tp) != 0:
        return False
    group = world // replicas // tp
    to_node, reshards = value["fsdp.reshard_to_node"] == "true", value["fsdp.reshard_after_forward"] == "true"
    if group % ep != 0 or (to_node and (not reshards or ep > 1 or group <= 8 or group % 8 != 0)):
        return False
    return group > 1 or reshards


def is_staged(value, tp, pp, model, steps):
    """admits (engines/megatron/layouts.c), less what the program refuses."""
    vpp, etp, sequence = value["vpp"], value["etp"], value["parallel.sequence_parallel"] == "true"
    if etp not in (1, tp) or (etp > 1 and model["experts"] == 0) or pp * vpp > model["layers"] + 2 or (model["experts"] > 0 and tp > 1 and not sequence):
        return False
    return vpp == 1 or (pp > 1 and steps % pp == 0 and (vpp & (vpp - 1) == 0 or model["layers"] % (pp * vpp) == 0))


def settings_of(value, engine, world, sequences, seq_len, model):
    """None: not admitted."""
    tp, pp, cp, ep = (value.get(k, 1) for k in ("tp", "pp", "cp", "ep"))
    sequence = value.get("parallel.sequence_parallel", "false") == "true"
    once = world // (tp * pp * cp) * value["micro_batch"] if world % (tp * pp * cp) == 0 else 0
    if once == 0 or sequences % once != 0 or world // pp % (ep * value.get("etp", 1)) != 0 or (sequence and (tp == 1 or seq_len % (cp * tp) != 0)):
        return None
    if engine in ("stowage", "fsdp2") and not is_chunked(value, tp, cp, ep, world):
        return None
    if engine == "fsdp2" and tp > 1 and (cp > 1 or ep > 1 or value["loss.fused"] == "true" or value["fsdp.reshard_to_node"] == "true"):
        return None
    if engine == "megatron" and not is_staged(value, tp, pp, model, sequences // once):
        return None
    out = [f"batch.grad_accumulation={sequences // once}"]
    for key, v in value.items():
        name = key if "." in key else "batch.micro_batch" if key == "micro_batch" else "parallel." + key
        if v not in (1, "false") or name in OWN[engine]:
            out.append(f"{name}={v}")
    return out


def combinations(instance, models):
    model, _, nodes, engine, seq_len, sequences, _ = instance
    keys = WAYS[engine] + ("micro_batch",) + (("parallel.sequence_parallel",) if "tp" in WAYS[engine] else ()) + OWN[engine]
    lists = [values(k, 8 * nodes, seq_len, models[model]) for k in keys]
    found = (settings_of(dict(zip(keys, v)), engine, 8 * nodes, sequences, seq_len, models[model]) for v in itertools.product(*lists))
    return [s for s in found if s is not None]


# ---- the whole ----

def search(instance):
    tokens = instance[4] * instance[5]
    words = ["plan"] + words_of(instance, [f"batch.tokens_per_step={tokens}", "parallel=auto"]) + ["--time-limit", "240"]
    _, out, cpu = call(words + ["--json", "-q"])
    data = json.loads(out)
    return {"s": data["time_s"]["iteration"], "verdict": data["verdict"], "layouts": data["layouts"], "cpu": cpu, "command": shlex.join([STOWAGE] + words)}


def row_of(number, instance, found, rows, total):
    counted = [r for r in rows if r[1] in GOOD and GOOD[r[1]] <= GOOD.get(found["verdict"], 1)]
    best = min(counted, key=lambda r: r[2]) if counted else (["none"], None, None)
    loss = found["s"] / best[2] - 1 if counted and found["s"] else 0.0
    if counted and found["verdict"] not in GOOD:
        loss = float("inf")
    layouts = found["layouts"]
    planned = [r for r in rows if r[1] != "refused"]
    return dict(zip(FIELDS, [number, *instance, total, len(planned), len(counted), layouts["admitted"], best[2], " ".join(best[0]), found["s"],
                             layouts["best"][0]["settings"], found["verdict"], loss, round(found["cpu"], 2), layouts["planned"], layouts["compared"],
                             layouts["too_slow"], layouts["left"]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", help="numbers of the list, from 0")
    parser.add_argument("--engines", help="those of these engines")
    parser.add_argument("--most", type=int, default=400, help="combinations of an instance; of more a random part is planned")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="no plan is begun after that")
    parser.add_argument("--csv")
    parser.add_argument("--all", help="CSV of every layout that was planned")
    arguments = parser.parse_args()
    wanted = [int(n) for n in arguments.instances.split(",")] if arguments.instances else range(len(INSTANCES))
    wanted = [n for n in wanted if not arguments.engines or INSTANCES[n][3] in arguments.engines.split(",")]
    models = {m["name"]: m for m in json.loads(call(["models", "--json", "-q"])[1])["models"]}
    end, tasks, totals, rows = time.monotonic() + arguments.seconds, [], {}, {n: [] for n in wanted}
    for n in wanted:
        all_of = combinations(INSTANCES[n], models)
        totals[n] = len(all_of)
        some = all_of if len(all_of) <= arguments.most else random.Random(f"{arguments.seed}/{n}").sample(all_of, arguments.most)
        tasks += [(n, s) for s in some]
    random.Random(arguments.seed).shuffle(tasks)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        found = dict(zip(wanted, pool.map(lambda n: search(INSTANCES[n]), wanted)))
        planned = pool.map(lambda t: (t[0], plan_given(INSTANCES[t[0]], t[1]) if time.monotonic() < end else None), tasks)
        for n, row in planned:
            if row is not None:
                rows[n].append(row)
    table = [row_of(n, INSTANCES[n], found[n], rows[n], totals[n]) for n in wanted]
    print("| # | model | GPUs | engine | planned | fit | of | best s | auto s | loss | CPU s | planned, compared, too slow, left by auto |")
    print("|--:|---|---|---|--:|--:|--:|--:|--:|--:|--:|---|")
    for r in table:
        print(f"| {r['instance']} | {r['model']} | {r['nodes']} x {r['cluster']} | {r['engine']} | {r['planned']} | {r['fit']} | {r['admitted']} | "
              f"{r['best_s'] or 0:.4f} | {r['auto_s'] or 0:.4f} | {100 * r['loss']:.2f}% | {r['cpu_s']:.1f} | "
              f"{r['searched']}, {r['compared']}, {r['too_slow']}, {r['left']} |")
    bad = [r for r in table if r["loss"] > SLACK]
    print(f"{len(table)} instances, {sum(r['planned'] for r in table)} layouts; {len(bad)} lose more than {100 * SLACK}%, worst "
          f"{100 * max(r['loss'] for r in table):.2f}%; CPU s of auto: median {sorted(r['cpu_s'] for r in table)[len(table) // 2]}, worst {max(r['cpu_s'] for r in table)}")
    for r in sorted(table, key=lambda r: -r["loss"])[:10]:
        n = r["instance"]
        print(f"{100 * r['loss']:.2f}%: auto {r['auto']} ({r['auto_s']}): {found[n]['command']}")
        print(f"    best ({r['best_s']}): {shlex.join([STOWAGE, 'plan'] + words_of(INSTANCES[n], r['best'].split()))}")
    for path, lines in ((arguments.csv, table), (arguments.all, [{"instance": n, "settings": " ".join(r[0]), "verdict": r[1], "s": r[2]} for n in wanted for r in rows[n]])):
        if path:
            with open(path, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
