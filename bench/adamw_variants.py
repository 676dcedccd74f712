# SPDX-License-Identifier: Apache-2.0
"""The optimizers that adamw_torch.py compares. Each has step(), which also frees the gradients."""

import os

RATES = dict(lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
GIB = 2**30


class Nothing:
    def __init__(self, model, options, torch):
        self.model = model

    def forward(self, tokens):
        """The loss."""
        return self.model(tokens)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.zero()

    def zero(self):
        for p in self.model.parameters():
            p.grad = None

    def held(self):
        """Bytes that the optimizer says it holds, by place."""
        return {}


class Torch(Nothing):
    def __init__(self, model, options, torch):
        super().__init__(model, options, torch)
        self.clip, self.torch = options.clip, torch
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True, **RATES)

    def step(self):
        if self.clip:
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.zero()


class Stowage(Nothing):
    def __init__(self, model, options, torch):
        super().__init__(model, options, torch)
        from stowage.torch import AdamW

        what = options.variant
        params = sum(getattr(p, "_local_tensor", p).numel() for p in model.parameters())
        everything = params * (12 if options.state == "master" else 8) + 2 * GIB
        more = {"moments": torch.bfloat16} if what == "hidden_bf16" else {}
        if options.bucket_mib:
            more.update(bucket=options.bucket_mib << 20, depth=options.depth)
        self.optimizer = AdamW(model.named_parameters(), **RATES, clip_norm=options.clip or None,
                               gpu_memory=everything if what == "resident" else 0, overlap=False,
                               **more)
        if what.startswith("hidden"):
            self.optimizer.hide_behind(model)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def held(self):
        info = self.optimizer.info
        return dict(ring_gpu=sum(i.gpu_bytes for i in info), state_host=sum(i.host_bytes for i in info))


def page_locked(torch, n):
    """Zeros. torch's own page-locked tensors round up to a power of two: 132 GiB for Qwen3-8B's 92."""
    tensor = torch.zeros(n)
    code = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), 4 * n, 0)
    if int(code) != 0:
        raise RuntimeError(f"cudaHostRegister of {4 * n} bytes: {code}")
    return tensor


class Layers(Nothing):
    """Master and moments lie page-locked on the host, one run for each layer; a layer's are fetched
    while the layer before is updated, and go back while the next one is."""

    def __init__(self, model, options, torch):
        super().__init__(model, options, torch)
        self.torch, self.clip = torch, options.clip
        self.master = options.state == "master"
        self.groups = [list(layer.parameters()) for layer in model.model.layers]
        inside = {id(p) for group in self.groups for p in group}
        self.groups.append([p for p in model.parameters() if id(p) not in inside])
        self.host = []
        for group in self.groups:
            n = sum(p.numel() for p in group)
            state = [page_locked(torch, n) for _ in range(2)]
            if self.master:
                master = page_locked(torch, n)
                master.copy_(torch.cat([p.detach().flatten() for p in group]))
                state.append(master)
            self.host.append(state)
        self.count = torch.zeros((), device="cuda")
        self.up, self.down = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch(self, at):
        with self.torch.cuda.stream(self.up):
            state = [t.to("cuda", non_blocking=True) for t in self.host[at]]
            return state, self.up.record_event()

    def update(self, group, state):
        from torch.optim.adamw import adamw

        grads = [p.grad.float() for p in group]
        cut = [t.split([p.numel() for p in group]) for t in state]
        flat = [[c.view_as(p) for c, p in zip(part, group)] for part in cut]
        params = flat[2] if self.master else [p.data for p in group]
        adamw(params, grads, flat[0], flat[1], [], [self.count.clone() for _ in group],
              fused=True, amsgrad=False, maximize=False, beta1=RATES["betas"][0],
              beta2=RATES["betas"][1], lr=RATES["lr"], weight_decay=RATES["weight_decay"],
              eps=RATES["eps"])
        if self.master:
            for p, q in zip(group, params):
                p.data.copy_(q)

    def step(self):
        torch = self.torch
        with torch.no_grad():
            if self.clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            main = torch.cuda.current_stream()
            self.up.wait_stream(self.down)
            back, ahead = [], self.fetch(0)
            for at, group in enumerate(self.groups):
                state, arrived = ahead
                if at + 1 < len(self.groups):
                    if at >= 2:
                        back[at - 2].synchronize()
                    ahead = self.fetch(at + 1)
                main.wait_event(arrived)
                self.update(group, state)
                self.down.wait_stream(main)
                with torch.cuda.stream(self.down):
                    for host, device in zip(self.host[at], state):
                        host.copy_(device, non_blocking=True)
                        device.record_stream(self.down)
                        device.record_stream(main)
                    back.append(self.down.record_event())
            self.count += 1
        self.zero()


class OffloadAdam(Nothing):
    def __init__(self, model, options, torch):
        super().__init__(model, options, torch)
        from offload_adam import OffloadAdam

        self.optimizer = OffloadAdam(model, mode="fp32_master", decoupled_weight_decay=True,
                                     max_grad_norm=options.clip
                                     if options.variant.endswith("clip") else None, **RATES)

    def backward(self, loss):
        self.optimizer.ready_for_optimizer_step = True
        loss.backward()

    def step(self):
        self.optimizer.step()


class Torchao(Nothing):
    def __init__(self, model, options, torch):
        super().__init__(model, options, torch)
        from torchao.optim import CPUOffloadOptimizer

        self.optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW,
                                             fused=True, **RATES)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class DeepSpeed(Nothing):
    """ZeRO stage 2 with its CPU Adam. It keeps the model: a process of its own."""

    def __init__(self, model, options, torch):
        super().__init__(model, options, torch)
        import deepspeed

        if options.state != "master":
            raise ValueError("deepspeed: --state master alone")
        for key, value in dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1",
                               MASTER_PORT=29500).items():
            os.environ.setdefault(key, str(value))
        settings = {
            "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1 << 30,
            "bf16": {"enabled": True}, "gradient_clipping": options.clip,
            "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True,
                                  "offload_optimizer": {"device": "cpu", "pin_memory": True}},
            "optimizer": {"type": "AdamW", "params": RATES},
        }
        self.engine, *_ = deepspeed.initialize(model=model, config=settings)

    def forward(self, tokens):
        return self.engine(tokens)

    def backward(self, loss):
        self.engine.backward(loss)

    def step(self):
        self.engine.step()


VARIANTS = {"none": Nothing, "torch": Torch, "resident": Stowage, "after": Stowage,
            "hidden": Stowage, "hidden_bf16": Stowage, "layers": Layers,
            "offload_adam": OffloadAdam, "offload_adam_clip": OffloadAdam, "torchao": Torchao,
            "deepspeed": DeepSpeed}
SHARDED = ["none", "torch", "resident", "after", "hidden", "hidden_bf16"]  # step DTensors
