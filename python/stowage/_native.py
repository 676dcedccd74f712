# SPDX-License-Identifier: Apache-2.0
"""libstowage through ctypes: the structs and calls of include/stowage.h that this package uses.

Nothing here decides anything. `call` raises `Error` with the library's own text; structs are passed
with their size, so an older or newer library of the same major version works.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import ctypes.util
import os
import threading
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_double, c_int, c_long, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, List, NoReturn, Optional

VERSION = "0.1.0"  # of this package; the library's major and minor version must be the same
NONE = 0xFFFFFFFF  # STOWAGE_NONE
ALIGNMENT = 4096  # STOWAGE_ALIGNMENT
NORM_COUNTERS = 74  # STOWAGE_NORM_COUNTERS
BAD_INPUT = 5  # STOWAGE_BAD_INPUT
LOG_WARNING = 1  # STOWAGE_LOG_WARNING
NOTHING_FITS = 7  # STOWAGE_NOTHING_FITS

PACKAGE = Path(__file__).resolve().parent


class Error(RuntimeError):
    """A call of libstowage failed. `status` is the library's stw_status_t (0: raised by this package), `native`
    the errno or cudaError_t behind it."""

    def __init__(self, text: str, status: int = 0, native: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.native = native


class DoesNotFit(Error):
    """No placement that was searched fits the cluster."""


# ---- structs, in the order of the header -------------------------------------------------------


class ModelInfo(Structure):
    _fields_ = [("name", c_char_p), ("source", c_char_p), ("model_type", c_char_p), ("digest", c_char_p),
                ("params", c_uint64), ("active_params", c_uint64), ("tensors", c_uint32)]


class Tensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("block", c_char_p), ("elements", c_uint64),
                ("dimensions", c_uint32), ("shape", c_uint64 * 8)]


class PlanOptions(Structure):
    _fields_ = [("cluster", c_char_p), ("run", c_char_p), ("settings", POINTER(c_char_p)), ("n_settings", c_size_t),
                ("time_limit_s", c_double)]


class PlanInfo(Structure):
    _fields_ = [("verdict", c_char_p), ("outcome", c_char_p), ("solver", c_char_p), ("engine", c_char_p),
                ("hash", c_char_p), ("iteration_s", c_double), ("world", c_uint32), ("rank_kinds", c_uint32),
                ("gpu_peak_bytes", c_uint64), ("gpu_capacity_bytes", c_uint64), ("host_peak_bytes", c_uint64),
                ("host_capacity_bytes", c_uint64), ("exit_code", c_int)]


class Movement(Structure):
    _fields_ = [("phase", c_char_p), ("role", c_char_p), ("repeat", c_char_p), ("by_stowage", c_int),
                ("first_op", c_uint32), ("ops", c_uint32), ("seconds", c_double)]


class Peak(Structure):
    _fields_ = [("phase", c_char_p), ("tier", c_char_p), ("component", c_char_p), ("bytes", c_uint64)]


class Sample(Structure):
    _fields_ = [("seconds", c_double), ("grad_norm", c_double), ("clip_factor", c_double)]


class Bound(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("address", c_void_p), ("elements", c_uint64),
                ("group", c_uint32)]


class OptimizerOptions(Structure):
    _fields_ = [("backend", c_char_p), ("gpu_address", c_void_p), ("gpu_bytes", c_uint64), ("nvme_folder", c_char_p),
                ("nvme_in_memory", c_int), ("gpu_is_given", c_int), ("gpu", c_uint32)]


class OptimizerInfo(Structure):
    _fields_ = [("backend", c_char_p), ("gpu_bytes", c_uint64), ("host_bytes", c_uint64), ("nvme_bytes", c_uint64),
                ("buckets", c_uint32), ("streamed_bytes", c_uint64), ("open_seconds", c_double)]


class StepOptions(Structure):
    _fields_ = [("step", c_uint64), ("beta1", c_double), ("beta2", c_double), ("eps", c_double),
                ("clip_norm", c_double), ("stream", c_void_p)]


_Log = CFUNCTYPE(None, c_int, c_char_p, c_void_p)

# ---- calls: name -> (result, arguments). A result of "status" takes the error last. -------------

_STATUS = "status"
_SIGNATURES = {
    "stw_get_version": (c_int, []),
    "stw_get_version_text": (c_char_p, []),
    "stw_has_feature": (c_int, [c_char_p]),
    "stw_set_log": (None, [_Log, c_void_p, c_int]),
    "stw_new_error": (c_void_p, []),
    "stw_free_error": (None, [c_void_p]),
    "stw_get_error_text": (c_char_p, [c_void_p]),
    "stw_get_error_native": (c_long, [c_void_p]),
    "stw_get_status_text": (c_char_p, [c_int]),
    "stw_open_model": (_STATUS, [c_char_p, POINTER(c_void_p)]),
    "stw_free_model": (None, [c_void_p]),
    "stw_get_model_info": (None, [c_void_p, POINTER(ModelInfo), c_size_t]),
    "stw_get_tensor": (c_int, [c_void_p, c_uint32, POINTER(Tensor), c_size_t]),
    "stw_make_plan": (_STATUS, [c_void_p, POINTER(PlanOptions), c_size_t, POINTER(c_void_p)]),
    "stw_read_plan": (_STATUS, [c_char_p, POINTER(c_void_p)]),
    "stw_write_plan": (_STATUS, [c_void_p, c_char_p]),
    "stw_free_plan": (None, [c_void_p]),
    "stw_get_plan_info": (None, [c_void_p, POINTER(PlanInfo), c_size_t]),
    "stw_get_plan_model": (c_void_p, [c_void_p]),
    "stw_get_movement": (c_int, [c_void_p, c_uint32, c_uint32, POINTER(Movement), c_size_t]),
    "stw_get_peak": (c_int, [c_void_p, c_uint32, c_uint32, POINTER(Peak), c_size_t]),
    "stw_measure_optimizer": (_STATUS, [c_void_p, POINTER(OptimizerInfo), c_size_t]),
    "stw_spill_state": (_STATUS, [c_void_p, c_uint64]),
    "stw_open_optimizer": (_STATUS, [c_void_p, POINTER(Bound), c_uint32, POINTER(OptimizerOptions), c_size_t,
                                     POINTER(c_void_p)]),
    "stw_free_optimizer": (None, [c_void_p]),
    "stw_get_optimizer_info": (None, [c_void_p, POINTER(OptimizerInfo), c_size_t]),
    "stw_set_group": (_STATUS, [c_void_p, c_uint32, c_double, c_double]),
    "stw_bind_gradients": (_STATUS, [c_void_p, POINTER(c_void_p), c_uint32]),
    "stw_bind_params": (_STATUS, [c_void_p, POINTER(c_void_p), c_uint32]),
    "stw_begin_norm": (_STATUS, [c_void_p, c_int, c_void_p, POINTER(c_void_p)]),
    "stw_begin_step": (_STATUS, [c_void_p, POINTER(StepOptions), c_size_t]),
    "stw_wait_tensor": (_STATUS, [c_void_p, c_uint32, c_void_p]),
    "stw_finish_step": (_STATUS, [c_void_p, POINTER(Sample), c_size_t]),
    "stw_read_state": (_STATUS, [c_void_p, c_char_p, c_uint32, c_uint64, c_uint64, c_void_p]),
    "stw_write_state": (_STATUS, [c_void_p, c_char_p, c_uint32, c_uint64, c_uint64, c_void_p]),
    "stw_list_published": (_STATUS, [c_void_p, POINTER(c_void_p)]),
    "stw_free_published": (None, [c_void_p]),
    "stw_get_published": (c_int, [c_void_p, c_uint32, c_void_p, c_size_t]),
    "stw_get_published_part": (c_int, [c_void_p, c_uint32, c_void_p, c_size_t]),
    "stw_open_weights": (_STATUS, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "stw_free_weights": (None, [c_void_p]),
    "stw_get_weights_dtype": (c_char_p, [c_void_p, c_uint32]),
    "stw_read_weights": (_STATUS, [c_void_p, c_uint32, POINTER(c_uint64), POINTER(c_uint64), c_void_p, c_uint64]),
    "stw_plan_sync": (_STATUS, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "stw_free_schedule": (None, [c_void_p]),
    "stw_get_schedule_info": (_STATUS, [c_void_p, c_uint32, c_void_p, c_size_t]),
    "stw_get_sync_messages": (_STATUS, [c_void_p, c_uint32, c_uint32, c_void_p, POINTER(c_uint32)]),
    "stw_get_sync_parts": (_STATUS, [c_void_p, c_uint32, c_uint32, c_void_p, POINTER(c_uint32)]),
    "stw_open_sync": (_STATUS, [c_void_p, c_uint32, c_void_p, c_size_t, POINTER(c_void_p)]),
    "stw_free_sync": (None, [c_void_p]),
    "stw_bind_sync": (_STATUS, [c_void_p, POINTER(c_void_p), c_uint32, POINTER(c_void_p), c_uint32]),
    "stw_begin_sync": (_STATUS, [c_void_p, c_void_p, c_size_t]),
    "stw_step_sync": (_STATUS, [c_void_p, POINTER(c_int), POINTER(c_uint32), POINTER(c_uint32)]),
    "stw_plan_checkpoint": (_STATUS, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "stw_free_saved": (None, [c_void_p]),
    "stw_get_saved_info": (None, [c_void_p, c_void_p, c_size_t]),
    "stw_begin_save": (_STATUS, [c_void_p, c_void_p, c_size_t, c_void_p, c_uint32]),
    "stw_is_saving": (c_int, [c_void_p]),
    "stw_finish_save": (_STATUS, [c_void_p, c_void_p, c_size_t]),
    "stw_open_checkpoint": (_STATUS, [c_char_p, POINTER(c_void_p)]),
    "stw_free_checkpoint": (None, [c_void_p]),
    "stw_get_checkpoint_info": (None, [c_void_p, c_void_p, c_size_t]),
    "stw_get_checkpoint_term": (c_int, [c_void_p, c_uint32, POINTER(c_char_p), POINTER(c_char_p)]),
    "stw_check_checkpoint": (_STATUS, [c_void_p, c_void_p]),
    "stw_load_checkpoint": (_STATUS, [c_void_p, c_void_p, c_void_p, c_uint32]),
}


def candidates() -> List[str]:
    """Where the library is looked for, in this order: $STOWAGE_LIBRARY alone if it is set; beside the package; the
    system's."""
    given = os.environ.get("STOWAGE_LIBRARY")
    if given:
        return [given]
    found = [str(path) for path in [PACKAGE / "lib" / "libstowage.so"] if path.exists()]
    system = ctypes.util.find_library("stowage")
    return found + ([system] if system else [])


