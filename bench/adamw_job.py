# SPDX-License-Identifier: Apache-2.0
"""A training job of adamw_torch.py on one rank: the model, its iterations, and what they take."""

import gc
import json
import os
import pathlib
import statistics
import time
import types
from datetime import timedelta

from adamw_variants import VARIANTS

ZOO = pathlib.Path(__file__).resolve().parent.parent / "models/zoo"
SEQUENCE = 4096
TINY = dict(hidden_size=64, intermediate_size=128, head_dim=16, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=512, num_hidden_layers=3, max_position_embeddings=128)
TINY_EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
TINY_SEQUENCE = 64
PHASES = ["forward", "backward", "step"]
FIGURES = ["allocated", "reserved"]


def facts_of(model, layers=None, tiny=False):
    """config.json of a model of the zoo, of fewer layers, or of tiny shapes."""
    facts = json.loads((ZOO / f"{model}.json").read_text(encoding="utf-8"))
    facts = facts.get("config", facts)
    if tiny:
        facts.update(TINY, **(TINY_EXPERTS if "num_experts" in facts else {}))
    if layers:
        facts["num_hidden_layers"] = layers
    return facts


def sequence_of(options):
    return TINY_SEQUENCE if options.cpu else SEQUENCE


class Machine:
    """The GPU of this rank, or the CPU (no bytes are counted there), and the other ranks."""

    def __init__(self, torch, cpu):
        self.torch, self.cpu = torch, cpu
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.rank, local = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
        self.name = "cpu" if cpu else "cuda"
        if not cpu:
            torch.cuda.set_device(local)
        self.group = None
        if self.world > 1:
            dist = torch.distributed
            device = {} if cpu else {"device_id": torch.device("cuda", local)}
            dist.init_process_group("gloo" if cpu else "cpu:gloo,cuda:nccl",
                                    timeout=timedelta(seconds=120), **device)
            self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=300))

    def wait(self):
        if not self.cpu:
            self.torch.cuda.synchronize()

    def mark(self):
        """A point of the main stream."""
        if self.cpu:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first, last):
        return last - first if self.cpu else first.elapsed_time(last) / 1000

    def peaks(self):
        """Bytes since the last call. Nothing waits: torch's allocator works in the host's order."""
        if self.cpu:
            return dict.fromkeys(FIGURES, 0)
        cuda = self.torch.cuda
        out = dict(allocated=cuda.max_memory_allocated(), reserved=cuda.max_memory_reserved())
        cuda.reset_peak_memory_stats()
        return out

    def used(self):
        if self.cpu:
            return 0
        free, total = self.torch.cuda.mem_get_info()
        return total - free

    def clean(self):
        gc.collect()
        self.wait()
        if not self.cpu:
            self.torch.cuda.empty_cache()

    def device(self):
        return "cpu" if self.cpu else self.torch.cuda.get_device_name()

    def worst(self, row):
        """The largest of each number over the ranks."""
        if self.group is None:
            return row
        keys = sorted(k for k, v in row.items() if isinstance(v, (int, float)))
        values = self.torch.tensor([float(row[k]) for k in keys], dtype=self.torch.float64)
        self.torch.distributed.all_reduce(values, op=self.torch.distributed.ReduceOp.MAX,
                                          group=self.group)
        return {**row, **{k: type(row[k])(v) for k, v in zip(keys, values.tolist())}}

    def say(self, row):
        if self.rank == 0:
            print(json.dumps(row), flush=True)


# ---- the model -----------------------------------------------------------------------------------


def loss_of(model, tokens, options, torch):
    """Mean loss over all tokens: the head and the loss at once as transformers computes it, or by
    chunks, which are computed again in backward."""
    from torch.utils.checkpoint import checkpoint

    def chunk(hidden, labels):
        logits = model.lm_head(hidden).float()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    wide = options.state == "fp32" and options.ranks == 1
    with torch.autocast("cpu" if options.cpu else "cuda", torch.bfloat16, enabled=wide):
        hidden = model.model(input_ids=tokens).last_hidden_state.flatten(0, 1)
        labels = tokens.flatten().roll(-1)
        if not options.chunked_loss:
            return chunk(hidden, labels) / len(labels)
        total, size = 0, sequence_of(options)
        for at in range(0, len(labels), size):
            total = total + checkpoint(chunk, hidden[at:at + size], labels[at:at + size],
                                       use_reentrant=False)
    return total / len(labels)


def make_model(options, machine):
    """Random weights, the same shapes as published; sharded by FSDP2 if there are several ranks. A
    call gives the loss."""
    import transformers

    torch = machine.torch
    facts = facts_of(options.model, options.layers, options.cpu)
    config = transformers.AutoConfig.for_model(facts.pop("model_type"), **facts)
    config.use_cache = False
    dtype = torch.bfloat16 if options.state == "master" else torch.float32
    torch.manual_seed(1 + machine.rank)
    with torch.device("meta" if machine.world > 1 else machine.name):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype,
                                                              attn_implementation="sdpa")
    model.forward = types.MethodType(lambda self, tokens: loss_of(self, tokens, options, torch),
                                     model)
    if machine.world > 1:
        shard(model, options, machine)
    return model.train()


