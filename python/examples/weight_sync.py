# SPDX-License-Identifier: Apache-2.0
"""Weights of an FSDP2 job to an inference worker beside each rank, after every step, and into a folder at the end.

torchrun --nproc-per-node 2 weight_sync.py FOLDER [cpu|cuda]

The worker here is a process that this script starts; a real one calls `worker` from its hook for new weights.
"""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stowage.torch import AdamW, Folder, Process, Receiver, WeightSync, column_slice, fused, load, row_slice


def worker(address: str, rank: int, world: int, device: str) -> None:
    """An inference worker with tensor parallelism: q and k fused, the output projection cut by columns."""
    bf16 = torch.bfloat16
    params = {"qk": fused(torch.empty(2 * 128 // world, 128, dtype=bf16, device=device),
                          [("q.weight", 128 // world, rank), ("k.weight", 128 // world, rank)]),
              "o": row_slice("o.weight", torch.empty(128, 128 // world, dtype=bf16, device=device), rank),
              "bias": column_slice("q.bias", torch.empty(128 // world, dtype=bf16, device=device), rank)}
    receiver = Receiver(address, params)
    for _ in range(3):
        step = receiver.receive()
        print(f"worker {rank}: step {step}, version {receiver.version}", flush=True)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.o = (torch.nn.Linear(128, 128) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(torch.sigmoid(self.q(x)) * self.k(x))


def main(folder: str, device: str) -> None:
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.partition(":")[0], (world,))
    torch.manual_seed(0)
    model = fully_shard(Model().to(device), mesh=mesh)
    optimizer = AdamW(list(model.parameters()), lr=1e-2)

    address = os.path.abspath(os.path.join(folder, f"worker{rank}.socket"))
    beside = multiprocessing.get_context("spawn").Process(target=worker, args=(address, rank, world, device))
    beside.start()
    with WeightSync(model, Process(address), check=True, device=device) as sync:
        for step in range(1, 4):
            model(torch.randn(8, 128, device=device)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            result = sync.sync(step)
    print(f"rank {rank}: {result.received_bytes} bytes came, {result.own_bytes} were here", flush=True)
    beside.join()
    assert beside.exitcode == 0

    path = os.path.join(folder, "weights")
    with WeightSync(model, Folder(path, every_rank=True), dtype=None, device=device) as sync:
        sync.sync(3)
    other = fully_shard(Model().to("meta"), mesh=mesh)
    other.to_empty(device=device)
    load(other, path)
    assert all(torch.equal(a.to_local(), b.to_local()) for a, b in zip(model.parameters(), other.parameters()))
    print(f"rank {rank}: loaded what was written", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cpu")
