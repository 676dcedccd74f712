#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU time, wall time, memory and gap of `stowage plan` for zoo models on example clusters and presets: engine stowage with
NVMe off and on, and fsdp2, which keeps no state on NVMe; or for the instances of rivals.py; or with `parallel=auto` for those
of layouts.py. Rows are appended to a CSV as they come; a case that is in it is not run again, so that a long table can be made
in pieces. Prints the median and the worst ten of each.

    python3 bench/plan_times.py -o times.csv [--stowage build/bin/stowage] [--jobs N]
        [--from CSV | --auto N,N|all]                           # the CSV of `rivals.py --csv`; numbers of layouts.py's list
        [--models A,B] [--clusters examples|presets|all|A,B]    # presets: those of `stowage clusters`
        [--sample N [--seed S]]                                 # N cases, the same ones for the same seed
        [--minutes M]                                           # begin no case after M minutes
        [--summary]                                             # run nothing
"""
import argparse
import csv
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import layouts
import rivals_draw as draw

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = os.path.join(ROOT, "models/examples")
KEYS = ["model", "cluster", "engine", "nvme", "settings"]
FIELDS = KEYS + ["exit", "cpu_s", "wall_s", "rss_mib", "outcome", "gap", "iteration_s", "error"]


def example(name):
    return os.path.join(EXAMPLES, name + ".yaml")


def is_cluster(name):
    with open(example(name)) as file:
        return "node:" in file.read()


def clusters_of(arguments):
    examples = sorted(f[:-5] for f in os.listdir(EXAMPLES) if f.endswith(".yaml") and is_cluster(f[:-5]))
    listed = json.loads(subprocess.check_output([arguments.stowage, "clusters", "--json"]))
    presets = [c["name"] for c in listed["clusters"]]
    known = {"examples": examples, "presets": presets, "all": sorted(set(examples) | set(presets))}
    return known.get(arguments.clusters) or arguments.clusters.split(",")


def models_of(arguments):
    zoo = sorted(f[:-len(".json")] for f in os.listdir(os.path.join(ROOT, "models/zoo")) if f.endswith(".json"))
    return arguments.models.split(",") if arguments.models else zoo


def drawn(arguments):
    """The instances of `rivals.py --csv`."""
    with open(arguments.source, newline="", encoding="utf-8") as file:
        found = [draw.settings_in(row["settings"]) for row in csv.DictReader(file) if row["kind"] == "plan"]
    return [case_of(settings) for settings in found]


def listed(arguments):
    """The instances of layouts.py, whose layouts are searched."""
    numbers = range(len(layouts.INSTANCES)) if arguments.auto == "all" else [int(n) for n in arguments.auto.split(",")]
    out = []
    for model, cluster, nodes, engine, seq_len, sequences, more in (layouts.INSTANCES[n] for n in numbers):
        settings = [("model", model), ("cluster", cluster), ("engine", engine), ("nodes", nodes), ("batch.seq_len", seq_len),
                    ("batch.tokens_per_step", seq_len * sequences), ("parallel", "auto")]
        out.append(case_of(settings + [tuple(word.split("=")) for word in more.split()]))
    return out


def case_of(settings):
    names = dict(settings)
    return names["model"], names["cluster"], names["engine"], "on" if "node.nvme.capacity" in names else "off", draw.words(settings)


def cases_of(arguments):
    if arguments.source or arguments.auto:
        return drawn(arguments) if arguments.source else listed(arguments)
    cases = [(m, c, e, n, "") for m in models_of(arguments) for c in clusters_of(arguments)
             for e, n in (("stowage", "off"), ("stowage", "on"), ("fsdp2", "off"))]
    if arguments.sample and arguments.sample < len(cases):
        cases = random.Random(arguments.seed).sample(cases, arguments.sample)
    return cases


def measure(arguments, case):
    model, cluster, engine, nvme, settings = case
    path = example(cluster)
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [arguments.stowage, "plan", "--model", model, "--cluster", path if os.path.isfile(path) else cluster,
                   "--set", f"engine={engine}", "-o", out.name]
        if nvme == "on":
            command += ["--set", "node.nvme.capacity=2000 GiB"]
        if settings:
            command = [arguments.stowage] + shlex.split(settings)[1:] + ["-o", out.name]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        error = process.stderr.read().decode().strip()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - start
        row = dict(zip(KEYS, case))
        row |= {"exit": process.returncode, "cpu_s": round(usage.ru_utime + usage.ru_stime, 3), "wall_s": round(wall, 3),
                "rss_mib": usage.ru_maxrss // 1024, "error": error.split("\n")[0]}
        try:
            with open(out.name) as file:
                plan = json.load(file)
            row |= {"outcome": plan["outcome"], "gap": plan["solver"]["gap"],
                    "iteration_s": plan["time_s"]["iteration"]}
        except (ValueError, KeyError):
            pass
        return row


def read_rows(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def run(arguments):
    done = {tuple(row[k] for k in KEYS) for row in read_rows(arguments.output)}
    left = [case for case in cases_of(arguments) if case not in done]
    end = time.monotonic() + 60 * arguments.minutes
    lock = threading.Lock()
    with open(arguments.output, "a", newline="") as file, ThreadPoolExecutor(arguments.jobs) as pool:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not done:
            writer.writeheader()

        def one(case):
            if time.monotonic() > end:
                return 0
            row = measure(arguments, case)
            with lock:
                writer.writerow(row)
                file.flush()
            return 1

        return len(left) - sum(pool.map(one, left))


def of_case(row):
    return row["settings"] or f"{row['model']} {row['cluster']} {row['engine']} nvme {row['nvme']}"


def worst(rows, field, form):
    for row in sorted(rows, key=lambda r: -float(r[field]))[:10]:
        print(f"  {form(float(row[field]))}  {of_case(row)}: {row['outcome'] or row['error']}")


def summarize(rows):
    for field, what in (("wall_s", "wall"), ("cpu_s", "CPU")):
        seconds = [float(r[field]) for r in rows]
        print(f"{len(rows)} plans, {what} time: median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s, {sum(s > 1 for s in seconds)} over 1 s, "
              f"{sum(s > 5 for s in seconds)} over 5 s")
    print("the worst ten by CPU time:")
    worst(rows, "cpu_s", "{:.3f} s".format)
    print(f"memory: median {statistics.median(float(r['rss_mib']) for r in rows):.0f} MiB; the worst ten:")
    worst(rows, "rss_mib", "{:.0f} MiB".format)
    gaps = [r for r in rows if r["gap"]]
    print(f"gap, of {len(gaps)} plans that fit; the worst ten:")
    worst(gaps, "gap", lambda gap: f"{100 * gap:.4f}%")
    failed = [r for r in rows if r["exit"] not in ("0", "4", "9")]
    print(f"{len(failed)} failed")
    for row in failed[:10]:
        print(f"  exit {row['exit']}: {of_case(row)}: {row['error']}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stowage", default=os.path.join(ROOT, "build/bin/stowage"))
    parser.add_argument("-o", "--output", default="plan_times.csv")
    parser.add_argument("--from", dest="source")
    parser.add_argument("--auto")
    parser.add_argument("--models")
    parser.add_argument("--clusters", default="examples")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    left = 0 if arguments.summary else run(arguments)
    if left:
        print(f"{left} cases left; run the same command again")
    return summarize(read_rows(arguments.output))


if __name__ == "__main__":
    sys.exit(main())
