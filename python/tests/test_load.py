# SPDX-License-Identifier: Apache-2.0
"""Folders of safetensors into modules and dicts: casts, ties, slices, errors; there and back through transformers."""

import importlib.util
import json
import os
import struct
import tempfile
import unittest

import torch

import stowage
from stowage import _native
from stowage.torch import Folder, WeightSync, load
from stowage.torch.files import chunks, make_header, memory, read_folder, runs

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])


def write(path: str, tensors: dict) -> None:
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
    header, begins, size = make_header([(n, names[t.dtype], tuple(t.shape)) for n, t in tensors.items()], {"format": "pt"})
    data = bytearray(size)
    data[:len(header)] = header
    for name, tensor in tensors.items():
        view = memory(tensor.contiguous())
        data[begins[name]:begins[name] + len(view)] = view
    with open(path, "wb") as file:
        file.write(data)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(1003, 24)
        self.experts = torch.nn.Parameter(torch.randn(5, 24, 7))
        self.scalar = torch.nn.Parameter(torch.randn(()))
        self.register_buffer("steps", torch.arange(3))
        self.head = torch.nn.Linear(24, 1003, bias=False)
        self.head.weight = self.embed.weight


class Load(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        torch.manual_seed(1)
        self.net = Net()
        state = {n: t for n, t in self.net.state_dict().items() if n != "head.weight"}
        rows = list(state.items())
        write(os.path.join(self.folder, "a.safetensors"), dict(rows[:2]))
        write(os.path.join(self.folder, "b.safetensors"), dict(rows[2:]))

    def test_buffers_that_are_not_saved(self) -> None:
        other = Net()
        other.embed.register_buffer("inv_freq", torch.ones(2), persistent=False)
        with self.assertWarnsRegex(UserWarning, r"keep their values: embed.inv_freq\. If to_empty"):
            done = load(other, self.folder)
        self.assertEqual(done.unsaved, ["embed.inv_freq"])
        self.assertEqual(load(dict(other.state_dict()), self.folder).unsaved, [])

    def test_runs_of_boxes(self) -> None:
        shape = (4, 5, 6)
        whole = torch.arange(120).view(shape)
        for box in [((0, 0, 0), shape), ((1, 0, 0), (2, 5, 6)), ((1, 2, 0), (2, 2, 6)), ((3, 1, 2), (1, 3, 2)), ((0, 0, 5), (4, 5, 1))]:
            got = [(own + i, at + i) for at, own, n in runs(box, shape) for i in range(n)]
            view = whole
            for d, (first, n) in enumerate(zip(*box)):
                view = view.narrow(d, first, n)
            self.assertEqual([at for _, at in sorted(got)], view.flatten().tolist())
            self.assertEqual(sum(torch.Size(c).numel() for _, c in chunks(box, 7)), view.numel())

    def test_module_and_dict(self) -> None:
        for dtype in [torch.float32, torch.bfloat16]:
            torch.manual_seed(2)
            other = Net().to(dtype)
            done = load(other, self.folder, threads=3)
            self.assertEqual((done.missing, done.unexpected), ([], []))
            self.assertIs(other.head.weight, other.embed.weight)
            for (name, a), (_, b) in zip(self.net.state_dict().items(), other.state_dict().items()):
                self.assertTrue(torch.equal(a.to(b.dtype), b), name)
        tied = Net()
        load(tied.state_dict(), self.folder)
        self.assertTrue(torch.equal(tied.head.weight, self.net.embed.weight))
        state = {n: torch.zeros_like(t) for n, t in self.net.state_dict().items() if n != "head.weight"}
        state["experts"] = torch.zeros(7, 24, 5).permute(2, 1, 0)
        load(state, self.folder)
        self.assertTrue(all(torch.equal(t, self.net.state_dict()[n]) for n, t in state.items()))

    @unittest.skipIf(VERSION < (2, 0), "building on the meta device needs torch 2")
    def test_meta(self) -> None:
        with torch.device("meta"):
            other = Net()
        with self.assertRaisesRegex(stowage.Error, "found a meta tensor, expected memory; call to_empty"):
            load(other, self.folder)
        other.to_empty(device="cpu")
        other.head.weight = other.embed.weight
        load(other, self.folder)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(self.net.parameters(), other.parameters())))

    def test_what_does_not_fit(self) -> None:
        with self.assertRaisesRegex(stowage.Error, "missing bias; unexpected"):
            load({"bias": torch.zeros(1), "experts": torch.zeros(5, 24, 7)}, self.folder)
        done = load({"bias": torch.zeros(1), "experts": torch.zeros(5, 24, 7)}, self.folder, strict=False)
        self.assertEqual((done.missing, sorted(done.unexpected)), (["bias"], ["embed.weight", "scalar", "steps"]))
        with self.assertRaisesRegex(stowage.Error, r"a.safetensors: experts: found shape \(5, 24, 7\), expected \(5, 7, 24\)"):
            load({"experts": torch.zeros(5, 7, 24)}, self.folder, strict=False)
        with self.assertRaisesRegex(stowage.Error, "found no .*safetensors"):
            load(self.net, os.path.dirname(os.path.abspath(__file__)))

    def test_damaged_files(self) -> None:
        path = os.path.join(self.folder, "a.safetensors")
        with open(path, "rb") as file:
            good = file.read()
        n = struct.unpack("<Q", good[:8])[0]
        header = json.loads(good[8:8 + n])
        header["experts"]["data_offsets"][1] += 4
        wrong = json.dumps(header).encode()
        for data, text in [(good[:5], "not a safetensors file"), (good[:-1], "the file has"), (b"\xff" * 64, "not a safetensors file"),
                           (good[:8] + b"{" * n + good[8 + n:], "not a safetensors file"),
                           (struct.pack("<Q", len(wrong)) + wrong + good[8 + n:] + b"1234", "experts: found .* bytes, expected")]:
            with open(path, "wb") as file:
                file.write(data)
            with self.assertRaisesRegex(stowage.Error, text):
                read_folder(self.folder)


