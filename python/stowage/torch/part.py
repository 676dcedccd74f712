# SPDX-License-Identifier: Apache-2.0
"""A part of the optimizer: parameters with one dtype, on one device, with one kind of sharding, and the native optimizer
that steps them. Most jobs have one part."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .. import _native
from .._optimizer import Bound, Info, Optimizer
from .._plan import Plan
from . import local_plan
from .tensors import DTYPES, Member, empty_like, is_distributed, local, shard_groups, shard_of

GROUPS = 8  # parameter groups of a native optimizer


def split(members: Sequence[Member]) -> List[List[Member]]:
    """Members by part, in an order that is the same on all ranks."""
    parts: Dict[Tuple[Any, ...], List[Member]] = {}
    for member in members:
        key = (member.dtype, member.device, tuple(id(g) for g in shard_groups(member.param)), member.group // GROUPS)
        parts.setdefault(key, []).append(member)
    return list(parts.values())


class Part:
    """members: all; held: those of which this rank has elements, in the order of the native optimizer's tensors.
    native is None on a rank without elements."""

    def __init__(self, members: List[Member], settings: local_plan.Settings, backend: Optional[str]) -> None:
        self.members = members
        self.held = [m for m in members if m.elements]
        self.index = {id(m.param): i for i, m in enumerate(self.held)}
        self.device = members[0].device
        self.dtype = DTYPES[members[0].dtype]
        self.components = ("exp_avg", "exp_avg_sq") + (() if self.dtype == "F32" else ("master",))
        moments = torch.bfloat16 if settings.moments == "bf16" else torch.float32
        self.types = {c: torch.float32 if c == "master" else moments for c in self.components}
        self.groups = shard_groups(members[0].param)
        self.first_group = members[0].group // GROUPS * GROUPS
        self.step = 0
        self.step_tensor = torch.zeros((), dtype=torch.float32)
        self.plan: Optional[Plan] = None
        self.native: Optional[Optimizer] = None
        self._memory: Optional[torch.Tensor] = None
        self._addresses = [m.address for m in self.held]
        self._rates: Dict[int, Tuple[float, float]] = {}
        if self.held:
            self._open(settings, backend)

    def _open(self, settings: local_plan.Settings, backend: Optional[str]) -> None:
        cuda = _check_backend(self.held[0], backend) == "cuda"
        self.plan, info = local_plan.make([(m.name, m.elements) for m in self.held], self.dtype, settings)
        bound = [Bound(local_plan.planned_name(m.name), self.dtype, m.address, m.elements, m.group - self.first_group) for m in self.held]
        if not cuda:
            self.native = Optimizer(self.plan, bound, "host", nvme=settings.nvme)
            return
        # One block of torch's allocator, which counts it: resident state and the ring, taken once.
        self._memory = torch.empty(info.gpu_bytes + _native.ALIGNMENT, dtype=torch.uint8, device=self.device)
        address = -(-self._memory.data_ptr() // _native.ALIGNMENT) * _native.ALIGNMENT
        torch.cuda.synchronize(self.device)  # the block may be in use by work that torch queued, as may parameters
        self.native = Optimizer(self.plan, bound, "cuda", self.device.index, address, info.gpu_bytes, settings.nvme)

    @property
    def info(self) -> Optional[Info]:
        return self.native.info() if self.native else None

    def gradients(self) -> List[torch.Tensor]:
        """Gradients of the members held, which must stay alive during the step. Changes nothing; an error names the member: also
        of an empty DTensor shard, so that every rank has it. (Empty shards of FSDP1 have none.)"""
        for member in self.members:
            member.check()
        grads = [(m, m.gradient()) for m in self.members if m.elements or is_distributed(m.param)]
        return [grad for m, grad in grads if m.elements]

    def bind(self, param_groups: Sequence[Dict[str, Any]], grads: Sequence[torch.Tensor]) -> None:
        """Give the native optimizer this step's rates and addresses."""
        native = self.native
        if native is None:
            return
        addresses = [shard_of(m.param).data_ptr() for m in self.held]
        if addresses != self._addresses:
            native.bind_params(addresses)
            self._addresses = addresses
        for number, group in enumerate(param_groups[self.first_group:self.first_group + GROUPS]):
            rates = (float(group["lr"]), float(group["weight_decay"]))
            if self._rates.get(number) != rates:
                native.set_group(number, *rates)
                self._rates[number] = rates
        native.bind_gradients([g.data_ptr() for g in grads])

    def wait(self, param: torch.Tensor, stream: int) -> None:
        if self.native is not None:
            self.native.wait(self.index[id(param)], stream)

    def wait_all(self, stream: int) -> None:
        if self.native is not None:
            self.native.wait(_native.NONE, stream)

    def set_step(self, step: int) -> None:
        self.step = step
        self.step_tensor.fill_(step)

    def read(self, component: str, member: Member) -> torch.Tensor:
        """A copy of a component of a member's state in host memory, in the parameter's shape."""
        out = empty_like(local(member.param), self.types[component], "cpu")
        if member.elements:
            assert self.native is not None
            self.native.read_state(component, self.index[id(member.param)], member.elements, out.data_ptr())
        return out

    def write(self, component: str, member: Member, value: torch.Tensor) -> None:
        """Set a component of a member's state to a value of the shard's shape."""
        if not member.elements:
            return
        assert self.native is not None
        source = empty_like(local(member.param), self.types[component], "cpu").copy_(value)
        self.native.write_state(component, self.index[id(member.param)], member.elements, source.data_ptr())

    def close(self) -> None:
        if self.native is not None:
            self.native.close()
        self.native = None
        self._memory = None


def _check_backend(member: Member, wanted: Optional[str]) -> str:
    """The backend of a member's device; an error if it is not the one that the caller names, or the library lacks it."""
    backend = {"cpu": "host", "cuda": "cuda"}.get(member.device.type)
    if backend is None:
        raise _native.Error(f"{member.name}: found a parameter on {member.device}, expected cpu or cuda")
    if wanted not in (None, backend):
        raise _native.Error(f'backend: found "{wanted}", but {member.name} is on {member.device}, expected "{backend}" or None')
    library = _native.load()
    if backend == "cuda" and not library.stw_has_feature(b"cuda"):
        raise _native.Error(f"{member.name} is on {member.device}, but {library.path} was built without CUDA")
    return backend
