# SPDX-License-Identifier: Apache-2.0
"""Training steps of torch FSDP2 with transformers' models, and what they hold: a row of truth.

    torchrun --nproc-per-node N fsdp2_torch.py --case '{"model": "Qwen3-0.6B", "seq": 2048}' -o rows.jsonl
    torchrun ... --record FOLDER          also keeps which collectives one more step issues, of every rank
    torchrun ... --history FILE           also writes what one more step takes and frees: a line for each block, with
                                          its size in bytes and the call of a model's code that asked for it

CASE has, with defaults:

    model          a file of models/zoo, by name
    layers null    as many layers of it
    seq 2048, mbs 1            tokens of a sequence, sequences of a micro batch
    accumulate 1, sync_each true   micro batches of a step; reduced after each of them
    params "float32", compute "bfloat16", reduce "float32"
    ac false       every layer under activation checkpointing (not reentrant); or some of its modules,
                   ["mlp", "self_attn"]; or "ops": outputs of attention and every second product are kept
    images 0       tokens of each sequence that a vision tower makes of one square image
    optimizer "adamw"    or "muon": torch.optim.Muon for products of layers, AdamW for the rest; fsdp false
    fsdp true      false: a plain module, for one rank
    reshard true   reshard_after_forward
    reshard_between true   false: set_reshard_after_backward in the last micro batch alone
    hsdp 1         replicas
    steps 2        iterations
    log_prob 0     sequences of a forward without gradients, before each step, for as many tokens as it trains on
    log_prob_method "whole"    or "chunked": upcast and log-softmax of 1,024 tokens at a time
    log_prob_entropy false
    memory_limit 0     GiB that torch's allocator may reserve (set_per_process_memory_fraction)
    expandable false   expandable_segments
    embed_in_root true         false: the embedding is an FSDP group of its own
    offload false  CPUOffloadPolicy(pin_memory)
    streamed 0     moments page-locked on the host, layer by layer through the GPU: so many ahead
    park false     moments move whole to the host after a step and back before it
    fused true     the optimizer's kernel; false: foreach
    threads 16     of the CPU, per rank
    lora null      {"rank": 16, "targets": ["q_proj", ..]}: everything else is frozen
    clip 1.0       largest global norm, 0: none

One line of JSON for each case: every step, by phase, the worst rank: allocated and reserved peaks,
device bytes, resident and page-locked host bytes, in GiB; seconds of every phase; versions."""

import argparse
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

GIB = 1 << 30
DEFAULTS = {
    "layers": None, "seq": 2048, "mbs": 1, "accumulate": 1, "sync_each": True, "params": "float32",
    "compute": "bfloat16", "reduce": "float32", "ac": False, "fsdp": True, "reshard": True, "hsdp": 1,
    "embed_in_root": True, "offload": False, "streamed": 0, "park": False, "fused": True,
    "threads": 16, "lora": None, "clip": 1.0, "reshard_between": True, "steps": 2, "log_prob": 0,
    "log_prob_method": "whole", "log_prob_entropy": False, "memory_limit": 0, "expandable": False,
    "images": 0, "optimizer": "adamw",
}
CHUNK = 1024


class Lora(torch.nn.Module):
    """A frozen product and two small ones beside it."""

    def __init__(self, base, rank, dtype):
        super().__init__()
        self.base = base
        self.lora_A = torch.nn.Linear(base.in_features, rank, bias=False, dtype=dtype, device="meta")
        self.lora_B = torch.nn.Linear(rank, base.out_features, bias=False, dtype=dtype, device="meta")

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x)) * 2.0


