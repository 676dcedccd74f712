# SPDX-License-Identifier: Apache-2.0
"""Stowage: plans the memory of large-model training runs, and executes the optimizer step inside a torch job.

    >>> import stowage
    >>> plan = stowage.plan("Qwen3-8B", "h100-80g-x8", set={"engine": "fsdp2", "parallel.dp_shard": 8})
    >>> plan.fits, plan.gpu_peak_bytes

`stowage.torch.AdamW` is a drop-in for `torch.optim.AdamW` whose state may lie in host memory.
"""

from ._native import DoesNotFit, Error
from ._native import VERSION as __version__
from ._plan import Peak, Phase, Plan, TensorInfo, plan
from ._programs import program, validate

__all__ = ["DoesNotFit", "Error", "Peak", "Phase", "Plan", "TensorInfo", "__version__", "plan", "program", "validate"]
