# SPDX-License-Identifier: Apache-2.0
"""plan=: an optimizer takes a whole job's decisions, and checks that the plan is of this model."""

import csv
import os
import tempfile
import unittest
import unittest.mock

import torch  # noqa: F401 (run.py looks for it)
from _jobs import KIB, mlp, same, train

import stowage
from stowage.torch import AdamW, job_plan, local_plan

CLUSTER = "nodes: 1\nnode: {gpus: 1, gpu: {memory: 8 GiB}, host: {memory: 64 GiB, limit: 64 GiB}}\n"
NVME = """nodes: 1
node: {gpus: 1, gpu: {memory: 8 GiB}, host: {memory: 1 MiB, limit: 1 MiB, process: %d KiB}, nvme: {capacity: 1 GiB}}
"""


def job(folder: str, change=lambda rows: rows, cluster: str = CLUSTER, **keys) -> str:
    """Path of a plan of mlp(), as `stowage plan` would write it."""
    rows = change([(name, str(list(p.shape)), "F32") for name, p in mlp().named_parameters()])
    model, node, path = (os.path.join(folder, name) for name in ["model.csv", "cluster.yaml", "plan.json"])
    with open(model, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("name", "shape", "dtype"), *rows])
    with open(node, "w", encoding="utf-8") as file:
        file.write(cluster)
    settings = {"placement.params": "gpu", "placement.grads": "gpu", "update.resident": 0.25, "update.stream": 0.75,
                "prefetch.bucket": "64 KiB", "prefetch.depth": 2}
    settings.update({key.replace("__", "."): value for key, value in keys.items()})
    stowage.plan(model, node, set=settings).write(path)
    return path


