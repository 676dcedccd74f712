# SPDX-License-Identifier: Apache-2.0
"""Weights into a torch job: `load`."""

from __future__ import annotations

import concurrent.futures
import ctypes
import mmap
import os
import threading
import warnings
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch

from .. import _native
from .boxes import Box, held, held_boxes, meet, product, whole
from .files import TYPES, Stored, chunks, element_size, memory, read_folder, read_fully, runs
from .group import Group
from .published import Names, Part
from .source import layout_of
from .tensors import clean_name, is_distributed, local, on_device

CHUNK = 16 << 20  # bytes that a thread reads at once


class Loaded(NamedTuple):
    """missing: tensors that the folder lacks; unexpected: tensors of the folder that have no place. bytes: read by this rank.
    unsaved: buffers that no folder has (persistent=False), which keep their values."""

    missing: List[str]
    unexpected: List[str]
    bytes: int
    unsaved: List[str]


def load(module_or_state_dict: Union[torch.nn.Module, Mapping[str, torch.Tensor]], folder: str, *, process_group: Any = None,
         strict: bool = True, threads: Optional[int] = None) -> Loaded:
    """Read a folder of safetensors into the parameters and buffers of a module (after `to_empty`, if it was built on the meta
    device), or into a dict of tensors: plain ones or DTensors, on the GPU or in host memory.

    Each rank reads the byte ranges of its own shards alone, in threads, straight into host memory or through 16 MiB of page-locked
    memory per thread; values are cast to the parameter's dtype. Names are the tensors' own; where the folder has others, those of
    the published files of the model that its config.json describes. Of tied tensors one name is enough.
    Buffers that are not saved (rotary inv_freq) keep their values: after to_empty set them yourself, a warning names them.

    Error: a tensor of another shape; with strict=True also missing and unexpected ones; on every rank of process_group if on one.
    """
    group = Group(process_group)
    loaded = group.exchange(lambda: _Load(module_or_state_dict, os.fspath(folder)).run(strict, threads))[group.rank]
    if loaded.unsaved and group.rank == 0:
        warnings.warn(f"buffers that are not saved keep their values: {_list(loaded.unsaved)}. If to_empty() made their memory, set them: "
                      "make their module again (model.model.rotary_emb = type(model.model.rotary_emb)(model.config))", stacklevel=2)
    return loaded


class _Job(NamedTuple):
    """A box of a tensor that is read from a box of a file, or through the library (stored None)."""

    name: str
    into: torch.Tensor  # view of the box
    stored: Optional[Stored]
    box: Box            # in the file; in the tensor, if the library reads
    transposed: bool
    tensor: int


class _Load:
    def __init__(self, given: Any, folder: str) -> None:
        self.folder = folder
        self.tensors: Dict[Any, torch.Tensor] = {}
        self.names: Dict[Any, List[str]] = {}
        for name, tensor in _named(given):
            key = _identity(tensor)
            self.tensors[key] = tensor
            self.names.setdefault(key, []).append(name)
        self.unsaved = _unsaved(given) if isinstance(given, torch.nn.Module) else []
        self.files = read_folder(folder)
        self.model: Any = None

    def run(self, strict: bool, threads: Optional[int]) -> Loaded:
        jobs, missing, unexpected = self._jobs()
        if strict and (missing or unexpected):
            text = [f"{what} {_list(names)}" for what, names in [("missing", missing), ("unexpected", unexpected)] if names]
            raise _native.Error(f"{self.folder}: {'; '.join(text)}")
        reader = _Reader(self.folder, self.model)
        try:
            reader.all(jobs, threads or min(16, os.cpu_count() or 1))
        finally:
            reader.close()
        return Loaded(missing, unexpected, reader.bytes, self.unsaved)

    def _jobs(self) -> Tuple[List[_Job], List[str], List[str]]:
        """What this rank reads, and names of what the folder lacks and of what has no place."""
        own = {name: key for key, names in self.names.items() for name in names}
        jobs: List[_Job] = []
        found = {own[name] for name in self.files if name in own}
        left = [name for name in self.files if name not in own]
        parts: List[Part] = []
        if len(found) < len(self.tensors) and left:
            parts, left = self._published_parts(own, found, left)
        for key, tensor in self.tensors.items():
            name = next((n for n in self.names[key] if n in self.files), None)
            if name is not None:
                jobs += self._boxes(name, tensor, self.files[name])
        for part in parts:
            jobs += self._part(part, self.tensors[own[part.own]])
        found |= {own[part.own] for part in parts}
        missing = [self.names[key][0] for key in self.tensors if key not in found]
        return jobs, missing, left

    def _published_parts(self, own: Mapping[str, Any], found: Any, left: List[str]) -> Tuple[List[Part], List[str]]:
        """Parts that give tensors which the folder lacks under their own names, and names of files that are no part."""
        self.model = Names.of(os.path.dirname(self.folder) if os.path.isfile(self.folder) else self.folder, own_parameters(own)).model
        if self.model is None:
            return [], left
        wanted = [p for p in self.model.parts if p.own in own and own[p.own] not in found]
        lacking = {own[p.own] for p in wanted if p.published not in self.files}
        parts = [p for p in wanted if own[p.own] not in lacking]
        known = set(self.model.shapes)  # scales, and what published files hold beside the model
        return parts, [n for n in left if n not in known or (self.model.kinds[n] == "weight" and n not in {p.published for p in parts})]

    def _boxes(self, name: str, tensor: torch.Tensor, stored: Stored) -> Iterator[_Job]:
        if tuple(tensor.shape) != stored.shape:
            raise _native.Error(f"{stored.path}: {name}: found shape {stored.shape}, expected {tuple(tensor.shape)}")
        for box, into in _shards(name, tensor):
            yield _Job(name, into, stored, box, False, _native.NONE)

    def _part(self, part: Part, tensor: torch.Tensor) -> Iterator[_Job]:
        stored = self.files[part.published]
        plain = part.way in ("as is", "transposed") and not self.model.scaled[part.published]
        if plain and stored.shape != self.model.shapes[part.published]:
            raise _native.Error(f"{stored.path}: {part.published}: found shape {stored.shape}, expected "
                                f"{self.model.shapes[part.published]}")
        if len(part.count) != tensor.dim() or any(f + n > s for f, n, s in zip(part.first, part.count, tensor.shape)):
            raise _native.Error(f"{part.own}: found shape {tuple(tensor.shape)}, expected the model's, of which {part.published} is "
                                f"{part.first} + {part.count}")
        for box, into in _shards(part.own, tensor):
            inner = meet(box, (part.first, part.count))
            if inner is None:
                continue
            for d, (first, n) in enumerate(zip(*inner)):
                into = into.narrow(d, first - box[0][d], n)
            if plain:
                yield _Job(part.published, into, stored, part.published_box(inner), part.way == "transposed", _native.NONE)
            else:
                yield _Job(part.own, into, None, inner, False, part.tensor)


