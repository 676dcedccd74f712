# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of libstowage (include/stowage_checkpoint.h): what the ranks of a job hold, saves of it, and loads. Nothing here
knows torch."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_double, c_int, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _native
from ._optimizer import Optimizer

DIMS = 4  # STOWAGE_MAX_DIMS
RATES = 8  # STOWAGE_PARAM_GROUPS
_Dims = c_uint64 * DIMS
_Copy = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64, c_void_p)


class SavedTensor(NamedTuple):
    """dtype: of the parameters, F32, BF16 or F16. trained: it has optimizer state. At most DIMS dimensions."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    trained: bool


class Held(NamedTuple):
    """A box of a tensor that a rank holds, of parameters and state."""

    rank: int
    tensor: int
    first: Tuple[int, ...]
    count: Tuple[int, ...]


class Place(NamedTuple):
    """Where a component of a piece lies: tensor `index` of an optimizer, or where `copy` reaches it, which gets the first
    element, the number of elements and an address. It is called on the calling thread."""

    piece: int
    component: str
    optimizer: Optional[Optimizer] = None
    index: int = 0
    copy: Optional[Callable[[int, int, int], None]] = None


class SaveResult(NamedTuple):
    """Of this rank. bytes: written, 0 without a save. seconds: from begin to end; begin_seconds: until begin returned;
    stall_seconds: that optimizer steps waited. complete: it was the last rank, and gave the folder its name."""

    bytes: int
    seconds: float
    begin_seconds: float
    stall_seconds: float
    complete: bool


class _Tensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("dimensions", c_uint32), ("shape", c_uint64 * 8), ("frozen", c_int)]


class _Held(Structure):
    _fields_ = [("rank", c_uint32), ("tensor", c_uint32), ("first", _Dims), ("count", _Dims), ("params", c_int), ("state", c_int)]


class _Options(Structure):
    _fields_ = [("tensors", POINTER(_Tensor)), ("n_tensors", c_uint32), ("model_type", c_char_p), ("pieces", POINTER(_Held)),
                ("n_pieces", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("master", c_char_p), ("exp_avg", c_char_p),
                ("exp_avg_sq", c_char_p), ("bucket_bytes", c_uint64), ("copies_bytes", c_uint64)]


class _SavedInfo(Structure):
    _fields_ = [("files", c_uint32), ("bytes", c_uint64), ("rank_bytes", c_uint64), ("most_bytes", c_uint64), ("sum", c_uint64)]


class _Source(Structure):
    _fields_ = [("piece", c_uint32), ("component", c_char_p), ("address", c_void_p), ("optimizer", c_void_p), ("tensor", c_uint32),
                ("copy", _Copy), ("user", c_void_p)]


class _SaveOptions(Structure):
    _fields_ = [("folder", c_char_p), ("step", c_uint64), ("number", c_uint64), ("keep", c_uint32), ("terms", c_char_p),
                ("learning_rates", POINTER(c_double)), ("weight_decays", POINTER(c_double)), ("n_groups", c_uint32),
                ("config", c_char_p)]


class _Result(Structure):
    _fields_ = [("bytes", c_uint64), ("seconds", c_double), ("begin_seconds", c_double), ("stall_seconds", c_double),
                ("complete", c_int)]


class _CheckpointInfo(Structure):
    _fields_ = [("path", c_char_p), ("step", c_uint64), ("save", c_uint64), ("bytes", c_uint64), ("world", c_uint32),
                ("terms", c_uint32), ("groups", c_uint32), ("files", c_uint32)]


def _dims(values: Sequence[int], fill: int) -> Any:
    return _Dims(*values, *([fill] * (DIMS - len(values))))


class _Sources:
    """The C form of places. What a copy raises is kept, and raised in place of the library's error."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.raised: List[BaseException] = []
        self.rows = (_Source * max(len(places), 1))()
        self.count = len(places)
        for c, place in zip(self.rows, places):
            c.piece, c.component, c.tensor = place.piece, place.component.encode(), place.index
            if place.optimizer is not None:
                c.optimizer = place.optimizer._handle
            if place.copy is not None:
                c.copy = self._wrap(place.copy)

    def _wrap(self, copy: Callable[[int, int, int], None]) -> Any:
        def call(_: Any, first: int, elements: int, memory: int) -> int:
            try:
                copy(first, elements, memory)
                return 0
            except BaseException as error:
                self.raised.append(error)
                return 1
        return _Copy(call)

    def run(self, name: str, *arguments: Any) -> None:
        try:
            _native.load().call(name, *arguments)
        except _native.Error:
            if self.raised:
                raise self.raised[0] from None
            raise