@unittest.skipUnless(all(importlib.util.find_spec(name) for name in ["transformers", "safetensors"]), "transformers is missing")
@unittest.skipUnless(_native.load().has("stw_plan_sync"), "libstowage without weight syncs")
class Transformers(unittest.TestCase):
    """What load reads of a published folder, and what a sync writes, is the model: equal logits."""

    def models(self) -> list:
        import transformers as t
        small = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     vocab_size=131, head_dim=16, max_position_embeddings=64)
        return [(t.Qwen3ForCausalLM, t.Qwen3Config(**small, tie_word_embeddings=True)),
                (t.LlamaForCausalLM, t.LlamaConfig(**small, tie_word_embeddings=False)),
                (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(**small, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2))]

    def test_there_and_back(self) -> None:
        for kind, config in self.models():
            with self.subTest(model=kind.__name__), tempfile.TemporaryDirectory() as top:
                torch.manual_seed(0)
                model = kind(config).bfloat16().eval()
                published, written = os.path.join(top, "published"), os.path.join(top, "written")
                model.save_pretrained(published, max_shard_size="100KB")
                tokens = torch.arange(24).view(2, 12)
                expected = model(tokens).logits
                other = kind(config).bfloat16().eval()
                load(other, published)
                self.assertTrue(torch.equal(other(tokens).logits, expected))
                with WeightSync(other, Folder(written, like=published), dtype=None, check=True) as sync:
                    sync.sync(1)
                # from_pretrained keeps the rotary frequencies in fp32, bfloat16() does not
                back = [kind.from_pretrained(path, dtype=torch.bfloat16).eval() for path in [published, written]]
                self.assertTrue(torch.equal(back[1](tokens).logits, back[0](tokens).logits))
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(model.parameters(), back[1].parameters())))


if __name__ == "__main__":
    unittest.main()
