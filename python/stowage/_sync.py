# SPDX-License-Identifier: Apache-2.0
"""Schedules of weight syncs of libstowage: who sends which boxes to whom in which round, and the calls that pack and place
them. Nothing here knows torch."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_uint32, c_uint64, c_void_p
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from . import _native

DIMS = 4  # STOWAGE_MAX_DIMS
MIN_BUCKET = 1 << 20
_Dims = c_uint64 * DIMS

# What a step of a sync asks for, STOWAGE_SYNC_... of stowage.h.
DONE, POST, RECEIVE, RELEASE, TAKE, WAIT = range(6)


class TensorRow(NamedTuple):
    """A tensor that moves. dtype: in which it travels, F32, BF16 or F16."""

    name: str
    dtype: str
    shape: Tuple[int, ...]


class Piece(NamedTuple):
    """A box of a tensor on a rank. memory: a number of the rank's own, or None (a target that is handed over in buckets). The
    first element lies at element `offset` of the memory, neighbours of dimension d are stride[d] elements apart."""

    rank: int
    tensor: int
    first: Tuple[int, ...]
    count: Tuple[int, ...]
    memory: Optional[int]
    offset: int
    stride: Tuple[int, ...]
    dtype: str


class Message(NamedTuple):
    """Bytes of a round between this rank and a peer."""

    peer: int
    sends: bool
    offset: int
    bytes: int


class Part(NamedTuple):
    """A box in the bucket of a round. target: index among the targets of all ranks; last: the target is whole with it."""

    tensor: int
    target: int
    first: Tuple[int, ...]
    count: Tuple[int, ...]
    offset: int
    last: bool


class Info(NamedTuple):
    rounds: int
    send_bytes: int
    receive_bytes: int
    bucket_bytes: int
    sent_bytes: int
    received_bytes: int
    own_bytes: int
    sum: int


class _Tensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("dims", c_uint32), ("shape", _Dims)]


class _Piece(Structure):
    _fields_ = [("rank", c_uint32), ("tensor", c_uint32), ("first", _Dims), ("count", _Dims), ("memory", c_uint32),
                ("offset", c_uint64), ("stride", _Dims), ("dtype", c_char_p)]


class _Options(Structure):
    _fields_ = [("tensors", POINTER(_Tensor)), ("sources", POINTER(_Piece)), ("targets", POINTER(_Piece)), ("n_tensors", c_uint32),
                ("n_sources", c_uint32), ("n_targets", c_uint32), ("world", c_uint32), ("bucket_bytes", c_uint64)]


class _Info(Structure):
    _fields_ = [("rounds", c_uint32), ("send_bytes", c_uint64), ("receive_bytes", c_uint64), ("bucket_bytes", c_uint64),
                ("sent_bytes", c_uint64), ("received_bytes", c_uint64), ("own_bytes", c_uint64), ("sum", c_uint64)]


class _Message(Structure):
    _fields_ = [("peer", c_uint32), ("sends", c_int), ("offset", c_uint64), ("bytes", c_uint64)]


class _Part(Structure):
    _fields_ = [("tensor", c_uint32), ("target", c_uint32), ("first", _Dims), ("count", _Dims), ("offset", c_uint64),
                ("last", c_int)]


class _Begin(Structure):
    _fields_ = [("send", c_void_p * 2), ("receive", c_void_p * 2), ("bucket", c_void_p * 2), ("pack_stream", c_void_p),
                ("comm_stream", c_void_p), ("place_stream", c_void_p), ("take_stream", c_void_p), ("comm", c_void_p),
                ("releases", c_int), ("timeout_s", c_double)]


class _Open(Structure):
    _fields_ = [("backend", c_char_p), ("gpu_is_given", c_int), ("gpu", c_uint32), ("sources", POINTER(c_void_p)),
                ("targets", POINTER(c_void_p)), ("n_sources", c_uint32), ("n_targets", c_uint32)]


def _dims(values: Sequence[int], fill: int) -> Any:
    return _Dims(*values, *([fill] * (DIMS - len(values))))


def _pieces(rows: Sequence[Piece]) -> Any:
    out = (_Piece * max(len(rows), 1))()
    for c, row in zip(out, rows):
        c.rank, c.tensor, c.offset, c.dtype = row.rank, row.tensor, row.offset, row.dtype.encode()
        c.first, c.count, c.stride = _dims(row.first, 0), _dims(row.count, 1), _dims(row.stride, 0)
        c.memory = _native.NONE if row.memory is None else row.memory
    return out


def _addresses(values: Sequence[int]) -> Any:
    return (c_void_p * max(len(values), 1))(*values)


class Schedule:
    """A pure function of its arguments, which are the same on every rank."""

    def __init__(self, tensors: Sequence[TensorRow], sources: Sequence[Piece], targets: Sequence[Piece], world: int,
                 bucket_bytes: int) -> None:
        self._library = _native.load()
        self._handle = c_void_p()
        self._dims = [len(t.shape) for t in tensors]
        rows = (_Tensor * max(len(tensors), 1))()
        for c, row in zip(rows, tensors):
            c.name, c.dtype, c.dims, c.shape = row.name.encode(), row.dtype.encode(), len(row.shape), _dims(row.shape, 1)
        options = _Options(rows, _pieces(sources), _pieces(targets), len(tensors), len(sources), len(targets), world, bucket_bytes)
        self._library.call("stw_plan_sync", byref(options), ctypes.sizeof(options), byref(self._handle))

    def info(self, rank: int) -> Info:
        out = _Info()
        self._library.call("stw_get_schedule_info", self._handle, rank, byref(out), ctypes.sizeof(out))
        return Info(*(getattr(out, name) for name, _ in _Info._fields_))

    def messages(self, rank: int, number: int) -> List[Message]:
        rows, n = POINTER(_Message)(), c_uint32()
        self._library.call("stw_get_sync_messages", self._handle, rank, number, byref(rows), byref(n))
        return [Message(c.peer, bool(c.sends), c.offset, c.bytes) for c in rows[:n.value]]

    def parts(self, rank: int, number: int) -> List[Part]:
        rows, n = POINTER(_Part)(), c_uint32()
        self._library.call("stw_get_sync_parts", self._handle, rank, number, byref(rows), byref(n))
        out = []
        for c in rows[:n.value]:
            dims = self._dims[c.tensor]
            out.append(Part(c.tensor, c.target, tuple(c.first[:dims]), tuple(c.count[:dims]), c.offset, bool(c.last)))
        return out

    def close(self) -> None:
        if self._handle:
            self._library.stw_free_schedule(self._handle)
            self._handle = c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class Rounds:
    """A schedule on a device, of one rank. Addresses of sources and targets: in the order of their memories."""

    def __init__(self, schedule: Schedule, rank: int, gpu: Optional[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        self._schedule = schedule
        self._library = _native.load()
        self._handle = c_void_p()
        options = _Open(b"host" if gpu is None else b"cuda", gpu is not None, gpu or 0, _addresses(sources), _addresses(targets),
                        len(sources), len(targets))
        self._library.call("stw_open_sync", schedule._handle, rank, byref(options), ctypes.sizeof(options), byref(self._handle))
        self._action, self._number, self._set = c_int(), c_uint32(), c_uint32()
        self._answer = byref(self._action), byref(self._number), byref(self._set)
        self._step = self._library.stw_step_sync

    def bind(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._library.call("stw_bind_sync", self._handle, _addresses(sources), len(sources), _addresses(targets), len(targets))

    def begin(self, sets: Sequence[Tuple[int, int, int]], streams: Sequence[int], comm: int, releases: bool, timeout: float) -> None:
        """sets: addresses of send buffer, receive buffer and bucket, of both sets. streams: those that pack, send, place and take."""
        send, receive, bucket = zip(*sets)
        options = _Begin((c_void_p * 2)(*send), (c_void_p * 2)(*receive), (c_void_p * 2)(*bucket), *streams, comm, releases, timeout)
        self._library.call("stw_begin_sync", self._handle, byref(options), ctypes.sizeof(options))

    def step(self) -> Tuple[int, int, Optional[_native.Error]]:
        """Goes on to what is to be done next: the action, its round, and an error that the round met."""
        status = self._step(self._handle, *self._answer, self._library.error())
        error = None
        if status:
            try:
                self._library.fail(status)
            except _native.Error as failure:
                error = failure
        return self._action.value, self._number.value, error

    def close(self) -> None:
        if self._handle:
            self._library.stw_free_sync(self._handle)
            self._handle = c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
