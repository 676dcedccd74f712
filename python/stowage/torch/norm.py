# SPDX-License-Identifier: Apache-2.0
"""The sum of squared gradients over parts and ranks. It is exact (integer counters), so the norm and the clipped step have
the same bits for every sharding and number of ranks."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Sequence

import torch

from .. import _native
from .part import Part


class _CudaArray:
    """int64 counters in GPU memory, for torch.as_tensor."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (_native.NORM_COUNTERS,), "typestr": "<i8", "data": (address, False),
                                         "version": 2, "strides": None}


def view(address: int, device: torch.device) -> torch.Tensor:
    """The native counters as a torch tensor over the same memory."""
    if device.type == "cuda":
        return torch.as_tensor(_CudaArray(address), device=device)
    array = (ctypes.c_int64 * _native.NORM_COUNTERS).from_address(address)
    return torch.frombuffer(array, dtype=torch.int64)


def begin(parts: Sequence[Part], stream: int, process_group: Optional[Any]) -> None:
    """Queue the norm of all parts; afterwards every part's counters hold the total.

    Parts of DTensors are summed over the sharded dimensions of their mesh, so replicas count once. Plain tensors count as
    this rank has them. process_group: ranks that hold other parameters, or other shards as plain tensors.
    """
    if len(parts) == 1 and not parts[0].groups and process_group is None and parts[0].native is not None:
        parts[0].native.begin_norm(stream)
        return
    counters: List[torch.Tensor] = []
    for part in parts:
        if part.native is None:
            counters.append(torch.zeros(_native.NORM_COUNTERS, dtype=torch.int64, device=part.device))
        else:
            counters.append(view(part.native.begin_norm(stream), part.device))
    for part, counts in zip(parts, counters):
        for group in part.groups:
            torch.distributed.all_reduce(counts, group=group)
    if len(parts) > 1:
        total = counters[0].clone()
        for counts in counters[1:]:
            total += counts.to(total.device)
    else:
        total = counters[0]
    if process_group is not None:
        torch.distributed.all_reduce(total, group=process_group)
    if len(parts) > 1:
        for counts in counters:
            counts.copy_(total)
