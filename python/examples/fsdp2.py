# SPDX-License-Identifier: Apache-2.0
"""FSDP2: each rank steps its shards, hidden behind the next forward; the norm is of all ranks; checkpoints by
torch.distributed.checkpoint.

torchrun --nproc-per-node 2 fsdp2.py [cpu|cuda]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stowage.torch import AdamW

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
dist.init_process_group("gloo" if device == "cpu" else "nccl")
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh(device, (dist.get_world_size(),))

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(4)]).to(device)
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)

optimizer = AdamW(model, lr=1e-2, clip_norm=1.0, overlap=True)  # after fully_shard

for step in range(10):
    x = torch.randn(32, 128, device=device)
    loss = (model(x) - x.roll(1, 1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:  # grad_norm blocks until the step is done
        print(f"rank {dist.get_rank()}, step {step + 1}: loss {float(loss.detach()):.4f}, gradient norm {optimizer.grad_norm:.4f}",
              flush=True)

state = get_optimizer_state_dict(model, optimizer)  # DTensors whose shards are in host memory: dist.checkpoint.save takes them
set_optimizer_state_dict(model, optimizer, state)
dist.destroy_process_group()
