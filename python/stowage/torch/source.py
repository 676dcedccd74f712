# SPDX-License-Identifier: Apache-2.0
"""The tensors that a weight sync reads: their names, what of them each rank holds, and where it lies."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .. import _native
from .._sync import Piece, TensorRow
from .boxes import DTYPES, FOLD, Ints, held, held_boxes, placement_code, product, row_major
from .target import Table
from .tensors import clean_name, is_distributed, local

Given = Union[torch.nn.Module, Sequence[Tuple[str, torch.Tensor]], None]
PAGE = 4096


def named(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """Parameters and floating-point buffers that state_dict would save, tied ones under each of their names."""
    for prefix, part in module.named_modules(remove_duplicate=False):
        temporary = getattr(part, "_non_persistent_buffers_set", ())
        buffers = [(n, b) for n, b in part._buffers.items() if b is not None and n not in temporary and b.is_floating_point()]
        for name, tensor in [*part._parameters.items(), *buffers]:
            if tensor is not None:
                yield clean_name(f"{prefix}.{name}" if prefix else name), tensor


class Layout(NamedTuple):
    """Where a rank is on the mesh of a DTensor, and how it is placed. mesh (): a plain tensor."""

    mesh: Ints
    coordinate: Ints
    placements: Tuple[Tuple[Any, ...], ...]


class Row(NamedTuple):
    name: str
    shape: Ints
    dtype: str    # as it lies
    travels: str  # as it is sent
    layout: Optional[int]  # in Described.layouts; None: this rank has nothing of it


class Described(NamedTuple):
    """What a rank has, short enough to be sent to all."""

    rows: List[Row]
    layouts: List[Layout]
    aliases: Dict[str, str]


class Source:
    """Tensors in order, tied ones once. Memory i of the library is the shard of tensor i."""

    def __init__(self, given: Given, owner: str = "WeightSync") -> None:
        self._given = given
        self._owner = owner  # what its caller makes anew after a change
        self._locked: List[Tuple[int, int]] = []   # address, bytes of memory that was page-locked here
        self._copies: Dict[str, torch.Tensor] = {}  # page-locked copies of what cannot be
        self._seen: Optional[Tuple[List[Any], List[Any]]] = None  # what is_unchanged compares
        self._shards: List[torch.Tensor] = []
        self._addresses: List[int] = []
        self.names: List[str] = []
        self.aliases: Dict[str, str] = {}
        seen: Dict[int, str] = {}
        self._known: List[torch.Tensor] = []
        for name, tensor in self._all():
            if name in self.aliases or name in seen.values():
                raise _native.Error(f"{name}: found two tensors of this name")
            if id(tensor) in seen:
                self.aliases[name] = seen[id(tensor)]
                continue
            seen[id(tensor)] = name
            self.names.append(name)
            self._known.append(tensor)
        self._kinds = [self._kind(name, tensor) for name, tensor in zip(self.names, self._known)]
        devices = dict.fromkeys(local(t).device for t in self._known)
        gpus = [d for d in devices if d.type == "cuda"]
        if len(gpus) > 1 or any(d.type not in ("cpu", "cuda") for d in devices):
            raise _native.Error(f"found tensors on {', '.join(map(str, devices))}, expected them on one GPU and in host memory")
        self.device: Optional[torch.device] = gpus[0] if gpus else next(iter(devices), None)

    def _all(self) -> Iterator[Tuple[str, torch.Tensor]]:
        if isinstance(self._given, torch.nn.Module):
            yield from named(self._given)
        else:
            yield from self._given or []

    def _kind(self, name: str, tensor: Any) -> Tuple[Any, ...]:
        """What must not change between syncs."""
        shard = local(tensor)
        if shard.is_meta:
            raise _native.Error(f"{name}: found a meta tensor, expected memory")
        if shard.layout != torch.strided or shard.dtype not in DTYPES:
            raise _native.Error(f"{name}: found {shard.layout} {shard.dtype}, expected dense float32, bfloat16 or float16")
        if tensor.numel() == 0:
            raise _native.Error(f"{name}: found shape {tuple(tensor.shape)}, expected elements")
        placements = tuple(tensor.placements) if is_distributed(tensor) else None
        return tuple(tensor.shape), shard.dtype, tuple(shard.shape), shard.stride(), shard.device, placements

    def tensors(self) -> List[torch.Tensor]:
        """Shards as they are now. Error if one is not what it was at set-up."""
        now = self._known
        if isinstance(self._given, torch.nn.Module):
            found = dict(self._all())
            for name in self.names:
                if name not in found:
                    raise _native.Error(f"{name}: the module lost it after set-up; make a new {self._owner}")
            now = [found[name] for name in self.names]
        out = []
        for name, tensor, kind in zip(self.names, now, self._kinds):
            if self._kind(name, tensor) != kind:
                raise _native.Error(f"{name}: shape, dtype, strides, device or placements changed after set-up; reshard the model "
                                    f"first, or make a new {self._owner}")
            out.append(local(tensor))
        return out

    def _look(self) -> Optional[Tuple[List[Any], List[Any]]]:
        """Owners of the module's parts, and what lies where: 1 us a tensor to compare, where tensors() takes 15."""
        owners: List[Any] = []
        for module in self._given.modules() if isinstance(self._given, torch.nn.Module) else []:
            for parts in (module._modules, module._parameters, module._buffers):
                owners += [(parts, key, part) for key, part in parts.items()]
        known = self._known if not owners else [t for _, _, t in owners if isinstance(t, torch.Tensor)]
        holders = [(t, getattr(t, "_local_tensor", None)) for t in known]
        shards = [(t if shard is None else shard) for t, shard in holders]
        if any(type(s) not in (torch.Tensor, torch.nn.Parameter) for s in shards):
            return None
        return owners, [(t, shard, s.data_ptr(), s.shape) for (t, shard), s in zip(holders, shards)]

    def is_unchanged(self) -> bool:
        """No tensor was exchanged, moved or reshaped since the last call of addresses."""
        if self._seen is None:
            return False
        owners, rows = self._seen
        if any(parts.get(key) is not part for parts, key, part in owners):
            return False
        for tensor, shard, address, shape in rows:
            if shard is not None:
                if tensor._local_tensor is not shard:
                    return False
                tensor = shard
            if tensor.data_ptr() != address or tensor.shape != shape:
                return False
        return True

    def addresses(self, device: torch.device) -> List[int]:
        """Of all shards, in memory that the device reads."""
        if not self._copies and self.is_unchanged():
            return self._addresses
        shards = self.tensors()
        if device.type == "cuda" and any(is_pageable(t) for n, t in zip(self.names, shards) if n not in self._copies):
            self.lock(device)
        self._shards = []
        for name, tensor in zip(self.names, shards):
            copy = self._copies.get(name)
            self._shards.append(tensor if copy is None else copy.copy_(tensor))
        self._addresses = [t.data_ptr() for t in self._shards]
        self._seen = self._look()
        return self._addresses

    def view(self, memory: Any, count: Ints, stride: Ints, offset: int) -> torch.Tensor:
        shard = self._shards[memory]
        return torch.as_strided(shard, count, stride, shard.storage_offset() + offset)

    def lock(self, device: torch.device) -> None:
        """Page-lock shards in pageable host memory where they lie; what cannot be is copied before each sync."""
        if device.type != "cuda":
            return
        self.unlock()
        pageable = [(n, t) for n, t in zip(self.names, self.tensors()) if is_pageable(t)]
        spans: List[List[Any]] = []
        for name, tensor in sorted(pageable, key=lambda row: row[1].data_ptr()):
            start = tensor.data_ptr() // PAGE * PAGE
            end = -(-(tensor.data_ptr() + extent(tensor)) // PAGE) * PAGE
            if spans and start <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
                spans[-1][2].append((name, tensor))
            else:
                spans.append([start, end, [(name, tensor)]])
        with torch.cuda.device(device):
            for start, end, rows in spans:
                if int(torch.cuda.cudart().cudaHostRegister(start, end - start, 0)) == 0:
                    self._locked.append((start, end - start))
                    continue
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device=device)  # a launch reports the refusal once more, and clears it
                for name, tensor in rows:
                    self._copies[name] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)

    def unlock(self) -> None:
        for address, _ in self._locked:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._locked, self._copies = [], {}


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1) * tensor.element_size()


