#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real failures of torch on one GPU, what `stowage explain` says of them, and whether its first change runs.

    bench/explain_torch.py [-o FOLDER] [--jobs 4] [--cases forward,first_step]

Each case is a job of FSDP2 on one rank, or of DeepSpeed where it can be imported, in a process of its own that may
take a few GiB of the GPU (set_per_process_memory_fraction), next to a process that holds the rest of it, or with a
limit on its host memory. It fails in a known phase; its error (error.txt) and its allocator's history (snapshot.pickle) are kept in
FOLDER/CASE. Then

    stowage plan     for the job on the whole GPU, as somebody would have planned it
    stowage explain  error.txt plan.json, and snapshot.pickle plan.json
    the same job     with the first change that was planned

STOWAGE names the program (default: build/bin/stowage). One line of JSON for each case as it ends, then one with the
sums. Exit code 1 where a phase or component is wrong, or less than eight in ten of the changes run.

On a machine without GPU the jobs run on the CPU and raise the error by themselves (--pretend): a test of this script,
not of explain."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
import traceback
import types

GIB = 1 << 30
MIB = 1 << 20
STOWAGE = os.environ.get("STOWAGE", str(pathlib.Path(__file__).resolve().parent.parent / "build/bin/stowage"))
LIMIT_S = 100  # of one job

# Shapes: many parameters, long sequences of narrow blocks, a large vocabulary.
WIDE = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_hidden_layers": 8,
        "num_key_value_heads": 8, "vocab_size": 32000, "head_dim": 128}
DEEP = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 12,
        "num_key_value_heads": 8, "vocab_size": 6000, "head_dim": 64}
WORDS = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_hidden_layers": 4,
         "num_key_value_heads": 8, "vocab_size": 128000, "head_dim": 64}

# gpu_gib: of torch's allocator, 0: all. components: which of the plan's an answer may name.
CASES = {
    "load": {"model": WIDE, "seq": 512, "gpu_gib": 1.75, "phase": "load", "components": ["params"]},
    "forward": {"model": DEEP, "seq": 8192, "gpu_gib": 4.5, "phase": "forward_backward", "part": "forward",
                "components": ["activations"]},
    "forward_logits": {"model": WORDS, "seq": 8192, "gpu_gib": 5.0, "phase": "forward_backward", "part": "forward",
                       "components": ["logits"]},
    "backward_logits": {"model": WORDS, "seq": 8192, "gpu_gib": 12.3, "phase": "forward_backward", "part": "backward",
                        "components": ["logits"]},
    "backward_grads": {"model": WIDE, "seq": 512, "gpu_gib": 3.1, "phase": "forward_backward", "part": "backward",
                       "components": ["grads", "reduce"]},
    "first_step": {"model": WIDE, "seq": 512, "gpu_gib": 5.5, "phase": "first_optimizer_step",
                   "components": ["exp_avg", "exp_avg_sq"]},
    "step_foreach": {"model": WIDE, "seq": 512, "gpu_gib": 8.4, "optimizer": "foreach",
                     "phase": "first_optimizer_step", "components": ["stage"]},
    "fragments": {"model": WORDS, "seq": 2048, "gpu_gib": 6.9, "features": 12, "phase": "forward_backward",
                  "components": ["logits", "activations"], "cause": "fragmentation"},
    "others": {"model": WIDE, "seq": 512, "others": 5.5, "phase": "first_optimizer_step",
               "components": ["exp_avg", "exp_avg_sq"], "cause": "other_processes", "alone": True},
    "host": {"model": WIDE, "seq": 512, "offload": True, "host_gib": 1.0, "phase": "load",
             "components": ["params", "load_staging"],
             "cause": "host_memory"},
    "deepspeed_grads": {"model": WIDE, "seq": 512, "gpu_gib": 5.5, "deepspeed": True, "phase": "forward_backward",
                        "part": "backward", "components": ["grads"]},
}
STEPS = 2


# ---- the job ----

