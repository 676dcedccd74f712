#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch's optimizers and DeepSpeed's reach on the CPUs of this node: torch_rates.py --ranks N --cores N --bytes N --seconds S

`stowage calibrate` runs it where python3 has torch, and stops it after its time. One process per rank does what a rank does, all at the same
time, with one thread and with its share of the cores. Lines on stdout, fields separated by tabs:
  progress SHARE TEXT
  sample NAME DETAIL UNIT VALUE...   whole node for optimizers; one GPU for copies, all GPUs at once
  none REASON                        nothing, or nothing more, can be measured
Names: loop, foreach, fused: torch.optim.AdamW; cpu_adam: DeepSpeedCPUAdam; "_one": one thread per rank. pageable: copies to the GPU. call: seconds
of one small operation that Python issues to the GPU, in a loop of casts and norms. process: resident bytes of a rank with torch, the modules of
transformers where they are installed, a CUDA context, a product of matrices and a communicator."""
import argparse
import glob
import importlib.util
import os
import socket
import subprocess
import sys
import time

REPEATS = 5
TENSOR_ELEMENTS = 8 << 20  # a tensor is larger than what malloc keeps: temporaries are new pages, as in a run
STATE_BYTES = 24           # of an element: parameter, gradient, two moments, and a temporary of each of two steps
COPY_BYTES = 256 << 20
CALLS = 200


def say(*fields):
    print(*fields, sep="\t", flush=True)


# ---- one rank --------------------------------------------------------------------------------------


def is_built(extension):
    """Is the extension there? Its first use would compile it, for minutes, and a compilation that is ended leaves a lock."""
    from torch.utils import cpp_extension
    from deepspeed.git_version_info import installed_ops
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    return installed_ops.get(extension, False) or glob.glob(os.path.join(root, "**", extension, extension + ".so"), recursive=True)


def optimizer_of(kind, params):
    import torch
    if kind == "cpu_adam":
        if not is_built(kind):
            raise RuntimeError("not compiled yet; DeepSpeed compiles it when it is first used")
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        return DeepSpeedCPUAdam(params, lr=1e-4)
    return torch.optim.AdamW(params, lr=1e-4, foreach=kind == "foreach", fused=kind == "fused")


def steps(kind, threads, elements):
    """Seconds of a step, as often as asked."""
    import torch
    torch.set_num_threads(threads)
    params = [torch.full((n,), 0.5) for n in split(elements)]
    for p in params:
        p.requires_grad_(True)
        p.grad = torch.full_like(p, 1e-3)
    optimizer = optimizer_of(kind, params)
    optimizer.step()  # makes the moments
    optimizer.step()
    while True:
        start = time.perf_counter()
        optimizer.step()
        yield time.perf_counter() - start


def split(elements):
    return [min(TENSOR_ELEMENTS, elements - first) for first in range(0, elements, TENSOR_ELEMENTS)]


def copies(rank):
    """Seconds of a copy of pageable memory to the rank's GPU."""
    import torch
    host = torch.ones(COPY_BYTES // 2, dtype=torch.bfloat16)
    gpu = torch.empty_like(host, device=f"cuda:{rank}")
    gpu.copy_(host)
    while True:
        torch.cuda.synchronize(rank)
        start = time.perf_counter()
        gpu.copy_(host)
        torch.cuda.synchronize(rank)
        yield time.perf_counter() - start


def calls(rank):
    """Seconds of one operation, without the GPU's."""
    import torch
    tensors = [torch.ones(64, device=f"cuda:{rank}", dtype=torch.bfloat16) for _ in range(CALLS)]
    while True:
        torch.cuda.synchronize(rank)
        start = time.perf_counter()
        norms = [t.to(torch.float64).norm(2) for t in tensors]
        yield (time.perf_counter() - start) / (2 * len(norms))


def resident(rank, ranks, port):
    """Bytes of a process as a training script has it before it makes tensors."""
    import torch
    import torch.distributed as dist
    if importlib.util.find_spec("transformers"):
        import transformers.models.llama.modeling_llama  # pylint: disable=unused-import
    torch.cuda.set_device(rank)
    a = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    (a @ a).sum().item()
    if ranks > 1:
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
        dist.all_reduce(a)
        torch.cuda.synchronize()
    del a
    while True:
        with open("/proc/self/statm", encoding="ascii") as file:
            yield int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rank_main(rank, answers):
    """Reads "begin WHAT THREADS ELEMENTS" and "go"; answers "ready" and seconds, or "no REASON"."""
    work = None
    for line in sys.stdin:
        word = line.split()
        try:
            if word[0] == "gpus":
                import torch
                print(torch.cuda.device_count() if torch.cuda.is_available() else 0, file=answers, flush=True)
                continue
            if word[0] == "begin" and word[1] == "process":
                work = resident(rank, int(word[2]), int(word[3]))
                next(work)
                print("ready", file=answers, flush=True)
            elif word[0] == "begin":
                work = None  # what was before gives its memory back
                work = copies(rank) if word[1] == "pageable" else calls(rank) if word[1] == "call" else steps(word[1], int(word[2]), int(word[3]))
                next(work)
                print("ready", file=answers, flush=True)
            else:
                print(next(work), file=answers, flush=True)
        except Exception as error:  # pylint: disable=broad-except
            print("no", type(error).__name__, str(error).replace("\n", " ")[:120], file=answers, flush=True)


# ---- all ranks -------------------------------------------------------------------------------------


class Refused(Exception):
    pass


class Ranks:
    def __init__(self, n):
        command = [sys.executable, os.path.abspath(__file__), "--rank"]
        self.all = [subprocess.Popen(command + [str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for i in range(n)]

    def ask(self, line, n=None):
        some = self.all[:n]
        for rank in some:
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        answers = [rank.stdout.readline().strip() for rank in some]
        for answer in answers:
            if answer == "" or answer.startswith("no "):
                raise Refused(answer[3:] or "a process ended")
        return answers

    def times(self, what, threads=1, elements=0, n=None):
        """The largest answer of the ranks, in seconds or bytes, several times."""
        self.ask(f"begin {what} {threads} {elements}", n)
        return [max(float(a) for a in self.ask("go", n)) for _ in range(REPEATS)]


def measure(ranks, options):
    n = options.ranks
    share = max(1, options.cores // n)
    elements = max(1 << 16, min(64 << 20, options.bytes // (STATE_BYTES * n)))
    kinds = ["fused", "foreach", "loop"] + (["cpu_adam"] if importlib.util.find_spec("deepspeed") else [])
    if int(ranks.ask("gpus", 1)[0]) >= n:
        with socket.socket() as free:  # a port for the communicator
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        say("sample", "process", f"{n} GPU{'' if n == 1 else 's'}", "B", *[f"{b:.0f}" for b in ranks.times("process", n, port)])
        detail = f"{COPY_BYTES >> 20} MiB, {n} GPU{'' if n == 1 else 's'}"
        say("sample", "pageable", detail, "B/s", *[f"{COPY_BYTES / s:.6g}" for s in ranks.times("pageable")])
        say("sample", "call", f"{2 * CALLS} operations", "s", *[f"{s:.6g}" for s in ranks.times("call", n=1)])
    for i, kind in enumerate(kinds):
        for threads in (share, 1):
            say("progress", (2 * i + (threads == 1)) / (2 * len(kinds)), f"{kind}, {threads} thread{'' if threads == 1 else 's'}")
            some = elements if threads > 1 or share == 1 else max(1 << 16, elements // min(8, share))
            try:
                seconds = ranks.times(kind, threads, some)
            except Refused as refused:
                say("none", f"{kind}: {refused}")
                break
            name = kind + ("_one" if threads == 1 else "")
            detail = f"{threads} thread{'' if threads == 1 else 's'}, {n} rank{'' if n == 1 else 's'}"
            say("sample", name, detail, "param/s", *[f"{n * some / s:.6g}" for s in seconds])
            if share == 1:
                say("sample", kind, detail, "param/s", *[f"{n * some / s:.6g}" for s in seconds])
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--bytes", type=int, default=4 << 30, help="of all ranks together, at most")
    options = parser.parse_args()
    if options.rank is not None:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print is no answer
        sys.stdout = sys.stderr
        rank_main(options.rank, answers)
        return
    if importlib.util.find_spec("torch") is None:
        say("none", "python has no torch")
        return
    os.environ.pop("OMP_NUM_THREADS", None)  # ranks set their threads themselves
    say("progress", 0, "start of torch")
    ranks = Ranks(options.ranks)
    try:
        measure(ranks, options)
    except Refused as refused:
        say("none", refused)
    for rank in ranks.all:
        rank.stdin.close()
    for rank in ranks.all:
        rank.wait()


if __name__ == "__main__":
    main()
