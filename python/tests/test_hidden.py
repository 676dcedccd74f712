# SPDX-License-Identifier: Apache-2.0
"""Nobody sees the values before a hidden step. Updates appear when they are waited for (_lazy.py); what is read and trained is
compared with a job whose step() waits."""

import copy
import pickle
import unittest

import torch
from _jobs import batch, loss_of, mlp
from _lazy import lazily
from torch.nn.functional import linear

from stowage.torch import AdamW

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])
STEPS = 5


def values(tensors):
    return [t.detach().clone() for t in tensors]


def nothing(model, optimizer):
    return []


def usual(model, call, step):
    return loss_of(call, step)


class Hidden(unittest.TestCase):
    def job(self, hide, build, forward=usual, after=nothing, wrap=lambda model: (model, model)):
        """Losses, what `after` read after each step, and how many parameters were under way then. wrap: model -> what the
        step is hidden behind, and what `forward` calls."""
        with lazily():
            model = build()
            behind, call = wrap(model)
            optimizer = AdamW([p for p in behind.parameters() if p.requires_grad], lr=1e-2)
            if hide:
                optimizer.hide_behind(behind)
            seen, under_way = [], []
            for step in range(STEPS):
                loss = forward(model, call, step)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                flight = optimizer._overlap.flight
                under_way.append(len(flight) if flight is not None else 0)
                seen.append([loss.detach().clone(), *after(model, optimizer)])
            optimizer.wait()
            return [*seen, values(behind.parameters())], under_way

    def compare(self, build=mlp, hidden=8, **how):
        """hidden: parameters that are under way after the first step; the number tells that the case is a case."""
        expected, none = self.job(False, build, **how)
        self.reset()
        found, under_way = self.job(True, build, **how)
        self.assertEqual(set(none), {0})
        for step, (a, b) in enumerate(zip(expected, found)):
            self.assertEqual(len(a), len(b))
            self.assertTrue(all(torch.equal(x, y) for x, y in zip(a, b)), f"step {step} differs")
        if hidden is not None:
            self.assertEqual(under_way[0], hidden)
        return under_way

    def reset(self):
        if VERSION >= (2, 1):
            torch._dynamo.reset()


class Reads(Hidden):
    """Between a step and the next forward."""

    def test_through_the_module(self):
        reads = {
            "a parameter": lambda m, _: [m[3].weight],
            "parameters()": lambda m, _: m.parameters(),
            "named_parameters()": lambda m, _: [p for _, p in m[3].named_parameters()],
            "state_dict()": lambda m, _: m.state_dict().values(),
            "state_dict() of a layer": lambda m, _: m[3].state_dict().values(),
            "copy.deepcopy": lambda m, _: copy.deepcopy(m).parameters(),
            "copy.deepcopy of a layer": lambda m, _: copy.deepcopy(m[3]).parameters(),
            "pickle": lambda m, _: pickle.loads(pickle.dumps(m)).parameters(),
            "a forward of a layer": lambda m, _: [m[3](torch.ones(2, 256))],
            "a forward of all": lambda m, _: [m(batch(0))],
            "past the module": lambda m, _: [linear(torch.ones(2, 256), m[3].weight, m[3].bias)],
            "_parameters": lambda m, _: [m[3]._parameters["weight"], *dict(m[5]._parameters).values(),
                                         *{**m[2]._parameters}.values(), m[0]._parameters.get("bias")],
            "parameters_to_vector": lambda m, _: [torch.nn.utils.parameters_to_vector(m.parameters())],
        }
        for name, read in reads.items():
            for grad in [False, True]:
                with self.subTest(read=name, grad=grad):
                    def after(model, optimizer):
                        with torch.set_grad_enabled(grad):
                            return values(read(model, optimizer))
                    self.compare(after=after)

    def test_a_moving_average(self):
        from torch.optim.swa_utils import AveragedModel

        averages = {}

        def after(model, _):
            if id(model) not in averages:
                averages.clear()
                averages[id(model)] = AveragedModel(model)
            averages[id(model)].update_parameters(model)
            return values(averages[id(model)].parameters())
        self.compare(after=after)

    def test_functional_call(self):
        if VERSION < (2, 0):
            self.skipTest("torch.func needs torch 2.0")

        def after(model, _):
            with torch.no_grad():
                return [torch.func.functional_call(model, {"5.bias": torch.zeros(17)}, batch(1))]
        self.compare(after=after)

    def test_another_model_with_the_same_parameters(self):
        """Modules that had them before the step are found; step() waits for those parameters."""
        heads = []

        def build():
            model = mlp()
            heads.append(torch.nn.Linear(256, 128))
            heads[-1].weight = model[3].weight
            return model

        def after(model, _):
            with torch.no_grad():
                return [heads[-1](torch.ones(1, 256))]
        self.compare(build, hidden=7, after=after)

    def test_a_second_optimizer(self):
        """It steps the same parameters."""
        others = {}

        def after(model, optimizer):
            others.setdefault(id(optimizer), AdamW(optimizer.param_groups[0]["params"], lr=1e-3))
            for param in optimizer.param_groups[0]["params"]:
                param.grad = torch.ones_like(param)
            others[id(optimizer)].step()
            optimizer.zero_grad()
            return values(optimizer.param_groups[0]["params"])
        with self.assertWarnsRegex(UserWarning, "another stowage.torch.AdamW has"):
            self.compare(after=after)


