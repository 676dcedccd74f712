#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU time and gap of `stowage plan` for every zoo model on every example cluster: engine stowage with
NVMe off and on, and fsdp2, which keeps no state on NVMe. Writes a CSV and prints the median and the worst ten.

    python3 bench/plan_times.py --stowage build/bin/stowage -o times.csv [--models A,B] [--clusters A,B] [--jobs N]
"""
import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIELDS = ["model", "cluster", "engine", "nvme", "exit", "cpu_s", "rss_mib", "outcome", "gap", "iteration_s", "error"]


def names(folder, suffix, wanted):
    found = sorted(f[: -len(suffix)] for f in os.listdir(os.path.join(ROOT, folder)) if f.endswith(suffix))
    return [f for f in found if wanted is None or f in wanted.split(",")]


def is_cluster(name):
    with open(os.path.join(ROOT, "models/examples", name + ".yaml")) as file:
        return "node:" in file.read()


def measure(arguments, case):
    model, cluster, engine, nvme = case
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [arguments.stowage, "plan", "--model", model, "--cluster",
                   os.path.join(ROOT, "models/examples", cluster + ".yaml"), "--set", f"engine={engine}", "-o", out.name]
        if nvme:
            command += ["--set", "node.nvme.capacity=2000 GiB"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        error = process.stderr.read().decode().strip()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        row = {"model": model, "cluster": cluster, "engine": engine, "nvme": "on" if nvme else "off",
               "exit": process.returncode, "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
               "rss_mib": usage.ru_maxrss // 1024, "error": error.split("\n")[0]}
        try:
            with open(out.name) as file:
                plan = json.load(file)
            row |= {"outcome": plan["outcome"], "gap": plan["solver"]["gap"], "iteration_s": plan["time_s"]["iteration"]}
        except (ValueError, KeyError):
            pass
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stowage", default=os.path.join(ROOT, "build/bin/stowage"))
    parser.add_argument("-o", "--output", default="plan_times.csv")
    parser.add_argument("--models")
    parser.add_argument("--clusters")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    clusters = [c for c in names("models/examples", ".yaml", arguments.clusters) if is_cluster(c)]
    cases = [(m, c, e, n) for m in names("models/zoo", ".json", arguments.models) for c in clusters
             for e, n in (("stowage", False), ("stowage", True), ("fsdp2", False))]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(lambda case: measure(arguments, case), cases))
    with open(arguments.output, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} plans, CPU time: median {statistics.median(r['cpu_s'] for r in rows):.3f} s; the worst ten:")
    for row in sorted(rows, key=lambda r: -r["cpu_s"])[:10]:
        print(f"  {row['cpu_s']:.3f} s  {row['rss_mib']} MiB  {row['model']} {row['cluster']} {row['engine']} nvme {row['nvme']}: "
              f"{row.get('outcome', row['error'])}")
    gaps = [r for r in rows if r.get("gap") is not None]
    print("the worst ten gaps:")
    for row in sorted(gaps, key=lambda r: -r["gap"])[:10]:
        print(f"  {100 * row['gap']:.4f}%  {row['model']} {row['cluster']} {row['engine']} nvme {row['nvme']}")
    failed = [r for r in rows if r["exit"] not in (0, 4)]
    print(f"{len(failed)} failed")
    for row in failed[:10]:
        print(f"  exit {row['exit']}: {row['model']} {row['cluster']} {row['engine']} nvme {row['nvme']}: {row['error']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
