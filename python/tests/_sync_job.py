# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks over gloo that test_sync_ranks.py starts: _sync_job.py CASE FOLDER, with RANK and WORLD_SIZE."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import stowage
from stowage.torch import Callback, Folder, Ranks, WeightSync, column_slice, fused, load, row_slice

CASE, FOLDER = sys.argv[1:3]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MIB = 1 << 20


def full(name: str, shape: tuple) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, name))))


def sources() -> dict:
    """name -> (tensor, the whole tensor, the elements that this rank holds), every placement by every kind of shape."""
    out = {}
    shapes = {"embed": (1003, 500), "norm": (33,), "one": (1,), "scalar": (), "experts": (5, 12, 8), "patch": (6, 3, 2, 2, 2)}
    meshes = [init_device_mesh("cpu", (WORLD,))]
    if WORLD == 4:
        meshes.append(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))
    for mesh in meshes:
        kinds = [Replicate(), Shard(0), Shard(1)]
        for placements in [(k,) for k in kinds] if mesh.ndim == 1 else [(a, b) for a in kinds for b in kinds]:
            for shape_name, shape in shapes.items():
                if any(p.is_shard() and p.dim >= len(shape) for p in placements) or (shape_name == "embed" and len(out) > 20):
                    continue
                name = f"{shape_name}.{mesh.ndim}." + "".join("R" if p.is_replicate() else str(p.dim) for p in placements)
                whole = full(name, shape)
                ids = torch.arange(whole.numel()).view(shape)
                tensor = distribute_tensor(whole, mesh, placements)
                assert torch.equal(tensor.full_tensor(), whole)
                out[name] = (tensor, whole.clone(), distribute_tensor(ids, mesh, placements).to_local().flatten())
    whole = full("plain", (7, 9))
    out["plain"] = (whole, whole.clone(), torch.arange(63))
    strided = full("strided", (12, 6))
    out["strided"] = (strided.t().contiguous().t(), strided, torch.arange(72))
    return out


