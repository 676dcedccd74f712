# SPDX-License-Identifier: Apache-2.0
"""A trainer's side of reinforcement learning in torch alone: state parked on the host between updates,
weights gathered for a rollout, a checkpoint. What each holds, on the GPU and on the host: a row of truth.

    torchrun --nproc-per-node N rl_torch.py --case '{"name": "a", "model": "Qwen3-0.6B"}' -o rows.jsonl
    rl_torch.py --cases rl_cases.jsonl --gpus N -o rows.jsonl    all cases with "gpus": N, each in processes of its own

CASE has, with defaults:

    model            a dense file of models/zoo, by name; its parameters are built, its layers are not computed
    layers null      as many layers of it
    params "float32" dtype of parameters, gradients and moments
    offload false    CPUOffloadPolicy(pin_memory): all state on the host, the step, too
    park []          "params", "moments": on the host between updates, as verl does (model.cpu(), to("cpu", non_blocking=True))
    sync null        "tensors": every tensor whole, cast to bfloat16, copied into a bucket; "buckets": as many whole ones
                     as fill a bucket, flattened
    bucket 512       MiB
    save null        "dcp", "dcp_async": torch.distributed.checkpoint; "hf": whole tensors on rank 0's host
    fused true       the optimizer's kernel; false: foreach
    threads 16       of the CPU, per rank

One line of JSON for each case: by phase the worst rank's allocated and reserved peaks, device bytes, resident and
page-locked host bytes, in GiB, and seconds. Gradients are zeros: nothing here depends on values. With
offload they come from the GPU into page-locked memory, as FSDP2's backward brings them."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

GIB = 1 << 30
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"  # without a GPU the script can be tried; its figures mean nothing
DEFAULTS = {"layers": None, "params": "float32", "offload": False, "park": [], "sync": None, "bucket": 512,
            "save": None, "fused": True, "threads": 16}


class Matrices(torch.nn.Module):
    """Parameters by name, without computation."""

    def __init__(self, shapes, dtype):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta")))


class Model(torch.nn.Module):
    """The tensors of a dense decoder: embedding, layers, norm, head."""

    def __init__(self, facts, layers, dtype):
        super().__init__()
        hidden, ffn, vocab = facts["hidden_size"], facts["intermediate_size"], facts["vocab_size"]
        heads = facts["num_attention_heads"]
        dim = facts.get("head_dim") or hidden // heads
        kv = facts.get("num_key_value_heads", heads) * dim
        layer = {"q": (heads * dim, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, heads * dim),
                 "q_norm": (dim,), "k_norm": (dim,), "gate": (ffn, hidden), "up": (ffn, hidden),
                 "down": (hidden, ffn), "norm1": (hidden,), "norm2": (hidden,)}
        if facts["model_type"] != "qwen3":
            raise SystemExit(f"{facts['model_type']}: only qwen3 models are built here")
        root = {"embed": (vocab, hidden), "norm": (hidden,)}
        if not facts.get("tie_word_embeddings"):
            root["head"] = (vocab, hidden)
        self.layers = torch.nn.ModuleList(Matrices(layer, dtype) for _ in range(layers))
        self.root = Matrices(root, dtype)


def host_bytes():
    out = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        for key, name in (("VmHWM", "host_hwm"), ("VmRSS", "rss"), ("RssAnon", "anonymous")):
            if line.startswith(key + ":"):
                out[name] = int(line.split()[1]) * 1024
    stats = torch.cuda.host_memory_stats() if CUDA and hasattr(torch.cuda, "host_memory_stats") else {}
    out["pinned"] = stats.get("allocated_bytes.current", 0)
    out["pinned_peak"] = stats.get("allocated_bytes.peak", 0)
    return out


def reset_host_peak():
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM becomes VmRSS
    except OSError:
        pass


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


class Phases:
    """Figures of the phases, the worst of all ranks."""

    def __init__(self):
        self.rows, self.seconds = {}, {}
        reset_host_peak()
        self.clock = time.perf_counter()

    def mark(self, name):
        synchronize()
        spent = time.perf_counter() - self.clock
        figures = dict(host_bytes())
        if CUDA:
            free, total = torch.cuda.mem_get_info()
            figures.update(alloc=torch.cuda.memory_allocated(), peak_alloc=torch.cuda.max_memory_allocated(),
                           reserved=torch.cuda.memory_reserved(), peak_reserved=torch.cuda.max_memory_reserved(),
                           device_used=total - free)
        keys = sorted(figures)
        worst = torch.tensor([float(figures[k]) for k in keys] + [spent], dtype=torch.float64)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=WORST)
        self.rows[name] = {k: round(v / GIB, 5) for k, v in zip(keys, worst.tolist())}
        self.seconds[name] = round(worst[-1].item(), 4)
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        reset_host_peak()
        dist.barrier(group=WORST)
        self.clock = time.perf_counter()


def build(case, zoo, mesh):
    facts = json.loads((zoo / (case["model"] + ".json")).read_text())
    model = Model(facts, case["layers"] or facts["num_hidden_layers"], getattr(torch, case["params"]))
    policy = CPUOffloadPolicy(pin_memory=CUDA) if case["offload"] else OffloadPolicy()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)
    model.to_empty(device="cpu" if case["offload"] else DEVICE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().fill_(1e-3)
    if case["offload"]:  # the first forward would page-lock the shards
        for module in model.modules():
            if hasattr(module, "_get_fsdp_state"):
                for group in [module._get_fsdp_state()._fsdp_param_group] if module._get_fsdp_state()._fsdp_param_group else []:
                    for param in group.fsdp_params:
                        param.reset_sharded_param()
    return model


# ---- parking, as verl/utils/fsdp_utils.py does it ----

def move_params(model, device):
    model.to(device)
    if CUDA:
        torch.cuda.empty_cache()


def move_moments(optimizer, device):
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                state[key] = value.to(device, non_blocking=True)
    synchronize()


def leave(case, model, optimizer):
    if "params" in case["park"]:
        move_params(model, "cpu")
    if "moments" in case["park"] and optimizer is not None:
        move_moments(optimizer, "cpu")


def make_gradient(case, parameter):
    gradient = torch.zeros_like(parameter)
    if case["offload"] and CUDA:  # to("cpu", non_blocking=True): a page-locked tensor of torch's host allocator
        local = gradient.to_local()
        gradient._local_tensor = torch.zeros_like(local, device=DEVICE).to("cpu", non_blocking=True)
    return gradient


def update(case, model, optimizer, phases, number):
    if "params" in case["park"]:
        move_params(model, DEVICE)
        phases.mark(f"params_back{number}")
    for p in model.parameters():
        p.grad = make_gradient(case, p)
    phases.mark(f"grads{number}")
    if "moments" in case["park"]:
        move_moments(optimizer, DEVICE)
        phases.mark(f"moments_back{number}")
    optimizer.step()
    phases.mark(f"step{number}")
    optimizer.zero_grad()
    leave(case, model, optimizer)
    phases.mark(f"leave{number}")


# ---- weights for a rollout ----

def whole(parameter):
    """verl's engine: a shard that lies on the host goes up first."""
    tensor = parameter.detach().to(DEVICE, non_blocking=True)
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def by_tensors(params, bucket_bytes):
    bucket = torch.empty(bucket_bytes, dtype=torch.uint8, device=DEVICE)
    filled = 0
    for parameter in params:
        tensor = whole(parameter).to(torch.bfloat16, non_blocking=True)
        size = tensor.numel() * 2
        if size <= bucket_bytes:  # a larger one is handed over by itself
            if filled + size > bucket_bytes:
                filled = 0
            bucket[filled:filled + size].copy_(tensor.view(-1).view(torch.uint8), non_blocking=True)
            filled += size
        del tensor


