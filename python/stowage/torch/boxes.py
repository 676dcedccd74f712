# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors: which of them a rank holds of a DTensor, which slices a receiver wants, and sums that compare them.

A box is (first, count), one number per dimension each. Everything here is arithmetic on shapes but `bit_sum`.
"""

from __future__ import annotations

import itertools
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .. import _native
from .._sync import DIMS

Ints = Tuple[int, ...]
Box = Tuple[Ints, Ints]
Intervals = List[Tuple[int, int]]

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
TORCH = {name: dtype for dtype, name in DTYPES.items()}
BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def product(values: Iterable[int]) -> int:
    out = 1
    for value in values:
        out *= value
    return out


def row_major(shape: Sequence[int]) -> Ints:
    out: List[int] = []
    step = 1
    for n in reversed(shape):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def whole(shape: Sequence[int]) -> Box:
    return (0,) * len(shape), tuple(shape)


def show(box: Box) -> str:
    """As an index: [0:128, 64:96]."""
    return "[" + ", ".join(f"{a}:{a + n}" for a, n in zip(*box)) + "]"


def meet(a: Box, b: Box) -> Optional[Box]:
    first = tuple(max(x, y) for x, y in zip(a[0], b[0]))
    end = tuple(min(x + n, y + m) for x, n, y, m in zip(a[0], a[1], b[0], b[1]))
    if any(e <= f for f, e in zip(first, end)):
        return None
    return first, tuple(e - f for f, e in zip(first, end))


def subtract(box: Box, other: Box) -> List[Box]:
    """What is left of a box: at most two boxes per dimension."""
    inner = meet(box, other)
    if inner is None:
        return [box]
    out: List[Box] = []
    first, count = list(box[0]), list(box[1])
    for d, (start, n) in enumerate(zip(*inner)):
        for a, e in [(first[d], start), (start + n, first[d] + count[d])]:
            if e > a:
                out.append((tuple(first[:d] + [a] + first[d + 1:]), tuple(count[:d] + [e - a] + count[d + 1:])))
        first[d], count[d] = start, n
    return out


# ---- what a rank holds of a DTensor ------------------------------------------------------------


def _cut(intervals: Intervals, start: int, stop: int) -> Intervals:
    """Positions start to stop of the concatenated intervals."""
    out: Intervals = []
    at = 0
    for a, e in intervals:
        low, high = max(start - at, 0), min(stop - at, e - a)
        if high > low:
            out.append((a + low, a + high))
        at += e - a
    return out


def _chunk(intervals: Intervals, n: int, i: int) -> Intervals:
    """Chunk i of n, as torch.chunk cuts: ceil(length / n) each, the last ones shorter or empty."""
    length = sum(e - a for a, e in intervals)
    size = -(-length // n)
    return _cut(intervals, min(i * size, length), min((i + 1) * size, length))


def placement_code(placement: Any) -> Tuple[Any, ...]:
    """("R",), ("S", dim) or ("T", dim, split factor) (FSDP2 over tensor parallelism). Raises ValueError for others."""
    if placement.is_replicate():
        return ("R",)
    factor = getattr(placement, "split_factor", None)
    if factor is not None:
        return ("T", placement.dim, factor)
    if placement.is_shard():
        return ("S", placement.dim)
    raise ValueError(f"placement {placement}")


def held(shape: Ints, mesh: Ints, coordinate: Ints, placements: Sequence[Tuple[Any, ...]]) -> List[Intervals]:
    """Intervals of each dimension that the rank at a coordinate of a mesh holds, in the order in which they lie."""
    out: List[Intervals] = [[(0, n)] for n in shape]
    for n, i, code in zip(mesh, coordinate, placements):
        if code[0] == "R":
            continue
        d = code[1] % len(shape)
        if code[0] == "S":
            out[d] = _chunk(out[d], n, i)
        else:
            parts = [_chunk(_chunk(out[d], code[2], j), n, i) for j in range(code[2])]
            out[d] = [interval for part in parts for interval in part]
    return out


def held_boxes(intervals: Sequence[Intervals], stride: Ints) -> List[Tuple[Box, int]]:
    """Boxes that intervals span, and the element of the shard at which each starts."""
    starts = []
    for rows in intervals:
        at, row = 0, []
        for a, e in rows:
            row.append((a, e - a, at))
            at += e - a
        starts.append(row)
    out = []
    for choice in itertools.product(*starts):
        box = tuple(c[0] for c in choice), tuple(c[1] for c in choice)
        out.append((box, sum(c[2] * s for c, s in zip(choice, stride))))
    return out


class Fold(NamedTuple):
    """How many dimensions of a tensor are left when the last ones are taken as one: the library knows four."""

    dims: int

    def values(self, values: Sequence[int]) -> Ints:
        kept = self.dims - 1
        return tuple(values) if len(values) <= self.dims else (*values[:kept], product(values[kept:]))

    def box(self, box: Box, shape: Sequence[int]) -> Box:
        first, count = box
        if len(first) <= self.dims:
            return box
        kept = self.dims - 1
        inner = product(shape[kept + 1:])
        if tuple(count[kept + 1:]) != tuple(shape[kept + 1:]):
            raise ValueError(f"a slice {show(box)} that cuts dimension {self.dims} or a later one of shape {tuple(shape)}")
        return (*first[:kept], first[kept] * inner), (*count[:kept], count[kept] * inner)

    def unfold(self, box: Box, shape: Sequence[int]) -> Box:
        first, count = box
        if len(shape) <= self.dims:
            return box
        kept = self.dims - 1
        inner = product(shape[kept + 1:])
        if first[kept] % inner or count[kept] % inner:
            raise ValueError(f"shape {tuple(shape)} is cut inside its dimension {self.dims}; use larger buckets")
        rest = tuple(shape[kept + 1:])
        return ((*first[:kept], first[kept] // inner, *((0,) * len(rest))), (*count[:kept], count[kept] // inner, *rest))

    def stride(self, stride: Sequence[int], count: Sequence[int]) -> Ints:
        if len(stride) <= self.dims:
            return tuple(stride)
        for d in range(self.dims - 1, len(stride) - 1):
            if count[d] != 1 and stride[d] != stride[d + 1] * count[d + 1]:
                raise ValueError(f"strides {tuple(stride)}, expected dense dimensions after the third")
        return (*stride[:self.dims - 1], stride[-1])


FOLD = Fold(DIMS)

# ---- what a receiver wants ---------------------------------------------------------------------


class Slice:
    """A box of the sender's tensor `name`, and the memory that it goes into, of the box's shape and any strides.

    first: where the box begins, zeros if None. pad=True: `into` may reach over the end of the sender's tensor (a padded
    vocabulary); what has no counterpart keeps its values.
    """

    __slots__ = ("name", "into", "first", "pad")

    def __init__(self, name: str, into: torch.Tensor, first: Optional[Sequence[int]] = None, pad: bool = False) -> None:
        self.name = name
        self.into = into.detach()
        self.first = None if first is None else tuple(int(n) for n in first)
        self.pad = pad

    def want(self, shape: Ints) -> Optional["Want"]:
        """Against the sender's shape. None: nothing of the tensor is in the slice."""
        size = tuple(self.into.shape)
        first = self.first if self.first is not None else (0,) * len(size)
        if len(size) != len(shape) or len(first) != len(shape):
            raise _native.Error(f"{self.name}: the receiver has shape {size}, the sender {tuple(shape)}")
        count, into = list(size), self.into
        for d, n in enumerate(shape):
            if first[d] + count[d] > n and self.pad:
                count[d] = max(n - first[d], 0)
                into = into.narrow(d, 0, count[d])
                if count[d] == 0:
                    return None
        if any(f + c > n for f, c, n in zip(first, count, shape)):
            raise _native.Error(f"{self.name}: the receiver wants {show((first, size))}, the sender has shape {tuple(shape)}")
        if self.first is None and not self.pad and size != tuple(shape):
            raise _native.Error(f"{self.name}: the receiver has shape {size}, the sender {tuple(shape)}")
        return Want(self.name, first, tuple(count), into) if product(count) else None


