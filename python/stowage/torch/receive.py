# SPDX-License-Identifier: Apache-2.0
"""Weights to another process on the same GPU (or host), through shared memory that is opened once: buckets of the sender, or
the receiver's own weights. A Unix socket carries what happens.

Messages are JSON after a length of four bytes. Through buckets:

    sender                                     receiver
    {"tensors", "aliases", "device"}      ->
                                          <-   {"wants": [[name, first, count], ...]}
    {"rounds", "bytes", "buckets"}        ->                       rounds: what each bucket holds; buckets: two handles
                                          <-   {"ready": true}     on a GPU with handles of two events ("taken")
    {"begin": step}                       ->                       of every sync
    {"round": number, "half": 0 or 1}     ->
                                          <-   {"done": number}    the bucket may be overwritten; on a GPU after its event
    {"end": step, "sums": [...]}          ->                       sums: if asked for
                                          <-   {"done": step}

Into the receiver's weights (Receiver(direct=True)):

                                          <-   {"wants": ..., "memory": handles, "places": [[memory, offset, strides], ...]}
    {"rounds": null}                      ->
                                          <-   {"ready": true}
    {"begin": step}                       ->                       of every sync
                                          <-   {"ready": step}     the receiver's work on the GPU is done
    {"end": step, "sums": [...]}          ->
                                          <-   {"done": step}

Both sides may answer {"error": text} instead. Through buckets on a GPU neither side waits for it in a round: each bucket has an event
behind the work that fills it, and one behind the work that takes it, and streams of the other process wait for these.
"""

from __future__ import annotations

import array
import json
import os
import socket
import stat
import struct
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from .. import _native
from .boxes import BYTES, TORCH, Slice, Want, Wanted, bit_sum, product, show, wants_of
from .shared import (MemoryTable, gpu_name, host_bucket, new_events, open_event, open_places, open_shared, share, share_events,
                     share_places)
from .target import Delivery, Table, Target, Versioned
from .tensors import on_device

LONGEST = 1 << 30  # bytes of a message
MOST_DESCRIPTORS = 200  # in a message: the kernel takes 253


class Refused(_native.Error):
    """The other side said no."""


