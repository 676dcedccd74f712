# SPDX-License-Identifier: Apache-2.0
"""The examples run."""

import importlib
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

from typing import Dict

import torch
from _jobs import mlp, same, train

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
        norms = [line.split()[-1] for line in out.splitlines() if "step 10: loss 0." in line]
        self.assertEqual((len(norms), len(set(norms))), (2, 1))  # both ranks have one norm

    @unittest.skipIf(VERSION < (2, 6), "FSDP2 needs torch 2.6")
    def test_weight_sync(self) -> None:
        out = self.run_example("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone",
                               os.path.join(EXAMPLES, "weight_sync.py"), ".")
        self.assertIn("worker 1: step 3, version 3", out)
        self.assertEqual(out.count("loaded what was written"), 2, out)

    @unittest.skipUnless(all(importlib.util.find_spec(name) for name in ["transformers", "accelerate"]), "transformers is missing")
    def test_trainer(self) -> None:
        out = self.run_example(os.path.join(EXAMPLES, "trainer.py"))
        self.assertIn("resumed run: the same bits", out)
        self.assertIn("weight decay of the groups [0.1, 0.0]", out)

    def test_verl(self) -> None:
        """Its keys are `build_optimizer`'s (verl/workers/config/optimizer.py, verl 0.6): the class by name, with lr, weight_decay,
        betas and what override_optimizer_config has."""
        keys = verl_keys(os.path.join(EXAMPLES, "verl.sh"), "actor_rollout_ref.actor.optim.")
        kind = getattr(importlib.import_module(keys.pop("optimizer_impl")), keys.pop("optimizer"))
        extra = {key[len("override_optimizer_config."):]: keys.pop(key) for key in list(keys) if key.startswith("override")}
        self.assertEqual(list(keys), ["lr"])
        model = mlp()
        train(lambda m: kind(m.parameters(), lr=float(keys["lr"]), weight_decay=0.01, betas=(0.9, 0.999), **extra), 2, model=model)
        self.assertFalse(same(model, mlp()))

    @unittest.skipUnless(os.environ.get("STOWAGE"), "STOWAGE, the path of the program, is not set")
    def test_verl_is_read(self) -> None:
        result = subprocess.run([os.environ["STOWAGE"], "plan", "--from", "verl:" + os.path.join(EXAMPLES, "verl.sh"), "--cluster",
                                 "h100-80g-x8", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                                universal_newlines=True)
        self.assertIn('"implementation": "stowage"', result.stdout, result.stderr)


def verl_keys(path: str, prefix: str) -> Dict[str, str]:
    """Keys of the command in a script, behind a prefix; a + adds one that verl's defaults do not have."""
    with open(path, encoding="utf-8") as file:
        words = shlex.split(file.read(), comments=True)
    pairs = [word.lstrip("+").partition("=") for word in words]
    return {key[len(prefix):]: value for key, _, value in pairs if key.startswith(prefix)}


if __name__ == "__main__":
    unittest.main()