class Want(NamedTuple):
    """A box that a receiver gets; into: its memory, None if it is handed over in a bucket."""

    name: str
    first: Ints
    count: Ints
    into: Optional[torch.Tensor]


def column_slice(name: str, into: torch.Tensor, rank: int, *, dim: int = 0, pad: bool = False) -> Slice:
    """The slice of a column-parallel linear layer or an embedding: rows rank * n to (rank + 1) * n of `name`, n being the rows
    of `into`. Replicated heads: the same rank for several receivers. pad=True: rows beyond the sender's, of a vocabulary that
    the engine pads, keep their values."""
    first = [0] * into.dim()
    first[dim] = rank * into.shape[dim]
    return Slice(name, into, first, pad)


def row_slice(name: str, into: torch.Tensor, rank: int) -> Slice:
    """The slice of a row-parallel linear layer: columns rank * n to (rank + 1) * n of `name`."""
    return column_slice(name, into, rank, dim=1)


def fused(into: torch.Tensor, parts: Sequence[Tuple[str, int, int]], dim: int = 0) -> List[Slice]:
    """Slices of a tensor that stacks several: parts are (name, rows in `into`, rank of the slice), from the first row on.

    A QKV projection of 32 and 8 heads of 128 for rank r of 4:
    fused(qkv, [(q, 1024, r), (k, 256, r), (v, 256, r)]).
    """
    out: List[Slice] = []
    at = 0
    for name, rows, rank in parts:
        out.append(column_slice(name, into.narrow(dim, at, rows), rank, dim=dim))
        at += rows
    if at != into.shape[dim]:
        raise _native.Error(f"{', '.join(name for name, _, _ in parts)}: their rows are {at}, the fused tensor has "
                            f"{into.shape[dim]}")
    return out