def build(case, zoo):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    facts = json.loads((zoo / (case["model"] + ".json")).read_text())
    facts = facts.get("config", facts)
    config = AutoConfig.for_model(facts["model_type"], **{k: v for k, v in facts.items() if k != "model_type"})
    text = config.get_text_config()
    if case["layers"]:
        text.num_hidden_layers = case["layers"]
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[: case["layers"]]
    config.use_cache = text.use_cache = False
    dtype = getattr(torch, case["params"])
    sees = hasattr(config, "vision_config")
    with torch.device("meta"):
        model = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_config(
            config, dtype=dtype, attn_implementation="sdpa")
    if case["lora"]:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if name in case["lora"]["targets"]:
                    setattr(module, name, Lora(child, case["lora"]["rank"], dtype))
    return model, config


def blocks(model):
    """Layers of the decoder and of a vision tower, which are units of FSDP and of checkpoints."""
    inner = model.model
    found = list(getattr(inner, "language_model", inner).layers)
    return found + list(inner.visual.blocks if hasattr(inner, "visual") else [])


def checkpoint(model, case):
    """Activation checkpoints: of whole layers, of some of their modules, or by operation."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    if case["ac"] is True:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if case["lora"]:
            model.enable_input_require_grads()
        return
    if case["ac"] != "ops":
        for block in blocks(model):
            for name in case["ac"]:
                setattr(block, name, checkpoint_wrapper(getattr(block, name), preserve_rng_state=False))
        return
    ops = torch.ops.aten
    attention = {ops._scaled_dot_product_flash_attention.default,
                 ops._scaled_dot_product_efficient_attention.default,
                 ops._scaled_dot_product_cudnn_attention.default}

    def contexts():
        products = {False: 0, True: 0}

        def policy(context, op, *arguments, **keywords):
            if op == ops.mm.default:
                products[context.is_recompute] += 1
                keep = products[context.is_recompute] % 2 == 1
            else:
                keep = op in attention
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    layers = getattr(model.model, "language_model", model.model).layers
    for index, block in enumerate(layers):
        layers[index] = checkpoint_wrapper(block, context_fn=contexts, preserve_rng_state=False)


def shard(model, case, mesh):
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, case["compute"]),
                                  reduce_dtype=getattr(torch, case["reduce"]))
    offload = CPUOffloadPolicy(pin_memory=True) if case["offload"] else OffloadPolicy()
    arguments = {"mesh": mesh, "mp_policy": policy, "offload_policy": offload,
                 "reshard_after_forward": case["reshard"]}
    if case["ac"]:
        checkpoint(model, case)
    if case["fsdp"]:
        for layer in blocks(model):
            fully_shard(layer, **arguments)
        if not case["embed_in_root"]:
            fully_shard(model.model.embed_tokens, **arguments)
        fully_shard(model, **arguments)
    model.to_empty(device="cpu" if case["offload"] else "cuda")
    if not case["fsdp"]:
        model.tie_weights()
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.fill_(0.0).add_(1e-3)
        for name, buffer in model.named_buffers():
            buffer.data = buffer.data.to("cuda")
    for module in model.modules():  # rotary tables are made on the meta device
        if hasattr(module, "inv_freq") and hasattr(module, "rope_init_fn"):
            frequencies, _ = module.rope_init_fn(module.config, "cuda")
            module.inv_freq = frequencies
            module.original_inv_freq = frequencies
    model.train()


class Streamed:
    """Moments in page-locked memory, group by group through the GPU on three streams, `ahead` groups
    early: the scheme of AReaL's PerLayerOptimWrapper."""

    def __init__(self, model, ahead):
        self.ahead = ahead
        groups = [list(layer.parameters()) for layer in model.model.layers]
        seen = {id(p) for group in groups for p in group}
        groups.append([p for p in model.parameters() if id(p) not in seen])
        self.groups = [[p for p in group if p.requires_grad] for group in groups]
        self.state = {}
        self.up, self.down = torch.cuda.Stream(), torch.cuda.Stream()
        self.steps = 0

    def fetch(self, index):
        with torch.cuda.stream(self.up):
            out = []
            for p in self.groups[index]:
                local = p.to_local()
                if id(p) not in self.state:
                    self.state[id(p)] = [torch.zeros_like(local, device="cpu").pin_memory() for _ in range(2)]
                out.append([m.to("cuda", non_blocking=True) for m in self.state[id(p)]])
            event = torch.cuda.Event()
            event.record(self.up)
        return out, event

    def step(self):
        self.steps += 1
        fetched = {i: self.fetch(i) for i in range(min(self.ahead + 1, len(self.groups)))}
        step = torch.tensor(float(self.steps))
        for i, group in enumerate(self.groups):
            moments, event = fetched.pop(i)
            torch.cuda.current_stream().wait_event(event)
            params = [p.to_local() for p in group]
            grads = [p.grad.to_local() for p in group]
            with torch.no_grad():
                adamw(params, grads, [m[0] for m in moments], [m[1] for m in moments], [],
                      [step.clone() for _ in params], foreach=True, amsgrad=False, beta1=0.9, beta2=0.999,
                      lr=1e-5, weight_decay=0.01, eps=1e-8, maximize=False)
            done = torch.cuda.Event()
            done.record()
            if i + self.ahead + 1 < len(self.groups):
                fetched[i + self.ahead + 1] = self.fetch(i + self.ahead + 1)
            with torch.cuda.stream(self.down):
                self.down.wait_event(done)
                for p, pair in zip(group, moments):
                    for host, device in zip(self.state[id(p)], pair):
                        device.record_stream(self.down)
                        host.copy_(device, non_blocking=True)
        torch.cuda.synchronize()

    def zero_grad(self):
        for group in self.groups:
            for p in group:
                p.grad = None


