# SPDX-License-Identifier: Apache-2.0
"""How fast do weights leave a sharded job: stowage.torch.WeightSync on several GPUs, beside its bound and torch's own ways.

    torchrun --nproc-per-node 2 bench/sync_torch.py [--models Qwen3-8B,Qwen3-30B-A3B] [--sources gpu,host] [--tp 1,2]
             [--targets callback,ranks,process,direct] [--bucket 256,1024] [--times 5] [--budget-s 300] [--cluster h200-x2]
             [--cpu] [-o rows.jsonl]

A model's tensors, in bf16 and without computation, lie as FSDP2 leaves them: DTensors cut along dimension 0, on the GPU or in
page-locked host memory. An inference engine on each rank wants its slices of tensor parallelism --tp, fused as vLLM fuses them (q, k
and v; gate and up; experts in one tensor), rows or columns. Targets: a callback that copies boxes, memory of the rank, and a process on
the same GPU through CUDA IPC, of buckets (process) or of its own weights (direct). Every element has bits that follow from its tensor, its place and the sync's step, and the receiver
compares them all. Peers in the same run: full_tensor() of each parameter, and gathers of buckets of flattened shards.

Bounds, measured in the same run: from the GPU, the bytes that a receiver lacks over the rate of an all-gather of 1 GiB; from the
host, the bytes of the shard over the rate of copies to all GPUs at once. Predicted: the weight sync of `stowage plan` (STOWAGE: the
program, default build/bin/stowage) for engine stowage with a rollout of this TP and bucket beside the trainer, with the rates of
--cluster (a name, or a file of `stowage calibrate` made before): made before the row is run, in place for ranks and direct. One JSON line for each row, as soon as it is there; at the end all of them as a Markdown table."""

import argparse
import json
import multiprocessing
import os
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from stowage.torch import Callback, Process, Ranks, Receiver, Slice, WeightSync, column_slice, fused, row_slice

GIB = 1 << 30
BF16 = torch.bfloat16
SHAPES = {  # config.json of the published models
    "Qwen3-8B": dict(layers=36, hidden=4096, heads=32, kv=8, dim=128, ffn=12288, vocab=151936, experts=0),
    "Qwen3-30B-A3B": dict(layers=48, hidden=2048, heads=32, kv=4, dim=128, ffn=768, vocab=151936, experts=128),
    "tiny": dict(layers=2, hidden=64, heads=4, kv=2, dim=16, ffn=96, vocab=1003, experts=0),
    "tiny-moe": dict(layers=2, hidden=64, heads=4, kv=2, dim=16, ffn=32, vocab=1003, experts=4),
}


def tensors_of(m):
    """Name and shape of every parameter."""
    h, q, kv = m["hidden"], m["heads"] * m["dim"], m["kv"] * m["dim"]
    yield "model.embed_tokens.weight", (m["vocab"], h)
    for i in range(m["layers"]):
        at = f"model.layers.{i}."
        yield from [(at + "input_layernorm.weight", (h,)), (at + "self_attn.q_proj.weight", (q, h)),
                    (at + "self_attn.k_proj.weight", (kv, h)), (at + "self_attn.v_proj.weight", (kv, h)),
                    (at + "self_attn.q_norm.weight", (m["dim"],)), (at + "self_attn.k_norm.weight", (m["dim"],)),
                    (at + "self_attn.o_proj.weight", (h, q)), (at + "post_attention_layernorm.weight", (h,))]
        if m["experts"]:
            yield from [(at + "mlp.gate.weight", (m["experts"], h)),
                        (at + "mlp.experts.gate_up_proj", (m["experts"], 2 * m["ffn"], h)),
                        (at + "mlp.experts.down_proj", (m["experts"], h, m["ffn"]))]
        else:
            yield from [(at + "mlp.gate_proj.weight", (m["ffn"], h)), (at + "mlp.up_proj.weight", (m["ffn"], h)),
                        (at + "mlp.down_proj.weight", (h, m["ffn"]))]
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (m["vocab"], h)