def flatten(held):
    flat = torch.empty(sum(t.numel() for t in held), dtype=torch.bfloat16, device=DEVICE)
    at = 0
    for tensor in held:
        flat[at:at + tensor.numel()].copy_(tensor.view(-1), non_blocking=True)
        at += tensor.numel()
    held.clear()


def by_buckets(params, bucket_bytes):
    held, size = [], 0
    for parameter in params:
        more = parameter.numel() * 2
        if held and size + more > bucket_bytes:
            flatten(held)
            size = 0
        held.append(whole(parameter))
        size += more
    flatten(held)


def sync(case, model, phases):
    if CUDA:
        torch.cuda.empty_cache()
    if "params" in case["park"]:
        move_params(model, DEVICE)
    phases.mark("before_sync")
    params = list(model.parameters())
    (by_tensors if case["sync"] == "tensors" else by_buckets)(params, case["bucket"] << 20)
    phases.mark("sync")
    if CUDA:
        torch.cuda.empty_cache()
    if "params" in case["park"]:
        move_params(model, "cpu")
    phases.mark("after_sync")


# ---- checkpoints ----

def save(case, model, optimizer, folder, phases):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict

    path = os.path.join(folder, case["name"])
    if "params" in case["park"]:
        move_params(model, DEVICE)
    phases.mark("before_save")
    if case["save"] == "hf":
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        phases.mark("stage")
        if dist.get_rank() == 0:
            torch.save(state, path)
        phases.mark("save")
    else:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        if case["save"] == "dcp_async":
            future = dcp.async_save(state, checkpoint_id=path)
            phases.mark("stage")
            future.result()
        else:
            dcp.save(state, checkpoint_id=path)
        phases.mark("save")
    size = 0
    if dist.get_rank() == 0:
        files = [path] if os.path.isfile(path) else [f.path for f in os.scandir(path)]
        size = sum(os.path.getsize(f) for f in files)
    del state
    dist.barrier(group=WORST)
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)
    phases.mark("after_save")
    return size


