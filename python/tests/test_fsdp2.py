# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on two CPU ranks over gloo: uneven and empty shards, one norm, the bits of one rank, state by DCP."""

import os
import tempfile
import unittest

import torch
from _ranks import run_ranks

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])

JOB = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict, StateDictOptions
from stowage.torch import AdamW

mesh = init_device_mesh("cpu", (world,))

def build(seed=0):
    torch.manual_seed(seed)
    # 33 rows: uneven; a bias of 1: empty on rank 1
    model = torch.nn.Sequential(torch.nn.Linear(64, 33), torch.nn.GELU(), torch.nn.Linear(33, 64), torch.nn.Linear(64, 1))
    for layer in [model[0], model[2]]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)

def full(model):
    return [p.full_tensor() for p in model.parameters()]

def train(model, optimizer, steps, first=0):
    norms = []
    for step in range(first, first + steps):
        # values with few bits, the same on every rank: sums over ranks are exact, and so are means
        x = torch.randint(-4, 5, (8, 64), generator=torch.Generator().manual_seed(step)).float()
        (model(x) * 30).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(optimizer.grad_norm)
    return norms

options = dict(lr=1e-2, weight_decay=0.1, clip_norm=1.0)
model = build()
optimizer = AdamW(model, **{"overlap": True, **options})
assert len(optimizer._overlap._owners) == 3, len(optimizer._overlap._owners)
norms = train(model, optimizer, 4)
assert optimizer.clip_factor < 1
# the root's forward comes first and waits for all that the root gathers, the last layer too
names = [m.name for m in optimizer._parts[0].members]
assert names == ["3.weight", "3.bias", "0.weight", "0.bias", "2.weight", "2.bias"], names
saved = get_optimizer_state_dict(model, optimizer)
assert type(saved["state"]["0.weight"]["exp_avg"]).__name__ == "DTensor"
weights = {k: v.clone() for k, v in model.state_dict().items()}
norms += train(model, optimizer, 3, first=4)
end = full(model)

other = build(5)
other.load_state_dict(weights)
fresh = AdamW(other, **options)
set_optimizer_state_dict(other, fresh, saved)
assert train(other, fresh, 3, first=4) == norms[4:]
assert all(torch.equal(a, b) for a, b in zip(end, full(other)))

# masters that are not of the parameters are made anew, whatever the shards
half = build().to(torch.bfloat16)
halves = AdamW(half, **options)
def step():
    half(torch.ones(8, 64, dtype=torch.bfloat16)).sum().backward()
    halves.step()
    halves.zero_grad()
step()
with torch.no_grad():
    for p in half.parameters():
        p.mul_(2)  # as another optimizer would
halves.load_state_dict(halves.state_dict())
before = full(half)
step()
end += full(half)
assert all((a.float() - b.float()).abs().max() < 0.05 for a, b in zip(before, full(half)))

whole = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if rank == 0:
    assert whole["state"]["0.weight"]["exp_avg"].shape == (33, 64)
    torch.save({"params": [p.clone() for p in end], "norms": norms, "exp_avg": whole["state"]["0.weight"]["exp_avg"].clone(),
                "held": [len(p.held) for p in optimizer._parts]}, os.path.join(sys.argv[2], f"{world}.pt"))
"""


@unittest.skipIf(VERSION < (2, 6) or not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
                 "FSDP2 needs torch 2.6 with gloo")
class Fsdp2(unittest.TestCase):
    def test_two_ranks_are_one(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for world in [1, 2]:
                run_ranks(self, JOB, world, folder)
            one, two = (torch.load(os.path.join(folder, f"{world}.pt")) for world in [1, 2])
        self.assertEqual(one["norms"], two["norms"])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(one["params"], two["params"])))
        self.assertTrue(torch.equal(one["exp_avg"], two["exp_avg"]))


if __name__ == "__main__":
    unittest.main()
