# SPDX-License-Identifier: Apache-2.0
"""A plain training loop of torch FSDP2 that tells its phases, for `stowage record`.

    stowage record -o run.json -- torchrun --nproc-per-node N bench/record_torch.py --case '{"model": "Qwen3-4B"}'

CASE is one of fsdp2_torch.py. Nothing is measured here but what only torch knows: the peaks of its allocator and
its page-locked bytes. With --nvtx phases are told as NVTX ranges. Building the model stands for no phase: no checkpoint is read."""

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


def leave(phase, nvtx=False):
    torch.cuda.synchronize()
    if nvtx:
        torch.cuda.nvtx.range_pop()
    else:
        tell("end")
    tell(phase, "allocated", torch.cuda.max_memory_allocated())
    tell(phase, "reserved", torch.cuda.max_memory_reserved())
    tell(phase, "page_locked", torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", required=True)
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
    how = {"fused": True} if case["fused"] else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **how)
    tokens = torch.randint(0, config.vocab_size, (case["mbs"], case["seq"]), device="cuda")
    for step in range(case["steps"]):
        enter("forward_backward", arguments.nvtx)
        for part in range(case["accumulate"]):
            if not case["sync_each"]:
                model.set_requires_gradient_sync(part == case["accumulate"] - 1)
            loss_of(model, tokens, case["accumulate"]).backward()
        leave("forward_backward", arguments.nvtx)
        phase = "optimizer_step" if step > 0 else "first_optimizer_step"
        enter(phase, arguments.nvtx)
        torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        optimizer.step()
        optimizer.zero_grad()
        leave(phase, arguments.nvtx)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
