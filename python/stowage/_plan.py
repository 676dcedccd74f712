# SPDX-License-Identifier: Apache-2.0
"""Plans: does it fit, how long does it take, where does the memory go."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_void_p
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _native, _programs

PathLike = Union[str, "os.PathLike[str]"]


class Peak(NamedTuple):
    """Peak bytes of one rank. component: "total", then those that are not 0."""

    phase: str
    tier: str
    component: str
    bytes: int


class Phase(NamedTuple):
    """One phase of an iteration. seconds: predicted, None if unknown."""

    name: str
    role: str
    repeat: str
    by_stowage: bool
    seconds: Optional[float]


class TensorInfo(NamedTuple):
    name: str
    dtype: str
    shape: Tuple[int, ...]
    elements: int


class Plan:
    """A plan of a job: made by `stowage.plan` or read from a file. It does not change.

    fits                    the verdict is "fits". A job for which nothing fits has no Plan: stowage.plan raises DoesNotFit
    verdict                 "fits", "at_risk", "does_not_fit", "unknown" (forward and backward of the model are)
    iteration_s             predicted seconds of an iteration; None: unknown
    gpu_peak_bytes          of the fullest GPU, everything on the device; gpu_capacity_bytes is what it has
    gpu_reserved_bytes      what torch's allocator reserves there; None: not predicted
    host_peak_bytes         of the fullest node; host_capacity_bytes
    engine, world, solver   the engine of run.yaml, ranks, "glpk" (optimal) or "greedy"
    """

    def __init__(self, handle: int, model: Optional[int] = None) -> None:
        library = _native.load()
        self._handle = handle
        self._library = library
        self._free = weakref.finalize(self, _free, library, handle, model)
        info = _native.PlanInfo()
        library.stw_get_plan_info(handle, byref(info), ctypes.sizeof(info))
        self.verdict: str = _native.text(info.verdict)
        self.outcome: str = _native.text(info.outcome)
        self.solver: str = _native.text(info.solver)
        self.engine: str = _native.text(info.engine)
        self.hash: str = _native.text(info.hash)
        self.iteration_s: Optional[float] = info.iteration_s if info.iteration_s == info.iteration_s else None
        self.world: int = info.world
        self.rank_kinds: int = info.rank_kinds
        self.gpu_peak_bytes: int = info.gpu_peak_bytes
        self.gpu_capacity_bytes: int = info.gpu_capacity_bytes
        self.host_peak_bytes: int = info.host_peak_bytes
        self.host_capacity_bytes: int = info.host_capacity_bytes
        self.exit_code: int = info.exit_code

    @classmethod
    def read(cls, path: PathLike) -> "Plan":
        """Read a plan file (stowage.plan/1), written by `stowage plan` or `Plan.write`. Layout, programs and peaks are
        derived anew; a file that disagrees is an Error."""
        handle = c_void_p()
        _native.load().call("stw_read_plan", _native.optional(path), byref(handle))
        return cls(handle.value or 0)

    def write(self, path: PathLike) -> None:
        """Write the plan as a file that every `stowage` command reads."""
        self._library.call("stw_write_plan", self._handle, _native.optional(path))

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    @property
    def gpu_reserved_bytes(self) -> Optional[int]:
        """What torch's allocator reserves on the fullest GPU (torch.cuda.max_memory_reserved); None where that is not predicted."""
        found = [rank["gpu_reserved_bytes"] for rank in self.to_dict()["ranks"] if rank.get("gpu_reserved_bytes")]
        return max(found) if found else None

    @property
    def params(self) -> int:
        """Parameters of the model, each counted once."""
        info = _native.ModelInfo()
        self._library.stw_get_model_info(self._library.stw_get_plan_model(self._handle), byref(info), ctypes.sizeof(info))
        return info.params

    @property
    def tensors(self) -> List[TensorInfo]:
        """The model's tensors, in the order of the forward pass."""
        return list(_tensors(self._library, self._library.stw_get_plan_model(self._handle)))

    def peaks(self, kind: int = 0) -> List[Peak]:
        """Peak bytes by phase, tier and component of a rank of a kind."""
        rows, row = [], _native.Peak()
        while self._library.fill("stw_get_peak", row, self._handle, kind, len(rows)):
            rows.append(Peak(_native.text(row.phase), _native.text(row.tier), _native.text(row.component), row.bytes))
        return rows

    def phases(self, kind: int = 0) -> List[Phase]:
        """The phases of a rank of a kind, with predicted seconds."""
        rows, row = [], _native.Movement()
        while self._library.fill("stw_get_movement", row, self._handle, kind, len(rows)):
            seconds = row.seconds if row.seconds == row.seconds else None
            rows.append(Phase(_native.text(row.phase), _native.text(row.role), _native.text(row.repeat),
                              bool(row.by_stowage), seconds))
        return rows

    def to_dict(self) -> Dict[str, Any]:
        """The plan file as Python values."""
        with tempfile.TemporaryDirectory(prefix="stowage-") as folder:
            path = os.path.join(folder, "plan.json")
            self.write(path)
            with open(path, encoding="utf-8") as file:
                return json.load(file)

    def __repr__(self) -> str:
        seconds = "unknown" if self.iteration_s is None else f"{self.iteration_s:.3f} s"
        return (f"<stowage.Plan {self.verdict}: engine {self.engine}, {self.world} ranks, GPU peak "
                f"{self.gpu_peak_bytes / 2**30:.2f} GiB of {self.gpu_capacity_bytes / 2**30:.2f} GiB, "
                f"iteration {seconds}>")


