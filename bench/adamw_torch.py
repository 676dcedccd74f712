# SPDX-License-Identifier: Apache-2.0
"""What an optimizer adds to a training iteration on one GPU: stowage.torch.AdamW and its peers.

    adamw_torch.py [--model Qwen3-4B] [--variants A,B,...] [--tokens 4096,16384] [--steps 5]
                   [--warmup 2] [--state master|fp32] [--no-checkpoint] [--clip 1.0] -o FOLDER
    adamw_torch.py --here ...             the variants one after the other in this process (what the
                                          form above starts for each group of them)

A model with random weights is trained on random tokens: forward, backward, clip, step; sequences of
4,096 tokens, layers checkpointed, the loss of all tokens at once as transformers computes it, or by
chunks of 4,096 (--chunked-loss). Iterations are queued one after the other and the host waits at the
end only; seconds are those of the GPU's main stream from the end of one iteration to the end of
another, over the iterations between. Variants joined by + run in one process, with one model. VARIANT:

    none               no optimizer: what the others are compared with
    torch              torch.optim.AdamW(fused=True), state in the parameters' type
    resident           stowage.torch.AdamW, all state on the GPU
    after              state on the host, the step waited for (overlap=False)
    hidden             state on the host, behind the next forward
    hidden_bf16        the same, moments in bf16, as offload_adam has them
    layers             a per-layer streamed step as trainers write it, after backward
    offload_adam, offload_adam_clip   tascj/offload_adam, without and with clipping
    torchao            torchao.optim.CPUOffloadOptimizer over torch's fused AdamW

--state master: bf16 parameters, master and moments in fp32 (12 B); fp32: fp32 parameters under
autocast, moments in fp32 (8 B). Needs torch and transformers; no network. The package stowage is
found by PYTHONPATH, its library by STOWAGE_LIBRARY."""

import argparse
import gc
import json
import math
import os
import resource
import subprocess
import sys
import threading
import time

MODELS = {  # config.json of the published models
    "Qwen3-0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                       num_attention_heads=16, num_key_value_heads=8, tie_word_embeddings=True),
    "Qwen3-4B": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                     num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True),
    "Qwen3-8B": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                     num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False),
}
COMMON = dict(vocab_size=151936, head_dim=128, max_position_embeddings=40960, rope_theta=1000000.0,
              rms_norm_eps=1e-6)
RATES = dict(lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
SEQUENCE = 4096
GIB = 2**30


def make_model(options, torch):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**COMMON, **MODELS[options.model], use_cache=False,
                         attn_implementation="sdpa")
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16 if options.state == "master" else torch.float32)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if not options.no_checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def loss_of(model, tokens, options, torch):
    """Mean loss over all tokens: the head and the loss by chunks, which are computed again in
    backward."""
    from torch.utils.checkpoint import checkpoint

    def chunk(hidden, labels):
        logits = model.lm_head(hidden).float()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    autocast = torch.autocast("cuda", torch.bfloat16, enabled=options.state == "fp32")
    with autocast:
        hidden = model.model(input_ids=tokens).last_hidden_state.flatten(0, 1)
        labels = tokens.flatten().roll(-1)
        if not options.chunked_loss:
            return chunk(hidden, labels) / len(labels)
        total = 0
        for at in range(0, len(labels), SEQUENCE):
            total = total + checkpoint(chunk, hidden[at:at + SEQUENCE], labels[at:at + SEQUENCE],
                                       use_reentrant=False)
    return total / len(labels)


# ---- the variants: each has step(), and before_backward() where it needs to know ---------------


class Nothing:
    def __init__(self, model, options, torch):
        self.model = model

    def before_backward(self):
        pass

    def step(self):
        self.zero()

    def zero(self):
        for p in self.model.parameters():
            p.grad = None


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
        params = sum(p.numel() for p in model.parameters())
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
            state = [torch.zeros(n, pin_memory=True) for _ in range(2)]
            if self.master:
                master = torch.empty(n, pin_memory=True)
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

    def before_backward(self):
        self.optimizer.ready_for_optimizer_step = True

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


VARIANTS = {"none": Nothing, "torch": Torch, "resident": Stowage, "after": Stowage,
            "hidden": Stowage, "hidden_bf16": Stowage, "layers": Layers,
            "offload_adam": OffloadAdam, "offload_adam_clip": OffloadAdam, "torchao": Torchao}

# ---- measuring ---------------------------------------------------------------------------------


def iterate(model, variant, tokens, options, torch):
    loss = loss_of(model, tokens, options, torch)
    variant.before_backward()
    loss.backward()
    variant.step()
    return loss


