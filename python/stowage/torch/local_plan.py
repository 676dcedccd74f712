# SPDX-License-Identifier: Apache-2.0
"""The plan of one rank's shards: parameters and gradients stay where torch has them, master weights and moments go to the
GPU (update "resident"), or to page-locked host memory and NVMe (update "stream").

Every rank steps its own shards, so the plan's world is 1 whatever the job's is. Bytes come from the plan itself
(stw_measure_optimizer); nothing is computed twice.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _native
from .._optimizer import Info, measure, spill
from .._plan import Plan, plan

UNIT = 2048  # parameters: the planner places state in units of so many
_SMALLEST_BUCKET = 1 << 20
_RING = 1 << 27  # bytes of a ring of the default size
_SLOTS = 3  # one comes up, one is updated, one goes down
_SLOTS_NVME = 6  # and one is read, one is written, and one waits
_EVERYTHING = 1 << 50  # bytes: more than any machine has


class Settings(NamedTuple):
    """What the caller wants of a plan.

    gpu_memory  bytes of GPU memory for resident state and the ring; 0: no state, and a ring of 128 MiB at most
    resident    share of the parameters with resident state, instead of gpu_memory
    bucket      bytes of a ring slot; depth: slots. None for both: three slots that make up 128 MiB; None for one: the planner's choice
    moments     "fp32" or "bf16"
    nvme        folder for state that host_memory has no room for; None: all of it must have room
    host_memory bytes of page-locked memory, with nvme; None: to be found when memory is taken (host_share)
    """

    gpu_memory: int = 0
    resident: Optional[float] = None
    bucket: Optional[int] = None
    depth: Optional[int] = None
    moments: str = "fp32"
    nvme: Optional[str] = None
    host_memory: Optional[int] = None


def host_share(settings: Settings, elements: int, total: int) -> Settings:
    """host_memory of a part of the parameters; None becomes 80% of what is free now."""
    if settings.nvme is None:
        return settings
    free = settings.host_memory if settings.host_memory is not None else int(_free_host_bytes() * 0.8)
    return settings._replace(host_memory=free * elements // total)


def state_bytes(dtype: str, settings: Settings) -> int:
    """Bytes of state per parameter: two moments, and for 16-bit parameters an fp32 master weight."""
    return 2 * (2 if settings.moments == "bf16" else 4) + (0 if dtype == "F32" else 4)


def make(tensors: Sequence[Tuple[str, int]], dtype: str, settings: Settings) -> Tuple[Plan, Info]:
    """Plan the state of tensors (name, elements), in the order in which they will be updated."""
    units = -(-sum(n for _, n in tensors) // UNIT)
    state = units * UNIT * state_bytes(dtype, settings)
    if settings.bucket is None and settings.depth is None:
        slots = _SLOTS if settings.nvme is None else _SLOTS_NVME
        settings = settings._replace(bucket=_bucket(state, slots), depth=slots)
    if settings.resident is not None:
        return _try(tensors, dtype, round(units * settings.resident), units, settings)
    if settings.gpu_memory <= 0:
        return _try(tensors, dtype, 0, units, settings)
    made = _try(tensors, dtype, units, units, settings)
    if made[1].gpu_bytes <= settings.gpu_memory:
        return made
    return _fill(tensors, dtype, units, settings)


def _bucket(state: int, slots: int) -> int:
    """Bytes of a slot where the caller names none: large, since an update that hides behind a forward waits for a running
    kernel's end each time; but a few buckets at least."""
    return min(_RING // slots, max(_SMALLEST_BUCKET, state // 8)) // _native.ALIGNMENT * _native.ALIGNMENT


def _fill(tensors: Sequence[Tuple[str, int]], dtype: str, units: int, settings: Settings) -> Tuple[Plan, Info]:
    """As much resident state as fits beside the ring; with a smaller bucket if the ring alone does not fit."""
    made = _try(tensors, dtype, 0, units, settings)
    bucket = settings.bucket
    while made[1].gpu_bytes > settings.gpu_memory:
        bucket = (bucket or made[1].gpu_bytes) // 2
        if bucket < _SMALLEST_BUCKET:
            raise _native.Error(f"gpu_memory: found {settings.gpu_memory} bytes, expected at least {made[1].gpu_bytes} for the "
                                "ring of buckets")
        settings = settings._replace(bucket=bucket)
        made = _try(tensors, dtype, 0, units, settings)
    resident = (settings.gpu_memory - made[1].gpu_bytes) // (state_bytes(dtype, settings) * UNIT)
    while resident > 0:
        fuller = _try(tensors, dtype, resident, units, settings)
        over = fuller[1].gpu_bytes - settings.gpu_memory
        if over <= 0:
            return fuller
        resident -= max(1, over // (state_bytes(dtype, settings) * UNIT))
    return made


def _try(tensors: Sequence[Tuple[str, int]], dtype: str, resident: int, units: int,
         settings: Settings) -> Tuple[Plan, Info]:
    made = _plan(tensors, dtype, resident, units, settings)
    if settings.host_memory is not None and resident < units:
        spill(made, settings.host_memory)
    return made, measure(made)


def _plan(tensors: Sequence[Tuple[str, int]], dtype: str, resident: int, units: int, settings: Settings) -> Plan:
    streams = resident < units
    host = _host_bytes() if settings.nvme is None else _EVERYTHING  # what has no room is spilled
    name = "fp32" if dtype == "F32" else "bf16"
    keys: Dict[str, Any] = {
        "engine": "stowage", "parallel.dp_shard": 1,
        "precision.params": name, "precision.grads": name,
        "precision.exp_avg": settings.moments, "precision.exp_avg_sq": settings.moments,
        "placement.params": "gpu", "placement.grads": "gpu", "placement.accept": "at_risk",
        "update.resident": resident / units, "update.stream": 1 - resident / units, "update.cpu": 0,
    }
    if name != "fp32":
        keys["precision.master"] = "fp32"
    if streams and settings.bucket:
        keys["prefetch.bucket"] = f"{settings.bucket} B"
    if streams and settings.depth:
        keys["prefetch.depth"] = settings.depth
    with tempfile.TemporaryDirectory(prefix="stowage-") as folder:
        model, cluster = os.path.join(folder, "shards.csv"), os.path.join(folder, "cluster.yaml")
        _write_model(model, tensors, dtype)
        _write_cluster(cluster, host, _free_nvme_bytes(settings))
        try:
            return plan(model, cluster, set=keys)
        except _native.Error as error:
            if error.status != _native.NOTHING_FITS:
                raise
            raise _native.Error(f"the optimizer's state does not fit into this node's host memory "
                                f"({host / 2**30:.1f} GiB for this rank): {error}", error.status) from None


def planned_name(name: str) -> str:
    """Of a tensor in the plan. A plan orders tensors by the blocks that it reads off their names: head and last norm come last. Here
    the order is that of the forward, in which FSDP2's root gathers these first. A name without dots is of no block."""
    return name.replace(".", "/")


def _write_model(path: str, tensors: Sequence[Tuple[str, int]], dtype: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "shape", "dtype", "group"])
        rows.writerows([planned_name(name), f"[{elements}]", dtype, "shards"] for name, elements in tensors)


def _write_cluster(path: str, host: int, nvme: int) -> None:
    """This rank's part of the machine. The GPU is as large as needed: what the optimizer may take of it is gpu_memory,
    and its parameters and gradients are there already."""
    host = max(1 << 20, host)
    lines: List[str] = ["name: this rank", "nodes: 1", "node:", "  gpus: 1", "  gpu: {memory: 1000 TiB, context: 0 B, comm: 0 B}",
                        f"  host: {{memory: {host} B, limit: {host} B, process: 0 B}}"]
    if nvme > 0:
        lines.append(f"  nvme: {{capacity: {nvme} B}}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _host_bytes() -> int:
    """Host memory of this rank: the machine's or the cgroup's, over the ranks of the node."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]:
        try:
            with open(path, encoding="ascii") as file:
                total = min(total, int(file.read()))
        except (OSError, ValueError):
            pass
    return total // _ranks_here()


def _free_host_bytes() -> int:
    """What is free of it now."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    for folder, limit, used in [("", "memory.max", "memory.current"),
                                ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes")]:
        try:
            with open(f"/sys/fs/cgroup/{folder}{limit}", encoding="ascii") as most, \
                    open(f"/sys/fs/cgroup/{folder}{used}", encoding="ascii") as now:
                free = min(free, int(most.read()) - int(now.read()))
        except (OSError, ValueError):
            pass
    return max(0, free) // _ranks_here()


def _free_nvme_bytes(settings: Settings) -> int:
    """Bytes for the file of this rank: what its folder has free, over the ranks of the node."""
    return shutil.disk_usage(settings.nvme).free // _ranks_here() if settings.nvme else 0


def _ranks_here() -> int:
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