class Parked(torch.optim.AdamW):
    """Moments move whole to page-locked memory after the step and come back before it."""

    def step(self, closure=None):
        self.move("cuda")
        result = super().step(closure)
        self.move("cpu")
        return result

    def move(self, device):
        for p, state in self.state.items():
            for key, value in state.items():
                if not isinstance(value, torch.Tensor) or value.dim() == 0:
                    continue
                if device == "cuda":
                    back = value.to("cuda", non_blocking=True)
                    state[key] = DTensor.from_local(back, p.device_mesh, p.placements, run_check=False,
                                                    shape=p.shape, stride=p.stride())
                else:
                    state[key] = value.to_local().cpu().pin_memory()
        torch.cuda.synchronize()


def host_bytes():
    out = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        for key, name in (("VmHWM", "host_hwm"), ("VmRSS", "rss"), ("RssAnon", "anonymous")):
            if line.startswith(key + ":"):
                out[name] = int(line.split()[1]) * 1024
    pinned = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    out["pinned"] = pinned.get("allocated_bytes.current", 0)
    out["pinned_peak"] = pinned.get("allocated_bytes.peak", 0)
    return out


class Phases:
    """Figures of the phases, the worst of all ranks."""

    def __init__(self):
        self.rows, self.seconds = {}, {}

    def mark(self, name, since):
        torch.cuda.synchronize()
        spent = time.perf_counter() - since
        free, total = torch.cuda.mem_get_info()
        figures = {"alloc": torch.cuda.memory_allocated(), "peak_alloc": torch.cuda.max_memory_allocated(),
                   "peak_reserved": torch.cuda.max_memory_reserved(), "device_used": total - free,
                   "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0) * GIB,
                   **host_bytes()}
        keys = sorted(figures)
        worst = torch.tensor([float(figures[k]) for k in keys] + [spent], dtype=torch.float64)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=WORST)
        self.rows[name] = {k: round(v / GIB, 5) for k, v in zip(keys, worst.tolist())}
        self.seconds[name] = round(worst[-1].item(), 4)
        torch.cuda.reset_peak_memory_stats()
        dist.barrier(group=WORST)
        return time.perf_counter()


