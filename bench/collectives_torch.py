# SPDX-License-Identifier: Apache-2.0
"""The collectives that one training step of DeepSpeed or Megatron-core issues, recorded.

    torchrun --nproc-per-node 2 collectives_torch.py --case '{"name": "zero3", "zero": 3, "model": "Qwen3-0.6B", "layers": 8}' --record FOLDER
    torchrun ... --case '{"name": "tp2", "tp": 2, "layers": 8, "hidden": 1024, ...}'

Writes FOLDER/NAME.RANK.comms.json: name, group, elements and type of each collective, and how often.
DeepSpeed with bf16 and torch's AdamW; Megatron-core with its local layers, distributed data parallel and
Megatron's optimizer ("dist_opt" true: the distributed one). Seen with DeepSpeed 0.19.8 and Megatron-core 0.16.1."""

import argparse
import json
import os
import pathlib

import torch
import torch.distributed as dist

import fsdp2_torch

SHAPE = {"layers": 8, "hidden": 1024, "heads": 16, "groups": 8, "ffn": 3072, "vocab": 151936, "seq": 1024}


def deepspeed_step(case, zoo):
    import deepspeed

    model, config = fsdp2_torch.build({**fsdp2_torch.DEFAULTS, **case, "params": "bfloat16", "lora": None}, zoo)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e-3)
        for module in model.modules():
            if hasattr(module, "inv_freq") and hasattr(module, "rope_init_fn"):
                module.inv_freq = module.original_inv_freq = module.rope_init_fn(module.config, "cuda")[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    settings = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True},
                "zero_optimization": {"stage": case["zero"]}, "zero_allow_untested_optimizer": True,
                "steps_per_print": 1000}
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    tokens = torch.randint(0, config.vocab_size, (1, case["seq"]), device="cuda")

    def step():
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()

    return step


def megatron_step(case):
    from megatron.core import parallel_state
    from megatron.core.distributed import (DistributedDataParallel, DistributedDataParallelConfig,
                                           finalize_model_grads)
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 names it although TransformerEngine is absent
        moe_utils.te_general_gemm = None
    if case.get("sp"):  # torch's norms refuse sequence parallelism; their weights are marked as others' are
        class Norm(torch.nn.RMSNorm):
            def __init__(self, config, hidden_size, eps=1e-5, **_):
                super().__init__(hidden_size, eps=eps)
                self.weight.sequence_parallel = True

        from megatron.core.models import backends
        from megatron.core.models.gpt import gpt_layer_specs
        from megatron.core.transformer import transformer_block
        for module in (torch_norm, backends, gpt_layer_specs, transformer_block):
            for name in ("WrappedTorchNorm", "LNImpl", "LayerNormImpl"):
                if hasattr(module, name):
                    setattr(module, name, Norm)
    experts = case.get("experts")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=case.get("tp", 1),
                                             expert_model_parallel_size=case.get("ep", 1))
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=case["layers"], hidden_size=case["hidden"], num_attention_heads=case["heads"],
        num_query_groups=case["groups"], ffn_hidden_size=case["ffn"], gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", add_bias_linear=False,
        attention_dropout=0.0, hidden_dropout=0.0, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=case.get("tp", 1),
        sequence_parallel=case.get("sp", False), expert_model_parallel_size=case.get("ep", 1),
        num_moe_experts=experts, moe_router_topk=2, moe_ffn_hidden_size=case["ffn"] if experts else None,
        moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="none",
        gradient_accumulation_fusion=False, masked_softmax_fusion=False, bias_activation_fusion=False,
        apply_rope_fusion=False, persist_layer_norm=False)
    model = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(
        num_experts=experts, normalization="RMSNorm"), vocab_size=case["vocab"],
        max_sequence_length=case["seq"], position_embedding_type="rope",
        share_embeddings_and_output_weights=False).cuda().bfloat16()
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=case.get("dist_opt", True),
                                        grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, ddp, model)
    config.finalize_model_grads_func = finalize_model_grads
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-5, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0,
        use_distributed_optimizer=case.get("dist_opt", True)), [model])
    seq = case["seq"]
    tokens = torch.randint(0, case["vocab"], (1, seq), device="cuda")
    position = torch.arange(seq, device="cuda").unsqueeze(0)
    mask = torch.triu(torch.ones((1, 1, seq, seq), dtype=torch.bool, device="cuda"), 1)

    def loss_of(output):
        loss = output.float().mean()
        return loss, {"loss": loss.detach()}

    def forward(data, model):
        return model(tokens, position, mask, labels=tokens), loss_of

    def step():
        model.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(forward_step_func=forward, data_iterator=iter([None]), model=[model],
                                    num_microbatches=1, seq_length=seq, micro_batch_size=1, forward_only=False)
        optimizer.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", required=True)
    parser.add_argument("--record", required=True)
    parser.add_argument("--zoo", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "models/zoo")
    arguments = parser.parse_args()
    case = {**SHAPE, **json.loads(arguments.case)}
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local))
    step = deepspeed_step(case, arguments.zoo) if case.get("zero") else megatron_step(case)
    step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    trace = pathlib.Path(arguments.record) / f"{case['name']}.{dist.get_rank()}.json"
    profiler.export_chrome_trace(str(trace))
    fsdp2_torch.summarise(trace)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
