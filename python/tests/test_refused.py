# SPDX-License-Identifier: Apache-2.0
"""What is refused, in which words, and that nothing has changed afterwards."""

import copy
import gc
import os
import subprocess
import sys
import textwrap
import threading
import unittest
import unittest.mock
import warnings

import torch
from _jobs import KIB, loss_of, mlp, same, same_state, train


import stowage
from stowage.torch import AdamW

INF, NAN = float("inf"), float("nan")


class Arguments(unittest.TestCase):
    def refused(self, kind: type, text: str, params=None, **options) -> None:
        with self.subTest(**options):
            with self.assertRaisesRegex(kind, text):
                AdamW(mlp() if params is None else params, **options)

    def test_numbers(self) -> None:
        for name, expected, low in [("lr", "a number from 0 to 1000", -1), ("eps", "a finite number, 0 or more", -1e-9),
                                    ("weight_decay", "a finite number, 0 or more", -1)]:
            for value in [None, "1e-3", True, [1.0]]:
                self.refused(TypeError, rf"^{name} of parameter group 0: found .* \({type(value).__name__}\), expected {expected}$",
                             **{name: value})
            for value in [NAN, INF, low, torch.ones(2)]:
                self.refused(ValueError, f"^{name} of parameter group 0: found .*, expected {expected}$", **{name: value})
        AdamW(mlp(), lr=torch.tensor(1e-3), weight_decay=0)

    def test_betas(self) -> None:
        for value in [None, 0.9, "ab", ("0.9", "0.99")]:
            self.refused(TypeError, "^betas of parameter group 0: found .*, expected two numbers, 0 to 0.99999994$", betas=value)
        for value in [(0.9,), (0.9, 0.99, 0.9), (NAN, 0.9), (0.9, 1.0), (0.9, 0.9999999999), (-0.1, 0.9)]:
            self.refused(ValueError, "^betas of parameter group 0: found .*, expected two numbers, 0 to 0.99999994$", betas=value)
        AdamW(mlp(), betas=[0, 0.5])

    def test_clip_norm(self) -> None:
        for kind, values in {TypeError: ["1", True, [1]], ValueError: [0, -1.0, INF, NAN]}.items():
            for value in values:
                self.refused(kind, "^clip_norm: found .*, expected a finite number above 0, or None$", clip_norm=value)
        model = mlp()
        optimizer = AdamW(model, clip_norm=1)
        optimizer.clip_norm = "2"
        loss_of(model, 0).backward()
        with self.assertRaisesRegex(TypeError, "clip_norm: found '2' .str."):
            optimizer.step()
        optimizer.clip_norm = 2.0
        optimizer.step()

    def test_sizes(self) -> None:
        for value in [4096, 4096.5, 0, -1, "4 KiB", "128", "128 mib", "0.3 B", 1 << 50]:
            self.refused(ValueError, '^bucket: found .*, expected bytes or a size such as "42 MiB", 64 KiB to 1 TiB$', bucket=value)
        self.refused(TypeError, r"^bucket: found True \(bool\)", bucket=True)
        for value in [-1, 1.5, "some", "4"]:
            self.refused(ValueError, '^gpu_memory: found .*, expected bytes, a size such as "4 GiB", or "auto"$', gpu_memory=value)
        self.refused(TypeError, r"^gpu_memory: found None \(NoneType\)", gpu_memory=None)
        for value in [0, 5000]:
            self.refused(ValueError, "^depth: found .*, expected a count of slots, 1 to 1024$", depth=value)
        for value in ["2", 1.5]:
            self.refused(TypeError, "^depth: found .*, expected a count of slots, 1 to 1024$", depth=value)

    def test_sizes_as_text(self) -> None:
        infos = [train(lambda m: AdamW(m, bucket=bucket, depth=1), 1)[1].info[0].buckets
                 for bucket in [64 * KIB, "64 KiB", "64KiB", "65.536 kB"]]
        self.assertEqual(len(set(infos)), 1)
        self.assertGreater(infos[0], 1)

    def test_words_and_kinds(self) -> None:
        self.refused(TypeError, r"^plan: found 5 \(int\), expected a stowage.Plan, or the path of a plan file$", plan=5)
        self.refused(ValueError, "^moments: found 'bf16', expected torch.float32, torch.bfloat16 or None$", moments="bf16")
        self.refused(ValueError, "^backend: found 'cpu', expected \"cuda\", \"host\" or None$", backend="cpu")
        self.refused(TypeError, r"^overlap: found 'yes' \(str\), expected True or False$", overlap="yes")
        self.refused(TypeError, r"^process_group: found 3 \(int\), expected", process_group=3)
        self.refused(ValueError, "^overlap=True needs a module as params", params=list(mlp().parameters()), overlap=True)
        with self.assertRaisesRegex(TypeError, r"^hide_behind: found 3 \(int\), expected a torch.nn.Module"):
            AdamW(mlp()).hide_behind(3)

    def test_parameters(self) -> None:
        for params in [None, 5, "weight", {}, torch.ones(2)]:
            with self.assertRaisesRegex(TypeError, "^params: found a .*, expected a module, or an ordered iterable of tensors"):
                AdamW(params)
        with self.assertRaisesRegex(ValueError, '^params: found a group of lr, expected one with "params"$'):
            AdamW([{"lr": 1e-3}])
        with self.assertRaisesRegex(TypeError, r"^params: found a tuple of str, int, expected \(name, tensor\)$"):
            AdamW([("a", 5)])

    def test_another_backend_than_the_parameters(self) -> None:
        with self.assertRaisesRegex(stowage.Error, '^backend: found "cuda", but 0.weight is on cpu, expected "host" or None$'):
            train(lambda m: AdamW(m, backend="cuda"), 1)
        train(lambda m: AdamW(m, backend="host"), 1)

    def test_an_empty_group(self) -> None:
        model = mlp()
        optimizer = AdamW([{"params": []}, {"params": list(model.parameters())}])
        train(lambda m: optimizer, 1, model=model)
        self.assertEqual(int(optimizer.state_dict()["state"][0]["step"]), 1)


