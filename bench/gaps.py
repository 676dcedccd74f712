#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the planner's integer program is worth: is the exported file's optimum what the plan states, and how far is it from simulated seconds?

    gaps.py [--instances N | --from CSV] [--engines A,B] [--seed N] [--jobs N] [--csv FILE] [--over SHARE]
            [--limit S] [--summary]

STOWAGE names the program. Instances are those of `rivals.py forced` (the same seed and number draw the same one, or --from reads
them from its CSV). Each is planned once, with --write-lp. Three questions:

equal    Is the bound that the plan states the optimum that HiGHS (highspy, one thread, or cbc in the path) finds in the exported file within --limit
         seconds? Not asked where there is neither.
gap      (simulated seconds - stated bound) / simulated seconds, of an iteration with its part of the load.
CPU      Seconds of planning: CPU and wall.

A gap above --over is explained with the exported rows: the plan's own decisions are put into them, which gives the seconds by rows of forward and
backward and of the step, beside the simulated ones, the largest rows of each stretch, and the limits that the decisions break by rows.
gap = (simulated - by rows) + (by rows - bound), each as a share of the simulated seconds.
Rows are appended to the CSV as they come, and instances that are in it are not planned again; --summary plans none.
Exit 1 where an optimum is not the stated bound, a bound is above the simulated seconds, or the median gap is above 0.5% or the worst above 3%."""
import argparse
import concurrent.futures
import csv
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import rivals_draw as draw

SAME = 1e-5  # relative: the gap at which the planner's solver may stop, and tolerances
LOAD_SPREAD = 1000
FIELDS = ["instance", "engine", "settings", "verdict", "fill", "optimum", "solver_s", "status", "bound", "simulated", "by_rows", "gap", "rows_off", "choice_off",
          "forward_rows", "forward_simulated", "step_rows", "step_simulated", "largest", "over", "candidates", "cpu_s", "wall_s"]


# ---- the exported program ----

class Program:
    """A CPLEX LP file in HiGHS."""

    def __init__(self, path, limit=120.0):
        import highspy
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("mip_rel_gap", 1e-7)
        self.solver.setOptionValue("time_limit", float(limit))
        self.solver.setOptionValue("threads", 1)
        self.solver.readModel(path)
        self.lp = self.solver.getLp()
        self.columns = {name: i for i, name in enumerate(self.lp.col_names_)}
        self.rows = {name: i for i, name in enumerate(self.lp.row_names_)}

    def solve(self):
        """Objective and values by name; None: there is no solution."""
        self.solver.run()
        if "kOptimal" not in str(self.solver.getModelStatus()):
            return None, {}
        values = self.solver.getSolution().col_value
        return self.solver.getInfo().objective_function_value, {name: values[i] for name, i in self.columns.items()}

    def weight(self, name):
        return self.lp.col_cost_[self.columns[name]] if name in self.columns else 0

    def fix(self, chosen):
        """Columns to values; limits of bytes are dropped. @return {byte row: bytes over in MiB}, names that the file lacks"""
        lacks = [name for name in chosen if name not in self.columns]
        for name, value in chosen.items():
            if name in self.columns:
                self.solver.changeColBounds(self.columns[name], value, value)
        limits = {}
        for name, i in self.rows.items():
            if math.isinf(self.lp.row_lower_[i]) and not re.match(r"(any_blocks|filled|chosen|keep_over)", name):
                limits[name] = self.lp.row_upper_[i]
                self.solver.changeRowBounds(i, -math.inf, math.inf)
        return limits, lacks

    def activity(self):
        values = self.solver.getSolution().row_value
        return {name: values[i] for name, i in self.rows.items()}


def chosen_columns(data):
    """Columns of a plan's decisions, as formulation.c names them."""
    groups = {group["name"]: i for i, group in enumerate(data["model"]["groups"])}
    out = {}
    for row in data["decisions"]:
        if row["update"] is not None:
            word = "".join((row[c] or "gpu")[0] for c in ("params", "grads", "exp_avg"))
            name = f"n_{word}_{row['update']}"
            out[name] = out.get(name, 0) + row["units"]
        elif row["activations"] is not None and row["group"] in groups:
            name = f"blocks_g{groups[row['group']]}_{row['activations']}"
            out[name] = out.get(name, 0) + row["count"]
    return out


def ring_columns(program, data):
    ring = data["prefetch"]
    rings = [name for name in program.columns if name.startswith("ring_")]
    if ring["depth"] is None or len(rings) < 2:
        return {}
    mine = f"ring_d{ring['depth']}_b{(ring['bucket_bytes'] or 0) >> 10}k"
    return {name: float(name == mine) for name in rings} if mine in rings else {}


def in_chunks(program, chosen):
    """Blocks of pipelines are counted for each chunk: their sum is that of the program's row."""
    counts = dict(chosen)
    for name in counts:
        group = re.match(r"blocks_(g\d+)_", name)
        row = program.rows.get(f"all_blocks_{group[1]}") if group else None
        if row is not None:
            whole = sum(n for other, n in counts.items() if other.startswith(group[0]))
            chosen[name] = counts[name] * program.lp.row_upper_[row] / max(whole, 1)
    return chosen


