# SPDX-License-Identifier: Apache-2.0
"""Full weights out of an FSDP2 job in each setting of offload: stowage.torch.WeightSync beside torch's own way.

    torchrun --nproc-per-node 2 bench/full_weights_torch.py [--model Qwen3-0.6B] [--settings none,policy,...]
                                                  [--tp 1] [--cpu | --share] [-o FILE]

Settings, as verl has them (docs/cases/weight-sync-with-offload.md): none; policy (CPUOffloadPolicy); param (parameters are
parked on the host after the step); optimizer (its state is parked); both. Each setting trains one step, parks, gives its weights
to every rank, each wanting its slice of --tp rows, to a Callback twice and to Ranks once, and compares every bit with the parameters.
Beside it: `full_tensor()` of each parameter where it lies, and of the parameter moved to the GPU (to what --cpu calls one), and
torch's full state dict, on the GPU and on the host; an error is printed.

--cpu: gloo on CPUs with a small model. --share: all ranks on one GPU, over gloo. gloo's send and recv take no GPU memory (its
collectives do), and a WeightSync refuses such a group, so this script copies each round's messages through the host."""

import argparse
import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from stowage.torch import Callback, Ranks, Slice, WeightSync
from stowage.torch.group import Group

SETTINGS = ["none", "policy", "param", "optimizer", "both"]
SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, vocab_size=1003, tie_word_embeddings=True)
QWEN3 = {"Qwen3-0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                            num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                            vocab_size=151936, tie_word_embeddings=True)}


class Staged:
    """A message that came to host memory: it is in the buffer on the GPU after wait()."""

    def __init__(self, work, sent, host, buffer, messages):
        self.work, self.sent, self.host, self.buffer, self.messages = work, sent, host, buffer, messages

    def wait(self, *timeout):
        ended = self.work.wait(*timeout)
        for m in self.messages:
            if not m.sends:
                part = slice(m.offset, m.offset + m.bytes)
                self.buffer[part].copy_(self.host[part])
        return ended


def stage_messages():
    post, operations = Group.post, Group.operations

    def through_the_host(group, messages, buffers):
        send, receive = buffers
        kept, host = send.cpu(), torch.empty(receive.shape, dtype=receive.dtype)
        works = post(group, messages, operations(group, messages, kept, host))
        return [(Staged(work, kept, host, receive, rows), rows) for work, rows in works]

    Group.operations = lambda group, messages, send, receive: (send, receive)
    Group.post = through_the_host
    Group.serves = lambda group, device: True


def build(options, setting, device, mesh):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    shape = SMALL if options.cpu else QWEN3[options.model]
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(**shape, use_cache=False, attn_implementation="sdpa"))
    more = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                            reduce_dtype=torch.float32)}
    if setting == "policy":
        more["offload_policy"] = CPUOffloadPolicy(pin_memory=not options.cpu)
    for layer in model.model.layers:
        fully_shard(layer, **more)
    model = fully_shard(model, **more)
    if options.share:
        model.set_force_sum_reduction_for_comms(True)  # gloo has no average of GPU memory
    return model


