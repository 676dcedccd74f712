#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans what nobody should ask for: is every answer a plan, a refusal or "nothing fits", within seconds and little memory?

    hostile.py oversized [--cases N] [--forced N] [--seed N] [--jobs N] [--csv FILE]
    hostile.py sizes     [--models A,B] [--jobs N] [--csv FILE]

STOWAGE names the program. `oversized` plans instances drawn at random that are too large (zoo models on example clusters
and presets, with large batches and sequences, more layers, little memory). Exit codes may be 0, 3, 4, 7 and 9; 5 only where
the time limit passed. Where nothing fits, --forced N plans with keys that force placements must not be over the limits by
less. `sizes` sets every integer of a model's config.json and every number among the keys of run and cluster to 0, 1, -1, a
prime, and huge values. Limits: 1 GiB of memory and 5 s of CPU time for one command. Prints each offender as a command; exit
1 where there is one.
"""

import argparse
import collections
import concurrent.futures
import csv
import json
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile

STOWAGE = os.environ.get("STOWAGE", "stowage")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ZOO = os.path.join(ROOT, "models", "zoo")
EXAMPLES = os.path.join(ROOT, "models", "examples")
MOST_CPU_S, MOST_MIB, MOST_WALL_S = 5, 1024, 60
GOOD = (0, 3, 4, 7, 9)
GIB = 1 << 30

Answer = collections.namedtuple("Answer", "code cpu_s mib text error")


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MIB << 20, MOST_MIB << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * MOST_CPU_S, 2 * MOST_CPU_S))


def execute(command):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, preexec_fn=limit)
        try:
            timer = __import__("threading").Timer(MOST_WALL_S, process.kill)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        error = err.read().decode(errors="replace").strip().split("\n")[-1]
        return Answer(process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read(), error)


def plan_command(settings):
    command = [STOWAGE, "plan", "--json"]
    for key, value in settings:
        command += ["--" + key, value] if key in ("model", "cluster", "time-limit") else ["--set", f"{key}={value}"]
    return command


def words(command):
    return "stowage " + " ".join(shlex.quote(word) for word in command[1:] if word != "--json")


def fault(answer, limit_passed=False):
    """What is wrong with an answer; None: nothing."""
    if answer.code not in GOOD and not (answer.code == 5 and limit_passed):
        return f"exit {answer.code}: {answer.error}"
    if answer.cpu_s > MOST_CPU_S:
        return f"{answer.cpu_s:.1f} s of CPU time"
    if answer.mib > MOST_MIB:
        return f"{answer.mib:.0f} MiB"
    return None


def listed_clusters():
    examples = [os.path.join(EXAMPLES, name) for name in sorted(os.listdir(EXAMPLES))
                if "h200" in name and name.startswith("h") or name in ("h100-80g-x8.yaml", "cpu-only.yaml")]
    presets = json.loads(subprocess.check_output([STOWAGE, "clusters", "--json"]))["clusters"]
    return examples + [c["name"] for c in presets]


def zoo():
    return sorted(name[:-5] for name in os.listdir(ZOO) if name.endswith(".json"))


# ---- oversized ----

def more_layers(rng, name, folder):
    """The zoo's model with other numbers of layers, as a file."""
    with open(os.path.join(ZOO, name + ".json"), encoding="utf-8") as file:
        config = json.load(file)
    inner = config.get("text_config") or config.get("llm_config") or config
    if not isinstance(inner.get("num_hidden_layers"), int) or "layer_types" in inner:
        return name
    inner["num_hidden_layers"] *= rng.choice([2, 4, 8])
    path = os.path.join(folder, f"{name}-{inner['num_hidden_layers']}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return path


def instance(rng, models, clusters, folder):
    model = rng.choice(models)
    settings = [("model", more_layers(rng, model, folder) if rng.random() < 0.2 else model), ("cluster", rng.choice(clusters))]
    if rng.random() < 0.5:
        settings.append(("batch.micro_batch", str(2 ** rng.randint(1, 16))))
    if rng.random() < 0.5:
        settings.append(("batch.seq_len", str(2 ** rng.randint(9, 24))))
    if rng.random() < 0.4:
        settings.append(("node.gpu.memory", f"{rng.choice([1, 2, 3, 5, 10, 20, 40])} GiB"))
    if rng.random() < 0.4:
        amount = f"{rng.choice([2, 3, 5, 10, 20, 50, 200])} GiB"
        settings += [("node.host.memory", amount), ("node.host.limit", amount)]
    if rng.random() < 0.15:
        settings.append(("node.host.page_lock_limit", f"{rng.choice([0, 1, 4, 16])} GiB"))
    if rng.random() < 0.2:
        settings.append(("node.nvme.capacity", f"{rng.choice([1, 10, 100, 1000])} GiB"))
    if rng.random() < 0.15:
        settings.append(("engine", "fsdp2"))
    if rng.random() < 0.2:
        settings += [("precision.params", "bf16"), ("precision.grads", "bf16"), ("precision.master", "fp32")]
    if rng.random() < 0.15:
        settings.append(("loss.fused", "true"))
    if rng.random() < 0.1:
        settings.append(("update." + rng.choice(["cpu", "stream", "resident"]), str(round(rng.random(), 3))))
    if rng.random() < 0.1:
        settings.append(("placement." + rng.choice(["params", "grads", "moments"]), rng.choice(["gpu", "host"])))
    if rng.random() < 0.1:
        settings.append(("placement.activations", rng.choice(["keep", "recompute", "offload"])))
    if rng.random() < 0.1:
        settings.append(("prefetch.bucket", f"{rng.choice([1, 64, 512, 4096])} MiB"))
    if rng.random() < 0.1:
        settings.append(("time-limit", rng.choice(["0.001", "0.01", "0.1", "1"])))
    return settings


def force(rng, given):
    keys, out = dict(given), []
    whole = keys.get("engine") == "fsdp2"
    for key, values in (("placement.params", ["gpu", "host"]), ("placement.grads", ["gpu", "host"]),
                        ("placement.moments", ["gpu", "host"]), ("placement.activations", ["keep", "recompute", "offload"]),
                        ("update.cpu", ["0", "1", "0.5"]), ("update.stream", ["0", "1", "0.5"]),
                        ("prefetch.depth", ["1", "2", "3"]), ("prefetch.bucket", ["4 MiB", "32 MiB"]),
                        ("load.method", ["all_ranks", "rank0_broadcast", "node_leader", "sharded_read"])):
        if key not in keys and rng.random() < 0.3 and not (whole and key.startswith(("update", "prefetch.b"))):
            out.append((key, rng.choice(values)))
    return out or [("load.method" if "load.method" not in keys else "attention", "sharded_read" if "load.method" not in keys else "flash")]


def over_share(plan):
    """The sum over memories of what is over, each as a share of its limit: what the planner makes least where nothing fits."""
    node = plan["cluster"]["node"]
    total = share(max(rank["gpu_bytes"] for rank in plan["ranks"]), node["gpu"]["memory"])
    for kind in plan["nodes"]:
        total += share(max(phase["host"] for phase in kind["phases"].values()), node["host"]["limit"])
        locked = node["host"]["page_lock_limit"]
        if isinstance(locked, int):
            total += share(max(phase["page_locked"] for phase in kind["phases"].values()), locked)
        total += share(max(phase["nvme"]["total"] for phase in kind["phases"].values()), node["nvme"]["capacity"])
    return total


def share(used, most):
    return max(0, used - most) / max(most, GIB)


def oversized_case(arguments, number, folder, models, clusters):
    rng = random.Random(f"{arguments.seed} {number}")
    settings = instance(rng, models, clusters, folder)
    command = plan_command(settings)
    answer = execute(command)
    wrong = fault(answer, "time-limit" in dict(settings))
    rows = [(number, words(command), answer.code, round(answer.cpu_s, 2), round(answer.mib), "", wrong or "", answer.error)]
    if answer.code != 4 or wrong:
        return rows
    least = over_share(json.loads(answer.text))
    rows[0] = rows[0][:5] + (least,) + rows[0][6:]
    for _ in range(arguments.forced):
        command = plan_command(settings + force(rng, settings))
        forced = execute(command)
        wrong = fault(forced, "time-limit" in dict(settings)) or ""
        over = over_share(json.loads(forced.text)) if forced.code in (0, 4) and not wrong else ""
        if over != "" and over < least * (1 - arguments.slack) - 1e-3:
            wrong = f"over by {over:.4f}, the planner's own plan by {least:.4f}"
        rows.append((number, words(command), forced.code, round(forced.cpu_s, 2), round(forced.mib), over, wrong, forced.error))
    return rows


def oversized(arguments, pool):
    models, clusters = zoo(), listed_clusters()
    with tempfile.TemporaryDirectory() as folder:
        cases = pool.map(lambda n: oversized_case(arguments, n, folder, models, clusters), range(arguments.cases))
        return [row for rows in follow(cases) for row in rows]


# ---- sizes ----

VALUES = [0, 1, -1, 10007, 10**5, 10**6, 10**9, 2**31 - 1, 2**32, 2**53 + 1, 2**62, 2**63, 2**64 - 1, 2**64]


def integers(node, path=()):
    """Paths of all whole numbers of a tree; lists of numbers are one."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from integers(value, path + (key,))
    elif isinstance(node, int) and not isinstance(node, bool):
        yield path


def with_value(config, path, value):
    copy = json.loads(json.dumps(config))
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return copy


def number_keys():
    """Keys of run and cluster whose default is a number or auto, with the unit that it has."""
    text = open(os.path.join(EXAMPLES, "default.yaml"), encoding="utf-8").read()
    text += subprocess.check_output([STOWAGE, "clusters", "--show", "h200-x2"]).decode()
    path, keys = [], []
    for line in text.split("\n"):
        match = re.match(r"( *)([a-z_0-9]+): *([^#]*?) *(#.*)?$", line)
        if not match:
            continue
        depth = len(match[1]) // 2
        path = path[:depth] + [match[2]]
        number = re.match(r"(auto|none|unlimited|[0-9.e+-]+)( .*)?$", match[3])
        if number:
            keys.append((".".join(path), match[3][len(number[1]):].strip()))
    return keys


def size_cases(arguments, folder):
    for name in arguments.models.split(","):
        with open(os.path.join(ZOO, name + ".json"), encoding="utf-8") as file:
            config = json.load(file)
        for path in integers(config):
            for value in VALUES:
                target = os.path.join(folder, f"{name}-{'.'.join(path)}-{value}.json")
                yield [("model", target), ("cluster", "h200-x2")], (target, with_value(config, path, value))
    for key, unit in number_keys():
        for value in VALUES:
            yield [("model", "Qwen3-0.6B"), ("cluster", "h200-x2"), (key, f"{value} {unit}".strip())], None


def size_case(case):
    settings, made = case
    if made is not None:
        with open(made[0], "w", encoding="utf-8") as file:
            json.dump(made[1], file)
    command = plan_command(settings)
    answer = execute(command)
    if made is not None:
        os.unlink(made[0])
    return [("", words(command), answer.code, round(answer.cpu_s, 2), round(answer.mib), "", fault(answer) or "", answer.error)]


def sizes(arguments, pool):
    with tempfile.TemporaryDirectory() as folder:
        return [row for rows in follow(pool.map(size_case, size_cases(arguments, folder))) for row in rows]


# ---- both ----

def follow(cases):
    for number, rows in enumerate(cases):
        if sys.stderr.isatty() or number % 100 == 99:
            print(f"\r{number + 1} cases", end="", file=sys.stderr)
        yield rows
    print(file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["oversized", "sizes"])
    parser.add_argument("--cases", type=int, default=750)
    parser.add_argument("--forced", type=int, default=2)
    parser.add_argument("--slack", type=float, default=0.01)
    parser.add_argument("--models", default="Qwen3-0.6B,DeepSeek-V2-Lite,Qwen2.5-VL-7B-Instruct,GPT-2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        rows = (oversized if arguments.mode == "oversized" else sizes)(arguments, pool)
    if arguments.csv:
        with open(arguments.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    wrong = [row for row in rows if row[6]]
    codes = collections.Counter(row[2] for row in rows)
    print(f"{len(rows)} commands, exit codes: " + ", ".join(f"{code}: {n}" for code, n in sorted(codes.items())) +
          f"; most {max(row[3] for row in rows):.2f} s, {max(row[4] for row in rows)} MiB; {len(wrong)} wrong")
    for row in wrong:
        print(f"  {row[6]}: {row[1]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
