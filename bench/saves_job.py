# SPDX-License-Identifier: Apache-2.0
"""The training job of saves_torch.py: a model on each rank, its steps by stowage.torch.AdamW or by torch's, and their digest."""

import json
import os
import subprocess
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from adamw_bits_torch import bits
from adamw_job import facts_of
from adamw_rows import RING, STOWAGE
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

RATES = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0
LIMIT = timedelta(seconds=120)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Job:
    """This rank and the others: waits, rows, the model and its steps."""

    def __init__(self, options):
        self.options = options
        self.device = torch.device("cpu") if options.cpu else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if not options.cpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group("gloo" if options.cpu else "cpu:gloo,cuda:nccl", timeout=LIMIT)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh(self.device.type, (self.world,))
        self.host_mesh = self.mesh if options.cpu else init_device_mesh("cpu", (self.world,))
        self.group = dist.new_group(backend="gloo", timeout=LIMIT)
        self.dcp_group = dist.new_group(backend="gloo", timeout=LIMIT)  # async_save uses it in a thread, beside training
        self.start = time.monotonic()
        self.rows = []
        self.sequence = 64 if options.cpu else options.tokens

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def barrier(self):
        self.synchronize()
        dist.barrier(self.group)

    def each(self, value):
        """Of every rank, on every rank."""
        rows = [None] * self.world
        dist.all_gather_object(rows, value, self.group)
        return rows

    def most(self, value):
        """The largest over the ranks: of a number, of each of a dict or of each of a list."""
        rows = self.each(value)
        if isinstance(value, dict):
            return {key: max(row[key] for row in rows) for key in value}
        return [max(v) for v in zip(*rows)] if isinstance(value, list) else max(rows)

    def over(self):
        return self.most(time.monotonic() - self.start) > self.options.budget_s

    def tell(self, **row):
        self.rows.append(row)
        if self.rank == 0:
            print(json.dumps(row), flush=True)
            if self.options.output:
                with open(self.options.output, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")

    # ---- the model ----

    def model(self, seed=3, sharded=None):
        """Random weights, the same in every world size. Sharded by FSDP2 where there are several ranks, or `sharded`."""
        import transformers
        from torch.distributed.fsdp import fully_shard

        facts = facts_of(self.options.model, self.options.layers, self.options.cpu)
        config = transformers.AutoConfig.for_model(facts.pop("model_type"), **facts)
        config.use_cache = False
        torch.manual_seed(seed)
        with torch.device(self.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[self.options.dtype], attn_implementation="sdpa")
        if self.world > 1 or sharded:
            for layer in model.model.layers:
                fully_shard(layer, mesh=self.mesh)
            fully_shard(model, mesh=self.mesh)
        return model.train()

    def step(self, trainer, number, micros=1):
        """Every rank trains on the same tokens: the number of ranks changes no bit."""
        for micro in range(micros):
            generator = torch.Generator().manual_seed(1000 * number + micro)
            tokens = torch.randint(0, 500, (1, self.sequence), generator=generator).to(self.device)
            (trainer.model(input_ids=tokens, labels=tokens).loss / micros).backward()
        trainer.step()

    def seconds(self, trainer, number, micros=1):
        self.synchronize()
        start = time.perf_counter()
        self.step(trainer, number, micros)
        self.synchronize()
        return time.perf_counter() - start

    # ---- the plan ----

    def predicted(self, micros, write_bps):
        """Seconds, stall and bytes of a save as `stowage plan` has them; {} without the program, or without a plan."""
        dtype = self.options.dtype
        keys = {"engine": "fsdp2", "optimizer.implementation": "stowage", "precision.params": dtype, "precision.grads": dtype,
                "precision.compute": dtype, "precision.master": "fp32" if dtype == "bf16" else "none", "batch.seq_len": self.sequence, "batch.micro_batch": 1, "batch.grad_accumulation": micros,
                "attention": "sdpa", "recompute.granularity": "none", "optimizer.clip_norm": CLIP, "checkpoint.every": 1, "checkpoint.keep": 1,
                "node.nvme.capacity": "1 TB", "node.gpus": self.world, **RING,
                "update.resident" if self.options.state == "gpu" else "update.stream": 1}
        if self.options.overlap:
            keys["optimizer.overlap"] = "true"
        if write_bps:
            keys["node.nvme.write"] = f"{write_bps / 1e6:.1f} MB/s"
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "config.json")
            with open(config, "w", encoding="utf-8") as file:
                json.dump(facts_of(self.options.model, self.options.layers, self.options.cpu), file)
            command = [STOWAGE, "plan", "--json", "--model", config, "--cluster", self.options.cluster or f"h200-x{self.world}"]
            for key, value in keys.items():
                command += ["--set", f"{key}={value}"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                plan = json.loads(done.stdout)
            except (OSError, ValueError) as failure:
                return {"predicted": str(failure) if isinstance(failure, OSError) else done.stderr.strip()[-200:]}
        nvme = [r["phases"]["optimizer_step"]["nvme"]["components"]["checkpoint_files"] for r in plan["ranks"]]
        host = [r["phases"]["checkpoint"]["host"]["components"]["checkpoint_staging"] for r in plan["ranks"]]
        return {"predicted_s": round(plan["time_s"]["save"], 4), "predicted_stall_s": round(plan["time_s"]["checkpoint"], 4),
                "predicted_bytes": sum(nvme), "predicted_host_mib": round(max(host) / 2**20, 1)}


class Ours:
    def __init__(self, model, options):
        from stowage.torch import AdamW

        self.model = model
        self.optimizer = AdamW(model, **RATES, clip_norm=CLIP, gpu_memory=1 << 40 if options.state == "gpu" else 0, overlap=options.overlap)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Theirs:
    """torch.optim.AdamW(fused=True) over fp32 masters, which lie with the moments on the GPU, or on the host (stepped there, as under
    FSDP2's CPUOffloadPolicy): the same bytes as stowage.torch.AdamW has."""

    def __init__(self, job, model):
        self.job, self.model = job, model
        self.on_host = job.options.state == "host"
        self.params = dict(model.named_parameters())
        self.masters = {}
        for name, param in self.params.items():
            master = local(param.detach()).float()
            if self.on_host:
                master = master.cpu() if job.options.cpu else master.cpu().pin_memory()
            self.masters[name] = master.requires_grad_()
        self.optimizer = torch.optim.AdamW(list(self.masters.values()), fused=True, **RATES)

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for name, master in self.masters.items():
            master.grad = local(self.params[name].grad).to(master.device).float()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for name, master in self.masters.items():
                local(self.params[name]).copy_(master)
                self.params[name].grad = None

    def state(self):
        """What DCP saves: sharded as the parameters are."""
        out = {"model": {n: p.detach() for n, p in self.params.items()}, "master": {}, "exp_avg": {}, "exp_avg_sq": {}}
        for name, master in self.masters.items():
            out["master"][name] = self.like(self.params[name], master.detach())
            for key in ("exp_avg", "exp_avg_sq"):
                out[key][name] = self.like(self.params[name], self.optimizer.state[master][key])
        return out

    def like(self, param, tensor):
        if not isinstance(param, DTensor):
            return tensor
        return DTensor.from_local(tensor, self.job.host_mesh if self.on_host else self.job.mesh, param.placements, run_check=False,
                                  shape=param.shape, stride=param.stride())


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(param, value):
    """All elements of a state tensor of a parameter, on the parameter's device."""
    value = local(value).to(param.device)
    if not isinstance(param, DTensor):
        return value
    return DTensor.from_local(value, param.device_mesh, param.placements, run_check=False, shape=param.shape,
                              stride=param.stride()).full_tensor()


def digest(trainer):
    """Of the bits of all parameters, masters and moments, whatever their shards are."""
    trainer.optimizer.synchronize()
    saved, total = trainer.optimizer.state_dict()["state"], 0
    params = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    for number, param in enumerate(params):
        total += bits(whole(param, param.detach()), 4 * number)
        for k, key in enumerate(("master", "exp_avg", "exp_avg_sq")):
            if key not in saved[number]:  # fp32 parameters have no master
                continue
            total += bits(whole(param, saved[number][key]), 4 * number + 1 + k)
    return f"{total % (1 << 64):016x}"