class Steps(unittest.TestCase):
    """An error in step() leaves the optimizer as it was."""

    def test_half_a_step_is_none(self) -> None:
        """Two native optimizers; the second one's gradient is missing."""
        def mixed():
            model = mlp()
            model[0].to(torch.bfloat16)
            return model

        def backward(model, step):
            x = torch.ones(2, 96).mul(step + 1)
            (model[1:](model[0](x.bfloat16()).float()) * 40).pow(2).mean().backward()

        results = []
        for fail in [False, True]:
            model = mixed()
            optimizer = AdamW(model.named_parameters(), lr=1e-2)
            for step in range(3):
                backward(model, step)
                if fail and step:
                    grad, model[5].bias.grad = model[5].bias.grad, None
                    model[0].weight.data = model[0].weight.data.clone()  # moved
                    with self.assertRaisesRegex(stowage.Error, "5.bias: the parameter has no gradient"):
                        optimizer.step()
                    model[5].bias.grad = grad
                optimizer.step()
                optimizer.zero_grad()
            results.append((model, optimizer.state_dict()))
        self.assertTrue(same(results[0][0], results[1][0]))
        self.assertTrue(same_state(results[0][1], results[1][1]))

    def test_a_parameter_on_another_device(self) -> None:
        model = torch.nn.Linear(4, 4)
        optimizer = AdamW(model.named_parameters())
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        moved = model.weight.detach().to("meta")
        with unittest.mock.patch("stowage.torch.tensors.shard_of", lambda t: moved if t is model.weight else t):
            with self.assertRaisesRegex(stowage.Error, "weight: the parameter's device changed from cpu to meta after the first step"):
                optimizer.step()

    def test_a_gradient_of_another_dtype(self) -> None:
        model = torch.nn.Linear(4, 4)
        optimizer = AdamW(model.named_parameters())
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        with unittest.mock.patch.object(torch.Tensor, "grad", torch.ones(4, 4, dtype=torch.float64)):
            with self.assertRaisesRegex(stowage.Error, r"weight: found a gradient of torch.float64 \(4, 4\) on cpu, expected "
                                                       r"torch.float32 \(4, 4\) on cpu"):
                optimizer.step()

    def test_threads(self) -> None:
        """One step at a time, and no thread hangs."""
        model = mlp()
        optimizer = AdamW(model, lr=1e-2, clip_norm=1.0)
        loss_of(model, 0).backward()
        errors = []

        def work(call):
            try:
                for _ in range(20):
                    call()
            except BaseException as error:  # noqa: B902
                errors.append(error)
        calls = [optimizer.step] * 3 + [optimizer.state_dict, lambda: optimizer.grad_norm, optimizer.synchronize]
        threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual([t.is_alive() for t in threads] + errors, [False] * len(threads))
        self.assertEqual(int(optimizer.state_dict()["state"][0]["step"]), 60)

    def test_a_forked_child(self) -> None:
        """Its model has the values after the step; every use of the optimizer is refused, and nothing hangs."""
        script = """
            import os, sys, torch
            import stowage
            from _jobs import batch, mlp, train
            from stowage.torch import AdamW
            model, optimizer = train(lambda m: AdamW(m, clip_norm=1.0, overlap=True), 2)
            assert optimizer._overlap.flight is not None
            child = os.fork()
            if child == 0:
                with torch.no_grad():
                    torch.set_num_threads(1)
                    print(float(model(batch(0)).sum()), flush=True)
                for call in [optimizer.step, optimizer.wait, optimizer.synchronize, optimizer.state_dict, optimizer.adopt_params,
                             lambda: optimizer.grad_norm, lambda: optimizer.load_state_dict({}),
                             lambda: optimizer.zero_grad(set_to_none=False), lambda: optimizer.hide_behind(model)]:
                    try:
                        call()
                        print("taken", call)
                    except stowage.Error as error:
                        print(error, flush=True)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            with torch.no_grad():
                print(float(model(batch(0)).sum()))
        """
        result = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, universal_newlines=True, timeout=120, cwd=os.path.dirname(__file__))
        self.assertEqual(result.returncode, 0, result.stdout)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0], lines[-1])
        self.assertEqual(lines[1:-1], ["the optimizer was made by another process; a forked child must make its own"] * 9)