def fill_zero(program, chosen):
    """What a plan does not have is 0."""
    for name in program.columns:
        whole = re.fullmatch(r"(n_[ghn]{3}_[a-z]+|blocks_g\d+_[a-z]+)", name)
        if whole and name not in chosen:
            chosen[name] = 0
    return chosen


def by_rows(path, data):
    """The plan's own decisions in the exported rows."""
    program = Program(path)
    chosen = fill_zero(program, in_chunks(program, chosen_columns(data)))
    chosen.update(ring_columns(program, data))
    load = f"load_{data['load']['method']}"
    if load in program.columns:
        chosen[load] = 1
    limits, lacks = program.fix(chosen)
    objective, values = program.solve()
    if objective is None:
        return None
    held = program.activity()
    over = {name: held[name] - limit for name, limit in limits.items() if held[name] > limit + 0.5}
    largest = needs(program, values, held)
    forward = program.weight("t_forward") * (values.get("t_forward", 0) + values.get("t_backward", 0))
    step = program.weight("t_step") * (values.get("t_step", 0) + values.get("t_norm", 0))
    return {"objective": objective, "forward": forward, "step": step, "forward_weight": program.weight("t_forward"),
            "step_weight": program.weight("t_step"), "over": over, "largest": largest, "lacks": lacks}


def needs(program, values, held):
    """Seconds that the largest rows of each stretch ask for: "t_step hbm 0.0196 nic 0.0081"."""
    matrix, out = program.lp.a_matrix_, []
    names = program.lp.row_names_
    for stretch in ("t_norm", "t_step", "t_forward", "t_backward"):
        if values.get(stretch, 0) <= 0:
            continue
        column = program.columns[stretch]  # HiGHS keeps the matrix by columns
        rows = [names[i] for i in matrix.index_[matrix.start_[column]:matrix.start_[column + 1]]]
        asked = {name: values[stretch] - (held[name] - program.lp.row_lower_[program.rows[name]]) for name in rows if name in held}
        best = sorted(asked, key=lambda name: -asked[name])[:4]
        out.append(stretch + "".join(f" {re.sub('^' + stretch[2:] + '_', '', name)} {asked[name]:.4g}" for name in best if asked[name] > 0))
    return out


def optimum(path, limit):
    """What another solver finds: the optimum or "", seconds, and how it ended."""
    start = time.monotonic()
    try:
        program = Program(path, limit)
        found = program.solve()[0]
        status = str(program.solver.getModelStatus()).rsplit(".", 1)[-1]
    except ImportError:
        if not shutil.which("cbc"):
            return "", "", ""
        done = subprocess.run(["cbc", path, "ratio", "1e-7", "sec", str(limit), "solve"], capture_output=True, text=True, check=False)
        value = re.search(r"Objective value:\s+(\S+)", done.stdout)
        found = float(value[1]) if value and "Optimal solution found" in done.stdout else None
        status = "kOptimal" if found is not None else "cbc"
    return "" if found is None else found, round(time.monotonic() - start, 2), status


# ---- one instance ----

def measure(number, engine, settings, limit):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.lp")
        start = time.monotonic()
        answer = draw.plan(settings, "--write-lp", path)
        wall = time.monotonic() - start
        row = dict.fromkeys(FIELDS, "")
        row.update(instance=number, engine=engine, settings=draw.words(settings), verdict=answer["verdict"], cpu_s=round(answer["cpu_s"], 3),
                   wall_s=round(wall, 3))
        if not draw.counts(answer):
            return row
        data = answer["plan"]
        solver, stages = data["solver"], {stage["name"]: stage for stage in data["solver"]["stages"]}
        simulated = stages["simulated_seconds"]["objective"] if "simulated_seconds" in stages else answer["seconds"]
        row.update(zip(("optimum", "solver_s", "status"), optimum(path, limit)))
        row.update(bound=solver["bound"], simulated=simulated, gap=(simulated - solver["bound"]) / simulated,
                   candidates=solver["simulated_plans"], fill=round(answer["share"], 4))
        try:
            explain(row, path, data, simulated)
        except ImportError:
            pass  # cbc alone: gaps without their parts
    return row


def explain(row, path, data, simulated):
    rows = by_rows(path, data)
    if rows is None:
        return
    times = data["time_s"]
    over = {}
    for name, mib in rows["over"].items():
        kind = re.sub(r"[0-9]+", "#", name)
        over[kind] = max(over.get(kind, 0), mib)
    row.update(by_rows=rows["objective"], rows_off=(simulated - rows["objective"]) / simulated, choice_off=(rows["objective"] - row["bound"]) / simulated,
               forward_rows=rows["forward"], forward_simulated=rows["forward_weight"] * (times["forward_backward"] or 0), step_rows=rows["step"],
               step_simulated=rows["step_weight"] * times["optimizer_step"], largest=", ".join(rows["largest"]),
               over=" ".join(f"{name}:+{mib:.0f}MiB" for name, mib in over.items()) + "".join(" lacks:" + name for name in rows["lacks"]))


