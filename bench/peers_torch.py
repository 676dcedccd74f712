# SPDX-License-Identifier: Apache-2.0
"""torch's optimizer steps on a model's tensors, timed: what a user would take instead.

    peers_torch.py --tensors FILE.csv [--what WHAT,...] [--steps 8] [--budget-s 300] [-o FILE.json]

FILE.csv is what `stowage inspect MODEL --tensors FILE.csv` writes. WHAT is of

    fused, foreach            AdamW with everything on the GPU
    streamed                  fp32 moments in page-locked host memory, layer after layer through the
                              GPU: prefetch 1, three streams, torch's fused kernel
    cpu_fused, cpu_default, cpu_foreach
                              AdamW with everything in host memory, on all cores

Everything is fp32. Under torchrun each rank takes its rows of every tensor, as FSDP2 cuts them, and
all step at once; CPU peers run on one rank alone. The medians leave the first step out."""

import argparse
import csv
import gc
import json
import math
import os
import re
import statistics
import sys
import time

import torch
from torch.optim.adamw import adamw

HYPER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
CPU = {"cpu_fused": {"fused": True}, "cpu_default": {}, "cpu_foreach": {"foreach": True}}
GPU = {"fused": {"fused": True}, "foreach": {"foreach": True}}


def read_shapes(path, rank, world):
    """[(name, shape of this rank's rows)], empty ones left out."""
    shapes = []
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shape = json.loads(row["shape"])
            if world > 1:
                rows = math.ceil(shape[0] / world)
                shape[0] = max(0, min(rows, shape[0] - rank * rows))
            if math.prod(shape) > 0:
                shapes.append((row["name"], shape))
    return shapes


def layers(shapes):
    """Indices by layer: names alike up to their first number; what has none is one group each."""
    groups = {}
    for i, (name, _) in enumerate(shapes):
        found = re.match(r"(.*?\.\d+)\.", name)
        groups.setdefault(found.group(1) if found else name, []).append(i)
    return list(groups.values())


def make(shapes, device):
    """Parameters and gradients; all pages touched."""
    parameters = []
    for _, shape in shapes:
        p = torch.nn.Parameter(torch.full(shape, 0.01, dtype=torch.float32, device=device))
        p.grad = torch.full(shape, 0.001, dtype=torch.float32, device=device)
        parameters.append(p)
    return parameters


class Resident:
    """torch.optim.AdamW as it is, on either device."""

    def __init__(self, shapes, device, arguments):
        self.optimizer = torch.optim.AdamW(make(shapes, device), **HYPER, **arguments)

    def step(self):
        self.optimizer.step()


class Streamed:
    """A per-layer step as trainers write it: moments lie page-locked on the host, a layer's are
    fetched while the layer before is updated, and go back while the next one is."""

    def __init__(self, shapes, device, _):
        self.parameters = make(shapes, device)
        self.groups = layers(shapes)
        self.moments = [
            [torch.zeros(shape, dtype=torch.float32, pin_memory=True) for _ in range(2)]
            for _, shape in shapes
        ]
        self.counts = [torch.zeros((), dtype=torch.float32, device=device) for _ in shapes]
        self.device = device
        self.up, self.compute, self.down = (torch.cuda.Stream() for _ in range(3))

    def fetch(self, group):
        with torch.cuda.stream(self.up):
            copies = [[m.to(self.device, non_blocking=True) for m in self.moments[i]] for i in group]
            return copies, self.up.record_event()

    def update(self, group, copies):
        with torch.cuda.stream(self.compute):
            adamw(
                [self.parameters[i] for i in group],
                [self.parameters[i].grad for i in group],
                [pair[0] for pair in copies],
                [pair[1] for pair in copies],
                [],
                [self.counts[i] for i in group],
                fused=True, amsgrad=False, beta1=HYPER["betas"][0], beta2=HYPER["betas"][1],
                lr=HYPER["lr"], weight_decay=HYPER["weight_decay"], eps=HYPER["eps"],
                maximize=False,
            )
            return self.compute.record_event()

    def put_back(self, group, copies):
        with torch.cuda.stream(self.down):
            for i, pair in zip(group, copies):
                for host, device in zip(self.moments[i], pair):
                    host.copy_(device, non_blocking=True)
                    device.record_stream(self.compute)
                    device.record_stream(self.down)
            return self.down.record_event()

    @torch.no_grad()
    def step(self):
        current = torch.cuda.current_stream()
        for stream in (self.up, self.compute, self.down):
            stream.wait_stream(current)
        back = []
        ahead = self.fetch(self.groups[0])
        for at, group in enumerate(self.groups):
            copies, arrived = ahead
            if at + 1 < len(self.groups):
                if at >= 2:
                    back[at - 2].synchronize()  # else the host would fetch all layers at once
                ahead = self.fetch(self.groups[at + 1])
            self.compute.wait_event(arrived)
            updated = self.update(group, copies)
            self.down.wait_event(updated)
            back.append(self.put_back(group, copies))
            del copies
        self.down.synchronize()


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(peer, steps, device, until, barrier):
    """Seconds of up to `steps` steps after one that warms up; the ranks must agree on their number,
    so that the time left is looked at by one rank alone."""
    seconds = []
    for step in range(steps + 1):
        synchronize(device)
        if not barrier(time.monotonic() < until):
            break
        start = time.perf_counter()
        peer.step()
        synchronize(device)
        if step > 0:
            seconds.append(time.perf_counter() - start)
    return seconds


