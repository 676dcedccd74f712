#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Snapshots in the layout of torch.cuda.memory._snapshot (torch 2.11, torch/csrc/cuda/memory_snapshot.cpp), small ones
whose answers are known: corpus/failure/snapshot_*. A model of torch's allocator hands out addresses.

    tests/fuzz/failure_snapshots.py [FOLDER]"""

import pathlib
import pickle
import sys

MIB = 1 << 20


def frames(*calls):
    """(file, line, function), outermost first, as Python prints them; the snapshot has the innermost first."""
    return [{"name": name, "filename": file, "line": line} for file, line, name in reversed(calls)]


MAIN = ("/opt/job/train.py", 40, "main")
LIB = "/opt/env/lib/python3.11/site-packages/torch/"
LOAD = frames(MAIN, ("/opt/job/train.py", 12, "build"), (LIB + "nn/modules/linear.py", 109, "__init__"))
FORWARD = frames(MAIN, (LIB + "nn/modules/module.py", 1775, "_call_impl"), (LIB + "nn/modules/linear.py", 134, "forward"))
LOSS = frames(MAIN, (LIB + "nn/modules/module.py", 1775, "_call_impl"), (LIB + "nn/functional.py", 3462, "cross_entropy"))
STEP = frames(MAIN, (LIB + "optim/optimizer.py", 526, "wrapper"), (LIB + "optim/adam.py", 236, "step"),
              (LIB + "optim/adam.py", 176, "_init_group"))
REDUCE = frames((LIB + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", 520, "post_backward"),
                (LIB + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", 470, "foreach_reduce"))
CPP = [{"name": "torch::autograd::Engine::evaluate_function(...)", "filename": "??", "line": 0}]


class Device:
    def __init__(self):
        self.segments, self.trace, self.at, self.clock = [], [], 0x7F0000000000, 1763000000000000

    def event(self, action, address, size, stack=None, **more):
        self.clock += 10
        row = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.clock,
               "compile_context": "N/A", "user_metadata": "", **more}
        if stack is not None:
            row["frames"] = stack
        self.trace.append(row)

    def segment(self, size, blocks):
        """A segment of blocks: [bytes, stack or None (free), state]"""
        base, listed, used = self.at, [], 0
        self.at += size + 2 * MIB
        self.event("segment_alloc", base, size, [])
        address = base
        for n, stack in blocks:
            if stack is not None:
                self.event("alloc", address, n, stack)
                used += n
            listed.append({"address": address, "size": n, "requested_size": n,
                           "state": "active_allocated" if stack is not None else "inactive", "frames": stack or []})
            address += n
        if address < base + size:
            listed.append({"address": address, "size": base + size - address, "requested_size": 0, "state": "inactive",
                           "frames": []})
        self.segments.append({"device": 0, "address": base, "total_size": size, "allocated_size": used,
                              "active_size": used, "requested_size": used, "stream": 0, "segment_type": "large",
                              "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": listed})
        return base

    def oom(self, size, free, stack):
        self.event("oom", free, size, stack, device_free=free)

    def free(self, address):
        """After the failure: the exception has let go of a tensor."""
        for segment in self.segments:
            for block in segment["blocks"]:
                if block["address"] == address and block["state"] == "active_allocated":
                    block["state"] = "inactive"
                    self.event("free_requested", address, block["size"], [])
                    self.event("free_completed", address, block["size"], [])
                    segment["allocated_size"] -= block["size"]

    def snapshot(self, keep=None):
        trace = self.trace if keep is None else self.trace[-keep:]
        return {"segments": self.segments, "device_traces": [trace], "allocator_settings": {"expandable_segments": False},
                "external_annotations": []}


def forward():
    d = Device()
    d.segment(2048 * MIB, [(2048 * MIB, LOAD)])
    d.segment(1024 * MIB, [(512 * MIB, FORWARD), (256 * MIB, FORWARD), (256 * MIB, LOSS)])
    d.oom(512 * MIB, 100 * MIB, FORWARD)
    return d.snapshot()


def backward(stack):
    """Backward runs on a thread without Python; the failure's tensors are gone when the file is written."""
    d = Device()
    d.segment(2048 * MIB, [(2048 * MIB, LOAD)])
    base = d.segment(1024 * MIB, [(700 * MIB, FORWARD), (324 * MIB, stack)])
    d.segment(256 * MIB, [(256 * MIB, REDUCE)])
    d.oom(324 * MIB, 64 * MIB, stack)
    d.free(base)
    d.free(base + 700 * MIB)
    return d.snapshot()


def first_step(keep=None):
    d = Device()
    d.segment(2048 * MIB, [(2048 * MIB, LOAD)])
    d.segment(2048 * MIB, [(2048 * MIB, REDUCE)])
    d.segment(1024 * MIB, [(1024 * MIB, STEP)])
    d.oom(1024 * MIB, 20 * MIB, STEP)
    return d.snapshot(keep)


def fragments():
    d = Device()
    for i in range(16):
        d.segment((200 + 4 * i) * MIB, [(120 * MIB, FORWARD)])
    d.oom(1000 * MIB, 300 * MIB, LOSS)
    return d.snapshot()


def no_failure():
    d = Device()
    d.segment(512 * MIB, [(500 * MIB, LOAD)])
    return d.snapshot()


SNAPSHOTS = {"snapshot_forward": forward(), "snapshot_backward": backward([]), "snapshot_backward_cpp": backward(CPP),
             "snapshot_first_step": first_step(), "snapshot_late": first_step(keep=3), "snapshot_fragments": fragments(),
             "snapshot_none": no_failure()}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "corpus/failure")
    for name, snapshot in SNAPSHOTS.items():
        (folder / name).write_bytes(pickle.dumps(snapshot, protocol=4))


if __name__ == "__main__":
    main()