class Library:
    """libstowage with typed functions, which are looked up when they are first used."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._dll = ctypes.CDLL(path)
        self._threads = threading.local()

    def __getattr__(self, name: str) -> Any:
        if name not in _SIGNATURES:
            raise AttributeError(name)
        result, arguments = _SIGNATURES[name]
        try:
            function = getattr(self._dll, name)
        except AttributeError:
            raise Error(f"{self.path} has no {name}: it is older than this package ({VERSION})") from None
        function.restype = c_int if result is _STATUS else result
        function.argtypes = [*arguments, c_void_p] if result is _STATUS else arguments
        setattr(self, name, function)
        return function

    def has(self, name: str) -> bool:
        """The library is new enough for a function."""
        return hasattr(self._dll, name)

    def error(self) -> int:
        """The error handle of this thread."""
        handle = getattr(self._threads, "error", None)
        if handle is None:
            handle = self._threads.error = self.stw_new_error()
            if not handle:
                raise MemoryError
        return handle

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status; raise Error unless it is 0."""
        status = getattr(self, name)(*arguments, self.error())
        if status:
            self.fail(status)

    def fail(self, status: int) -> NoReturn:
        """Raise what the last call of this thread left in its error."""
        error = self.error()
        text = self.stw_get_error_text(error) or self.stw_get_status_text(status)
        kind = DoesNotFit if status == NOTHING_FITS else Error
        raise kind(text.decode("utf-8", "replace"), status, self.stw_get_error_native(error))

    def fill(self, name: str, struct: Structure, *arguments: Any) -> bool:
        """Call a function that fills a struct, after `arguments`. False: the index is past the end."""
        return getattr(self, name)(*arguments, byref(struct), ctypes.sizeof(struct)) != 0


