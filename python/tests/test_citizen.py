# SPDX-License-Identifier: Apache-2.0
"""What else torch jobs do with an optimizer: schedulers, closures, scalers, frozen and tied parameters, compiled and
checkpointed modules, parameters that change, forks, exits."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import unittest
import unittest.mock
import warnings

import torch
from _jobs import batch, decay_groups, distance, loss_of, mlp, same, same_state, train

import stowage
from stowage import _signals
from stowage._optimizer import Optimizer
from stowage.torch import AdamW

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])


class Interface(unittest.TestCase):
    def test_schedulers_move_the_rate(self) -> None:
        def make(kind):
            def with_scheduler(model):
                optimizer = kind(decay_groups(model), lr=1e-2)
                return Scheduled(optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-2], total_steps=20,
                                                                                cycle_momentum=False))
            return with_scheduler
        theirs, _ = train(make(torch.optim.AdamW), 8)
        mine, optimizer = train(make(AdamW), 8)
        self.assertLess(distance(mine, theirs), 1e-4)
        constant, _ = train(lambda m: AdamW(decay_groups(m), lr=1e-2), 8)
        self.assertGreater(distance(mine, constant), 1e-3)

    def test_momentum_that_is_cycled(self) -> None:
        """betas may change as long as all groups have the same."""
        model = mlp()
        optimizer = AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10)
        train(lambda m: Scheduled(optimizer, scheduler), 4, model=model)
        self.assertNotEqual(optimizer.param_groups[0]["betas"][0], 0.9)

    def test_by_name_as_frameworks_do(self) -> None:
        import importlib

        kind = getattr(importlib.import_module("stowage.torch"), "AdamW")
        override = {"gpu_memory": 1 << 20, "fused": True}
        train(lambda m: kind(m.parameters(), **{"lr": 1e-6, "weight_decay": 0.01, "betas": [0.9, 0.999], **override}), 2)

    def test_an_interrupted_step_is_counted(self) -> None:
        """Ctrl-C while the native step runs: the step is whole and counted, and the next one is what it would have been."""
        expected, reference = train(lambda m: AdamW(m.parameters(), lr=1e-2, clip_norm=1.0), 4)
        model, optimizer = train(lambda m: AdamW(m.parameters(), lr=1e-2, clip_norm=1.0), 2)

        def interrupted(self, *arguments):
            before = signal.getsignal(signal.SIGINT)
            begin(self, *arguments)
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is before
        begin = Optimizer.begin_step
        with unittest.mock.patch.object(Optimizer, "begin_step", interrupted), self.assertRaises(KeyboardInterrupt):
            train(lambda m: optimizer, 1, model=model, first=2)
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        self.assertEqual(float(optimizer.state_dict()["state"][0]["step"]), 3)
        optimizer.zero_grad()
        train(lambda m: optimizer, 1, model=model, first=3)
        self.assertTrue(same(model, expected))
        self.assertTrue(same_state(optimizer.state_dict(), reference.state_dict()))

    def test_signals_that_are_held_run_all(self) -> None:
        ran = []
        before = signal.signal(signal.SIGUSR1, lambda *_: ran.append("usr1"))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with self.assertRaises(KeyboardInterrupt), _signals.held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGUSR1)
            self.assertEqual(ran, [])
            ran.append("block")
        self.assertEqual(ran, ["block", "usr1"])

    def test_a_parameter_that_was_replaced(self) -> None:
        model, optimizer = train(lambda m: AdamW(m), 1)
        model[3].weight = torch.nn.Parameter(model[3].weight.detach().clone())
        with self.assertRaisesRegex(stowage.Error, "3.weight: the module now holds another tensor than when the optimizer was made"):
            train(lambda m: optimizer, 1, model=model)

    def test_fp16_is_refused_at_once(self) -> None:
        with self.assertRaisesRegex(stowage.Error, "^0.weight: found torch.float16, expected torch.float32 or torch.bfloat16"):
            AdamW(mlp(dtype=torch.float16))
        frozen = mlp()
        frozen[0].requires_grad_(False).half()
        optimizer = AdamW(frozen)
        with self.assertRaisesRegex(stowage.Error, "group1.param0: found torch.float64"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))]})
        self.assertEqual(len(optimizer.param_groups), 1)

    def test_closure(self) -> None:
        model = mlp()
        optimizer = AdamW(model.parameters(), lr=1e-2)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss
        losses = [float(optimizer.step(closure)) for _ in range(3)]
        self.assertLess(losses[2], losses[0])

    def test_more_than_eight_groups(self) -> None:
        def groups(model):
            return [{"params": [p], "lr": 1e-3 * (n + 1)} for n, p in enumerate(model.parameters())]

        def deep():
            torch.manual_seed(1)
            return torch.nn.Sequential(*[torch.nn.Linear(96, 96) for _ in range(6)])
        theirs, _ = train(lambda m: torch.optim.AdamW(groups(m)), 1, model=deep())
        mine, optimizer = train(lambda m: AdamW(groups(m)), 1, model=deep())
        self.assertEqual(len(optimizer.param_groups), 12)
        self.assertLess(distance(mine, theirs), 1e-6)

    def test_the_norm_is_of_all_parts(self) -> None:
        """Parameters of two dtypes are two native optimizers with one norm."""
        def mixed():
            model = mlp()
            model[0].to(torch.bfloat16)
            return model

        def loss(model, step):
            x = model[0](batch(step).bfloat16()).float()
            return (model[1:](x) * 40).pow(2).mean()
        norms = []
        for clip in [None, 1.0]:
            model = mixed()
            optimizer = AdamW(model.parameters(), clip_norm=clip)
            loss(model, 0).backward()
            if clip is None:
                norms.append(float(torch.stack([p.grad.double().pow(2).sum() for p in model.parameters()]).sum().sqrt()))
            optimizer.step()
            if clip is not None:
                norms.append(optimizer.grad_norm)
                self.assertEqual(len(optimizer.info), 2)
        self.assertAlmostEqual(norms[1] / norms[0], 1.0, places=6)

    def test_groups_that_must_agree(self) -> None:
        groups = decay_groups(mlp())
        groups[1]["betas"] = (0.8, 0.9)
        with self.assertRaisesRegex(ValueError, r"betas: parameter group 1 has \(0.8, 0.9\), group 0 has"):
            AdamW(groups)
        optimizer = AdamW(decay_groups(mlp()))
        optimizer.param_groups[1]["eps"] = 1e-3
        with self.assertRaisesRegex(ValueError, "eps: parameter group 1"):
            optimizer.step()

    def test_what_is_refused(self) -> None:
        params = list(mlp().parameters())
        for name in ["amsgrad", "maximize", "capturable", "differentiable"]:
            with self.assertRaisesRegex(ValueError, f"{name}=True is not supported"):
                AdamW(params, **{name: True})
        AdamW(params, foreach=True)
        AdamW(params, fused=True)
        with self.assertRaisesRegex(ValueError, "clip_norm"):
            AdamW(params, clip_norm=0)
        with self.assertRaisesRegex(ValueError, "gpu_memory"):
            AdamW(params, gpu_memory="some")
        with self.assertRaisesRegex(TypeError, "ordered"):
            AdamW(set(params))
        with self.assertRaisesRegex(ValueError, "lr of parameter group 0: found -1"):
            AdamW(params, lr=-1)

    def test_pickle_and_copy(self) -> None:
        optimizer = AdamW(mlp().parameters())
        for attempt in [pickle.dumps, copy.deepcopy, copy.copy]:
            with self.assertRaisesRegex(TypeError, "cannot be pickled or copied"):
                attempt(optimizer)

    def test_add_param_group_between_steps(self) -> None:
        def run(kind):
            model = mlp()
            optimizer = kind(list(model.parameters())[:2], lr=1e-2)
            loss_of(model, 0).backward()
            optimizer.step()
            model.zero_grad()
            optimizer.add_param_group({"params": list(model.parameters())[2:], "lr": 3e-3})
            for step in range(2):
                loss_of(model, step).backward()
                optimizer.step()
                model.zero_grad()
            return model, optimizer
        theirs, mine = run(torch.optim.AdamW), run(AdamW)
        self.assertLess(distance(mine[0], theirs[0]), 1e-5)
        steps = [[int(row["step"]) for row in o.state_dict()["state"].values()] for o in [mine[1], theirs[1]]]
        self.assertEqual(steps[0], steps[1])

    def test_scaler_skips_infinite_gradients(self) -> None:
        if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
            self.skipTest("this torch scales on CUDA only")
        model = mlp()
        optimizer = AdamW(model, lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=1000)
        plain, _ = train(lambda m: AdamW(m, lr=1e-2), 2, accumulate=1)
        for step in [0, 7, 1]:
            loss = loss_of(model, step)
            scaler.scale(loss * float("inf") if step == 7 else loss).backward()
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if step == 7:
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, model.parameters())))
        self.assertEqual(int(optimizer.state_dict()["state"][0]["step"]), 2)
        self.assertLess(distance(model, plain), 1e-5)


class Scheduled:
    """Steps a scheduler after its optimizer."""

    def __init__(self, optimizer, scheduler) -> None:
        self.optimizer, self.scheduler = optimizer, scheduler

    def step(self) -> None:
        self.optimizer.step()
        self.scheduler.step()

    def zero_grad(self, set_to_none: bool) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(50, 96)
        self.body = torch.nn.Linear(96, 96)
        self.head = torch.nn.Linear(96, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


class Modules(unittest.TestCase):
    def test_frozen_parameters_have_no_state(self) -> None:
        """LoRA: a frozen layer with two small trainable matrices beside it."""
        def model():
            m = mlp()
            m.requires_grad_(False)
            m.down, m.up = torch.nn.Linear(96, 4, bias=False), torch.nn.Linear(4, 17, bias=False)
            return m

        def loss(m, step):
            x = batch(step)
            return (m[:6](x) + m.up(m.down(x))).pow(2).mean()
        results = []
        for kind in [torch.optim.AdamW, AdamW]:
            m = model()
            optimizer = kind(m.parameters(), lr=1e-2)
            frozen = m[0].weight.detach().clone()
            for step in range(3):
                loss(m, step).backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assertTrue(torch.equal(frozen, m[0].weight))
            results.append((m, sorted(optimizer.state_dict()["state"])))
        self.assertLess(distance(results[0][0], results[1][0]), 1e-5)
        self.assertEqual(results[0][1], results[1][1])

    def test_tied_parameters_step_once(self) -> None:
        def run(make):
            model = Tied()
            optimizer = make(model)
            for step in range(3):
                x = torch.randint(0, 50, (4, 8), generator=torch.Generator().manual_seed(step))
                model(x).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return model
        theirs = run(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for mine in [run(lambda m: AdamW(m, lr=1e-2)),
                         run(lambda m: AdamW([m.embed.weight, *m.body.parameters(), m.head.weight], lr=1e-2))]:
                self.assertLess(distance(mine, theirs), 1e-5)

    def test_activation_checkpointing(self) -> None:
        from torch.utils.checkpoint import checkpoint_sequential

        def run(checkpointed):
            model = mlp()
            optimizer = AdamW(model, lr=1e-2)
            for step in range(4):
                x = batch(step).requires_grad_()
                out = checkpoint_sequential(model, 2, x, **extra) if checkpointed else model(x)
                out.pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return model
        extra = {"use_reentrant": False} if VERSION >= (2, 1) else {}
        self.assertTrue(same(run(False), run(True)))

    @unittest.skipIf(VERSION < (2, 1), "torch.compile needs torch 2.1")
    def test_compiled_modules(self) -> None:
        expected, _ = train(lambda m: AdamW(m, lr=1e-2), 3, accumulate=1)
        for where in ["around", "inside", "hooked before"]:
            with self.subTest(where=where):
                torch._dynamo.reset()
                model = mlp()
                optimizer = AdamW(model.parameters(), lr=1e-2)
                if where == "hooked before":
                    optimizer.hide_behind(model)
                if where == "inside":
                    model[3].compile(backend="eager", fullgraph=True)
                    compiled = model
                else:
                    compiled = torch.compile(model, backend="eager", fullgraph=True)
                if where != "hooked before":
                    optimizer.hide_behind(compiled)
                for step in range(3):
                    loss_of(compiled, step).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                self.assertTrue(same(model, expected))


class Changes(unittest.TestCase):
    def setUp(self) -> None:
        self.model = mlp()
        self.optimizer = AdamW(self.model.named_parameters(), lr=1e-2)

    def backward(self, step: int = 0) -> None:
        loss_of(self.model, step).backward()

    def test_a_missing_gradient_is_named(self) -> None:
        self.backward()
        self.model[3].weight.grad = None
        with self.assertRaisesRegex(stowage.Error, "3.weight: the parameter has no gradient; call backward"):
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()  # and the optimizer goes on
        self.optimizer.zero_grad()
        with self.assertRaisesRegex(stowage.Error, "0.weight: the parameter has no gradient"):
            self.optimizer.step()
        self.assertEqual(int(self.optimizer.state_dict()["state"][0]["step"]), 1)
        self.backward()
        self.optimizer.step()
        self.assertEqual(int(self.optimizer.state_dict()["state"][0]["step"]), 2)

    def test_gradients_in_another_layout(self) -> None:
        expected, _ = train(lambda m: AdamW(m.named_parameters(), lr=1e-2), 2, accumulate=1)
        for step in range(2):
            self.backward(step)
            for param in self.model.parameters():
                if param.ndim == 2:
                    param.grad = param.grad.t().contiguous().t()
                    self.assertFalse(param.grad.is_contiguous())
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.assertTrue(same(self.model, expected))

    def test_channels_last(self) -> None:
        def conv():
            torch.manual_seed(0)
            return torch.nn.Conv2d(8, 16, 3)
        results = []
        for form in [torch.contiguous_format, torch.channels_last]:
            model = conv().to(memory_format=form)
            optimizer = AdamW(model.parameters(), lr=1e-2)
            model(torch.ones(1, 8, 5, 5)).pow(2).mean().backward()
            optimizer.step()
            results.append((model.weight.detach().contiguous(), optimizer.state_dict()["state"][0]["exp_avg"].contiguous()))
        self.assertTrue(torch.allclose(results[0][0], results[1][0], atol=1e-7))
        self.assertTrue(torch.allclose(results[0][1], results[1][1], atol=1e-7))

    def test_a_sparse_gradient(self) -> None:
        table = torch.nn.Embedding(30, 4, sparse=True)
        optimizer = AdamW(table.named_parameters())
        table(torch.tensor([1, 2])).sum().backward()
        with self.assertRaisesRegex(stowage.Error, "weight: found a gradient of layout torch.sparse_coo"):
            optimizer.step()

    def test_moved_parameters_are_found(self) -> None:
        expected, _ = train(lambda m: AdamW(m.named_parameters(), lr=1e-2), 2, accumulate=1)
        self.backward(0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        kept = [p.data for p in self.model.parameters()]
        for param in self.model.parameters():
            param.data = param.data.clone()
        old = [k.clone() for k in kept]
        self.backward(1)
        self.optimizer.step()
        self.assertTrue(same(self.model, expected))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(kept, old)))

    def test_changed_parameters_are_refused(self) -> None:
        for change, what in [(lambda p: p.double(), "dtype"), (lambda p: p[:5].clone(), "shape"), (lambda p: p.t().contiguous().t(), "strides")]:
            with self.subTest(what=what):
                model = torch.nn.Linear(10, 10)
                optimizer = AdamW(model.named_parameters())
                model(torch.ones(10)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                model.weight.data = change(model.weight.data)
                model.weight.grad = torch.ones_like(model.weight)
                model.bias.grad = torch.ones_like(model.bias)
                with self.assertRaisesRegex(stowage.Error, f"weight: .*{what}|weight: found a gradient"):
                    optimizer.step()

    def test_memory_that_is_not_there(self) -> None:
        optimizer = AdamW(torch.nn.Linear(2, 2, device="meta").named_parameters())
        with self.assertRaisesRegex(stowage.Error, "weight: found a meta tensor"):
            optimizer.step()

    def test_not_enough_host_memory(self) -> None:
        model = torch.nn.Linear(512, 512)
        optimizer = AdamW(model.parameters())
        model(torch.ones(512)).sum().backward()
        with unittest.mock.patch("stowage.torch.local_plan._host_bytes", return_value=1 << 20):
            with self.assertRaisesRegex(stowage.Error, "state does not fit into this node's host memory"):
                optimizer.step()
        optimizer.step()


class Processes(unittest.TestCase):
    def test_two_optimizers(self) -> None:
        expected, _ = train(lambda m: AdamW(m, lr=1e-2), 4, accumulate=1)
        models = [mlp(), mlp()]
        optimizers = [AdamW(m, lr=1e-2) for m in models]
        for step in range(4):
            for model, optimizer in zip(models, optimizers):
                loss_of(model, step).backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertTrue(same(models[0], expected) and same(models[1], expected))
        self.assertTrue(same_state(optimizers[0].state_dict(), optimizers[1].state_dict()))

    def test_memory_goes_with_the_optimizer(self) -> None:
        import weakref
        model = mlp()
        optimizer = AdamW(model, lr=1e-2)
        train(lambda m: optimizer, 1, model=model)
        native = weakref.ref(optimizer._parts[0].native)
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        self.assertIsNone(gone())
        self.assertIsNone(native())
        model(batch(0))  # its hooks do nothing
        copy.deepcopy(model)(batch(0))
        pickle.loads(pickle.dumps(model))(batch(0))

    def test_a_model_that_holds_its_optimizer(self) -> None:
        """As a LightningModule does; also with a step under way."""
        import weakref
        for hidden in [False, True]:
            model = torch.nn.Sequential(mlp(), torch.nn.LayerNorm(17))
            model.register_parameter("scale", torch.nn.Parameter(torch.ones(())))
            model.register_forward_hook(lambda module, _, out: out * module.scale)
            model.optimizer = AdamW(model, lr=1e-2, overlap=hidden)
            loss_of(model, 0).backward()
            model.optimizer.step()
            self.assertEqual(model.optimizer._overlap.flight is not None, hidden)
            gone = weakref.ref(model.optimizer), weakref.ref(model)
            del model
            gc.collect()
            self.assertEqual([about() for about in gone], [None, None])

    def run_script(self, text: str) -> str:
        result = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, universal_newlines=True, timeout=120, cwd=os.path.dirname(__file__))
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_interpreter_exit_after_a_step(self) -> None:
        out = self.run_script("""
            from _jobs import mlp, train
            from stowage.torch import AdamW
            model, optimizer = train(lambda m: AdamW(m, clip_norm=1.0), 2)
            print("end")
        """)
        self.assertEqual(out, "end\n")

    def test_fork(self) -> None:
        out = self.run_script("""
            import os, sys
            from _jobs import loss_of, mlp, train
            import stowage
            from stowage.torch import AdamW
            model, optimizer = train(lambda m: AdamW(m), 2)
            child = os.fork()
            if child == 0:
                for p in model.parameters():
                    p.grad = p.detach().clone()
                try:
                    optimizer.step()
                except stowage.Error as error:
                    print(error, flush=True)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            loss_of(model, 5).backward()
            optimizer.step()
            print(int(optimizer.state_dict()["state"][0]["step"]))
        """)
        self.assertEqual(out, "the optimizer was made by another process; a forked child must make its own\n3\n")


class GivenAModule(unittest.TestCase):
    """An optimizer that was given a module."""

    def test_layers_unfrozen_later_are_trained(self) -> None:
        model = mlp()
        model[0].requires_grad_(False)
        optimizer = AdamW(model, lr=1e-2)
        train(lambda m: optimizer, 1, model=model)
        before = model[0].weight.detach().clone()
        model.requires_grad_(True)
        train(lambda m: optimizer, 1, model=model, first=1)
        self.assertFalse(torch.equal(before, model[0].weight))

    def test_it_may_be_hidden_behind_again(self) -> None:
        model = mlp()
        optimizer = AdamW(model, lr=1e-2, overlap=True)
        optimizer.hide_behind(model)
        train(lambda m: optimizer, 2, model=model)

    def test_groups_without_names_are_added(self) -> None:
        model, other = mlp(), torch.nn.Linear(3, 2)
        optimizer = AdamW(model, lr=1e-2)
        optimizer.add_param_group({"params": other.parameters()})
        before = other.weight.detach().clone()
        loss_of(model, 0).backward()
        other(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        self.assertFalse(torch.equal(before, other.weight))


if __name__ == "__main__":
    unittest.main()
