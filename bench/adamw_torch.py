# SPDX-License-Identifier: Apache-2.0
"""What an optimizer adds to a training iteration: stowage.torch.AdamW and its peers.

    adamw_torch.py [--model Qwen3-4B] [--layers N] [--ranks 2] [--variants A+B,C...]
                   [--tokens 4096,16384] [--checkpoint yes,no] [--chunked-loss] [--steps 5]
                   [--warmup 2] [--state master|fp32] [--clip 1.0] [--budget-s S] -o FOLDER
    adamw_torch.py --list ...             the cases, a line each, for adamw_rows.py --predict
    adamw_torch.py --cpu --ranks 2 ...    a tiny model over gloo, to try the script

A model with random weights is trained on random tokens: forward, backward, clip, step; sequences of
4,096 tokens, --tokens of each rank; the loss of all tokens at once as transformers computes it, or
by chunks of 4,096 (--chunked-loss). --ranks above 1 shards the model by FSDP2, a group for each layer,
gradients reduced in fp32. Iterations are queued one after the other and the host waits at the end
only. Each row is printed, and written to FOLDER/rows.jsonl, as soon as it is measured: seconds of the
main stream (median), peaks of torch's allocator in each phase, of the worst rank, and host bytes of
a rank.

Variants joined by + run in one process of each rank, with one model; where one of them fails, those behind
it run in new processes. Nothing begins after --budget-s, and what runs is ended. VARIANT:

    none               no optimizer: what the others are compared with
    torch              torch.optim.AdamW(fused=True), state in the parameters' type
    resident           stowage.torch.AdamW, all state on the GPU
    after              state on the host, the step waited for (overlap=False)
    hidden             state on the host, behind the next forward
    hidden_bf16        the same, moments in bf16, as offload_adam has them
    layers             a per-layer streamed step as trainers write it, after backward
    offload_adam, offload_adam_clip   tascj/offload_adam, without and with clipping
    torchao            torchao.optim.CPUOffloadOptimizer over torch's fused AdamW
    deepspeed          ZeRO stage 2 with optimizer offload and its CPU Adam

The last five are for one rank. DeepSpeed compiles its CPU Adam at first use (minutes; --limit 400, CUDA's
compiler). --state master: bf16 parameters, master and moments in fp32 (12 B); fp32: fp32
parameters, products in bf16, moments in fp32 (8 B). Needs torch and transformers; no network. The
package stowage is found by PYTHONPATH, its library by STOWAGE_LIBRARY."""

import argparse
import json
import math
import os
import queue
import socket
import subprocess
import sys
import threading
import time

from adamw_job import case_of, run_here
from adamw_variants import GIB, SHARDED, VARIANTS

GRACE = 8  # seconds after which the other ranks of one that failed are ended
KEPT = 40  # lines of what a group said beside its rows


def show(row, base):
    case = (row.get("tokens"), row.get("checkpoint"))
    name = f"{row['variant']} | {case[0]} | {'yes' if case[1] else 'no'}"
    if "error" in row:
        print(f"| {name} | {row['error']} |", flush=True)
        return
    if row["variant"] == "none":
        base[case] = row["iteration_s"]
    added = row["iteration_s"] - base.get(case, math.nan)
    seconds = " | ".join(f"{row[f'{p}_s']:.3f}" for p in ["forward", "backward", "step"])
    peaks = " | ".join(f"{row[f'{p}_allocated'] / GIB:.1f} / {row[f'{p}_reserved'] / GIB:.1f}"
                       for p in ["forward", "backward", "step"])
    print(f"| {name} | {row['iteration_s']:.3f} | {added:+.3f} | {seconds} | {peaks} "
          f"| {row['gpu_used'] / GIB:.1f} | {row['host_rss'] / GIB:.1f} | {row['setup_s']:.1f} |",
          flush=True)


HEAD = ("| variant | tokens | checkpointed | iteration s | added s | forward s | backward s | step s "
        "| forward GiB allocated / reserved | backward | step | device GiB | host GiB "
        "| setup and first step s |\n|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")


