# SPDX-License-Identifier: Apache-2.0
"""state_dict in torch.optim.AdamW's format: there and back, resumed, saved, by torch.distributed.checkpoint."""

import io
import unittest
import warnings

import torch
from _jobs import KIB, decay_groups, distance, mlp, same, same_state, train

import stowage
from stowage.torch import AdamW

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])


def mine(model, **options):
    return AdamW(decay_groups(model), lr=1e-2, **options)


def theirs(model):
    return torch.optim.AdamW(decay_groups(model), lr=1e-2)


class Format(unittest.TestCase):
    def test_it_is_torchs(self) -> None:
        _, a = train(mine, 3)
        _, b = train(theirs, 3)
        left, right = a.state_dict(), b.state_dict()
        self.assertEqual(left["state"].keys(), right["state"].keys())
        for number, row in right["state"].items():
            self.assertEqual(left["state"][number].keys(), row.keys())
            for key, value in row.items():
                self.assertEqual(left["state"][number][key].shape, value.shape)
                self.assertEqual(left["state"][number][key].dtype, torch.as_tensor(value).dtype)
                self.assertEqual(left["state"][number][key].device.type, "cpu")
        for group, other in zip(left["param_groups"], right["param_groups"]):
            self.assertEqual(group["params"], other["params"])
            self.assertLessEqual(set(other), set(group))
            self.assertEqual(group["lr"], other["lr"])

    def test_before_the_first_step(self) -> None:
        model = mlp()
        optimizer = mine(model)
        empty = optimizer.state_dict()
        self.assertEqual(empty["state"], {})
        optimizer.load_state_dict(empty)
        self.assertEqual(optimizer.info, [])

    def test_it_is_a_copy(self) -> None:
        model, optimizer = train(mine, 2)
        saved = optimizer.state_dict()
        kept = {k: v.clone() for k, v in saved["state"][0].items()}
        train(lambda m: optimizer, 1, model=model)
        self.assertTrue(all(torch.equal(kept[k], saved["state"][0][k]) for k in kept))


class Resume(unittest.TestCase):
    def resume(self, dtype, through=lambda state: state, **options) -> None:
        whole, last = train(lambda m: mine(m, clip_norm=1.0), 8, dtype)
        model, optimizer = train(lambda m: mine(m, clip_norm=1.0), 4, dtype)
        saved = through(optimizer.state_dict())

        def resumed(m):
            other = mine(m, clip_norm=1.0, **options)
            other.load_state_dict(saved)
            return other
        other = mlp(5, dtype)
        other.load_state_dict(model.state_dict())
        model, optimizer = train(resumed, 4, dtype, model=other, first=4)
        self.assertTrue(same(whole, model))
        self.assertTrue(same_state(last.state_dict(), optimizer.state_dict()))

    def test_bits(self) -> None:
        self.resume(torch.float32)
        self.resume(torch.bfloat16)

    def test_with_other_placement(self) -> None:
        self.resume(torch.bfloat16, gpu_memory=1 << 30)
        self.resume(torch.float32, bucket=64 * KIB, depth=1)

    def test_through_a_file(self) -> None:
        def through(state):
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            return torch.load(file)
        self.resume(torch.bfloat16, through)

    def test_to_torch_and_back(self) -> None:
        expected, _ = train(theirs, 6)
        for first, second in [(mine, theirs), (theirs, mine)]:
            model, optimizer = train(first, 3)

            def resumed(m):
                other = second(m)
                other.load_state_dict(optimizer.state_dict())
                return other
            model, optimizer = train(resumed, 3, model=model, first=3)
            self.assertLess(distance(model, expected), 1e-4)
            self.assertEqual(float(optimizer.state_dict()["state"][0]["step"]), 6)

    def test_loading_again_replaces_everything(self) -> None:
        model, optimizer = train(mine, 3)
        saved = optimizer.state_dict()
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        results = []
        for _ in range(2):
            train(lambda m: optimizer, 2, model=model, first=3)
            results.append(optimizer.state_dict())
            optimizer.load_state_dict(saved)
            model.load_state_dict(weights)
        self.assertTrue(same_state(*results))
        optimizer.load_state_dict({**saved, "state": {}})
        self.assertEqual(float(optimizer.state_dict()["state"][0]["step"]), 0)
        self.assertEqual(float(optimizer.state_dict()["state"][0]["exp_avg"].abs().max()), 0)

    def test_masters_are_made_from_parameters(self) -> None:
        model, optimizer = train(mine, 3, torch.bfloat16)
        saved = optimizer.state_dict()
        for row in saved["state"].values():
            del row["master"]
        optimizer.load_state_dict(saved)
        for number, row in optimizer.state_dict()["state"].items():
            param = [p for g in optimizer.param_groups for p in g["params"]][number]
            self.assertTrue(torch.equal(row["master"], param.float()))

    def through_torch(self, steps):
        """Trained here, then by torch, which carries masters along; its model, and the state to load."""
        model, optimizer = train(mine, 3, torch.bfloat16)
        other = theirs(model)
        other.load_state_dict(optimizer.state_dict())
        train(lambda m: other, steps, torch.bfloat16, model=model, first=3)
        self.assertIn("master", other.state_dict()["state"][0])
        return model, other.state_dict()

    def test_training_by_torch_is_kept(self) -> None:
        model, saved = self.through_torch(20)
        fresh = mlp(5, torch.bfloat16)
        for order in ["params first", "state first"]:
            weights = model if order == "params first" else fresh
            resumed = mlp(5, torch.bfloat16)
            resumed.load_state_dict(weights.state_dict())
            optimizer = mine(resumed)
            optimizer.load_state_dict(saved)
            resumed.load_state_dict(model.state_dict())
            with self.assertWarnsRegex(UserWarning, "0.weight|group0.param0.*master weights are made anew") as warned:
                train(lambda m: optimizer, 1, torch.bfloat16, model=resumed, first=23)
            self.assertEqual(len(warned.warnings), 1)
            bare = {**saved, "state": {n: {k: v for k, v in row.items() if k != "master"} for n, row in saved["state"].items()}}
            expected = mlp(5, torch.bfloat16)
            expected.load_state_dict(model.state_dict())
            without = mine(expected)
            without.load_state_dict(bare)
            train(lambda m: without, 1, torch.bfloat16, model=expected, first=23)
            self.assertLess(distance(resumed, expected), 1e-2, order)

    def test_masters_of_torch_that_trained_nothing_are_used(self) -> None:
        model, saved = self.through_torch(0)
        resumed = mine(model)
        resumed.load_state_dict(saved)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(lambda m: resumed, 1, torch.bfloat16, model=model, first=3)

    def test_adopt_params(self) -> None:
        model, optimizer = train(mine, 2, torch.bfloat16)
        with torch.no_grad():
            model[0].weight.add_(1)
        optimizer.adopt_params()
        self.assertTrue(torch.equal(optimizer.state_dict()["state"][0]["master"], model[0].weight.float()))