def own_parameters(own: Mapping[str, Any]) -> List[str]:
    """One name of each tensor: a tied one may have names that the model's tables lack."""
    return list({key: name for name, key in reversed(list(own.items()))}.values())


def _identity(tensor: torch.Tensor) -> Any:
    """Equal for tied tensors: state_dict makes a new tensor of each name."""
    shard = local(tensor)
    if shard.is_meta or not shard.numel():
        return id(tensor)
    return shard.data_ptr(), tuple(tensor.shape), shard.stride(), shard.dtype


def _named(given: Any) -> Iterator[Tuple[str, torch.Tensor]]:
    """Everything that state_dict would hold."""
    if not isinstance(given, torch.nn.Module):
        yield from ((name, tensor) for name, tensor in given.items() if isinstance(tensor, torch.Tensor))
        return
    for prefix, part in given.named_modules(remove_duplicate=False):
        temporary = getattr(part, "_non_persistent_buffers_set", ())
        for name, tensor in [*part._parameters.items(), *((n, b) for n, b in part._buffers.items() if n not in temporary)]:
            if tensor is not None:
                yield clean_name(f"{prefix}.{name}" if prefix else name), tensor


def _unsaved(module: torch.nn.Module) -> List[str]:
    """Buffers that state_dict leaves out."""
    return [clean_name(f"{prefix}.{name}" if prefix else name) for prefix, part in module.named_modules()
            for name in getattr(part, "_non_persistent_buffers_set", ()) if part._buffers.get(name) is not None]


def _shards(name: str, tensor: torch.Tensor) -> Iterator[Tuple[Box, torch.Tensor]]:
    """Boxes of the whole tensor that this rank holds, and their memory."""
    shard = local(tensor)
    if shard.is_meta:
        raise _native.Error(f"{name}: found a meta tensor, expected memory; call to_empty(device=...) first")
    if not is_distributed(tensor):
        yield whole(tuple(tensor.shape)), shard
        return
    layout = layout_of(name, tensor)
    if layout is not None:
        for box, offset in held_boxes(held(tuple(tensor.shape), *layout), shard.stride()):
            yield box, torch.as_strided(shard, box[1], shard.stride(), shard.storage_offset() + offset)


