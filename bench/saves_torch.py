# SPDX-License-Identifier: Apache-2.0
"""How fast are checkpoints of stowage.torch.Checkpoint, do they stall training, and what memory do they take, beside torch's DCP?

    torchrun --nproc-per-node N bench/saves_torch.py [--model Qwen3-1.7B] [--layers 8] [--state host|gpu] [--overlap] [--folder DIR]
             [--cluster FILE] [--buckets 32,256] [--budget-s 130] [--cpu] [-o rows.jsonl] [--dtype fp32]
             [--rows ceiling,save,behind,round,dcp]
    torchrun --nproc-per-node N bench/saves_torch.py [--resume DIR] --steps K [--save-only DIR] --digest ...

A model with random weights in bf16, or fp32, under FSDP2 if there are several ranks, is trained by stowage.torch.AdamW with moments and,
beside bf16, masters in fp32 on the host or on the GPU. One JSON line for each row, as soon as it is measured:

    ceiling     direct writes of all ranks at once into the folder, of as many bytes as a save has: the fastest of some requests,
                sizes and ways to allocate; and buffered writes with fsync. Direct writes again at the end
    steps       seconds of a training step without a save, short ones, and long ones whose passes last longer than the save
    save        blocking: from save() to the end of all ranks' parts, synced; with the plan's prediction, which is made before
    behind      asynchronous: seconds that save() blocks, of each step while it runs, and of the save. stall_s: what these steps
                took more than the median without a save; stopped_s: both together, beside the plan's prediction
    dcp         torch.distributed.checkpoint: save (its default, and 4 threads) and async_save of the same bytes, with masters and moments
                where --state says (torch's AdamW steps them there), in the same folder
    round trip  a save, more steps; new objects, load, the same steps: are all bits of parameters and state equal?

Memory (see saves_disk.Memory) is the worst rank's, beyond what there was before the save, or beyond the peaks of steps without one. Files
of a row are deleted after it. Predictions are those of `stowage plan` (STOWAGE: the program) with --cluster, a name or a file, and the
write rate that was measured here.

The second form trains K steps after those of a checkpoint, or from the first one, saves, and prints a digest that does not depend on
the number of ranks: 1 -> 2 -> 1 equals one rank without a stop. The package stowage is found by PYTHONPATH, its library by
STOWAGE_LIBRARY. --cpu: gloo and a tiny model, to try the script."""

import argparse
import gc
import math
import os
import shutil
import statistics
import tempfile
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # of bits that repeat; read when CUDA begins

import torch
import torch.distributed as dist
from saves_disk import MIB, Memory, page_aligned, write_buffered, write_direct
from saves_job import Job, Ours, Theirs, digest, local

WAYS = [(4, 16, False), (8, 8, False), (16, 4, False), (8, 8, True)]  # requests at a time, MiB of each, allocated before
SWEPT = 1 << 30  # bytes by which the ways are compared
MOST_STEPS = 500


