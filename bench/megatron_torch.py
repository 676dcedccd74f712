# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's own training loop as one rank of a layout on one GPU, and what it holds: a row of truth.

    PYTHONPATH=MEGATRON_LM RANK=0 WORLD_SIZE=8 LOCAL_RANK=0 python3 megatron_torch.py ROWS.jsonl NAME ARGUMENTS

ARGUMENTS are those of pretrain_gpt.py. Added are --fake-process-group, whose collectives do nothing, local layers and
what they need. Core attention is torch's scaled_dot_product_attention, Adam is torch's fused AdamW, and the tokens are
random. One line of JSON: bytes that torch's allocator had handed out and reserved at most until the model and the
optimizer stood, in forward and backward, and in the optimizer step; seconds of the last step."""

import contextlib
import json
import os
import sys
import time
import types

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")

import torch

ALWAYS = """--bf16 --transformer-impl local --tokenizer-type NullTokenizer --no-gradient-accumulation-fusion --no-rope-fusion
 --no-masked-softmax-fusion --no-persist-layer-norm --lr 1e-5 --min-lr 1e-6 --train-iters 3 --eval-iters 0 --eval-interval 1000
 --normalization RMSNorm --disable-bias-linear --swiglu --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0
 --num-workers 0 --no-create-attention-mask-in-dataloader --mock-data --ckpt-format torch_dist --dataloader-type external
 --fake-process-group --distributed-timeout-minutes 60""".split()
FIGURES = {}


def attention(self, query, key, value, attention_mask, attn_mask_type=None, attention_bias=None, packed_seq_params=None):
    """Rows, sequences, heads, width: as Megatron-LM has them."""
    query, key, value = (t.permute(1, 2, 0, 3) for t in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=self.softmax_scale, enable_gqa=query.shape[1] != key.shape[1])
    out = out.permute(2, 0, 1, 3).contiguous()
    return out.view(*out.shape[:2], -1)


def mark(name):
    torch.cuda.synchronize()
    FIGURES[name] = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    torch.cuda.reset_peak_memory_stats()


def replace(pretrain_gpt):
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.training import initialize, training

    made = DotProductAttention.__init__

    def make(self, *arguments, k_channels=None, v_channels=None, **keywords):
        made(self, *arguments, **keywords)

    DotProductAttention.__init__, DotProductAttention.forward = make, attention
    norm = torch_norm.WrappedTorchNorm.__new__

    def norm_of(cls, config, *arguments, **keywords):
        """torch's norms need no more under sequence parallelism; Megatron-LM refuses them."""
        cuts, config.sequence_parallel = config.sequence_parallel, False
        try:
            return norm(cls, config, *arguments, **keywords)
        finally:
            config.sequence_parallel = cuts

    torch_norm.WrappedTorchNorm.__new__ = norm_of
    initialize._compile_dependencies = lambda: None

    class Fused(torch.optim.AdamW):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, fused=True, **keywords)

    torch.optim.AdamW = Fused
    random.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)  # of TransformerEngine,
    random.fp8_autocast = lambda **_: contextlib.nullcontext()  # too
    train_step = training.train_step

    def watched(forward_step, iterator, model, optimizer, *arguments, **keywords):
        if "load" not in FIGURES:
            mark("load")
        step = optimizer.step

        def timed():
            mark("forward_backward")
            since = time.perf_counter()
            result = step()
            mark("optimizer_step" if "first_optimizer_step" in FIGURES else "first_optimizer_step")
            FIGURES["step_s"] = time.perf_counter() - since
            return result

        optimizer.step = timed
        try:
            since = time.perf_counter()
            out = train_step(forward_step, iterator, model, optimizer, *arguments, **keywords)
            torch.cuda.synchronize()
            FIGURES["iteration_s"] = time.perf_counter() - since
            return out
        finally:
            optimizer.step = step

    training.train_step = watched

    def batch(iterator, vp_stage=None):
        from megatron.training import get_args

        args = get_args()
        tokens = torch.randint(0, args.vocab_size, (args.micro_batch_size, args.seq_length), device="cuda")
        made = {"tokens": tokens, "labels": tokens.roll(-1, 1), "loss_mask": torch.ones_like(tokens, dtype=torch.float),
                "position_ids": torch.arange(args.seq_length, device="cuda").expand_as(tokens)}
        return [made.get(key) for key in pretrain_gpt.BATCH_KEYS]

    pretrain_gpt.get_batch = batch


def main():
    rows, name, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    sys.argv = [sys.argv[0], *ALWAYS, *arguments]
    import pretrain_gpt
    from megatron.core.enums import ModelType
    from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args
    from megatron.training import pretrain

    replace(pretrain_gpt)
    args = parse_and_validate_args()
    row = {"name": name, "argv": arguments, "world": args.world_size, "torch": torch.__version__}

    def datasets(samples, **_):
        return iter(int, 1), None, None

    datasets.is_distributed = True
    try:
        pretrain(pretrain_cfg_container_from_args(args, gpt_config_from_args(args)), datasets,
                 ModelType.encoder_or_decoder, pretrain_gpt.forward_step,
                 get_embedding_ranks=pretrain_gpt.get_embedding_ranks)
    finally:
        with open(rows, "a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "measured": FIGURES}) + "\n")


if __name__ == "__main__":
    main()
