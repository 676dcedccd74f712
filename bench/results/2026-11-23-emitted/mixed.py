"""Settings of torch FSDP2 (2.6 or later) for Qwen3-4B on 1 x 2 GPUs. In every rank, after init_process_group():

    model = ...            # in PARAMS, on the meta device
    shard(model)           # then model.to_empty(device=DEVICE), weights
    optimizer = adamw(model.parameters(), lr=...)
    each of MICRO_BATCHES: micro_batch(model, index), forward, backward
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM), optimizer.step()
"""
# Start with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment.
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

PARAMS = torch.float32  # the dtype in which parameters are created
DEVICE = "cuda"  # where shards of parameters lie
SEQUENCES = 5  # of a micro batch, on each data-parallel rank
SEQUENCE_LENGTH = 4096  # tokens
MICRO_BATCHES = 1  # of an optimizer step
MAX_NORM = 1  # of clip_grad_norm_
RECOMPUTED = {0, 2, 5, 7, 10, 13, 15, 18, 20, 23, 26, 28, 31}


def shard(model):
    mesh = init_device_mesh("cuda", (2,))
    settings = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": OffloadPolicy(),
        "reshard_after_forward": True,
    }
    for index in RECOMPUTED:
        model.model.layers[index] = checkpoint_wrapper(model.model.layers[index])
    for layer in model.model.layers:
        fully_shard(layer, **settings)
    fully_shard(model, **settings)


def adamw(params, **arguments):
    return torch.optim.AdamW(params, fused=True, **arguments)


def micro_batch(model, index):
    model.set_requires_gradient_sync(True)
    model.set_reshard_after_backward(True)
