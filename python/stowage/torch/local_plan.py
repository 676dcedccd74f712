# SPDX-License-Identifier: Apache-2.0
"""The plan of one rank's shards: parameters and gradients stay where torch has them, master weights and moments go to the
GPU (update "resident") or to page-locked host memory (update "stream").

Every rank steps its own shards, so the plan's world is 1 whatever the job's is. Bytes come from the plan itself
(stw_measure_optimizer); nothing is computed twice.
"""

from __future__ import annotations

import csv
import os
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _native
from .._optimizer import Info, measure
from .._plan import Plan, plan

UNIT = 2048  # parameters: the planner places state in units of so many
_SMALLEST_BUCKET = 1 << 20
_RING = 1 << 27  # bytes of a ring of the default size
_SLOTS = 3  # one comes up, one is updated, one goes down


class Settings(NamedTuple):
    """What the caller wants of a plan.

    gpu_memory  bytes of GPU memory for resident state and the ring; 0: no state, and a ring of 128 MiB at most
    resident    share of the parameters with resident state, instead of gpu_memory
    bucket      bytes of a ring slot; depth: slots. None for both: three slots that make up 128 MiB; None for one: the planner's choice
    moments     "fp32" or "bf16"
    """

    gpu_memory: int = 0
    resident: Optional[float] = None
    bucket: Optional[int] = None
    depth: Optional[int] = None
    moments: str = "fp32"


def state_bytes(dtype: str, settings: Settings) -> int:
    """Bytes of state per parameter: two moments, and for 16-bit parameters an fp32 master weight."""
    return 2 * (2 if settings.moments == "bf16" else 4) + (0 if dtype == "F32" else 4)


def make(tensors: Sequence[Tuple[str, int]], dtype: str, settings: Settings) -> Tuple[Plan, Info]:
    """Plan the state of tensors (name, elements), in the order in which they will be updated."""
    units = -(-sum(n for _, n in tensors) // UNIT)
    state = units * UNIT * state_bytes(dtype, settings)
    if settings.bucket is None and settings.depth is None:
        settings = settings._replace(bucket=_bucket(state), depth=_SLOTS)
    if settings.resident is not None:
        return _try(tensors, dtype, round(units * settings.resident), units, settings)
    if settings.gpu_memory <= 0:
        return _try(tensors, dtype, 0, units, settings)
    made = _try(tensors, dtype, units, units, settings)
    if made[1].gpu_bytes <= settings.gpu_memory:
        return made
    return _fill(tensors, dtype, units, settings)


def _bucket(state: int) -> int:
    """Bytes of a slot where the caller names none: large, since an update that hides behind a forward waits for a running
    kernel's end each time; but a few buckets at least."""
    return min(_RING // _SLOTS, max(_SMALLEST_BUCKET, state // 8)) // _native.ALIGNMENT * _native.ALIGNMENT


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
    return made, measure(made)


def _plan(tensors: Sequence[Tuple[str, int]], dtype: str, resident: int, units: int, settings: Settings) -> Plan:
    streams = resident < units
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
        _write_cluster(cluster)
        try:
            return plan(model, cluster, set=keys)
        except _native.Error as error:
            if error.status != _native.NOTHING_FITS:
                raise
            raise _native.Error(f"the optimizer's state does not fit into this node's host memory "
                                f"({_host_bytes() / 2**30:.1f} GiB for this rank): {error}", error.status) from None


def _write_model(path: str, tensors: Sequence[Tuple[str, int]], dtype: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "shape", "dtype"])
        rows.writerows([name, f"[{elements}]", dtype] for name, elements in tensors)


def _write_cluster(path: str) -> None:
    """This rank's part of the machine. The GPU is as large as needed: what the optimizer may take of it is gpu_memory,
    and its parameters and gradients are there already."""
    host = max(1 << 20, _host_bytes())
    lines: List[str] = ["name: this rank", "nodes: 1", "node:", "  gpus: 1", "  gpu: {memory: 1000 TiB, context: 0 B, comm: 0 B}",
                        f"  host: {{memory: {host} B, limit: {host} B, process: 0 B}}"]
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
    return total // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
