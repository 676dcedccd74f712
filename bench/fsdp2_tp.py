#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism under FSDP2 as torch executes it, against what stowage predicts: collectives of the ranks that cut a block, and bytes that
forward saves for backward, per token. One process without a GPU: torch's fake process group moves no data. Needs torch.

    fsdp2_tp.py            (STOWAGE: the program, default build/bin/stowage; STOWAGE_CLUSTER: a cluster of four GPUs, default h200-x4)

The plan is torchtitan's (models/llama3/infra/parallelize.py, apply_tp), without sequence parallelism NVIDIA-NeMo/Automodel's. Collectives of
the loss are torch's own inside of an operation, which no dispatch mode sees: they are left out."""
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "num_hidden_layers": 2, "vocab_size": 1024}
TOKENS, TP, DP = 208, 2, 2
KINDS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "all_reduce": "all_reduce"}
CASES = [dict(sp=sp, recompute=recompute, loss=True) for sp in (True, False) for recompute in ("none", "full", "selective")]
CASES.append(dict(sp=True, recompute="none", loss=False))


# ---- torch ----

def build_model(torch):
    nn, functional = torch.nn, torch.nn.functional
    hidden, heads, groups = SIZES["hidden_size"], SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
    dim, inner = SIZES["head_dim"], SIZES["intermediate_size"]

    def linear(width, out):
        return nn.Linear(width, out, bias=False)

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            wide = x.float()
            root = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * (wide * root).to(x.dtype)

    def turned(x):
        low, high = x.chunk(2, -1)
        return torch.cat((-high, low), -1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = linear(hidden, heads * dim), linear(hidden, groups * dim)
            self.v_proj, self.o_proj = linear(hidden, groups * dim), linear(heads * dim, hidden)
            self.q_norm, self.k_norm = Norm(dim), Norm(dim)

        def forward(self, x, cos, sin):
            shape = (*x.shape[:2], -1, dim)
            q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
            k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
            v = self.v_proj(x).view(shape).transpose(1, 2)
            q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o_proj(out.transpose(1, 2).reshape(*x.shape[:2], -1))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
            self.down_proj = linear(inner, hidden)

        def forward(self, x):
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.attention, self.second, self.mlp = Norm(hidden), Attention(), Norm(hidden), Mlp()

        def forward(self, x, cos, sin):
            x = x + self.attention(self.first(x), cos, sin)
            return x + self.mlp(self.second(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(SIZES["vocab_size"], hidden), linear(hidden, SIZES["vocab_size"])
            self.layers = nn.ModuleList(Layer() for _ in range(SIZES["num_hidden_layers"]))
            self.norm = Norm(hidden)

        def forward(self, tokens, cos, sin):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.head(self.norm(x))

    return Model()


def cut(model, mesh, case):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
    rows = Shard(1) if case["sp"] else Replicate()
    outer = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
             "head": ColwiseParallel(input_layouts=rows, output_layouts=Shard(-1) if case["loss"] else Replicate(),
                                     use_local_output=not case["loss"])}
    inner = {name: ColwiseParallel() for name in ("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.gate_proj", "mlp.up_proj")}
    inner.update({name: RowwiseParallel(output_layouts=rows) for name in ("attention.o_proj", "mlp.down_proj")})
    if case["sp"]:
        outer["norm"] = SequenceParallel()
        inner.update({"first": SequenceParallel(), "second": SequenceParallel(),
                      "attention": PrepareModuleInput(input_layouts=(rows, None, None), desired_input_layouts=(Replicate(), None, None)),
                      "mlp": PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(Replicate(),))})
        for name in ("attention.q_norm", "attention.k_norm"):
            inner[name] = SequenceParallel(sequence_dim=2, use_local_output=True)
    parallelize_module(model, mesh, outer)
    for layer in model.layers:
        parallelize_module(layer, mesh, inner)


def checkpoint(torch, model, how):
    """Layers under torch's checkpoint; selective: torchtitan's policy for operations."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten, product = torch.ops.aten, torch.ops.aten.mm.default
    kept = {product, aten._scaled_dot_product_flash_attention_for_cpu.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}

    def contexts():
        seen = collections.Counter()

        def policy(context, operation, *_args, **_kwargs):
            seen[context.is_recompute] += operation == product
            keep = operation in kept and not (operation == product and seen[context.is_recompute] % 2 == 0)
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    more = {"context_fn": contexts} if how == "selective" else {}
    for i, layer in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(layer, checkpoint_impl=CheckpointImpl.NO_REENTRANT, preserve_rng_state=False, **more)


def measure(case):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode
    dist.init_process_group("fake", rank=0, world_size=TP * DP, store=FakeStore())
    mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
    model = build_model(torch)
    cut(model, mesh["tp"], case)
    if case["recompute"] != "none":
        checkpoint(torch, model, case["recompute"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in [*model.layers, model]:
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)
    found = collections.defaultdict(lambda: [0, 0])
    saved, keep = {}, []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            out = operation(*args, **(kwargs or {}))
            name = str(operation).split(".")
            if name[0] == "_c10d_functional" and name[1] in KINDS:
                whole = max(t.numel() * t.element_size() for t in (args[0], out))
                found[KINDS[name[1]]][0] += 1
                found[KINDS[name[1]]][1] += whole
            return out

    def pack(tensor):
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        local = local.wait() if hasattr(local, "wait") else local
        keep.append(local)
        saved[local.untyped_storage().data_ptr()] = local
        return tensor

    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    cos = torch.ones(TOKENS, SIZES["head_dim"], dtype=torch.bfloat16)
    with Log():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = model(tokens, cos, cos.clone())
        with loss_parallel() if case["loss"] else contextlib.nullcontext():
            torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten()).backward()
    # what has a dimension of tokens, without the tokens themselves and the tables of positions
    own = TOKENS // TP if case["sp"] else TOKENS
    mine = [t for t in saved.values() if (TOKENS in t.shape or own in t.shape) and t.dtype != torch.long
            and tuple(t.shape[-2:]) != (TOKENS, SIZES["head_dim"]) or (t.dim() == 4 and TOKENS in t.shape)]
    total = sum(t.untyped_storage().nbytes() for t in mine)
    shard = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters())
    return {"collectives": dict(found), "saved": total / TOKENS, "params": shard, "torch": torch.__version__}


# ---- stowage ----

def predict(case):
    config = dict(SIZES, model_type="qwen3", tie_word_embeddings=False, max_position_embeddings=4096, torch_dtype="bfloat16")
    keys = {"engine": "fsdp2", "parallel.tp": TP, "parallel.sequence_parallel": str(case["sp"]).lower(), "batch.seq_len": TOKENS,
            "recompute.granularity": case["recompute"], "fsdp.loss_parallel": str(case["loss"]).lower()}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        command = [os.environ.get("STOWAGE", "build/bin/stowage"), "plan", "--json", "--model", path,
                   "--cluster", os.environ.get("STOWAGE_CLUSTER", "h200-x4")]
        for key, value in keys.items():
            command += ["--set", f"{key}={value}"]
        plan = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {r["collective"]: [r["count"], r["bytes"]] for r in plan["collectives"]
             if r["group"] == "tp" and r["phase"] == "forward_backward" and r["kind"] == "rank0"}
    if case["loss"]:  # maximum, sum of exponentials, logit of the target
        found["all_reduce"] = [found["all_reduce"][0] - 3, found["all_reduce"][1] - 3 * 4 * TOKENS]
    return {"collectives": found, "params": plan["ranks"][0]["phases"]["load"]["components"]["params"] // 4}


def main():
    if len(sys.argv) > 1:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
        return
    differ = 0
    print("sequence parallel, recompute, loss parallel: collective, calls and bytes measured, predicted; elements of a shard; saved by token")
    for case in CASES:
        run = subprocess.run([sys.executable, __file__, json.dumps(case)], check=True, capture_output=True, text=True)
        measured, predicted = json.loads(run.stdout.splitlines()[-1]), predict(case)
        for kind in KINDS.values():
            pair = [side["collectives"].get(kind, [0, 0]) for side in (measured, predicted)]
            # torch 2.15 sums gradients of norms in fp32, 2.11 in the dtype of computation, as predicted
            norms = kind == "all_reduce" and case["sp"]
            differ += pair[0] != pair[1] and not (norms and pair[0] == [pair[1][0], 2 * pair[1][1]])
            print(f"{case['sp']!s:5} {case['recompute']:9} {case['loss']!s:5} {kind:14} {pair[0][0]:3} {pair[0][1]:8} {pair[1][0]:3} {pair[1][1]:8}")
        differ += measured["params"] != predicted["params"]
        print(f"      shard {measured['params']} {predicted['params']}; saved {measured['saved']:.0f}; torch {measured['torch']}", flush=True)
    print(f"{differ} differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