class Muon:
    """torch.optim.Muon for the products of layers, torch.optim.AdamW for everything else."""

    def __init__(self, model, how):
        products = {id(p) for block in blocks(model) for p in block.parameters() if p.dim() == 2}
        trained = [p for p in model.parameters() if p.requires_grad]
        self.parts = [torch.optim.Muon([p for p in trained if id(p) in products], lr=1e-5),
                      torch.optim.AdamW([p for p in trained if id(p) not in products], lr=1e-5, **how)]

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()


def batch_of(config, case):
    """Arguments of the model's forward: tokens, and one image of each sequence."""
    text = config.get_text_config()
    tokens = torch.randint(0, text.vocab_size, (case["mbs"], case["seq"]), device="cuda")
    if not case["images"]:
        return {"input_ids": tokens}
    vision = config.vision_config
    side = round(case["images"] ** 0.5) * vision.spatial_merge_size  # patches
    special = [getattr(config, name) for name in ("image_token_id", "video_token_id", "vision_start_token_id")]
    for token in special:
        tokens[tokens == token] = 0
    tokens[:, 0], tokens[:, 1:1 + case["images"]] = special[2], special[0]
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {"input_ids": tokens, "mm_token_type_ids": (tokens == special[0]).int(),
            "pixel_values": torch.randn(case["mbs"] * side * side, patch, device="cuda"),
            "image_grid_thw": torch.tensor([[1, side, side]] * case["mbs"], device="cuda")}


def loss_of(model, batch, parts):
    return model(**batch, labels=batch["input_ids"]).loss / parts


def log_probs(model, tokens, case):
    """Log-probabilities of the next tokens, and the entropy, without gradients."""
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
        logits = logits.view(-1, logits.shape[-1])
        labels = tokens.roll(-1).view(-1, 1)
        step = CHUNK if case["log_prob_method"] == "chunked" else len(labels)
        out = []
        for first in range(0, len(labels), step):
            wide = logits[first:first + step].float()
            log_softmax = torch.log_softmax(wide, dim=-1)
            out.append(log_softmax.gather(1, labels[first:first + step]))
            if case["log_prob_entropy"]:
                probabilities = log_softmax.exp()
                product = probabilities * log_softmax
                out.append(-product.sum(dim=-1))
                del probabilities, product
            del wide, log_softmax
    return out


def set_up_allocator(case):
    if case["expandable"]:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    if case["memory_limit"]:
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(case["memory_limit"] * GIB / total)


def write_history(path):
    """Of torch's allocator: +, which block, bytes, where; or -, which block."""
    numbers, lines = {}, []
    for event in torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]:
        if event["action"] == "alloc":
            numbers[event["addr"]] = len(lines)
            frames = [f for f in event.get("frames", []) if "/models/" in f["filename"] or "/integrations/" in f["filename"]]
            where = f"{frames[0]['name']}:{frames[0]['line']}" if frames else ""
            lines.append(f"+ {len(lines)} {event['size']} {where}")
        elif event["action"] == "free_requested":
            lines.append(f"- {numbers.pop(event['addr'], 'before')} {event['size']}")
    pathlib.Path(path).write_text("\n".join(lines))


