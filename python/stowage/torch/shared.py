# SPDX-License-Identifier: Apache-2.0
"""Memory and events that two processes of one host see: by CUDA IPC on a GPU, by descriptors of shared memory on the host."""

from __future__ import annotations

import base64
import mmap
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import _native
from .tensors import on_device


def host_bucket(size: int, descriptor: Optional[int] = None) -> Tuple[torch.Tensor, int]:
    """Shared host memory, new or behind a descriptor, and its descriptor."""
    if descriptor is None:
        descriptor = os.memfd_create("stowage-bucket", os.MFD_CLOEXEC)
        os.truncate(descriptor, max(size, 1))
    return torch.frombuffer(mmap.mmap(descriptor, max(size, 1)), dtype=torch.uint8), descriptor


def gpu_name(device: torch.device) -> str:
    """The same in every process, whatever CUDA_VISIBLE_DEVICES says."""
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "uuid", properties.name))


def share(bucket: torch.Tensor) -> Dict[str, Any]:
    """The handle of a bucket in GPU memory, as torch.multiprocessing sends it."""
    storage = bucket.untyped_storage() if hasattr(bucket, "untyped_storage") else bucket.storage().untyped()
    fields = storage._share_cuda_()[1:]
    return {"handle": [base64.b64encode(f).decode() if isinstance(f, bytes) else f for f in fields],
            "bytes_at": [i for i, f in enumerate(fields) if isinstance(f, bytes)], "offset": bucket.storage_offset()}


def open_shared(handle: Mapping[str, Any], size: int, device: torch.device) -> torch.Tensor:
    fields = [base64.b64decode(f) if i in handle["bytes_at"] else f for i, f in enumerate(handle["handle"])]
    torch.cuda._lazy_init()
    storage = torch.UntypedStorage._new_shared_cuda(device.index, *fields)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, int(handle["offset"]), (size,), (1,))


def share_events(events: Sequence[Any], device: torch.device) -> List[str]:
    with on_device(device):  # torch makes an event on the current device when it is first used
        return [base64.b64encode(event.ipc_handle()).decode() for event in events]


def open_event(handle: str, device: torch.device) -> Any:
    return torch.cuda.Event.from_ipc_handle(device, base64.b64decode(handle))


def new_events() -> List[Any]:
    """For the two buckets."""
    return [torch.cuda.Event(interprocess=True) for _ in range(2)]


# ---- tensors of another process ----------------------------------------------------------------


class MemoryTable(NamedTuple):
    """memory: storages, each of so many bytes, on a GPU with its handle. places: of each tensor [storage, first element,
    strides]. descriptors: of storages on the host."""

    memory: List[Dict[str, Any]]
    places: List[Tuple[int, int, Sequence[int]]]
    descriptors: List[int]


def share_places(tensors: Sequence[torch.Tensor], device: torch.device) -> MemoryTable:
    """Error: memory that cannot be shared."""
    out = MemoryTable([], [], [])
    known: Dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known[storage.data_ptr()] = len(out.memory)
            entry: Dict[str, Any] = {"bytes": storage.nbytes()}
            if device.type == "cuda":
                try:
                    whole = torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (storage.nbytes(),), (1,))
                    entry.update(share(whole))
                except RuntimeError as failure:
                    raise _native.Error(f"direct: CUDA cannot share the memory of the weights ({str(failure).splitlines()[0]}); take "
                                        "direct=False") from failure
            elif storage.is_shared():
                out.descriptors.append(storage._share_fd_cpu_()[0])
            else:
                raise _native.Error("direct: found weights in memory of this process alone, expected shared memory "
                                    "(Tensor.share_memory_()); or take direct=False")
            out.memory.append(entry)
        out.places.append((known[storage.data_ptr()], tensor.storage_offset(), tensor.stride()))
    return out


def open_places(table: MemoryTable, dtypes: Sequence[torch.dtype], counts: Sequence[Sequence[int]], device: torch.device) -> List[torch.Tensor]:
    """The tensors. Descriptors are closed."""
    memory = []
    for i, entry in enumerate(table.memory):
        if device.type == "cuda":
            memory.append(open_shared(entry, entry["bytes"], device))
        else:
            memory.append(host_bucket(entry["bytes"], table.descriptors[i])[0])
            os.close(table.descriptors[i])
    out = []
    for (index, offset, stride), dtype, count in zip(table.places, dtypes, counts):
        storage = memory[index].untyped_storage()
        out.append(torch.empty(0, dtype=dtype, device=device).set_(storage, offset, tuple(count), tuple(stride)))
    return out
