#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Imports every file of a folder and plans it; prints a table of verdicts.

usage: imports.py FRAMEWORK FOLDER [--cluster NAME] [--models FILE]

The cluster has as many nodes as the launch (NAME is a node, h100-80g-x8 by default); a launch on
fewer GPUs than a node gets such a node. FILE has lines "file model" for files that name no model of
the zoo. Nothing is downloaded: the folder is the caller's."""
import argparse
import json
import os
import re
import subprocess
import tempfile

STOWAGE = os.environ.get("STOWAGE", "build/bin/stowage")


def run(*args):
    return subprocess.run([STOWAGE, *args], capture_output=True, text=True, timeout=300)


def launched(source):
    """GPUs that the file launches."""
    found = re.search(r"The launch has (\d+) GPUs", run("inspect", source).stdout)
    return int(found.group(1)) if found else 8


def plan(source, node, nodes, gpus, model, out):
    args = ["plan", "--from", source, "--cluster", node, "--set", f"nodes={nodes}",
            "--set", f"node.gpus={gpus}", "--time-limit", "20", "-o", out]
    return run(*args, *(["--model", model] if model else []))


def reason(text):
    lines = [l for l in text.splitlines() if l.startswith("stowage: error:")]
    return re.sub(r"^stowage: error: (\S+: )?", "", lines[-1])[:110] if lines else "?"


def row(framework, path, node, model):
    source = f"{framework}:{path}"
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "plan.json")
        gpus = launched(source)
        done = plan(source, node, max(gpus // 8, 1), min(gpus, 8), model, out)
        unknown = re.findall(r"warning: (\S+) .*: not known", done.stderr)
        aside = len(re.findall(r"not modelled", done.stderr))
        if done.returncode not in (0, 4, 9):
            return [gpus, "refused", "", unknown, aside, reason(done.stderr)]
        made = json.load(open(out))
        first = done.stdout.strip().splitlines()[0].strip()
        return [gpus, made["verdict"] if isinstance(made.get("verdict"), str) else first,
                made["run"]["engine"], unknown, aside, first[:110]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("framework")
    parser.add_argument("folder")
    parser.add_argument("--cluster", default="h100-80g-x8")
    parser.add_argument("--models")
    options = parser.parse_args()
    models = dict(l.split() for l in open(options.models)) if options.models else {}
    print("| file | GPUs | engine | unknown keys | not modelled | verdict |\n|---|---|---|---|---|---|")
    for name in sorted(os.listdir(options.folder)):
        path = os.path.join(options.folder, name)
        gpus, verdict, engine, unknown, aside, said = row(
            options.framework, path, options.cluster, models.get(name))
        print(f"| {name} | {gpus} | {engine} | {' '.join(unknown) or 'none'} | {aside} | "
              f"{'refused: ' if verdict == 'refused' else ''}{said} |", flush=True)


if __name__ == "__main__":
    main()