def is_pageable(tensor: torch.Tensor) -> bool:
    """A host tensor whose own memory is not page-locked. Tensor.is_pinned() asks about where its storage begins, which may be
    pageable although the tensor is not, or the other way round."""
    if tensor.device.type != "cpu" or tensor.numel() == 0:
        return False
    first = tensor.data_ptr()
    bytes_at = ((ctypes.c_uint8 * 1).from_address(at) for at in (first, first + extent(tensor) - 1))
    return not all(torch.frombuffer(byte, dtype=torch.uint8).is_pinned() for byte in bytes_at)


def describe(source: Source, dtype: Any) -> Described:
    """dtype: in which tensors travel; None: each in its own; a function of the name."""
    rows: List[Row] = []
    layouts: Dict[Layout, int] = {}
    for name, tensor in zip(source.names, source._known):
        travels = dtype(name) if callable(dtype) and not isinstance(dtype, torch.dtype) else dtype
        own = local(tensor).dtype
        travels = own if travels is None else travels
        if travels not in DTYPES:
            raise _native.Error(f"{name}: found dtype {travels}, expected float32, bfloat16 or float16")
        layout: Optional[Layout] = Layout((), (), ())
        if is_distributed(tensor):
            layout = layout_of(name, tensor)
        number = None if layout is None else layouts.setdefault(layout, len(layouts))
        rows.append(Row(name, tuple(tensor.shape), DTYPES[own], DTYPES[travels], number))
    return Described(rows, list(layouts), dict(source.aliases))