def tp_box(shape: tuple, tp: int, dim: int) -> tuple:
    """Slice RANK % tp, the last one shorter."""
    if len(shape) <= dim:
        return (0,) * len(shape), shape
    rows = -(-shape[dim] // tp)
    first = min(RANK % tp * rows, shape[dim])
    n = min(rows, shape[dim] - first)
    return (0,) * dim + (first,) + (0,) * (len(shape) - dim - 1), shape[:dim] + (n,) + shape[dim + 1:]


def cut(tensor: torch.Tensor, box: tuple) -> torch.Tensor:
    for d, (first, n) in enumerate(zip(*box)):
        tensor = tensor.narrow(d, first, n)
    return tensor


def lacks(rows: dict, boxes: dict) -> int:
    """Bytes that this rank wants and lacks, counted element by element."""
    total = 0
    for name, box in boxes.items():
        _, whole, held = rows[name]
        wanted = cut(torch.arange(whole.numel()).view(whole.shape), box).flatten()
        total += 2 * int((~torch.isin(wanted, held)).sum())
    return total


def placements() -> None:
    rows = sources()
    given = [(name, row[0]) for name, row in rows.items()]
    expected = {name: row[1].bfloat16() for name, row in rows.items()}
    for number, bucket in enumerate([MIB, 64 * MIB, 256 * MIB]):
        for tp in [1, 2, 4]:
            for dim in [0, 1] if tp == 2 and bucket == MIB else [number % 2]:
                got = {}
                boxes = {name: tp_box(tuple(row[1].shape), tp, dim) for name, row in rows.items()}
                boxes = {name: box for name, box in boxes.items() if all(box[1])}

                def take(parts: list) -> None:
                    for name, tensor in parts:
                        assert name not in got
                        got[name] = tensor.clone()

                with WeightSync(given, Callback(take, slices={n: [b] for n, b in boxes.items()}), bucket_bytes=bucket,
                                check=tp == 2) as sync:
                    result = sync.sync(7)
                    assert got.keys() == boxes.keys()
                    for name, box in boxes.items():
                        assert torch.equal(got[name], cut(expected[name], box)), (name, bucket, tp, dim)
                    assert result.received_bytes == lacks(rows, boxes), (result, lacks(rows, boxes))
                    assert sync.info.send_bytes + sync.info.receive_bytes + sync.info.bucket_bytes <= bucket
                    assert sync.version == 7
    # straight into memory, on one rank alone; values change between syncs
    into = {name: torch.zeros(row[1].shape, dtype=torch.bfloat16) for name, row in rows.items()} if RANK == WORLD - 1 else None
    with WeightSync(given, Ranks(into), bucket_bytes=MIB, check=True) as sync:
        for step in [1, 2]:
            result = sync.sync(step)
            for name in into or {}:
                assert torch.equal(into[name], expected[name]), name
            assert result.received_bytes == (lacks(rows, {n: ((0,) * t.dim(), tuple(t.shape)) for n, t in into.items()}) if into else 0)
            with torch.no_grad():
                for name, (tensor, whole, _) in rows.items():
                    (tensor.to_local() if hasattr(tensor, "to_local") else tensor).mul_(2)
                    expected[name] = (whole * 2 ** step).bfloat16()
    # fp32 on its way, boxes as they come
    seen = {name: torch.zeros(row[1].shape) for name, row in rows.items()}

    def boxes_of(parts: list) -> None:
        for name, tensor, box in parts:
            cut(seen[name], box).copy_(tensor)

    with WeightSync(given, Callback(boxes_of, split=True), dtype=None, bucket_bytes=MIB) as sync:
        sync.sync(3)
    for name, row in rows.items():
        assert torch.equal(seen[name], 4 * row[1]), name


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(131, 32)
        self.q = torch.nn.Linear(32, 32, bias=False)
        self.k = torch.nn.Linear(32, 8, bias=False)
        self.v = torch.nn.Linear(32, 8, bias=False)
        self.o = torch.nn.Linear(32, 32, bias=False)
        self.bias = torch.nn.Parameter(torch.randn(1))
        self.register_buffer("router", torch.randn(5))
        self.head = torch.nn.Linear(32, 131, bias=False)
        self.head.weight = self.embed.weight


def fsdp2() -> None:
    """FSDP2, alone and over tensor parallelism, to slices of an engine with fused tensors and a padded vocabulary; the folder."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    for two in [False, True] if WORLD == 4 else [False]:
        torch.manual_seed(1)
        model = Block()
        whole = {n: p.detach().clone().bfloat16() for n, p in model.named_parameters()}
        mesh = init_device_mesh("cpu", (2, 2) if two else (WORLD,), mesh_dim_names=("dp", "tp") if two else ("dp",))
        if two:
            parallelize_module(model, mesh["tp"], {"q": ColwiseParallel(), "k": ColwiseParallel(), "o": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        if two:
            assert "_StridedShard" in str(model.q.weight.placements) + repr(model.q.weight.placements), model.q.weight.placements
        tp = min(WORLD, 2)
        r = RANK % tp
        vocabulary = 132  # padded to 2 x 66
        params = {
            "qkv": fused(torch.zeros(48 // tp, 32, dtype=torch.bfloat16).contiguous(),
                         [("q.weight", 32 // tp, r), ("k.weight", 8 // tp, r), ("v.weight", 8 // tp, r)]),
            "o": row_slice("o.weight", torch.zeros(32, 32 // tp, dtype=torch.bfloat16), r),
            "head": column_slice("head.weight", torch.zeros(vocabulary // tp, 32, dtype=torch.bfloat16), r, pad=True),
            "router": torch.zeros(5, dtype=torch.bfloat16), "bias": torch.zeros(1, dtype=torch.bfloat16)}
        with WeightSync(model, Ranks(params), check=True) as sync:
            sync.sync(1)
        for row in params["qkv"]:
            n = row.into.shape[0]
            assert torch.equal(row.into, whole[row.name][r * n:(r + 1) * n]), row.name
        assert torch.equal(params["o"].into, whole["o.weight"][:, r * 32 // tp:(r + 1) * 32 // tp])
        rows = whole["embed.weight"][r * vocabulary // tp:(r + 1) * vocabulary // tp]
        assert torch.equal(params["head"].into[:rows.shape[0]], rows)
        assert torch.equal(params["router"], model.router.bfloat16()) and torch.equal(params["bias"], whole["bias"])
        for every in [False, True]:
            path = os.path.join(FOLDER, f"weights-{two}-{every}")
            with WeightSync(model, Folder(path, every_rank=every, file_bytes=5000) if every or RANK == 0 else None,
                            bucket_bytes=MIB) as sync:
                for step in [1, 2]:
                    sync.sync(step)
            dist.barrier()  # the sync of a rank without a target ends when its messages are sent
            assert os.listdir(path) and not [n for n in os.listdir(FOLDER) if "writing" in n]
            with torch.device("meta"):
                other = Block()
            if two:
                parallelize_module(other, mesh["tp"], {"q": ColwiseParallel(), "v": ColwiseParallel(), "o": RowwiseParallel()})
            fully_shard(other, mesh=mesh["dp"])
            other.to_empty(device="cpu")
            other.head.weight = other.embed.weight
            done = load(other, path)
            for name, param in other.named_parameters():
                assert torch.equal(param.full_tensor().bfloat16(), whole[name]), name
            assert torch.equal(other.router, model.router.bfloat16().float())
            assert done.bytes <= 2 * sum(p.to_local().numel() for p in other.parameters()) + 10, done
        try:
            load(torch.nn.Linear(3, 3) if RANK == WORLD - 1 else other, path)
            raise SystemExit("a rank with another model was not noticed")
        except stowage.Error as failure:
            assert "bias: found shape (1,), expected (3,)" in str(failure), failure


def peers() -> None:
    """Rank 1 refuses, is killed or is stopped; the others say what they were doing."""
    dist.barrier()
    what, where = os.environ["WHAT"], os.environ["WHERE"]
    model = [("first", torch.full((512, 600), float(RANK))), ("middle", torch.ones(512, 600)), ("last", torch.ones(512, 600))]
    mesh = init_device_mesh("cpu", (WORLD,))
    model = [(name, distribute_tensor(tensor, mesh, [Shard(0)])) for name, tensor in model]

    def take(parts: list) -> None:
        if RANK == 1 and any(name == where for name, _, _ in parts) and armed:
            if what == "refuses":
                raise ValueError("no room for it")
            os.kill(os.getpid(), signal.SIGKILL if what == "killed" else signal.SIGSTOP)

    armed = False
    target = Callback(take, split=True)
    sync = WeightSync(model, target, bucket_bytes=MIB, timeout=2)
    sync.sync(1)
    armed = True
    start = time.monotonic()
    try:
        sync.sync(2)
        assert RANK != 1 and what == "refuses", "no error"
        assert target.version == 2
    except ValueError:
        assert RANK == 1
        try:
            print(target.version)
            raise SystemExit("a mixture has a version")
        except stowage.Error as failure:
            assert "mixture of step 1 and step 2" in str(failure) and "no room for it" in str(failure), failure
    except stowage.Error as failure:
        assert RANK != 1 and what != "refuses", failure
        took = time.monotonic() - start
        assert took < 6, took
        assert "sync of step 2" in str(failure) and " rank " in str(failure), failure
        assert any(name in str(failure) for name, _ in model), failure
        assert "no progress in 2 s" in str(failure) or what == "killed", failure
        try:
            sync.sync(3)
            raise SystemExit("went on without a peer")
        except stowage.Error as again:
            assert "make a new WeightSync" in str(again), again
        print("error:", failure)
        sys.stdout.flush()
        time.sleep(3)  # who ends at once is lost itself for those that still wait
        os._exit(0)
    if what == "refuses":
        armed = False
        sync.sync(3)
        assert target.version == 3
    else:
        os._exit(0)


def errors() -> None:
    """What one rank does wrong is an error of all, before anything moves."""
    tensor = torch.ones(4, 4)
    shards = distribute_tensor(tensor, init_device_mesh("cpu", (WORLD,)), [Shard(0)])
    for given, message in [([("a", tensor if RANK else tensor.double())], "rank 0: a: found torch.strided torch.float64"),
                           ([("a", tensor if RANK else tensor[:2])], "a: found shape (4, 4)"),
                           ([("a", shards)] if RANK else None, "no source")]:
        try:
            WeightSync(given, Callback(print))
            raise SystemExit(f"not refused: {message}")
        except stowage.Error as failure:
            text = str(failure)
            assert message.partition(": ")[2] in text or message in text or (message == "no source" and "a" in text), text


dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=WORLD, timeout=timedelta(seconds=60))
try:
    {"placements": placements, "fsdp2": fsdp2, "peers": peers, "errors": errors}[CASE]()
except BaseException:
    import traceback
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # other ranks see that it is gone
dist.barrier()
dist.destroy_process_group()
