# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of stowage.torch.AdamW: saved while training goes on, resumed with the same bits, on 1 and 2 ranks."""

import csv
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import torch
from _jobs import KIB, counted_reads, decay_groups, loss_of, mlp, same, same_state
from _ranks import run_ranks

import stowage
from stowage.torch import AdamW, Checkpoint

MOE = {"model_type": "qwen3_moe", "head_dim": 16, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 4,
       "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_attention_heads": 2, "num_hidden_layers": 2,
       "num_key_value_heads": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 100}
DISAGREE = 11  # STOWAGE_DISAGREE
VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])


def job(seed=0, dtype=torch.bfloat16, **options):
    model = mlp(seed, dtype)
    if dtype is torch.bfloat16:
        model[2].float()  # a part without masters
        model[2].register_forward_pre_hook(lambda _, args: (args[0].float(),))
        model[2].register_forward_hook(lambda _, args, out: out.bfloat16())
    model.register_buffer("seen", torch.zeros(3))
    return model, AdamW(decay_groups(model), lr=1e-2, clip_norm=1.0, **options)


def steps(model, optimizer, first, end, dtype=torch.bfloat16):
    for step in range(first, end):
        loss_of(model, step, dtype).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.seen += 1
        optimizer.param_groups[0]["lr"] *= 0.9


def weights_bytes(path):
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path) if name.endswith(".safetensors"))


