#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is what `stowage size` finds the smallest, and the cheapest? Makes its rows (CPU seconds of each), then plans beside every
row, as `stowage plan` does, by a loop of its own over counts and layouts:

- the commands of the row, which must give its verdict, peak and seconds;
- counts below the smallest, with the run's own layout, that of the row, `parallel=auto`, and --draws random layouts of the row's
  engine: none may fit (the next one below; all of them with --all-below);
- 1,024 tokens more than the longest sequence and one sequence more than the largest micro batch, which must not fit (without risk
  where the row has none);
- counts up to the bound of the cheapest (--counts of them, evenly in their logarithm, and those beside the cheapest; 0: all),
  each with --draws random layouts of the row's engines, with the layout of the cheapest, and with `parallel=auto`: none that
  fits may have 2% fewer GPU-hours.

Rows take turns, one plan at a time, until all is done or --seconds from the start are over. A row that `size` has not made within
--row-seconds is left out and named. Prints one line for each row; exit code 1 if any fails.

    python3 bench/size_minimal.py [--stowage build/bin/stowage] [--models A,B] [--gpus A,B] [--jobs N] [--all-below]
        [--counts 4] [--draws 4] [--seed 1] [--seconds S] [--row-seconds S] [--table FILE.json]     # a table that is there already