class Channel:
    """Messages over a connected socket. peer: for errors."""

    def __init__(self, connection: socket.socket, peer: str, timeout: float) -> None:
        self.connection = connection
        self.peer = peer
        self.timeout = timeout

    def send(self, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        self.connection.settimeout(self.timeout)
        try:
            if descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                self.connection.sendmsg([b"\0"], [rights])
            self.connection.sendall(struct.pack(">I", len(data)) + data)
        except OSError as failure:
            raise _native.Error(f"{self.peer}: {self._text(failure)}") from failure

    def receive(self, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Waits for the next message; timeout: None for the channel's, negative to wait for ever."""
        wait = self.timeout if timeout is None else timeout
        end = None if wait < 0 else time.monotonic() + wait
        size = struct.unpack(">I", self._bytes(4, end, wait))[0]
        if size > LONGEST:
            raise _native.Error(f"{self.peer}: found a message of {size} bytes, expected at most {LONGEST}")
        try:
            message = json.loads(self._bytes(size, None if end is None else max(end, time.monotonic() + self.timeout), wait))
        except ValueError as failure:
            raise _native.Error(f"{self.peer}: a message that is not JSON ({failure})") from None
        if "error" in message:
            raise Refused(f"{self.peer}: {message['error']}")
        return message

    def descriptors(self, n: int) -> List[int]:
        """Descriptors that the other side sends before its next message."""
        room = socket.CMSG_SPACE(n * array.array("i").itemsize)
        self.connection.settimeout(self.timeout)
        try:
            _, rights, _, _ = self.connection.recvmsg(1, room)
        except OSError as failure:
            raise _native.Error(f"{self.peer}: {self._text(failure)}") from failure
        found = array.array("i")
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found.frombytes(data[:len(data) - len(data) % found.itemsize])
        if len(found) != n:
            raise _native.Error(f"{self.peer}: found {len(found)} descriptors, expected {n}")
        return list(found)

    def send_descriptors(self, descriptors: Sequence[int]) -> None:
        for i in range(0, len(descriptors), MOST_DESCRIPTORS):
            self.send({"descriptors": True}, descriptors[i:i + MOST_DESCRIPTORS])

    def take_descriptors(self, n: int) -> List[int]:
        """The descriptors of one message."""
        out = self.descriptors(n)
        self.receive()
        return out

    def _bytes(self, n: int, end: Optional[float], wait: float) -> bytes:
        out = bytearray()
        while len(out) < n:
            self.connection.settimeout(None if end is None else max(end - time.monotonic(), 0.001))
            try:
                chunk = self.connection.recv(min(n - len(out), 1 << 20))
            except socket.timeout:
                raise _native.Error(f"{self.peer}: no answer in {wait:g} s") from None
            except OSError as failure:
                raise _native.Error(f"{self.peer}: {self._text(failure)}") from failure
            if not chunk:
                raise _native.Error(f"{self.peer}: closed the connection (it ended, or was killed)")
            out += chunk
        return bytes(out)

    def _text(self, failure: OSError) -> str:
        if isinstance(failure, socket.timeout):
            return f"no answer in {self.timeout:g} s"
        return f"{failure.strerror or failure} (it ended, or was killed)"

    def close(self) -> None:
        self.connection.close()


class Process(Target):
    """A process on the same GPU, or on the same host if the weights are synced in host memory, that holds a Receiver of
    the same address (the path of a Unix socket, one per receiver). Each rank has a target of its own."""

    releases = True

    def __init__(self, address: str) -> None:
        self.address = os.fspath(address)
        self._channel: Optional[Channel] = None
        self._wants: List[Want] = []
        self._direct = False  # into the receiver's weights
        self._pending: Dict[int, int] = {}
        self._descriptors: List[int] = []
        self._buckets: List[torch.Tensor] = []
        self._filled: List[Any] = []  # torch.cuda.Event: of buckets on a GPU
        self._taken: List[Any] = []

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            raise _native.Error(f"receiver {self.address}: not connected; make a new WeightSync")
        return self._channel

    def connect(self, table: Table, device: torch.device, timeout: float) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            try:
                if stat.S_ISSOCK(os.stat(self.address).st_mode):
                    os.unlink(self.address)
            except FileNotFoundError:
                pass
            try:
                listener.bind(self.address)
                os.chmod(self.address, 0o600)
                listener.listen(1)
                listener.settimeout(timeout)
                connection, _ = listener.accept()
            except socket.timeout:
                raise _native.Error(f"receiver {self.address}: none connected in {timeout:g} s") from None
            except OSError as failure:
                raise _native.Error(f"receiver {self.address}: {failure.strerror or failure}") from failure
            os.unlink(self.address)
        finally:
            listener.close()
        self._channel = Channel(connection, f"receiver {self.address}", timeout)
        self._channel.send({"tensors": [[n, table.shapes[n], table.dtypes[n]] for n in table.shapes], "aliases": table.aliases,
                            "device": gpu_name(device) if device.type == "cuda" else "host"})
        answer = self._channel.receive()
        self._direct = "places" in answer
        into: Sequence[Optional[torch.Tensor]] = [None] * len(answer["wants"])
        if self._direct:
            dtypes = [TORCH[table.dtypes[name]] for name, _, _ in answer["wants"]]
            counts = [tuple(count) for _, _, count in answer["wants"]]
            descriptors = [d for n in answer["descriptors"] for d in self._channel.take_descriptors(n)]
            into = open_places(MemoryTable(answer["memory"], answer["places"], descriptors), dtypes, counts, device)
        self._wants = [Want(name, tuple(first), tuple(count), to) for (name, first, count), to in zip(answer["wants"], into)]

    def wants(self, table: Table, rank: int, world: int) -> List[Want]:
        return self._wants

    def buckets(self, size: int, device: torch.device) -> List[torch.Tensor]:
        if device.type == "cuda" or self._direct:
            self._buckets = super().buckets(size, device)
        else:
            pairs = [host_bucket(size) for _ in range(2)]
            self._buckets = [bucket for bucket, _ in pairs]
            self._descriptors = [descriptor for _, descriptor in pairs]
        return self._buckets

    def open(self, rounds: Sequence[Sequence[Tuple[Delivery, int]]], bucket_bytes: int) -> None:
        if self._direct:
            self.channel.send({"rounds": None})
            self.channel.receive()
            return
        parts = [[[p.want, p.box[0], p.box[1], offset] for p, offset in row] for row in rounds]
        message: Dict[str, Any] = {"rounds": parts, "bytes": self._buckets[0].numel()}
        if self._descriptors:
            self.channel.send(message)
            self.channel.send({"buckets": "descriptors"}, self._descriptors)
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors = []
        else:
            self.channel.send(message)
            self._filled = new_events()
            self.channel.send({"buckets": [share(b) for b in self._buckets], "filled": share_events(self._filled, self._buckets[0].device)})
        self._taken = [open_event(handle, self._buckets[0].device) for handle in self.channel.receive().get("taken", [])]

    def begin(self, step: int) -> None:
        super().begin(step)
        self._pending.clear()
        self.channel.send({"begin": step})
        if self._direct:
            self.channel.receive()

    def release(self, half: int) -> None:
        number = self._pending.pop(half, None)
        if number is None:
            return
        done = self.channel.receive().get("done")
        if done != number:
            raise _native.Error(f"{self.channel.peer}: answered round {done}, expected {number}")
        if self._taken:
            torch.cuda.current_stream(self._buckets[0].device).wait_event(self._taken[half])

    def deliver(self, number: int, half: int, parts: Sequence[Delivery]) -> None:
        if parts:
            if self._filled:
                self._filled[half].record(torch.cuda.current_stream(self._buckets[0].device))
            self.channel.send({"round": number, "half": half})
            self._pending[half] = number

    def end(self, step: int, sums: Optional[Dict[int, int]]) -> None:
        for half, _ in sorted(self._pending.items(), key=lambda pair: pair[1]):
            self.release(half)
        message: Dict[str, Any] = {"end": step}
        if sums is not None:
            message["sums"] = [sums[i] for i in range(len(self._wants))]
        self.channel.send(message)
        self.channel.receive()
        super().end(step, sums)

    def abort(self, why: str, lost: bool) -> None:
        super().abort(why, lost)
        try:
            self.channel.send({"error": why})
        except _native.Error:
            pass
        self.close()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self._wants = []  # the receiver's memory


class Receiver(Versioned):
    """The receiving side of Process, in an inference worker: small, without libstowage.

    params: the worker's own parameter -> its memory: a tensor (the sender's tensor of that name, whole), a Slice, or a list of
    slices (fused tensors). It waits until the sender connects. `receive` takes one sync and returns its step; call it from the
    worker's hook for new weights. Error: a tensor that the sender lacks or cuts otherwise, another dtype, a sender that failed or
    ended. After an error `version` raises until a later sync ends well.

    direct=True: the sender writes into the weights themselves while `receive` waits; there are no buckets and no copies. Their memory
    is shared for that: not that of a pool that sleeps (vLLM's sleep mode), and on the host that of Tensor.share_memory_().
    """

    def __init__(self, address: str, params: Mapping[str, Wanted], *, direct: bool = False, timeout: float = 300.0) -> None:
        self.address = os.fspath(address)
        self._direct = direct
        self._params = dict(params)
        self._device = self._common_device()
        self._channel = Channel(self._connect(timeout), f"sender {self.address}", timeout)
        try:
            self._open()
        except BaseException:
            self._channel.close()
            raise

    def _common_device(self) -> torch.device:
        devices: Dict[torch.device, str] = {}
        for name, value in self._params.items():
            for piece in [value] if isinstance(value, (torch.Tensor, Slice)) else value:
                tensor = piece.into if isinstance(piece, Slice) else piece
                devices.setdefault(tensor.device, name)
        if len(devices) != 1:
            found = ", ".join(f"{device} ({name})" for device, name in devices.items()) or "none"
            raise _native.Error(f"receiver {self.address}: found parameters on {found}, expected one device")
        return next(iter(devices))

    def _connect(self, timeout: float) -> socket.socket:
        end = time.monotonic() + timeout
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self.address)
                return connection
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if time.monotonic() > end:
                    raise _native.Error(f"sender {self.address}: none in {timeout:g} s") from None
                time.sleep(0.02)

    def _open(self) -> None:
        hello = self._channel.receive()
        self._shapes = {name: tuple(shape) for name, shape, _ in hello["tensors"]}
        self._dtypes = {name: dtype for name, _, dtype in hello["tensors"]}
        try:
            own = gpu_name(self._device) if self._device.type == "cuda" else "host"
            if own != hello["device"]:
                raise _native.Error(f"found parameters on {own}, expected them where the sender's buckets are, on {hello['device']}")
            self._wants = wants_of(self._params, self._shapes, hello["aliases"], self._dtypes)
            shared = share_places([w.into for w in self._wants], self._device) if self._direct else None
        except _native.Error as failure:
            self._channel.send({"error": str(failure)})
            raise
        answer: Dict[str, Any] = {"wants": [[w.name, w.first, w.count] for w in self._wants]}
        if shared is not None:
            n = len(shared.descriptors)
            answer.update(memory=shared.memory, places=shared.places,
                          descriptors=[min(MOST_DESCRIPTORS, n - i) for i in range(0, n, MOST_DESCRIPTORS)])
        self._channel.send(answer)
        if shared is not None:
            self._channel.send_descriptors(shared.descriptors)
        layout = self._channel.receive()
        self._filled: List[Any] = []
        self._taken: List[Any] = []
        if self._direct:
            self._channel.send({"ready": True})
        else:
            self._open_buckets(layout)

    def _open_buckets(self, layout: Mapping[str, Any]) -> None:
        size = layout["bytes"]
        try:
            if self._device.type == "cuda":
                with on_device(self._device):
                    shared = self._channel.receive()
                    self._buckets = [open_shared(h, size, self._device) for h in shared["buckets"]]
                    self._filled = [open_event(handle, self._device) for handle in shared["filled"]]
                    self._taken = new_events()
            else:
                descriptors = self._channel.descriptors(2)
                self._channel.receive()
                self._buckets = [host_bucket(size, descriptor)[0] for descriptor in descriptors]
                for descriptor in descriptors:
                    os.close(descriptor)
        except (RuntimeError, OSError) as failure:
            if not isinstance(failure, _native.Error):
                self._channel.send({"error": f"the buckets cannot be opened: {failure}"})
            raise
        self._copies = [self._copies_of(number % 2, parts) for number, parts in enumerate(layout["rounds"])]
        self._channel.send({"ready": True, "taken": share_events(self._taken, self._device)})

    def _copies_of(self, half: int, parts: Sequence[Any]) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
        """Memory that a round's parts go to, and where they lie in the bucket."""
        into, pieces = [], []
        for index, first, count, offset in parts:
            want = self._wants[index]
            dtype = self._dtypes[want.name]
            pieces.append(self._buckets[half][offset:offset + product(count) * BYTES[dtype]].view(TORCH[dtype]).view(count))
            into.append(want.into[tuple(slice(f - w, f - w + n) for f, w, n in zip(first, want.first, count))])
        return into, pieces

    def receive(self, timeout: Optional[float] = None) -> int:
        """Take one sync; returns its step. timeout: seconds until it begins, None to wait for ever."""
        step = int(self._channel.receive(-1.0 if timeout is None else timeout)["begin"])
        self._begin(step)
        try:
            with on_device(self._device):
                if self._direct:
                    if self._device.type == "cuda":  # nothing reads the weights from here on
                        torch.cuda.synchronize(self._device)
                    self._channel.send({"ready": step})
                while True:
                    message = self._channel.receive()
                    if "end" in message:
                        break
                    self._take(int(message["round"]), int(message["half"]))
                if self._device.type == "cuda":  # the sender has waited for its work
                    torch.cuda.current_stream(self._device).synchronize()
                if "sums" in message:
                    self._compare(message["sums"])
            self._end()
            self._channel.send({"done": step})
        except BaseException as failure:
            self._fail(str(failure))
            try:
                self._channel.send({"error": str(failure)})
            except _native.Error:
                pass
            raise
        return step

    def _take(self, number: int, half: int) -> None:
        if self._filled:
            torch.cuda.current_stream(self._device).wait_event(self._filled[half])
        # One copy for each tensor: copy engines work beside the sender's kernels. A kernel of this process would wait for its turn.
        for to, piece in zip(*self._copies[number]):
            to.copy_(piece)
        if self._taken:
            self._taken[half].record(torch.cuda.current_stream(self._device))
        self._channel.send({"done": number})

    def _compare(self, sums: Sequence[int]) -> None:
        for want, expected in zip(self._wants, sums):
            if int(bit_sum(want.into, want.first, self._shapes[want.name])) != expected:
                raise _native.Error(f"{want.name} {show((want.first, want.count))}: the receiver's bits differ from the sender's")

    def close(self) -> None:
        self._channel.close()
        self._buckets = []
