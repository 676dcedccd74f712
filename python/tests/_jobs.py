# SPDX-License-Identifier: Apache-2.0
"""Small jobs that the tests train: seeded models, data and loops."""

import contextlib
import os
from typing import Any, Callable, Iterator, List, Optional, Tuple
from unittest import mock

import torch

KIB = 1024


def mlp(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """About 60,000 parameters: some 30 of the planner's units of 2048."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(96, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 128),
                               torch.nn.GELU(), torch.nn.Linear(128, 17)).to(dtype)


@contextlib.contextmanager
def counted_reads() -> Iterator[List[int]]:
    """Bytes that this process reads from files; those that io_uring reads are not counted, so that Stowage reads without it."""
    def read() -> int:
        with open("/proc/self/io", encoding="ascii") as file:
            return int(file.readline().split()[1])  # rchar, of all threads

    out = [0]
    with mock.patch.dict(os.environ, STOWAGE_NVME_IO="threads"):
        before = read()
        yield out
        out[0] = read() - before


def batch(step: int, dtype: torch.dtype = torch.float32, rows: int = 16, width: int = 96) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 + step)).to(dtype)


def decay_groups(model: torch.nn.Module) -> List[dict]:
    """Two groups, as most recipes have: no decay for vectors, another rate."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 3e-3}]


def loss_of(model: torch.nn.Module, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (model(batch(step, dtype)).float() * 40).pow(2).mean()


def train(make: Callable[[torch.nn.Module], Any], steps: int, dtype: torch.dtype = torch.float32, accumulate: int = 2,
          clip: Optional[float] = None, model: Optional[torch.nn.Module] = None, first: int = 0) -> Tuple[torch.nn.Module, Any]:
    """clip: by torch, outside the optimizer."""
    model = model if model is not None else mlp(dtype=dtype)
    optimizer = make(model)
    for step in range(first, first + steps):
        for micro in range(accumulate):
            (loss_of(model, step * accumulate + micro, dtype) / accumulate).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def same(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters()))


def distance(left: torch.nn.Module, right: torch.nn.Module) -> float:
    """The largest relative difference of two models' parameters, tensor by tensor."""
    pairs = zip(left.parameters(), right.parameters())
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


def same_state(left: dict, right: dict) -> bool:
    """State of two state_dicts, bit for bit."""
    if left["state"].keys() != right["state"].keys():
        return False
    return all(left["state"][n].keys() == right["state"][n].keys() and
               all(torch.equal(left["state"][n][k], right["state"][n][k]) for k in left["state"][n]) for n in left["state"])