def _list(names: List[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class _Reader:
    """Reads boxes of files in threads. bytes: of all that was read."""

    def __init__(self, folder: str, model: Any) -> None:
        self.bytes = 0
        self._folder = folder
        self._model = model
        self._weights = ctypes.c_void_p()
        self._descriptors: Dict[str, int] = {}
        self._maps: Dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def all(self, jobs: List[_Job], threads: int) -> None:
        for path in dict.fromkeys(job.stored.path for job in jobs if job.stored is not None):
            self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if any(job.stored is None for job in jobs):
            self._model.library.call("stw_open_weights", self._model.handle, self._folder.encode(), ctypes.byref(self._weights))
        pieces = [piece for job in jobs for piece in self._cut(job)]
        for device in dict.fromkeys(job.into.device for job in jobs if job.into.device.type == "cuda"):
            torch.cuda.current_stream(device).synchronize()  # memory may be in use by work that is queued
        with concurrent.futures.ThreadPoolExecutor(max(1, threads), "stowage-load") as pool:
            futures = [pool.submit(self._read, job, box, into) for job, box, into in pieces]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    def _cut(self, job: _Job) -> Iterator[Tuple[_Job, Box, torch.Tensor]]:
        """Pieces of at most CHUNK bytes where the box has rows that can be parted."""
        if job.transposed or job.stored is None or len(job.box[0]) != job.into.dim():
            yield job, job.box, job.into
            return
        size = element_size(job.stored.dtype, f"{job.stored.path}: {job.name}")
        for box in chunks(job.box, max(1, CHUNK // size)):
            into = job.into
            for d, (first, n) in enumerate(zip(*box)):
                into = into.narrow(d, first - job.box[0][d], n)
            yield job, box, into

    def _read(self, job: _Job, box: Box, into: torch.Tensor) -> None:
        if into.numel() == 0:
            return
        with on_device(into.device):
            if job.stored is None:
                self._read_expanded(job, into)
                return
            stored = job.stored
            dtype = TYPES[stored.dtype] if stored.dtype in TYPES else None
            if dtype is None:
                raise _native.Error(f"{stored.path}: {job.name}: found dtype {stored.dtype}, expected one of {', '.join(TYPES)}")
            target = into.transpose(-1, -2) if job.transposed else into
            if target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous() and not job.transposed:
                self._fill(stored, box, memory(target))
            else:
                stage = self._stage(product(box[1]) * element_size(stored.dtype, stored.path), target.device)
                self._fill(stored, box, memory(stage))
                self._copy(stage.view(dtype).view(target.shape), target)

    def _fill(self, stored: Stored, box: Box, out: memoryview) -> None:
        """The box in C order. Long runs are read, short ones gathered from a map of the file."""
        size = element_size(stored.dtype, stored.path)
        length = next(runs(box, stored.shape))[2] * size
        if length >= 1 << 16 or length == len(out):
            for at, own, n in runs(box, stored.shape):
                read_fully(self._descriptors[stored.path], out[own * size:(own + n) * size], stored.begin + at * size, stored.path)
        else:
            view = self._map(stored.path)[stored.begin:stored.begin + product(stored.shape) * size]
            view = view.view(*stored.shape[:-1], stored.shape[-1] * size)
            for d, (first, n) in enumerate(zip(*box)):
                scale = size if d == len(box[0]) - 1 else 1
                view = view.narrow(d, first * scale, n * scale)
            torch.frombuffer(out, dtype=torch.uint8).view(view.shape).copy_(view)
        with self._lock:
            self.bytes += len(out)

    def _map(self, path: str) -> torch.Tensor:
        with self._lock:
            if path not in self._maps:
                self._maps[path] = torch.frombuffer(mmap.mmap(self._descriptors[path], 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
            return self._maps[path]

    def _stage(self, size: int, device: torch.device) -> torch.Tensor:
        """Memory of this thread, page-locked for a GPU."""
        stage: Optional[torch.Tensor] = getattr(self._local, "stage", None)
        if stage is None or stage.numel() < size:
            stage = self._local.stage = torch.empty(max(size, CHUNK), dtype=torch.uint8, pin_memory=device.type == "cuda")
        return stage[:size]

    def _copy(self, values: torch.Tensor, into: torch.Tensor) -> None:
        if into.device.type == "cpu":
            into.copy_(values)
            return
        stream: Any = getattr(self._local, "stream", None)
        if stream is None:
            stream = self._local.stream = torch.cuda.Stream(into.device)
        with torch.cuda.stream(stream):
            if values.dtype == into.dtype and into.is_contiguous():
                into.copy_(values, non_blocking=True)
            else:
                into.copy_(values.to(into.device, non_blocking=True))
            stream.synchronize()

    def _read_expanded(self, job: _Job, into: torch.Tensor) -> None:
        """A box of a tensor whose published form is packed or block-scaled, by the library."""
        library = self._model.library
        dtype = _native.text(library.stw_get_weights_dtype(self._weights, job.tensor))
        first, count = ((ctypes.c_uint64 * max(len(v), 1))(*v) for v in job.box)
        stage = self._stage(product(job.box[1]) * element_size(dtype, job.name), into.device)
        library.call("stw_read_weights", self._weights, job.tensor, first, count, stage.data_ptr(), stage.numel())
        self._copy(stage.view(TYPES[dtype]).view(job.box[1]), into)
        with self._lock:
            self.bytes += stage.numel()

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._maps = {}
        if self._weights:
            self._model.library.stw_free_weights(self._weights)