# ---- all ----

def instances(arguments):
    if arguments.source:
        with open(arguments.source, newline="", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if r["kind"] == "plan"]
        return [(int(r["instance"]), r["engine"], draw.settings_in(r["settings"])) for r in rows][:arguments.instances]
    engines = arguments.engines.split(",")
    return [(n, engines[n % len(engines)], None) for n in range(arguments.instances)]


def is_same(row):
    return abs(float(row["optimum"]) / float(row["bound"]) - 1) < SAME


def summary(arguments, rows):
    good = True
    print(f"{'':<11}{'n':>4}{'solved':>8}{'equal':>7}{'median':>9}{'worst':>9}{'<0':>5}{'>0.5%':>7}{'>1%':>6}{'>3%':>6}{'CPU s':>8}{'worst':>8}{'wall':>8}")
    for engine in (*draw.ENGINES, "all"):
        of = [r for r in rows if engine in (r["engine"], "all") and r["gap"] != ""]
        if not of:
            continue
        solved = [r for r in of if r["optimum"] != ""]
        same = sum(is_same(r) for r in solved)
        gaps = [float(r["gap"]) for r in of]
        cpu, wall = [float(r["cpu_s"]) for r in of], [float(r["wall_s"]) for r in of]
        print(f"{engine:<11}{len(of):>4}{len(solved):>8}{same:>7}{100 * statistics.median(gaps):>8.2f}%{100 * max(gaps):>8.2f}%"
              f"{sum(g < -SAME for g in gaps):>5}{sum(g > 0.005 for g in gaps):>7}{sum(g > 0.01 for g in gaps):>6}{sum(g > 0.03 for g in gaps):>6}"
              f"{statistics.median(cpu):>8.2f}{max(cpu):>8.2f}{max(wall):>8.2f}")
        good = good and same == len(solved) and min(gaps) >= -SAME and statistics.median(gaps) <= 0.005 and max(gaps) <= 0.03
    print("solved: by the other solver; equal: the stated bound is its optimum; gap: (simulated - bound) / simulated; <0: what is stated is no bound")
    for r in rows:
        if r["gap"] != "" and not (r["optimum"] != "" and is_same(r)):
            print(f"  {r['engine']} {r['instance']}: bound {r['bound']}, {r['status'] or 'not solved'} {r['optimum']} after {r['solver_s']} s")
    for r in sorted((r for r in rows if r["gap"] != "" and abs(float(r["gap"])) > arguments.over), key=lambda r: -float(r["gap"])):
        print(f"{100 * float(r['gap']):6.2f}%  {r['engine']} {r['instance']}: {float(r['simulated']):.4f} s simulated, bound {float(r['bound']):.4f} s", end="")
        if r["by_rows"] != "":
            f = {key: float(r[key]) for key in FIELDS if number_like(r[key])}
            print(f", by rows {f['by_rows']:.4f} s (rows {100 * f['rows_off']:+.2f}%, choice {100 * f['choice_off']:+.2f}%)\n"
                  f"    forward and backward: rows {f['forward_rows']:.4f} simulated {f['forward_simulated']:.4f} ({per(f, 'forward'):+.1f}%); "
                  f"step: rows {f['step_rows']:.4f} simulated {f['step_simulated']:.4f} ({per(f, 'step'):+.1f}%)\n"
                  f"    rows: {r['largest']}; over: {r['over'] or 'none'}", end="")
        print(f"\n    {r['settings']}")
    return good


def number_like(value):
    try:
        float(value)
        return True
    except (TypeError, ValueError):
        return False


def per(values, what):
    return 100 * (values[what + "_simulated"] / values[what + "_rows"] - 1) if values[what + "_rows"] > 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=40)
    parser.add_argument("--from", dest="source")
    parser.add_argument("--engines", default=",".join(draw.ENGINES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--over", type=float, default=0.01)
    parser.add_argument("--limit", type=float, default=120, help="seconds of the other solver for a file")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    rows, lock = [], threading.Lock()
    if arguments.csv and os.path.exists(arguments.csv):
        with open(arguments.csv, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    known, fresh = {int(row["instance"]) for row in rows}, not rows

    def keep(row):
        rows.append(row)
        print(f"\r{len(rows)} instances", end="", file=sys.stderr)
        if arguments.csv:
            with open(arguments.csv, "a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                if len(rows) == 1 and fresh:
                    writer.writeheader()
                writer.writerow(row)

    def one(case):
        number, engine, settings = case
        if settings is None:
            settings = draw.instance(random.Random(f"{arguments.seed} {number} {engine}"), engine)[0]
        row = measure(number, engine, settings, arguments.limit)
        with lock:
            keep(row)

    todo = [] if arguments.summary else [case for case in instances(arguments) if case[0] not in known]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, todo))
    print(file=sys.stderr)
    rows.sort(key=lambda r: int(r["instance"]))
    return 0 if summary(arguments, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
