# SPDX-License-Identifier: Apache-2.0
"""A training loop whose settings are what `stowage plan --emit` wrote, for `stowage record`.

    stowage plan ... --set engine=fsdp2 -o plan.json --emit fsdp2:settings.py
    stowage record -o run.json -- torchrun --nproc-per-node N bench/emitted_torch.py --model Qwen3-4B settings.py
    stowage validate plan.json run.json

settings.py of `--emit fsdp2`, or the JSON file of `--emit deepspeed` with --seq and --recompute, which it does
not say. No checkpoint is read. With CPU offload DeepSpeed steps torch's AdamW."""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib

import torch
import torch.distributed as dist

from fsdp2_torch import DEFAULTS, build
from record_torch import enter, leave


def fill(model, device):
    model.to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.fill_(1e-3)
        for _, buffer in model.named_buffers():
            buffer.data = buffer.data.to("cuda")
    for module in model.modules():  # rotary tables are made on the meta device
        if hasattr(module, "inv_freq") and hasattr(module, "rope_init_fn"):
            module.inv_freq = module.original_inv_freq = module.rope_init_fn(module.config, "cuda")[0]
    model.train()


def with_fsdp2(path, arguments):
    spec = importlib.util.spec_from_file_location("settings", path)
    settings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(settings)
    dtype = str(settings.PARAMS).removeprefix("torch.")
    model, config = build({**DEFAULTS, "model": arguments.model, "params": dtype}, arguments.zoo)
    settings.shard(model)
    fill(model, settings.DEVICE)
    optimizer = settings.adamw(model.parameters(), lr=1e-5)
    shape = (settings.SEQUENCES, settings.SEQUENCE_LENGTH)
    tokens = torch.randint(0, config.vocab_size, shape, device="cuda")

    def micro_batch(index):
        settings.micro_batch(model, index)
        loss = model(input_ids=tokens, labels=tokens).loss / settings.MICRO_BATCHES
        loss.backward()

    def step():
        if settings.MAX_NORM is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return settings.MICRO_BATCHES, micro_batch, step


def with_deepspeed(path, arguments):
    import deepspeed
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = json.loads(path.read_text())
    zero = settings["zero_optimization"]
    offload = zero.get("offload_optimizer", {}).get("device", "none") != "none"
    facts = json.loads((arguments.zoo / (arguments.model + ".json")).read_text())
    facts = facts.get("config", facts)
    config = AutoConfig.for_model(facts["model_type"], **{k: v for k, v in facts.items() if k != "model_type"})
    config.use_cache = False
    with torch.device("cuda"):  # random weights: DeepSpeed leaves out steps whose gradients are not finite
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.train()
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    how = {"foreach": False} if offload else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **how)
    extra = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000}
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config={**settings, **extra})
    del model
    torch.cuda.empty_cache()
    size = settings["train_micro_batch_size_per_gpu"]
    parts = settings.get("gradient_accumulation_steps", 1)
    tokens = torch.randint(0, config.vocab_size, (size, arguments.seq), device="cuda")

    def micro_batch(index):
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        if index + 1 < parts:
            engine.step()

    return parts, micro_batch, engine.step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=pathlib.Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seq", type=int, default=4096, help="tokens of a sequence (DeepSpeed)")
    parser.add_argument("--recompute", action="store_true", help="every layer (DeepSpeed)")
    parser.add_argument("--zoo", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "models/zoo")
    arguments = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    if arguments.settings.suffix == ".py":
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local))
        parts, micro_batch, step = with_fsdp2(arguments.settings, arguments)
    else:
        parts, micro_batch, step = with_deepspeed(arguments.settings, arguments)
    for index in range(arguments.steps):
        for part in range(parts):
            enter("forward_backward")
            micro_batch(part)
            leave("forward_backward")
        phase = "optimizer_step" if index > 0 else "first_optimizer_step"
        enter(phase)
        step()
        leave(phase)
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