def measure(kind, what, shapes, options, until, barrier):
    device = torch.device("cpu") if what in CPU else options.device
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    peer = kind(shapes, device, CPU.get(what) or GPU.get(what) or {})
    synchronize(device)
    result = {"what": what, "setup_s": time.perf_counter() - start}
    state = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    seconds = timed(peer, options.steps, device, until, barrier)
    params = sum(math.prod(shape) for _, shape in shapes)
    result.update(params=params, step_all=seconds, threads=torch.get_num_threads())
    if seconds:
        result["step_s"] = statistics.median(seconds)
        result["params_per_s"] = params / result["step_s"]
    if device.type == "cuda":
        # Moments that stay on the GPU are made in the first step and are no extra.
        state += 8 * params if what in GPU else 0
        result["gpu_extra_bytes"] = max(0, torch.cuda.max_memory_allocated() - state)
    return result


def start_ranks(options):
    """(rank, world, a barrier that gives every rank what rank 0 gave it)."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return 0, 1, bool
    rank = int(os.environ["RANK"])
    if options.device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    torch.distributed.init_process_group("nccl" if options.device.type == "cuda" else "gloo")

    def barrier(value):
        shared = torch.tensor([int(value)], device=options.device)
        torch.distributed.broadcast(shared, 0)
        return bool(shared.item())

    return rank, world, barrier


def parse(arguments):
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--tensors", required=True)
    p.add_argument("--what", default="fused,foreach,streamed")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--budget-s", type=float, default=300.0, help="seconds for all of it")
    p.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    p.add_argument("--output", "-o")
    return p.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    default_threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rank, world, barrier = start_ranks(options)
    shapes = read_shapes(options.tensors, rank, world)
    Resident([("", [1])], options.device, {}).step()  # torch loads much of itself at first use
    wanted = options.what.split(",")
    until = time.monotonic()
    peers = []
    for what in wanted:
        if what in CPU and world > 1:
            continue
        until = max(until, time.monotonic()) + options.budget_s / len(wanted)
        kind = Streamed if what == "streamed" else Resident
        try:
            peers.append(measure(kind, what, shapes, options, until, barrier))
        except (RuntimeError, AssertionError) as error:  # out of memory is a RuntimeError
            peers.append({"what": what, "error": str(error).split("\n", maxsplit=1)[0]})
            if world > 1:
                raise  # the other ranks would wait
        gc.collect()
        if rank == 0:
            print(json.dumps(peers[-1]), flush=True)
    if rank == 0 and options.output:
        result = {
            "schema": "stowage.torch_peers/1", "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if options.device.type == "cuda" else "cpu",
            "world": world, "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(), "threads_by_default": default_threads,
            "peers": {peer["what"]: peer for peer in peers},
        }
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
            file.write("\n")
    if world > 1:
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
