# SPDX-License-Identifier: Apache-2.0
"""State on NVMe: how much of it, and that bits stay."""

import os
import tempfile
import unittest

import torch
from _jobs import KIB, decay_groups, mlp, same, same_state, train

import stowage
from stowage.torch import AdamW

STEPS = 50
RING = dict(bucket=64 * KIB, depth=2)
PLACES = {
    "all but the slots": dict(host_memory=130 * KIB, **RING),
    "host, too": dict(host_memory=330 * KIB, **RING),
    "GPU and host, too": dict(host_memory=230 * KIB, gpu_memory=260 * KIB, **RING),
    "not needed": dict(host_memory=1 << 30, **RING),
    "what is free": dict(),
}


class Nvme(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_on(self, dtype: torch.dtype, hide: bool, steps: int = STEPS, **options):
        def make(model):
            optimizer = AdamW(decay_groups(model), lr=1e-2, betas=(0.9, 0.95), clip_norm=1.0, **options)
            if hide:
                optimizer.hide_behind(model)
            return optimizer
        return train(make, steps, dtype)

    def compare(self, dtype: torch.dtype, **more) -> None:
        model, optimizer = self.run_on(dtype, False, **more)
        expected = optimizer.state_dict()
        for place, options in PLACES.items():
            for hide in [False, True]:
                with self.subTest(place=place, hide=hide):
                    found, on_disk = self.run_on(dtype, hide, nvme=self.folder, **options, **more)
                    self.assertTrue(same(found, model))
                    self.assertTrue(same_state(on_disk.state_dict(), expected))
                    self.assertEqual(os.listdir(self.folder), [])

    def test_fp32(self) -> None:
        self.compare(torch.float32)

    def test_bf16_with_master(self) -> None:
        self.compare(torch.bfloat16)

    def test_bf16_moments(self) -> None:
        self.compare(torch.bfloat16, moments=torch.bfloat16)

    def test_the_share(self) -> None:
        params = sum(p.numel() for p in mlp().parameters())
        infos = {}
        for place, options in PLACES.items():
            info = infos[place] = self.run_on(torch.float32, False, 1, nvme=self.folder, **options)[1].info[0]
            self.assertLessEqual(info.host_bytes, options.get("host_memory", 1 << 40))
            resident = 0 if "GPU" not in place else info.gpu_bytes - 2 * 64 * KIB
            self.assertGreaterEqual(info.nvme_bytes + info.host_bytes + resident, params * 8)
        self.assertGreater(infos["all but the slots"].nvme_bytes, params * 8 - 1)
        self.assertGreater(infos["host, too"].host_bytes, 250 * KIB)
        self.assertTrue(0 < infos["host, too"].nvme_bytes < params * 6)
        self.assertTrue(0 < infos["GPU and host, too"].nvme_bytes < infos["host, too"].nvme_bytes)
        self.assertEqual((infos["not needed"].nvme_bytes, infos["what is free"].nvme_bytes), (0, 0))

    def test_state_goes_on(self) -> None:
        """What one placement has saved another one loads."""
        model, optimizer = self.run_on(torch.bfloat16, False, 3, nvme=self.folder, **PLACES["all but the slots"])
        saved = optimizer.state_dict()
        other = mlp(dtype=torch.bfloat16)
        other.load_state_dict(model.state_dict())
        fresh = AdamW(decay_groups(other), lr=1e-2, betas=(0.9, 0.95), clip_norm=1.0, nvme=self.folder, **PLACES["host, too"])
        fresh.load_state_dict(saved)
        train(lambda m: optimizer, 3, torch.bfloat16, model=model, first=3)
        train(lambda m: fresh, 3, torch.bfloat16, model=other, first=3)
        self.assertTrue(same(model, other))
        self.assertTrue(same_state(optimizer.state_dict(), fresh.state_dict()))

    def test_a_plan_with_state_on_nvme(self) -> None:
        """Where the folder is, this machine knows."""
        plan = os.path.join(self.folder, "plan.json")
        model, cluster = os.path.join(self.folder, "model.csv"), os.path.join(self.folder, "cluster.yaml")
        with open(model, "w", encoding="utf-8") as file:
            file.write("name,shape,dtype\n" + "".join(f"{n},[{p.numel()}],F32\n" for n, p in mlp().named_parameters()))
        with open(cluster, "w", encoding="utf-8") as file:
            file.write("name: one\nnodes: 1\nnode:\n  gpus: 1\n  gpu: {memory: 8 GiB}\n  host: {memory: 16 GiB}\n"
                       "  nvme: {capacity: 1 GiB}\n")
        stowage.plan(model, cluster, set={"placement.params": "gpu", "placement.grads": "gpu", "placement.moments": "nvme",
                                          "update.cpu": 0, "prefetch.bucket": "64 KiB", "prefetch.depth": 2}).write(plan)
        with self.assertRaisesRegex(stowage.Error, "plan: it puts state on NVMe; say where, by nvme=FOLDER"):
            AdamW(mlp(), plan=plan)
        _, optimizer = train(lambda m: AdamW(m, plan=plan, nvme=self.folder, host_memory="130 KiB"), 1)
        self.assertGreater(optimizer.info[0].nvme_bytes, 8 * 60000)

    def test_refused(self) -> None:
        params = list(mlp().parameters())
        for options, kind, words in [(dict(nvme="no/such"), ValueError, "nvme: found 'no/such', expected a folder"),
                                     (dict(nvme=3), TypeError, "nvme: found 3"),
                                     (dict(host_memory=1 << 30), ValueError, "host_memory is for nvme"),
                                     (dict(nvme=self.folder, host_memory="much"), ValueError, "host_memory: found 'much'"),
                                     (dict(nvme=self.folder, host_memory=0), ValueError, "host_memory: found 0")]:
            with self.assertRaisesRegex(kind, words):
                AdamW(params, **options)
        with self.assertRaisesRegex(stowage.Error, "host memory: found 1024 bytes, expected at least [0-9]+"):
            self.run_on(torch.float32, False, 1, nvme=self.folder, host_memory=1024)


if __name__ == "__main__":
    unittest.main()
