# SPDX-License-Identifier: Apache-2.0
"""What torch.optim.AdamW(fused=True) makes of Stowage's seeded weights and gradients, as digests. Stowage has the bits of
torch's CUDA kernel; with --device cpu torch runs another kernel, whose bits differ.

    torch_bits.py --tensors FILE.csv [--steps 5] [--seed 1] [--weight-decay 0.01] [--lr 1e-3]
                  [--betas 0.9 0.999] [--eps 1e-8] [--no-decay PATTERN]... [--powers N]
                  [--device cuda] [-o FILE.json]

FILE.csv is what `stowage inspect MODEL --tensors FILE.csv` writes; each tensor is one parameter of its
shape, and elements are numbered through the tensors in their order. Values and digests follow
backend/element.h bit by bit in 64-bit integer arithmetic (int64 wraps around modulo 2^64, and a
logical shift is an arithmetic one with the sign's copies masked off). --no-decay makes a second
parameter group without weight decay of the tensors whose names match a shell pattern, or, for "1d",
of those with one dimension. --powers N counts the steps 1..N whose float power of beta differs
between the device and a rounded double power."""

import argparse
import csv
import fnmatch
import json
import math
import sys
import time

import torch

CHUNK = 1 << 24  # elements at a time: a few 128 MiB tensors of int64
WEIGHT = 0x7765696768740000
GRAD = 0x6772616400000000


def signed(x):
    """The int64 with the bits of x modulo 2^64."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


def shift(x, n):
    """Logical shift of int64 to the right, n > 0."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def mix64(x):
    """stw_mix64 of an int64 tensor, which it overwrites."""
    x += signed(0x9E3779B97F4A7C15)
    x ^= shift(x, 30)
    x *= signed(0xBF58476D1CE4E5B9)
    x ^= shift(x, 27)
    x *= signed(0x94D049BB133111EB)
    x ^= shift(x, 31)
    return x


def mix64_number(x):
    return int(mix64(torch.tensor([signed(x)], dtype=torch.int64)).item())


def numbers(first, n, device):
    return torch.arange(first, first + n, dtype=torch.int64, device=device)


def floats(sign, exponent, mantissa):
    """fp32 values from their three fields, int64 each."""
    bits = (sign << 31) | (exponent << 23) | mantissa
    return (bits - ((bits >> 31) << 32)).to(torch.int32).view(torch.float32)


def seeded_weights(seed, first, n, device):
    h = mix64(mix64(numbers(first, n, device) ^ signed(WEIGHT)) ^ signed(seed))
    return floats(shift(h, 63), 120 + (shift(h, 62) & 1), (shift(h, 32) & 0x7F) << 16)


def seeded_grads(seed, step, first, n, device):
    h = mix64(mix64(numbers(first, n, device) ^ signed((step << 48) ^ GRAD)) ^ signed(seed))
    return floats(shift(h, 63), 87 + (((shift(h, 32) & 0xFFFF) * 40) >> 16), h & 0x7FFFFF)


def digest(values, first):
    """Sum of stw_digest_element over contiguous fp32 values, modulo 2^64."""
    flat = values.detach().reshape(-1)
    total = 0
    for at in range(0, flat.numel(), CHUNK):
        part = flat[at : at + CHUNK]
        bits = part.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        h = mix64(mix64(numbers(first + at, part.numel(), part.device)) ^ bits)
        total += int(h.sum().item())
    return total & ((1 << 64) - 1)


def fill(out, first, make):
    flat = out.reshape(-1)
    for at in range(0, flat.numel(), CHUNK):
        n = min(CHUNK, flat.numel() - at)
        flat[at : at + n] = make(first + at, n)


class Tensor:
    def __init__(self, name, shape, first):
        self.name, self.shape, self.first = name, shape, first
        self.numel = math.prod(shape)
        self.parameter = None


def read_tensors(path):
    tensors, first = [], 0
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            tensors.append(Tensor(row["name"], json.loads(row["shape"]), first))
            first += tensors[-1].numel
    return tensors