class Saved:
    """Who writes what of a job's checkpoints: a pure function of its arguments, which are the same on every rank but `rank`. It
    must be closed before the optimizers that it saves."""

    def __init__(self, tensors: Sequence[SavedTensor], pieces: Sequence[Held], rank: int, world: int, dtypes: Dict[str, str],
                 bucket_bytes: int, copies: int = 0) -> None:
        """dtypes: of master, exp_avg and exp_avg_sq, as far as the job has them."""
        self._library = _native.load()
        self._handle = c_void_p()
        self._kept: Optional[_Sources] = None
        rows = (_Tensor * max(len(tensors), 1))()
        for c, t in zip(rows, tensors):
            c.name, c.dtype, c.dimensions, c.frozen = t.name.encode(), t.dtype.encode(), len(t.shape), not t.trained
            c.shape = (c_uint64 * 8)(*t.shape)
        held = (_Held * max(len(pieces), 1))()
        for h, p in zip(held, pieces):
            h.rank, h.tensor, h.first, h.count = p.rank, p.tensor, _dims(p.first, 0), _dims(p.count, 1)
            h.params = h.state = 1
        of = {name: dtype.encode() for name, dtype in dtypes.items()}
        options = _Options(rows, len(tensors), None, held, len(pieces), rank, world, of.get("master"), of.get("exp_avg"),
                           of.get("exp_avg_sq"), bucket_bytes, copies)
        self._library.call("stw_plan_checkpoint", byref(options), ctypes.sizeof(options), byref(self._handle))

    def check_open(self) -> None:
        if not self._handle:
            raise _native.Error("the Checkpoint was closed; make a new one")

    def sum(self) -> int:
        """Equal where ranks described the same."""
        info = _SavedInfo()
        self._library.stw_get_saved_info(self._handle, byref(info), ctypes.sizeof(info))
        return info.sum

    def begin(self, folder: str, step: int, number: int, keep: int, places: Sequence[Place], terms: Dict[str, str],
              rates: Sequence[Tuple[float, float]], config: Optional[str]) -> None:
        """rates: learning rate and weight decay of parameter groups, of which the first RATES are saved."""
        rates = rates[:RATES]
        lines = "".join(f"{key} = {value}\n" for key, value in terms.items()).encode()
        options = _SaveOptions(os.fsencode(folder), step, number, keep, lines, (c_double * RATES)(*[r[0] for r in rates]),
                               (c_double * RATES)(*[r[1] for r in rates]), len(rates), _native.optional(config))
        self._kept = _Sources(places)
        self._kept.run("stw_begin_save", self._handle, byref(options), ctypes.sizeof(options), self._kept.rows, self._kept.count)

    def is_saving(self) -> bool:
        return bool(self._library.stw_is_saving(self._handle))

    def finish(self) -> SaveResult:
        out = _Result()
        if self._kept is not None:  # what failed in begin is told here
            kept, self._kept = self._kept, None
            kept.run("stw_finish_save", self._handle, byref(out), ctypes.sizeof(out))
        return SaveResult(out.bytes, out.seconds, out.begin_seconds, out.stall_seconds, bool(out.complete))

    def close(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self._library.stw_free_saved(handle)


class Stored:
    """A complete checkpoint: the one at `path`, or the newest of a folder."""

    def __init__(self, path: str) -> None:
        self._library = _native.load()
        self._handle = c_void_p()
        self._library.call("stw_open_checkpoint", os.fsencode(path), byref(self._handle))
        info = _CheckpointInfo()
        self._library.stw_get_checkpoint_info(self._handle, byref(info), ctypes.sizeof(info))
        self.path, self.step, self.save, self.world = os.fsdecode(info.path), info.step, info.save, info.world
        self.terms: Dict[str, str] = {}
        for i in range(info.terms):
            key, value = c_char_p(), c_char_p()
            self._library.stw_get_checkpoint_term(self._handle, i, byref(key), byref(value))
            self.terms[_native.text(key.value)] = _native.text(value.value)

    def check(self, saved: Saved) -> None:
        """Does it have what the job needs? Reads headers alone."""
        self._library.call("stw_check_checkpoint", self._handle, saved._handle)

    def load(self, saved: Saved, places: Sequence[Place]) -> None:
        """Read and verify what this rank holds, and its part of what no rank holds. After an error places are half changed."""
        sources = _Sources(places)
        sources.run("stw_load_checkpoint", self._handle, saved._handle, sources.rows, sources.count)

    def close(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self._library.stw_free_checkpoint(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


__all__: List[str] = ["DIMS", "Held", "Place", "SaveResult", "Saved", "SavedTensor", "Stored"]
