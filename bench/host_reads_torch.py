# SPDX-License-Identifier: Apache-2.0
"""At which rate does a GPU read page-locked host memory: kernels of a weight sync and copy engines, by how the memory was made?

    torchrun --nproc-per-node N bench/host_reads_torch.py [--gib 4] [-o FILE]

Memory: `pinned` (cudaHostAlloc), `registered` (pages of 4 KiB, cudaHostRegister), `huge` (the same with transparent huge pages).
Ways: `kernel` (stowage.torch.WeightSync to a callback that drops what it gets), `copy` (cudaMemcpyAsync), `copy2d` (cudaMemcpy2DAsync of
the left half of the columns). `rows`: bytes of a row. Each is measured on rank 0 alone, then on all ranks at once; GB/s of the slowest."""

import argparse
import ctypes
import json
import mmap
import os
import time

import torch
import torch.distributed as dist

from stowage.torch import Callback, WeightSync

GIB = 1 << 30


def memory(kind, size):
    if kind == "pinned":
        return torch.empty(size, dtype=torch.uint8, pin_memory=True), None
    area = mmap.mmap(-1, size + (2 << 20))
    if kind == "huge":
        area.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    whole = whole[-whole.data_ptr() % (2 << 20):][:size].fill_(1)
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), size, 0)))
    return whole, area


def runtime():
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    for line in open("/proc/self/maps"):  # torch's own
        if "libcudart" in line:
            return ctypes.CDLL(line.split()[-1])
    raise SystemExit("libcudart was not found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    alone = [dist.new_group([r], backend="cpu:gloo,cuda:nccl") for r in range(world)][rank]
    cuda = runtime()
    size = options.gib * GIB
    into = torch.empty(size, dtype=torch.uint8, device=device)

    def timed(call, active):
        best = None
        for i in range(4):
            dist.barrier()
            start = time.perf_counter()
            if active:
                call()
                torch.cuda.synchronize()
            spent = torch.tensor(time.perf_counter() - start if active else 0.0)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            if i:
                best = min(best or spent.item(), spent.item())
        return best

    def tell(**row):
        if rank == 0:
            print(json.dumps(row), flush=True)
            if options.output:
                with open(options.output, "a") as file:
                    file.write(json.dumps(row) + "\n")

    for kind in ("pinned", "registered", "huge"):
        start = time.perf_counter()
        host, area = memory(kind, size)
        tell(memory=kind, made_s=round(time.perf_counter() - start, 2))
        for row_bytes in (1536, 8192):
            matrix = host[:size // row_bytes * row_bytes].view(torch.bfloat16).view(-1, row_bytes // 2)
            n, half = matrix.shape[0], row_bytes // 2
            parts = [(f"t{i}", part) for i, part in enumerate(matrix.chunk(8))]
            whole = WeightSync(parts, Callback(lambda rows: None, split=True), process_group=alone, device=device)
            slices = {name: [((0, 0), (part.shape[0], row_bytes // 4))] for name, part in parts}
            columns = WeightSync(parts, Callback(lambda rows: None, slices=slices, split=True), process_group=alone, device=device)
            two = [ctypes.c_void_p(into.data_ptr()), ctypes.c_size_t(half), ctypes.c_void_p(matrix.data_ptr()),
                   ctypes.c_size_t(row_bytes), ctypes.c_size_t(half), ctypes.c_size_t(n), ctypes.c_int(1)]
            ways = {"kernel": (lambda: whole.sync(1), n * row_bytes), "kernel, half": (lambda: columns.sync(1), n * half),
                    "copy": (lambda: into[:n * row_bytes].copy_(matrix.view(torch.uint8).view(-1), non_blocking=True), n * row_bytes),
                    "copy2d, half": (lambda: cuda.cudaMemcpy2DAsync(*two, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)),
                                     n * half)}
            for name, (call, moved) in ways.items():
                for ranks in dict.fromkeys((1, world)):
                    seconds = timed(call, rank < ranks)
                    tell(memory=kind, rows=row_bytes, way=name, ranks=ranks, gbps=round(moved / seconds / 1e9, 1))
            whole.close()
            columns.close()
        if kind != "pinned":
            torch.cuda.cudart().cudaHostUnregister(host.data_ptr())
        del host, area, matrix, parts
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
