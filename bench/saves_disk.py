# SPDX-License-Identifier: Apache-2.0
"""What saves are measured with: writes of one file, direct and through the page cache, and the memory of this process.

    saves_disk.py FOLDER BYTES PROCESSES    bytes per second of direct writes by processes at once, each a share of BYTES"""

import ctypes
import gc
import itertools
import mmap
import multiprocessing
import os
import pathlib
import sys
import threading
import time

BLOCK = 4096
MIB = 1 << 20


def page_aligned(size):
    """Memory that begins with a page, random bytes."""
    memory = mmap.mmap(-1, size)
    memory.write(os.urandom(MIB) * (size // MIB))
    return memory


def write_direct(path, size, memories, allocate):
    """`size` bytes past the page cache, a request at a time from each of memories; on the disk when it returns. allocate: the file system
    gives the blocks before, not write by write."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    size = -(-size // BLOCK) * BLOCK
    number, failures, piece = itertools.count(), [], len(memories[0])

    def work(memory):
        try:
            for offset in (n * piece for n in number):
                if offset >= size:
                    return
                end, view = min(offset + piece, size), memoryview(memory)
                while offset < end:
                    offset += os.pwritev(file, [view[:end - offset]], offset)
        except OSError as failure:
            failures.append(failure)

    try:
        if allocate:
            os.posix_fallocate(file, 0, size)
        else:
            os.ftruncate(file, size)
        workers = [threading.Thread(target=work, args=(memory,)) for memory in memories]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        os.fsync(file)
    finally:
        os.close(file)
    if failures:
        raise failures[0]


def write_buffered(path, size, data):
    """By one thread through the page cache; on the disk when it returns."""
    with open(path, "wb", buffering=0) as file:
        for at in range(0, size, len(data)):
            left = memoryview(data)[:size - at]
            while left:
                left = left[file.write(left):]
        os.fsync(file.fileno())


def host_bytes():
    """Resident and locked bytes of this process; bytes that the node has left."""
    out = {}
    for name, keys in (("/proc/self/status", ("VmRSS", "VmLck", "VmPin")), ("/proc/meminfo", ("MemAvailable",))):
        for line in pathlib.Path(name).read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(":")
            if key in keys:
                out[key] = int(value.split()[0]) * 1024
    return out


class Memory:
    """Peaks while it is open, in MiB. Host memory is looked at every 5 ms: resident, locked, what the node has less than at the
    begin (`node`), page-locked by torch (`pinned`); of the GPU, torch's allocations and what the device has in use at the end.

    base: another one whose peaks are subtracted; None: what there was at the begin."""

    def __init__(self, base=None):
        self.base = base

    def __enter__(self):
        import torch

        gc.collect()
        self.torch = torch
        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        ctypes.CDLL(None).malloc_trim(0)
        if self.cuda:
            self.torch.cuda.synchronize()
            self.torch.cuda.reset_peak_memory_stats()
            self.torch.cuda.reset_peak_host_memory_stats()
        self.begin = self.now()
        self.peaks, self.done = dict(self.begin), threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def now(self):
        host = host_bytes()
        out = {"rss": host["VmRSS"], "locked": host.get("VmLck", 0) + host.get("VmPin", 0), "node": -host["MemAvailable"]}
        if self.cuda:
            free, total = self.torch.cuda.mem_get_info()
            out.update(pinned=self.torch.cuda.host_memory_stats()["allocated_bytes.current"], gpu=self.torch.cuda.memory_allocated(), device=total - free)
        return out

    def watch(self):
        while not self.done.wait(0.005):
            host = host_bytes()
            for key, value in (("rss", host["VmRSS"]), ("locked", host.get("VmLck", 0) + host.get("VmPin", 0)), ("node", -host["MemAvailable"])):
                self.peaks[key] = max(self.peaks[key], value)

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        if self.cuda:
            self.peaks.update(pinned=self.torch.cuda.host_memory_stats()["allocated_bytes.peak"], gpu=self.torch.cuda.max_memory_allocated(),
                              device=self.now()["device"])

    def row(self):
        base = self.base.peaks if self.base is not None else self.begin
        return {f"{key}_mib": round((value - base[key]) / MIB, 1) for key, value in self.peaks.items()}


def share(path, size, start, end):
    memories = [page_aligned(8 * MIB) for _ in range(8)]
    start.wait()
    write_direct(path, size, memories, False)
    end.wait()


def main():
    folder, size, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    start, end = (multiprocessing.Barrier(processes + 1, timeout=300) for _ in range(2))
    paths = [os.path.join(folder, f"direct-{i}") for i in range(processes)]
    for path in paths:
        multiprocessing.Process(target=share, args=(path, size // processes, start, end), daemon=True).start()
    try:
        start.wait()
        begin = time.perf_counter()
        end.wait()
        print(f"{size / (time.perf_counter() - begin):.0f}")
    finally:
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)


if __name__ == "__main__":
    main()
