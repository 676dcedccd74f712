# SPDX-License-Identifier: Apache-2.0
"""Does stowage.torch.AdamW give the same bits wherever state lies, hidden or not, on one GPU and on several?

    torchrun --nproc-per-node N bench/adamw_bits_torch.py [--steps 50] [--variants A,B,...] [--dtypes bfloat16] [--cpu] -o FILE
    adamw_bits_torch.py --compare FILE FILE ...      are the digests of all files the same?

A small decoder under FSDP2 (uneven shards: an odd vocabulary), two micro batches a step, two parameter groups with rates of their own, a
clip that acts in each step. Every rank trains on the same tokens, so that means of gradients over ranks are exact and the number
of ranks changes nothing. Digests are of all bits of parameters and moments. Variants, in fp32 and in bf16 with masters:

    resident, after, hidden    state on the GPU; on the host, waited for; on the host, behind the next forward
    part, nvme                 a part of it on the GPU; a part on NVMe
    outside                    hidden, but clipped by torch before the step (fp32)
    torch                      torch.optim.AdamW(fused=True) after torch's clipping (fp32): on CUDA the bits of `outside`"""

import argparse
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VARIANTS = "resident,after,hidden,part,nvme,outside,torch"
CLIP = 0.05


def build(dtype, device, mesh, cpu):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=16, vocab_size=503) if cpu else dict(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=8,
        head_dim=64, vocab_size=30011)
    torch.manual_seed(3)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(**shape, use_cache=False, attn_implementation="sdpa", tie_word_embeddings=True))
    torch.set_default_dtype(torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def make(variant, model, state, room, folder):
    """state: bytes of moments on this rank; room: bytes of buckets under way."""
    from stowage.torch import AdamW

    decayed = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() <= 1]
    groups = [dict(params=decayed), dict(params=other, lr=3e-3, weight_decay=0.0)]
    common = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    if variant == "torch":
        return torch.optim.AdamW(groups, fused=True, **common)
    clip = None if variant == "outside" else CLIP
    more = {"resident": dict(gpu_memory=1 << 40), "part": dict(gpu_memory=state // 3 + room),
            "nvme": dict(nvme=folder, host_memory=state // 2 + room)}.get(variant, {})
    optimizer = AdamW(groups, clip_norm=clip, **common, **more)
    if variant != "after":
        optimizer.hide_behind(model)
    return optimizer


def digest(model, optimizer):
    """Of the bits of all parameters and moments, whatever their shards are."""
    total = 0
    for number, p in enumerate(model.parameters()):
        state = optimizer.state_dict()["state"] if number == 0 else saved
        saved = state
        del state
        total += bits(p.detach().full_tensor(), 3 * number)
    index = {id(p): i for i, p in enumerate(q for group in optimizer.param_groups for q in group["params"])}
    for number, p in enumerate(model.parameters()):
        row = saved[index[id(p)]]
        for k, key in enumerate(("exp_avg", "exp_avg_sq")):
            value = row[key]
            local = value.to_local() if hasattr(value, "to_local") else value
            whole = type(p.data).from_local(local.to(p.device), p.device_mesh, p.placements, run_check=False, shape=p.shape,
                                            stride=p.stride()).full_tensor()
            total += bits(whole, 3 * number + 1 + k)
    return total % (1 << 64)


def bits(tensor, seed):
    flat = tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32).view(-1).long()
    place = torch.arange(flat.numel(), device=flat.device)
    return int(((flat + 1) * (place * 2654435761 + seed * 40503 + 1)).sum()) % (1 << 64)


def train(variant, dtype, options, device, mesh, folder):
    model = build(dtype, device, mesh, options.cpu)
    size = sum(p.to_local().numel() for p in model.parameters())
    optimizer = make(variant, model, size * 8, (4 if options.cpu else 96) << 20, folder)
    vocabulary, factors = model.config.vocab_size, []
    for step in range(options.steps):
        for micro in range(2):
            generator = torch.Generator().manual_seed(2 * step + micro)
            tokens = torch.randint(0, vocabulary, (1, 256), generator=generator).to(device)
            (model(input_ids=tokens, labels=tokens).loss / 2).backward()
        if variant in ("outside", "torch"):
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            factors.append(min(1.0, CLIP / float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)))
        optimizer.step()
        optimizer.zero_grad()
        if hasattr(optimizer, "clip_factor") and variant != "outside" and step % 10 == 0:
            factors.append(float(optimizer.clip_factor))
    if hasattr(optimizer, "wait"):
        optimizer.wait()
    return {"digest": f"{digest(model, optimizer):016x}", "factors": [min(factors), max(factors)],
            "bytes": optimizer.info[0].streamed_bytes if hasattr(optimizer, "info") else None}


def compare(files):
    """Ours are equal in all files. Where torch clips, its norm depends on the number of ranks: then ours equal torch's on as many.
    torch's kernel for CPUs has bits of its own."""
    rows = [json.loads(line) for name in files for line in open(name)]
    ours = {"resident", "after", "hidden", "part", "nvme"}
    found = {}
    for r in rows:
        key = (r["dtype"], "clipped by stowage") if r["variant"] in ours else (r["dtype"], f"clipped by torch, {r['world']} ranks")
        if r["variant"] in ours or r["device"] != "cpu":
            found.setdefault(key, {}).setdefault(r["digest"], []).append(f"{r['variant']} on {r['world']}")
    for key, digests in found.items():
        print(", ".join(key) + ": " + "; ".join(f"{d}: {', '.join(v)}" for d, v in digests.items()))
    equal = all(len(digests) == 1 for digests in found.values())
    print("equal" if equal else "DIFFERENT")
    return 0 if equal else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--variants", default=VARIANTS)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--cpu", action="store_true", help="gloo on CPUs, a smaller model")
    parser.add_argument("--compare", nargs="+")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    if options.compare:
        sys.exit(compare(options.compare))
    torch.use_deterministic_algorithms(True)
    device = torch.device("cpu") if options.cpu else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if not options.cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if options.cpu else "cpu:gloo,cuda:nccl")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    with tempfile.TemporaryDirectory() as folder:
        for dtype in [getattr(torch, name) for name in options.dtypes.split(",")]:
            for variant in options.variants.split(","):
                if dtype is torch.bfloat16 and variant in ("outside", "torch"):
                    continue
                row = {"dtype": str(dtype).split(".")[1], "variant": variant, "world": dist.get_world_size(),
                       "device": device.type,
                       **train(variant, dtype, options, device, mesh, folder)}
                if dist.get_rank() == 0:
                    print(json.dumps(row), flush=True)
                    if options.output:
                        with open(options.output, "a") as file:
                            file.write(json.dumps(row) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
