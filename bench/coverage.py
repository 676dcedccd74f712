#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of each reader do the unit tests and the fuzz corpora execute? Lines and branches by gcov.

    bench/coverage.py OUT [--build build-map] [--tests REGEX] [--built]

Builds the unit tests and the fuzz targets without optimisation, runs them once (ctest labels unit
and fuzz; the targets replay their corpora) and counts, for every file that reads what others wrote,
the lines with code and the branches (both ways of each condition that the compiler made) that were
executed. Not all unit tests run: those of readers (TESTS). OUT/readers.csv has one row for each
file; the table is printed. Inputs that longer fuzzing
found are counted, too, where WORK (of bench/fuzz.sh) is named: --inputs WORK. Branches that only a
failing allocation takes stay open here: bench/fault_walk.sh takes those. Needs gcc, gcov, ninja.
"""
import argparse
import csv
import glob
import json
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READERS = [
    ("YAML", "core/tree_yaml.c core/yaml_edit.c"),
    ("JSON", "core/tree_json.c"),
    ("both, and scalars", "core/tree.c core/tree_read.c core/tree_file.c core/units.c"),
    ("any file", "core/file.c"),
    ("pickle", "core/pickle.c plan/measured/recording_snapshot.c"),
    ("safetensors", "models/safetensors*.c models/dtype.c"),
    ("config.json", "models/config*.c models/template*.c models/expression.c"),
    ("CSV", "models/table_csv.c models/list*.c models/name.c models/zoo_csv.c"),
    ("measured CSV, logs", "plan/measured/recording*_csv.c plan/measured/measured_csv.c "
                           "plan/measured/recording_log.c plan/measured/recording.c"),
    ("run.yaml, --set", "plan/spec/run_spec.c plan/spec/run_spec_check.c plan/spec/spec_read.c "
                        "plan/spec/spec_scalar.c plan/spec/spec_keys.c plan/spec/roles_check.c"),
    ("cluster.yaml", "plan/spec/cluster.c plan/spec/cluster_*.c plan/spec/gpu_*.c"),
    ("plan files", "plan/files/plan_read*.c plan/files/file_parts.c plan/files/checksums.c "
                   "plan/files/model_json.c plan/files/plan_roles.c"),
    ("run and sweep files", "plan/files/run_file*.c plan/files/sweep_file.c"),
    ("shell scripts", "planner/frameworks/import/shell*.c planner/frameworks/import/launch.c "
                      "planner/frameworks/import/flags.c planner/frameworks/import/reading.c"),
    ("frameworks' files", "planner/frameworks/import/*.c"),
    ("NVMe state", "backend/nvme/format.c backend/nvme/names.c backend/nvme/kept*.c "
                   "backend/nvme/cells.c"),
    ("other ranks' data", "backend/executor/agree*.c backend/comm/ranks.c"),
    ("/proc, /sys", "backend/record/tree.c backend/probe/files.c backend/probe/host.c "
                    "backend/probe/disk.c backend/host/cpus.c backend/limits.c backend/process.c"),
    ("probe of torch", "backend/probe/torch.c"),
]


# Tests of planners and engines read what these read, again and again.
TESTS = (r"^fuzz\.|^unit\.(core_|models_|backend_(nvme|nvme_kept|agree|ranks|record|cpus|limits|probe)$|"
         r"plan_(file|run_|recording|cluster|specs|words|edits|registry|asked|compare|learn|"
         r"allocator_history)|planner_(import|scripts|shell|verl|launch|frameworks|described))")


def built(folder, tests):
    if not os.path.exists(f"{folder}/build.ninja"):
        subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                        "-DCMAKE_C_FLAGS_DEBUG=-O0 -g0 -DNDEBUG --coverage -fprofile-abs-path",
                        "-DSTW_TESTS=ON", "-DSTW_CUDA=OFF", "-DSTW_SHARED=OFF"],
                       check=True, stdout=subprocess.DEVNULL)
    names = [os.path.basename(p)[:-2] for p in glob.glob(f"{ROOT}/tests/unit/test_*.c")]
    units = sorted(n for n in names if re.search(tests, n.replace("test_", "unit.", 1)))
    subprocess.run(["ninja", "-C", folder, "-j", os.environ.get("JOBS", "2"), "stowage",
                    "stowage-run", "stw_mpi", "fuzz_targets", *units], check=True,
                   stdout=subprocess.DEVNULL)


def data_of(folder):
    return [f"{at}/{name}" for at, _, names in os.walk(f"{folder}/CMakeFiles") for name in names
            if name.endswith(".gcda")]


def counted(folder):
    """@return {source: {line: (executed?, [branch taken?])}}"""
    found = {}
    notes = [f"{at}/{name}" for at, _, names in os.walk(f"{folder}/CMakeFiles") for name in names
             if name.endswith(".gcno") and any(f"/{room}.dir/" in at for room in (
                 "stw_core", "stw_models", "stw_models_csv", "stw_plan", "stw_plan_csv",
                 "stw_planner", "stw_backend"))]
    for first in range(0, len(notes), 50):
        out = subprocess.run(["gcov", "-j", "-b", "-t", *notes[first:first + 50]], cwd=folder,
                             capture_output=True, text=True).stdout
        for document in filter(None, out.split("\n")):
            for source in json.loads(document)["files"]:
                lines = found.setdefault(os.path.relpath(os.path.join(folder, source["file"]), ROOT), {})
                for line in source["lines"]:
                    hit, branches = lines.get(line["line_number"], (False, []))
                    new = [b["count"] > 0 for b in line["branches"] if not b["throw"]]
                    lines[line["line_number"]] = (hit or line["count"] > 0, branches + new)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--build", default=f"{ROOT}/build-map")
    parser.add_argument("--tests", default=TESTS, help="names of tests, as ctest -R takes them")
    parser.add_argument("--inputs", help="WORK of bench/fuzz.sh: inputs that reached new code")
    parser.add_argument("--built", action="store_true", help="neither build nor run again")
    args = parser.parse_args()
    folder = os.path.abspath(args.build)
    os.makedirs(args.out, exist_ok=True)
    if not args.built:
        built(folder, args.tests)
        for path in data_of(folder):
            os.remove(path)
        subprocess.run(["ctest", "--test-dir", folder, "-L", "unit|fuzz", "-E", "mutate", "-R",
                        args.tests, "--output-on-failure"], check=True)
        for target in glob.glob(f"{args.inputs}/*/inputs") if args.inputs else []:
            name = os.path.basename(os.path.dirname(target))
            subprocess.run([f"{folder}/tests/fuzz_{name}", target], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found, seen, rows = counted(folder), set(), []
    for kind, patterns in READERS:
        for path in sorted(p for pattern in patterns.split() for p in glob.glob(f"{ROOT}/{pattern}")):
            source = os.path.relpath(path, ROOT)
            lines = found.get(source, {}).values()
            if source in seen or not lines:
                continue
            seen.add(source)
            branches = [b for _, all_ in lines for b in all_]
            rows.append([kind, source, len(lines), sum(hit for hit, _ in lines), len(branches),
                         sum(branches)])
    with open(f"{args.out}/readers.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["reader", "file", "lines", "lines_executed", "branches",
                         "branches_executed"])
        writer.writerows(rows)
    print("| reads | files | lines | executed | branches | executed |\n|---|---|---|---|---|---|")
    for kind in list(dict.fromkeys(r[0] for r in rows)) + ["all"]:
        part = [r for r in rows if kind in (r[0], "all")]
        lines, hit, branches, taken = (sum(r[i] for r in part) for i in (2, 3, 4, 5))
        print(f"| {kind} | {len(part)} | {lines:,} | {100 * hit / lines:.1f}% | {branches:,} | "
              f"{100 * taken / max(branches, 1):.1f}% |")


if __name__ == "__main__":
    main()
