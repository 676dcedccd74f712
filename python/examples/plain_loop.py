# SPDX-License-Identifier: Apache-2.0
"""A plain training loop. One line differs from torch.optim.AdamW.

python plain_loop.py [cpu|cuda] [CHECKPOINT]
"""

import sys

import torch

from stowage.torch import AdamW

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).to(device, torch.bfloat16)

# Was: torch.optim.AdamW(model.parameters(), lr=1e-2), with clip_grad_norm_ before each step
optimizer = AdamW(model, lr=1e-2, clip_norm=1.0)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

for step in range(40):
    for _ in range(2):  # accumulation
        x = torch.randn(256, 64, device=device, dtype=torch.bfloat16)
        loss = (model(x) - x.roll(1, 1)).float().pow(2).mean() / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {2 * float(loss.detach()):.4f}, gradient norm {optimizer.grad_norm:.4f}")

info = optimizer.info[0]
print(f"state: {info.host_bytes} bytes of host memory, {info.gpu_bytes} of {device} memory for the ring")
if len(sys.argv) > 2:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[2])