def build_model(torch, shape, device):
    """Llama as transformers writes it."""
    functional = torch.nn.functional

    def linear(width, out):
        return torch.nn.Linear(width, out, bias=False, device=device)

    class Norm(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(width, device=device))

        def forward(self, x):
            wide = x.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
            return self.weight * wide.to(x.dtype)

    def turned(x):
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.kv = shape["num_attention_heads"], shape["num_key_value_heads"]
            self.width = shape["head_dim"]
            self.q_proj = linear(shape["hidden_size"], self.heads * self.width)
            self.k_proj = linear(shape["hidden_size"], self.kv * self.width)
            self.v_proj = linear(shape["hidden_size"], self.kv * self.width)
            self.o_proj = linear(self.heads * self.width, shape["hidden_size"])

        def forward(self, x, cos, sin):
            size = x.shape[:2]
            q = self.q_proj(x).view(*size, self.heads, self.width).transpose(1, 2)
            k = self.k_proj(x).view(*size, self.kv, self.width).transpose(1, 2)
            v = self.v_proj(x).view(*size, self.kv, self.width).transpose(1, 2)
            q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
            if self.kv != self.heads:
                k, v = (t.repeat_interleave(self.heads // self.kv, dim=1) for t in (k, v))
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(out.transpose(1, 2).reshape(*size, -1))

    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj = linear(shape["hidden_size"], shape["intermediate_size"])
            self.up_proj = linear(shape["hidden_size"], shape["intermediate_size"])
            self.down_proj = linear(shape["intermediate_size"], shape["hidden_size"])

        def forward(self, x):
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = Attention(), Mlp()
            self.input_layernorm, self.post_attention_layernorm = Norm(shape["hidden_size"]), Norm(shape["hidden_size"])

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(shape["vocab_size"], shape["hidden_size"], device=device)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(shape["num_hidden_layers"]))
            self.norm = Norm(shape["hidden_size"])
            self.lm_head = linear(shape["hidden_size"], shape["vocab_size"])
            self.recompute, self.chunk = False, 0

        def loss_of(self, hidden, labels):
            logits = self.lm_head(hidden).float()
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1), reduction="sum")

        def forward(self, tokens):
            from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

            x = self.embed_tokens(tokens)
            at = torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32)
            turns = torch.outer(at, 10000.0 ** (-torch.arange(0, shape["head_dim"], 2, device=x.device) /
                                                shape["head_dim"]))
            turns = torch.cat((turns, turns), dim=-1)
            cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
            for layer in self.layers:
                x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recompute else layer(x, cos, sin)
            x, labels = self.norm(x), tokens.roll(-1)
            if not self.chunk:
                return self.loss_of(x, labels) / labels.numel()
            with set_checkpoint_early_stop(False):  # an early end was raised inside cross_entropy_loss, which lost it on CUDA
                parts = [checkpoint(self.loss_of, part, label, use_reentrant=False)
                         for part, label in zip(x.split(self.chunk, dim=1), labels.split(self.chunk, dim=1))]
            return torch.stack(parts).sum() / labels.numel()

    return Model()


