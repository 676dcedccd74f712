# SPDX-License-Identifier: Apache-2.0
"""Look-ahead: while backward frees activations, state of the first streamed buckets comes to the GPU, into that memory. The
step updates it there and writes it back last.

How much fits is measured, not guessed. In one iteration the highest allocation after each gradient is noted; what lies
between it and the job's peak is free from that gradient on until the step. Later iterations fetch that much at that
gradient, so the peak stays what it was. Iterations must have as many backward passes as that one. If the number changes, or
the peak grows, nothing is fetched until an iteration was measured again.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .. import _native
from .part import Part
from .tensors import on_device

PIECE = 256 << 20  # bytes: the least that is fetched at once
LARGEST_PIECE = 2 << 30
MARGIN = 64 << 20  # bytes below the peak that stay free: allocations are rounded


def check_ahead() -> None:
    """Refuse look-ahead where it cannot be."""
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise _native.Error(f"ahead: found torch {torch.__version__}, expected 2.1 or newer")
    library = _native.load()
    if not library.has("stw_fetch_ahead"):
        raise _native.Error(f"ahead: {library.path} has no stw_fetch_ahead; it is older than this package")


class Meter:
    """Bytes that torch allocated on a device: now, and the highest since the last reset."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def highest(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def now(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)


def schedule(segments: Sequence[int], peak: int, limit: int, piece: int) -> Dict[int, int]:
    """Which gradients fetch how many bytes.

    segments: highest allocation from each gradient to the next, the last one to the step. A fetch at a gradient stays until
    the step, so it may take what lies between the peak and all later segments. limit: of all together; 0: none.
    """
    fetches: Dict[int, int] = {}
    later, rooms = 0, [0] * len(segments)
    for number in range(len(segments) - 1, -1, -1):
        later = max(later, segments[number])
        rooms[number] = peak - MARGIN - later
    held = 0
    for number, room in enumerate(rooms):
        size = min(room if not limit else min(room, limit), held + LARGEST_PIECE) - held
        if size >= piece:
            fetches[number] = size
            held += size
    return fetches


class _Hook:
    """Called when a parameter's gradient is there. It does not keep the optimizer alive, and copies of the model have none."""

    def __init__(self, ahead: Optional["Ahead"]) -> None:
        self._ahead = weakref.ref(ahead) if ahead is not None else None

    def __call__(self, param: torch.Tensor) -> None:
        ahead = self._ahead() if self._ahead is not None else None
        if ahead is not None:
            ahead.gradient()

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Hook, (None,)


class Ahead:
    """Fetches for the part that streams most. limit: bytes at most; 0: as much as fits below the peak."""

    def __init__(self, part: Part, limit: int, meter: Optional[Any] = None) -> None:
        self._part = part
        self._limit = limit
        self._meter = meter or (Meter(part.device) if part.device.type == "cuda" else None)
        self._peak = 0
        self._segments: Optional[List[int]] = None  # of the iteration that is being measured
        self._fetches: Dict[int, int] = {}
        self._expected = -1  # gradients of the iteration that was measured; -1: none was
        self._count = 0
        self._full = False
        self._pieces: List[torch.Tensor] = []  # of the step to come
        self._used: List[torch.Tensor] = []  # of the last one, until it is written back
        self._stream: Any = None
        self._fetched = 0
        self.fetched_bytes = 0  # for the last step
        for member in part.held:
            member.param.register_post_accumulate_grad_hook(_Hook(self))

    def gradient(self) -> None:
        """A gradient is there, and what only it needed is free."""
        number = self._count
        self._count += 1
        if self._segments is not None:
            self._note()
        elif number in self._fetches and not self._full and self._stream is not None:
            self._fetch(self._fetches[number])

    def _note(self) -> None:
        assert self._segments is not None
        if self._meter is None:
            self._segments.append(0)
            return
        self._segments.append(self._meter.highest())  # of what lay before this gradient
        self._meter.reset()

    def _fetch(self, size: int) -> None:
        native = self._part.native
        if native is None or not self.poll():
            return
        if self._meter is not None and self._meter.now() + size > self._peak:
            return
        device = self._part.device
        with on_device(device):
            if device.type == "cuda":
                with torch.cuda.stream(self._stream):  # the compute stream's memory, also in FSDP2's hooks
                    memory = torch.empty(size, dtype=torch.uint8, device=device)
                fetched = native.fetch_ahead(memory.data_ptr(), size, self._stream.cuda_stream)
            else:
                memory = torch.empty(size, dtype=torch.uint8)
                fetched = native.fetch_ahead(memory.data_ptr(), size, 0)
        if fetched:
            self._pieces.append(memory)
            self._fetched += fetched
        self._full = fetched == 0

    def poll(self) -> bool:
        """Drop the memory of the last step if it is written back; whether none is left."""
        if self._used and self._part.native is not None and self._part.native.fetched_is_free():
            self._used.clear()
        return not self._used

    def forward(self) -> None:
        """In a forward: memory that is not written back yet must not add to the activations' peak."""
        if not self._used or self.poll():
            return
        if self._meter is not None and self._meter.now() > self._peak - self._peak // 8 and self._part.native is not None:
            with on_device(self._part.device):
                self._part.native.finish()
            self._used.clear()

    def stepped(self) -> None:
        """A step was queued: its fetches are under way, and the iteration is over."""
        self._used.extend(self._pieces)
        self._pieces.clear()
        self.fetched_bytes, self._fetched = self._fetched, 0
        if self._segments is not None:
            self._note()
            measured, self._segments = self._segments, None
            self._peak = max([self._peak, *measured])
            # measured[0] is of the forward; segment i + 1 follows gradient i
            self._fetches = schedule(measured[1:], self._peak if self._meter else self._limit + MARGIN, self._limit, PIECE)
            self._expected = self._count
        elif self._count != self._expected or self._grown():
            self._fetches = {}
            self._segments = []  # the next iteration is measured
            if self._meter is not None:
                self._peak = max(self._peak, self._meter.highest())
                self._meter.reset()
        self._count = 0
        self._full = False
        self._stream = torch.cuda.current_stream(self._part.device) if self._part.device.type == "cuda" else 0

    def _grown(self) -> bool:
        """The job's peak is higher than when it was measured: longer sequences, another phase."""
        return self._meter is not None and self._meter.highest() > self._peak + MARGIN

    def drop(self) -> None:
        """State was written: what was fetched is void."""
        if self._part.native is not None:
            self._part.native.finish()
        self._pieces.clear()
        self._used.clear()