"""
import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

MODELS = "Qwen3-8B,Qwen3-32B,Qwen3-30B-A3B,Qwen3-235B-A22B,Llama-3.1-70B,Llama-3.1-405B,DeepSeek-V3"
GPUS_OF_NODE = 8
GPUS = "a100-40g,a100-80g,h100-80g,h200,b200"
NEAR = 0.02
FITTING = ("fits", "at_risk")


def point(arguments, row, nodes, gpus, settings):
    """One point of `stowage sweep`: it is planned as `stowage plan` does, without a search for fixes."""
    cluster = row["kind"] + "-x8" + (f":{gpus}" if gpus < GPUS_OF_NODE else "")
    command = [arguments.stowage, "sweep", "--model", row["model"], "--cluster", cluster, "-q", "--json",
               "--time-limit", str(arguments.time_limit), "--vary", f"nodes={nodes}", "--jobs", "1"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, text=True)
    if not done.stdout.strip():
        return {"verdict": "error", "reason": done.stderr.strip()}
    return json.loads(done.stdout)["rows"][0]


def hours(found):
    """GPU-hours of 10^9 tokens."""
    return found["gpus"] / found["tokens_per_s"] / 3600 * 1e9 if found.get("tokens_per_s") else float("inf")


def counts_of(row):
    """All counts up to the bound: GPUs of a node, then nodes."""
    most = max(16, 4 * row["nodes"])
    return [(1, g) for g in range(1, GPUS_OF_NODE)] + [(n, GPUS_OF_NODE) for n in range(1, most + 1)]


def sample(counts, n):
    """So many, evenly in the logarithm of the GPUs, the largest among them."""
    if n == 0 or n >= len(counts):
        return counts
    most, least = counts[-1][0] * counts[-1][1], counts[0][0] * counts[0][1]
    wanted = [least * (most / least) ** (i / max(n - 1, 1)) for i in range(n)]
    return sorted({min(counts, key=lambda c, w=w: abs(c[0] * c[1] - w)) for w in wanted})


def draw(dice, row, nodes, gpus, engine):
    """A random layout with the tokens of a step that the run has by itself."""
    world = nodes * gpus
    powers = [1, 2, 4, 8, 16, 32, 64, 128]
    words, ways = [], 1
    if engine == "megatron":
        tp, pp = dice.choice([w for w in (1, 2, 4, 8) if gpus % w == 0]), dice.choice([w for w in powers[:6] if world % w == 0])
        words += [f"engine={engine}", f"parallel.tp={tp}", f"parallel.pp={pp}"] + (["parallel.sequence_parallel=true"] if tp > 1 else [])
        ways = tp * pp
    cp = dice.choice([1, 1, 2, 4])
    ways *= cp
    words += [f"parallel.cp={cp}"] if cp > 1 else []
    if "A" in row["model"].rsplit("-", 1)[-1][:1] or "V3" in row["model"]:
        words.append(f"parallel.ep={dice.choice(powers)}")
    if world % ways:
        return None
    micro = dice.choice([m for m in (1, 2, 4) if ways % m == 0])
    words += [f"batch.micro_batch={micro}", f"batch.grad_accumulation={ways // micro}"]
    if engine != "megatron":
        words.append(f"loss.fused={dice.choice(('true', 'false'))}")
    return words


def own_layout(layout, world):
    """The layout of a row on another count, its experts spread as far as they can."""
    words = []
    for word in layout:
        key, value = word.split("=", 1)
        if key == "parallel.ep":
            value = str(max(way for way in range(1, int(value) + 1) if int(value) % way == 0 and world % way == 0))
        words.append(f"{key}={value}")
    return words


class Row:
    """A row of the table, and what was found beside it."""

    def __init__(self, answer):
        self.answer = answer
        self.wrong, self.plans, self.late = [], 0, 0
        self.best = (float("inf"), None, None)

    def check_command(self, arguments, part, name):
        """The command of a row gives what the row says."""
        path = os.path.join(arguments.folder, f"{id(self)}-{name}.json")
        command = [arguments.stowage] + shlex.split(part["command"])[1:]
        subprocess.run(command + ["-q", "-o", path, "--time-limit", str(arguments.time_limit)], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        with open(path) as file:
            text = file.read()
        plan = json.loads(text)
        seconds, peak = plan["time_s"]["iteration"], int(re.search(r'"peak": (\d+)', text)[1])
        if plan["verdict"] != part["verdict"]:
            self.wrong.append(f"the {name} is {plan['verdict']} by its command")
        elif abs(seconds / part["iteration_s"] - 1) > 1e-9:
            self.wrong.append(f"the {name} takes {seconds} s by its command, not {part['iteration_s']}")
        elif peak != part["gpu_peak_bytes"]:
            self.wrong.append(f"the {name} has another peak by its command")

    def check_unfit(self, arguments, words, size, settings, without_risk=False):
        """A point that must not fit. @param without_risk what is at risk does not"""
        found = point(arguments, self.answer, *size, settings)
        if found["verdict"] == "time_limit":
            self.late += 1
        elif found["verdict"] not in ("does_not_fit", "refused") + (("at_risk",) if without_risk else ()):
            self.wrong.append(f"{words} ({found['verdict']}{' ' + found['reason'] if found.get('reason') else ''})")

    def check_hours(self, arguments, size, settings):
        """A point that must not be cheaper."""
        found = point(arguments, self.answer, *size, settings)
        self.late += found["verdict"] == "time_limit"
        if found["verdict"] == "fits" or found["verdict"] == self.answer["cheapest"]["verdict"]:
            self.best = min(self.best, (hours(found), size, " ".join(settings)))

    def smallest_tasks(self, arguments):
        """Points that say whether the smallest is."""
        layout, here = self.answer["layout"], (self.answer["nodes"], self.answer["gpus_per_node"])
        engine = [word for word in layout if word.startswith("engine=")]
        dice = random.Random(f"below {arguments.seed} {self.answer['model']} {self.answer['kind']}")
        counts = counts_of(self.answer)
        below = counts[:counts.index(here)][::-1]
        cases, calm = [], self.answer["verdict"] == "fits"
        for size in below if arguments.all_below else below[:1]:
            words = f"{size[0]} x {size[1]} GPUs fit with"
            cases += [(f"{words} the run's layout", size, engine), (f"{words} parallel=auto", size, engine + ["parallel=auto"])]
            cases += [(f"{words} the row's layout", size, layout)] if layout else []
            drawn = [draw(dice, self.answer, *size, self.answer["engine"]) for _ in range(arguments.draws)]
            cases += [(f"{words} {' '.join(settings)}", size, settings) for settings in drawn if settings is not None]
        cases += [("a longer sequence fits", here, layout + [f"batch.seq_len={self.answer['longest_seq_len'] + 1024}"], calm),
                  ("a larger micro batch fits", here, layout + [f"batch.micro_batch={self.answer['largest_micro_batch'] + 1}"], calm)]
        return [lambda c=case: self.check_unfit(arguments, *c) for case in cases]

    def cheapest_tasks(self, arguments):
        """Points that say whether the cheapest is: what is quick first."""
        cheapest = self.answer["cheapest"]
        dice = random.Random(f"{arguments.seed} {self.answer['model']} {self.answer['kind']}")
        counts = counts_of(self.answer)
        counts = counts[counts.index((self.answer["nodes"], self.answer["gpus_per_node"])):]
        at = counts.index((cheapest["nodes"], cheapest["gpus_per_node"]))
        sizes = sorted(set(sample(counts, arguments.counts)) | set(counts[max(at - 1, 0):at + 2]))
        cases = [(size, own_layout(cheapest["layout"], size[0] * size[1])) for size in sizes]
        for _ in range(arguments.draws):
            for size in sizes:
                for engine in sorted({self.answer["engine"], cheapest["engine"]}):
                    cases.append((size, draw(dice, self.answer, *size, engine)))
        for size in sizes:
            engine = [word for word in self.answer["layout"] if word.startswith("engine=")]
            cases.append((size, engine + ["parallel=auto"]))
            if cheapest["engine"] != self.answer["engine"]:
                cases.append((size, [f"engine={cheapest['engine']}", "parallel=auto"]))
        return [lambda c=case: self.check_hours(arguments, *c) for case in cases if case[1] is not None]

    def tasks(self, arguments):
        """All points of the row, as calls."""
        calls = [lambda: self.check_command(arguments, self.answer, "smallest")] + self.smallest_tasks(arguments)
        if "cheapest" in self.answer:
            calls.append(lambda: self.check_command(arguments, self.answer["cheapest"], "cheapest"))
            calls += self.cheapest_tasks(arguments)
        return calls

    def tell(self):
        """Its line. Does it hold?"""
        row, there = self.answer, self.answer.get("cheapest", self.answer)
        cost = there["gpu_hours_per_1e9_tokens"]
        if self.best[0] < cost * (1 - NEAR):
            self.wrong.append(f"cheaper: {self.best[1][0]} x {self.best[1][1]} GPUs, {self.best[2]}")
        print(f"{row['model']:16} {row['kind']:9} {row['cpu_s']:5.1f} s; {row['nodes']} x {row['gpus_per_node']} "
              f"{' '.join(row['layout'])}; cheapest {there['nodes']} x {there['gpus_per_node']} {' '.join(there['layout'])} "
              f"{cost:.1f} GPU-hours, the loop's {self.best[0]:.1f} ({self.best[1]} {self.best[2]}), {cost / self.best[0] - 1:+.1%}; "
              f"{self.plans} plans, {self.late} late: {'; '.join(self.wrong) if self.wrong else 'holds'}", flush=True)
        return not self.wrong


def table_of(arguments, pool):
    """The rows of `stowage size`, with the CPU seconds that each took."""
    if arguments.table:
        with open(arguments.table) as file:
            table = json.load(file)
        return [kind | {"model": m["model"], "cpu_s": 0} for m in table.get("models", [table]) for kind in m["kinds"]]

    def row_of(case):
        command = [arguments.stowage, "size", "--model", case[0], "--gpus", case[1], "--json", "-q", "--jobs", "1"]
        with tempfile.TemporaryFile() as file:
            child = subprocess.Popen(command, stdout=file)
            late = threading.Timer(arguments.row_seconds, child.kill)
            late.start()
            _, status, used = os.wait4(child.pid, 0)
            late.cancel()
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode < 0:
                print(f"{case[0]:16} {case[1]:9} `size` took more than {arguments.row_seconds:g} s", flush=True)
                return None
            file.seek(0)
            table = json.load(file)
        return table["kinds"][0] | {"model": table["model"], "cpu_s": used.ru_utime + used.ru_stime}

    start = time.monotonic()
    made = pool.map(row_of, [(model, kind) for model in arguments.models.split(",") for kind in arguments.gpus.split(",")])
    rows = [row for row in made if row]
    print(f"size: {time.monotonic() - start:.1f} s wall, {sum(row['cpu_s'] for row in rows):.1f} s CPU", flush=True)
    return rows


def run_all(end, pool, tasks):
    """Points of all rows in turn, until all are done or the time is over."""

    def run_one(case):
        if time.monotonic() < end:
            case[1]()
            case[0].plans += 1

    turns = [(row, calls[i]) for i in range(max(map(len, tasks.values()), default=0)) for row, calls in tasks.items() if i < len(calls)]
    list(pool.map(run_one, turns))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stowage", default=os.path.join("build", "bin", "stowage"))
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=120)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--row-seconds", type=float, default=600)
    parser.add_argument("--all-below", action="store_true")
    parser.add_argument("--counts", type=int, default=4)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as arguments.folder, ThreadPoolExecutor(arguments.jobs) as pool:
        answers = table_of(arguments, pool)
        rows = [Row(answer) for answer in answers if answer["verdict"] in FITTING]
        run_all(end, pool, {row: row.tasks(arguments) for row in rows})
    failed = sum(not row.tell() for row in rows)
    for answer in answers:
        if answer["verdict"] not in FITTING:
            print(f"{answer['model']:16} {answer['kind']:9} does not fit; fits with {answer.get('fits_with')}")
    print(f"{len(rows)} rows fit, {failed} of them fail, {sum(row.plans for row in rows)} plans")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
