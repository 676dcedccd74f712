#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What plans predict before and after `stowage validate --learn` from the recording of another model.

    learn.py FOLDER [CASES.jsonl] > table.md

FOLDER holds cluster.yaml and NAME.json for cases of CASES (learn_record.sh writes them). Every case that teaches something is
learned from alone; all others are planned anew with what it taught. STOWAGE names the program (default: build/bin/stowage)."""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from fsdp2_rows import STOWAGE, model_of, settings

LINES = {"host": ("host", "forward_backward"), "GPU": ("gpu device", "forward_backward"), "seconds": ("time", "forward_backward")}


def plan(case, cluster, out):
    command = [STOWAGE, "plan", "-q", "--model", model_of(case), "--cluster", str(cluster), "-o", str(out)]
    for key, value in settings(case).items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4, 9):
        sys.exit(f"{case['name']}: {done.stderr.strip()}")
    return out


def validate(plan_file, run, learn=None):
    """Errors of LINES (predicted over measured, less 1; host and GPU the furthest off), and what was learned."""
    command = [STOWAGE, "validate", "--json", str(plan_file), str(run)] + (["--learn", str(learn)] if learn else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"{run}: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    errors = {}
    for name, (what, phase) in LINES.items():
        found = [line["error"] for line in said["lines"] if (line["what"], line["phase"]) == (what, phase) and line["error"] is not None]
        if found:
            errors[name] = max(found, key=abs)
    return errors, said.get("learn")


def words(learned):
    shown = lambda key, value: f"{value:.3g}" if "efficiency" in key else f"{value / (1 << 20):.0f} MiB"
    return ", ".join(f"{i['key']} {shown(i['key'], i['value'])}" for i in learned["learned"])


def cell(before, after, name):
    return f"{100 * before[name]:+.1f}% | {100 * after[name]:+.1f}%" if name in before and name in after else " | "


def main():
    folder = pathlib.Path(sys.argv[1])
    cases_file = sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "learn_cases.jsonl"
    cases = [c for c in map(json.loads, open(cases_file, encoding="utf-8")) if (folder / f"{c['name']}.json").exists()]
    all_before, all_after, taught, lessons = {}, {}, [], {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        plans, before = {}, {}
        for case in cases:
            plans[case["name"]] = plan(case, folder / "cluster.yaml", scratch / f"{case['name']}.plan.json")
            before[case["name"]], _ = validate(plans[case["name"]], folder / f"{case['name']}.json")
        print("| learned from | case | host before | after | GPU before | after | seconds before | after |\n|---|---|--:|--:|--:|--:|--:|--:|")
        for teacher in cases:
            shutil.copy(folder / "cluster.yaml", scratch / f"{teacher['name']}.yaml")
            _, lessons[teacher["name"]] = validate(plans[teacher["name"]], folder / f"{teacher['name']}.json", scratch / f"{teacher['name']}.yaml")
        for teacher in cases:
            cluster, learned = scratch / f"{teacher['name']}.yaml", lessons[teacher["name"]]
            if learned is None:
                continue
            taught.append(f"- {teacher['name']}: {words(learned)}." + "".join(
                f"\n  {n['key']} is not learned: {n['why']}." for n in learned["not_learned"]))
            keys = " ".join(i["key"] for i in learned["learned"])
            for case in cases:
                if case is teacher:
                    continue
                after, _ = validate(plan(case, cluster, scratch / "after.json"), folder / f"{case['name']}.json")
                print(f"| {teacher['name']} | {case['name']} | {cell(before[case['name']], after, 'host')} | "
                      f"{cell(before[case['name']], after, 'GPU')} | {cell(before[case['name']], after, 'seconds')} |")
                like = lessons[case["name"]] is not None and "efficiency" in words(lessons[case["name"]])
                for name, key in (("host", "torch.process"), ("GPU", "gpu.context"), ("seconds", "efficiency")):
                    if key in keys and name in after:
                        group = f"seconds, {'long runs of wide models' if like else 'all others'}" if name == "seconds" else name
                        all_before.setdefault(group, []).append(abs(before[case["name"]][name]))
                        all_after.setdefault(group, []).append(abs(after[name]))
    print("\nMedian and largest error of another model, where the key was learned:\n")
    for name, values in all_before.items():
        print(f"- {name}: {len(values)} pairs: before {100 * statistics.median(values):.1f}% ({100 * max(values):.1f}%), "
              f"after {100 * statistics.median(all_after[name]):.1f}% ({100 * max(all_after[name]):.1f}%)")
    print("\n" + "\n".join(taught))


if __name__ == "__main__":
    main()
