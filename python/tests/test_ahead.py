# SPDX-License-Identifier: Apache-2.0
"""Look-ahead: how much is fetched at which gradient, that memory comes back, and that bits stay."""

import unittest
import unittest.mock

import torch
from _jobs import KIB, decay_groups, loss_of, mlp, same, same_state, train

from stowage._native import load
from stowage.torch import AdamW, ahead

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])
GIB = 1 << 30


class Schedule(unittest.TestCase):
    def test_what_lies_between_the_peak_and_all_that_follows(self) -> None:
        # gigabytes after each gradient: 10 are the peak, backward frees to 4, then the step takes 6
        segments = [n * GIB for n in [10, 9, 8, 7, 6, 5, 4, 6]]
        fetches = ahead.schedule(segments, 10 * GIB, 0, ahead.PIECE)
        held = 0
        for number, size in sorted(fetches.items()):
            held += size
            self.assertLessEqual(held + max(segments[number:]), 10 * GIB - ahead.MARGIN)
            self.assertGreaterEqual(size, ahead.PIECE)
        self.assertEqual(held, 4 * GIB - ahead.MARGIN)
        self.assertEqual(min(fetches), 1)

    def test_a_limit_and_a_full_gpu(self) -> None:
        segments = [n * GIB for n in [10, 5, 4, 4]]
        self.assertEqual(sum(ahead.schedule(segments, 10 * GIB, GIB, ahead.PIECE).values()), GIB)
        self.assertEqual(ahead.schedule([10 * GIB] * 5, 10 * GIB, 0, ahead.PIECE), {})
        self.assertEqual(ahead.schedule([], 10 * GIB, 0, ahead.PIECE), {})


class Meter:
    """Memory as a job has it that frees half of its peak in backward."""

    def __init__(self) -> None:
        self.calls = 0

    def highest(self) -> int:
        self.calls += 1
        return max(GIB - self.calls * 64 * (1 << 20), GIB // 2)

    def now(self) -> int:
        return GIB // 2

    def reset(self) -> None:
        pass


@unittest.skipUnless(VERSION >= (2, 1) and load().has("stw_fetch_ahead"), "look-ahead needs torch 2.1 and a library that has it")
class Jobs(unittest.TestCase):
    def setUp(self) -> None:
        for name, value in [("PIECE", 64 * KIB), ("MARGIN", 0)]:
            patch = unittest.mock.patch.object(ahead, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def make(self, **options):
        return lambda m: AdamW(decay_groups(m), lr=1e-2, clip_norm=1.0, bucket=64 * KIB, depth=1, **options)

    def test_bits_stay(self) -> None:
        for dtype in [torch.float32, torch.bfloat16]:
            whole, plain = train(self.make(), 8, dtype)
            model, optimizer = train(self.make(ahead=256 * KIB), 8, dtype)
            self.assertGreater(optimizer.fetched_ahead_bytes, 0)
            self.assertLessEqual(optimizer.fetched_ahead_bytes, 256 * KIB)
            self.assertTrue(same(model, whole))
            self.assertTrue(same_state(optimizer.state_dict(), plain.state_dict()))

    def test_other_numbers_of_backward_passes(self) -> None:
        whole, _ = train(self.make(), 4)
        whole, _ = train(lambda m: _, 4, accumulate=3, model=whole, first=4)
        model, optimizer = train(self.make(ahead=256 * KIB), 4)
        fetched = optimizer.fetched_ahead_bytes
        train(lambda m: optimizer, 1, accumulate=3, model=model, first=4)
        train(lambda m: optimizer, 1, accumulate=3, model=model, first=5)
        self.assertEqual(optimizer.fetched_ahead_bytes, 0)  # measured
        train(lambda m: optimizer, 2, accumulate=3, model=model, first=6)
        self.assertGreater(min(fetched, optimizer.fetched_ahead_bytes), 0)
        self.assertTrue(same(model, whole))

    def test_loading_makes_a_fetch_void(self) -> None:
        model, optimizer = train(self.make(ahead=256 * KIB), 4)
        saved = optimizer.state_dict()
        expected, other = train(lambda m: self.loaded(m, saved), 2, model=self.copy(model), first=4)
        loss_of(model, 99).backward()  # fetches
        optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        train(lambda m: optimizer, 2, model=model, first=4)
        self.assertTrue(same(model, expected))
        self.assertTrue(same_state(optimizer.state_dict(), other.state_dict()))

    def loaded(self, model, saved):
        optimizer = self.make()(model)
        optimizer.load_state_dict(saved)
        return optimizer

    def copy(self, model):
        other = mlp(5)
        other.load_state_dict(model.state_dict())
        return other

    def test_a_skipped_step(self) -> None:
        """As GradScaler skips: what was fetched stays for the next one."""
        whole, _ = train(self.make(), 6, accumulate=1)
        model, optimizer = train(self.make(ahead=256 * KIB), 4, accumulate=1)
        loss_of(model, 77).backward()
        optimizer.zero_grad()
        train(lambda m: optimizer, 2, accumulate=1, model=model, first=4)
        self.assertTrue(same(model, whole))

    def test_a_peak_that_grows_is_measured_again(self) -> None:
        model = mlp()
        optimizer = self.make(ahead=256 * KIB)(model)
        train(lambda m: optimizer, 1, model=model)
        meter = optimizer._ahead._meter = Meter()
        train(lambda m: optimizer, 3, model=model, first=1)
        fetched = optimizer.fetched_ahead_bytes
        with unittest.mock.patch.object(meter, "highest", return_value=3 * GIB):
            train(lambda m: optimizer, 1, model=model, first=4)
        seen = []
        for step in range(5, 8):
            train(lambda m: optimizer, 1, model=model, first=step)
            seen.append(optimizer.fetched_ahead_bytes)
        self.assertEqual(seen[0], 0)
        self.assertGreater(min(fetched, *seen[1:]), 0)  # how many buckets fit depends on the memory's alignment

    def test_memory_is_measured_and_comes_back(self) -> None:
        model = mlp()
        optimizer = self.make(ahead=256 * KIB)(model)
        train(lambda m: optimizer, 1, model=model)
        optimizer._ahead._meter = Meter()
        train(lambda m: optimizer, 3, model=model, first=1)
        self.assertGreater(optimizer.fetched_ahead_bytes, 0)
        self.assertTrue(optimizer._ahead.poll())
        self.assertEqual(optimizer._ahead._used, [])


if __name__ == "__main__":
    unittest.main()
