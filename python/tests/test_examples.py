# SPDX-License-Identifier: Apache-2.0
"""The examples run."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

import torch

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])
EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")


class Examples(unittest.TestCase):
    def run_example(self, *command: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([sys.executable, "-W", "ignore", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    universal_newlines=True, timeout=300, check=False, cwd=folder,
                                    env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_plain_loop(self) -> None:
        out = self.run_example(os.path.join(EXAMPLES, "plain_loop.py"), "cpu", "checkpoint.pt")
        self.assertIn("step 40: loss 0.0", out)

    @unittest.skipIf(VERSION < (2, 6), "FSDP2 needs torch 2.6")
    def test_fsdp2(self) -> None:
        out = self.run_example("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone",
                               os.path.join(EXAMPLES, "fsdp2.py"))
        self.assertIn("step 10: loss 0.", out)

    @unittest.skipUnless(all(importlib.util.find_spec(name) for name in ["transformers", "accelerate"]), "transformers is missing")
    def test_trainer(self) -> None:
        self.assertIn("resumed run: the same bits", self.run_example(os.path.join(EXAMPLES, "trainer.py")))


if __name__ == "__main__":
    unittest.main()
