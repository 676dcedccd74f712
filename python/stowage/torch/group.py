# SPDX-License-Identifier: Apache-2.0
"""What a weight sync needs of a process group: an exchange at set-up, and messages between pairs."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple, TypeVar

import torch

from .. import _native
from .._sync import Message
from .tensors import on_device

Value = TypeVar("Value")


class Group:
    """A process group, the default one if None is given, or this process alone if there is none. Ranks are those of the group."""

    def __init__(self, group: Any) -> None:
        self._dist = torch.distributed
        on = self._dist.is_available() and self._dist.is_initialized()
        if group is None and on:
            group = self._dist.group.WORLD
        self._group = group if on else None
        self.rank = self._dist.get_rank(group) if on else 0
        self.size = self._dist.get_world_size(group) if on else 1
        if self.rank < 0:
            raise _native.Error("this rank is not in the process group")
        self._peers: List[int] = []
        if self.size > 1:
            self._peers = [self._dist.distributed_c10d.get_global_rank(group, r) for r in range(self.size)]

    def serves(self, device: str) -> bool:
        """Messages between memory of a kind of device can be sent."""
        if self.size == 1:
            return True
        backend = str(self._dist.get_backend(self._group))
        config = getattr(self._dist, "get_backend_config", None)
        if config is not None:
            backend = str(config(self._group))
        for row in backend.split(","):
            kind, _, name = row.rpartition(":")
            if (device == "cuda" and name == "nccl") or (device == "cpu" and name != "nccl" and kind in ("", "cpu")):
                return True
        return False

    def exchange(self, call: Callable[[], Value]) -> List[Value]:
        """The results of call() on all ranks; an error of one is an error of all."""
        error = None
        answer: Any = None
        try:
            answer = call()
        except Exception as failure:
            error = failure
        if self.size == 1:
            if error is not None:
                raise error
            return [answer]
        rows: List[Any] = [None] * self.size
        self._dist.all_gather_object(rows, (None if error is None else str(error) or type(error).__name__, answer), group=self._group)
        if error is not None:
            raise error
        for rank, (text, _) in enumerate(rows):
            if text is not None:
                raise _native.Error(f"rank {rank}: {text}")
        return [value for _, value in rows]

    def add(self, values: Sequence[int]) -> List[int]:
        """Sums over the ranks, modulo 2^64."""
        if self.size == 1 or not values:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device="cpu" if self.serves("cpu") else "cuda")
        self._dist.all_reduce(tensor, group=self._group)
        return tensor.tolist()

    def communicator(self, device: torch.device) -> int:
        """The group's ncclComm_t on a GPU; 0 if there is none that the library can use."""
        ask = None
        if self.size > 1 and device.type == "cuda":
            ask = getattr(self._group._get_backend(device), "_comm_ptr", None)
        if ask is None:
            return 0
        with on_device(device):
            self._dist.all_reduce(torch.zeros(1, device=device), group=self._group)  # torch makes it with the first collective
            return int(ask())

    def operations(self, messages: Sequence[Message], send: torch.Tensor, receive: torch.Tensor) -> List[Any]:
        """The messages of a round, between buffers, for post."""
        out = []
        for m in messages:
            part = (send if m.sends else receive)[m.offset:m.offset + m.bytes]
            call = self._dist.isend if m.sends else self._dist.irecv
            out.append(self._dist.P2POp(call, part, self._peers[m.peer], self._group))
        return out

    def post(self, messages: Sequence[Message], operations: List[Any]) -> List[Tuple[Any, List[Message]]]:
        """Begin the messages of a round. Returns works, each with the messages that it stands for."""
        if not operations:
            return []
        works = self._dist.batch_isend_irecv(operations)
        if len(works) == len(messages):
            return [(work, [m]) for work, m in zip(works, messages)]
        return [(work, list(messages)) for work in works]
