#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does more of a resource ever cost seconds? Plans instances drawn at random (rivals_draw.py), walks each resource of their cluster up in
six steps, all else equal, and compares each plan with the fastest of the same verdict on less of it.

    monotone.py [--instances N] [--engines A,B] [--seed N] [--jobs N] [--only RESOURCES] [--csv FILE] [--again FILE]

Resources: memory of GPU, host and NVMe (steps in GiB), rates of PCIe, NVLink, NIC, disk, host memory and CPU updates (factors). STOWAGE names
the program; python3 is all that is needed beside it. A worse verdict on more of a resource counts as well. Prints what is more than 0.2%
slower, worst first, each as two commands, and exits 1 where there is any. --again takes the instances of an earlier --csv: nothing is drawn."""

import argparse
import collections
import concurrent.futures
import csv
import os
import random
import statistics
import sys

import rivals_draw as draw

LOSS = 0.002
MORE_GIB = (0, 0.5, 1, 2, 4, 8, 24)
FACTORS = (1, 1.005, 1.02, 1.05, 1.1, 1.25, 2)
MEMORY = {"gpu": "node.gpu.memory", "host": "node.host.limit", "nvme": "node.nvme.capacity"}
RATES = {"pcie": ("node.pcie.h2d", "node.pcie.d2h", "node.pcie.both", "node.pcie.direct"), "nvlink": ("node.nvlink",), "nic": ("network.nic",),
         "disk": ("node.nvme.read", "node.nvme.write", "node.nvme.both"),
         "bandwidth": ("node.host.bandwidth", "node.host.dma", "node.host.dma_beside", "node.host.dma_up", "node.host.dma_down"),
         "cpu": ("node.cpu_adamw", "node.cpu_adamw_ring", "node.cpu_norm")}
FIELDS = ["instance", "settings", "resource", "step", "seconds", "verdict", "cpu_s", "loss", "less", "more"]
WORST = float("inf")  # loss of a worse verdict


def value_of(cluster, key):
    for part in key.split("."):
        cluster = cluster[part]
    return cluster


def rated(key, rate):
    return f"{rate / 1e9:.6f} {'Gparam/s' if 'cpu' in key else 'GB/s'}"


def with_keys(settings, keys):
    return [s for s in settings if s[0] not in dict(keys)] + keys


def series(settings, plan):
    """Per resource that the run has: [(step, settings)]. Host memory starts at what the plan needs."""
    out, cluster = {}, plan["cluster"]
    for what, key in MEMORY.items():
        least, most = value_of(cluster, key) / draw.GIB, cluster["node"]["host"]["memory"] / draw.GIB
        if what == "host":
            least = min(least, plan["peaks"]["host_bytes"]["peak"] / draw.GIB)
        if least > 0:
            beside = [("node.host.memory", f"{max(most, least + MORE_GIB[-1]):.4f}GiB")] if what == "host" else []
            out[what] = [(more, with_keys(settings, [(key, f"{least + more:.4f}GiB"), *beside])) for more in MORE_GIB]
    lacks = {"nic": cluster["nodes"] == 1, "disk": not value_of(cluster, MEMORY["nvme"]), "nvlink": cluster["node"]["gpus"] == 1}
    for what, keys in RATES.items():
        given = [(key, value_of(cluster, key)) for key in keys if value_of(cluster, key) > 0]
        if not lacks.get(what):
            out[what] = [(by, with_keys(settings, [(key, rated(key, rate * by)) for key, rate in given])) for by in FACTORS]
    return out


def walk(number, settings, what, steps):
    """A row for each step. Compared with the best verdict of the steps before, and the fastest plan of it."""
    rows, best = [], None  # best: (verdict's place, seconds, settings)
    for step, case in steps:
        answer = draw.plan(case)
        good = draw.counts(answer)
        here = (draw.BETTER[answer["verdict"]] if good else len(draw.BETTER), answer["seconds"] if good else 0.0, case)
        if good or best:
            less = best or here
            loss = WORST if here[0] > less[0] else here[1] / less[1] - 1 if here[0] == less[0] else 0
            rows.append(dict(zip(FIELDS, [number, draw.words(settings), what, step, here[1], answer["verdict"], round(answer["cpu_s"], 3), loss,
                                          draw.words(less[2]), draw.words(case)])))
        if good and (best is None or here[:2] < best[:2]):
            best = here
    return rows


def drawn(arguments, number):
    engines = arguments.engines.split(",")
    engine = engines[number % len(engines)]
    try:
        return draw.instance(random.Random(f"{arguments.seed} {number} monotone"), engine)[0]
    except LookupError as error:
        print(f"instance {number}: {error}", file=sys.stderr)
        return None


def known(path):
    with open(path, newline="", encoding="utf-8") as file:
        return {int(r["instance"]): draw.settings_in(r["settings"]) for r in csv.DictReader(file)}


def report(rows, show):
    print(f"{'':<12}{'steps':>8}{'> 0.2%':>8}{'worst':>9}{'worse verdict':>15}")
    by = collections.defaultdict(list)
    for row in rows:
        by[row["resource"]].append(row["loss"])
    for what, losses in [*by.items(), ("all", [row["loss"] for row in rows])]:
        finite = [loss for loss in losses if loss < WORST]
        print(f"{what:<12}{len(losses):>8}{sum(loss > LOSS for loss in finite):>8}{100 * max(0, *finite):>8.2f}%{losses.count(WORST):>15}")
    over = sorted((row for row in rows if row["loss"] > LOSS), key=lambda row: -row["loss"])
    seconds = [row["cpu_s"] for row in rows]
    print(f"{len({row['instance'] for row in rows})} instances; CPU seconds of a plan: median {statistics.median(seconds):.2f}, most {max(seconds):.2f}")
    for row in over[:show]:
        what = "worse verdict" if row["loss"] == WORST else f"{100 * row['loss']:.2f}%"
        print(f"{what}  {row['resource']}  instance {row['instance']}  {row['seconds']:.4f} s, {row['verdict']}\n    {row['less']}\n    {row['more']}")
    return not over


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=60)
    parser.add_argument("--engines", default=",".join(draw.ENGINES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default=",".join([*MEMORY, *RATES]), help="resources")
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--csv")
    parser.add_argument("--again")
    arguments = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        if arguments.again:
            instances = dict(list(known(arguments.again).items())[:arguments.instances])
        else:
            instances = dict(enumerate(pool.map(lambda n: drawn(arguments, n), range(arguments.instances))))
        instances = {number: settings for number, settings in instances.items() if settings}
        plans = pool.map(lambda settings: draw.plan(settings)["plan"], instances.values())
        tasks = [pool.submit(walk, number, settings, what, steps)
                 for (number, settings), plan in zip(instances.items(), plans)
                 for what, steps in series(settings, plan).items() if what in arguments.only.split(",")]
        rows = [row for task in tasks for row in task.result()]
    if arguments.csv:
        with open(arguments.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    return 0 if report(rows, arguments.show) else 1


if __name__ == "__main__":
    sys.exit(main())
