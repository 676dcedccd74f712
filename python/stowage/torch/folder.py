# SPDX-License-Identifier: Apache-2.0
"""Weights to a folder of safetensors that transformers, vLLM and SGLang load."""

from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import json
import os
import shutil
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import _native
from .boxes import Ints, Want
from .files import INDEX, make_header, memory, runs, write_fully
from .published import Names, Part, Published
from .target import Delivery, Table, Target

WRITERS = 4  # threads
RENAME_EXCHANGE = 2


class _File(NamedTuple):
    name: str
    writer: int
    tensors: List[Published]


class _Place(NamedTuple):
    """Where a want goes: the file, the byte at which its tensor begins, and the box in it."""

    file: str
    begin: int
    shape: Ints
    part: Part


class Folder(Target):
    """A folder of safetensors under the names of the published files, with an index, in the dtype that travels.

    A sync writes `<path>.writing-<step>` and renames it to `path`, which always is a whole version or absent; "{step}" in path
    is replaced. What stood there before is removed, if it is a folder of weights. like: a folder (config.json, tokenizer) whose
    other files are copied, and whose config.json says how the model's files name tensors; without it the job's own names are used.
    every_rank=True: all ranks of the group have such a target and write files of their own to a shared folder; otherwise rank 0
    writes them all.
    """

    def __init__(self, path: str, *, like: Optional[str] = None, every_rank: bool = False, file_bytes: int = 5_000_000_000) -> None:
        self.path = os.fspath(path)
        self.like = None if like is None else os.fspath(like)
        self.every_rank = every_rank
        self.file_bytes = file_bytes
        self._places: List[_Place] = []
        self._open_files: Dict[str, int] = {}
        self._waiting: Dict[int, List[Any]] = {0: [], 1: []}
        self._staging: List[torch.Tensor] = []
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._work = ""

    releases = True

    def wants(self, table: Table, rank: int, world: int) -> List[Want]:
        _check_replaceable(self.path.replace("{step}", "0"))
        self._files = self._share(Names.of(self.like, table.shapes).published(table), world)
        self._headers: Dict[str, Tuple[bytes, int]] = {}
        out: List[Want] = []
        for file in self._files:
            rows = [(t.name, t.dtype, t.shape) for t in file.tensors]
            header, begins, size = make_header(rows, {"format": "pt", "step": "0"})
            self._headers[file.name] = (header, size)
            if file.writer != rank:
                continue
            for tensor in file.tensors:
                for part in tensor.parts:
                    out.append(Want(part.own, part.first, part.count, None))
                    self._places.append(_Place(file.name, begins[tensor.name], tensor.shape, part))
        self._rank = rank
        return out

    def _share(self, tensors: Sequence[Published], world: int) -> List[_File]:
        """Tensors by file: in order, equal bytes for each writer, at most file_bytes in a file."""
        writers = world if self.every_rank else 1
        total = sum(t.bytes for t in tensors)
        groups: List[Tuple[int, List[Published]]] = []
        done = size = 0
        for tensor in tensors:
            writer = min(done * writers // max(total, 1), writers - 1)
            if not groups or groups[-1][0] != writer or size + tensor.bytes > self.file_bytes:
                groups.append((writer, []))
                size = 0
            groups[-1][1].append(tensor)
            size += tensor.bytes
            done += tensor.bytes
        if len(groups) == 1:
            return [_File("model.safetensors", 0, groups[0][1])]
        return [_File(f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors", writer, rows) for i, (writer, rows) in enumerate(groups)]

    def open(self, rounds: Sequence[Sequence[Tuple[Delivery, int]]], bucket_bytes: int) -> None:
        if self._places:
            self._pool = concurrent.futures.ThreadPoolExecutor(WRITERS, "stowage-folder")

    # ---- a sync --------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        super().begin(step)
        self._agreed = False
        self._final = self.path.replace("{step}", str(step))
        self._work = f"{self._final}.writing-{step}"
        if not self._places and self._rank:
            return
        os.makedirs(self._work, exist_ok=True)
        for file in self._files:
            if file.writer == self._rank:
                rows = [(t.name, t.dtype, t.shape) for t in file.tensors]
                header, _, size = make_header(rows, {"format": "pt", "step": str(step)})
                descriptor = os.open(os.path.join(self._work, file.name), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                self._open_files[file.name] = descriptor
                os.truncate(descriptor, size)
                write_fully(descriptor, memoryview(header), 0)

    def release(self, half: int) -> None:
        futures, self._waiting[half] = self._waiting[half], []
        for future in futures:
            future.result()

    def deliver(self, number: int, half: int, parts: Sequence[Delivery]) -> None:
        assert self._pool is not None or not parts
        pairs = [(part, self._on_host(part)) for part in parts]
        if parts and parts[0].tensor.device.type == "cuda":
            torch.cuda.current_stream(parts[0].tensor.device).synchronize()
        for part, tensor in pairs:
            self._waiting[half].append(self._pool.submit(self._write, part, tensor))

    def _on_host(self, part: Delivery) -> torch.Tensor:
        if part.tensor.device.type == "cpu":
            return part.tensor
        out = torch.empty(part.tensor.shape, dtype=part.tensor.dtype, pin_memory=True)
        return out.copy_(part.tensor, non_blocking=True)

    def _write(self, part: Delivery, tensor: torch.Tensor) -> None:
        place = self._places[part.want]
        box = place.part.published_box(part.box)
        if place.part.way == "transposed":
            tensor = tensor.transpose(-1, -2).contiguous()
        data, size = memory(tensor), tensor.element_size()
        descriptor = self._open_files[place.file]
        for at, own, n in runs(box, place.shape):
            write_fully(descriptor, data[own * size:(own + n) * size], place.begin + at * size)

    def end(self, step: int, sums: Optional[Dict[int, int]]) -> None:
        failure: Optional[Exception] = None
        self._agreed = True
        try:
            self._finish_files()
        except OSError as error:
            failure = error
        if not self._all(failure is None) and failure is None:
            failure = _native.Error(f"folder {self._final}: another rank failed to write its files")
        if failure is None and self._rank == 0:
            try:
                self._publish(step)
            except (OSError, _native.Error) as error:
                failure = error
        if not self._all(failure is None) and failure is None:
            failure = _native.Error(f"folder {self._final}: rank 0 failed to rename it")
        if failure is not None:
            raise _native.Error(f"folder {self._final}: {failure}") if isinstance(failure, OSError) else failure
        self._end()

    def _all(self, good: bool) -> bool:
        """good on all ranks that write."""
        if not self.every_rank or self.group.size == 1:
            return good
        return self.group.add([0 if good else 1])[0] == 0

    def _finish_files(self) -> None:
        self.release(0)
        self.release(1)
        for name in list(self._open_files):
            descriptor = self._open_files.pop(name)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _publish(self, step: int) -> None:
        """Index, other files, and the rename."""
        weights = {file.name for file in self._files}
        for name in os.listdir(self._work):
            if name not in weights:
                os.unlink(os.path.join(self._work, name))
        if len(self._files) > 1:
            total = sum(t.bytes for f in self._files for t in f.tensors)
            index = {"metadata": {"total_size": total, "step": step},
                     "weight_map": {t.name: f.name for f in self._files for t in f.tensors}}
            with open(os.path.join(self._work, INDEX), "w", encoding="utf-8") as out:
                json.dump(index, out, indent=1, sort_keys=True)
                out.flush()
                os.fsync(out.fileno())
        for name in sorted(os.listdir(self.like)) if self.like is not None else []:
            source = os.path.join(self.like or "", name)
            if os.path.isfile(source) and not name.endswith((".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth")):
                shutil.copyfile(source, os.path.join(self._work, name))
        _sync_folder(self._work)
        _check_replaceable(self._final)
        if os.path.exists(self._final):
            _exchange(self._work, self._final)
            shutil.rmtree(self._work)
        else:
            os.rename(self._work, self._final)
        _sync_folder(os.path.dirname(os.path.abspath(self._final)))

    def abort(self, why: str, lost: bool) -> None:
        super().abort(why, lost)
        for half in [0, 1]:
            for future in self._waiting[half]:
                future.cancel()
                concurrent.futures.wait([future])
            self._waiting[half] = []
        for descriptor in self._open_files.values():
            os.close(descriptor)
        self._open_files.clear()
        if not lost and not self._agreed:  # end of the other ranks asks twice
            self._all(False)
            self._all(False)
        if self._rank == 0 and self._work:
            shutil.rmtree(self._work, ignore_errors=True)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None


def _sync_folder(path: str) -> None:
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_replaceable(path: str) -> None:
    """Error if a path is anything but absent or a flat folder with weights."""
    if not os.path.lexists(path):
        return
    names = os.listdir(path) if os.path.isdir(path) and not os.path.islink(path) else None
    if names is None or any(os.path.isdir(os.path.join(path, n)) for n in names) or \
            not any(n.endswith(".safetensors") for n in names):
        raise _native.Error(f"folder {path}: found something else than a flat folder of safetensors; it is not replaced")


def _exchange(new: str, old: str) -> None:
    """Swap two folders at once; without such a call of the system, one after the other."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "renameat2", None)
    if call is not None and call(-100, os.fsencode(new), -100, os.fsencode(old), RENAME_EXCHANGE) == 0:
        return
    if call is not None and ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), old)
    aside = f"{new}.old"
    os.rename(old, aside)
    os.rename(new, old)
    os.rename(aside, new)