class Refused(unittest.TestCase):
    def setUp(self) -> None:
        self.model, self.optimizer = train(lambda m: AdamW(m.named_parameters()), 2)
        self.saved = self.optimizer.state_dict()

    def test_another_shape(self) -> None:
        self.saved["state"][0]["exp_avg"] = torch.zeros(3)
        with self.assertRaisesRegex(stowage.Error, r"0.weight: exp_avg has shape \(3,\), expected \(256, 96\)"):
            self.optimizer.load_state_dict(self.saved)

    def test_some_parameters_only(self) -> None:
        del self.saved["state"][1]
        with self.assertRaisesRegex(stowage.Error, "0.bias: the state to load lacks it"):
            self.optimizer.load_state_dict(self.saved)

    def test_steps_that_differ(self) -> None:
        self.saved["state"][1]["step"] = torch.tensor(7.0)
        with self.assertRaisesRegex(stowage.Error, "0.bias: the state is of step 7, that of 0.weight is of step 2"):
            self.optimizer.load_state_dict(self.saved)

    def test_amsgrad(self) -> None:
        optimizer = torch.optim.AdamW(self.model.parameters(), amsgrad=True)
        for param in self.model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        with self.assertRaisesRegex(ValueError, "amsgrad=True is not supported"):
            self.optimizer.load_state_dict(optimizer.state_dict())
        self.optimizer.step()  # as it was

    def test_other_groups(self) -> None:
        with self.assertRaisesRegex(ValueError, "parameter groups"):
            AdamW(decay_groups(self.model)).load_state_dict(self.saved)


@unittest.skipIf(VERSION < (2, 3), "torch.distributed.checkpoint.state_dict needs torch 2.3")
class DistributedCheckpoint(unittest.TestCase):
    def test_plain_tensors(self) -> None:
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

        expected, _ = train(lambda m: AdamW(m, lr=1e-2), 6)
        model, optimizer = train(lambda m: AdamW(m, lr=1e-2), 3)
        saved = get_optimizer_state_dict(model, optimizer)
        self.assertIn("0.weight", saved["state"])
        self.assertEqual(saved["state"]["0.weight"]["exp_avg"].shape, (256, 96))
        other = mlp(7)
        other.load_state_dict(model.state_dict())
        fresh = AdamW(other, lr=1e-2)
        set_optimizer_state_dict(other, fresh, saved)
        train(lambda m: fresh, 3, model=other, first=3)
        self.assertTrue(same(other, expected))


if __name__ == "__main__":
    unittest.main()