def plan(model: PathLike, cluster: Optional[PathLike] = None, run: Optional[PathLike] = None,
         set: Optional[Mapping[str, Any]] = None, time_limit_s: float = 30.0) -> Plan:
    """Plan a job and predict its bytes and seconds.

    model    a zoo name ("Qwen3-8B"), a config.json or its folder, safetensors, or a CSV tensor list
    cluster  a name that `stowage clusters` lists ("h200-x1", "2 x h100-80g-x8"), or path of cluster.yaml; None: this machine
    run      path of run.yaml; None: defaults
    set      keys over both, as `--set` of the programs: {"engine": "fsdp2", "parallel.dp_shard": 8}

    The library has no ILP solver: it places by a greedy search, valid but not always optimal. `stowage plan` writes
    optimal plans, and says what is missing where nothing fits; `Plan.read` reads them. Raises DoesNotFit, an Error, if it finds no
    placement that fits. What the library warns of is a warning here, too.
    """
    _check_types(model, cluster, run, set, time_limit_s)
    library = _native.load()
    _native.take_warnings()  # of other calls
    settings = [f"{key}={_setting(value)}".encode() for key, value in (set or {}).items()]
    array = (c_char_p * len(settings))(*settings)
    handle, opened = c_void_p(), c_void_p()
    with _cluster_file(cluster) as path:
        options = _native.PlanOptions(cluster=_native.optional(path), run=_native.optional(run), settings=array,
                                      n_settings=len(settings), time_limit_s=time_limit_s)
        library.call("stw_open_model", _native.optional(model), byref(opened))
        try:
            library.call("stw_make_plan", opened, byref(options), ctypes.sizeof(options), byref(handle))
        except _native.Error:
            library.stw_free_model(opened)
            raise
    for text in _native.take_warnings():
        warnings.warn(text, stacklevel=2)
    return Plan(handle.value or 0, opened.value)


def _check_types(model: Any, cluster: Any, run: Any, settings: Any, time_limit_s: Any) -> None:
    for name, value, kinds, expected in [
            ("model", model, (str, os.PathLike), "a name of the zoo or a path"),
            ("cluster", cluster, (str, os.PathLike, type(None)), "a name, a path or None"),
            ("run", run, (str, os.PathLike, type(None)), "a path or None"),
            ("set", settings, (Mapping, type(None)), "a dict of keys and values, or None"),
            ("time_limit_s", time_limit_s, (int, float), "seconds")]:
        if not isinstance(value, kinds):
            raise TypeError(f"{name}: found {value!r} ({type(value).__name__}), expected {expected}")
    for key in settings or ():
        if not isinstance(key, str):
            raise TypeError(f"set: found the key {key!r} ({type(key).__name__}), expected text")


@contextlib.contextmanager
def _cluster_file(cluster: Optional[PathLike]) -> Iterator[Optional[PathLike]]:
    """Path of cluster.yaml. The library knows no names: the program writes the file of one."""
    name = None if cluster is None else os.fspath(cluster)
    if name is None or os.path.exists(name) or "/" in name or name.lower().endswith((".yaml", ".yml")):
        yield cluster
        return
    with tempfile.TemporaryDirectory(prefix="stowage-") as folder:
        path = os.path.join(folder, "cluster.yaml")
        _programs.write_cluster(name, path)
        yield path


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_setting(v) for v in value) + "]"
    return str(value)


def _tensors(library: _native.Library, model: int) -> Iterator[TensorInfo]:
    row, index = _native.Tensor(), 0
    while library.fill("stw_get_tensor", row, model, index):
        yield TensorInfo(_native.text(row.name), _native.text(row.dtype), tuple(row.shape[:row.dimensions]),
                         row.elements)
        index += 1


def _free(library: _native.Library, plan_handle: int, model: Optional[int]) -> None:
    library.stw_free_plan(plan_handle)
    if model:
        library.stw_free_model(model)
