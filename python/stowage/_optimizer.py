# SPDX-License-Identifier: Apache-2.0
"""A native optimizer (stw_optimizer_t): a step of AdamW on memory that the caller owns. Addresses and streams are
numbers here; nothing knows torch."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_void_p
from typing import List, NamedTuple, Optional, Sequence, Tuple

from . import _native
from ._plan import Plan


class Bound(NamedTuple):
    """A tensor of the plan's model, as the caller has it. dtype: "F32", "BF16"."""

    name: str
    dtype: str
    address: int
    elements: int
    group: int


class Info(NamedTuple):
    """gpu_bytes: resident state and ring. host_bytes: page-locked. nvme_bytes: of the file. streamed_bytes: up per step, as many
    come down."""

    backend: str
    gpu_bytes: int
    host_bytes: int
    nvme_bytes: int
    buckets: int
    streamed_bytes: int
    open_seconds: float


def measure(plan: Plan) -> Info:
    """Bytes that an optimizer of this plan takes, without a device."""
    info = _native.OptimizerInfo()
    _native.load().call("stw_measure_optimizer", plan._handle, byref(info), ctypes.sizeof(info))
    return _info(info)


def spill(plan: Plan, host_bytes: int) -> None:
    """Put streamed state of the last tensors that has no room in host_bytes of host memory, slots included, on NVMe."""
    _native.load().call("stw_spill_state", plan._handle, host_bytes)


class Optimizer:
    """Keeps its plan alive; `close` waits for work under way."""

    def __init__(self, plan: Plan, tensors: Sequence[Bound], backend: Optional[str] = None, gpu: Optional[int] = None,
                 gpu_address: int = 0, gpu_bytes: int = 0, nvme: Optional[str] = None) -> None:
        self._library = _native.load()
        self._handle = c_void_p()
        self._plan = plan
        self._count = len(tensors)
        self._addresses = (c_void_p * self._count)()
        bound = (_native.Bound * self._count)(
            *[(t.name.encode(), t.dtype.encode(), t.address or None, t.elements, t.group) for t in tensors])
        options = _native.OptimizerOptions(backend=backend.encode() if backend else None, gpu_address=gpu_address or None,
                                           gpu_bytes=gpu_bytes, nvme_folder=os.fsencode(nvme) if nvme else None,
                                           gpu_is_given=int(gpu is not None), gpu=gpu or 0)
        self._library.call("stw_open_optimizer", plan._handle, bound, self._count, byref(options), ctypes.sizeof(options),
                           byref(self._handle))

    def info(self) -> Info:
        info = _native.OptimizerInfo()
        self._library.stw_get_optimizer_info(self._handle, byref(info), ctypes.sizeof(info))
        return _info(info)

    def set_group(self, group: int, learning_rate: float, weight_decay: float) -> None:
        self._library.call("stw_set_group", self._handle, group, learning_rate, weight_decay)

    def bind_gradients(self, addresses: Sequence[int]) -> None:
        self._addresses[:] = addresses
        self._library.call("stw_bind_gradients", self._handle, self._addresses, self._count)

    def bind_params(self, addresses: Sequence[int]) -> None:
        """0: where it was."""
        self._addresses[:] = [a or None for a in addresses]
        self._library.call("stw_bind_params", self._handle, self._addresses, self._count)

    def begin_norm(self, stream: int) -> int:
        """Address of the counters (_native.NORM_COUNTERS of 64 bits), ready in the order of `stream`."""
        counters = c_void_p()
        self._library.call("stw_begin_norm", self._handle, 1, stream or None, byref(counters))
        return counters.value or 0

    def begin_step(self, step: int, betas: Tuple[float, float], eps: float, clip_norm: float, stream: int) -> None:
        options = _native.StepOptions(step, betas[0], betas[1], eps, clip_norm, stream or None)
        self._library.call("stw_begin_step", self._handle, byref(options), ctypes.sizeof(options))

    def wait(self, tensor: int, stream: int) -> None:
        """Make a stream wait for a tensor's new value; _native.NONE: for all."""
        library = self._library  # not call(): this is called for every tensor in every forward
        status = library.stw_wait_tensor(self._handle, tensor, stream or None, library.error())
        if status:
            library.fail(status)

    def finish(self) -> Tuple[float, float]:
        """Block until the step is done; grad_norm and clip_factor of it."""
        sample = _native.Sample()
        self._library.call("stw_finish_step", self._handle, byref(sample), ctypes.sizeof(sample))
        return sample.grad_norm, sample.clip_factor

    def read_state(self, component: str, tensor: int, elements: int, out: int) -> None:
        self._library.call("stw_read_state", self._handle, component.encode(), tensor, 0, elements, out)

    def write_state(self, component: str, tensor: int, elements: int, source: int) -> None:
        self._library.call("stw_write_state", self._handle, component.encode(), tensor, 0, elements, source)

    def close(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self._library.stw_free_optimizer(handle)


def _info(info: _native.OptimizerInfo) -> Info:
    return Info(_native.text(info.backend), info.gpu_bytes, info.host_bytes, info.nvme_bytes, info.buckets,
                info.streamed_bytes, info.open_seconds)


__all__: List[str] = ["Bound", "Info", "Optimizer", "measure", "spill"]
