#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the tests notice small changes of backend/ and plan/program/? Makes COUNT random changes
(operators, constants, conditions, statements that are removed, arguments, statuses: see
mutants_edits.py), one at a time, and runs the tests that execute the changed line, the quickest
first, until one fails.

    bench/mutants.py OUT [--seed 1] [--count 200] [--files REGEX] [--redo OUT/mutants.csv]

Lines of code are divided into COUNT strata of equal length; each gives one change. A change that
does not compile, or whose objects are those of the original, is replaced by another. Which tests
execute a line is measured by gcov (MAP), scripts follow by folder; the changed objects are linked before the libraries
of BUILD (-O1, with the leak checker), so that nothing is written into the source tree. Tests run
in a namespace of their own where only BUILD can be written. A test that ends with another status,
leaks, or takes eight times its CPU time and 20 s more kills; a script that failed must fail twice.

OUT/mutants.csv: one line for each change; OUT/README's figures are printed last. Needs gcc, gcov,
ninja, unshare (root or user namespaces). Left out: CUDA sources, which nothing executes without a
GPU; they are listed. One core; 200 changes take about half an hour of it.
"""
import argparse
import csv
import json
import os
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mutants_edits  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("backend/", "plan/program/")
LEFT_OUT = re.compile(r"backend/cuda/|backend/host/loops_avx512\.c|/(nvtx/abi|stowage_mpi)\.h")
# Other rooms' tests, and those that take too long, are left out.
UNIT = re.compile(r"unit\.(backend_(?!damage)|engine_(?!megatron_fsdp)|sim_(?!timeline)|"
                  r"plan_(allocator|allocator_history|blocks|bytes|demand|effect|file|golden|iteration|ledger|memory|"
                  r"parts|program|refused|replay|roles|share|shares|sizes|space|work|keys_moe)$|planner_(reading|rows)$)")
# Scripts run last, by folder: what gcov counts in ranks that are killed is lost.
SCRIPTS = [("backend/comm/", ["ranks", "ranks_refuse", "ranks_stopped", "ranks_disagree"]),
           ("backend/mpi/", ["ranks", "ranks_refuse", "ranks_stopped"]),
           ("backend/executor/", ["ranks", "ranks_disagree", "state_ranks", "weights", "roles_run",
                                  "placements", "state"]),
           ("backend/nvme/", ["state", "state_ranks"]),
           ("backend/probe/", ["calibrate", "calibrate_torch", "memory"]),
           ("backend/limits", ["memory", "state"]), ("backend/process", ["state", "state_ranks"]),
           ("backend/host/", ["placements", "ceiling"]), ("backend/record/", ["record", "record_ends"]),
           ("backend/nvtx/", ["nvtx"]), ("backend/", ["placements"]),
           ("plan/program/", ["verified", "placements"])]
KEYS = "unit.plan_keys_moe"  # sets every key; for what says which keys have an effect
CLI = re.compile(r"cli\.(" + "|".join(sorted({n for _, names in SCRIPTS for n in names})) + ")$")
FLAGS = ["-g0", "-Werror=incompatible-pointer-types", "-Werror=int-conversion",
         "-Werror=implicit-function-declaration", "-Werror=return-type", "-Werror=parentheses"]
LEAST_FREE_KB = 3 << 20  # of memory and of the disk; a test that leaves less is ended


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def build(folder, flags, link=""):
    # Always: tests may have come since, and a campaign that was ended may have left a change's program.
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                    f"-DCMAKE_C_FLAGS_DEBUG={flags}", f"-DCMAKE_EXE_LINKER_FLAGS={link}",
                    "-DSTW_TESTS=ON", "-DSTW_CUDA=OFF", "-DSTW_SHARED=OFF",
                    *(["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else [])],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for at in ("tests", "bin", "lib/stowage"):
        for name in os.listdir(f"{folder}/{at}") if os.path.isdir(f"{folder}/{at}") else []:
            if name.endswith(".original"):
                os.replace(f"{folder}/{at}/{name}", f"{folder}/{at}/{name[:-9]}")
    targets = sorted({os.path.basename(t["command"][0]) for t in tests_of(folder)
                      if t["label"] == "unit"})
    subprocess.run(["ninja", "-C", folder, "-j", os.environ.get("JOBS", "2"), "stowage",
                    "stowage-run", "ceiling", "write_safetensors", "stw_mpi", "stw_nvtx", *targets],
                   check=True, stdout=subprocess.DEVNULL)


def tests_of(folder):
    found = []
    out = run(["ctest", "--test-dir", folder, "--show-only=json-v1"], check=True).stdout
    for test in json.loads(out)["tests"]:
        properties = {p["name"]: p["value"] for p in test["properties"]}
        label = properties["LABELS"][0]
        if UNIT.match(test["name"]) or CLI.match(test["name"]):
            command = test.get("command") or [f"{folder}/tests/test_{test['name'][5:]}"]
            found.append({"name": test["name"], "label": label, "command": command,
                          "folder": properties["WORKING_DIRECTORY"],
                          "env": dict(e.split("=", 1) for e in properties["ENVIRONMENT"])})
    return found


SANDBOX = ('mount --bind "$0" "$0" && mount -t tmpfs none /tmp && mount -o remount,bind,ro / && '
           'cd "$1" && shift && exec "$@"')


def limits():
    os.nice(max(0, 10 - os.nice(0)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def room(folder):
    """KiB of memory or, if less, of the disk."""
    with open("/proc/meminfo", encoding="ascii") as info:
        memory = int(re.search(r"MemAvailable:\s+(\d+)", info.read())[1])
    disk = os.statvfs(folder)
    return min(memory, disk.f_bavail * disk.f_frsize >> 10)


def run_test(test, writable, seconds, env=None):
    """@return (status or "time" or "room", CPU seconds, wall seconds)"""
    everything = dict(os.environ, **test["env"], **(env or {}))
    shutil.rmtree(test["folder"], ignore_errors=True)
    os.makedirs(test["folder"])
    user = [] if os.geteuid() == 0 else ["-Ur"]
    begin, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        ["unshare", *user, "-pmf", "--mount-proc", "--kill-child", "sh", "-c", SANDBOX, writable,
         test["folder"], *test["command"]],
        env=everything, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=limits)
    status = None
    while status is None:
        try:
            status = process.wait(0.5)
        except subprocess.TimeoutExpired:
            if time.time() - begin > seconds or room(writable) < LEAST_FREE_KB:
                status = "time" if time.time() - begin > seconds else "room"
                process.kill()
                process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return status, cpu, time.time() - begin


# ---- which tests execute a line ----

def source_of(name, folder):
    """Relative to the source tree; ccache may have made it relative to the build."""
    return os.path.relpath(os.path.join(folder, name), ROOT)


def lines_of_gcov(folder, notes):
    """Reads what one test left in `folder`. @return {source: {line}}"""
    data = []
    for at, _, names in os.walk(folder):
        for name in names:
            path = f"{at}/{name}"
            note = notes + path[len(folder) + len(notes):-len("gcda")] + "gcno"
            if name.endswith(".gcda") and re.search(r"stw_(backend|plan|blocks|engines|mpi|nvtx)", path):
                if not os.path.exists(path[:-4] + "gcno"):
                    os.symlink(note, path[:-4] + "gcno")
                data.append(path)
    lines = {}
    for first in range(0, len(data), 50):
        out = run(["gcov", "-j", "-t", *data[first:first + 50]], cwd=folder).stdout
        for document in filter(None, out.split("\n")):
            for source in json.loads(document)["files"]:
                name = source_of(source["file"], notes)
                if name.startswith(FOLDERS):
                    lines.setdefault(name, set()).update(
                        line["line_number"] for line in source["lines"] if line["count"])
    return lines


def make_map(folder, out, wanted):
    """@return {source: {line: [test]}}; of every line that has code, those of no test, too"""
    path, known = f"{out}/map.json", {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            known = json.load(file)
    for test in tests_of(folder):
        if test["name"] in known or test["name"] == KEYS or test["label"] != "unit" or not re.search(wanted, test["name"]):
            continue
        data = f"{folder}/gcda"
        shutil.rmtree(data, ignore_errors=True)
        os.makedirs(data, exist_ok=True)
        status, cpu, _ = run_test(test, folder, 900, {"GCOV_PREFIX": data})
        if status == 127:
            raise SystemExit(f"{test['name']}: there is no {test['command'][0]}")
        known[test["name"]] = {k: sorted(v) for k, v in lines_of_gcov(data, folder).items()}
        print(f"map: {test['name']} status {status} {cpu:.1f} s", flush=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(known, file)
    found = {}
    for name, sources in known.items():
        for source, lines in sources.items():
            for line in lines:
                found.setdefault(source, {}).setdefault(str(line), []).append(name)
    return found


# ---- builds of a change ----

class Build:
    """The build tree in which changes are compiled and linked."""

    def __init__(self, folder):
        self.folder = folder
        self.tests = {t["name"]: t for t in tests_of(folder)}
        self.links, self.replaced = {}, {}
        with open(f"{folder}/compile_commands.json", encoding="utf-8") as file:
            self.commands = {re.search(r" -o (\S+)", e["command"])[1]: e for e in json.load(file)}
        self.users, output = {}, None  # header or source: objects
        for line in run(["ninja", "-C", folder, "-t", "deps"]).stdout.split("\n"):
            if line and line[0] not in " n":
                output = line.split(":")[0]
            elif line.startswith("    "):
                name = os.path.relpath(os.path.join(folder, line.strip()), ROOT)
                self.users.setdefault(name, []).append(output)

    def objects(self, source):
        """Objects of the rooms, modules and programs of tests that include or are the source."""
        wanted = re.compile(r"stw_(backend|plan|blocks|engines|mpi|mpi_alone|nvtx|planner|sim|reports)\.dir|"
                            r"test_\w+\.dir|stowage(-run)?\.dir")
        return [o for o in self.users.get(source, []) if wanted.search(o)]

    def compile(self, obj, overlay, source, out):
        """With `overlay` before the source tree. @return is there an object?"""
        entry = self.commands[obj]
        words = shlex.split(entry["command"])
        words = words[1:] if words[0].endswith("ccache") else words
        words[words.index("-o") + 1] = out
        words[words.index("-c") + 1] = (f"{overlay}/{source}" if source.endswith(".c") else
                                        entry["file"])
        words[1:1] = [f"-I{overlay}"]
        done = run(words + FLAGS, cwd=entry["directory"])
        return done.returncode == 0

    def link(self, target, objects):
        """Links a target with objects in place of, or before, its own. `objects`: {own: changed}"""
        if target not in self.links:
            self.links[target] = run(["ninja", "-C", self.folder, "-t", "commands", target],
                                     check=True).stdout.strip().split("\n")[-1]
        command, first = self.links[target], []
        for own, changed in objects.items():
            if f" {own} " in command:
                command = command.replace(f" {own} ", f" {changed} ")
            elif ".dir/" in own and own.split("/")[1].startswith(
                    ("stw_backend", "stw_plan", "stw_blocks", "stw_engines", "stw_sim", "stw_reports")):
                if own.split("/")[1] == "stw_planner.dir" and "libstw_planner.a" not in command:
                    continue
                if own.split("/")[1] == "stw_sim.dir" and "libstw_sim.a" not in command:
                    continue
                first.append(changed)
        command = command.replace(f" -o {target}", f" -o {target} " + " ".join(first), 1)
        path = f"{self.folder}/{target}"
        if target not in self.replaced:
            os.rename(path, path + ".original")
            self.replaced[target] = path
        return run(["sh", "-c", command], cwd=self.folder).returncode == 0

    def restore(self):
        for path in self.replaced.values():
            os.replace(path + ".original", path)
        self.replaced = {}

    def targets(self, test, source):
        if test["label"] == "unit":  # ranks load the plugin
            return [os.path.relpath(test["command"][0], self.folder)] + [
                "lib/stowage/stowage-mpi.so"] * source.startswith("backend/mpi/")
        if source.startswith("backend/nvtx/"):
            return ["lib/stowage/stowage-nvtx.so"]
        if source.startswith("backend/mpi/"):
            return ["lib/stowage/stowage-mpi.so"]
        return ["bin/stowage", "bin/stowage-run"]


# ---- the changes ----

def code_lines(regex):
    """All lines with something to change, as (source, line number), and their changes by kind."""
    out = run(["git", "ls-files", *FOLDERS], cwd=ROOT, check=True).stdout.split()
    sources = [s for s in out if s.endswith((".c", ".h")) and os.path.exists(f"{ROOT}/{s}")]
    left_out = [s for s in out if LEFT_OUT.search(s)]
    found, texts = [], {}
    for source in sources:
        if LEFT_OUT.search(source):
            continue
        with open(f"{ROOT}/{source}", encoding="utf-8") as file:
            texts[source] = file.read()
    names = (sorted({m for t in texts.values() for m in mutants_edits.STATUS.findall(t)}),
             sorted({m for t in texts.values() for m in mutants_edits.ENUM.findall(t)}))
    edits = {}
    for source, text in texts.items():
        if not re.search(regex, source):
            continue
        masked, start = mutants_edits.mask(text), 0
        for number, line in enumerate(masked.split("\n"), 1):
            kinds = mutants_edits.edits(text, masked, start, start + len(line), names)
            if kinds:
                found.append((source, number))
                edits[source, number] = kinds
            start += len(line) + 1
    return found, edits, texts, left_out


def plan(count, seed, regex):
    """@return for each stratum its changes in random order: (source, line, kind, first, last, new)"""
    chance = random.Random(seed)
    lines, edits, texts, left_out = code_lines(regex)
    strata = []
    for i in range(count):
        part = lines[len(lines) * i // count:len(lines) * (i + 1) // count]
        chance.shuffle(part)
        tries = []
        for line in part * 3:
            kind = chance.choice(sorted(edits[line]))
            tries.append((*line, kind, *chance.choice(edits[line][kind])))
        strata.append(tries)
    return strata, texts, len(lines), left_out


def describe(text, first, last, new):
    """The line before and after, from where they differ."""
    start = text.rfind("\n", 0, first) + 1
    end = text.find("\n", last)
    old_line, new_line = text[start:end], text[start:first] + new + text[last:end]
    return tuple(re.sub(r"\s+", " ", s).strip() for s in (old_line, new_line))


class Campaign:
    def __init__(self, build_tree, coverage, times, out):
        self.build, self.map, self.times, self.out = build_tree, coverage, times, out
        self.scratch = f"{build_tree.folder}/mutant"

    def original(self, obj, source):
        """The object of the unchanged source, compiled as a change is."""
        kept = f"{self.scratch}/original/{obj}"
        if not os.path.exists(kept):
            overlay = f"{self.scratch}/same"
            shutil.rmtree(overlay, ignore_errors=True)
            self.write(overlay, source, self.texts[source])
            os.makedirs(os.path.dirname(kept), exist_ok=True)
            if not self.compile_at(obj, overlay, source, kept):
                raise SystemExit(f"{obj} does not compile")
        with open(kept, "rb") as file:
            return file.read()

    def write(self, overlay, source, text):
        os.makedirs(os.path.dirname(f"{overlay}/{source}"), exist_ok=True)
        with open(f"{overlay}/{source}", "w", encoding="utf-8") as file:
            file.write(text)

    def compile_at(self, obj, overlay, source, out):
        """The overlay always stands at one place: paths are part of objects."""
        place = f"{self.scratch}/overlay"
        shutil.rmtree(place, ignore_errors=True)
        os.rename(overlay, place)
        done = self.build.compile(obj, place, source, out)
        os.rename(place, overlay)
        return done

    def compile(self, change):
        """@return {object: changed object} of those that differ; None: does not compile"""
        source, _, _, first, last, new = change
        text = self.texts[source]
        overlay = f"{self.scratch}/changed"
        shutil.rmtree(overlay, ignore_errors=True)
        self.write(overlay, source, text[:first] + new + text[last:])
        objects = {}
        for i, obj in enumerate(self.build.objects(source)):
            out = f"{self.scratch}/{i}.o"
            if not self.compile_at(obj, overlay, source, out):
                return None
            with open(out, "rb") as file:
                if file.read() != self.original(obj, source):
                    objects[obj] = out
        return objects

    def tests(self, source, line):
        """Tests that execute the line, or, of lines without code, the file; quickest first."""
        lines = self.map.get(source, {}) or self.map.get(source[:-1] + "c", {})  # of a header
        names = lines.get(str(line))
        if names is None:
            # gcov names the first line of a statement: the nearest line before it in the same
            # paragraph.
            with_code = [int(k) for k in lines]
            near = [k for k in with_code if line - 8 <= k < line]
            names = set(sum((lines[str(k)] for k in near), [])) or set(sum(lines.values(), []))
            if self.is_code(source, line):
                names = set()
        scripts = next(names for folder, names in SCRIPTS if source.startswith(folder))
        return sorted((n for n in names if n in self.times and n != KEYS), key=lambda n: self.times[n]) + [
            n for n in [KEYS] * source.startswith("plan/job/effect") +
            [f"cli.{n}" for n in scripts] if n in self.times]

    def is_code(self, source, line):
        return line in self.all_lines.get(source, ())

    def one(self, change):
        """@return row of the table, or None where the change is none"""
        source, line, kind, first, last, new = change
        begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        objects = self.compile(change)
        if not objects:
            return None
        names, killer, how = self.tests(source, line), "", ""
        linked, ran, spent = set(), 0, 0
        for name in names:
            test = self.build.tests[name]
            if spent + self.times[name] > self.budget and ran > 0:
                break
            for target in self.build.targets(test, source):
                if target not in linked and not self.build.link(target, objects):
                    killer, how = name, "link"
                linked.add(target)
            if killer:
                break
            limit = 20 + 8 * self.times[name]
            status, cpu, _ = run_test(test, self.build.folder, limit)
            spent += cpu
            ran += 1
            if status not in (0, 77) and (test["label"] != "cli" or run_test(
                    test, self.build.folder, limit)[0] not in (0, 77)):
                killer, how = name, status if isinstance(status, str) else f"exit {status}"
                break
        self.build.restore()
        if how == "link":
            return None
        old_text, new_text = describe(self.texts[source], first, last, new)
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
        return {"file": source, "line": line, "kind": kind, "before": old_text, "after": new_text,
                "result": "killed" if killer else "survived" if names else "not executed",
                "by": killer, "how": how, "tests": f"{ran} of {len(names)}", "cpu_s": f"{cpu:.1f}"}


NO_LEAKS = {"LSAN_OPTIONS": "detect_leaks=0"}


def baseline(tree, out, wanted):
    """Seconds of each test with the unchanged programs; what fails or is skipped is left out, and
    what leaks (MPI's plugins do) is run without the leak checker."""
    path = f"{out}/times.json"
    times = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            times = json.load(file)
        for name, test in tree.tests.items():  # other programs since
            if test["label"] == "unit" and os.path.getmtime(test["command"][0]) > os.path.getmtime(path):
                times.pop(name, None)
    for name, test in tree.tests.items():
        if not re.search(wanted, name):
            continue
        if name not in times:
            for checker in ({}, NO_LEAKS):
                status, cpu, wall = run_test(test, tree.folder, 300, checker)
                if status == 0:
                    break
            times[name] = [cpu if status == 0 else None, checker]
            print(f"baseline: {name} status {status} {cpu:.1f} s {wall:.1f} s {checker}", flush=True)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(times, file)
        test["env"].update(times[name][1])
    return {name: time for name, (time, _) in times.items() if time is not None and
            re.search(wanted, name)}


def executable_lines(notes, sources):
    """Lines with code, of every source, by gcov's notes."""
    found = {}
    for at, _, names in os.walk(notes):
        paths = [f"{at}/{n}" for n in names if n.endswith(".gcno")]
        if paths and ("stw_backend" in at or "stw_plan.dir/plan/program" in at or
                      "stw_mpi" in at or "stw_nvtx" in at):
            out = run(["gcov", "-j", "-t", *paths], cwd=notes).stdout
            for document in filter(None, out.split("\n")):
                for source in json.loads(document)["files"]:
                    name = source_of(source["file"], notes)
                    if name in sources:
                        found.setdefault(name, set()).update(
                            line["line_number"] for line in source["lines"])
    return found


FIELDS = ["n", "file", "line", "kind", "before", "after", "result", "by", "how", "tests", "cpu_s"]


def redo_of(path, texts):
    """Changes of a table, found again in the sources as they are now."""
    strata = []
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["result"] == "killed":
                continue
            lines, edits, _, _ = code_lines(re.escape(row["file"]) + "$")
            same = [(*line, kind, *e) for line in lines for kind, all_ in edits[line].items()
                    for e in all_ if describe(texts[line[0]], *e) == (row["before"], row["after"])]
            same.sort(key=lambda c, row=row: abs(c[1] - int(row["line"])))
            strata.append((int(row["n"]), same[:1]))
    return strata


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--files", default="")
    parser.add_argument("--redo", help="only the changes of a table that survived")
    parser.add_argument("--build", default=f"{ROOT}/build-mutants")
    parser.add_argument("--first", type=int, default=1, help="go on with this stratum")
    parser.add_argument("--last", type=int, default=10**9, help="the last stratum")
    parser.add_argument("--cpu", type=float, default=15, help="CPU seconds of tests of a change")
    parser.add_argument("--tests", default="", help="only these, a regular expression")
    parser.add_argument("--map", default=f"{ROOT}/build-map")
    args = parser.parse_args()
    out, coverage = os.path.abspath(args.out), os.path.abspath(args.map)
    args.build = os.path.abspath(args.build)
    os.makedirs(out, exist_ok=True)
    build(coverage, "-O0 -g0 -DNDEBUG --coverage -fprofile-abs-path")
    build(args.build, "-O1 -g0 -DNDEBUG", "-fsanitize=leak")
    strata, texts, n_lines, left_out = plan(args.count, args.seed, args.files)
    strata = list(enumerate(strata, 1))
    if args.redo:
        strata = redo_of(args.redo, texts)
    tree = Build(args.build)
    shutil.rmtree(f"{args.build}/mutant", ignore_errors=True)
    os.makedirs(f"{args.build}/mutant")
    campaign = Campaign(tree, make_map(coverage, out, args.tests), baseline(tree, out, args.tests), out)
    campaign.budget = args.cpu
    campaign.texts, campaign.all_lines = texts, executable_lines(coverage, texts)
    commit = run(["git", "describe", "--always", "--dirty"], cwd=ROOT).stdout.strip()
    counts, skipped = {}, 0
    table = f"{out}/redo.csv" if args.redo else f"{out}/mutants.csv"
    with open(table, "a" if args.first > 1 or args.redo else "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if args.first == 1 and not args.redo:
            writer.writeheader()
        for n, tries in strata:
            if not args.first <= n <= args.last:
                continue
            for change in tries:
                row = campaign.one(change)
                if row:
                    break
                skipped += 1
            else:
                print(f"{n}: nothing to change", flush=True)
                continue
            writer.writerow({"n": n, **row})
            file.flush()
            counts[row["result"]] = counts.get(row["result"], 0) + 1
            print(f"{n} {row['file']}:{row['line']} {row['result']} {row['by']} {row['how']} "
                  f"{row['cpu_s']} s: {row['before'][:60]} -> {row['after'][:60]}", flush=True)
    total = sum(counts.values())
    print(f"commit {commit}, seed {args.seed}: {total} changes of {n_lines} lines, "
          f"{counts.get('killed', 0)} killed ({100 * counts.get('killed', 0) / max(total, 1):.1f}%), "
          f"{counts.get('survived', 0)} survived, {counts.get('not executed', 0)} on lines that no "
          f"test of the list executes; {skipped} did not compile or changed nothing")
    print("left out:", " ".join(left_out))


if __name__ == "__main__":
    main()