class Rows:
    def __init__(self, job):
        self.job, self.options = job, job.options
        self.folder = os.path.join(self.options.folder, "saves_torch")
        self.number = 0  # of the next step
        self.rate = None  # bytes per second of direct writes, all ranks
        self.way = None

    def clear(self):
        self.job.barrier()
        if self.job.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.makedirs(self.folder)
            os.sync()  # the next row does not pay for files that go
        self.job.barrier()

    def timed(self, call):
        """Seconds of the slowest rank; all begin at once."""
        self.job.barrier()
        start = time.perf_counter()
        call()
        self.job.synchronize()
        return self.job.most(time.perf_counter() - start)

    # ---- the disk ----

    def write(self, call, size):
        seconds = self.timed(lambda: call(os.path.join(self.folder, f"rank-{self.job.rank}"), size))
        self.clear()
        total = sum(self.job.each(size))
        return {"seconds": round(seconds, 4), "gbps": round(total / seconds / 1e9, 3)}

    def direct(self, size, way):
        requests, mib, allocate = way
        memories = [page_aligned(mib * MIB) for _ in range(requests)]
        row = self.write(lambda path, n: write_direct(path, n, memories, allocate), size)
        self.job.tell(row="ceiling", how="direct", requests=requests, request_mib=mib, allocated=allocate, bytes=sum(self.job.each(size)), **row)
        return row["gbps"] * 1e9

    def ceiling(self, size):
        rates = [self.direct(min(size, SWEPT // self.job.world), way) for way in WAYS]
        self.way = WAYS[rates.index(max(rates))]
        self.rate = self.direct(size, self.way)
        data = page_aligned(16 * MIB)
        self.job.tell(row="ceiling", how="buffered, fsync", bytes=sum(self.job.each(size)),
                      **self.write(lambda path, n: write_buffered(path, n, data), size))

    # ---- steps ----

    def one(self, trainer, micros):
        self.number += 1
        return self.job.seconds(trainer, self.number, micros)

    def plain(self, trainer, micros, times, **what):
        """Steps without a save: their median, and the memory that they take."""
        if micros == 1:
            self.one(trainer, micros)
        with Memory() as memory:
            seconds = self.job.most([self.one(trainer, micros) for _ in range(times)])
        median = statistics.median(seconds)
        self.job.tell(row="steps", micro_batches=micros, median_s=round(median, 4), seconds=rounded(seconds), **what)
        return median, memory

    def during(self, trainer, micros, busy):
        """Seconds of steps until `busy` is False on all ranks; a step that begins after it is not among them."""
        seconds = []
        while self.job.most(int(busy())) and len(seconds) < MOST_STEPS:
            seconds.append(self.one(trainer, micros))
        return self.job.most(seconds) if seconds else []

    # ---- ours ----

    def speed(self, total, seconds):
        return {"bytes": total, "gbps": round(total / seconds / 1e9, 3), "of_ceiling": round(total / seconds / self.rate, 3) if self.rate else None}

    def predict(self, micros):
        row = self.job.predicted(micros, self.rate) if self.job.rank == 0 else None
        return self.job.each(row)[0]

    def checkpoint(self, trainer, bucket_mib):
        from stowage.torch import Checkpoint

        return Checkpoint(trainer.model, trainer.optimizer, self.folder, bucket_bytes=bucket_mib * MIB)

    def save(self, trainer, bucket_mib):
        predicted = self.predict(1)
        with self.checkpoint(trainer, bucket_mib) as checkpoint:
            for again in (False, True) if bucket_mib == self.options.buckets[0] else (False,):
                found = []
                with Memory() as memory:
                    seconds = self.timed(lambda: (checkpoint.save(self.number), found.append(checkpoint.wait())))
                result = found[0]
                row = dict(row="save", state=self.options.state, bucket_mib=bucket_mib, again=again, seconds=round(seconds, 4),
                           **self.speed(sum(r.bytes for r in self.job.each(result)), seconds), files=self.files(),
                           complete=sum(r.complete for r in self.job.each(result)), **self.job.most(memory.row()), **predicted)
                self.job.tell(**row)
                self.clear()

    def files(self):
        return sum(len(files) for _, _, files in os.walk(self.folder))

    def behind(self, trainer, micros, times, bucket_mib):
        median, memory = self.plain(trainer, micros, times, optimizer="stowage")
        predicted = self.predict(micros)
        with self.checkpoint(trainer, bucket_mib) as checkpoint:
            self.job.barrier()
            with Memory(memory) as memory:
                start = time.perf_counter()
                checkpoint.save(self.number)
                blocked = time.perf_counter() - start
                steps = self.during(trainer, micros, checkpoint.is_saving)
                result = checkpoint.wait()
            results = self.job.each(result)
        seconds = max(r.seconds for r in results)
        row = dict(row="behind", state=self.options.state, overlap=self.options.overlap, bucket_mib=bucket_mib,
                   seconds=round(seconds, 4), waited_s=round(max(r.stall_seconds for r in results), 4),
                   **self.speed(sum(r.bytes for r in results), seconds))
        self.tell_behind(row, micros, median, self.job.most(blocked), steps, memory, predicted)

    def tell_behind(self, row, micros, median, blocked, steps, memory, predicted):
        stall = sum(s - median for s in steps)
        row.update(micro_batches=micros, blocked_s=round(blocked, 4), step_s=round(median, 4), steps=len(steps), steps_s=rounded(steps[:20]),
                   longest_step=round(max(steps) / median, 3) if steps else None, stall_s=round(stall, 4), stopped_s=round(blocked + stall, 4),
                   **self.job.most(memory.row()), **predicted)
        self.job.tell(**row)
        self.clear()

    def long_step(self, trainer, total):
        """Micro batches whose passes last longer than the writes of state on the host."""
        if self.options.state == "gpu" or not self.rate:
            return None
        one, three = (self.job.most(min(self.one(trainer, micros) for _ in range(2))) for micros in (1, 3))
        micro = max(three - one, 0.1 * one) / 2  # without the step
        return min(max(2, math.ceil(1.15 * total / self.rate / micro)), 4 if self.options.cpu else 128)

    def round_trip(self, trainer):
        """Takes the trainer's place: one model is there at a time."""
        first, count = self.number, self.options.steps
        torch.use_deterministic_algorithms(True)
        with self.checkpoint(trainer, self.options.buckets[0]) as checkpoint:
            checkpoint.save(first)
            for step in range(count):
                self.job.step(trainer, first + 1 + step)
            checkpoint.wait()
        expected = digest(trainer)
        trainer.model = trainer.optimizer = checkpoint = None
        self.clean()
        other = Ours(self.job.model(seed=4), self.options)
        with self.checkpoint(other, self.options.buckets[0]) as checkpoint:
            found_step = []
            seconds = self.timed(lambda: found_step.append(checkpoint.load()))
            for step in range(count):
                self.job.step(other, first + 1 + step)
        found = digest(other)
        torch.use_deterministic_algorithms(False)
        self.job.tell(row="round trip", steps=count, load_s=round(seconds, 4), step=found_step[0], expected_step=first, expected=expected,
                      found=found, equal=found == expected and found_step[0] == first)
        self.clear()

    # ---- torch's ----

    def clean(self):
        gc.collect()
        if self.job.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def dcp_save(self, trainer, threads):
        import torch.distributed.checkpoint as dcp

        def call():
            writer = dcp.FileSystemWriter(self.folder, thread_count=threads)
            dcp.save(trainer.state(), storage_writer=writer, process_group=self.job.dcp_group)

        with Memory() as memory:
            seconds = self.timed(call)
        self.job.tell(row="dcp", call="save", state=self.options.state, threads=threads, seconds=round(seconds, 4), **self.speed(self.size(), seconds),
                      files=self.files(), **self.job.most(memory.row()))
        self.clear()

    def size(self):
        """Bytes in the folder."""
        return sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(self.folder) for f in files)

    def dcp_behind(self, trainer):
        import torch.distributed.checkpoint as dcp

        median, memory = self.plain(trainer, 1, 3, optimizer="torch")
        self.job.barrier()
        ended = []
        with Memory(memory) as memory:
            start = time.perf_counter()
            future = dcp.async_save(trainer.state(), storage_writer=dcp.FileSystemWriter(self.folder), process_group=self.job.dcp_group)
            blocked = time.perf_counter() - start
            future.add_done_callback(lambda _: ended.append(time.perf_counter() - start))
            steps = self.during(trainer, 1, lambda: not future.done())
            future.result()
            while not ended:  # callbacks come after the result
                time.sleep(0.001)
        seconds = self.job.most(ended[0])
        row = dict(row="dcp", call="async_save", state=self.options.state, seconds=round(seconds, 4), **self.speed(self.size(), seconds))
        self.tell_behind(row, 1, median, self.job.most(blocked), steps, memory, {})

    # ---- all ----

    def attempt(self, name, call):
        """A row that fails on all ranks is told; nothing begins after the budget."""
        if name.split()[0] not in self.options.rows:
            return
        if self.job.over():
            self.job.tell(row="left out", what=name, why=f"--budget-s {self.options.budget_s:g} is over")
            return
        try:
            call()
        except (OSError, RuntimeError, ValueError) as failure:
            self.job.tell(row="failed", what=name, why=f"{type(failure).__name__}: {str(failure).strip()}"[:300])
            self.clear()
        self.clean()

    def all_rows(self):
        self.clear()
        trainer = Ours(self.job.model(), self.options)
        first = [self.one(trainer, 1) for _ in range(2)]
        each = 14 if self.options.dtype == "bf16" else 12  # bytes: fp32 moments, and bf16 with fp32 masters, or fp32
        size = each * sum(local(p).numel() for p in trainer.model.parameters())
        total = sum(self.job.each(size))
        self.job.tell(row="job", model=self.options.model, dtype=self.options.dtype, layers=self.options.layers, ranks=self.job.world, state=self.options.state, bytes=total,
                      device="cpu" if self.options.cpu else torch.cuda.get_device_name(), torch=torch.__version__, first_step_s=round(first[0], 3))
        self.attempt("ceiling", lambda: self.ceiling(size))
        for bucket in self.options.buckets:
            self.attempt("save", lambda b=bucket: self.save(trainer, b))
        for bucket in self.options.buckets:
            self.attempt("behind", lambda b=bucket: self.behind(trainer, 1, 5, b))
        micros = self.long_step(trainer, total) if "behind" in self.options.rows else None
        if micros:
            self.attempt("behind long steps", lambda: self.behind(trainer, micros, 2, self.options.buckets[0]))
        self.attempt("round trip", lambda: self.round_trip(trainer))
        del trainer
        self.clean()
        if "dcp" in self.options.rows:
            self.their_rows()
        if self.rate:
            self.attempt("ceiling", lambda: self.direct(size, self.way))
        self.job.barrier()
        if self.job.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def their_rows(self):
        theirs = Theirs(self.job, self.job.model())
        self.one(theirs, 1)
        for name, call in (("dcp save", lambda: self.dcp_save(theirs, 1)), ("dcp async_save", lambda: self.dcp_behind(theirs)),
                           ("dcp save, 4 threads", lambda: self.dcp_save(theirs, 4))):
            self.attempt(name, call)


def rounded(seconds):
    return [round(s, 4) for s in seconds]


def print_table(job):
    if job.rank != 0:
        return
    columns = ("row", "how", "call", "state", "bucket_mib", "micro_batches", "seconds", "gbps", "of_ceiling", "predicted_s", "blocked_s", "stall_s",
               "stopped_s", "predicted_stall_s", "step_s", "longest_step", "rss_mib", "pinned_mib", "locked_mib", "gpu_mib", "equal")
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in job.rows:
        if row["row"] in ("ceiling", "save", "behind", "dcp", "round trip"):
            print("| " + " | ".join(str(row.get(c, "")) for c in columns) + " |")


def chain(job):
    """Steps from a checkpoint on, a save, a digest."""
    from stowage.torch import Checkpoint

    options, first = job.options, 0
    torch.use_deterministic_algorithms(True)
    trainer = Ours(job.model(seed=3, sharded=True), options)
    if options.resume:
        with Checkpoint(trainer.model, trainer.optimizer, options.resume) as checkpoint:
            first = checkpoint.load()
        if first is None:
            raise SystemExit(f"{options.resume}: found no complete checkpoint")
    for step in range(first, first + options.steps):
        job.step(trainer, step)
    if options.save_only:
        with Checkpoint(trainer.model, trainer.optimizer, options.save_only) as checkpoint:
            checkpoint.save(first + options.steps)
            checkpoint.wait()
    job.tell(row="digest", ranks=job.world, state=options.state, first=first, last=first + options.steps, digest=digest(trainer))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="Qwen3-1.7B")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096, help="of a micro batch")
    parser.add_argument("--state", choices=["host", "gpu"], default="host")
    parser.add_argument("--overlap", action="store_true", help="steps are hidden behind the next forward")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that is measured")
    parser.add_argument("--cluster", help="of the predictions; default h200-x1 or h200-x2")
    parser.add_argument("--buckets", type=lambda text: [int(b) for b in text.split(",")], default=[32, 256], help="MiB")
    parser.add_argument("--steps", type=int, default=3, help="after a load")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16", help="of the parameters")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=["ceiling", "save", "behind", "round", "dcp"])
    parser.add_argument("--save-only", metavar="DIR")
    parser.add_argument("--resume", metavar="DIR")
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--budget-s", type=float, default=130, help="no row is begun after so many seconds")
    parser.add_argument("--cpu", action="store_true", help="gloo and a tiny model: tries the script; its figures mean nothing")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    job = Job(options)
    if options.save_only or options.resume or options.digest:
        chain(job)
    else:
        Rows(job).all_rows()
        print_table(job)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