_library: Optional[Library] = None
_warnings: "collections.deque[str]" = collections.deque(maxlen=100)
_log = _Log(lambda level, message, user: _warnings.append(text(message)))


def take_warnings() -> List[str]:
    """What the library has warned of since the last call, each text once."""
    taken = []
    while _warnings:
        taken.append(_warnings.popleft())
    return list(dict.fromkeys(taken))


def load() -> Library:
    """The library, opened once per process."""
    global _library
    if _library is None:
        paths = candidates()
        if not paths:
            raise Error(f"libstowage.so not found: {PACKAGE / 'lib'} lacks it and the system has none; set "
                        "STOWAGE_LIBRARY to its path")
        failures = []
        for path in paths:
            try:
                library = Library(path)
            except OSError as failure:
                failures.append(str(failure))
                continue
            check_version(library)
            library.stw_set_log(_log, None, LOG_WARNING)
            atexit.register(library.stw_set_log, _Log(), None, LOG_WARNING)  # threads may go on longer than Python
            _library = library
            return library
        raise Error("libstowage.so cannot be opened: " + "; ".join(failures))
    return _library


def check_version(library: Library) -> None:
    """Refuse a library of another major or minor version."""
    found = library.stw_get_version_text().decode()
    if found.split(".")[:2] != VERSION.split(".")[:2]:
        raise Error(f"{library.path} has version {found}, expected {'.'.join(VERSION.split('.')[:2])}.x")


def text(value: Optional[bytes]) -> str:
    return value.decode("utf-8", "replace") if value else ""


def optional(value: Any) -> Optional[bytes]:
    return None if value is None else os.fspath(value).encode()