class JobPlan(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_its_decisions_are_taken(self) -> None:
        path = job(self.folder)
        expected, _ = train(lambda m: AdamW(m, lr=1e-2, clip_norm=1.0), 3)  # as planned
        for plan in [path, stowage.Plan.read(path)]:
            model, optimizer = train(lambda m: AdamW(m, lr=1e-2, plan=plan), 3)
            self.assertTrue(same(model, expected))
            info = optimizer.info[0]
            total = 8 * sum(p.numel() for p in model.parameters())
            self.assertAlmostEqual(info.streamed_bytes / total, 0.75, delta=0.05)
            self.assertLess(info.gpu_bytes, 0.3 * total + 4 * 64 * KIB)

    def test_clip_norm_and_overlap(self) -> None:
        path = job(self.folder, optimizer__clip_norm=0.25)
        expected, _ = train(lambda m: AdamW(m, lr=1e-2, clip_norm=0.25), 3)
        model, optimizer = train(lambda m: AdamW(m, lr=1e-2, plan=path), 3)
        self.assertTrue(same(model, expected))
        self.assertEqual((optimizer.clip_norm, optimizer._overlap._owners), (0.25, []))
        # a list of tensors has no forward behind which a step is planned to hide
        patch = unittest.mock.patch.object(job_plan, "planned", lambda job: job_plan.Planned(0.25, True))
        patch.start()
        self.addCleanup(patch.stop)
        optimizer = AdamW(mlp(), plan=path)
        self.assertGreater(len(optimizer._overlap._owners), 0)
        for options in [{"clip_norm": None, "overlap": False}, {"clip_norm": 2.0, "overlap": False}]:
            optimizer = AdamW(mlp(), plan=path, **options)
            self.assertEqual((optimizer.clip_norm, optimizer._overlap._owners), (options["clip_norm"], []))
        AdamW(mlp().parameters(), plan=path)  # hide_behind may follow

    def test_no_clipping(self) -> None:
        self.assertIsNone(AdamW(mlp(), plan=job(self.folder, optimizer__clip_norm="none")).clip_norm)

    def test_a_plan_of_another_optimizer(self) -> None:
        usual = dict(placement__params="auto", placement__grads="auto", update__resident="auto", update__stream="auto",
                     prefetch__bucket="auto", prefetch__depth="auto", placement__accept="at_risk")
        for engine in ["fsdp2", "deepspeed"]:
            with self.assertRaisesRegex(stowage.Error, f"plan: its optimizer is that of engine {engine} .*expected Stowage's"):
                AdamW(mlp(), plan=job(self.folder, engine=engine, **usual))

    def test_a_plan_of_another_dtype(self) -> None:
        with self.assertRaisesRegex(stowage.Error, r"plan: it is of parameters in fp32 \(precision.params\); here 0.weight is "
                                                   "torch.bfloat16"):
            train(lambda m: AdamW(m, plan=job(self.folder)), 1, torch.bfloat16)

    def test_a_plan_of_fsdp2(self) -> None:
        cluster = os.path.join(self.folder, "cluster.yaml")
        with open(cluster, "w", encoding="utf-8") as file:
            file.write(CLUSTER.replace("gpus: 1", "gpus: 8"))
        plan = stowage.plan("Qwen3-0.6B", cluster, set={
            "engine": "fsdp2", "parallel.dp_shard": 8, "batch.seq_len": 1024, "optimizer.implementation": "stowage",
            "precision.params": "bf16", "precision.grads": "bf16", "precision.master": "fp32", "placement.moments": "host",
            "placement.master": "host", "prefetch.bucket": "8 MiB", "prefetch.depth": 2, "optimizer.overlap": True})
        self.assertEqual(job_plan.planned(plan), job_plan.Planned(1.0, True))
        self.assertEqual(job_plan.settings(plan), local_plan.Settings(resident=0.0, bucket=8 << 20, depth=2))

    def test_state_on_nvme(self) -> None:
        """The split of host and NVMe is the plan's, to the alignment of regions and slots."""
        expected, _ = train(lambda m: AdamW(m, lr=1e-2, clip_norm=1.0), 3)  # as planned
        for process, keys in [(0, {"placement.moments": "nvme"}), (600, {})]:
            with self.subTest(process=process):
                path = job(self.folder, cluster=NVME % process, engine="fsdp2", optimizer__implementation="stowage",
                           update__resident=0, update__stream=1, placement__accept="at_risk", **keys)
                with self.assertRaisesRegex(stowage.Error, "state on NVMe; say where, by nvme=FOLDER"):
                    train(lambda m: AdamW(m, plan=path), 1)
                model, optimizer = train(lambda m: AdamW(m, lr=1e-2, plan=path, nvme=self.folder), 3)
                self.assertTrue(same(model, expected))
                phase = stowage.Plan.read(path).to_dict()["ranks"][0]["phases"]["optimizer_step"]
                held = phase["host"]["components"]
                self.assertEqual("exp_avg" in held, process > 0)
                self.assertGreater(phase["nvme"]["total"], 100 * KIB)
                info = optimizer.info[0]
                self.assertAlmostEqual(info.nvme_bytes, phase["nvme"]["total"], delta=80 * KIB)
                self.assertAlmostEqual(info.host_bytes, sum(held.values()) - held.get("process", 0), delta=80 * KIB)

    def test_a_plan_of_another_model(self) -> None:
        path = job(self.folder, lambda rows: [*rows, ("more.weight", "[7]", "F32")])
        with self.assertRaisesRegex(stowage.Error, r"plan: it is of another model, of 60,440 parameters; here are 60,433: 1 of the "
                                    r"plan's tensors are not among the parameters \(more.weight\)$"):
            train(lambda m: AdamW(m, plan=path), 1)
        path = job(self.folder, lambda rows: [(n, "[256, 95]" if n == "0.weight" else s, d) for n, s, d in rows])
        with self.assertRaisesRegex(stowage.Error, r"1 differ in size \(0.weight: 24,320 elements in the plan, 24,576 here\)"):
            train(lambda m: AdamW(m, plan=path), 1)
        path = job(self.folder, lambda rows: rows[:-1])
        with self.assertRaisesRegex(stowage.Error, r"1 of the parameters are not in the plan \(5.bias\)"):
            train(lambda m: AdamW(m, plan=path), 1)

    def test_parameters_without_names(self) -> None:
        """Their number is compared."""
        train(lambda m: AdamW(m.parameters(), plan=job(self.folder)), 1)
        path = job(self.folder, lambda rows: rows[:-1])
        for params in [lambda m: m.parameters(), lambda m: list(m.parameters())[:4]]:
            with self.assertRaisesRegex(stowage.Error, r"Give the model, or \(name, tensor\) pairs"):
                train(lambda m: AdamW(params(m), plan=path), 1)

    def test_a_plan_of_more_ranks(self) -> None:
        path = job(self.folder, engine="fsdp2", parallel__dp_shard=8, optimizer__implementation="stowage", node__gpus=8,
                   placement__params="auto", placement__grads="auto", placement__accept="at_risk")
        with self.assertRaisesRegex(stowage.Error, "plan: each of its 8 ranks trains 7,667 parameters, this one 60,433"):
            train(lambda m: AdamW(m, plan=path), 1)

    def test_fused_tensors_have_other_names(self) -> None:
        """As experts have that a framework keeps in one tensor."""
        def cut(rows):
            return [row for name, shape, dtype in rows for row in
                    ([("0.0.weight", "[128, 96]", dtype), ("0.1.weight", "[128, 96]", dtype)] if name == "0.weight" else
                     [(name, shape, dtype)])]
        train(lambda m: AdamW(m, plan=job(self.folder, cut)), 1)

    def test_frozen_parameters_are_of_the_model(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        for overlap in [False, True]:
            optimizer = AdamW(model, plan=job(self.folder), overlap=overlap)
            train(lambda m: optimizer, 1, model=model)
        self.assertEqual(len(optimizer.state_dict()["state"]), 6)

    def test_other_updates_are_refused(self) -> None:
        path = job(self.folder, update__stream=0, update__resident=0, update__cpu=1, prefetch__bucket="auto",
                   prefetch__depth="auto", placement__moments="host")
        with self.assertRaisesRegex(stowage.Error, "plan: updates are cpu, expected resident or stream"):
            AdamW(mlp().parameters(), plan=path)

    def test_one_or_the_other(self) -> None:
        with self.assertRaisesRegex(ValueError, "follow from plan"):
            AdamW(mlp().parameters(), plan=job(self.folder), bucket=1 << 20)


if __name__ == "__main__":
    unittest.main()