def run(case, zoo, folder):
    torch.manual_seed(1)
    torch.set_num_threads(case["threads"])
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    phases = Phases()
    phases.mark("start")
    model = build(case, zoo, mesh)
    phases.mark("load")
    leave(case, model, None)
    phases.mark("leave_load")
    how = {"fused": True} if case["fused"] else {"foreach": True}
    optimizer = torch.optim.AdamW(list(model.parameters()), lr=1e-5, **how)
    for number in range(3):
        update(case, model, optimizer, phases, number)
    if case["sync"]:
        sync(case, model, phases)
    size = save(case, model, optimizer, folder, phases) if case["save"] else 0
    return {"case": {k: v for k, v in case.items() if v != DEFAULTS.get(k, object())},
            "world": dist.get_world_size(), "params": sum(p.numel() for p in model.parameters()),
            "seconds": phases.seconds, "phases": phases.rows, "file_bytes": size, "gradients_from_gpu": CUDA, "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if CUDA else None}


def run_all(arguments):
    """Every case of this many GPUs in processes of its own, so that nothing is left of another one."""
    for line in pathlib.Path(arguments.cases).read_text().splitlines():
        case = json.loads(line)
        if case.get("gpus", 1) != arguments.gpus:
            continue
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.gpus),
                   __file__, "--case", line, "-o", arguments.o, "--zoo", str(arguments.zoo), "--folder", arguments.folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        print(f"{case['name']}: {'ok' if done.returncode == 0 else done.stderr[-1500:]}", flush=True)


def main():
    global WORST
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case")
    parser.add_argument("--cases", help="a file of cases; without torchrun")
    parser.add_argument("--gpus", type=int, default=1, help="with --cases: those of so many GPUs")
    parser.add_argument("--zoo", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "models/zoo")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for checkpoints, which are deleted")
    parser.add_argument("-o", default="/dev/stdout")
    arguments = parser.parse_args()
    if arguments.cases:
        run_all(arguments)
        return
    case = {**DEFAULTS, **json.loads(arguments.case)}
    case.setdefault("name", case["model"])
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl",
                                device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    else:
        dist.init_process_group("gloo")
    WORST = dist.new_group(backend="gloo")
    row = run(case, arguments.zoo, arguments.folder)
    if dist.get_rank() == 0:
        with open(arguments.o, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    dist.barrier(group=WORST)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