def layout_of(name: str, tensor: Any) -> Optional[Layout]:
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    try:
        codes = tuple(placement_code(p) for p in tensor.placements)
    except ValueError as failure:
        raise _native.Error(f"{name}: found {failure}, expected Shard or Replicate") from None
    layout = Layout(tuple(mesh.shape), tuple(coordinate), codes)
    expected = tuple(sum(e - a for a, e in row) for row in held(tuple(tensor.shape), *layout))
    found = tuple(local(tensor).shape)
    if found != expected and product(found) + product(expected):
        raise _native.Error(f"{name}: found a shard of shape {found}, expected {expected} of {tuple(tensor.shape)} with placements "
                            f"{tuple(tensor.placements)}")
    return layout


def join(described: Sequence[Described], rank: int, source: Source) -> Tuple[Table, List[TensorRow], List[Piece]]:
    """The tensors of all ranks, and the pieces of all. Strides are those of this rank's own pieces alone: the library looks at no
    other ones."""
    table = Table({}, {}, {})
    index: Dict[str, int] = {}
    pieces: List[Piece] = []
    own = {name: t for name, t in zip(source.names, source.tensors())}
    for r, rows in enumerate(described):
        table.aliases.update(rows.aliases)
        for memory, row in enumerate(rows.rows):
            known = (table.shapes.setdefault(row.name, row.shape), table.dtypes.setdefault(row.name, row.travels))
            if known != (row.shape, row.travels):
                raise _native.Error(f"{row.name}: found shape {row.shape} sent in {row.travels} on rank {r}, {known[0]} in {known[1]} "
                                    "on a lower rank")
            tensor = index.setdefault(row.name, len(index))
            if row.layout is None:
                continue
            layout = rows.layouts[row.layout]
            intervals = held(row.shape, *layout)
            stride = own[row.name].stride() if r == rank else row_major([sum(e - a for a, e in i) for i in intervals])
            for box, offset in held_boxes(intervals, tuple(stride)):
                try:
                    first, count = FOLD.box(box, row.shape)
                    folded = FOLD.stride(stride, box[1])
                except ValueError as failure:
                    raise _native.Error(f"{row.name}: found {failure}") from None
                pieces.append(Piece(r, tensor, first, count, memory, offset, folded, row.dtype))
    return table, [TensorRow(n, table.dtypes[n], FOLD.values(table.shapes[n])) for n in table.shapes], pieces
