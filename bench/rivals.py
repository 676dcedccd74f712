#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for plans that are better than the planner's own, by the simulator's seconds.

    rivals.py forced   [--instances N] [--plans N] [--engines A,B] [--seed N] [--jobs N] [--csv FILE] [--limit S] [--seconds S]

STOWAGE names the program; python3 is all that is needed beside it. `forced` plans instances drawn at random (rivals_draw.py: engine, model,
cluster, layout, length, roles, a limit of GPU memory in fractions) and then each of them with keys that force placements, shares, rings,
activation policies, recompute counts or offload fractions. Half of these are near the planner's own decisions, half are random. A rival counts
where its verdict is no worse than the plan's, and where it fills the GPU no further than the plan may (placement.gpu_fill, or what the plan takes where
nothing else fits). None should be faster. Instances take turns, one forced plan each, until all is done or --seconds are over. Rows are appended
to the CSV as they come, and instances that are in it are not planned again: each is drawn from the seed and its own number.

Prints each offender as a command, and the rivals that lie below the lower bound of the planner's own plan; exit 1 where a forced plan is more than
0.5% faster."""

import argparse
import concurrent.futures
import csv
import itertools
import os
import random
import shlex
import statistics
import sys
import threading
import time

import rivals_draw as draw

GAIN = 0.005
FIELDS = ["seed", "instance", "engine", "kind", "keys", "settings", "seconds", "verdict", "exit", "share", "allowed", "counts", "gain", "cpu_s", "bound"]


# ---- forced ----

def force(rng, engine, number, best, given, allowed):
    """The number-th set of keys, and its kind: near or far, own or expert."""
    keys = draw.near(rng, engine, best["plan"], given, allowed) if number % 2 == 0 else draw.far(rng, engine, best["plan"], given)
    taken = set(given) - {"placement.gpu_fill", "megatron.optimizer_cpu_offload"}
    keys = [(key, value) for key, value in keys if key not in taken]
    return keys, f"{'near' if number % 2 == 0 else 'far'} {draw.kind_of(engine, best['plan'], given, keys)}"


def replaced(settings, keys):
    return [s for s in settings if s[0] not in dict(keys)] + keys


def bound_of(best):
    """Seconds that no placement with the plan's keys is simulated faster than: the bound without its part of the load."""
    bound, load = best["plan"]["solver"]["bound"], best["plan"]["time_s"].get("load") or 0
    return bound - load / 1000 if bound is not None and best["plan"]["solver"]["gap"] is not None else ""


def row_of(arguments, number, engine, kind, keys, settings, answer, best, allowed):
    counted = draw.counts(answer) and answer["exit"] <= best["exit"] and answer["share"] <= allowed and \
        draw.BETTER[answer["verdict"]] <= draw.BETTER[best["verdict"]]
    gain = best["seconds"] / answer["seconds"] - 1 if counted else ""
    return dict(zip(FIELDS, [arguments.seed, number, engine, kind, shlex.join(draw.command(keys)[2:]), draw.words(settings), answer["seconds"] or "",
                             answer["verdict"], answer["exit"], answer["share"] or "", allowed, int(counted), gain, round(answer["cpu_s"], 3), bound_of(best)]))


def drawn(arguments, number):
    """The row of an instance's own plan, and calls that give the rows of its forced plans."""
    engines = arguments.engines.split(",")
    engine = engines[number % len(engines)]
    rng = random.Random(f"{arguments.seed} {number} {engine}")
    try:
        settings, best = draw.instance(rng, engine)
    except LookupError as error:
        print(f"instance {number}: {error}", file=sys.stderr)
        return None, []
    given = {key: str(value) for key, value in settings}
    allowed = max(best["share"], float(given.get("placement.gpu_fill", 0.98)))
    sets, tries = {}, 0
    while len(sets) < arguments.plans and tries < 20 * arguments.plans:
        tries += 1
        keys, kind = force(rng, engine, len(sets) + 1, best, given, allowed)
        if keys:
            sets.setdefault(str(keys), (keys, kind))

    def row(keys, kind):
        answer = draw.plan(replaced(settings, keys), "--time-limit", str(arguments.limit))
        return row_of(arguments, number, engine, kind, keys, settings, answer, best, allowed)

    return row_of(arguments, number, engine, "plan", [], settings, best, best, allowed), [lambda c=case: row(*c) for case in sets.values()]


