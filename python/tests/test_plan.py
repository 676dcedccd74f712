# SPDX-License-Identifier: Apache-2.0
"""Plans in Python, and how the library is found. Needs no torch."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import stowage
from stowage import _native

JOB = {"engine": "fsdp2", "parallel.dp_shard": 8, "batch.seq_len": 4096, "node.gpus": 8}
CLUSTER = "nodes: 1\nnode: {gpus: 8, gpu: {memory: 80 GiB}, host: {memory: 1 TiB, limit: 1 TiB}}\n"


class Plans(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.cluster = os.path.join(self.folder, "cluster.yaml")
        Path(self.cluster).write_text(CLUSTER, encoding="utf-8")

    def plan(self, model: str = "Qwen3-0.6B", **keys) -> stowage.Plan:
        return stowage.plan(model, self.cluster, set={**JOB, **{k.replace("__", "."): v for k, v in keys.items()}})

    def test_does_it_fit(self) -> None:
        plan = self.plan()
        self.assertTrue(plan.fits)
        self.assertEqual((plan.verdict, plan.engine, plan.world, plan.exit_code), ("fits", "fsdp2", 8, 0))
        self.assertGreater(plan.iteration_s, 0)
        self.assertEqual(plan.gpu_capacity_bytes, 80 << 30)
        self.assertLess(plan.gpu_peak_bytes, plan.gpu_capacity_bytes)
        self.assertEqual(max(p.bytes for p in plan.peaks() if (p.tier, p.component) == ("gpu", "total")), plan.gpu_peak_bytes)
        self.assertGreater(plan.gpu_reserved_bytes, plan.gpu_peak_bytes // 2)
        self.assertLess(plan.gpu_reserved_bytes, plan.gpu_capacity_bytes)
        self.assertIn("optimizer_step", [p.name for p in plan.phases()])
        self.assertEqual(plan.tensors[0].name, "model.embed_tokens.weight")
        self.assertEqual(plan.tensors[0].shape, (151936, 1024))
        self.assertEqual(plan.params, 596_049_920)
        self.assertIn("fits", repr(plan))

    def test_a_file_and_back(self) -> None:
        plan = self.plan()
        path = os.path.join(self.folder, "plan.json")
        plan.write(path)
        again = stowage.Plan.read(Path(path))
        self.assertEqual((again.hash, again.gpu_peak_bytes, again.iteration_s), (plan.hash, plan.gpu_peak_bytes, plan.iteration_s))
        self.assertEqual(again.to_dict()["run"]["engine"], "fsdp2")

    def test_warnings_are_pythons(self) -> None:
        config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
                  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
                  "frobnicate": 3}
        path = os.path.join(self.folder, "config.json")
        Path(path).write_text(json.dumps(config), encoding="utf-8")
        with self.assertWarnsRegex(UserWarning, "frobnicate") as warned:
            self.plan(path)
        self.assertEqual(os.path.basename(warned.filename), "test_plan.py")

    def test_without_torch(self) -> None:
        code = "import sys; sys.modules['torch'] = None; import stowage; import stowage.torch"
        result = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, universal_newlines=True, check=False)
        self.assertIn("ImportError: stowage.torch needs torch", result.stderr)
        self.assertIn("pip install torch", result.stderr)

    def test_nothing_fits(self) -> None:
        with self.assertRaises(stowage.DoesNotFit) as raised:
            self.plan("Llama-3.1-70B", batch__seq_len=131072)
        self.assertEqual(raised.exception.status, _native.NOTHING_FITS)
        self.assertIsInstance(raised.exception, stowage.Error)

    def test_errors_have_the_librarys_text(self) -> None:
        with self.assertRaisesRegex(stowage.Error, "batch.seq_leng"):
            self.plan(**{"batch.seq_leng": 3})
        with self.assertRaisesRegex(stowage.Error, "Qwen9-1B"):
            stowage.plan("Qwen9-1B")
        with self.assertRaisesRegex(stowage.Error, "nowhere.json"):
            stowage.Plan.read("nowhere.json")

    def test_settings(self) -> None:
        plan = self.plan(recompute__granularity="full", **{"fsdp.reshard_after_forward": False, "trainable.freeze": ["model.embed_tokens.weight"]})
        run = plan.to_dict()["run"]
        self.assertEqual(run["fsdp"]["reshard_after_forward"], False)
        self.assertEqual(run["trainable"]["freeze"], ["model.embed_tokens.weight"])


class Library(unittest.TestCase):
    def test_version(self) -> None:
        library = _native.load()
        self.assertEqual(library.stw_get_version_text().decode(), stowage.__version__)
        with unittest.mock.patch.object(_native, "VERSION", "9.1.0"):
            with self.assertRaisesRegex(stowage.Error, "has version 0.1.0, expected 9.1.x"):
                _native.check_version(library)

    def test_where_it_is_looked_for(self) -> None:
        with unittest.mock.patch.dict(os.environ, {"STOWAGE_LIBRARY": "/somewhere/else.so"}):
            self.assertEqual(_native.candidates(), ["/somewhere/else.so"])
            result = subprocess.run([sys.executable, "-c", "import stowage; stowage.plan('GPT-2')"], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, universal_newlines=True, check=False)
        self.assertIn("stowage._native.Error: libstowage.so cannot be opened: /somewhere/else.so", result.stderr)

    def test_importing_opens_nothing(self) -> None:
        code = "import sys, stowage; assert 'torch' not in sys.modules; assert stowage._native._library is None"
        subprocess.run([sys.executable, "-c", code], check=True)


@unittest.skipUnless(os.environ.get("STOWAGE"), "STOWAGE, the path of the program, is not set")
class Programs(unittest.TestCase):
    def test_the_command(self) -> None:
        self.assertEqual(stowage.program(), os.environ["STOWAGE"])
        out = subprocess.run([sys.executable, "-c", "from stowage._programs import main; main()", "--version"],
                             stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
        self.assertIn(stowage.__version__, out)

    def test_validate_says_what_is_wrong(self) -> None:
        with self.assertRaisesRegex(stowage.Error, "nowhere.json"):
            stowage.validate("nowhere.json", "run.json")


if __name__ == "__main__":
    unittest.main()
