# SPDX-License-Identifier: Apache-2.0
"""Weight syncs of one process: callbacks, another process, a folder, versions, errors."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

import torch

import stowage
from stowage import _native
from stowage.torch import Callback, Folder, Process, Ranks, Slice, WeightSync, column_slice, fused, load
from stowage.torch.boxes import bit_sum, first_holders, held, subtract

MIB = 1 << 20

RECEIVER = """
import os, signal, sys
import torch
import stowage
from stowage.torch import Receiver, column_slice, fused

address, what = sys.argv[1:3]
torch.set_num_threads(1)
bf16 = torch.bfloat16
params = {"a.weight": torch.zeros(1500, 700, dtype=bf16), "half": column_slice("b.weight", torch.zeros(10, 8, dtype=bf16), 1),
          "two": fused(torch.zeros(12, 8, dtype=bf16), [("b.weight", 10, 0), ("c.weight", 2, 1)]),
          "head": column_slice("b.weight", torch.full((16, 8), 7.0, dtype=bf16), 1, pad=True),
          "beyond": column_slice("b.weight", torch.full((16, 8), 7.0, dtype=bf16), 2, pad=True)}  # padding alone
if what == "lacks":
    params["d.weight"] = torch.zeros(1, dtype=bf16)
for value in params.values() if what in ("direct", "direct killed") else []:
    for piece in value if isinstance(value, list) else [value]:
        getattr(piece, "into", piece).share_memory_()
try:
    receiver = Receiver(address, params, direct=what.startswith("direct"), timeout=20)
except stowage.Error as failure:
    print("refused:", failure)
    sys.exit(0)
for step in [1, 2, 3]:
    if step == 2 and what in ("killed", "stopped", "refuses"):
        old = receiver._take
        def take(number, half):
            if number == 2 and what != "refuses":
                os.kill(os.getpid(), signal.SIGKILL if what == "killed" else signal.SIGSTOP)
            if number == 2:
                raise RuntimeError("its memory is not there")
            old(number, half)
        receiver._take = take
    if step == 2 and what == "direct killed":
        send = receiver._channel.send
        def answer(message):
            send(message)
            os.kill(os.getpid(), signal.SIGKILL)
        receiver._channel.send = answer
    try:
        assert receiver.receive(20) == step and receiver.version == step
        torch.save({"a": params["a.weight"], "half": params["half"].into, "two": [s.into for s in params["two"]],
                    "head": params["head"].into, "beyond": params["beyond"].into}, f"{address}.new")
        os.rename(f"{address}.new", f"{address}.{step}")
        print("step", step, flush=True)
    except (RuntimeError, stowage.Error) as failure:
        try:
            print("version", receiver.version)
        except stowage.Error as mixture:
            print("no version:", mixture, flush=True)
        break