def shard(model, options, machine):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch = machine.torch
    mesh = init_device_mesh(machine.name, (machine.world,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=machine.name)
    with torch.no_grad():
        for param in model.parameters():
            local = param.to_local()
            local.normal_(0, 0.02) if param.dim() > 1 else local.fill_(1)
    for module in model.modules():  # rotary tables are made on the meta device
        if hasattr(module, "inv_freq") and hasattr(module, "rope_init_fn"):
            module.inv_freq = module.original_inv_freq = module.rope_init_fn(module.config,
                                                                             machine.name)[0]
        elif hasattr(module, "inv_freq"):
            table, module.attention_scaling = module.compute_default_rope_parameters(
                module.config, machine.name)
            module.inv_freq = module.original_inv_freq = table


# ---- measuring -----------------------------------------------------------------------------------


def iterate(variant, tokens, machine):
    """Marks at the borders of the phases, the begin first, and the peaks of each phase."""
    marks, peaks = [machine.mark()], {}
    machine.peaks()

    def border(name):
        marks.append(machine.mark())
        peaks[name] = machine.peaks()

    loss = variant.forward(tokens)
    border("forward")
    variant.backward(loss)
    border("backward")
    variant.step()
    border("step")
    return marks, peaks, loss.detach()


def most(rows):
    """{phase_figure: the largest of several iterations}"""
    return {f"{p}_{f}": max(row[p][f] for row in rows) for p in PHASES for f in FIGURES}


def measure(variant, tokens, options, machine):
    """Iterations are queued one after the other, and the host waits at the end alone. Seconds are
    medians: of an iteration from its begin to the next one's, of phases between their marks."""
    torch, sequence = machine.torch, sequence_of(options)
    shape = (tokens // sequence, sequence)
    data = torch.randint(0, 500, shape, device=machine.name)
    machine.clean()
    done = [iterate(variant, data, machine) for _ in range(options.warmup + options.steps + 1)]
    machine.wait()
    timed = done[options.warmup:]
    marks = [m for m, _, _ in timed]
    seconds = [machine.between(a[0], b[0]) for a, b in zip(marks, marks[1:])]
    row = dict(iteration_s=statistics.median(seconds), most_iteration_s=max(seconds))
    for i, phase in enumerate(PHASES):
        row[f"{phase}_s"] = statistics.median(machine.between(m[i], m[i + 1]) for m in marks[:-1])
    row.update(most([p for _, p, _ in timed]))
    row.update(gpu_used=machine.used(), host_rss=resident_bytes(), loss=float(timed[-1][2]))
    return row


def resident_bytes():
    for line in pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def set_checkpoints(model, wanted):
    if wanted:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()


def begin(model, name, options, machine):
    """The variant after its first iteration, and what that took."""
    options.variant = name
    machine.clean()
    start = time.perf_counter()
    variant = VARIANTS[name](model, options, machine.torch)
    data = machine.torch.randint(0, 500, (1, sequence_of(options)), device=machine.name)
    _, peaks, _ = iterate(variant, data, machine)
    machine.wait()
    row = {f"first_step_{f}": peaks["step"][f] for f in FIGURES}
    row.update(setup_s=time.perf_counter() - start, **variant.held())
    return variant, machine.worst(row)


def late(options, machine):
    """Whether the budget is over, on any rank."""
    return machine.worst({"late": int(time.time() > options.until)})["late"] > 0


def run_variant(model, name, options, machine):
    """Says a row for each number of tokens; the optimizer is gone afterwards."""
    machine.say({"begin": name})
    first = options.checkpoint[0]
    set_checkpoints(model, first)
    variant, made = begin(model, name, options, machine)
    for wanted in options.checkpoint:
        set_checkpoints(model, wanted)
        for tokens in options.tokens:
            if late(options, machine):
                return
            case = case_of(options, name, wanted, tokens)
            try:
                row = machine.worst(measure(variant, tokens, options, machine))
            except machine.torch.OutOfMemoryError as error:
                machine.say({**case, "error": str(error).split("\n")[0][:160]})
                if machine.world > 1:  # the other ranks may wait for this one
                    raise
                variant.zero()
                break
            machine.say({**case, **made, **row, "device": machine.device(),
                         "torch": machine.torch.__version__})


def case_of(options, name, checkpoint, tokens):
    """What a row is of, and what adamw_rows.py plans."""
    return dict(variant=name, model=options.model, layers=options.layers, gpus=options.ranks,
                state=options.state, checkpoint=checkpoint, chunked_loss=options.chunked_loss,
                sequence=sequence_of(options), tokens=tokens, clip=options.clip, tiny=options.cpu)


def run_here(options):
    import torch

    machine = Machine(torch, options.cpu)
    options.ranks = machine.world
    model = make_model(options, machine)
    for name in options.variants.split("+"):
        if late(options, machine):
            break
        run_variant(model, name, options, machine)
    machine.clean()
    if machine.world > 1:
        torch.distributed.destroy_process_group()