def used_on_gpu(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def measure(model, variant, tokens, options, torch):
    shape = (tokens // SEQUENCE, SEQUENCE)
    data = torch.randint(0, COMMON["vocab_size"], shape, device="cuda",
                         generator=torch.Generator("cuda").manual_seed(tokens))
    torch.cuda.reset_peak_memory_stats()
    marks = []
    for _ in range(options.warmup + options.steps):
        loss = iterate(model, variant, data, options, torch)
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
    torch.cuda.synchronize()
    first = marks[options.warmup - 1]
    seconds = first.elapsed_time(marks[-1]) / 1000 / options.steps
    # One more, for the seconds of a forward pass with nothing beside it.
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    loss_of(model, data, options, torch).detach()
    end.record()
    torch.cuda.synchronize()
    forward = begin.elapsed_time(end) / 1000
    return dict(tokens=tokens, seconds=seconds, forward=forward, loss=float(loss),
                gpu_peak=torch.cuda.max_memory_allocated(),
                gpu_reserved=torch.cuda.max_memory_reserved(), gpu_used=used_on_gpu(torch))


def run_variant(model, name, options, torch):
    """Prints a line for each number of tokens; the optimizer is gone afterwards."""
    options.variant = name
    torch.cuda.synchronize()
    start = time.perf_counter()
    try:
        variant = VARIANTS[name](model, options, torch)
        made = time.perf_counter() - start
        data = torch.randint(0, 1000, (1, SEQUENCE), device="cuda")
        start = time.perf_counter()
        iterate(model, variant, data, options, torch)
        torch.cuda.synchronize()
        made += time.perf_counter() - start
    except (torch.OutOfMemoryError, RuntimeError) as error:
        print(json.dumps(dict(variant=name, error=str(error).split("\n")[0][:200])), flush=True)
        return
    for tokens in options.tokens:
        try:
            row = measure(model, variant, tokens, options, torch)
        except torch.OutOfMemoryError as error:
            row = dict(tokens=tokens, error=str(error).split("\n")[0][:160])
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps(dict(variant=name, model=options.model, state=options.state,
                              setup_s=made, host_peak=peak, **row)), flush=True)
        if "error" in row:
            break


def run_here(options):
    import torch

    model = make_model(options, torch)
    for name in options.variants.split("+"):
        run_variant(model, name, options, torch)
        gc.collect()
        torch.cuda.empty_cache()


def show(row, base):
    name, tokens = row["variant"], row.get("tokens")
    if "error" in row:
        print(f"| {name} | {tokens} | {row['error']} |", flush=True)
        return
    if name == "none":
        base[tokens] = row["seconds"]
    added = row["seconds"] - base.get(tokens, math.nan)
    print(f"| {name} | {tokens} | {row['seconds']:.3f} | {added:+.3f} | {row['forward']:.3f} "
          f"| {row['gpu_peak'] / GIB:.1f} | {row['gpu_used'] / GIB:.1f} "
          f"| {row['host_peak'] / GIB:.1f} | {row['setup_s']:.1f} |", flush=True)


def run_elsewhere(names, options, arguments, base):
    """The variants of a group in a process of its own; their rows also go to the output folder."""
    command = [sys.executable, os.path.abspath(__file__), *arguments, "--here", "--variants", names]
    file = f"{options.model}_{options.state}_{names}.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as process, \
            open(os.path.join(options.output, file), "w", encoding="utf-8") as out:
        timer = threading.Timer(options.limit, process.kill)
        timer.start()
        said = []
        for line in process.stdout:
            if line.startswith("{"):
                out.write(line)
                show(json.loads(line), base)
            else:
                said.append(line)
        timer.cancel()
        if process.wait() != 0:
            print(f"| {names} | rc {process.returncode} |", "".join(said)[-800:], flush=True)


def run_all(options, arguments):
    os.makedirs(options.output, exist_ok=True)
    print(f"{options.model}, {options.state}, clip {options.clip}, "
          f"{'not ' if options.no_checkpoint else ''}checkpointed")
    print("| variant | tokens | iteration s | added s | forward s | GPU peak GiB | device GiB "
          "| host GiB | setup and first step s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    base = {}
    for names in options.variants.split(","):
        run_elsewhere(names, options, arguments, base)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="Qwen3-4B")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--tokens", type=lambda s: [int(t) for t in s.split(",")],
                        default=[4096, 16384])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--state", choices=["master", "fp32"], default="master")
    parser.add_argument("--no-checkpoint", action="store_true")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--chunked-loss", action="store_true")
    parser.add_argument("--bucket-mib", type=int, help="slots of the ring; else as planned")
    parser.add_argument("--depth", type=int, default=3, help="how many")
    parser.add_argument("--limit", type=float, default=150, help="seconds of a process")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("-o", "--output", default="adamw")
    options = parser.parse_args()
    if options.here:
        run_here(options)
    else:
        run_all(options, sys.argv[1:])


if __name__ == "__main__":
    main()