def train(model, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(0, vocabulary, (1, 64), generator=generator).to(device)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def park(model, optimizer, setting):
    if setting in ("param", "both"):
        model.to("cpu")
    if setting in ("optimizer", "both"):
        for state in optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[key] = value.to("cpu")


def rows_of(shape, rank, tp):
    """First row and rows of rank's slice."""
    if not shape or shape[0] < tp:
        return 0, shape[0] if shape else 1
    each = -(-shape[0] // tp)
    first = min(rank % tp * each, shape[0])
    return first, min(each, shape[0] - first)


def one(options, setting, device, mesh):
    model = build(options, setting, device, mesh)
    optimizer = train(model, device)
    park(model, optimizer, setting)
    gpu = device.type == "cuda"
    wait = torch.cuda.synchronize if gpu else (lambda: None)
    names = dict(model.named_parameters())
    row = {"setting": setting, "parameters": str(next(iter(names.values())).to_local().device),
           "bytes": sum(2 * p.numel() for p in names.values())}

    def timed(call):
        wait()
        dist.barrier()
        start = time.perf_counter()
        try:
            call()
            wait()
            return time.perf_counter() - start
        except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
            return str(error).strip().splitlines()[0][:120]

    with torch.no_grad():
        expected = {}
        row["full_tensor"] = timed(lambda: [p.full_tensor() for p in names.values()])
        row["to(device).full_tensor"] = timed(lambda: expected.update(
            {n: p.to(device).full_tensor().to(torch.bfloat16) for n, p in names.items()}))
        whole = dict(full_state_dict=True)
        row["state_dict"] = timed(lambda: get_model_state_dict(model, options=StateDictOptions(**whole)))
        row["state_dict on the host"] = timed(
            lambda: get_model_state_dict(model, options=StateDictOptions(**whole, cpu_offload=True)))
    rank, slices, got = dist.get_rank(), {}, {}
    for name, p in names.items():
        shape = tuple(p.shape)
        first, count = rows_of(shape, rank, options.tp)
        slices[name] = [((first,) + (0,) * (len(shape) - 1), (count,) + shape[1:])]

    def make():
        return {n: torch.zeros(boxes[0][1], dtype=torch.bfloat16, device=device) for n, boxes in slices.items()}

    def take(parts):
        for name, tensor, (first, count) in parts:
            into = got[name]
            for d, n in enumerate(count):
                into = into.narrow(d, first[d] - slices[name][0][0][d], n)
            into.copy_(tensor)

    def wrong_of(found):
        return [n for n, ((first, count),) in slices.items() if n not in expected or not torch.equal(
            found[n], expected[n].narrow(0, first[0], count[0]) if expected[n].dim() else expected[n])]

    group = dist.group.WORLD
    common = dict(bucket_bytes=options.bucket << 20, process_group=group, device=device)

    def checked(key, call):
        row[key] = timed(call)
        if isinstance(row[key], str):
            raise RuntimeError(f"{setting}: {row[key]}")

    got.update(make())
    with WeightSync(model, Callback(take, slices=slices, split=True), **common) as sync:
        before = 0
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        checked("stowage", lambda: sync.sync(1))
        wrong = wrong_of(got)
        for tensor in got.values():
            tensor.zero_()
        checked("again", lambda: sync.sync(2))
        row["received_bytes"] = sum(2 * t.numel() for t in got.values())
        row["beside_bytes"] = torch.cuda.max_memory_allocated() - before if gpu else 0
        wrong += wrong_of(got)
    got.clear()
    into = make()
    with WeightSync(model, Ranks({n: Slice(n, t, slices[n][0][0]) for n, t in into.items()}), **common) as sync:
        checked("ranks", lambda: sync.sync(3))
    wrong += wrong_of(into)
    row["wrong"] = len(wrong)
    row["bits"] = "equal" if expected and not wrong else f"DIFFER: {wrong[:3]}"
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, row["bits"])
    row["bits"] = next((bits for bits in every if bits != "equal"), "equal")
    return row


def show(value):
    return f"{value:.3f} s" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=QWEN3, default="Qwen3-0.6B")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--bucket", type=int, default=64, help="MiB")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--share", action="store_true")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    backend = "gloo" if options.cpu else "cpu:gloo,cuda:gloo" if options.share else "cpu:gloo,cuda:nccl"
    device = torch.device("cpu") if options.cpu else torch.device("cuda", 0 if options.share else rank)
    if not options.cpu:
        torch.cuda.set_device(device)
    if options.share:
        stage_messages()
    dist.init_process_group(backend)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    rows = []
    with contextlib.suppress(BrokenPipeError):
        for setting in options.settings.split(","):
            rows.append(one(options, setting, device, mesh))
            if rank == 0:
                r = rows[-1]
                print(f"| {setting} | {r['parameters']} | {show(r['full_tensor'])} | {show(r['to(device).full_tensor'])} | "
                      f"{show(r['state_dict'])} | {show(r['state_dict on the host'])} | "
                      f"{show(r['stowage'])} | {show(r['again'])} | {show(r['ranks'])} | {r['received_bytes'] / 1e6:.1f} MB | "
                      f"{r['beside_bytes'] / 2**20:.0f} MiB | {r['bits']} |", flush=True)
    if rank == 0 and options.output:
        with open(options.output, "w") as file:
            json.dump(rows, file, indent=1)
    failed = any(r["bits"] != "equal" for r in rows)
    dist.destroy_process_group()
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
