# SPDX-License-Identifier: Apache-2.0
"""stowage.torch.AdamW."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterable, List, NoReturn, Optional, Sequence, Tuple, Union

import torch

from .. import _native
from .._optimizer import Info
from .._plan import Plan
from . import local_plan, norm, state
from .overlap import Overlap, current_stream
from .part import Part, split
from .tensors import Member, all_names, clean_name, local, on_device

_NAMED = hasattr(torch.optim.Optimizer, "_process_value_according_to_param_policy") and tuple(
    int(n) for n in torch.__version__.split(".")[:2]) >= (2, 6)  # Optimizer takes (name, tensor) pairs
_GIB = 1 << 30


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW whose moments (and fp32 master weights of bf16 parameters) may lie in host memory.

    step() queues the whole step natively and returns. Gradients are clipped to `clip_norm` by an exact global norm. Bits do
    not depend on where state lies, on hiding, or on the number of ranks; on CUDA fp32 parameters get the bits of
    torch.optim.AdamW(fused=True).

    params          a module (its parameters, hidden behind its forward), tensors, (name, tensor) pairs, or groups; fp32 or
                    bf16; DTensors (FSDP2) step their local shards. Frozen parameters have no state.
    lr, betas, eps, weight_decay
                    as torch.optim.AdamW; lr and weight_decay per group and live; betas and eps the same in all groups
    clip_norm       clip gradients to this global norm inside the step; None: do not clip. `grad_norm` is what it was.
                    torch.nn.utils.clip_grad_norm_ before step() works, too.
    plan            a Plan, or path of a plan file, of the whole job: how much state is resident, bucket and depth
    gpu_memory      bytes of GPU memory for resident state and the ring of buckets. 0: all state on the host, a ring of at most
                    128 MiB. "auto": 90% of what is free at the first step, less 1 GiB
    bucket, depth   bytes of a ring slot, slots; larger buckets hide better behind long kernels. None: 128 MiB in three slots
    moments         torch.float32 (None: that, or the plan's), or torch.bfloat16: exp_avg and exp_avg_sq take half the bytes and are
                    rounded to nearest after each step
    overlap         False: step() makes the current stream wait, as if torch had stepped. True, with a module as `params`: hide the
                    step behind its next forward. Who reads or changes parameters other than by that forward must call wait()
                    first: see hide_behind
    process_group   ranks whose parameters differ, beyond what DTensors say (pipeline stages, FSDP1): the norm is summed over it
    backend         "cuda" or "host"; None: by the parameters' device
    foreach, fused  accepted and ignored: there is one implementation
    amsgrad, maximize, capturable, differentiable
                    refused if true

    Memory. A gradient stays alive until the compute stream has waited for its parameter: in step() without overlap, in its
    module's next forward with it. zero_grad(set_to_none=True) in between only drops the caller's reference, so with overlap
    the first modules of the next forward run while gradients of later ones are still held.

    With overlap, parameters read or written other than by a module's forward and model.state_dict() (moving averages,
    logging, merging adapters) need `wait()` after step().
    """

    def __init__(self, params: Any, lr: Union[float, torch.Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, clip_norm: Optional[float] = None,
                 plan: Union[Plan, str, "os.PathLike[str]", None] = None, gpu_memory: Union[int, str] = 0,
                 bucket: Optional[int] = None, depth: Optional[int] = None,
                 moments: Optional[torch.dtype] = None, overlap: bool = False,
                 process_group: Any = None, backend: Optional[str] = None, maximize: bool = False,
                 foreach: Optional[bool] = None, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None) -> None:
        parts: List[Part] = []
        self._parts = parts
        self._names: Dict[int, str] = {}
        self._sizes: Dict[str, int] = {}  # elements of every named parameter, frozen ones too
        self._elements: Dict[int, int] = {}  # the same, tied ones once
        self._pid = os.getpid()
        self._norm: Optional[Tuple[float, float]] = None
        self._pending: Optional[Dict[str, Any]] = None
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm: found {clip_norm}, expected a number above 0, or None")
        if plan is not None and (gpu_memory != 0 or any(o is not None for o in [bucket, depth, moments])):
            raise ValueError("gpu_memory, bucket, depth and moments follow from plan: give one or the other")
        if moments not in (None, torch.float32, torch.bfloat16):
            raise ValueError(f"moments: found {moments}, expected torch.float32 or torch.bfloat16")
        self.clip_norm = clip_norm
        self._job = Plan.read(plan) if isinstance(plan, (str, os.PathLike)) else plan
        self._gpu_memory = gpu_memory
        self._settings = (local_plan.from_job(self._job) if self._job is not None
                          else local_plan.Settings(0 if gpu_memory == "auto" else _bytes(gpu_memory), None, bucket, depth))
        if moments == torch.bfloat16:
            self._settings = self._settings._replace(moments="bf16")
        self._process_group = process_group
        self._backend = backend
        self._overlap = Overlap(lambda: parts[0].device)  # not of self: _close keeps it
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize,
                        foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused,
                        decoupled_weight_decay=True)
        model = params if isinstance(params, torch.nn.Module) else None
        if model is not None:
            params = [(clean_name(name), param) for name, param in model.named_parameters()]
            self._know(all_names(model))
        super().__init__(self._take_names(params), defaults)
        self._close = weakref.finalize(self, _close, self._parts, self._overlap)
        if model is not None and overlap:
            self.hide_behind(model)

    # ---- parameters ----------------------------------------------------------------------------

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As torch.optim.Optimizer.add_param_group, also between steps: the next step begins their state."""
        group = dict(param_group)
        if _NAMED and self.param_groups and "param_names" in self.param_groups[0]:
            params = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
            group["params"] = [p if isinstance(p, tuple) else (self._names.get(id(p), f"group{len(self.param_groups)}.param{i}"), p)
                               for i, p in enumerate(params)]
        if not isinstance(group["params"], torch.Tensor):
            group["params"] = self._take_names(group["params"])
        super().add_param_group(group)
        try:
            _check_groups(self.param_groups)
        except ValueError:
            self.param_groups.pop()
            raise

    def hide_behind(self, model: torch.nn.Module) -> None:
        """Hide steps behind the forward of `model`: each of its modules waits for its own parameters, in the order of the
        model. Call it when the model is complete (wrapped, sharded, compiled), before the first step. Given a module as
        `params` and overlap=True the constructor has done it.

        After step() call wait() before anything else than the forward of `model` reads or changes parameters or gradients:
        state_dict() of a module inside it, to(), load_state_dict(), copy.deepcopy, FSDP2's unshard(), moving averages,
        zero_grad of the model in place, a forward of another model with the same parameters, a fused loss that takes a weight
        which the last training forward did not take, a change between compiled and eager forward. FSDP1 cannot be hidden."""
        self._overlap.remove()
        self._know(all_names(model))
        found = self._overlap.add(model, {id(p) for group in self.param_groups for p in group["params"]})
        if not found:
            raise _native.Error("hide_behind: the model has none of the optimizer's parameters")

    def _take_names(self, params: Any) -> Any:
        """Remember names; torch before 2.6 gets the tensors alone."""
        if isinstance(params, (torch.Tensor, set)):
            raise TypeError(f"params: found a {type(params).__name__}, expected an ordered iterable of tensors, "
                            "(name, tensor) pairs or groups")
        items = []
        for item in list(params):
            if isinstance(item, dict):
                item = {**item, "params": item["params"] if isinstance(item["params"], torch.Tensor)
                        else self._take_names(item["params"])}
            elif isinstance(item, tuple):
                self._names[id(item[1])] = item[0]
                self._know([item])
                item = item if _NAMED else item[1]
            items.append(item)
        return items

    def _know(self, named: Iterable[Tuple[str, torch.Tensor]]) -> None:
        for name, param in named:
            self._sizes[name] = self._elements[id(param)] = param.numel()

    def _new_members(self) -> List[Member]:
        """Trainable parameters that no part has."""
        known = {id(m.param) for part in self._parts for m in part.members}
        taken: Dict[str, int] = {}
        members: List[Member] = []
        for number, group in enumerate(self.param_groups):
            for index, param in enumerate(group["params"]):
                if id(param) in known or not param.requires_grad:
                    continue
                known.add(id(param))  # tied parameters once
                name = self._overlap.names.get(id(param)) or self._names.get(id(param)) or f"group{number}.param{index}"
                taken[name] = taken.get(name, 0) + 1
                members.append(Member(param, name if taken[name] == 1 else f"{name}.{taken[name]}", number))
        return members

    def _open(self) -> None:
        """Make the native optimizers of parameters that have none."""
        members = self._new_members()
        if not members:
            return
        if not self._parts:
            self._check_job(members)
        settings = self._settings
        order = self._overlap.order()
        lists = [sorted(of_part, key=lambda m: order.get(id(m.param), len(order))) for of_part in split(members)]
        budget = self._free_memory(members[0].device) if self._gpu_memory == "auto" else settings.gpu_memory
        total = sum(m.elements for m in members) or 1
        opened: List[Part] = []
        try:
            for of_part in lists:
                share = budget * sum(m.elements for m in of_part) // total
                with on_device(of_part[0].device):
                    opened.append(Part(of_part, settings._replace(gpu_memory=share), self._backend))
        except BaseException:
            for part in opened:
                part.close()
            raise
        self._parts.extend(opened)
        for part in opened:
            for member in part.members:
                self.state[member.param]["step"] = part.step_tensor

    def _check_job(self, members: List[Member]) -> None:
        """The job's plan must be of this model: as many elements, or each of its tensors with as many elements."""
        if self._job is None:
            return
        if self._sizes and sum(self._elements.values()) == self._job.params:
            return  # the same model; names may differ where the job fuses tensors (experts)
        found = {**self._sizes, **{m.name: m.param.numel() for m in members}}
        for tensor in self._job.tensors:
            if tensor.name not in found:
                raise _native.Error(f"plan: {tensor.name} is not among the parameters. Give (name, tensor) pairs or the model, with "
                                    "the names of the plan's model")
            if found[tensor.name] != tensor.elements:
                raise _native.Error(f"plan: {tensor.name} has {tensor.elements} elements, the parameter has {found[tensor.name]}")

    @staticmethod
    def _free_memory(device: torch.device) -> int:
        if device.type != "cuda":
            return 0
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
        return max(0, int(free * 0.9) - _GIB)

    # ---- the step ------------------------------------------------------------------------------

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """One step of AdamW. Work is queued after that of the current stream; nothing waits for it here."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._step()
        return loss

    def _step(self) -> None:
        if os.getpid() != self._pid:
            raise _native.Error("the optimizer was made by another process; a forked child must make its own")
        if self.param_groups[0]["params"][0].is_cuda and torch.cuda.is_current_stream_capturing():
            raise _native.Error("stowage.torch.AdamW cannot be captured in a CUDA graph: leave step() out of it")
        self._overlap.land()
        _check_groups(self.param_groups)
        self._ready()
        if self._parts:
            with self._on_device():
                self._begin()

    def _begin(self) -> None:
        """Queue the step of every part."""
        held: Dict[int, torch.Tensor] = {}
        for part in self._parts:
            held.update(zip((id(m.param) for m in part.held), part.bind(self.param_groups)))
        stream = current_stream(self._parts[0].device)
        clip = float(self.clip_norm) if self.clip_norm is not None else 0.0
        if clip:
            norm.begin(self._parts, stream, self._process_group)
        group = self.param_groups[0]
        betas, eps = _floats(group["betas"]), float(group["eps"])
        for part in self._parts:
            if part.native is not None:
                part.native.begin_step(part.step + 1, (betas[0], betas[1]), eps, clip, stream)
            part.set_step(part.step + 1)
        self._norm = None
        self._overlap.begin(self._parts, held, stream)

    def _ready(self) -> None:
        self._open()
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._on_device():
                state.load(self.param_groups, self._parts, pending)

    def wait(self) -> None:
        """Make the current stream wait for a step under way. Needed before parameters are read or changed other than by a
        module's forward."""
        self._overlap.land()

    def synchronize(self) -> None:
        """Block until a step under way is done. Raises what went wrong in it."""
        self._overlap.land()
        with self._on_device():
            for part in self._parts:
                if part.native is not None:
                    part.native.finish()

    @property
    def grad_norm(self) -> float:
        """The global norm of the last step's gradients, before clipping; NaN without clip_norm. Blocks until the step is
        done."""
        return self._finish_norm()[0]

    @property
    def clip_factor(self) -> float:
        """What the last step's gradients were multiplied by. Blocks until the step is done."""
        return self._finish_norm()[1]

    def _finish_norm(self) -> Tuple[float, float]:
        if self._norm is None:
            natives = [part.native for part in self._parts if part.native is not None]
            if not natives or self._parts[0].step == 0:
                return float("nan"), 1.0
            with self._on_device():
                self._norm = natives[0].finish()
        return self._norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim.Optimizer.zero_grad. Zeroing in place waits (on the current stream) for the step that reads the
        gradients; set_to_none does not."""
        if not set_to_none:
            self._overlap.land()
        super().zero_grad(set_to_none=set_to_none)

    @property
    def info(self) -> List[Info]:
        """Bytes that the native optimizers hold, one for each dtype and kind of sharding. Empty before the first step."""
        return [part.info for part in self._parts if part.info is not None]

    # ---- state ---------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """The state of the last step in torch.optim.AdamW's format, in host memory. Blocks until the step is done."""
        self._overlap.land()
        for hook in getattr(self, "_optimizer_state_dict_pre_hooks", {}).values():
            hook(self)
        if self._pending is not None:
            return self._pending
        with self._on_device():
            captured = state.capture(self.param_groups, self._parts)
        for hook in getattr(self, "_optimizer_state_dict_post_hooks", {}).values():
            captured = hook(self, captured) or captured
        return captured

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Take state of stowage.torch.AdamW or torch.optim.AdamW. Without "master" the master weights of bf16 parameters are
        made from the parameters. Before the first step of a model without memory ("meta") it is kept until then."""
        self._overlap.land()
        state_dict = dict(state_dict)
        for hook in getattr(self, "_optimizer_load_state_dict_pre_hooks", {}).values():
            state_dict = hook(self, state_dict) or state_dict
        groups = state.load_groups(self.param_groups, state_dict["param_groups"])
        _check_groups(groups)
        if any(p.is_meta for group in groups for p in group["params"] if p.requires_grad):
            self._pending = state_dict
        elif state_dict["state"] or self._parts:
            self._open()
            with self._on_device():
                state.load(groups, self._parts, state_dict)
        for group, loaded in zip(self.param_groups, groups):
            group.update(loaded)
        for hook in getattr(self, "_optimizer_load_state_dict_post_hooks", {}).values():
            hook(self)

    def adopt_params(self) -> None:
        """Make the master weights of bf16 parameters anew, from parameters that were changed outside the optimizer."""
        self._overlap.land()
        with self._on_device():
            for part in self._parts:
                if "master" in part.components:
                    for member in part.members:
                        part.write("master", member, local(member.param))

    def _on_device(self) -> ContextManager[Any]:
        return on_device(self._parts[0].device) if self._parts else contextlib.nullcontext()

    def __getstate__(self) -> NoReturn:
        raise TypeError("stowage.torch.AdamW cannot be pickled or copied: its state is native memory. Save state_dict()")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.__getstate__()


def _check_groups(groups: Sequence[Dict[str, Any]]) -> None:
    """Refuse settings that no step can have."""
    first = groups[0]
    for number, group in enumerate(groups):
        for key in ["betas", "eps"]:
            if number and _floats(group[key]) != _floats(first[key]):
                raise ValueError(f"{key}: parameter group {number} has {group[key]}, group 0 has {first[key]}; they must be "
                                 "the same in all groups. Use one optimizer for each")
        for key in ["amsgrad", "maximize", "capturable", "differentiable"]:
            if group.get(key):
                raise ValueError(f"{key}=True is not supported by stowage.torch.AdamW (parameter group {number})")
        if not 0.0 <= float(group["lr"]) <= 1000.0:
            raise ValueError(f"lr: found {group['lr']} in parameter group {number}, expected 0 to 1000")
        if not all(0.0 <= beta < 1.0 for beta in _floats(group["betas"])):
            raise ValueError(f"betas: found {group['betas']} in parameter group {number}, expected 0 to below 1")
        if float(group["eps"]) < 0.0 or float(group["weight_decay"]) < 0.0:
            raise ValueError(f"eps and weight_decay: found {group['eps']} and {group['weight_decay']} in parameter group "
                             f"{number}, expected 0 or more")


def _close(parts: List[Part], overlap: Overlap) -> None:
    """At the optimizer's end or the interpreter's: waits for work under way before memory goes."""
    for part in parts:
        part.close()
    overlap.flight = None


def _bytes(value: Union[int, str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f'gpu_memory: found {value!r}, expected bytes or "auto"')
    return value


def _floats(value: Any) -> Tuple[float, ...]:
    return tuple(float(v) for v in (value if isinstance(value, Iterable) else [value]))
