# SPDX-License-Identifier: Apache-2.0
"""A torch job with stowage.torch.AdamW: planned, recorded by `stowage record`, and compared with its plan."""

import csv
import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch

import stowage

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])
STOWAGE = os.environ.get("STOWAGE") or os.path.join(os.path.dirname(os.environ["STOWAGE_LIBRARY"]), "..", "bin", "stowage")
CLUSTER = """nodes: 1
node: {gpus: %d, gpu: {memory: 8 GiB}, host: {memory: 64 GiB, limit: 64 GiB}, nvme: {capacity: 1 GiB}}
"""

JOB = """
import os, sys, time
import torch
import torch.distributed as dist
from stowage.torch import AdamW

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def tell(*fields):
    with open(os.environ["STOWAGE_MARKS"], "a") as file:
        file.write(",".join(map(str, (time.time(), rank) + fields)) + "\\n")

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
if world > 1:
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = AdamW(model, lr=1e-3, clip_norm=1.0, overlap=True, plan=sys.argv[1], nvme="." if "nvme" in sys.argv[1] else None)
for step in range(4):
    tell("forward_backward")
    model(torch.randn(16, 256)).pow(2).mean().backward()
    tell("end")
    phase = "optimizer_step" if step else "first_optimizer_step"
    tell(phase)
    optimizer.step()
    optimizer.zero_grad()
    tell(phase, "page_locked", sum(info.host_bytes for info in optimizer.info))
    tell("end")
optimizer.synchronize()
if world > 1:
    dist.destroy_process_group()
"""


class Record(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def plan(self, name: str, ranks: int, resident: float, **keys: str) -> str:
        with open(self.path("model.csv"), "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["name", "shape", "dtype"])
            for layer in range(8):
                rows.writerows([(f"{layer}.weight", "[256, 256]", "F32"), (f"{layer}.bias", "[256]", "F32")])
        with open(self.path("cluster.yaml"), "w", encoding="utf-8") as file:
            file.write(CLUSTER % ranks)
        path = self.path(name)
        stowage.plan(self.path("model.csv"), self.path("cluster.yaml"), set={
            "engine": "fsdp2", "parallel.dp_shard": ranks, "optimizer.implementation": "stowage", "update.resident": resident,
            "update.stream": 1 - resident, "prefetch.bucket": "256 KiB", "prefetch.depth": 2, **keys}).write(path)
        return path

    def record(self, plan: str, ranks: int) -> str:
        with open(self.path("job.py"), "w", encoding="utf-8") as file:
            file.write(JOB)
        start = [sys.executable, "job.py", plan]
        if ranks > 1:
            start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *start[1:]]
        environment = {**os.environ, **({"RANK": "0", "WORLD_SIZE": "1"} if ranks == 1 else {})}
        run = self.path("run.json")
        done = subprocess.run([STOWAGE, "record", "-o", run, "--", *start], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True, check=False, cwd=self.folder, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        return run

    def compare(self, ranks: int) -> None:
        os.environ["STOWAGE"] = STOWAGE
        run = self.record(self.plan("plan.json", ranks, 0.25), ranks)
        found = subprocess.run([STOWAGE, "validate", self.path("plan.json"), run, "-v"], stdout=subprocess.PIPE,
                               universal_newlines=True, check=False, env={**os.environ, "COLUMNS": "0"})
        self.assertEqual(found.returncode, 0, found.stdout)
        for phase in ["first_optimizer_step", "optimizer_step"]:
            self.assertRegex(found.stdout, rf"\n *{phase} +host page-locked .* within")
        errors = [float(e) for e in re.findall(r"page-locked .* ([-+]?[0-9.]+)% +within", found.stdout)]
        self.assertTrue(errors and all(abs(e) < 0.2 for e in errors), found.stdout)
        # what was planned otherwise is found
        self.assertFalse(stowage.validate(self.plan("other.json", ranks, 0.75), run).agrees)

    def test_one_rank(self) -> None:
        self.compare(1)

    def test_state_on_nvme(self) -> None:
        os.environ["STOWAGE"] = STOWAGE
        keys = {"placement.moments": "nvme"}
        run = self.record(self.plan("nvme.json", 1, 0, **keys), 1)
        found = stowage.validate(self.path("nvme.json"), run)
        self.assertTrue(found.agrees, found)
        self.assertFalse(stowage.validate(self.plan("host.json", 1, 0), run).agrees)

    @unittest.skipIf(VERSION < (2, 6), "torch 2.6 has fully_shard")
    def test_two_ranks_of_fsdp2(self) -> None:
        self.compare(2)


if __name__ == "__main__":
    unittest.main()