def flip(path, at):
    """Change a bit of a file; at < 0: from its end."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))


class OneRank(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(dir=".")
        self.addCleanup(shutil.rmtree, self.folder)

    def resume(self, dtype, copies=0, **options) -> None:
        saves = os.path.join(self.folder, str(len(os.listdir(self.folder))))
        model, optimizer = job(dtype=dtype)
        checkpoint = Checkpoint(model, optimizer, saves, bucket_bytes=8 * KIB, copies=copies)
        self.assertIsNone(checkpoint.load())
        steps(model, optimizer, 0, 3, dtype)
        checkpoint.save()
        steps(model, optimizer, 3, 6, dtype)
        self.assertTrue(checkpoint.wait().complete)
        self.assertFalse(checkpoint.is_saving())
        other, resumed = job(5, dtype, **options)
        self.assertEqual(Checkpoint(other, resumed, saves).load(), 3)
        self.assertEqual(other.seen.tolist(), [3, 3, 3])
        steps(other, resumed, 3, 6, dtype)
        self.assertTrue(same(model, other))
        self.assertTrue(same_state(optimizer.state_dict(), resumed.state_dict()))
        self.assertEqual(optimizer.param_groups[0]["lr"], resumed.param_groups[0]["lr"])

    def test_bits(self) -> None:
        self.resume(torch.bfloat16)
        self.resume(torch.float32)
        self.resume(torch.bfloat16, copies=20 * KIB)  # not whole buckets
        self.resume(torch.float32, copies=1 << 24)  # more than all
        model, optimizer = job()
        with self.assertRaisesRegex(stowage.Error, "copies: found -1"):
            Checkpoint(model, optimizer, self.folder, copies=-1)

    def test_copies_are_taken_by_the_first_save(self) -> None:
        def mapped() -> int:
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

        grown = []
        for copies in [0, 1 << 30]:
            model, optimizer = job()
            before = mapped()
            with Checkpoint(model, optimizer, os.path.join(self.folder, str(copies)), bucket_bytes=64 * KIB, copies=copies) as checkpoint:
                checkpoint.save()
                checkpoint.wait()
                grown.append(mapped() - before)
        self.assertGreater(grown[1] - grown[0], 1 << 29)

    def test_another_placement(self) -> None:
        self.resume(torch.bfloat16, gpu_memory=1 << 30)
        self.resume(torch.float32, bucket=64 * KIB, depth=1)

    def test_the_model_is_safetensors(self) -> None:
        model, optimizer = job()
        with Checkpoint(model, optimizer, self.folder) as checkpoint:
            checkpoint.save(7)
            checkpoint.wait()
        folder = os.path.join(self.folder, "step-00000007")
        with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
            found = json.load(file)["weight_map"]
        self.assertEqual(set(found), set(model.state_dict()))
        try:
            from safetensors.torch import load_file
        except ImportError:
            self.skipTest("safetensors is missing")
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(load_file(os.path.join(folder, found[name]))[name], tensor), name)

    @unittest.skipUnless(os.environ.get("STOWAGE"), "STOWAGE, the path of the program, is not set")
    def test_what_is_converted_has_published_names(self) -> None:
        """A job names tensors as its modules do, experts fused; the folder has one tensor for each expert."""
        try:
            from safetensors.torch import load_file
        except ImportError:
            self.skipTest("safetensors is missing")
        config, table = os.path.join(self.folder, "config.json"), os.path.join(self.folder, "tensors.csv")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(MOE, file)
        subprocess.run([os.environ["STOWAGE"], "inspect", config, "--tensors", table, "-q", "-o", os.devnull], check=True)
        model = torch.nn.Module()
        torch.manual_seed(0)
        with open(table, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                at, names = model, row["name"].split(".")
                for name in names[:-1]:
                    if not hasattr(at, name):
                        at.add_module(name, torch.nn.Module())
                    at = getattr(at, name)
                at.register_parameter(names[-1], torch.nn.Parameter(torch.randn(json.loads(row["shape"])).bfloat16()))
        optimizer = AdamW(model.named_parameters(), lr=1e-2)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        saves, folder = os.path.join(self.folder, "saves"), os.path.join(self.folder, "out")
        with Checkpoint(model, optimizer, saves, config=config) as checkpoint:
            checkpoint.save()
            checkpoint.wait()
        subprocess.run([os.environ["STOWAGE"], "convert", saves, "-o", folder, "-q"], check=True)
        found, own = load_file(os.path.join(folder, "model.safetensors")), model.state_dict()
        expected = {}
        for name, tensor in own.items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                expected[name] = tensor
                continue
            head = name.rsplit(".", 1)[0]
            for e, expert in enumerate(tensor):
                halves = expert.chunk(2) if name.endswith("gate_up_proj") else (expert,)
                for part, which in zip(halves, ("gate", "up") if len(halves) == 2 else ("down",)):
                    expected[f"{head}.{e}.{which}_proj.weight"] = part
        self.assertEqual(set(found), set(expected))
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    def test_keep_and_an_older_step(self) -> None:
        model, optimizer = job()
        checkpoint = Checkpoint(model, optimizer, self.folder, keep=2)
        for step in range(4):
            steps(model, optimizer, step, step + 1)
            checkpoint.save()
        checkpoint.wait()
        self.assertEqual(sorted(n for n in os.listdir(self.folder) if n.startswith("step-")), ["step-00000003", "step-00000004"])
        self.assertEqual(checkpoint.load(3), 3)
        self.assertEqual(float(optimizer.state_dict()["state"][0]["step"]), 3)
        with self.assertRaisesRegex(stowage.Error, "step-00000001"):
            checkpoint.load(1)

    def test_config(self) -> None:
        model, optimizer = job()
        for missing in [os.path.join(self.folder, "none.json"), self.folder]:
            with self.assertRaisesRegex(ValueError, "config: .*none.json: No such file|config: .*/config.json: No such file"):
                Checkpoint(model, optimizer, self.folder, config=missing)
        path = os.path.join(self.folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"model_type": "mine"}')
        for step, config in enumerate([path, self.folder]):
            with Checkpoint(model, optimizer, self.folder, config=config) as checkpoint:
                checkpoint.save(step)
                checkpoint.wait()
            with open(os.path.join(self.folder, f"step-{step:08d}", "config.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file), {"model_type": "mine"})

    def test_transformers_opens_the_folder(self) -> None:
        try:
            from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
        except ImportError:
            self.skipTest("transformers is missing")
        model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=8,
                                             num_attention_heads=4, num_key_value_heads=2, rope_theta=5e5)).bfloat16()
        with Checkpoint(model, AdamW(model), self.folder) as checkpoint:
            checkpoint.save(1)
            checkpoint.wait()
        found = AutoModelForCausalLM.from_pretrained(os.path.join(self.folder, "step-00000001"), dtype="auto")
        self.assertIs(type(found), Qwen3ForCausalLM)
        self.assertEqual(found.config.architectures, ["Qwen3ForCausalLM"])
        self.assertEqual(found.config.to_dict()["rope_parameters"], model.config.to_dict()["rope_parameters"])
        self.assertTrue(same(model, found))

    def test_after_close(self) -> None:
        model, optimizer = job()
        with Checkpoint(model, optimizer, self.folder) as checkpoint:
            pass
        for call in [checkpoint.save, checkpoint.load]:
            with self.assertRaisesRegex(stowage.Error, "the Checkpoint was closed; make a new one"):
                call()

    def test_settings_are_the_checkpoints(self) -> None:
        model, optimizer = job()
        with Checkpoint(model, optimizer, self.folder) as checkpoint:
            checkpoint.save(1)
            checkpoint.wait()
        other = mlp(0, torch.bfloat16)
        other.register_buffer("seen", torch.zeros(3))
        other[2].float()
        resumed = AdamW(decay_groups(other), lr=5e-2, betas=(0.5, 0.6))
        Checkpoint(other, resumed, self.folder).load()
        self.assertEqual((resumed.param_groups[0]["lr"], resumed.param_groups[0]["betas"]), (1e-2, (0.9, 0.999)))

    def test_another_model_is_refused(self) -> None:
        model, optimizer = job()
        checkpoint = Checkpoint(model, optimizer, self.folder)
        steps(model, optimizer, 0, 1)
        checkpoint.save()
        checkpoint.wait()
        fewer = mlp(5)[:5]
        before = [p.clone() for p in fewer.parameters()]
        with self.assertRaisesRegex(stowage.Error, "step-00000001: the model has no 5.bias, 5.weight, seen, expected every tensor"):
            Checkpoint(fewer, AdamW(decay_groups(fewer), lr=1e-2), self.folder).load()
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, fewer.parameters())))
        more = mlp(5)
        more.append(torch.nn.Linear(17, 4))
        with self.assertRaisesRegex(stowage.Error, "6.weight|6.bias"):
            Checkpoint(more, AdamW(decay_groups(more), lr=1e-2), self.folder).load()

    @unittest.skipUnless(os.path.exists("/proc/self/io"), "the system does not count what is read")
    def test_every_byte_is_read_once(self) -> None:
        for turn, (saved, resumed) in enumerate([(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32),
                                                 (torch.float32, torch.bfloat16)]):  # masters that are made of parameters
            saves = os.path.join(self.folder, str(turn))
            model, optimizer = job(dtype=saved)
            steps(model, optimizer, 0, 1, saved)
            with Checkpoint(model, optimizer, saves) as checkpoint:
                checkpoint.save()
                checkpoint.wait()
            model, optimizer = job(5, resumed)
            with Checkpoint(model, optimizer, saves) as checkpoint, counted_reads() as read:
                self.assertEqual(checkpoint.load(), 1)
            every = weights_bytes(os.path.join(saves, "step-00000001"))
            self.assertGreaterEqual(read[0], every)
            self.assertLess(read[0], 1.1 * every)

    def test_a_killed_run_is_passed_over(self) -> None:
        model, optimizer = job()
        with Checkpoint(model, optimizer, self.folder) as checkpoint:
            checkpoint.save(1)
            checkpoint.wait()
            left = os.path.join(self.folder, ".step-00000002.0123456789abcdef.partial")
            os.mkdir(left)
            with self.assertWarnsRegex(UserWarning, f"{left}: passed over: it is not complete: no rank ended its save before the run was stopped$"):
                self.assertEqual(checkpoint.load(), 1)

    def damaged(self):
        """A job at step 5 with checkpoints of its steps 2 and 4, the newer one damaged near the end of its last file."""
        model, optimizer = job()
        checkpoint = Checkpoint(model, optimizer, self.folder, bucket_bytes=8 * KIB)
        for first in [0, 2]:
            steps(model, optimizer, first, first + 2)
            checkpoint.save()
        checkpoint.wait()
        path = os.path.join(self.folder, "step-00000004")
        name = sorted(n for n in os.listdir(path) if n.startswith("optimizer-"))[-1]
        flip(os.path.join(path, name), -9)
        steps(model, optimizer, 4, 5)
        return model, optimizer, checkpoint, name

    def test_damage_is_named_and_an_older_checkpoint_loads(self) -> None:
        model, optimizer, checkpoint, name = self.damaged()
        expected, other = job()
        steps(expected, other, 0, 2)
        with self.assertRaisesRegex(stowage.Error, rf"{name}.*is damaged.*hold a part of it; load\(2\) takes the newest older") as raised:
            checkpoint.load()
        self.assertEqual(raised.exception.status, DISAGREE)
        for call in [optimizer.step, optimizer.state_dict, checkpoint.save]:
            with self.assertRaisesRegex(stowage.Error, "step-00000004: its load failed, and model and optimizer hold a part of it"):
                call()
        self.assertEqual(checkpoint.load(2), 2)
        self.assertEqual(model.seen.tolist(), [2, 2, 2])
        for _ in range(2):
            self.assertTrue(same(model, expected))
            self.assertTrue(same_state(optimizer.state_dict(), other.state_dict()))
            steps(model, optimizer, 2, 4)
            steps(expected, other, 2, 4)

    def test_after_damage_state_dicts_are_a_way_on(self) -> None:
        model, optimizer, checkpoint, _ = self.damaged()
        shutil.rmtree(os.path.join(self.folder, "step-00000002"))
        weights, state = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
        with self.assertRaisesRegex(stowage.Error, "no older checkpoint is complete"):
            checkpoint.load()
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        steps(model, optimizer, 5, 6)
        checkpoint.save()
        self.assertTrue(checkpoint.wait().complete)

    def test_a_damaged_header_changes_nothing(self) -> None:
        model, optimizer, checkpoint, name = self.damaged()
        path = os.path.join(self.folder, "step-00000004", name)
        flip(path, -9)
        flip(path, 20)
        weights, state = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
        with self.assertRaisesRegex(stowage.Error, f"{name}: is damaged: .*(header)"):
            checkpoint.load()
        self.assertTrue(same_state(state, optimizer.state_dict()))
        self.assertTrue(all(torch.equal(weights[k], v) for k, v in model.state_dict().items()))
        steps(model, optimizer, 5, 6)

    def test_what_does_not_match_is_named(self) -> None:
        model, optimizer = job()
        checkpoint = Checkpoint(model, optimizer, self.folder)
        checkpoint.save()
        checkpoint.wait()
        other = mlp(0, torch.bfloat16)
        with self.assertRaisesRegex(stowage.Error, "found 2 parameter groups, the optimizer has 1"):
            Checkpoint(other, AdamW(other), self.folder).load()
        other = torch.nn.Linear(3, 4)
        with self.assertRaisesRegex(stowage.Error, "weight"):
            Checkpoint(other, AdamW(decay_groups(other)), self.folder).load()
        with self.assertRaisesRegex(stowage.Error, "the optimizer has it, but the model does not"):
            Checkpoint(model[0], optimizer, self.folder)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(4))]})
        with self.assertRaisesRegex(stowage.Error, "make a new Checkpoint"):
            checkpoint.save()

    def test_a_save_that_fails(self) -> None:
        model, optimizer = job()
        blocked = os.path.join(self.folder, "file")
        with open(blocked, "w", encoding="utf-8"):
            pass
        checkpoint = Checkpoint(model, optimizer, blocked)
        with self.assertRaisesRegex(stowage.Error, "file"):
            checkpoint.save()
            checkpoint.wait()
        os.remove(blocked)
        checkpoint.save()
        self.assertTrue(checkpoint.wait().complete)


RANKS = """
import os
from _jobs import batch
from torch.distributed.fsdp import fully_shard
from stowage.torch import AdamW, Checkpoint