def limit_host(gib):
    """Address space: what is mapped now, and so much more."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + int(gib * GIB)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def gather_features(torch, n):
    """Batches of growing length pass through the GPU, and a result of each stays: the rest of each one's segment is too
    small for the next."""
    kept = []
    for i in range(n):
        batch = torch.empty((200 + 2 * i) * MIB, dtype=torch.uint8, device="cuda")
        del batch
        kept.append(torch.empty(112 * MIB, dtype=torch.uint8, device="cuda"))
    return kept


def shard(torch, model, case, device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    pinned = device == "cuda"
    more = {"mesh": init_device_mesh(device, (1,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy(pin_memory=pinned) if case.get("offload") else OffloadPolicy(),
            "reshard_after_forward": case.get("reshard", True)}
    for layer in model.layers:
        fully_shard(layer, **more)
    fully_shard(model, **more)


def train(torch, case, device):
    """Yields the name of what begins."""
    import torch.distributed as dist

    yield "load"
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(case["port"])})
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=0, world_size=1)
    if case.get("host_gib"):
        torch.ones(1 << 22).add_(1)  # threads have their stacks
        limit_host(case["host_gib"])
    model = build_model(torch, case["model"], "cpu" if case.get("offload") else device)
    model.recompute, model.chunk = case.get("recompute", False), case.get("chunk", 0)
    shard(torch, model, case, device)
    kept = gather_features(torch, case.get("features", 0)) if device == "cuda" else []
    how = {} if case.get("optimizer") == "loop" else {case.get("optimizer", "fused"): True}
    if case.get("optimizer") == "loop":
        how = {"foreach": False}
    if case.get("optimizer") == "streamed":
        from fsdp2_torch import Streamed  # moments page-locked, layer by layer through the GPU

        optimizer = Streamed(types.SimpleNamespace(model=model, parameters=model.parameters), 1)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **how)
    rows = case.get("micro_batch", 1)
    tokens = torch.randint(0, case["model"]["vocab_size"], (rows, case["seq"]), device=device)
    for step in range(STEPS):
        yield "forward"
        loss = model(tokens)
        yield "backward"
        loss.backward()
        del loss
        yield "step" if step else "first_step"
        optimizer.step()
        optimizer.zero_grad()
    print(f"{STEPS} steps with {len(kept)} features", flush=True)


def train_deepspeed(torch, case):
    import deepspeed

    yield "load"
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(case["port"]), "RANK": "0", "LOCAL_RANK": "0",
                       "WORLD_SIZE": "1"})
    model = build_model(torch, case["model"], "cuda")
    model.recompute, model.chunk = case.get("recompute", False), case.get("chunk", 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=case["ds"])[0]
    tokens = torch.randint(0, case["model"]["vocab_size"], (1, case["seq"]), device="cuda")
    for step in range(STEPS):
        yield "forward"
        loss = engine(tokens)
        yield "backward"
        engine.backward(loss)
        del loss
        yield "step" if step else "first_step"
        engine.step()
    print(f"{STEPS} steps", flush=True)


def job(case, folder):
    """One process: 0 it ran, 9 memory ended, else a bug of the job."""
    import torch

    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    torch.manual_seed(1)
    torch.set_num_threads(4)
    if case.get("small"):  # a few steps of something small
        case["model"] = {**case["model"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                         "vocab_size": 512, "head_dim": 8}
        case["seq"], case["optimizer"] = min(case["seq"], 2048), "foreach"
    if gpu:
        torch.cuda.set_device(0)
        total = torch.cuda.get_device_properties(0).total_memory
        if case.get("gpu_gib"):
            torch.cuda.set_per_process_memory_fraction(min(1.0, case["gpu_gib"] * GIB / total))
        torch.cuda.memory._record_memory_history(max_entries=300000, stacks="python")
    memory_errors = (torch.OutOfMemoryError, MemoryError, RuntimeError)
    try:
        for at in train_deepspeed(torch, case) if case.get("deepspeed") else train(torch, case, device):
            print(f"job: {at}", flush=True)
            if case.get("pretend") == at:
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which "
                    "70.00 GiB is free. Including non-PyTorch memory, this process has 4.60 GiB memory in use. 4.50 GiB "
                    "allowed; Of the allocated memory 4.10 GiB is allocated by PyTorch, and 20.00 MiB is reserved by "
                    "PyTorch but unallocated.")
        return 0
    except memory_errors as error:
        if case.get("host_gib"):
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        text = traceback.format_exc()
        if not any(word in text for word in ("out of memory", "allocate memory", "not enough memory")):
            print(text, flush=True)
            return 1
        (folder / "error.txt").write_text(text, encoding="utf-8")
        if gpu:
            torch.cuda.memory._dump_snapshot(str(folder / "snapshot.pickle"))
        print(type(error).__name__, flush=True)
        return 9


def hold(gib_left):
    """The other process: all of the GPU but so much, until its input ends."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    block = torch.empty(max(int(free - gib_left * GIB), 0), dtype=torch.uint8, device="cuda")
    print(f"held {block.numel()}", flush=True)
    sys.stdin.read()


# ---- the change ----

