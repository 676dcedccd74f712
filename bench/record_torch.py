# SPDX-License-Identifier: Apache-2.0
"""A plain training loop of torch FSDP2 that tells its phases, for `stowage record`.

    stowage record -o run.json -- torchrun --nproc-per-node N bench/record_torch.py --case '{"model": "Qwen3-4B"}' [--plan PLAN]

CASE is one of fsdp2_torch.py. With --plan the optimizer is stowage.torch.AdamW as that plan says, and each step is
waited for. Nothing is measured here but what only torch knows: the peaks of its allocator and its page-locked bytes. With --nvtx phases are told as NVTX ranges. Building the model stands for no phase: no checkpoint is read."""

import argparse
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fsdp2_torch import DEFAULTS, build, loss_of, shard


def tell(*fields):
    with open(os.environ["STOWAGE_MARKS"], "a") as file:
        file.write(",".join(map(str, (time.time(), dist.get_rank()) + fields)) + "\n")


def enter(phase, nvtx=False):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    if nvtx:
        torch.cuda.nvtx.range_push(phase.removeprefix("first_"))
    else:
        tell(phase)


def leave(phase, own, nvtx=False):
    torch.cuda.synchronize()
    if nvtx:
        torch.cuda.nvtx.range_pop()
    else:
        tell("end")
    tell(phase, "allocated", torch.cuda.max_memory_allocated())
    tell(phase, "reserved", torch.cuda.max_memory_reserved())
    tell(phase, "page_locked", own + torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))


class Torch:
    """torch's AdamW and clipping. own: bytes that it page-locks besides torch's allocator"""

    own = 0

    def __init__(self, model, case):
        self.model, self.clip = model, case["clip"]
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **({"fused": True} if case["fused"] else {"foreach": True}))

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Planned:
    def __init__(self, model, case, plan):
        from stowage.torch import AdamW

        self.optimizer = AdamW(model, lr=1e-5, clip_norm=case["clip"], plan=plan, overlap=False)

    @property
    def own(self):
        return sum(info.host_bytes for info in self.optimizer.info)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", required=True)
    parser.add_argument("--plan")
    parser.add_argument("--nvtx", action="store_true")
    parser.add_argument("--zoo", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "models/zoo")
    arguments = parser.parse_args()
    case = {**DEFAULTS, **json.loads(arguments.case)}
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.set_num_threads(case["threads"])
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local))
    model, config = build(case, arguments.zoo)
    shard(model, case, init_device_mesh("cuda", (dist.get_world_size(),)))
    optimizer = Planned(model, case, arguments.plan) if arguments.plan else Torch(model, case)
    tokens = torch.randint(0, config.vocab_size, (case["mbs"], case["seq"]), device="cuda")
    for step in range(case["steps"]):
        enter("forward_backward", arguments.nvtx)
        for part in range(case["accumulate"]):
            if case["fsdp"] and not case["sync_each"]:
                model.set_requires_gradient_sync(part == case["accumulate"] - 1)
            loss_of(model, {"input_ids": tokens}, case["accumulate"]).backward()
        leave("forward_backward", optimizer.own, arguments.nvtx)
        phase = "optimizer_step" if step > 0 else "first_optimizer_step"
        enter(phase, arguments.nvtx)
        optimizer.step()
        leave(phase, optimizer.own, arguments.nvtx)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
