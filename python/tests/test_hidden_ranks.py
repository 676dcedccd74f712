# SPDX-License-Identifier: Apache-2.0
"""Hidden steps under DDP, FSDP1 and FSDP2 on two CPU ranks: nobody sees the values before a step."""

import tempfile
import unittest

import torch
from _ranks import run_ranks

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])

COMMON = """
from _jobs import batch, mlp
from _lazy import lazily
from stowage.torch import AdamW

def train(wrap, hide, after=lambda model: []):
    with lazily():
        model = wrap(mlp())
        optimizer = AdamW(model.parameters(), lr=1e-2, process_group=None)
        if hide:
            optimizer.hide_behind(model)
        seen, under_way = [], []
        for step in range(4):
            loss = (model(batch(10 * step + rank)) * 40).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            under_way.append(len(optimizer._overlap.flight) if optimizer._overlap.flight else 0)
            seen += [loss.detach(), *[t.detach().clone() for t in after(model)]]
        optimizer.wait()
        return seen + [p.detach().clone() for p in model.parameters()], under_way

def compare(wrap, hidden, after=lambda model: []):
    expected, _ = train(wrap, False, after)
    found, under_way = train(wrap, True, after)
    assert [bool(n) for n in under_way] == [hidden] * 4, under_way
    assert len(expected) == len(found)
    same = [torch.equal(getattr(a, "_local_tensor", a), getattr(b, "_local_tensor", b)) for a, b in zip(expected, found)]
    assert all(same), same
"""

DDP = COMMON + """
from torch.nn.parallel import DistributedDataParallel as DDP
for views in [False, True]:
    def wrap(model):
        return DDP(model, gradient_as_bucket_view=views)
    compare(wrap, True)
    compare(wrap, True, lambda model: model.state_dict().values())
    compare(wrap, True, lambda model: model.module[3].state_dict().values())
    compare(wrap, True, lambda model: DDP(model.module).parameters())
print("done")
"""

FSDP1 = COMMON + """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
for orig in [False, True]:
    def wrap(model):
        for i in [0, 3]:
            model[i] = FSDP(model[i], use_orig_params=orig, device_id=torch.device("cpu"))
        return FSDP(model, use_orig_params=orig, device_id=torch.device("cpu"))
    compare(wrap, False)

    def mixed(model):  # its last layer is not sharded
        model[0] = FSDP(model[0], use_orig_params=orig, device_id=torch.device("cpu"))
        return model
    compare(mixed, True)
print("done")
"""

FSDP2 = COMMON + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world,))
def wrap(model):
    for i in [0, 3]:
        fully_shard(model[i], mesh=mesh)
    return fully_shard(model, mesh=mesh)
def prefetching(model):
    model = wrap(model)
    model.set_modules_to_forward_prefetch([model[0]])
    model[0].set_modules_to_forward_prefetch([model[3]])
    return model
def unsharded(model):
    # weights of a layer past its forward, as a fused loss or a merge of adapters reads them
    model[3].unshard()
    values = [p.detach().clone() for p in model[3].parameters()]
    model[3].reshard()
    return values
def asynchronously(model):
    handle = model[3].unshard(async_op=True)
    handle.wait()
    values = [p.detach().clone() for p in model[3].parameters()]
    model[3].reshard()
    return values
for kind in [wrap, prefetching]:
    compare(kind, True)
    compare(kind, True, unsharded)
    compare(kind, True, asynchronously)
    compare(kind, True, lambda model: model.state_dict().values())
    compare(kind, True, lambda model: model[3].state_dict().values())
    compare(kind, True, lambda model: [p.full_tensor() for p in model.parameters()])
def compiled(model):
    for i in [0, 3]:
        model[i].compile(backend="eager")
    return wrap(model)
compare(compiled, True)
compare(compiled, True, unsharded)
print("done")
"""


@unittest.skipIf(VERSION < (2, 6) or not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
                 "needs torch 2.6 with gloo")
class Ranks(unittest.TestCase):
    def run_job(self, script: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("done", run_ranks(self, script, 2, folder))

    def test_ddp(self) -> None:
        self.run_job(DDP)

    def test_fsdp1(self) -> None:
        self.run_job(FSDP1)

    def test_fsdp2(self) -> None:
        self.run_job(FSDP2)


if __name__ == "__main__":
    unittest.main()
