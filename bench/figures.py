# SPDX-License-Identifier: Apache-2.0
"""Reads figures for the scripts of this folder; the standard library alone.

    figures.py get FILE.json PATH...    values by dotted path ("ranks.0.phases"), "?" where none
    figures.py best FILE.run.json       rates.link's fastest shape: bytes, streams or ring-SLOTS, bytes/s each way
    figures.py updates FILE.plan.json   who updates what share: "resident 25% stream 75%"
    figures.py digests FILE.json        verify.digest, or digest: "name=hex ..."
    figures.py steps FILE.run.json...   CSV: plan, predicted, growth of GPU and host, every step
    figures.py lanes FILE.trace.json    the last step by stream: operations, begin, end, busy (ms)
    figures.py align FILE               lines of tab-separated columns, aligned
"""

import json
import sys


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def member(node, path):
    for key in path.split("."):
        if isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return None
    return node


def text(value):
    if value is None or isinstance(value, (dict, list)):
        return "?"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def best(run):
    shapes = [s for s in member(run, "rates.link") or [] if s.get("bytes_per_s") is not None]
    if not shapes:
        return "? ? ?"
    shape = max(shapes, key=lambda s: s["bytes_per_s"])
    ring = shape.get("ring")
    kind = f"ring-{ring}" if ring else text(shape["streams"])
    return " ".join((text(shape["bytes"]), kind, text(shape["bytes_per_s"])))


def updates(plan):
    shares = {}
    for decision in member(plan, "decisions") or []:
        engine = decision.get("update")
        if not engine:
            continue  # activations
        if "nvme" in (decision.get("exp_avg"), decision.get("exp_avg_sq"), decision.get("master")):
            engine += " from nvme"
        shares[engine] = shares.get(engine, 0) + decision.get("count", 0)
    whole = sum(shares.values())
    if not whole:
        return "?"
    return " ".join(f"{engine} {100 * n / whole:.0f}%" for engine, n in shares.items())


def digests(tree):
    found = member(tree, "verify.digest") or member(tree, "digest") or {}
    return " ".join(f"{name}={value}" for name, value in sorted(found.items()))


def steps(path):
    """Of long runs the first and the last five."""
    run, plan = load(path), load(path.replace(".run.json", ".plan.json"))
    every = [f"{s:.4f}" for s in member(run, "time_s.step_all") or []]
    if len(every) > 100:
        every = every[:5] + ["..."] + every[-5:]
    predicted = member(plan, "time_s.optimizer_step")
    growth = [f"{member(run, f'steady.{tier}_growth_bytes') or 0:.0f}" for tier in ("gpu", "host")]
    name = path.rsplit("/", 1)[-1].replace(".run.json", "")
    return ",".join([name, "?" if predicted is None else f"{predicted:.4f}"] + growth + [" ".join(every)])


def lanes(trace):
    events = [e for e in member(trace, "traceEvents") or [] if e.get("ph") == "X" and "cat" in e]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in member(trace, "traceEvents") or []
        if e.get("ph") == "M" and e.get("name") == "thread_name"
    }
    step = [e for e in events if e["cat"] == "optimizer_step"]
    if not step:
        return "?"
    begin = min(e["ts"] for e in step)
    lines = []
    for lane in sorted({(e["pid"], e["tid"]) for e in step}):
        mine = [e for e in step if (e["pid"], e["tid"]) == lane]
        first, last = min(e["ts"] for e in mine), max(e["ts"] + e["dur"] for e in mine)
        busy = sum(e["dur"] for e in mine)
        cells = (names.get(lane, "?"), str(len(mine)))
        cells += tuple(f"{us / 1000:.2f}" for us in (first - begin, last - begin, busy))
        lines.append("  ".join(cell.rjust(9) for cell in cells))
    return "\n".join(lines)


def align(path):
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").rstrip("\t").split("\t") for line in file]
    widths = {}
    for row in rows:
        for i, cell in enumerate(row[:-1]):  # the last column of a line may be a sentence
            widths[i] = max(widths.get(i, 0), len(cell))
    return "\n".join(
        "  ".join(cell.ljust(widths.get(i, 0)) for i, cell in enumerate(row)).rstrip() for row in rows
    )


def main(arguments):
    if len(arguments) < 2 or (arguments[0] == "get" and len(arguments) < 3):
        print(__doc__, file=sys.stderr)
        return 2
    what, path = arguments[:2]
    if what == "get":
        tree = load(path)
        print(" ".join(text(member(tree, name)) for name in arguments[2:]))
    elif what == "align":
        print(align(path))
    elif what == "steps":
        print("plan,predicted_s,gpu_growth_B,host_growth_B,step_s")
        print("\n".join(steps(name) for name in arguments[1:]))
    elif what in ("best", "updates", "digests", "lanes"):
        print({"best": best, "updates": updates, "digests": digests, "lanes": lanes}[what](load(path)))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