class Ranks:
    """The processes of a group of variants. What they write is read line by line, by threads."""

    def __init__(self, names, options, arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, os.path.abspath(__file__), *arguments, "--here",
                   "--variants", "+".join(names), "--until", str(options.until)]
        self.lines = queue.Queue()
        self.processes = []
        for rank in range(options.ranks):
            ranks = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=options.ranks,
                         MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            extra = {k: str(v) for k, v in ranks.items()} if options.ranks > 1 else {}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, env={**os.environ, **extra})
            threading.Thread(target=self.read, args=(process.stdout,), daemon=True).start()
            self.processes.append(process)

    def read(self, stream):
        for line in stream:
            self.lines.put(line)

    def next(self):
        """A line, or None if none came for half a second."""
        try:
            return self.lines.get(timeout=0.5)
        except queue.Empty:
            return None

    def ended(self):
        return all(p.poll() is not None for p in self.processes) and self.lines.empty()

    def failed(self):
        return any(p.poll() not in (None, 0) for p in self.processes)

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()


def run_group(names, options, arguments, keep):
    """@return the variants that did not begin, and an error or None"""
    ranks, said, begun = Ranks(names, options, arguments), [], 0
    ends, why = time.time() + options.limit, None
    while not ranks.ended():
        line = ranks.next()
        if line is not None and line.startswith("{"):
            row = json.loads(line)
            if "begin" in row:
                begun, ends = names.index(row["begin"]) + 1, time.time() + options.limit
            else:
                keep(row)
                ends = time.time() + options.limit
        elif line is not None:
            said = [*said, line][-KEPT:]
        if ranks.failed() and why is None:
            why, ends = "a rank failed", time.time() + GRACE
        if time.time() > min(ends, options.until):
            why = why or ("the budget is over" if time.time() > options.until
                          else f"no row for {options.limit:g} s")
            ranks.kill()
    if why is None and ranks.failed():
        why = "a rank failed"
    if why is not None:
        errors = [line.strip() for line in said if "Error" in line]
        keep(dict(variant=names[max(begun, 1) - 1], error=": ".join([why, *errors[:1]])[:200]))
        print("".join(said)[-3000:], file=sys.stderr, flush=True)
    return names[max(begun, 1):] if why is not None else []


def run_all(options, arguments):
    os.makedirs(options.output, exist_ok=True)
    options.until = time.time() + options.budget_s
    layers = f", {options.layers} layers" if options.layers else ""
    print(f"{options.model}{layers}, {options.ranks} ranks, {options.state}, clip {options.clip}, "
          f"loss {'by chunks' if options.chunked_loss else 'at once'}\n{HEAD}", flush=True)
    base = {}
    with open(os.path.join(options.output, "rows.jsonl"), "a", encoding="utf-8") as file:
        def keep(row):
            file.write(json.dumps(row) + "\n")
            file.flush()
            show(row, base)

        for group in options.variants.split(","):
            names = group.split("+")
            while names and time.time() < options.until:
                names = run_group(names, options, arguments, keep)
            if names:
                print(f"not begun: {' '.join(names)}", flush=True)


def list_cases(options):
    for name in options.variants.replace("+", ",").split(","):
        for checkpoint in options.checkpoint:
            for tokens in options.tokens:
                print(json.dumps(case_of(options, name, checkpoint, tokens)))


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen3-4B", help="a file of models/zoo, by name")
    parser.add_argument("--layers", type=int, help="as many layers of it")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--variants")
    parser.add_argument("--tokens", type=lambda s: [int(t) for t in s.split(",")])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--state", choices=["master", "fp32"], default="master")
    parser.add_argument("--checkpoint", default="yes", help="yes, no or both by a comma",
                        type=lambda s: [{"yes": True, "no": False}[w] for w in s.split(",")])
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--chunked-loss", action="store_true")
    parser.add_argument("--bucket-mib", type=int, help="slots of the ring; else as planned")
    parser.add_argument("--depth", type=int, default=3, help="how many")
    parser.add_argument("--limit", type=float, default=150, help="seconds without a row")
    parser.add_argument("--budget-s", type=float, default=1e9, help="seconds of everything")
    parser.add_argument("--until", type=float, default=math.inf, help=argparse.SUPPRESS)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", default="adamw")
    options = parser.parse_args()
    options.tokens = options.tokens or ([64, 128] if options.cpu else [4096, 16384])
    options.variants = options.variants or (",".join(VARIANTS) if options.ranks == 1
                                            else "+".join(SHARDED))
    names = options.variants.replace("+", ",").split(",")
    known = VARIANTS if options.ranks == 1 else SHARDED
    for name in names:
        if name not in known:
            parser.error(f"--variants: found {name}, expected {', '.join(known)}")
    return options


def main():
    options = read_options()
    if options.here:
        run_here(options)
    elif options.list:
        list_cases(options)
    else:
        run_all(options, sys.argv[1:])


if __name__ == "__main__":
    main()