def run(case, zoo, record, history=""):
    torch.manual_seed(1)
    set_up_allocator(case)
    torch.set_num_threads(case["threads"])
    world = dist.get_world_size()
    shape, names = ((world,), ("shard",))
    if case["hsdp"] > 1:
        shape, names = (case["hsdp"], world // case["hsdp"]), ("replicate", "shard")
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
    phases = Phases()
    torch.cuda.reset_peak_memory_stats()
    clock = phases.mark("start", time.perf_counter())
    model, config = build(case, zoo)
    shard(model, case, mesh)
    trained = [p for p in model.parameters() if p.requires_grad]
    clock = phases.mark("load", clock)
    how = {"fused": True} if case["fused"] else {"foreach": True}
    if case["streamed"]:
        optimizer = Streamed(model, case["streamed"])
    elif case["optimizer"] == "muon":
        optimizer = Muon(model, how)
    else:
        optimizer = (Parked if case["park"] else torch.optim.AdamW)(trained, lr=1e-5, **how)
    batch = batch_of(config, case)
    tokens = batch["input_ids"]
    sequences = case["mbs"] * case["accumulate"]
    kept = None
    for step in range(case["steps"] + bool(record or history)):
        profiler = None
        if step == case["steps"] and history:
            kept = dict(phases.rows), dict(phases.seconds)
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
        if step == case["steps"] and record:  # one more: the profiler holds memory
            kept = dict(phases.rows), dict(phases.seconds)
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                                          torch.profiler.ProfilerActivity.CUDA])
            profiler.__enter__()
        if case["log_prob"]:
            model.eval()
            for _ in range(0, sequences, case["log_prob"]):
                log_probs(model, tokens[:1].repeat(case["log_prob"], 1), case)
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
            model.train()
            clock = phases.mark(f"log_prob{step}", clock)
        for part in range(case["accumulate"]):
            last = part == case["accumulate"] - 1
            if not case["reshard_between"]:
                model.set_reshard_after_backward(last)
            if not case["sync_each"]:
                model.set_requires_gradient_sync(last)
            suffix = f"{step}" if last else f"{step}_{part}"
            loss = loss_of(model, batch, case["accumulate"])
            clock = phases.mark("forward" + suffix, clock)
            loss.backward()
            del loss
            clock = phases.mark("backward" + suffix, clock)
        if case["clip"]:
            torch.nn.utils.clip_grad_norm_(trained, case["clip"])
        clock = phases.mark(f"clip{step}", clock)
        optimizer.step()
        clock = phases.mark(f"step{step}", clock)
        optimizer.zero_grad()
        clock = phases.mark(f"zero{step}", clock)
        if profiler is not None:
            profiler.__exit__(None, None, None)
            trace = pathlib.Path(record) / f"{case['name']}.{dist.get_rank()}.json"
            profiler.export_chrome_trace(str(trace))
            summarise(trace)
    if history:
        write_history(history)
    if kept is not None:
        phases.rows, phases.seconds = kept
    params = sum(p.numel() for p in model.parameters())
    return {"case": {k: v for k, v in case.items() if v != DEFAULTS.get(k, object())}, "world": world,
            "params": params, "trained": sum(p.numel() for p in trained), "seconds": phases.seconds,
            "phases": phases.rows, "torch": torch.__version__, "fresh_process": True}


def summarise(trace):
    """Collectives of a chrome trace: name, group, elements in and out, type; how many of each."""
    counts = {}
    for event in json.loads(trace.read_text()).get("traceEvents", []):
        if event.get("name") != "record_param_comms":
            continue
        args = event.get("args", {})
        key = (args.get("Collective name"), args.get("Process Group Name"), args.get("Group size"),
               args.get("In msg nelems"), args.get("Out msg nelems"), args.get("dtype"))
        counts[key] = counts.get(key, 0) + 1
    names = ("collective", "process_group", "group_size", "in_elements", "out_elements", "dtype")
    rows = [dict(zip(names, key), count=n) for key, n in counts.items()]
    trace.unlink()
    trace.with_suffix(".comms.json").write_text(json.dumps(rows, indent=1))


def main():
    global WORST
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", required=True)
    parser.add_argument("--zoo", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "models/zoo")
    parser.add_argument("--record", default="")
    parser.add_argument("--history", default="")
    parser.add_argument("-o", default="/dev/stdout")
    arguments = parser.parse_args()
    case = {**DEFAULTS, **json.loads(arguments.case)}
    case.setdefault("name", case["model"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl",
                            device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    WORST = dist.new_group(backend="gloo")
    row = run(case, arguments.zoo, arguments.record, arguments.history)
    if dist.get_rank() == 0:
        with open(arguments.o, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    dist.barrier(group=WORST)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
