#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan every model of the zoo with `parallel: auto` on clusters of 8 to 8,192 GPUs and print, for
each cluster and engine, how long that takes and what it brings against the run's own layout.

Usage: bench/layouts_zoo.py STOWAGE [ENGINE ...] [--out FILE] [--models A,B] [--clusters A,B]
The CSV has one line for each plan."""
import argparse
import csv
import json
import resource
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
          "planned", "too_slow", "too_big", "refused", "left", "late", "layout"]


def plan(stowage, engine, cluster, model):
    preset, nodes = CLUSTERS[cluster]
    command = [stowage, "plan", "-m", model, "-c", preset, "--set", f"nodes={nodes}", "--set",
               f"engine={engine}", "--set", "parallel=auto", "--json"]
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    row = dict.fromkeys(FIELDS, "")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    row.update(engine=engine, cluster=cluster, model=model, cpu_s=f"{cpu:.3f}",
               seconds=f"{time.monotonic() - start:.3f}")
    if done.returncode not in (0, 4):
        row.update(verdict="refused", layout=done.stderr.strip().splitlines()[-1][:200])
        return row
    found = json.loads(done.stdout)
    search = found["layouts"]
    own = [r for r in search["best"] if r["settings"] == ""]
    row.update(verdict=found["verdict"], iteration_s=found["time_s"]["iteration"],
               own_s=own[0]["iteration_s"] if own else "", layout=search["best"][0]["settings"])
    row.update({k: search[k] for k in ("admitted", "planned", "too_slow", "too_big", "refused", "left",
                                       "late")})
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stowage")
    parser.add_argument("engines", nargs="*", default=["stowage"])
    parser.add_argument("--out")
    parser.add_argument("--models")
    parser.add_argument("--clusters", help="numbers of the list, from 0")
    args = parser.parse_args()
    names = list(CLUSTERS)
    clusters = [names[int(i)] for i in args.clusters.split(",")] if args.clusters else names
    if args.models:
        models = args.models.split(",")
    else:
        listed = json.loads(subprocess.run([args.stowage, "models", "--json"], capture_output=True,
                                           text=True, check=True).stdout)
        models = [m["name"] for m in listed["models"]]
    rows = []
    for engine in args.engines:
        for cluster in clusters:
            for model in models:
                rows.append(plan(args.stowage, engine, cluster, model))
                print(*(rows[-1][f] for f in FIELDS), file=sys.stderr, sep="  ", flush=True)
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    summary(rows)


if __name__ == "__main__":
    main()