"""


def model() -> list:
    torch.manual_seed(3)
    return [("a.weight", torch.randn(1500, 700)), ("b.weight", torch.randn(20, 8)), ("c.weight", torch.randn(4, 8))]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(1003, 24)
        self.experts = torch.nn.Parameter(torch.randn(5, 24, 7))
        self.register_buffer("bias", torch.randn(5))
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.head = torch.nn.Linear(24, 1003, bias=False)
        self.head.weight = self.embed.weight


def needs_native(case: type) -> type:
    return unittest.skipUnless(_native.load().has("stw_plan_sync"), "libstowage without weight syncs")(case)


class Boxes(unittest.TestCase):
    def test_shards_are_those_of_chunk(self) -> None:
        for n in [1, 5, 8, 13]:
            for world in [1, 2, 3, 4]:
                rows = list(torch.arange(n).chunk(world))
                for rank in range(world):
                    expected = rows[rank].tolist() if rank < len(rows) else []
                    found = held((n, 2), (world,), (rank,), [("S", 0)])[0]
                    self.assertEqual([i for a, e in found for i in range(a, e)], expected)

    def test_what_is_left(self) -> None:
        box, hole = ((0, 0), (6, 7)), ((2, 1), (3, 4))
        cover = torch.zeros(6, 7)
        for first, count in subtract(box, hole):
            cover[first[0]:first[0] + count[0], first[1]:first[1] + count[1]] += 1
        cover[2:5, 1:5] += 1
        self.assertTrue(torch.equal(cover, torch.ones(6, 7)))
        self.assertEqual(first_holders([(0, box), (1, box)], 1), [])

    def test_sums_see_every_change(self) -> None:
        tensor = torch.randn(37, 11).bfloat16()
        total = bit_sum(tensor, (0, 0), (37, 11))
        parts = sum(bit_sum(tensor[a:a + 10], (a, 0), (37, 11)) for a in range(0, 37, 10))
        self.assertEqual(total, parts)
        index = torch.arange(37 * 11)
        bits = tensor.view(torch.int16).flatten().long()
        odd = 0x9E3779B97F4A7C15 - (1 << 64)
        self.assertEqual(total, (bits * (index * odd + 1)).sum())
        for box in [((0,), (37 * 11,)), ((0, 0, 0), (1, 37, 11))]:
            self.assertEqual(total, bit_sum(tensor.reshape(box[1]), box[0], box[1]))
        swapped = tensor.clone()
        swapped[3], swapped[4] = tensor[4], tensor[3]
        self.assertNotEqual(total, bit_sum(swapped, (0, 0), (37, 11)))
        tensor.view(torch.int16)[36, 10] ^= 1
        self.assertNotEqual(total, bit_sum(tensor, (0, 0), (37, 11)))


@needs_native
class OneProcess(unittest.TestCase):
    def test_callback(self) -> None:
        module = Tied()
        for bucket in [MIB, 64 * MIB]:
            for dtype in [torch.bfloat16, torch.float16, None]:
                got: dict = {}
                with WeightSync(module, Callback(lambda rows: got.update((n, t.clone()) for n, t in rows)), dtype=dtype,
                                bucket_bytes=bucket, check=True) as sync:
                    self.assertIsNone(sync.version)
                    for step in [4, 9]:
                        with torch.no_grad():
                            module.embed.weight.mul_(1.5)
                        result = sync.sync(step)
                        self.assertEqual((sync.version, result.step, result.sent_bytes), (step, step, 0))
                        self.assertEqual(list(got), ["experts", "bias", "embed.weight"])
                        for name, tensor in got.items():
                            whole = dict([*module.named_parameters(), *module.named_buffers()])[name]
                            self.assertTrue(torch.equal(tensor, whole.detach().to(dtype or whole.dtype)), name)

    def test_slices_and_large_tensors(self) -> None:
        given = [("large", torch.randn(3000, 400)), ("small", torch.randn(64))]
        with self.assertRaisesRegex(TypeError, "target: found str, expected Callback"):
            WeightSync(given, "folder")
        whole: dict = {}
        with WeightSync(given, Callback(lambda rows: whole.update(rows)), bucket_bytes=MIB, dtype=None) as sync:
            self.assertLessEqual(sync.info.bucket_bytes, MIB)
            sync.sync(1)
            self.assertTrue(torch.equal(whole["large"], given[0][1]) and torch.equal(whole["small"], given[1][1]))
        with self.assertRaisesRegex(stowage.Error, "sync of step 2: the WeightSync was closed; make a new WeightSync"):
            sync.sync(2)
        got = torch.zeros(3000, 400)
        names = []

        def take(rows: list) -> None:
            for name, tensor, (first, count) in rows:
                names.append(name)
                if name == "large":
                    got[first[0]:first[0] + count[0], first[1]:first[1] + count[1]] += tensor
        with WeightSync(given, Callback(take, split=True), bucket_bytes=MIB, dtype=None) as sync:
            sync.sync(1)
        self.assertTrue(torch.equal(got, given[0][1]) and names.count("large") > 1)
        slices = {"large": [((2999, 1), (1, 5)), ((0, 0), (2, 400))]}
        rows: list = []
        with WeightSync(given, Callback(lambda r: rows.extend((n, t.clone()) for n, t in r), slices=slices), dtype=None) as sync:
            sync.sync(1)
        self.assertEqual([n for n, _ in rows], ["large", "large"])
        self.assertTrue(any(torch.equal(t, given[0][1][2999:, 1:6]) for _, t in rows))
        for wrong, text in [({"none": [((0,), (1,))]}, "none: the source has no such tensor"),
                            ({"large": [((0, 0), (3001, 1))]}, r"large: found the slice \[0:3001, 0:1\]")]:
            with self.assertRaisesRegex(stowage.Error, text):
                WeightSync(given, Callback(print, slices=wrong))

    def test_a_callback_that_fails(self) -> None:
        calls = []

        def take(rows: list) -> None:
            calls.append(rows)
            if len(calls) == 2:
                raise KeyError("no such parameter")
        target = Callback(take)
        with WeightSync(model(), target) as sync:
            sync.sync(1)
            with self.assertRaises(KeyError):
                sync.sync(2)
            with self.assertRaisesRegex(stowage.Error, "mixture of step 1 and step 2.*no such parameter"):
                print(target.version)
            sync.sync(3)
            self.assertEqual(target.version, 3)

    def test_a_flipped_bit_is_found(self) -> None:
        class Flips(Callback):
            def begin(self, step: int) -> None:
                super().begin(step)
                given[0][1][3, 5] += 1  # after the source's sums were taken

        given = model()
        with WeightSync(given, Flips(lambda rows: None), check=True) as sync:
            with self.assertRaisesRegex(stowage.Error, r"a.weight \[0:1500, 0:700\]: the target's bits differ"):
                sync.sync(1)

    def test_memory(self) -> None:
        given = model()
        out = torch.zeros(22, 8, dtype=torch.bfloat16)
        rows = {"f": fused(out, [("b.weight", 20, 0), ("c.weight", 2, 1)])}
        with WeightSync(given, Ranks(rows), check=True) as sync:
            sync.sync(1)
            given[1][1].mul_(2)
            sync.sync(2)
        self.assertTrue(torch.equal(out, torch.cat([given[1][1], given[2][1][2:]]).bfloat16()))
        for wrong, text in [({"x": torch.zeros(20, 8)}, "x: the sender has no tensor x"),
                            ({"b.weight": torch.zeros(20, 8)}, "b.weight: the receiver has torch.float32, b.weight travels in"),
                            ({"x": column_slice("b.weight", torch.zeros(15, 8).bfloat16(), 1)}, r"wants \[15:30, 0:8\]"),
                            ({"x": Slice("b.weight", torch.zeros(5, 8).bfloat16())}, r"receiver has shape \(5, 8\)")]:
            with self.assertRaisesRegex(stowage.Error, text):
                WeightSync(given, Ranks(wrong))

    def test_refused_sources(self) -> None:
        for given, text in [([("a", torch.ones(2, dtype=torch.int32))], "a: found .*int32, expected"), ([("a", torch.ones(0))], "a: found shape"),
                            ([("a", torch.ones(2)), ("a", torch.ones(3))], "a: found two tensors"),
                            ([("a", torch.ones(2, device="meta"))], "a: found a meta tensor")]:
            with self.assertRaisesRegex(stowage.Error, text):
                WeightSync(given, Callback(print))
        module = torch.nn.Linear(3, 3)
        with WeightSync(module, Callback(lambda rows: None)) as sync:
            module.weight = torch.nn.Parameter(torch.ones(4, 4))
            with self.assertRaisesRegex(stowage.Error, "weight: shape.* changed after set-up"):
                sync.sync(1)

    def test_parameters_that_are_exchanged(self) -> None:
        """Their own memory is read, although a look at all of them is not taken before every sync."""
        class Two(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)
                self.register_buffer("scale", torch.ones(3))

        def check() -> None:
            sync.sync(1)
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                self.assertTrue(torch.equal(got[name], tensor.detach()), name)

        module = Two()
        got: dict = {}
        with WeightSync(module, Callback(lambda rows: got.update((n, t.clone()) for n, t in rows)), dtype=None) as sync:
            check()
            self.assertTrue(sync._source.is_unchanged())
            with torch.no_grad():
                module.first.weight.mul_(3)
            self.assertTrue(sync._source.is_unchanged())
            check()
            for change in [lambda: setattr(module.first, "weight", torch.nn.Parameter(torch.randn(4, 5))),
                           lambda: setattr(module, "second", torch.nn.Linear(4, 3)),
                           lambda: setattr(module.second.bias, "data", torch.randn(3)),
                           lambda: setattr(module, "scale", torch.randn(3))]:
                change()
                self.assertFalse(sync._source.is_unchanged())
                check()
            module.first.weight.data = module.first.weight.data.view(5, 4)
            with self.assertRaisesRegex(stowage.Error, "first.weight: shape.* changed after set-up"):
                sync.sync(2)

    def test_folder(self) -> None:
        module = Tied()
        with tempfile.TemporaryDirectory() as top:
            like, path = os.path.join(top, "like"), os.path.join(top, "out")
            os.mkdir(like)
            with open(os.path.join(like, "config.json"), "w", encoding="utf-8") as file:
                json.dump({"hidden_size": 24}, file)
            with WeightSync(module, Folder(path, like=like, file_bytes=20000), dtype=None, check=True) as sync:
                for step in [1, 2]:
                    with torch.no_grad():
                        module.experts.mul_(3)
                    sync.sync(step)
            names = sorted(os.listdir(path))
            self.assertEqual(names, ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                     "model.safetensors.index.json"])
            self.assertEqual(sorted(os.listdir(top)), ["like", "out"])
            with open(os.path.join(path, "model.safetensors.index.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["metadata"]["step"], 2)
            other = Tied()
            self.assertEqual(load(other, path, strict=False).missing, ["steps"])
            for a, b in zip(module.parameters(), other.parameters()):
                self.assertTrue(torch.equal(a, b))
            with WeightSync(module, Folder(os.path.join(top, "{step}"))) as sync:
                sync.sync(5)
            self.assertEqual(os.listdir(os.path.join(top, "5")), ["model.safetensors"])
            with self.assertRaisesRegex(stowage.Error, "something else than a flat folder of safetensors"):
                WeightSync(module, Folder(top))


@needs_native
class AnotherProcess(unittest.TestCase):
    """The receiver is a process of its own, on the host."""

    def start(self, folder: str, what: str) -> tuple:
        address = os.path.join(folder, "socket")
        script = os.path.join(folder, "receiver.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(RECEIVER))
        child = subprocess.Popen([sys.executable, "-W", "ignore", script, address, what], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, universal_newlines=True)

        def end() -> None:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.communicate()
        self.addCleanup(end)
        return address, child

    def test_slices_of_every_step(self) -> None:
        for what in ["whole", "direct"]:
            with self.subTest(what=what):
                self.slices_of_every_step(what)

    def slices_of_every_step(self, what: str) -> None:
        given = model()
        with tempfile.TemporaryDirectory() as folder:
            address, child = self.start(folder, what)
            with WeightSync(given, Process(address), bucket_bytes=MIB, check=True, timeout=20, device="cpu") as sync:
                for step in [1, 2, 3]:
                    for _, tensor in given:
                        tensor.mul_(1.25)
                    sync.sync(step)
                    self.assertEqual(sync.version, step)
                    while not os.path.exists(f"{address}.{step}") and child.poll() is None:
                        time.sleep(0.01)
                    got = torch.load(f"{address}.{step}")
                    a, b, c = (t.bfloat16() for _, t in given)
                    self.assertTrue(torch.equal(got["a"], a) and torch.equal(got["half"], b[10:]))
                    self.assertTrue(torch.equal(got["two"][0], b[:10]) and torch.equal(got["two"][1], c[2:]))
                    self.assertTrue(torch.equal(got["head"][:4], b[16:]) and bool((got["head"][4:] == 7).all()))
                    self.assertTrue(bool((got["beyond"] == 7).all()))
            self.assertEqual(child.communicate(timeout=20)[0].splitlines(), ["step 1", "step 2", "step 3"])
            self.assertFalse(os.path.exists(address))

    def test_receivers_that_refuse_die_or_stop(self) -> None:
        for what, text in [("refuses", "its memory is not there"), ("killed", "it ended, or was killed"), ("stopped", "no answer in 3 s")]:
            with self.subTest(what=what), tempfile.TemporaryDirectory() as folder:
                address, child = self.start(folder, what)
                target = Process(address)
                sync = WeightSync(model(), target, bucket_bytes=MIB, timeout=20, device="cpu")
                sync.sync(1)
                target.channel.timeout = 3
                start = time.monotonic()
                # the receiver fails in its third round; with fewer it never does
                self.assertGreater(sync.info.rounds, 2)
                with self.assertRaisesRegex(stowage.Error, f"sync of step 2: receiver {address}: .*{text}"):
                    sync.sync(2)
                self.assertLess(time.monotonic() - start, 10)
                with self.assertRaisesRegex(stowage.Error, "mixture of step 1 and step 2"):
                    print(target.version)
                if what == "refuses":
                    self.assertIn("no version: the weights are a mixture of step 1 and step 2", child.communicate(timeout=20)[0])

    def test_direct_receivers_that_die_or_cannot_share(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            address, child = self.start(folder, "direct killed")
            with WeightSync(model(), Process(address), bucket_bytes=MIB, timeout=20, device="cpu") as sync:
                sync.sync(1)
                with self.assertRaisesRegex(stowage.Error, f"sync of step 2: receiver {address}: .*it ended, or was killed"):
                    sync.sync(2)
            self.assertEqual(child.wait(20), -signal.SIGKILL)
        with tempfile.TemporaryDirectory() as folder:
            address, child = self.start(folder, "direct, not shared")
            with self.assertRaisesRegex(stowage.Error, "receiver .*: direct: found weights in memory of this process alone"):
                WeightSync(model(), Process(address), timeout=20, device="cpu")
            self.assertIn("refused: direct: found weights", child.communicate(timeout=20)[0])

    def test_a_receiver_that_wants_what_is_not_there(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            address, child = self.start(folder, "lacks")
            with self.assertRaisesRegex(stowage.Error, "receiver .*socket: d.weight: the sender has no tensor d.weight"):
                WeightSync(model(), Process(address), timeout=20, device="cpu")
            self.assertIn("refused: d.weight", child.communicate(timeout=20)[0])
            start = time.monotonic()
            with self.assertRaisesRegex(stowage.Error, "none connected in 0.2 s"):
                WeightSync(model(), Process(address), timeout=0.2, device="cpu")
            self.assertLess(time.monotonic() - start, 10)


if __name__ == "__main__":
    unittest.main()