def read_rows(arguments):
    if not arguments.csv or not os.path.exists(arguments.csv):
        return []
    with open(arguments.csv, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows, what, n_of):
    """One line: plans of a kind, those that count, instances beaten, gains."""
    instances = {(r["seed"], r["instance"]) for r in rows}
    best = {key: 0.0 for key in instances}
    gains = [float(r["gain"]) for r in rows if r["counts"] in ("1", 1)]
    for r in rows:
        if r["counts"] in ("1", 1):
            key = (r["seed"], r["instance"])
            best[key] = max(best[key], float(r["gain"]))
    beaten = [g for g in best.values() if g > GAIN]
    if not rows:
        return
    print(f"{what:<22}{len(instances):>10}{len(rows):>8}{sum(r['exit'] in ('0', '9', 0, 9) for r in rows):>8}{len(gains):>8}{len(beaten):>8}"
          f"{100 * len(beaten) / max(1, len(instances)):>7.1f}%{100 * statistics.median(best.values()):>8.2f}%{100 * max(best.values()):>8.2f}%"
          f"{sum(float(r['cpu_s']) for r in rows) / max(1, n_of):>8.3f}")


def report(arguments, rows):
    rivals = [r for r in rows if r["kind"] != "plan"]
    print(f"{'':<22}{'instances':>10}{'plans':>8}{'fit':>8}{'count':>8}{'beaten':>8}{'share':>8}{'median':>9}{'worst':>9}{'CPU s':>8}")
    for engine in draw.ENGINES:
        of = [r for r in rivals if r["engine"] == engine]
        table(of, engine, len(of))
        for kind in ("own", "expert"):
            some = [r for r in of if r["kind"].endswith(kind)]
            table(some, "  " + kind, len(some))
    table(rivals, "all", len(rivals))
    over = sorted((r for r in rivals if r["counts"] in ("1", 1)), key=lambda r: -float(r["gain"]))
    print(f"own: keys that the planner decides; beaten: by more than {100 * GAIN:g}%; median and worst of each instance's fastest rival; CPU s of a plan")
    held = [r for r in rivals if r["counts"] in ("1", 1) and " own" in r["kind"] and r.get("bound") not in ("", None)]
    below = sorted((r for r in held if float(r["seconds"]) < float(r["bound"]) * (1 - 1e-4)), key=lambda r: float(r["seconds"]) / float(r["bound"]))
    print(f"below the plan's lower bound: {len(below)} of {len(held)} with keys that the planner decides")
    for r in below[:arguments.show]:
        print(f"  {100 * (1 - float(r['seconds']) / float(r['bound'])):.2f}%  instance {r['instance']}  {r['keys']}")
    shown, seen = 0, set()
    for r in over:
        if float(r["gain"]) <= 0 or shown == arguments.show:
            break
        if (r["seed"], r["instance"]) in seen and not arguments.all:
            continue
        seen.add((r["seed"], r["instance"]))
        shown += 1
        own = next(p for p in rows if p["kind"] == "plan" and (p["seed"], p["instance"]) == (r["seed"], r["instance"]))
        print(f"{100 * float(r['gain']):6.2f}%  {float(own['seconds']):.4f} s -> {float(r['seconds']):.4f} s  {r['kind']}  instance {r['instance']}  "
              f"{own['verdict']} -> {r['verdict']}\n    {draw.words(replaced(draw.settings_in(r['settings']), draw.settings_in(r['keys'])))}")
    return not any(float(r["gain"]) > GAIN for r in over)


def forced(arguments, pool):
    rows, end = read_rows(arguments), time.monotonic() + arguments.seconds
    known = {int(r["instance"]) for r in rows if int(r["seed"]) == arguments.seed}
    todo = [n for n in range(arguments.instances) if n not in known and not arguments.summary]
    lock, fresh = threading.Lock(), not rows
    file = open(arguments.csv, "a", newline="", encoding="utf-8") if arguments.csv else None
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n") if file else None
    if writer and fresh:
        writer.writeheader()

    def keep(row):
        with lock:
            rows.append(row)
            if writer:
                writer.writerow(row)
                file.flush()
            print(f"\r{len(rows)} plans", end="", file=sys.stderr)

    def begin(number):
        first, calls = drawn(arguments, number) if time.monotonic() < end else (None, [])
        if first:
            keep(first)
        return calls

    def one(call):
        if time.monotonic() < end:
            keep(call())

    instances = list(pool.map(begin, todo))
    list(pool.map(one, [call for turn in itertools.zip_longest(*instances) for call in turn if call]))
    print(file=sys.stderr)
    if file:
        file.close()
    return report(arguments, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["forced"])
    parser.add_argument("--instances", type=int, default=60)
    parser.add_argument("--plans", type=int, default=50, help="forced plans of an instance")
    parser.add_argument("--engines", default=",".join(draw.ENGINES))
    parser.add_argument("--limit", type=float, default=10, help="seconds of a forced plan")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no plan is begun after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=10)
    parser.add_argument("--all", action="store_true", help="show several rivals of an instance")
    parser.add_argument("--summary", action="store_true", help="plan nothing: report the CSV")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        good = forced(arguments, pool)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
