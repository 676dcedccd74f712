# SPDX-License-Identifier: Apache-2.0
"""What weights go to: a target has a version, says which boxes it wants, and is handed bucket after bucket."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .. import _native
from .boxes import Box, Ints, Want, Wanted, wants_of, whole
from .group import Group


class Table(NamedTuple):
    """The sender's tensors. dtypes: in which they travel. aliases: other names of tied tensors."""

    shapes: Dict[str, Ints]
    dtypes: Dict[str, str]
    aliases: Dict[str, str]


class Delivery(NamedTuple):
    """A box in a bucket. want: index in the target's wants; last: the want is whole with it."""

    want: int
    name: str
    box: Box
    tensor: torch.Tensor
    last: bool


class Versioned:
    """Weights with a version: the step of the last sync that ended well. While one is under way, and after one that failed,
    the weights are a mixture and reading the version is an error."""

    _step: Optional[int] = None
    _next: Optional[int] = None
    _failure: Optional[str] = None

    @property
    def version(self) -> Optional[int]:
        """Step of the weights, None before the first sync. Error while they are a mixture."""
        if self._next is not None:
            why = f"failed: {self._failure}" if self._failure is not None else "is under way"
            raise _native.Error(f"the weights are a mixture of step {self._step} and step {self._next}: the sync of step "
                                f"{self._next} {why}")
        return self._step

    def _begin(self, step: int) -> None:
        self._next, self._failure = step, None

    def _end(self) -> None:
        self._step, self._next, self._failure = self._next, None, None

    def _fail(self, why: str) -> None:
        self._failure = why


class Target(Versioned):
    """Calls in this order: connect, wants, open; then for every sync begin, deliver for each round, end or abort; close.
    On a GPU the parts of deliver are there for work of the current stream, and their bucket is overwritten behind the work that deliver
    queued there. If more than that takes a bucket (releases), release(half) returns when work of the current stream, another one, may
    overwrite the bucket of a set of buffers. Errors of a target do not stop other ranks."""

    group: Group  # set before connect
    releases = False

    def connect(self, table: Table, device: torch.device, timeout: float) -> None:
        pass

    def wants(self, table: Table, rank: int, world: int) -> List[Want]:
        return []

    def buckets(self, size: int, device: torch.device) -> List[torch.Tensor]:
        return [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]

    def open(self, rounds: Sequence[Sequence[Tuple[Delivery, int]]], bucket_bytes: int) -> None:
        """rounds: what the bucket of each round holds, as deliver will get it, with offsets in bytes."""

    def begin(self, step: int) -> None:
        self._begin(step)

    def release(self, half: int) -> None:
        pass

    def deliver(self, number: int, half: int, parts: Sequence[Delivery]) -> None:
        pass

    def end(self, step: int, sums: Optional[Dict[int, int]]) -> None:
        self._end()

    def abort(self, why: str, lost: bool) -> None:
        """lost: other ranks are out of reach."""
        self._fail(why)

    def close(self) -> None:
        pass


Slices = Union[Mapping[str, Sequence[Box]], Callable[[str, Ints], Optional[Sequence[Box]]]]


class Callback(Target):
    """Hand tensors to a function of this rank, bucket by bucket: fn([(name, tensor), ...]).

    Tensors lie in the bucket: copy them, or load them, before fn returns; on CUDA by work of the current stream. Without
    `slices` each rank with a Callback gets all tensors, whole; with it, those boxes: a dict, or a function of (name, shape), to a
    list of (first, count). A tensor that comes in several rounds is put together first, in memory of its own beside the buckets: one
    larger than bucket_bytes always is (the embedding of Qwen3-8B takes 1.24 GB in bf16). split=True:
    fn([(name, tensor, (first, count)), ...]) gets boxes as they come.
    """

    def __init__(self, fn: Callable[[List[Any]], Any], *, slices: Optional[Slices] = None, split: bool = False) -> None:
        self.fn = fn
        self.slices = slices
        self.split = split
        self._wants: List[Want] = []
        self._begun: Dict[int, torch.Tensor] = {}  # wants of which parts have come
        self._ready: Dict[int, List[Any]] = {}     # what fn gets of a round, where nothing is put together

    def wants(self, table: Table, rank: int, world: int) -> List[Want]:
        out: List[Want] = []
        names = dict.fromkeys([*table.shapes, *(self.slices if isinstance(self.slices, Mapping) else [])])
        for name in names:
            own = table.aliases.get(name, name)
            if own not in table.shapes:
                raise _native.Error(f"slices of {name}: the source has no such tensor")
            if self.slices is None:
                boxes: Optional[Sequence[Box]] = [whole(table.shapes[own])]
            elif callable(self.slices):
                boxes = self.slices(name, table.shapes[own])
            else:
                boxes = self.slices.get(name)
            out += [Want(own, tuple(first), tuple(count), None) for first, count in boxes or []]
        self._wants = out
        return out

    def open(self, rounds: Sequence[Sequence[Tuple[Delivery, int]]], bucket_bytes: int) -> None:
        for number, parts in enumerate(rounds):
            if self.split:
                self._ready[number] = [(p.name, p.tensor, p.box) for p, _ in parts]
            elif all(p.box == self._wants[p.want][1:3] for p, _ in parts):
                self._ready[number] = [(p.name, p.tensor) for p, _ in parts]

    def begin(self, step: int) -> None:
        super().begin(step)
        self._begun.clear()

    def deliver(self, number: int, half: int, parts: Sequence[Delivery]) -> None:
        known = self._ready.get(number)
        if known is not None:
            ready = list(known)
        else:
            ready = [(p.name, tensor) for p in parts for tensor in [self._join(p)] if tensor is not None]
        if ready:
            self.fn(ready)

    def _join(self, part: Delivery) -> Optional[torch.Tensor]:
        """The tensor of a want that is whole with this part."""
        want = self._wants[part.want]
        if part.box == (want.first, want.count):
            return part.tensor
        if part.want not in self._begun:
            self._begun[part.want] = torch.empty(want.count, dtype=part.tensor.dtype, device=part.tensor.device)
        into = self._begun[part.want]
        for d, (first, n) in enumerate(zip(*part.box)):
            into = into.narrow(d, first - want.first[d], n)
        into.copy_(part.tensor)
        return self._begun.pop(part.want) if part.last else None

    def abort(self, why: str, lost: bool) -> None:
        super().abort(why, lost)
        self._begun.clear()


class Ranks(Target):
    """Ranks of the process group that get slices straight into their memory. params: on a rank that receives, its parameters
    and the slices that go into them (as for Receiver); None on a rank that only sends."""

    def __init__(self, params: Optional[Mapping[str, Wanted]] = None) -> None:
        self.params = params

    def wants(self, table: Table, rank: int, world: int) -> List[Want]:
        return wants_of(self.params or {}, table.shapes, table.aliases, table.dtypes)
