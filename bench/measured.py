#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured figures of a framework's runs: measured.py ENGINE...

Reads tests/measured/ENGINE.csv: name, model, cluster, settings ("key=value ..."), then measured figures. A figure
without a value was not measured. With a column "stage" the figures are those of ranks of that pipeline stage. Prints each figure of every row, then median and worst error by figure.
STOWAGE names the program (default: build/bin/stowage)."""
import csv
import json
import os
import statistics
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STOWAGE = os.environ.get("STOWAGE", os.path.join(TOP, "build", "bin", "stowage"))


def allocated(phase):
    """The most bytes that a rank's GPU allocator hands out in a phase."""
    return lambda plan, stage: max(rank["phases"][phase]["allocated"] for rank in plan["ranks"]
                                   if stage in ("", str(rank["stage"])))


def on_nodes(plan, figure):
    return [phase[figure] for node in plan["nodes"] for phase in node["phases"].values()]


def ranks_per_node(plan):
    return plan["cluster"]["node"]["gpus"]


# Column: what of a plan predicts it.
FIGURES = {
    "load": allocated("load"),
    "forward_backward": allocated("forward_backward"),
    "optimizer_step": allocated("optimizer_step"),
    "page_locked": lambda plan, stage: max(on_nodes(plan, "page_locked")) / ranks_per_node(plan),
    "host": lambda plan, stage: max(on_nodes(plan, "host")),
    "step_s": lambda plan, stage: plan["time_s"]["optimizer_step"],
}


def plan_of(row):
    command = [STOWAGE, "plan", "--json", "--model", row["model"], "--cluster", row["cluster"]]
    for setting in row["settings"].split():
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"{row['name']}: {done.stderr}")
    return json.loads(done.stdout)


def compare(engine):
    errors = {figure: [] for figure in FIGURES}
    with open(os.path.join(TOP, "tests", "measured", engine + ".csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    print(f"{'row':28} {'figure':18} {'predicted':>18} {'measured':>18} {'error':>8}")
    for row in rows:
        plan = plan_of(row)
        for figure, predict in FIGURES.items():
            if not row.get(figure):
                continue
            measured, predicted = float(row[figure]), predict(plan, row.get("stage") or "")
            error = (predicted - measured) / measured if measured else float(predicted != 0)
            errors[figure].append(abs(error))
            print(f"{row['name']:28} {figure:18} {predicted:18.11g} {measured:18.11g} {100 * error:+7.2f}%")
    for figure, all_errors in errors.items():
        if all_errors:
            print(f"{engine} {figure}: {len(all_errors)} rows, median {100 * statistics.median(all_errors):.2f}%, "
                  f"worst {100 * max(all_errors):.2f}%")


for name in sys.argv[1:] or sys.exit(__doc__):
    compare(name)