class Writes(Hidden):
    """Changes between a step and the next forward: the step may not come after them."""

    def test_through_the_module(self):
        half = [p.detach() / 2 for p in mlp().parameters()]
        names = [n for n, _ in mlp().named_parameters()]

        def by_hand(m, _):
            with torch.no_grad():
                for param in m.parameters():
                    param.clamp_(-0.03, 0.03)
            return []
        writes = {
            "load_state_dict": lambda m, _: [m.load_state_dict(dict(zip(names, half)))][:0],
            "load_state_dict of a layer": lambda m, _: [m[3].load_state_dict({"weight": half[4], "bias": half[5]})][:0],
            "data of a layer": lambda m, _: [m[3].weight.data.mul_(0.5)],
            "a new data": lambda m, _: setattr(m[3].weight, "data", m[3].weight.data * 0.5) or [],
            "in place": by_hand,
            "vector_to_parameters": lambda m, _: torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(m.parameters()) / 2, m.parameters()) or [],
            "_apply": lambda m, _: [m._apply(lambda t: t * 0.5)][:0],
            "_apply of a layer": lambda m, _: [m[3]._apply(lambda t: t * 0.5)][:0],
        }
        for name, write in writes.items():
            with self.subTest(write=name):
                self.compare(after=write)

    def test_conversions(self):
        """The optimizer refuses to go on after most of them; what was converted are the values after the step."""
        changes = {"half": lambda m: m.half(), "double": lambda m: m.double(), "bfloat16": lambda m: m[3].to(torch.bfloat16),
                   "share_memory": lambda m: m.share_memory()}
        for name, change in changes.items():
            with self.subTest(change=name):
                results = []
                for hide in [False, True]:
                    with lazily():
                        model = mlp()
                        optimizer = AdamW(model, lr=1e-2, overlap=hide)
                        loss_of(model, 0).backward()
                        optimizer.step()
                        self.assertEqual(optimizer._overlap.flight is not None, hide)
                        results.append(values(change(model).parameters()))
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(*results)))

    def test_gradients_zeroed_in_place(self):
        self.compare(after=lambda m, _: m.zero_grad(set_to_none=False) or [])
        self.compare(after=lambda m, o: o.zero_grad(set_to_none=False) or [])

    def test_gradients_dropped(self):
        """By the model, as Trainers do: nothing is read, and the step stays hidden."""
        with lazily():
            model = mlp()
            optimizer = AdamW(model, lr=1e-2, overlap=True)
            loss_of(model, 0).backward()
            optimizer.step()
            model.zero_grad(set_to_none=True)
            self.assertEqual(len(optimizer._overlap.flight), 8)
            self.assertEqual(optimizer._parts[0].native.waits, 0)