def engine_params(m, tp, rank, device):
    """What an inference engine of rank `rank` of `tp` holds: its parameters, each with its slices of the model's tensors."""
    h, q, kv, ffn = m["hidden"], m["heads"] * m["dim"] // tp, m["kv"] * m["dim"] // tp, m["ffn"] // tp
    rows = -(-m["vocab"] // tp)

    def new(*shape):
        return torch.zeros(shape, dtype=BF16, device=device)

    out = {"embed": column_slice("model.embed_tokens.weight", new(rows, h), rank, pad=True)}
    for i in range(m["layers"]):
        at = f"model.layers.{i}."
        for name, n in (("input_layernorm", h), ("post_attention_layernorm", h), ("self_attn.q_norm", m["dim"]),
                        ("self_attn.k_norm", m["dim"])):
            out[at + name] = Slice(at + name + ".weight", new(n))
        out[at + "qkv"] = fused(new(q + 2 * kv, h), [(at + "self_attn.q_proj.weight", q, rank),
                                                     (at + "self_attn.k_proj.weight", kv, rank),
                                                     (at + "self_attn.v_proj.weight", kv, rank)])
        out[at + "o"] = row_slice(at + "self_attn.o_proj.weight", new(h, q), rank)
        if m["experts"]:
            w13, e = new(m["experts"], 2 * ffn, h), at + "mlp.experts."
            out[at + "router"] = Slice(at + "mlp.gate.weight", new(m["experts"], h))
            out[at + "w13"] = [Slice(e + "gate_up_proj", w13[:, :ffn], (0, rank * ffn, 0)),
                               Slice(e + "gate_up_proj", w13[:, ffn:], (0, m["ffn"] + rank * ffn, 0))]
            out[at + "w2"] = Slice(e + "down_proj", new(m["experts"], h, ffn), (0, 0, rank * ffn))
        else:
            out[at + "gate_up"] = fused(new(2 * ffn, h), [(at + "mlp.gate_proj.weight", ffn, rank),
                                                          (at + "mlp.up_proj.weight", ffn, rank)])
            out[at + "down"] = row_slice(at + "mlp.down_proj.weight", new(h, ffn), rank)
    out["norm"] = Slice("model.norm.weight", new(h))
    out["head"] = column_slice("lm_head.weight", new(rows, h), rank, pad=True)
    return out


def predicted_s(model, where, tp, bucket_mib, in_place, world, cluster):
    """Seconds of the weight sync of a plan; None without the program, or without a plan."""
    m = SHAPES[model]
    config = {"model_type": "qwen3", "hidden_size": m["hidden"], "num_hidden_layers": m["layers"], "num_attention_heads": m["heads"],
              "num_key_value_heads": m["kv"], "head_dim": m["dim"], "intermediate_size": m["ffn"], "vocab_size": m["vocab"],
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 4096}
    if m["experts"]:
        config.update(model_type="qwen3_moe", num_experts=m["experts"], num_experts_per_tok=min(8, m["experts"]), moe_intermediate_size=m["ffn"],
                      mlp_only_layers=[], decoder_sparse_step=1)
    role = (f"roles=[{{name: rollout, kind: rollout, engine: vllm, max_model_len: 1k, max_num_seqs: 4, max_num_batched_tokens: 1024, "
            f"update_bucket: {bucket_mib} MiB, free_cache_engine: false, update_in_place: {str(in_place).lower()}, parallel: {{tp: {tp}}}}}]")
    where = "host" if where == "host" else "gpu"
    keys = [role, f"node.gpus={world}", f"placement.params={where}", f"placement.grads={where}", "placement.moments=host",
            "precision.params=bf16", "node.gpu.memory=2 TiB", "node.host.memory=16 TiB", "node.host.limit=16 TiB"]  # whatever fits beside the sync
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        command = [os.environ.get("STOWAGE", "build/bin/stowage"), "plan", "--json", "--model", path, "--cluster", cluster]
        for key in keys:
            command += ["--set", key]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return round(json.loads(done.stdout)["time_s"]["weight_sync"], 5)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def slices_of(params):
    return [s for value in params.values() for s in (value if isinstance(value, list) else [value])]


# ---- bits ----


def bits(index, number, step):
    """Of elements at these places of tensor `number`: finite bf16, as int16."""
    return ((index * 40503 + (index >> 9) + number * 977 + step * 131) & 0x3FFF).to(torch.int16)


def fill(shard, first_row, number, step, device):
    """A shard of whole rows of a tensor."""
    flat, width = shard.view(-1), shard[0].numel() if shard.dim() and len(shard) else 1
    for at in range(0, flat.numel(), 1 << 26):
        n = min(1 << 26, flat.numel() - at)
        index = torch.arange(n, dtype=torch.int64, device=device) + (first_row * width + at)
        flat[at:at + n].copy_(bits(index, number, step).view(BF16))


def differing(piece, shape, number, step):
    """Elements of a slice that differ from what its sender had."""
    into, first = piece.into, piece.first or (0,) * piece.into.dim()
    rows = min(into.shape[0], shape[0] - first[0])
    wrong = 0
    each = max(1, (1 << 26) // max(into[0].numel(), 1)) if into.dim() > 1 else 1 << 26
    for row in range(0, rows, each):
        part = into[row:min(row + each, rows)]
        index = torch.zeros((), dtype=torch.int64, device=into.device)
        for d, (n, f, size) in enumerate(zip(part.shape, (first[0] + row, *first[1:]), shape)):
            index = index.unsqueeze(-1) * size + torch.arange(f, f + n, device=into.device)
        wrong += int((part.contiguous().view(torch.int16) != bits(index, number, step)).sum())
    return wrong


def count_wrong(params, table, step):
    return sum(differing(s, *table[s.name], step) for s in slices_of(params))


def inference_process(address, m, tp, rank, device, direct, steps, answers):
    """The engine beside a rank: takes `steps` syncs and compares the last one."""
    try:
        if device != "cpu":
            torch.cuda.set_device(device)
        table = {name: (shape, i) for i, (name, shape) in enumerate(tensors_of(m))}
        params = engine_params(m, tp, rank, device)
        for piece in slices_of(params) if direct and device == "cpu" else []:
            piece.into.share_memory_()
        receiver = Receiver(address, params, direct=direct)
        step = None
        for _ in range(steps):
            step = receiver.receive()
        answers.put((count_wrong(params, table, step), sum(s.into.numel() for s in slices_of(params))))
    except BaseException as failure:  # the rank beside it waits for an answer
        answers.put((f"{type(failure).__name__}: {failure}", 0))
        raise


# ---- rows ----


class Job:
    def __init__(self, options):
        self.options = options
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cpu") if options.cpu else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        self.mesh = init_device_mesh(self.device.type, (self.world,))
        self.start = time.monotonic()
        self.group = dist.new_group(backend="gloo")
        self.rows = []

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier(self.group)

    def seconds(self, call, times):
        """Of the slowest rank, each time."""
        out = []
        for _ in range(times):
            self.wait()
            start = time.perf_counter()
            call()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            spent = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(spent, dist.ReduceOp.MAX, self.group)
            out.append(round(spent.item(), 5))
        return out

    def over(self):
        late = torch.tensor(float(time.monotonic() - self.start > self.options.budget_s))
        dist.all_reduce(late, dist.ReduceOp.MAX, self.group)
        return bool(late.item())

    def tell(self, row):
        self.rows.append(row)
        if self.rank == 0:
            print(json.dumps(row), flush=True)
            if self.options.output:
                with open(self.options.output, "a") as file:
                    file.write(json.dumps(row) + "\n")

    def all(self, value):
        rows = [None] * self.world
        dist.all_gather_object(rows, value, group=self.group)
        return rows

    # ---- ceilings ----

    def ceilings(self):
        size = (GIB if self.device.type == "cuda" else 1 << 20) // self.world * self.world
        whole = torch.empty(size, dtype=torch.uint8, device=self.device)
        part = torch.zeros(size // self.world, dtype=torch.uint8, device=self.device)
        gather = min(self.seconds(lambda: dist.all_gather_into_tensor(whole, part), 8)[2:])
        del whole, part
        rates = {"gather_bps": size * (self.world - 1) / self.world / gather, "h2d_bps": 0.0}
        if self.device.type == "cuda":
            host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
            up = torch.empty(GIB, dtype=torch.uint8, device=self.device)
            rates["h2d_bps"] = GIB / min(self.seconds(lambda: up.copy_(host, non_blocking=True), 6)[1:])
        self.tell({"row": "ceilings", "world": self.world, "gpu": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
                   **{k: round(v) for k, v in rates.items()}})
        return rates

    # ---- the job's weights ----

    def weights(self, m, where):
        device = self.device if where == "gpu" else torch.device("cpu")
        out = []
        mesh = self.mesh if device.type == self.device.type else init_device_mesh("cpu", (self.world,))
        held, memory = 0, None
        if device.type != self.device.type:  # one page-locked block: host memory is registered once
            rows = [(s[0], torch.Size(s[1:]).numel()) for _, s in tensors_of(m)]
            held = sum(2 * -(-n // self.world) * width + 64 for n, width in rows)
            memory = torch.empty(held + 4096, dtype=torch.uint8).fill_(0)
            memory = memory[-memory.data_ptr() % 4096:][:held]
            start = time.monotonic()
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), held, 0)))
            self.locked = memory.data_ptr()
            self.tell({"row": "page-locking", "bytes": held, "seconds": round(time.monotonic() - start, 3)})
        at = 0
        for name, shape in tensors_of(m):
            each = -(-shape[0] // self.world)
            first = min(self.rank * each, shape[0])
            count = (min(each, shape[0] - first), *shape[1:])
            if memory is None:
                local = torch.empty(count, dtype=BF16, device=device)
            else:
                size = 2 * torch.Size(count).numel()
                local = memory[at:at + size].view(BF16).view(count)
                at += -(-size // 64) * 64
            stride = [1] * len(shape)
            for d in range(len(shape) - 2, -1, -1):
                stride[d] = stride[d + 1] * shape[d + 1]
            whole = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=tuple(stride))
            out.append((name, whole, first))
        return out

    def refill(self, weights, step):
        for number, (_, tensor, first) in enumerate(weights):
            fill(tensor.to_local(), first, number, step, self.device)
        self.wait()

    # ---- one row ----

    def measure(self, model, where, tp, kind, bucket, rates, weights):
        options, m = self.options, SHAPES[model]
        row = {"row": "sync", "model": model, "source": where, "tp": tp, "target": kind, "bucket_mib": bucket}
        if self.rank == 0:
            row["predicted_s"] = predicted_s(model, where, tp, bucket, kind in ("ranks", "direct"), self.world, options.cluster)
        params, beside, answers = None, None, None
        tp_rank = self.rank % tp
        table = {name: (tuple(tensor.shape), i) for i, (name, tensor, _) in enumerate(weights)}
        last = options.times + 2
        if kind in ("process", "direct"):
            context = multiprocessing.get_context("spawn")
            answers = context.Queue()
            address = os.path.join(tempfile.mkdtemp(), "weights.sock")
            arguments = (address, m, tp, tp_rank, str(self.device), kind == "direct", last, answers)
            beside = context.Process(target=inference_process, args=arguments)
            beside.start()
            target = Process(address)
        else:
            params = engine_params(m, tp, tp_rank, self.device)
            wanted = slices_of(params)
            if kind == "ranks":
                target = Ranks({str(i): s for i, s in enumerate(wanted)})
            else:
                boxes, at = {}, {}
                for s in wanted:
                    first = s.first or (0,) * s.into.dim()
                    if s.pad:
                        n = min(s.into.shape[0], table[s.name][0][0] - first[0])
                        s = Slice(s.name, s.into[:n], first)
                    boxes.setdefault(s.name, []).append((first, tuple(s.into.shape)))
                    at[s.name, first] = s.into
                places = {}  # where a box goes, found once

                def place(name, first, count):
                    for begin, size in boxes[name]:
                        if all(b <= f and f + n <= b + c for b, c, f, n in zip(begin, size, first, count)):
                            return at[name, begin][tuple(slice(f - b, f - b + n) for f, b, n in zip(first, begin, count))]
                    raise ValueError(f"{name}: found a box that nobody wants")

                def take(parts):
                    into = []
                    for name, _, (first, count) in parts:
                        if (name, first, count) not in places:
                            places[name, first, count] = place(name, first, count)
                        into.append(places[name, first, count])
                    torch._foreach_copy_(into, [tensor for _, tensor, _ in parts])

                target = Callback(take, slices=boxes, split=True)
        cuda = self.device.type == "cuda"
        before = 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        set_up = time.monotonic()
        with WeightSync([(name, tensor) for name, tensor, _ in weights], target, bucket_bytes=bucket << 20,
                        device=self.device) as sync:
            row["set_up_s"] = round(time.monotonic() - set_up, 3)
            steps = iter(range(1, last + 1))
            results = []
            row["seconds"] = self.seconds(lambda: results.append(sync.sync(next(steps))), last - 1)[1:]
            row["beside_mib"] = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1) if cuda else 0
            self.refill(weights, last)
            self.wait()
            sync.sync(last)
            row["rounds"] = sync.info.rounds
        if beside is not None:
            row["wrong"], row["checked"] = answers.get()
            beside.join()
        else:
            row["wrong"] = count_wrong(params, table, last)
            row["checked"] = sum(s.into.numel() for s in slices_of(params))
        result = results[-1]
        shard = sum(t.to_local().numel() * 2 for _, t, _ in weights)
        every = self.all((result.received_bytes, result.sent_bytes, result.own_bytes, shard, row["wrong"], row["beside_mib"]))
        row["received_bytes"], row["sent_bytes"], row["own_bytes"] = (max(v[i] for v in every) for i in range(3))
        row["wrong"] = [v[4] for v in every]
        row["beside_mib"] = max(v[5] for v in every)
        best = min(row["seconds"])
        row["best_s"] = best
        row["bound_s"] = round(row["received_bytes"] / rates["gather_bps"], 5) if self.world > 1 else 0
        if where == "host" and rates["h2d_bps"]:
            row["bound_s"] = round(max(row["bound_s"], max(v[3] for v in every) / rates["h2d_bps"]), 5)
        row["of_bound"] = round(best / row["bound_s"], 3) if row["bound_s"] else None
        if row.get("predicted_s"):
            row["of_predicted"] = round(best / row["predicted_s"], 3)
        self.tell(row)

    def peers(self, model, where, rates, weights):
        """torch's ways to whole tensors on every rank; what lies on the host goes up first."""
        def up(tensor):
            return tensor.to_local().to(self.device, non_blocking=True)

        def loop():
            for _, tensor, _ in weights:
                local = DTensor.from_local(up(tensor), self.mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())
                local.full_tensor()

        def buckets():
            group, size = [], 0
            for _, tensor, _ in [*weights, (None, None, None)]:
                if tensor is not None:
                    group.append(tensor)
                    size += 2 * tensor.numel()
                if group and (tensor is None or size >= self.options.bucket[0] << 20):
                    each = [-(-t.shape[0] // self.world) * (t.numel() // t.shape[0]) for t in group]
                    part = torch.zeros(sum(each), dtype=BF16, device=self.device)
                    for flat, t in zip(part.split(each), group):
                        local = up(t).view(-1)
                        flat[:local.numel()].copy_(local)
                    whole = torch.empty((self.world, sum(each)), dtype=BF16, device=self.device)
                    dist.all_gather_into_tensor(whole.view(-1), part)
                    for rows, t in zip(whole.split(each, 1), group):
                        rows.reshape(-1)[:t.numel()].view(t.shape)
                    group, size = [], 0

        for name, call in (("full_tensor", loop), ("bucketed gathers", buckets)):
            cuda = self.device.type == "cuda"
            before = torch.cuda.memory_allocated() if cuda else 0
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            seconds = self.seconds(call, 4)[1:]
            self.tell({"row": "peer", "model": model, "source": where, "peer": name, "seconds": seconds, "best_s": min(seconds),
                       "beside_mib": round((torch.cuda.max_memory_allocated() - before) / 2**20, 1) if cuda else 0})

    def all_rows(self):
        rates = self.ceilings()
        for model in self.options.models.split(","):
            for where in self.options.sources.split(","):
                if self.over():
                    return
                weights = self.weights(SHAPES[model], where)
                self.refill(weights, 0)
                self.attempt(lambda: self.peers(model, where, rates, weights), model=model, source=where, peer=True)
                for kind in self.options.targets.split(","):
                    for tp, bucket in ((int(t), b) for t in self.options.tp.split(",") for b in self.options.bucket):
                        if self.over():
                            return
                        self.attempt(lambda: self.measure(model, where, tp, kind, bucket, rates, weights),
                                     model=model, source=where, target=kind, tp=tp, bucket_mib=bucket)
                if where == "host" and self.device.type == "cuda":
                    torch.cuda.synchronize()
                    torch.cuda.cudart().cudaHostUnregister(self.locked)
                del weights

    def print_table(self):
        """Of all syncs and peers."""
        if self.rank != 0:
            return
        columns = ("model", "source", "tp", "target", "bucket_mib", "rounds", "predicted_s", "best_s", "of_predicted", "bound_s", "of_bound",
                   "beside_mib", "wrong")
        print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
        for row in self.rows:
            if row["row"] in ("sync", "peer"):
                row = dict(row, target=row.get("target", row.get("peer")))
                print("| " + " | ".join(str(row.get(c, "")) for c in columns) + " |")

    def attempt(self, call, **what):
        """A row that fails is told; the ranks go on together if all of them failed."""
        try:
            call()
        except (RuntimeError, ValueError, NotImplementedError) as failure:
            self.tell({"row": "failed", **what, "why": str(failure).strip().splitlines()[0][:200]})
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="Qwen3-8B,Qwen3-30B-A3B")
    parser.add_argument("--sources", default="gpu,host")
    parser.add_argument("--tp", default="1,2")
    parser.add_argument("--targets", default="callback,ranks,process,direct")
    parser.add_argument("--bucket", type=lambda text: [int(b) for b in text.split(",")], default=[256], help="MiB")
    parser.add_argument("--cluster", default="h200-x2", help="of the predictions: a name or a file")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--budget-s", type=float, default=300, help="no row is begun after so many seconds")
    parser.add_argument("--cpu", action="store_true", help="gloo on CPUs: tries the script; its figures mean nothing")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    if not options.cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if options.cpu else "cpu:gloo,cuda:nccl")
    with torch.no_grad():
        job = Job(options)
        job.all_rows()
        job.print_table()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