def job(seed):
    torch.manual_seed(seed)
    # 5 and 1 rows: uneven and empty shards
    model = torch.nn.Sequential(torch.nn.Linear(96, 33), torch.nn.GELU(), torch.nn.Linear(33, 5), torch.nn.Linear(5, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, AdamW(model, lr=1e-2, overlap=True)

def steps(model, optimizer, first, end):
    for step in range(first, end):
        (model(batch(step)) * 2).pow(2).sum().backward()  # the same on all ranks
        optimizer.step()
        optimizer.zero_grad()

def whole(model):
    return {n: p.full_tensor().detach().clone() for n, p in model.named_parameters()}

def same(a, b):
    return all(torch.equal(a[n], b[n]) for n in a)

saves = os.path.join(sys.argv[2], "saves")
model, optimizer = job(int(os.environ["SEED"]))
checkpoint = Checkpoint(model, optimizer, saves)
first = checkpoint.load() or 0
assert first == int(os.environ["FIRST"]), first
if first:
    assert same(torch.load(os.path.join(sys.argv[2], "weights")), whole(model))
steps(model, optimizer, first, first + 2)
now = whole(model)
if rank == 0:
    torch.save(now, os.path.join(sys.argv[2], "weights"))
checkpoint.save()
steps(model, optimizer, first + 2, first + 4)
later = whole(model)
checkpoint.wait()
dist.barrier()
assert checkpoint.load() == first + 2
assert same(now, whole(model))
steps(model, optimizer, first + 2, first + 4)
assert same(later, whole(model))
"""


# Damage that one rank reads; bytes that the ranks read between them
DAMAGED = RANKS[:RANKS.index("def whole(")] + """
from _jobs import counted_reads
from test_checkpoint import flip, weights_bytes
import stowage

path = os.path.join(sys.argv[2], "saves")
model = torch.nn.Sequential(torch.nn.Linear(96, 999), torch.nn.GELU(), torch.nn.Linear(999, 96))
fully_shard(model)
optimizer = AdamW(model, lr=1e-2)
checkpoint = Checkpoint(model, optimizer, path)
for first in [0, 1]:
    steps(model, optimizer, first, first + 1)
    checkpoint.save()
    checkpoint.wait()
    dist.barrier()
with counted_reads() as read:
    assert checkpoint.load() == 2
reads = [None, None]
dist.all_gather_object(reads, read[0])
every = weights_bytes(os.path.join(path, "step-00000002"))
assert every <= sum(reads) < 1.1 * every, (reads, every)
name = os.path.join(path, "step-00000002", sorted(n for n in os.listdir(os.path.join(path, "step-00000002")) if n.startswith("optim"))[-1])
if rank == 0:
    flip(name, -1)
dist.barrier()
texts = [None, None]
try:
    checkpoint.load()
    dist.all_gather_object(texts, "loaded")
except stowage.Error as error:
    dist.all_gather_object(texts, str(error))
assert all("is damaged" in t and "load(1) takes the newest older" in t for t in texts), texts
assert sum(t.startswith("rank ") for t in texts) == 1, texts  # one of them read it
try:
    steps(model, optimizer, 2, 3)
    assert False, "a step was taken"
except stowage.Error as error:
    assert "its load failed" in str(error), error
optimizer.zero_grad()
assert checkpoint.load(1) == 1
steps(model, optimizer, 1, 2)
"""

ONE_SAVES = """
import os, warnings
from _jobs import mlp
from stowage.torch import AdamW, Checkpoint

saves = os.path.join(sys.argv[2], "saves")
model = mlp()
with Checkpoint(model, AdamW(model), saves) as checkpoint:
    for complete in [None, 1]:
        if complete or rank == 0:
            checkpoint.save(1 if complete else 2)
            checkpoint.wait()
        dist.barrier()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert checkpoint.load() == complete
        texts = [str(w.message) for w in caught]
        assert len(texts) == (1 if rank == 0 else 0), texts
        assert all(".step-00000002" in text and "rank 1 did not end its save: it was stopped before, or did not call" in text for text in texts), texts
"""


@unittest.skipIf(VERSION < (2, 6) or not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
                 "DTensors and FSDP2 need torch 2.6 with gloo")
class Ranks(unittest.TestCase):
    def test_a_rank_that_does_not_save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(self, ONE_SAVES, 2, folder)

    def test_damage_that_one_rank_reads(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(self, DAMAGED, 2, folder)

    def test_one_two_one(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for turn, world in enumerate([1, 2, 1]):
                os.environ.update(SEED=str(turn), FIRST=str(2 * turn))
                run_ranks(self, RANKS, world, folder)
                if os.path.exists(os.path.join(folder, f"store{world}")):
                    os.remove(os.path.join(folder, f"store{world}"))


if __name__ == "__main__":
    unittest.main()
