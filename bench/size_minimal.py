#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is what `stowage size` finds minimal? Makes its table (wall and CPU seconds), then plans beside every row: the row itself
with its layout, which must fit; one GPU or one node fewer with `parallel=auto` (all layouts that the engine has) and with the
row's own layout, of which none may fit; 1,024 tokens more than the longest sequence and one sequence more than the largest
micro batch, which must not fit. Prints one line for each row; exit code 1 if any fails.

    python3 bench/size_minimal.py [--stowage build/bin/stowage] [--models A,B] [--gpus A,B] [--jobs N] [--all-below]
        [--table FILE.json]     # a table that is there already
        --all-below             # every smaller number of GPUs or nodes, not the next one alone
"""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

MODELS = "Qwen3-8B,Qwen3-32B,Qwen3-30B-A3B,Qwen3-235B-A22B,Llama-3.1-70B,Llama-3.1-405B,DeepSeek-V3"
GPUS_OF_NODE = 8
GPUS = "a100-40g,a100-80g,h100-80g,h200,b200"


# Keys of a node that its GPUs share, by section.
SHARED = {"host": "memory limit page_lock_limit object_store data_loaders shm cache bandwidth dma dma_beside dma_up dma_down "
                  "page_lock file_read cores", "nvme": "capacity read write both",
          "torch": "loop loop_one foreach foreach_one fused fused_one cpu_adam cpu_adam_one",
          "node": "cpu_adamw cpu_adamw_ring cpu_norm"}


def part_of_node(text, gpus, path):
    """Write a cluster file: so many GPUs of the node in `text` with their share of everything."""
    whole = int(re.search(r"gpus: (\d+)", text)[1])
    section, lines = "", []
    for line in text.splitlines():
        line = line.split("  #")[0]
        indent, key = len(line) - len(line.lstrip()), line.strip().split(":")[0]
        section = {0: "top", 2: "node"}.get(indent, section)
        section = key if line.endswith(":") else section
        found = re.match(r"( *\w+: )([0-9.]+)(.*)$", line)
        if key == "gpus":
            line = f"  gpus: {gpus}"
        elif found and key in SHARED.get(section, "").split():
            value = float(found[2]) * gpus / whole
            line = found[1] + (str(max(1, int(value))) if key == "cores" else f"{value:.12g}") + found[3]
        elif key == "comm" and gpus == 1:
            line = "    comm: 0 GiB"
        lines.append(line)
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def verdict_of(arguments, row, nodes, gpus, settings):
    """What one point of `stowage sweep` says: it is planned as `stowage plan` does, without a search for fixes."""
    cluster = row["kind"] + "-x8"
    if nodes == 1 and gpus != GPUS_OF_NODE:
        cluster = os.path.join(arguments.folder, f"{cluster}-{gpus}.yaml")
        shown = subprocess.check_output([arguments.stowage, "clusters", "-s", row["kind"] + "-x8"], text=True)
        part_of_node(shown, gpus, cluster)
    command = [arguments.stowage, "sweep", "--model", row["model"], "--cluster", cluster, "-q", "--json",
               "--time-limit", str(arguments.time_limit), "--vary", f"nodes={nodes}", "--jobs", "1"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, text=True)
    if done.returncode != 0:
        return "error", done.stderr.strip()
    point = json.loads(done.stdout)["rows"][0]
    return point["verdict"], point["reason"] or ""


def smaller(row):
    """Sizes with one GPU or one node fewer and less, the largest first."""
    nodes = [(n, GPUS_OF_NODE) for n in range(row["nodes"] - 1, 0, -1)] if row["nodes"] > 1 else []
    return nodes + [(1, g) for g in range((GPUS_OF_NODE if row["nodes"] > 1 else row["gpus_per_node"]) - 1, 0, -1)]


def check(arguments, row):
    """What is wrong with a row, and how many plans say so."""
    wrong, plans = [], 0
    layout, here = row["layout"], (row["nodes"], row["gpus_per_node"])
    below = smaller(row)
    cases = [("the row does not fit", here, layout, True)]
    for size in below if arguments.all_below else below[:1]:
        words = f"{size[0]} x {size[1]} GPUs fit with"
        cases += [(f"{words} the run's layout", size, [], False), (f"{words} parallel=auto", size, ["parallel=auto"], False)]
        if layout:
            cases.append((f"{words} the row's layout", size, layout, False))
    cases += [("a longer sequence fits", here, layout + [f"batch.seq_len={row['longest_seq_len'] + 1024}"], False),
              ("a larger micro batch fits", here, layout + [f"batch.micro_batch={row['largest_micro_batch'] + 1}"], False)]
    for words, size, settings, fits in cases:
        verdict, reason = verdict_of(arguments, row, *size, settings)
        plans += 1
        if verdict not in (("fits", "at_risk") if fits else ("does_not_fit", "refused")):
            wrong.append(f"{words} ({verdict}{' ' + reason if reason else ''})")
    return wrong, plans


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
    parser.add_argument("--time-limit", type=float, default=30)
    parser.add_argument("--all-below", action="store_true")
    parser.add_argument("--table")
    arguments = parser.parse_args()
    table = table_of(arguments)
    rows = [kind | {"model": m["model"]} for m in table.get("models", [table]) for kind in m["kinds"]]
    fitting = [row for row in rows if row["fits"]]
    failed = plans = 0
    with tempfile.TemporaryDirectory() as arguments.folder, ThreadPoolExecutor(arguments.jobs) as pool:
        for row, (wrong, n) in zip(fitting, pool.map(lambda r: check(arguments, r), fitting)):
            failed += bool(wrong)
            plans += n
            print(f"{row['model']:16} {row['kind']:9} {row['nodes']} x {row['gpus_per_node']} {' '.join(row['layout'])}: "
                  f"{'; '.join(wrong) if wrong else 'minimal'}", flush=True)
    for row in rows:
        if not row["fits"]:
            print(f"{row['model']:16} {row['kind']:9} does not fit; fits with {row.get('fits_with')}")
    print(f"{len(fitting)} rows fit, {failed} of them fail, {plans} plans")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
