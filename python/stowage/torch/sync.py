# SPDX-License-Identifier: Apache-2.0
"""Weights out of a torch job: `WeightSync`."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .. import _native
from .._sync import (DONE, MIN_BUCKET, POST, RECEIVE, RELEASE, TAKE, WAIT, Info, Message, Part, Piece, Rounds, Schedule,
                     TensorRow)
from .boxes import BYTES, FOLD, TORCH, Box, Want, bit_sum, bit_value, first_holders, group_by_tensor, meet, product, show
from .group import Group
from .source import Described, Source, describe, join
from .target import Delivery, Target
from .tensors import on_device

HALVES = 2  # sets of buffers


class Result(NamedTuple):
    """What a sync took on this rank. sent and received travelled between ranks; own bytes it had itself."""

    step: int
    seconds: float
    sent_bytes: int
    received_bytes: int
    own_bytes: int

_CLOSED = "the WeightSync was closed"


class _Half:
    """A set of buffers, and the messages between them that are under way. Round r uses set r % HALVES."""

    def __init__(self, info: Info, bucket: torch.Tensor, device: torch.device) -> None:
        self.send = torch.empty(info.send_bytes, dtype=torch.uint8, device=device)
        self.receive = torch.empty(info.receive_bytes, dtype=torch.uint8, device=device)
        self.bucket = bucket
        self.works: List[Tuple[Any, List[Message]]] = []
        self.operations: Dict[int, List[Any]] = {}  # of rounds, made once
        self.addresses = tuple(t.data_ptr() if t.numel() else 0 for t in (self.send, self.receive, bucket))


class WeightSync:
    """Weights of a module, or of [(name, tensor), ...], to a target, in buckets of bounded size.

    Tensors are plain ones, of which every rank that names them has all elements, or DTensors of any placement but Partial, on the
    GPU or in host memory (which is page-locked here if it is not). Every rank of process_group makes a WeightSync at the same
    point, with its own source (None: it has nothing) and its own target (None: it gets nothing), and calls sync at the same points.

    dtype: what weights are cast to before they are sent: a dtype, None for each tensor's own, or a function of the name.
    bucket_bytes: of one set of buffers of a rank, at least 1 MiB; there are two. check=True compares sums of the source's and the
    target's bits. device: where buffers lie; None: where the source is, or the current GPU. timeout: seconds without progress before an error.
    """

    def __init__(self, source: Union[torch.nn.Module, Sequence[Tuple[str, torch.Tensor]], None], target: Optional[Target] = None, *,
                 dtype: Union[torch.dtype, None, Callable[[str], torch.dtype]] = torch.bfloat16, bucket_bytes: int = 256 << 20,
                 process_group: Any = None, check: bool = False, device: Any = None, timeout: float = 300.0) -> None:
        if bucket_bytes < MIN_BUCKET:
            raise _native.Error(f"bucket_bytes: found {bucket_bytes}, expected at least {MIN_BUCKET}")
        self.bucket_bytes = bucket_bytes
        self.timeout = timeout
        self.check = check
        self._broken: Optional[str] = None
        self._group = Group(process_group)
        if target is not None and not isinstance(target, Target):
            raise TypeError(f"target: found {type(target).__name__}, expected Callback, Process, Ranks, Folder or None")
        self._target = target if target is not None else Target()
        self._target.group = self._group
        try:
            self._open(source, dtype, device)
        except BaseException:
            self._target.close()
            raise

    # ---- set-up --------------------------------------------------------------------------------

    def _choose_device(self, given: Any) -> torch.device:
        if given is not None:
            device = torch.device(given)
        elif self._source.device is not None and self._source.device.type == "cuda":
            device = self._source.device
        else:
            device = torch.device("cuda" if torch.cuda.is_available() and self._group.serves("cuda") else "cpu")
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device.type not in ("cpu", "cuda"):
            raise _native.Error(f"device: found {device}, expected cpu or cuda")
        if not self._group.serves(device.type):
            raise _native.Error(f"weights are synced on {device}, for which the process group has no backend")
        if device.type == "cpu" and self._source.device is not None and self._source.device.type == "cuda":
            raise _native.Error(f"device: found cpu, expected {self._source.device}, where the source is")
        return device

    def _describe(self, source: Any, dtype: Any, device: Any) -> Tuple[str, int, bool, Described]:
        self._source = Source(source)
        self._device = self._choose_device(device)
        return self._device.type, self.bucket_bytes, self.check, describe(self._source, dtype)

    def _open(self, source: Any, dtype: Any, device: Any) -> None:
        described = self._group.exchange(lambda: self._describe(source, dtype, device))
        for what, values in [("device", [d[0] for d in described]), ("bucket_bytes", [d[1] for d in described]),
                             ("check", [d[2] for d in described])]:
            if len(set(values)) > 1:
                raise _native.Error(f"{what}: found {', '.join(str(v) for v in values)} on ranks 0 to {len(values) - 1}, expected the "
                                    "same on all")
        self._table, rows, sources = join([d[3] for d in described], self._group.rank, self._source)
        self._names = [row.name for row in rows]
        self._index = {name: i for i, name in enumerate(self._names)}
        wants = self._group.exchange(self._ask_target)
        targets = [piece for rank, row in enumerate(wants) for piece in self._target_pieces(rank, row)]
        self._boxes = [(self._names[p.tensor], (p.first, p.count)) for p in targets]
        self._sources, self._targets = sources, targets
        self._first_target = sum(len(row) for row in wants[:self._group.rank])
        sums = self._group.exchange(lambda: self._plan(rows, sources, targets))
        if len(set(sums)) > 1:
            raise _native.Error("the ranks have different schedules; they must run one version of libstowage")
        self._group.exchange(self._open_target)
        # NCCL's communicator of torch, if all ranks can hand it to the library: then no round's messages go through Python
        comms = self._group.exchange(lambda: self._group.communicator(self._device))
        self._comm = comms[self._group.rank] if all(comms) else 0

    def _ask_target(self) -> List[Tuple[int, Box, bool]]:
        self._target.connect(self._table, self._device, self.timeout)
        self._wants = self._target.wants(self._table, self._group.rank, self._group.size)
        out = []
        for want in self._wants:
            if want.into is not None and want.into.device != self._device:
                raise _native.Error(f"{want.name}: found memory on {want.into.device}, expected {self._device}")
            out.append((self._index[want.name], self._box_of(want), want.into is not None))
        return out

    def _box_of(self, want: Want) -> Box:
        shape = self._table.shapes[want.name]
        if any(f < 0 or n <= 0 or f + n > s for f, n, s in zip(want.first, want.count, shape)) or \
                not len(want.first) == len(want.count) == len(shape):
            raise _native.Error(f"{want.name}: found the slice {show((want.first, want.count))}, expected a part of shape {shape}")
        try:
            return FOLD.box((want.first, want.count), shape)
        except ValueError as failure:
            raise _native.Error(f"{want.name}: {failure}") from None

    def _target_pieces(self, rank: int, rows: Sequence[Tuple[int, Box, bool]]) -> Iterable[Piece]:
        own = rank == self._group.rank
        memory = 0
        for i, (tensor, (first, count), placed) in enumerate(rows):
            stride = (0,) * len(first)
            if placed and own:
                want = self._wants[i]
                stride = FOLD.stride(want.into.stride(), want.count)
            dtype = self._table.dtypes[self._names[tensor]]
            yield Piece(rank, tensor, first, count, memory if placed else None, 0, stride, dtype)
            memory += placed

    def _plan(self, rows: List[TensorRow], sources: List[Piece], targets: List[Piece]) -> int:
        self._schedule = Schedule(rows, sources, targets, self._group.size, self.bucket_bytes)
        self._info = self._schedule.info(self._group.rank)
        self._messages = [self._schedule.messages(self._group.rank, r) for r in range(self._info.rounds)]
        self._parts = [self._merge(self._schedule.parts(self._group.rank, r)) for r in range(self._info.rounds)]
        return self._info.sum

    def _merge(self, parts: Sequence[Part]) -> List[Part]:
        """Parts of a target that lie one after another in the bucket, as they do in the target, are one."""
        out: List[Part] = []
        for part in parts:
            last = out[-1] if out else None
            if last is not None and last.target == part.target:
                size = product(last.count) * BYTES[self._table.dtypes[self._names[part.tensor]]]
                d = next((d for d, n in enumerate(zip(last.first, part.first)) if n[0] != n[1]), 0)
                joint = (*last.count[:d], last.count[d] + part.count[d], *last.count[d + 1:]) if last.count else ()
                if joint and part.offset == last.offset + size and part.first[d] == last.first[d] + last.count[d] and \
                        product(last.count[:d]) == 1 and (*part.count[:d], *part.count[d + 1:]) == (*last.count[:d], *last.count[d + 1:]) \
                        and part.first[d + 1:] == last.first[d + 1:]:
                    out[-1] = last._replace(count=joint, last=part.last)
                    continue
            out.append(part)
        return out

    def _open_target(self) -> None:
        cuda = self._device.type == "cuda"
        with on_device(self._device):
            buckets = self._target.buckets(self._info.bucket_bytes, self._device)
            self._halves = [_Half(self._info, bucket, self._device) for bucket in buckets]
            # those that pack, send and place; messages go first where a kernel of the others could, too
            self._streams = [torch.cuda.Stream(self._device, priority=p) for p in (0, -1, 0)] if cuda else []
            self._source.lock(self._device)
            self._addresses = self._source.addresses(self._device)
            self._into = [w.into for w in self._wants if w.into is not None]
            self._places = [t.data_ptr() for t in self._into]
            self._rounds = Rounds(self._schedule, self._group.rank, self._device.index if cuda else None, self._addresses, self._places)
            # what the buckets hold is the same in every sync: views are made once
            self._deliveries = [[self._delivery(part, self._halves[number % HALVES].bucket) for part in row]
                                for number, row in enumerate(self._parts)]
        self._target.open([[(d, p.offset) for d, p in zip(row, parts)] for row, parts in zip(self._deliveries, self._parts)],
                          self.bucket_bytes)

    def _delivery(self, part: Part, bucket: torch.Tensor) -> Delivery:
        number = part.target - self._first_target
        name = self._names[part.tensor]
        dtype, shape = self._table.dtypes[name], self._table.shapes[name]
        flat = bucket[part.offset:part.offset + product(part.count) * BYTES[dtype]].view(TORCH[dtype])
        try:
            box = FOLD.unfold((part.first, part.count), shape)
        except ValueError as failure:
            raise _native.Error(f"{name}: {failure}") from None
        return Delivery(number, name, box, flat.view(box[1]), part.last)

    # ---- a sync --------------------------------------------------------------------------------

    @property
    def version(self) -> Optional[int]:
        """Step of the weights that this rank's target has, None before the first sync. Error while they are a mixture."""
        return self._target.version

    @property
    def info(self) -> Info:
        """Rounds, and bytes of this rank's buffers and messages."""
        return self._info

    def sync(self, step: int) -> Result:
        """Send the weights as they are now, and return when this rank's target has them. Errors name the operation, the tensors
        and the peer. If the target of this rank fails, the other ranks still finish, and the next sync may succeed; after a rank
        was stopped or lost, make a new process group and a new WeightSync."""
        if self._broken is not None:
            why = self._broken if self._broken == _CLOSED else f"an earlier sync failed ({self._broken})"
            raise _native.Error(f"sync of step {step}: {why}; make a new WeightSync")
        start = time.monotonic()
        run = _Run(self, step)
        try:
            with on_device(self._device):
                failure = run.all()
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            self._abort(self._broken, True)
            raise
        if failure is not None:
            self._abort(str(failure), False)
            if isinstance(failure, _native.Error):
                raise _native.Error(f"sync of step {step}: {failure}") from failure
            raise failure
        return Result(step, time.monotonic() - start, self._info.sent_bytes, self._info.received_bytes, self._info.own_bytes)

    def _between(self, sender: int, receiver: int, number: int) -> List[str]:
        """Names of tensors that may travel between two ranks in a round: those of the receiver's bucket, or all that it gets into
        memory, of which the sender has a part."""
        parts = self._schedule.parts(receiver, number)
        wanted = [(p.tensor, (p.first, p.count)) for p in parts or [t for t in self._targets if t.rank == receiver]]
        held = group_by_tensor(p for p in self._sources if p.rank == sender)
        return [self._names[tensor] for tensor, box in wanted
                if any(meet(box, (p.first, p.count)) is not None for p in held.get(tensor, []))]

    def _abort(self, why: str, lost: bool) -> None:
        with contextlib.suppress(_native.Error):
            self._target.abort(why, lost)

    def _bind(self) -> None:
        """Follow parameters whose memory changed."""
        addresses = self._source.addresses(self._device)
        places = [t.data_ptr() for t in self._into]
        if (addresses, places) != (self._addresses, self._places):
            self._rounds.bind(addresses, places)
            self._addresses, self._places = addresses, places

    def close(self) -> None:
        """Free the buffers and disconnect."""
        self._broken = self._broken or _CLOSED
        self._target.close()
        self._rounds.close()
        self._schedule.close()
        self._source.unlock()
        self._halves, self._deliveries = [], []
        self._wants, self._into = [], []  # memory of a receiver may be among them

    def __enter__(self) -> "WeightSync":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Run:
    """One sync. The library packs, sends and places rounds, on a GPU ahead of it; this hands over what a bucket holds, and sends
    messages where the library cannot. While the host waits for rounds of the past, it names what does not end."""

    def __init__(self, owner: WeightSync, step: int) -> None:
        self.owner = owner
        self.step = step
        self.rounds = owner._info.rounds
        self.failure: Optional[Exception] = None  # of the target: messages go on, the other ranks need them
        self.sums: Dict[int, List[torch.Tensor]] = {}
        self.cuda = owner._device.type == "cuda"

    def all(self) -> Optional[Exception]:
        own = self.owner
        own._bind()
        expected = self._expected() if own.check else None
        self._try(lambda: own._target.begin(self.step))
        streams = [s.cuda_stream for s in (*own._streams, torch.cuda.current_stream(own._device))] if self.cuda else [0] * 4
        own._rounds.begin([half.addresses for half in own._halves], streams, own._comm, own._target.releases, own.timeout)
        self._steps()
        if expected is not None and self.failure is None:
            self._try(lambda: self._compare(expected))
        self._try(lambda: own._target.end(self.step, {i: expected[self._key(i)] for i in range(len(own._wants))}
                                          if expected is not None else None))
        return self.failure

    def _try(self, call: Callable[[], Any]) -> None:
        if self.failure is None:
            try:
                call()
            except Exception as failure:
                self.failure = failure

    def _steps(self) -> None:
        step, calls = self.owner._rounds.step, {TAKE: self._hand_over, POST: self._post, RECEIVE: self._receive,
                                                RELEASE: self._release}
        late = 0.0
        while True:
            action, number, error = step()
            if error is not None:
                raise self._lost(number, self.owner._messages[number], error)
            if action == DONE:
                return
            if action != WAIT:
                late = 0.0
                calls[action](number)
                continue
            late = late or time.monotonic() + self.owner.timeout
            if time.monotonic() > late:
                raise self._lost(number, self.owner._messages[number], None, True)

    def _on(self, stream: int) -> Any:
        return torch.cuda.stream(self.owner._streams[stream]) if self.cuda else contextlib.nullcontext()

    def _hand_over(self, number: int) -> None:
        own = self.owner
        parts = own._deliveries[number]
        if self.failure is not None:
            return
        if own.check:
            for part in parts:
                self.sums.setdefault(part.want, []).append(bit_sum(part.tensor, part.box[0], own._table.shapes[part.name]))
        self._try(lambda: own._target.deliver(number, number % HALVES, parts))

    def _release(self, number: int) -> None:
        with self._on(2):
            self._try(lambda: self.owner._target.release(number % HALVES))

    def _post(self, number: int) -> None:
        own, half, messages = self.owner, self.owner._halves[number % HALVES], self.owner._messages[number]
        try:
            with self._on(1):
                if number not in half.operations:
                    half.operations[number] = own._group.operations(messages, half.send, half.receive)
                half.works = own._group.post(messages, half.operations[number])
        except RuntimeError as failure:
            raise self._lost(number, messages, failure) from failure

    def _receive(self, number: int) -> None:
        """Wait for a round's messages: the host for gloo, the stream that places for NCCL."""
        half = self.owner._halves[number % HALVES]
        end = time.monotonic() + self.owner.timeout
        with self._on(2):
            for work, messages in half.works:
                try:
                    if self.cuda:
                        work.wait()
                    elif work.wait(timedelta(seconds=max(end - time.monotonic(), 0.001))) is False:
                        raise RuntimeError("it did not end")
                except RuntimeError as failure:
                    raise self._lost(number, messages, failure, time.monotonic() >= end) from failure
        half.works = []

    def _lost(self, number: int, messages: Sequence[Message], failure: Optional[Exception], late: bool = False) -> _native.Error:
        own = self.owner
        what = []
        for m in messages[:4]:
            names = own._between(own._group.rank, m.peer, number) if m.sends else own._between(m.peer, own._group.rank, number)
            span = " to ".join(dict.fromkeys([names[0], names[-1]])) if names else "weights"
            what.append(f"{'sending' if m.sends else 'receiving'} {span} {'to' if m.sends else 'from'} rank {m.peer}")
        what += ["..."] if len(messages) > 4 else []
        why = f"no progress in {own.timeout:g} s" if late or failure is None else str(failure).strip().splitlines()[0]
        return _native.Error(f"sync of step {self.step}: round {number + 1} of {self.rounds}, {', '.join(what) or 'placing'}: {why}")

    # ---- sums ----------------------------------------------------------------------------------

    def _key(self, want: int) -> Tuple[str, Box]:
        return self.owner._boxes[self.owner._first_target + want]

    def _expected(self) -> Dict[Tuple[str, Box], int]:
        """Sums of all boxes that targets get, by the sources: each element by the lowest rank that has it, added over ranks."""
        own = self.owner
        keys = list(dict.fromkeys(own._boxes))
        boxes: Dict[int, List[Box]] = {}
        for name, box in keys:
            boxes.setdefault(own._index[name], []).append(box)
        found: Dict[Tuple[str, Box], List[torch.Tensor]] = {key: [] for key in keys}
        held = group_by_tensor(own._sources)
        self.pieces = group_by_tensor(p for p in own._sources if p.rank == own._group.rank)
        for tensor, wanted in boxes.items():
            name = self.owner._names[tensor]
            for part in first_holders([(p.rank, (p.first, p.count)) for p in held[tensor]], own._group.rank):
                for box in wanted:
                    inner = meet(part, box)
                    if inner is not None:
                        found[name, box] += self._source_sums(tensor, inner)
        values = own._group.add([bit_value(found[key]) for key in keys])
        return dict(zip(keys, values))

    def _source_sums(self, tensor: int, box: Box) -> List[torch.Tensor]:
        """Of a box that lies in the pieces of this rank."""
        own = self.owner
        name = own._names[tensor]
        shape = FOLD.values(own._table.shapes[name])
        sums = []
        for piece in self.pieces[tensor]:
            inner = meet((piece.first, piece.count), box)
            if inner is not None:
                offset = piece.offset + sum((f - p) * s for f, p, s in zip(inner[0], piece.first, piece.stride))
                view = own._source.view(piece.memory, inner[1], piece.stride, offset)
                sums.append(bit_sum(view.to(TORCH[own._table.dtypes[name]]), inner[0], shape))
        return sums

    def _compare(self, expected: Dict[Tuple[str, Box], int]) -> None:
        own = self.owner
        for i, want in enumerate(own._wants):
            shape = own._table.shapes[want.name]
            sums = self.sums.get(i, []) if want.into is None else [bit_sum(want.into, want.first, shape)]
            if bit_value(sums) != expected[self._key(i)]:
                raise _native.Error(f"{want.name} {show((want.first, want.count))}: the target's bits differ from the source's")