def matches(tensor, patterns):
    return any(
        len(tensor.shape) == 1 if p == "1d" else fnmatch.fnmatchcase(tensor.name, p)
        for p in patterns
    )


def make_optimizer(tensors, options):
    """One parameter per tensor; in torch's order of groups, the groups' own order is the model's."""
    for tensor in tensors:
        values = torch.empty(tensor.shape, dtype=torch.float32, device=options.device)
        fill(values, tensor.first, lambda f, n: seeded_weights(options.seed, f, n, options.device))
        tensor.parameter = torch.nn.Parameter(values)
        tensor.parameter.grad = torch.empty_like(values)
    plain = [t.parameter for t in tensors if not matches(t, options.no_decay)]
    undecayed = [t.parameter for t in tensors if matches(t, options.no_decay)]
    groups = [{"params": plain}] if plain else []
    if undecayed:
        groups.append({"params": undecayed, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups, lr=options.lr, betas=tuple(options.betas), eps=options.eps,
        weight_decay=options.weight_decay, fused=True,
    ), len(undecayed)


def run(tensors, optimizer, options):
    seconds = []
    for step in range(1, options.steps + 1):
        for tensor in tensors:
            fill(tensor.parameter.grad, tensor.first,
                 lambda f, n: seeded_grads(options.seed, step, f, n, options.device))
        if options.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.step()
        if options.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def digests(tensors, optimizer):
    sums = {"params": 0, "exp_avg": 0, "exp_avg_sq": 0}
    for tensor in tensors:
        state = optimizer.state[tensor.parameter]
        for name in sums:
            values = tensor.parameter if name == "params" else state[name]
            sums[name] += digest(values, tensor.first)
    return {name: f"{total & ((1 << 64) - 1):016x}" for name, total in sums.items()}


def powers(beta, n, device):
    """torch.pow of float32 tensors is powf in device code, which is what the fused kernel calls for
    its bias corrections too, though in a kernel of its own: close to it, not the same instructions."""
    base = torch.tensor(beta, dtype=torch.float32)
    steps = torch.arange(1, n + 1, dtype=torch.float32, device=device)
    found = torch.pow(base.to(device), steps).cpu()
    exact = torch.tensor([math.pow(base.item(), s) for s in range(1, n + 1)], dtype=torch.float64)
    wanted = exact.to(torch.float32)
    differ = found != wanted
    matter = (1 - found) != (1 - wanted)
    return {
        "beta": beta, "steps": n,
        "power_differs": int(differ.sum()),
        "first_that_differs": int(differ.nonzero()[0]) + 1 if differ.any() else None,
        "bias_correction_differs": int(matter.sum()),
        "first_bias_correction": int(matter.nonzero()[0]) + 1 if matter.any() else None,
    }


def parse(arguments):
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--tensors", required=True)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--weight-decay", type=float, default=1e-2)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--betas", type=float, nargs=2, default=[0.9, 0.999])
    p.add_argument("--eps", type=float, default=1e-8)
    p.add_argument("--no-decay", action="append", default=[])
    p.add_argument("--powers", type=int, default=0)
    p.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    p.add_argument("--output", "-o")
    return p.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    tensors = read_tensors(options.tensors)
    with torch.no_grad():
        optimizer, undecayed = make_optimizer(tensors, options)
        first = {"weights": f"{sum(digest(t.parameter, t.first) for t in tensors) & (2**64 - 1):016x}"}
        seconds = run(tensors, optimizer, options)
        result = {
            "schema": "stowage.torch_bits/1",
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if options.device.type == "cuda" else "cpu",
            "params": sum(t.numel for t in tensors),
            "tensors": len(tensors),
            "tensors_without_decay": undecayed,
            "steps": options.steps, "seed": options.seed, "weight_decay": options.weight_decay,
            "lr": options.lr, "betas": options.betas, "eps": options.eps,
            "step_s": seconds,
            "first_digest": first,
            "digest": digests(tensors, optimizer),
            "powers": [powers(b, options.powers, options.device) for b in options.betas]
            if options.powers else [],
        }
    text = json.dumps(result, indent=2)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
