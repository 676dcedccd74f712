# SPDX-License-Identifier: Apache-2.0
"""Loads safetensors files into an FSDP2 model as trainers do: rank 0 reads, all others get their part.

    torchrun --nproc-per-node N loads_torch.py FOLDER [--repeats 3] [-o FILE.json]

The model is a tree of modules made from the files' names and shapes, fully sharded layer by layer
(torch.distributed.fsdp.fully_shard) and filled by set_model_state_dict(broadcast_from_rank0=True).
Seconds are the slowest rank's, from the opening of the files to the last tensor in place."""

import argparse
import glob
import json
import os
import re
import resource
import statistics
import time

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def shapes_of(files):
    out = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                out[name] = opened.get_slice(name).get_shape()
    return out


def tree(shapes):
    root = nn.Module()
    for name, shape in shapes.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        value = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        module.register_parameter(last, nn.Parameter(value, requires_grad=False))
    return root


def load_once(files, shapes, rank):
    model = tree(shapes)
    for name, module in list(model.named_modules()):
        if re.fullmatch(r".*layers\.\d+", name):
            fully_shard(module)
    fully_shard(model)
    model.to_empty(device="cuda")
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    state = {}
    if rank == 0:
        for file in files:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():
                    state[name] = opened.get_tensor(name)
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    torch.cuda.synchronize()
    seconds = torch.tensor([time.perf_counter() - begin], device="cuda")
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output")
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    files = sorted(glob.glob(os.path.join(arguments.folder, "*.safetensors")))
    shapes = shapes_of(files)
    samples = [load_once(files, shapes, rank) for _ in range(arguments.repeats)]
    rss = [None] * dist.get_world_size()
    dist.all_gather_object(rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    if rank == 0:
        result = {"torch": torch.__version__, "bytes": sum(os.path.getsize(f) for f in files),
                  "samples_s": samples, "load_s": statistics.median(samples), "max_rss_bytes": rss}
        print(json.dumps(result))
        if arguments.output:
            with open(arguments.output, "w", encoding="utf-8") as file:
                json.dump(result, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
