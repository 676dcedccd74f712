# SPDX-License-Identifier: Apache-2.0
"""Stowage inside a torch job: `stowage.torch.AdamW`, its checkpoints (`Checkpoint`), and weights out of it and into it:
`WeightSync`, `Receiver`, `load`."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"stowage.torch needs torch ({error}): pip install torch, 1.13 or newer, 2.6 for FSDP2") from error

from .adamw import AdamW
from .boxes import Slice, column_slice, fused, row_slice
from .checkpoint import Checkpoint
from .folder import Folder
from .load import load
from .receive import Process, Receiver
from .sync import WeightSync
from .target import Callback, Ranks

__all__ = ["AdamW", "Callback", "Checkpoint", "Folder", "Process", "Ranks", "Receiver", "Slice", "WeightSync", "column_slice",
           "fused", "load", "row_slice"]
