#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured figures of a framework's runs: measured.py ENGINE...

Reads tests/measured/ENGINE.csv: name, model, layers (if other than the model's), cluster, settings ("key=value ..."), then measured figures. A figure
without a value was not measured. With a column "stage" the figures are those of ranks of that pipeline stage. Prints each figure of every row, then median and worst error by figure.
megatron_golden imports the flags of each row (`stowage plan --from megatron:FILE`) and compares the peak of the last stage with
each measured one; then come the rows without a plan, by reason, and errors by size of the peak.
ms_swift imports each row's launch (`stowage plan --from ms-swift:FILE`) and compares what a GPU reserves; rows that name the size
of a card or that are refused are left out, by reason. Sequences that are not packed are as long as the data: such rows are compared
if plans of --max_length and of 128 tokens differ by less than a tenth; of the others it is said whether they lie between both.
STOWAGE names the program (default: build/bin/stowage)."""
import concurrent.futures
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STOWAGE = os.environ.get("STOWAGE", os.path.join(TOP, "build", "bin", "stowage"))


def of_ranks(figure):
    """The most of all ranks, or of those of one pipeline stage."""
    return lambda plan, stage: max(figure(rank) for rank in plan["ranks"] if stage in ("", str(rank["stage"])))


def allocated(phase):
    """The most bytes that a rank's GPU allocator hands out in a phase."""
    return of_ranks(lambda rank: rank["phases"][phase]["allocated"])


def reserved(phase):
    """The same with what it holds in reserve."""
    return of_ranks(lambda rank: rank["phases"][phase]["reserved"])


def on_nodes(plan, figure):
    return [phase[figure] for node in plan["nodes"] for phase in node["phases"].values()]


def ranks_per_node(plan):
    return plan["cluster"]["node"]["gpus"]


# Column: what of a plan predicts it.
FIGURES = {
    "allocated": of_ranks(lambda rank: max(phase["allocated"] for phase in rank["phases"].values())),
    "load": allocated("load"),
    "forward_backward": allocated("forward_backward"),
    "first_optimizer_step": allocated("first_optimizer_step"),
    "optimizer_step": allocated("optimizer_step"),
    "forward_backward_reserved": reserved("forward_backward"),
    "first_optimizer_step_reserved": reserved("first_optimizer_step"),
    "optimizer_step_reserved": reserved("optimizer_step"),
    "reserved": of_ranks(lambda rank: rank["gpu_reserved_bytes"]),
    "page_locked": lambda plan, stage: max(on_nodes(plan, "page_locked")) / ranks_per_node(plan),
    "host": lambda plan, stage: max(on_nodes(plan, "host")),
    "step_s": lambda plan, stage: plan["time_s"]["optimizer_step"],
}


def model_of(row, folder):
    """A model of the zoo; with another number of layers, a copy of its config.json."""
    if not row.get("layers"):
        return row["model"]
    with open(os.path.join(TOP, "models", "zoo", row["model"] + ".json"), encoding="utf-8") as file:
        config = json.load(file)
    config["num_hidden_layers"] = int(row["layers"])
    path = os.path.join(folder, row["model"] + ".json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return path


def plan_of(row):
    with tempfile.TemporaryDirectory() as folder:
        return plan_in(row, folder)


def plan_in(row, folder):
    command = [STOWAGE, "plan", "--json", "--model", model_of(row, folder), "--cluster", row["cluster"]]
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
    print(f"{'row':28} {'figure':30} {'predicted':>18} {'measured':>18} {'error':>8}")
    for row in rows:
        plan = plan_of(row)
        for figure, predict in FIGURES.items():
            if not row.get(figure):
                continue
            measured, predicted = float(row[figure]), predict(plan, row.get("stage") or "")
            error = (predicted - measured) / measured if measured else float(predicted != 0)
            errors[figure].append(abs(error))
            print(f"{row['name']:28} {figure:30} {predicted:18.11g} {measured:18.11g} {100 * error:+7.2f}%")
    for figure, all_errors in errors.items():
        if all_errors:
            print(f"{engine} {figure}: {len(all_errors)} rows, median {100 * statistics.median(all_errors):.2f}%, "
                  f"worst {100 * max(all_errors):.2f}%")


# ---- megatron_golden: flags of NVIDIA's functional tests, imported -------------------------------


def peak_of(phase, once):
    """Bytes of a phase. A run of one iteration has no moments before its step, and no second one."""
    name, figures = phase
    if once and name == "optimizer_step":
        return 0
    moments = sum(figures["components"].get(part, 0) for part in ("exp_avg", "exp_avg_sq"))
    return figures["allocated"] - (moments if once and name == "forward_backward" else 0)


def import_and_plan(row):
    """Peak GiB of the last stage, or why there is no plan."""
    gpus = int(row["gpus"])
    cluster = f"h200-x{gpus}" if gpus <= 8 else f"{gpus // 8} x h200-x8"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("".join(f'{f.replace("=", ": ", 1)}\n' for f in row["flags"].split("; ")))
        file.flush()
        command = [STOWAGE, "plan", "-q", "--from", "megatron:" + file.name, "--cluster", cluster, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        return None, done.stderr.strip().split(": ", 3)[-1]
    ranks = json.loads(done.stdout)["ranks"]
    last = max(rank["stage"] for rank in ranks)
    once = "train-iters=1;" in row["flags"] + ";"
    return max(peak_of(p, once) for r in ranks if r["stage"] == last for p in r["phases"].items()) / 2**30, ""


def print_errors(name, errors):
    if errors:
        ordered = sorted(abs(e) for e in errors)
        print(f"{name}: {len(errors)} rows, median {100 * statistics.median(ordered):.2f}%, 90th percentile "
              f"{100 * ordered[int(0.9 * (len(ordered) - 1))]:.2f}%, mean {100 * statistics.mean(errors):+.2f}%")


def golden():
    with open(os.path.join(TOP, "tests", "measured", "megatron_golden.csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    errors, out = [], {}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        plans = list(pool.map(import_and_plan, rows))
    for row, (predicted, why) in zip(rows, plans):
        measured = [(float(peak), platform) for platform, _, peak in (m.split() for m in row["measured"].split("; "))]
        release = "release" in row["name"]
        if predicted is None:
            if not release:
                out.setdefault(why, []).extend(measured)
            continue
        line = " ".join(f"{peak:.3f} ({100 * (predicted / peak - 1):+.1f}%)" for peak in sorted({p for p, _ in measured}))
        print(f"{row['name'][-76:]:76} {predicted:8.3f}  {line}")
        if not release:
            errors += [(predicted / peak - 1, peak) for peak, _ in measured]
    n_out = sum(len(rows) for rows in out.values())
    print(f"\nleft out: {n_out} of {n_out + len(errors)} rows that are not named release")
    for why, left in sorted(out.items(), key=lambda item: -len(item[1])):
        print(f"  {len(left):3} rows: {why}")
    print_errors("all", [e for e, _ in errors])
    for low, high in ((0, 1), (1, 2), (2, 5), (5, 20), (20, 1000)):
        print_errors(f"{low} to {high} GiB", [e for e, peak in errors if low < peak <= high])


# ---- ms_swift: launch scripts, imported ----------------------------------------------------------

CARDS = {24.0, 80.0}  # GiB that are the size of a card, not what was reserved


SHORT = 128  # tokens of a short sequence


def plan_flags(row, flags):
    """Reserved GiB of a launch, or None and why there is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(f"NPROC_PER_NODE={row['gpus']} {flags}\n")
        file.flush()
        command = [STOWAGE, "plan", "-q", "--from", "ms-swift:" + file.name, "--cluster", f"a100-80g-x{row['gpus']}", "--json"]
        if row["gpus"] == "2":
            command[6:7] = ["a100-80g-x4", "--set", "node.gpus=2"]
        done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        return None, done.stderr.strip().replace(file.name, "").split(": ", 2)[-1].lstrip(": ")
    return FIGURES["reserved"](json.loads(done.stdout), "") / 2**30, ""


def plan_launch(row):
    """Reserved GiB, or None and why the row is left out."""
    if float(row["gib"]) in CARDS:
        return None, "names the size of a card"
    if re.search(r"--model \S*(VL|Omni|InternVL)", row["launch"]) and not re.search("MAX_PIXELS|IMAGE_MAX_TOKEN_NUM", row["launch"]):
        return None, "vision tower; images and GPUs are in the script's environment, which the row lacks"
    most, why = plan_flags(row, row["launch"])
    if most is None or "--packing true" in row["launch"]:
        return most, why
    least, _ = plan_flags(row, re.sub(r"--max_length \d+", "", row["launch"]) + f" --max_length {SHORT}")
    if least is not None and most - least < 0.1 * most:
        return most, ""
    inside = least is not None and least <= float(row["gib"]) <= most
    return None, f"not packed, {'' if inside else 'not '}between plans of {SHORT} tokens and of --max_length"


def swift():
    with open(os.path.join(TOP, "tests", "measured", "ms_swift.csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    errors, out = [], {}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        plans = list(pool.map(plan_launch, rows))
    for row, (predicted, why) in zip(rows, plans):
        if predicted is None:
            out.setdefault(why, []).append(row["name"])
            continue
        errors.append(predicted / float(row["gib"]) - 1)
        print(f"{row['name'][-60:]:60} {predicted:8.2f} {row['gib']:>6} GiB {100 * errors[-1]:+6.1f}%")
    print(f"\nleft out: {len(rows) - len(errors)} of {len(rows)} rows")
    for why, names in sorted(out.items(), key=lambda item: -len(item[1])):
        print(f"  {len(names):3} rows: {why}")
    print_errors("reserved", errors)


ENGINES = {"megatron_golden": golden, "ms_swift": swift}
for name in sys.argv[1:] or sys.exit(__doc__):
    ENGINES.get(name, lambda: compare(name))()