Wanted = Union[torch.Tensor, Slice, Sequence[Slice]]


def wants_of(params: Mapping[str, Wanted], shapes: Mapping[str, Ints], aliases: Mapping[str, str],
             dtypes: Mapping[str, str]) -> List[Want]:
    """A receiver's boxes against the sender's tensors. Errors name the receiver's parameter."""
    out: List[Want] = []
    for own, value in params.items():
        slices: Sequence[Slice]
        if isinstance(value, torch.Tensor):
            slices = [Slice(own, value)]
        else:
            slices = [value] if isinstance(value, Slice) else value
        for piece in slices:
            name = aliases.get(piece.name, piece.name)
            if name not in shapes:
                raise _native.Error(f"{own}: the sender has no tensor {piece.name}")
            if DTYPES.get(piece.into.dtype) != dtypes[name]:
                raise _native.Error(f"{own}: the receiver has {piece.into.dtype}, {piece.name} travels in {TORCH[dtypes[name]]}")
            try:
                want = piece.want(shapes[name])
            except _native.Error as failure:
                raise _native.Error(f"{own}: {failure}") from None
            if want is not None:
                out.append(want._replace(name=name))
    return out


# ---- sums --------------------------------------------------------------------------------------

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio


def bit_sum(tensor: torch.Tensor, first: Ints, shape: Sequence[int]) -> torch.Tensor:
    """Sum over the elements of a box of their bits times a number that depends on where the element lies in the whole
    tensor of `shape`, modulo 2^64: int64, no dimensions, on the tensor's device. Sums of the boxes of a partition add up to
    the sum of the whole.

    The number is _ODD x index + 1, and an index is a sum over dimensions: the sum over elements is that of each dimension's
    coordinates times the sums over all other dimensions, which are read without a copy in int64."""
    if not tensor.dim():
        tensor = tensor.reshape(1)
        first, shape = (0,), (1,)
    zero = torch.zeros((), dtype=torch.int64, device=tensor.device)
    if tensor.numel() == 0:
        return zero
    bits = tensor.detach().contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    indices, total = zero, zero
    for d, stride in enumerate(row_major(shape)):
        others = [k for k in range(bits.dim()) if k != d]
        line = bits.sum(others, dtype=torch.int64) if others else bits.to(torch.int64)
        place = torch.arange(bits.shape[d], dtype=torch.int64, device=bits.device) + first[d]
        indices = indices + (line * place).sum() * stride
        total = line.sum()
    return indices * _ODD + total


def bit_value(sums: Sequence[torch.Tensor]) -> int:
    """All of them added, in the range of int64."""
    return wrap(sum(int(s) for s in sums))


def wrap(value: int) -> int:
    """Into the range of int64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def first_holders(boxes: Sequence[Tuple[int, Box]], rank: int) -> List[Box]:
    """Of (rank, box) pairs the parts of boxes of a rank that no lower rank holds, each once."""
    out: List[Box] = []
    seen: List[Box] = [box for other, box in boxes if other < rank]
    for box in (box for other, box in boxes if other == rank):
        left = [box]
        for earlier in seen:
            left = [part for part in left for part in ([] if part == earlier else subtract(part, earlier))]
        out += left
        seen.append(box)
    return out


def group_by_tensor(rows: Iterable[Any]) -> Dict[int, List[Any]]:
    out: Dict[int, List[Any]] = {}
    for row in rows:
        out.setdefault(row.tensor, []).append(row)
    return out
