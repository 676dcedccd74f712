#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan every model of the zoo with `parallel: auto` on clusters of 8 to 8,192 GPUs and print, for
each cluster and engine, how long that takes and what it brings against the run's own layout.

Usage: bench/layouts_zoo.py STOWAGE [ENGINE ...] [--at-once N] [--out FILE] [--models A,B] [--clusters N,N]

`--at-once N` runs N plans at the same time, each on two cores of its own (taskset). The time limit of a plan is
120 s, so that the seconds are what a plan takes and not what the limit cuts off. The CSV has one line for each
plan. Prints the slowest plans, and those that were refused or do not fit, with the reason. Python alone is needed.
Exit 1 where a plan took more than 20 s or a layout was not looked at because the time was over."""
import argparse
import concurrent.futures
import csv
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import time

# name: preset, nodes, GPUs
CLUSTERS = {
    "1 x 8 A100 80 GB": ("a100-80g-x8", 1),
    "1 x 8 H100 80 GB": ("h100-80g-x8", 1),
    "4 x 8 H100 80 GB": ("h100-80g-x8", 4),
    "16 x 8 H100 80 GB": ("h100-80g-x8", 16),
    "64 x 8 H200": ("h200-x8", 64),
    "128 x 8 B200": ("b200-x8", 128),
    "1,024 x 8 H200": ("h200-x8", 1024),
}
FIELDS = ["engine", "cluster", "model", "verdict", "seconds", "cpu_s", "iteration_s", "own_s", "admitted",
          "planned", "too_slow", "too_big", "refused", "left", "late", "layout", "reason"]
LIMIT_S = 20


def timed(command):
    """Output, seconds of wall clock and of both cores."""
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            errors = reader.submit(process.stderr.read)
            output = process.stdout.read()
            errors = errors.result()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, output, errors, time.monotonic() - start, used.ru_utime + used.ru_stime


def why_not(infeasible):
    """What is exceeded most, and by how much."""
    rows = infeasible.get("binding") or [{"resource": "unknown", "phase": "", "over_bytes": 0}]
    most = max(rows, key=lambda r: r["over_bytes"])
    return f"{most['resource']} in {most['phase']}, over by {most['over_bytes'] / 2**30:.1f} GiB"


def plan(stowage, engine, cluster, model, cores):
    preset, nodes = CLUSTERS[cluster]
    command = [stowage, "plan", "-m", model, "-c", preset, "--set", f"nodes={nodes}", "--set",
               f"engine={engine}", "--set", "parallel=auto", "--json", "-q", "--time-limit", "120"]
    if cores is not None:
        command = ["taskset", "-c", f"{2 * cores},{2 * cores + 1}"] + command
    code, output, errors, seconds, cpu = timed(command)
    row = dict.fromkeys(FIELDS, "")
    row.update(engine=engine, cluster=cluster, model=model, cpu_s=f"{cpu:.3f}", seconds=f"{seconds:.3f}")
    if code not in (0, 4):
        last = errors.strip().splitlines()[-1:] or [f"exit {code}"]
        row.update(verdict="refused", reason=last[0].replace("stowage: error: ", "")[:240])
        return row
    found = json.loads(output)
    search = found["layouts"]
    own = [r for r in search["best"] if r["settings"] == ""]
    row.update(verdict=found["verdict"], iteration_s=found["time_s"]["iteration"],
               own_s=own[0]["iteration_s"] if own else "", layout=search["best"][0]["settings"])
    row.update({k: search[k] for k in ("admitted", "planned", "too_slow", "too_big", "refused", "left",
                                       "late")})
    if found["verdict"] == "does_not_fit":
        row.update(reason=why_not(found.get("infeasible") or {}))
    return row


def summary(rows):
    print("| engine | cluster | plans | fit | refused | median s | most s | most CPU s | over 20 s "
          "| late |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    groups = {}
    for row in rows:
        groups.setdefault((row["engine"], row["cluster"]), []).append(row)
    for (engine, cluster), group in groups.items():
        seconds = [float(r["seconds"]) for r in group]
        fit = sum(r["verdict"] in ("fits", "at_risk") for r in group)
        refused = sum(r["verdict"] == "refused" for r in group)
        late = sum(int(r["late"] or 0) > 0 for r in group)
        print(f"| {engine} | {cluster} | {len(group)} | {fit} | {refused} | "
              f"{statistics.median(seconds):.2f} | {max(seconds):.2f} | "
              f"{max(float(r['cpu_s']) for r in group):.1f} | "
              f"{sum(s > 20 for s in seconds)} | {late} |")


def details(rows, show):
    print(f"\nThe {show} slowest:\n")
    print("| engine | cluster | model | s | CPU s | admitted | planned | left out by bounds | late | verdict |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|---|")
    for r in sorted(rows, key=lambda r: -float(r["seconds"]))[:show]:
        out = int(r["too_slow"] or 0) + int(r["too_big"] or 0)
        print(f"| {r['engine']} | {r['cluster']} | {r['model']} | {float(r['seconds']):.1f} | "
              f"{float(r['cpu_s']):.1f} | {r['admitted']} | {r['planned']} | {out} | {r['late']} | {r['verdict']} |")
    reasons = {}
    for r in rows:
        if r["verdict"] in ("refused", "does_not_fit"):
            reason, _, over = r["reason"].partition(", over by ")
            key = (r["verdict"], r["engine"], r["cluster"], reason)
            reasons.setdefault(key, []).append(r["model"] + (f" (+{over})" if over else ""))
    if reasons:
        print("\nRefused, or not fitting:\n\n| verdict | engine | cluster | reason | models |\n|---|---|---|---|---|")
        for (verdict, engine, cluster, reason), models in reasons.items():
            print(f"| {verdict} | {engine} | {cluster} | {reason} | {', '.join(models)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stowage")
    parser.add_argument("engines", nargs="*", default=["stowage"])
    parser.add_argument("--at-once", type=int, default=0, help="plans at the same time, on two cores each; 0: one, on all")
    parser.add_argument("--out")
    parser.add_argument("--models")
    parser.add_argument("--clusters", help="numbers of the list, from 0")
    parser.add_argument("--show", type=int, default=15)
    args = parser.parse_args()
    names = list(CLUSTERS)
    clusters = [names[int(i)] for i in args.clusters.split(",")] if args.clusters else names
    if args.at_once > 0 and shutil.which("taskset") is None:
        parser.error("--at-once needs taskset")
    if args.models:
        models = args.models.split(",")
    else:
        listed = json.loads(subprocess.run([args.stowage, "models", "--json"], capture_output=True,
                                           text=True, check=True).stdout)
        models = [m["name"] for m in listed["models"]]
    free = queue.SimpleQueue()
    for cores in range(args.at_once):
        free.put(cores)

    def run(case):
        cores = free.get() if args.at_once > 0 else None
        row = plan(args.stowage, *case, cores)
        if cores is not None:
            free.put(cores)
        print(*(row[f] for f in FIELDS), file=sys.stderr, sep="  ", flush=True)
        return row

    cases = [(e, c, m) for e in args.engines for c in clusters for m in models]
    with concurrent.futures.ThreadPoolExecutor(max(args.at_once, 1)) as pool:
        rows = list(pool.map(run, cases))
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    summary(rows)
    details(rows, args.show)
    return 1 if any(float(r["seconds"]) > LIMIT_S or int(r["late"] or 0) > 0 for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