class Branch(torch.nn.Module):
    """Uses weights in ways that forward hooks do not see."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embed = torch.nn.Embedding(50, 32)
        self.attention = torch.nn.MultiheadAttention(32, 2, batch_first=True)  # reads out_proj.weight
        self.rnn = torch.nn.LSTM(32, 32, batch_first=True)  # keeps a list of its weights
        self.scale = torch.nn.Parameter(torch.ones(32))  # of a module that has others below it
        self.norm = torch.nn.LayerNorm(32)
        self.head = torch.nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def body(self, tokens):
        x = self.embed(tokens)
        x, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(self.rnn(x)[0] * self.scale)

    def forward(self, tokens, fused=False):
        x = self.body(tokens)
        return linear(x, self.head.weight) if fused else self.head(x)


def tokens(step):
    return torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(step))


class Models(Hidden):
    def test_modules_of_many_kinds(self):
        for name, forward in {
            "as it is": lambda m, c, s: m(tokens(s)).pow(2).mean(),
            "a fused loss": lambda m, c, s: m(tokens(s), True).pow(2).mean(),
            "by turns": lambda m, c, s: m(tokens(s), s % 2 == 1).pow(2).mean(),
            "without forward of the model": lambda m, c, s: linear(m.body(tokens(s)), m.head.weight).pow(2).mean(),
        }.items():
            with self.subTest(name):
                def after(model, _):
                    with torch.no_grad():
                        return [model.eval()(tokens(9)), model.train()(tokens(9))]
                under_way = self.compare(Branch, hidden=None, forward=forward, after=after)
                self.assertGreater(min(under_way), 5)

    def test_a_layer_that_a_forward_leaves_out(self):
        """The end of the forward waits for it."""
        with lazily():
            model = Branch()
            optimizer = AdamW(model, lr=1e-2, overlap=True)
            model(tokens(0)).sum().backward()
            optimizer.step()
            model.norm.register_forward_pre_hook(lambda *_: None)
            model.forward = lambda x: model.embed(x)
            model(tokens(1))
            self.assertIsNone(optimizer._overlap.flight)
            self.assertEqual(type(model.norm._parameters), type(torch.nn.Linear(1, 1)._parameters))

    def test_a_module_that_is_not_called(self):
        """A ModuleList between, a module without parameters around: nothing is lost."""
        class Deep(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(5)
                self.layers = torch.nn.ModuleList([torch.nn.Linear(96, 96) for _ in range(3)])

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x).relu()
                return x
        self.compare(Deep, hidden=6)

    def test_script_modules_are_waited_for(self):
        def build():
            model = mlp()
            model[3] = torch.jit.script(model[3])
            return model
        self.compare(build, hidden=6, after=lambda m, _: [m[3](torch.ones(1, 256)).detach()])

    def test_data_parallel(self):
        self.compare(wrap=lambda m: (torch.nn.DataParallel(m),) * 2, after=lambda m, _: values(m.state_dict().values()))


@unittest.skipIf(VERSION < (2, 1), "torch.compile needs torch 2.1")
class Compiled(Hidden):
    """Graphs read parameters by themselves, and hooks of modules inside them do not run."""

    def kinds(self):
        def by_method(*modules):
            def wrap(model):
                for module in [model[i] for i in modules] or [model]:
                    module.compile(backend="eager", fullgraph=True)
                return model, model
            return wrap

        def compiled(call, first=False):
            def wrap(model):
                graph = torch.compile(lambda x: call(model, x), backend="eager", fullgraph=True)
                if first:
                    graph(batch(0))
                return model, graph
            return wrap

        def whole(model):
            graph = torch.compile(model, backend="eager", fullgraph=True)
            return graph, graph

        def past(model, x):
            return linear(model[:5](x), model[5].weight, model[5].bias)
        return {  # name: how it is made, and the most that is hidden
            "torch.compile(model)": (whole, 8),
            "torch.compile(model), hidden behind the model in it": (lambda m: (m, whole(m)[1]), 0),
            "model.compile()": (by_method(), 8),
            "every layer.compile()": (by_method(0, 1, 2, 3, 4, 5), 8),
            "one layer.compile()": (by_method(3), 8),
            "a function": (compiled(lambda m, x: m(x)), 0),
            "a function that ran": (compiled(lambda m, x: m(x), True), 0),
            "a function past the last layer": (compiled(past), 0),
            "a function past the last layer that ran": (compiled(past, True), 0),
        }

    def test_compiled_alone(self):
        for name, (wrap, hidden) in self.kinds().items():
            with self.subTest(name):
                self.assertEqual(set(self.compare(hidden=None, wrap=wrap)), {hidden})

    def test_by_turns_with_eager(self):
        for name, (wrap, _) in self.kinds().items():
            for turn in [0, 1]:
                with self.subTest(name, first=["eager", "compiled"][turn]):
                    self.compare(hidden=None, wrap=wrap,
                                 forward=lambda m, call, step: loss_of(call if (step + turn) % 2 else m, step))

    def test_compiled_evaluation(self):
        """Trained eagerly: hidden until the first evaluation."""
        for name, (wrap, _) in self.kinds().items():
            with self.subTest(name):
                calls = {}

                def wrapped(model):
                    behind, call = wrap(model)
                    calls[id(model)] = call
                    return model, model

                def after(model, optimizer):
                    with torch.no_grad():
                        return [calls[id(model)](batch(9))]
                self.compare(hidden=None, wrap=wrapped, after=after)

    def test_a_layer_alone(self):
        """A compiled layer is called past the model."""
        for layers in [(3,), (0, 1, 2, 3, 4, 5)]:
            def wrap(model):
                for layer in layers:
                    model[layer].compile(backend="eager", fullgraph=True)
                return model, model
            self.compare(wrap=wrap, after=lambda m, _: [m[3](torch.ones(2, 256)).detach()])


if __name__ == "__main__":
    unittest.main()