class TwoOptimizers(unittest.TestCase):
    def test_they_are_named(self) -> None:
        model, first = train(lambda m: AdamW(m), 1)
        second = AdamW(model.named_parameters())
        with self.assertWarnsRegex(UserWarning, "^0.weight: another stowage.torch.AdamW has this parameter, too; each keeps state"):
            train(lambda m: second, 1, model=model)
        self.assertEqual(len(first.info), 1)

    def test_one_that_is_gone_is_none(self) -> None:
        model, first = train(lambda m: AdamW(m), 1)
        first.me = first  # goes with the next collection
        gc.disable()
        self.addCleanup(gc.enable)
        del first
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            train(lambda m: AdamW(m), 1, model=model)


class States(unittest.TestCase):
    """Nothing is changed by a state that is refused."""

    def setUp(self) -> None:
        self.model, self.optimizer = train(lambda m: AdamW(m.named_parameters(), lr=1e-2), 2)
        self.before = self.optimizer.state_dict()

    def refused(self, kind: type, text: str, change) -> None:
        saved = copy.deepcopy(self.before)
        for row in saved["state"].values():
            row["exp_avg"].add_(1)
        saved["param_groups"][0]["lr"] = 0.5
        saved = change(saved) or saved
        with self.subTest(text):
            with self.assertRaisesRegex(kind, text):
                self.optimizer.load_state_dict(saved)
            self.assertTrue(same_state(self.optimizer.state_dict(), self.before))
            self.assertEqual(self.optimizer.param_groups[0]["lr"], 1e-2)

    def test_what_is_missing(self) -> None:
        self.refused(ValueError, "the state to load has 'state', expected \"state\" .a dict. and \"param_groups\"",
                     lambda s: s.pop("param_groups") and None)
        self.refused(ValueError, "the state to load has 'param_groups', expected", lambda s: s.pop("state") and None)
        self.refused(ValueError, "found no \"params\" in parameter group 0", lambda s: s["param_groups"][0].pop("params") and None)
        self.refused(stowage.Error, "5.bias: exp_avg_sq in the state to load: found nothing, expected a tensor",
                     lambda s: s["state"][7].pop("exp_avg_sq") is None)
        self.refused(stowage.Error, "3.weight: the state to load has no step", lambda s: s["state"][4].pop("step") is None)
        self.refused(stowage.Error, "5.bias: the state to load lacks it", lambda s: s["state"].pop(7) and None)

    def test_what_is_wrong(self) -> None:
        self.refused(stowage.Error, r"5.bias: exp_avg has shape \(3,\), expected \(17,\)",
                     lambda s: s["state"][7].update(exp_avg=torch.zeros(3)))
        self.refused(stowage.Error, "5.bias: exp_avg in the state to load: found list, expected a tensor",
                     lambda s: s["state"][7].update(exp_avg=[0.0] * 17))
        self.refused(stowage.Error, "5.bias: exp_avg in the state to load: found torch.int64, expected a tensor of numbers",
                     lambda s: s["state"][7].update(exp_avg=torch.zeros(17, dtype=torch.int64)))
        self.refused(stowage.Error, "0.weight: step in the state to load: found 1.5, expected a whole number",
                     lambda s: s["state"][0].update(step=1.5))
        self.refused(stowage.Error, "5.bias: the state is of step 7, that of 0.weight is of step 2",
                     lambda s: s["state"][7].update(step=7))
        self.refused(ValueError, r"parameter groups of \[7\] parameters, the optimizer of \[8\]",
                     lambda s: s["param_groups"][0].update(params=list(range(7))))
        self.refused(TypeError, r"lr of parameter group 0: found '1' \(str\)", lambda s: s["param_groups"][0].update(lr="1"))


