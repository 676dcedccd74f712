# SPDX-License-Identifier: Apache-2.0
"""What the optimizer needs to know of a torch tensor: its local shard, its address, its layout."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, ContextManager, Iterator, List, Tuple

import torch

from .. import _native

def is_loaded_instance(value: Any, module: str, name: str) -> bool:
    """isinstance for a class of a module of torch's that only jobs which use it have loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def check_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise _native.Error(f"{name}: found {dtype}, expected torch.float32 or torch.bfloat16")


def is_distributed(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    return is_loaded_instance(tensor, "torch.distributed.tensor", "DTensor")


def on_device(device: torch.device) -> ContextManager[Any]:
    """Calls of the library may leave the thread's current CUDA device at the optimizer's; this sets it back."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def shard_of(tensor: Any) -> torch.Tensor:
    """The shard of this rank; the tensor itself if it is a plain one."""
    if is_distributed(tensor):
        tensor = tensor._local_tensor  # to_local() would be recorded by autograd
        wait = getattr(tensor, "wait", None)  # AsyncCollectiveTensor
        if wait is not None:
            tensor = wait()
    return tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of this rank, without autograd."""
    return shard_of(tensor).detach()


def all_names(model: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """Every name of every parameter, tied ones under each of their names. Wrappers' prefixes are taken off."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, param in module._parameters.items():
            if param is not None:
                yield clean_name(f"{prefix}.{name}" if prefix else name), param


def clean_name(name: str) -> str:
    """A parameter's name without what torch.compile, checkpointing and DDP's wrappers put into it."""
    for wrapper in ["_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."]:
        name = name.replace(wrapper, "")
    return name[7:] if name.startswith("module.") else name


def is_dense(tensor: torch.Tensor) -> bool:
    """Its elements fill their memory once: contiguous, or a permutation of it (channels_last)."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((st, n) for n, st in zip(tensor.shape, tensor.stride()) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def empty_like(tensor: torch.Tensor, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Memory in which element i of the tensor's memory is element i."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)


def shard_groups(tensor: Any) -> Tuple[Any, ...]:
    """Process groups over which the ranks hold different shards, one for each sharded dimension of the mesh."""
    if not is_distributed(tensor):
        return ()
    groups: List[Any] = []
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise _native.Error("a parameter has the placement Partial, expected Shard or Replicate")
        if not placement.is_replicate() and tensor.device_mesh.size(dimension) > 1:
            groups.append(tensor.device_mesh.get_group(dimension))
    return tuple(groups)


class Member:
    """A parameter of the optimizer: its name, its group, and where its shard lay when it was bound."""

    __slots__ = ("param", "name", "group", "dtype", "shape", "stride", "device", "address", "elements")

    def __init__(self, param: Any, name: str, group: int) -> None:
        shard = local(param)
        if shard.is_meta:
            raise _native.Error(f"{name}: found a meta tensor, expected memory; materialise the model before the first step")
        if shard.layout != torch.strided:
            raise _native.Error(f"{name}: found layout {shard.layout}, expected a dense parameter")
        check_dtype(name, shard.dtype)
        if not is_dense(shard):
            raise _native.Error(f"{name}: its elements do not fill their memory (shape {tuple(shard.shape)}, strides "
                                f"{shard.stride()})")
        self.param = param
        self.name = name
        self.group = group
        self.dtype = shard.dtype
        self.shape = shard.shape
        self.stride = shard.stride()
        self.device = shard.device
        self.address = shard.data_ptr()
        self.elements = shard.numel()

    def check(self) -> None:
        """Error unless the parameter's shard is as it was bound; it may lie elsewhere."""
        shard = shard_of(self.param)
        if (shard.dtype, shard.shape, shard.stride(), shard.device) == (self.dtype, self.shape, self.stride, self.device):
            return
        for what, found, expected in [("dtype", shard.dtype, self.dtype), ("shape", tuple(shard.shape), tuple(self.shape)),
                                      ("device", shard.device, self.device), ("strides", shard.stride(), self.stride)]:
            if found != expected:
                raise _native.Error(f"{self.name}: the parameter's {what} changed from {expected} to {found} after the first "
                                    "step; make a new optimizer")

    def gradient(self) -> torch.Tensor:
        """The gradient's shard, in the parameter's layout."""
        grad: Any = self.param.grad
        if grad is None:
            frozen = "" if self.param.requires_grad else " (requires_grad was switched off after the first step)"
            raise _native.Error(f"{self.name}: the parameter has no gradient{frozen}; call backward() before step(), and leave "
                                "unused parameters out of the optimizer")
        if is_distributed(grad) and tuple(grad.placements) != tuple(self.param.placements):
            grad = grad.redistribute(placements=self.param.placements)
        if grad.layout != torch.strided:
            raise _native.Error(f"{self.name}: found a gradient of layout {grad.layout}, expected a dense one")
        shard = shard_of(grad)
        if shard.dtype != self.dtype or shard.shape != self.shape or shard.device != self.device:
            raise _native.Error(f"{self.name}: found a gradient of {shard.dtype} {tuple(shard.shape)} on {shard.device}, expected "
                                f"{self.dtype} {tuple(self.shape)} on {self.device}")
        if shard.stride() != self.stride and self.elements:
            shard = empty_like(local(self.param), self.dtype, self.device).copy_(shard)
        return shard
