#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `stowage plan` proposes where nothing fits: fixes.py [-j JOBS] [-o RAW.json] [PATTERN]

Plans each line of fixes.txt whose name matches PATTERN, then every fix with its options pasted: the
verdict must be the one told, and the seconds within 0.1%. CPU seconds (user) are of the first plan.
STOWAGE names the program (default: build/bin/stowage). Exit 1: a fix differs, or there is none.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
STOWAGE = os.environ.get("STOWAGE", os.path.join(HERE, "..", "build", "bin", "stowage"))


def plan(arguments, folder, name):
    """The plan's file, or None, and its CPU seconds."""
    path = os.path.join(folder, name)
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.execvp(STOWAGE, [STOWAGE, "plan", "-q", "-o", path, *arguments])
    usage = os.wait4(child, 0)[2]
    if not os.path.exists(path):
        return None, usage.ru_utime
    with open(path, encoding="utf-8") as file:
        return json.load(file), usage.ru_utime


def seconds_of(folder, name):
    rows = os.path.join(folder, name + ".csv")
    subprocess.run([STOWAGE, "report", "-q", os.path.join(folder, name), "-o", rows],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    with open(rows, encoding="utf-8") as file:
        return [float(line.split(",")[5]) for line in file if ",headline,,,iteration," in line][0]


def check(line):
    """A row: name, CPU seconds, fixes, how many fit, and what differs."""
    name, arguments = line.split(" ", 1)
    arguments = shlex.split(arguments)
    row = {"name": name, "arguments": arguments, "fixes": [], "differ": []}
    with tempfile.TemporaryDirectory() as folder:
        told, row["cpu_s"] = plan(arguments, folder, "plan.json")
        if told is None or not told.get("infeasible"):
            row["differ"].append("no plan" if told is None else "it fits")
            return row
        row["fixes"] = told["infeasible"]["fixes"]
        for i, fix in enumerate(row["fixes"]):
            options = [c["set"] + "=" + c["value"] for c in fix["changes"]]
            pasted = [word for o in options for word in ("--set", o)]
            made, _ = plan(arguments + pasted, folder, f"{i}.json")
            verdict = "at_risk" if fix["at_risk"] else "fits"
            if made is None or made["verdict"] != verdict:
                row["differ"].append([options, verdict, made and made["verdict"]])
            elif fix["iteration_s"] is None:
                row["differ"].append([options, "no seconds"])
            else:
                seconds = seconds_of(folder, f"{i}.json")
                if abs(seconds - fix["iteration_s"]) > 1e-3 * seconds:
                    row["differ"].append([options, fix["iteration_s"], seconds])
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-j", type=int, default=1)
    parser.add_argument("-o")
    parser.add_argument("pattern", nargs="?", default="")
    given = parser.parse_args()
    with open(os.path.join(HERE, "fixes.txt"), encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith("#")]
    lines = [line for line in lines if re.search(given.pattern, line.split(" ", 1)[0])]
    with concurrent.futures.ThreadPoolExecutor(given.j) as pool:
        rows = list(pool.map(check, lines))
    bad = 0
    for row in rows:
        fits = sum(not fix["at_risk"] for fix in row["fixes"])
        wrong = len(row["differ"]) + (not row["fixes"])
        bad += wrong
        print(f"{row['name']:4} {row['cpu_s']:6.2f} CPU s  {len(row['fixes'])} fixes, {fits} fit"
              + (f"  {row['differ'] or 'none'}" if wrong else ""))
    spent = [row["cpu_s"] for row in rows]
    print(f"{len(rows)} plans, at most {max(spent):.2f} CPU s; {sum(len(r['fixes']) for r in rows)}"
          f" fixes pasted, {bad} differ or are missing")
    if given.o:
        with open(given.o, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
