# SPDX-License-Identifier: Apache-2.0
"""Stowage inside a torch job: `stowage.torch.AdamW`."""

from .adamw import AdamW

__all__ = ["AdamW"]