class Large(unittest.TestCase):
    """Gradients whose squares overflow fp32, above 1.8e19. The norm is exact, so clipping keeps their direction, where torch's
    norm in fp32 is infinite and all gradients become 0. Without clipping the element's state is no number, as in torch's fused
    kernel for CUDA."""

    def step(self, value: float, clip=None):
        param = torch.nn.Parameter(torch.linspace(-1, 1, 8))
        optimizer = AdamW([("p", param)], lr=1e-2, clip_norm=clip)
        param.grad = torch.tensor([value, 1.0, -value, 0.5, 0.0, 0.0, 0.0, 3.0])
        optimizer.step()
        return param.detach(), optimizer

    def test_clipped(self) -> None:
        small, _ = self.step(1e10, 1.0)
        for value in [1e19, 1e20, 1e30, 3e38]:
            param, optimizer = self.step(value, 1.0)
            self.assertAlmostEqual(optimizer.grad_norm / (value * 2**0.5), 1.0, places=6)
            self.assertTrue(torch.allclose(param[[0, 2]], small[[0, 2]]))
            self.assertTrue(torch.isfinite(param).all())

    def test_unclipped(self) -> None:
        small, _ = self.step(1e10)
        param, _ = self.step(1e19)
        self.assertTrue(torch.allclose(param, small))
        param, _ = self.step(2e19)
        self.assertEqual(param.isnan().tolist(), [True, False, True] + [False] * 5)
        self.assertTrue(torch.equal(param[3:], small[3:]))


class Plans(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("STOWAGE"), "STOWAGE, the path of the program, is not set")
    def test_clusters_by_name(self) -> None:
        plan = stowage.plan("Qwen3-0.6B", "h200-x1", set={"engine": "fsdp2"})
        self.assertEqual((plan.world, plan.gpu_capacity_bytes >> 30), (1, 139))
        job = {"engine": "fsdp2", "parallel.dp_shard": 16}
        self.assertEqual(stowage.plan("Qwen3-0.6B", "2 x h200-x8", set=job).world, 16)
        with self.assertRaisesRegex(stowage.Error, "h200-x99: no such file, and none of the .* clusters .* did you mean h200-x1"):
            stowage.plan("Qwen3-0.6B", "h200-x99")

    def test_without_the_program(self) -> None:
        with unittest.mock.patch.dict(os.environ, {"STOWAGE": "", "PATH": ""}):
            with self.assertRaisesRegex(stowage.Error, "cluster: found h200-x1, which is no file; names of clusters need the program"):
                stowage.plan("Qwen3-0.6B", "h200-x1")

    def test_types(self) -> None:
        for text, call in {
            r"model: found 5 \(int\), expected": lambda: stowage.plan(5),
            r"cluster: found 5 \(int\), expected": lambda: stowage.plan("GPT-2", 5),
            r"run: found 5 \(int\), expected": lambda: stowage.plan("GPT-2", None, 5),
            r"set: found 'engine=fsdp2' \(str\), expected a dict of keys": lambda: stowage.plan("GPT-2", set="engine=fsdp2"),
            r"set: found the key 5 \(int\), expected text": lambda: stowage.plan("GPT-2", set={5: 5}),
            r"time_limit_s: found '1' \(str\), expected seconds": lambda: stowage.plan("GPT-2", time_limit_s="1"),
        }.items():
            with self.subTest(text):
                with self.assertRaisesRegex(TypeError, text):
                    call()


if __name__ == "__main__":
    unittest.main()
