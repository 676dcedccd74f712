#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is what `stowage size` finds the smallest, and the cheapest? Makes its table (wall and CPU seconds), then plans beside every
row, as `stowage plan` does, by a loop of its own over counts and layouts:

- the commands of the row, which must give its verdict, peak and seconds;
- counts below the smallest, with the run's own layout, that of the row, and `parallel=auto`: none may fit (the next one below;
  all of them with --all-below);
- 1,024 tokens more than the longest sequence and one sequence more than the largest micro batch, which must not fit;
- counts up to the bound of the cheapest (--counts of them, evenly in their logarithm; 0: all), each with `parallel=auto` and
  --draws random layouts of the row's engines: none that fits may have 2% fewer GPU-hours.

Prints one line for each row; exit code 1 if any fails.

    python3 bench/size_minimal.py [--stowage build/bin/stowage] [--models A,B] [--gpus A,B] [--jobs N] [--all-below]
        [--counts 4] [--draws 4] [--seed 1] [--table FILE.json]     # a table that is there already
"""
import argparse
import json
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

MODELS = "Qwen3-8B,Qwen3-32B,Qwen3-30B-A3B,Qwen3-235B-A22B,Llama-3.1-70B,Llama-3.1-405B,DeepSeek-V3"
GPUS_OF_NODE = 8
GPUS = "a100-40g,a100-80g,h100-80g,h200,b200"
NEAR = 0.02
FITTING = ("fits", "at_risk")


def point(arguments, row, nodes, gpus, settings):
    """One point of `stowage sweep`: it is planned as `stowage plan` does, without a search for fixes."""
    cluster = row["kind"] + "-x8" + (f":{gpus}" if gpus < GPUS_OF_NODE else "")
    command = [arguments.stowage, "sweep", "--model", row["model"], "--cluster", cluster, "-q", "--json",
               "--time-limit", str(arguments.time_limit), "--vary", f"nodes={nodes}", "--jobs", "1"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, text=True)
    if done.returncode != 0:
        return {"verdict": "error", "reason": done.stderr.strip()}
    return json.loads(done.stdout)["rows"][0]


def hours(found):
    """GPU-hours of 10^9 tokens."""
    return found["gpus"] / found["tokens_per_s"] / 3600 * 1e9 if found.get("tokens_per_s") else float("inf")


def counts_of(row):
    """All counts up to the bound: GPUs of a node, then nodes."""
    most = max(16, 4 * row["nodes"])
    return [(1, g) for g in range(1, GPUS_OF_NODE)] + [(n, GPUS_OF_NODE) for n in range(1, most + 1)]


def sample(counts, n):
    """So many, evenly in the logarithm of the GPUs, the largest among them."""
    if n == 0 or n >= len(counts):
        return counts
    most, least = counts[-1][0] * counts[-1][1], counts[0][0] * counts[0][1]
    wanted = [least * (most / least) ** (i / max(n - 1, 1)) for i in range(n)]
    return sorted({min(counts, key=lambda c, w=w: abs(c[0] * c[1] - w)) for w in wanted})


def draw(dice, row, nodes, gpus, engine):
    """A random layout with the tokens of a step that the run has by itself."""
    world = nodes * gpus
    powers = [1, 2, 4, 8, 16, 32, 64, 128]
    words, ways = [], 1
    if engine == "megatron":
        tp, pp = dice.choice([w for w in (1, 2, 4, 8) if gpus % w == 0]), dice.choice([w for w in powers[:6] if world % w == 0])
        words += [f"engine={engine}", f"parallel.tp={tp}", f"parallel.pp={pp}"] + (["parallel.sequence_parallel=true"] if tp > 1 else [])
        ways = tp * pp
    cp = dice.choice([1, 1, 2, 4])
    ways *= cp
    words += [f"parallel.cp={cp}"] if cp > 1 else []
    if "A" in row["model"].rsplit("-", 1)[-1][:1] or "V3" in row["model"]:
        words.append(f"parallel.ep={dice.choice(powers)}")
    if world % ways:
        return None
    micro = dice.choice([m for m in (1, 2, 4) if ways % m == 0])
    words += [f"batch.micro_batch={micro}", f"batch.grad_accumulation={ways // micro}"]
    if engine != "megatron":
        words.append(f"loss.fused={dice.choice(('true', 'false'))}")
    return words


def check_command(arguments, part, name):
    """The command of a row gives what the row says."""
    path = os.path.join(arguments.folder, f"{os.getpid()}-{id(part)}.json")
    command = [arguments.stowage] + shlex.split(part["command"])[1:]
    subprocess.run(command + ["-q", "-o", path, "--time-limit", str(arguments.time_limit)], stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=False)
    with open(path) as file:
        text = file.read()
    os.remove(path)
    plan = json.loads(text)
    if plan["verdict"] != part["verdict"]:
        return [f"the {name} is {plan['verdict']} by its command"]
    seconds, peak = plan["time_s"]["iteration"], int(re.search(r'"peak": (\d+)', text)[1])
    if abs(seconds / part["iteration_s"] - 1) > 1e-9:
        return [f"the {name} takes {seconds} s by its command, not {part['iteration_s']}"]
    return [] if peak == part["gpu_peak_bytes"] else [f"the {name} has another peak by its command"]


def below(row):
    """Counts below the smallest, the largest first."""
    here = (row["nodes"], row["gpus_per_node"])
    counts = counts_of(row)
    return counts[:counts.index(here)][::-1]


def check_smallest(arguments, row):
    """What is wrong with the smallest, and how many plans say so."""
    wrong, cases = [], []
    layout, here = row["layout"], (row["nodes"], row["gpus_per_node"])
    for size in below(row) if arguments.all_below else below(row)[:1]:
        words = f"{size[0]} x {size[1]} GPUs fit with"
        engine = [word for word in layout if word.startswith("engine=")]
        cases += [(f"{words} the run's layout", size, engine), (f"{words} parallel=auto", size, engine + ["parallel=auto"])]
        if layout:
            cases.append((f"{words} the row's layout", size, layout))
    cases += [("a longer sequence fits", here, layout + [f"batch.seq_len={row['longest_seq_len'] + 1024}"]),
              ("a larger micro batch fits", here, layout + [f"batch.micro_batch={row['largest_micro_batch'] + 1}"])]
    for words, size, settings in cases:
        found = point(arguments, row, *size, settings)
        if found["verdict"] not in ("does_not_fit", "refused"):
            wrong.append(f"{words} ({found['verdict']}{' ' + found['reason'] if found.get('reason') else ''})")
    return wrong, len(cases)


def check_cheapest(arguments, row):
    """The fewest GPU-hours that a loop finds, with the count and the layout; and how many plans."""
    dice = random.Random(f"{arguments.seed} {row['model']} {row['kind']}")
    cheapest, plans = row["cheapest"], 0
    best = (float("inf"), None, None)
    counts = [c for c in counts_of(row) if c not in below(row)]
    for size in sample(counts, arguments.counts):
        layouts = [["parallel=auto"]]
        if cheapest["engine"] != row["engine"]:
            layouts.append([f"engine={cheapest['engine']}", "parallel=auto"])
        for engine in {row["engine"], cheapest["engine"]}:
            drawn = [draw(dice, row, *size, engine) for _ in range(arguments.draws)]
            layouts += [words for words in drawn if words]
        for words in layouts:
            found = point(arguments, row, *size, words)
            plans += 1
            if found["verdict"] == "fits" or found["verdict"] == cheapest["verdict"]:
                best = min(best, (hours(found), size, " ".join(words)))
    return best, plans


def check(arguments, row):
    """What is wrong with a row, how many plans say so, and what the loop found."""
    wrong = check_command(arguments, row, "smallest")
    more, plans = check_smallest(arguments, row)
    wrong += more
    best = (float("inf"), None, None)
    if "cheapest" in row:
        wrong += check_command(arguments, row["cheapest"], "cheapest")
        best, n = check_cheapest(arguments, row)
        plans += n
        if best[0] < row["cheapest"]["gpu_hours_per_1e9_tokens"] * (1 - NEAR):
            wrong.append(f"cheaper: {best[1][0]} x {best[1][1]} GPUs, {best[2]}")
    return wrong, plans, best


def table_of(arguments):
    """The rows of `stowage size`, and the seconds that they took."""
    if arguments.table:
        with open(arguments.table) as file:
            return json.load(file)
    command = [arguments.stowage, "size", "--model", arguments.models, "--gpus", arguments.gpus, "--json", "-q"]
    start = time.monotonic()
    text = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"size: {time.monotonic() - start:.1f} s wall, {used.ru_utime + used.ru_stime:.1f} s CPU", flush=True)
    return json.loads(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stowage", default=os.path.join("build", "bin", "stowage"))
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=120)
    parser.add_argument("--all-below", action="store_true")
    parser.add_argument("--counts", type=int, default=4)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table")
    arguments = parser.parse_args()
    table = table_of(arguments)
    kept = arguments.gpus.split(",")
    names = arguments.models.split(",")
    rows = [kind | {"model": m["model"]} for m in table.get("models", [table]) for kind in m["kinds"]
            if kind["kind"] in kept and m["model"] in names]
    fitting = [row for row in rows if row["verdict"] in FITTING]
    failed = plans = 0
    with tempfile.TemporaryDirectory() as arguments.folder, ThreadPoolExecutor(arguments.jobs) as pool:
        for row, (wrong, n, best) in zip(fitting, pool.map(lambda r: check(arguments, r), fitting)):
            failed += bool(wrong)
            plans += n
            there = row.get("cheapest", row)
            print(f"{row['model']:16} {row['kind']:9} {row['nodes']} x {row['gpus_per_node']} {' '.join(row['layout'])}; cheapest "
                  f"{there['nodes']} x {there['gpus_per_node']} {there['engine']} {there['gpu_hours_per_1e9_tokens']:.1f} GPU-hours, "
                  f"the loop's {best[0]:.1f} ({best[1]} {best[2]}), {there['gpu_hours_per_1e9_tokens'] / best[0] - 1:+.1%}: "
                  f"{'; '.join(wrong) if wrong else 'holds'}", flush=True)
    for row in rows:
        if row not in fitting:
            print(f"{row['model']:16} {row['kind']:9} does not fit; fits with {row.get('fits_with')}")
    print(f"{len(fitting)} rows fit, {failed} of them fail, {plans} plans")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