def fused_chunk(case):
    """Tokens of a chunk as Liger's fused loss takes them: logits of one are no larger than the hidden states of all."""
    shape, tokens = case["model"], case["seq"] * case.get("micro_batch", 1)
    parts = -(-shape["vocab_size"] // shape["hidden_size"])
    return 1 << (-(-tokens // parts) - 1).bit_length()


def apply(case, change):
    """The job with a change of keys. @return the case, and keys that it does not know"""
    case, unknown, env = json.loads(json.dumps(case)), [], {}
    for item in change["set"]:
        key, value = item["key"], item["value"]
        if key == "batch.seq_len":
            case["seq"] = int(value)
        elif key == "batch.micro_batch":
            case["micro_batch"] = int(value)
        elif key == "batch.grad_accumulation":
            pass  # as many tokens a step
        elif key == "loss.fused":
            case["chunk"] = fused_chunk(case)
        elif key == "loss.checkpoint":
            case["chunk"] = case.get("chunk") or 1024
        elif key == "loss.chunk":
            case["chunk"] = int(value) or 1024
        elif key == "placement.activations" and value == "recompute":
            case["recompute"] = True
        elif key == "recompute.granularity" and value in ("full", "auto"):
            case["recompute"] = True
        elif key == "fsdp.offload_policy":
            case["offload"] = value == "true"
        elif key == "fsdp.reshard_after_forward":
            case["reshard"] = value == "true"
        elif key == "optimizer.implementation" and value in ("fused", "foreach", "loop"):
            case["optimizer"] = value
        elif key == "optimizer.implementation" and value == "cpu":
            case["offload"] = True
        elif key == "allocator.expandable_segments":
            env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        elif key == "optimizer.implementation" and value == "streamed":
            case["optimizer"] = "streamed"
        elif key == "node.host.limit":
            case["host_gib"] = 0
        elif key == "placement.moments" or key == "load.method" or (key, value) == ("placement.params", "gpu"):
            pass  # follows from the optimizer; one rank reads what it has
        elif key.startswith("deepspeed.offload_optimizer"):
            case["ds"]["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
            case["ds"]["zero_force_ds_cpu_optimizer"] = False
        else:
            unknown.append(f"{key}={value}")
    return case, unknown, env


# ---- one case ----

def run(arguments, timeout=LIMIT_S, env=None):
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout, check=False,
                              stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        return -1, "", f"no end within {timeout} s"
    except OSError as error:
        return -1, "", str(error)


def run_job(case, folder, env=None):
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, __file__, "--job", json.dumps(case), "-o", str(folder)]
    code, out, err = run(arguments, env=env)
    (folder / "log.txt").write_text(out + err, encoding="utf-8")
    return code, (out + err).strip().splitlines()[-3:]


def plan(case, folder, total):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False, "torch_dtype": "float32", "max_position_embeddings": 8192, **case["model"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    arguments = [STOWAGE, "plan", "--model", str(folder / "config.json"), "--cluster", "h100-80g-x8:1", "-o",
                 str(folder / "plan.json"), "-q", "--set", f"node.gpu.memory={total} B"]
    if case.get("deepspeed"):
        (folder / "ds.json").write_text(json.dumps(case["ds"]), encoding="utf-8")
        arguments += ["--from", f"deepspeed:{folder / 'ds.json'}", "--set", f"batch.seq_len={case['seq']}"]
        return run(arguments)
    keys = {"engine": "fsdp2", "batch.seq_len": case["seq"], "batch.micro_batch": case.get("micro_batch", 1),
            "placement.activations": "recompute" if case.get("recompute") else "keep",
            "optimizer.implementation": case.get("optimizer", "fused"),
            "load.method": "all_ranks" if case.get("offload") else "all_ranks_gpu"}
    if case.get("offload"):
        keys["fsdp.offload_policy"] = "true"
        keys["optimizer.implementation"] = "auto"
    if case.get("host_gib"):  # beside what a process of torch holds anyway
        keys["node.host.limit"] = f"{case['host_gib'] + 1.4} GiB"
    for key, value in keys.items():
        arguments += ["--set", f"{key}={value}"]
    return run(arguments)


def explain(file, folder):
    code, out, err = run([STOWAGE, "explain", str(file), str(folder / "plan.json"), "--json"])
    if code != 0:
        return {"error": err.strip()[-300:]}
    (folder / (file.stem + ".json")).write_text(out, encoding="utf-8")
    return json.loads(out)


def judge(case, said):
    """Is what was said right? (phase, component)"""
    if said is None or "error" in said:
        return False, False
    phases = {case["phase"]} | ({"optimizer_step"} if case["phase"] == "first_optimizer_step" else set())
    phase = said["phase"] in phases and (said["part"] == case["part"] if case.get("part") else True)
    return phase, said["component"] in case["components"]


def try_change(case, said, folder):
    if not said.get("changes"):
        return {"tried": None, "ran": False, "why": "no change: " + "; ".join(said.get("unknown", []))[:200]}
    change = said["changes"][0]
    changed, unknown, env = apply(case, change)
    words = " ".join(f"{c['key']}={c['value']}" for c in change["set"])
    if unknown:
        return {"tried": words, "ran": False, "why": "this script cannot make " + " ".join(unknown)}
    changed["small"] = changed.pop("pretend", None) is not None
    code, last = run_job(changed, folder / "changed", env)
    return {"tried": words, "ran": code == 0, "why": "" if code == 0 else " ".join(last)[-300:]}


def run_case(name, folder, total, index, pretend):
    case, start = {**CASES[name], "port": 29600 + 10 * index}, time.monotonic()
    row = {"case": name, "expected": [case["phase"], case.get("part"), case["components"]]}
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    holder = None
    if case.get("deepspeed"):
        case["ds"] = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
                      "zero_optimization": {"stage": 1}}
    if pretend and name != "host":
        case["small"] = True
        case["pretend"] = {"load": "load"}.get(case["phase"], case.get("part") or "first_step")
    try:
        if case.get("others") and not pretend:
            holder = subprocess.Popen([sys.executable, __file__, "--hold", str(case["others"])], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
            holder.stdout.readline()
        code, last = run_job(case, folder)
        if code != 9:
            return {**row, "failed": False, "why": f"exit {code}: " + " ".join(last)[-400:]}
        planned, _, err = plan(case, folder, total)
        if planned not in (0, 4, 9):
            return {**row, "failed": True, "why": err.strip()[-300:]}
        said = explain(folder / "error.txt", folder)
        snapshot = folder / "snapshot.pickle"
        seen = explain(snapshot, folder) if snapshot.exists() and not case.get("host_gib") else None
        row.update(failed=True, said={k: said.get(k) for k in ("error", "cause", "phase", "part", "component")},
                   right=judge(case, said), cause_right=said.get("cause") == case["cause"] if case.get("cause") else None)
        if seen is not None:
            row.update(snapshot={k: seen.get(k) for k in ("error", "cause", "phase", "part", "component")},
                       snapshot_right=judge(case, seen))
        row.update(try_change(case, said, folder))
    except Exception as error:  # one case must not end the others
        row["why"] = f"{type(error).__name__}: {error}"
    finally:
        if holder is not None:
            holder.stdin.close()
            holder.wait(timeout=30)
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def total_memory():
    code, out, _ = run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"])
    return int(float(out.split()[0])) * MIB if code == 0 and out.split() else 80 * GIB


def importable(name):
    return run([sys.executable, "-c", f"import {name}"], timeout=60)[0] == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "explained")))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--cases", default="")
    parser.add_argument("--pretend", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--hold", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        code = job(json.loads(arguments.job), arguments.o)
        sys.stdout.flush()
        os._exit(code)  # communicators and a full GPU make a normal end slow
    if arguments.hold is not None:
        return hold(arguments.hold)
    names = arguments.cases.split(",") if arguments.cases else list(CASES)
    if "deepspeed_grads" in names and not arguments.cases and not importable("deepspeed"):
        names.remove("deepspeed_grads")
    total, rows = total_memory(), []

    def go(name):
        row = run_case(name, arguments.o, total, list(CASES).index(name), arguments.pretend)
        rows.append(row)
        print(json.dumps(row), flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(go, [n for n in names if not CASES[n].get("alone")]))
    for name in names:
        if CASES[name].get("alone"):
            go(name)
    failed = [r for r in rows if r.get("failed")]
    total_row = {"cases": len(rows), "failed": len(failed),
                 "phase_right": sum(r.get("right", (0, 0))[0] for r in failed),
                 "component_right": sum(r.get("right", (0, 0))[1] for r in failed),
                 "snapshots": sum("snapshot_right" in r for r in failed),
                 "snapshot_phase_right": sum(r.get("snapshot_right", (0, 0))[0] for r in failed),
                 "snapshot_component_right": sum(r.get("snapshot_right", (0, 0))[1] for r in failed),
                 "ran": sum(bool(r.get("ran")) for r in failed)}
    print(json.dumps(total_row), flush=True)
    good = (len(failed) == len(rows) == total_row["phase_right"] == total_row["component_right"] and
            total_row["ran"] >= 0.8 * len(rows))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
