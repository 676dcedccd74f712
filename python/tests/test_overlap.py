# SPDX-License-Identifier: Apache-2.0
"""Which module waits for which parameters, and how long gradients live. On the host backend a step is done when step()
returns, so a recorder stands in for the native waits."""

import json
import os
import tempfile
import unittest
import unittest.mock
import weakref

import torch
from _jobs import batch, decay_groups, loss_of, mlp

from stowage._native import NONE
from stowage.torch import AdamW, local_plan

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])


class Recorder:
    """Notes the names of tensors that were waited for."""

    def __init__(self, optimizer: AdamW) -> None:
        self.waits = []
        for part in optimizer._parts:
            self.watch(part)

    def watch(self, part) -> None:
        wait = part.native.wait

        def record(tensor: int, stream: int) -> None:
            self.waits.append("all" if tensor == NONE else part.held[tensor].name)
            wait(tensor, stream)
        part.native.wait = record

    def take(self):
        taken, self.waits = self.waits, []
        return taken


class Waits(unittest.TestCase):
    def setUp(self) -> None:
        self.model = mlp()

    def steps(self, optimizer: AdamW, n: int = 1, model=None) -> None:
        for step in range(n):
            loss_of(model or self.model, step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def prepared(self, **options):
        optimizer = AdamW(self.model, **{"overlap": True, **options})
        self.steps(optimizer)
        with torch.no_grad():  # an evaluation says nothing of what the next training forward does
            self.model(batch(0))
        return optimizer, Recorder(optimizer)

    def test_each_module_waits_for_its_own(self) -> None:
        optimizer, recorder = self.prepared()
        self.steps(optimizer)
        self.assertEqual(recorder.take(), [])
        self.model[:3](batch(0))
        self.assertEqual(recorder.take(), ["0.weight", "0.bias", "2.weight", "2.bias"])
        self.model(batch(0))
        self.assertEqual(recorder.take(), ["3.weight", "3.bias", "5.weight", "5.bias"])
        self.model(batch(0))
        self.assertEqual(recorder.take(), [])

    def test_the_native_order_is_the_models(self) -> None:
        """Groups would put all vectors last; the first module must not wait for the last bucket."""
        optimizer = AdamW(decay_groups(self.model))
        optimizer.hide_behind(self.model)
        self.steps(optimizer)
        self.assertEqual([m.name for m in optimizer._parts[0].held], [n for n, _ in self.model.named_parameters()])
        self.assertEqual([m.group for m in optimizer._parts[0].held], [0, 1, 1, 1, 0, 1, 0, 1])

    def test_the_native_order_is_that_of_the_forward(self) -> None:
        class Backwards(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last, self.first = torch.nn.Linear(96, 17), torch.nn.Linear(96, 96)

            def forward(self, x):
                return self.last(self.first(x))
        model = Backwards()
        optimizer = AdamW(model, overlap=True)
        self.steps(optimizer, model=model)
        self.assertEqual([m.name for m in optimizer._parts[0].held], ["first.weight", "first.bias", "last.weight", "last.bias"])

    def test_the_plan_keeps_the_order(self) -> None:
        """A plan knows embedding, blocks, norm and head by their names, and puts norm and head last; FSDP2's root waits for them first."""
        names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
                 *(f"{tower}.layers.{i}.{name}" for tower in ("model", "visual") for i in (2, 0, 1) for name in ("b.weight", "norm.weight"))]
        settings = local_plan.Settings()
        for order in (names, names[::-1]):
            plan, _ = local_plan.make([(name, 1000 + i) for i, name in enumerate(order)], "F32", settings)
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "plan.json")
                plan.write(path)
                with open(path, encoding="utf-8") as file:
                    rows = json.load(file)["model"]["tensors"]
            self.assertEqual([row[0] for row in rows], [local_plan.planned_name(name) for name in order])

    def test_gradients_live_until_their_module_waits(self) -> None:
        optimizer, _ = self.prepared()
        loss_of(self.model, 0).backward()
        grads = {n: weakref.ref(p.grad) for n, p in self.model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.assertEqual(self.kept(optimizer), set(grads))
        self.model[:1](batch(0))
        self.assertEqual(set(grads) - self.kept(optimizer), {"0.weight", "0.bias"})
        self.model(batch(0))
        self.assertIsNone(optimizer._overlap.flight)

    def kept(self, optimizer: AdamW) -> set:
        return {optimizer._overlap.names[number] for number in optimizer._overlap.flight._grads}

    def test_without_overlap_step_waits(self) -> None:
        for options in [dict(overlap=False), dict()]:
            model = self.model if "overlap" in options else list(self.model.parameters())
            optimizer = AdamW(model, **options)
            self.steps(optimizer)
            recorder = Recorder(optimizer)
            self.steps(optimizer)
            self.assertEqual(recorder.take(), ["all"])
            self.assertIsNone(optimizer._overlap.flight)

    def test_a_weight_used_past_its_module_is_not_hidden(self) -> None:
        """As a fused loss does with lm_head.weight."""
        optimizer, recorder = self.prepared()

        def forward(x):
            return torch.nn.functional.linear(self.model[:5](x), self.model[5].weight, self.model[5].bias)
        for _ in range(2):
            (forward(batch(0)) * 4).pow(2).mean().backward()
            recorder.take()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.assertEqual(recorder.take(), ["5.weight", "5.bias"])

    def test_what_ends_hiding(self) -> None:
        for what in [lambda o: o.wait(), lambda o: o.zero_grad(set_to_none=False), lambda o: o.state_dict()]:
            optimizer, recorder = self.prepared()
            self.steps(optimizer)
            what(optimizer)
            self.assertEqual(recorder.take(), ["all"])
            self.model(batch(0))
            self.assertEqual(recorder.take(), [])

    def test_a_step_without_forward_waits(self) -> None:
        optimizer, recorder = self.prepared()
        self.steps(optimizer)
        for param in optimizer.param_groups[0]["params"]:
            param.grad = torch.ones_like(param)
        recorder.take()
        optimizer.step()
        self.assertEqual(recorder.take(), ["all", "all"])  # for the step before, and for this one

    def test_another_stream(self) -> None:
        """It waits, too; the compute stream still has to, at the end of the forward at the latest."""
        optimizer, recorder = self.prepared()
        self.steps(optimizer)
        with unittest.mock.patch("stowage.torch.overlap.current_stream", return_value=7):
            self.model[:3](batch(0))
            self.assertEqual(recorder.take(), ["0.weight", "0.bias", "2.weight", "2.bias"])
            self.assertEqual(len(self.kept(optimizer)), 8)
            self.model(batch(0))
        self.assertEqual(recorder.take(), ["3.weight", "3.bias", "5.weight", "5.bias", "all", "all"])
        self.assertIsNone(optimizer._overlap.flight)

    def test_evaluation_between_steps(self) -> None:
        optimizer, recorder = self.prepared()
        self.steps(optimizer)
        with torch.no_grad():
            self.model.eval()(batch(3))
        self.assertEqual(len(recorder.take()), 8)

    @unittest.skipIf(VERSION < (2, 1), "torch.compile needs torch 2.1")
    def test_compiled(self) -> None:
        compiled = torch.compile(self.model, backend="eager", fullgraph=True)
        optimizer = AdamW(self.model.parameters())
        optimizer.hide_behind(compiled)
        self.steps(optimizer, model=compiled)
        compiled(batch(0))
        recorder = Recorder(optimizer)
        self.steps(optimizer, model=compiled)
        self.assertEqual(recorder.take(), [])
        compiled(batch(0))
        self.assertEqual(len(recorder.take()), 8)

    def test_a_foreign_model(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "none of the optimizer's parameters"):
            AdamW(self.model.parameters()).hide_behind(mlp(1))


if __name__ == "__main__":
    unittest.main()
