# SPDX-License-Identifier: Apache-2.0
"""stowage.torch.AdamW."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Tuple, Union

import torch

from .. import _native, _signals
from .._checkpoint import Saved
from .._optimizer import Info
from .._plan import Plan
from . import job_plan, local_plan, norm, settings, state
from .overlap import Overlap, current_stream
from .part import Part, split
from .tensors import Member, all_names, check_dtype, clean_name, local, on_device

_NAMED = hasattr(torch.optim.Optimizer, "_process_value_according_to_param_policy") and tuple(
    int(n) for n in torch.__version__.split(".")[:2]) >= (2, 6)  # Optimizer takes (name, tensor) pairs
_GIB = 1 << 30
_live: "weakref.WeakSet[AdamW]" = weakref.WeakSet()


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW whose moments (and fp32 master weights of bf16 parameters) may lie in host memory.

    step() queues the whole step natively and returns. Gradients are clipped to `clip_norm` by an exact global norm. Bits do
    not depend on where state lies, on hiding, or on the number of ranks; on CUDA fp32 parameters get the bits of
    torch.optim.AdamW(fused=True).

    params          a module (its parameters; with overlap steps are hidden behind its forward), tensors, (name, tensor) pairs, or groups; fp32 or
                    bf16; DTensors (FSDP2) step their local shards. Frozen parameters have no state.
    lr, betas, eps, weight_decay
                    as torch.optim.AdamW; lr and weight_decay per group and live; betas and eps the same in all groups
    clip_norm       clip gradients to this global norm inside the step; None: do not clip. "auto": as planned (plans clip to 1 unless they
                    say otherwise); without plan None. `grad_norm` is what it was.
                    torch.nn.utils.clip_grad_norm_ before step() works, too.
    plan            a Plan, or path of a plan file, of the whole job: how much state is resident, bucket and depth, clip_norm and overlap.
                    It must be of this model (names, sizes, dtype), of this optimizer (engine stowage, or optimizer.implementation:
                    stowage) and of as many parameters per rank
    gpu_memory      GPU memory for resident state and the ring of buckets, in bytes or as "4 GiB". 0: all state on the host, a ring
                    of at most 128 MiB. "auto": 90% of what is free at the first step, less 1 GiB
    bucket, depth   size of a ring slot, slots; larger buckets hide better behind long kernels. None: 128 MiB in three slots
    moments         torch.float32 (None: that, or the plan's), or torch.bfloat16: exp_avg and exp_avg_sq take half the bytes and are
                    rounded to nearest after each step
    nvme            folder on a local disk for state that host_memory has no room for; its file has no name and goes with the process.
                    None: all streamed state is in host memory
    host_memory     page-locked memory of this rank, with nvme, in bytes or as "100 GiB". "auto": as planned, if plan has state on NVMe,
                    else 80% of what is free at the first step
    overlap         False: step() makes the current stream wait, as if torch had stepped. True, with a module as `params`: hide the
                    step behind its next forward; hide_behind says who must call wait(). "auto": as planned; without plan, or without a
                    module, False
    process_group   ranks whose parameters differ, beyond what DTensors say (pipeline stages, FSDP1): the norm is summed over it
    backend         "cuda" or "host"; None: by the parameters' device
    foreach, fused  accepted and ignored: there is one implementation
    amsgrad, maximize, capturable, differentiable
                    refused if true

    Memory. A gradient stays alive until the compute stream has waited for its parameter: in step() without overlap, in its
    module's next forward with it. zero_grad(set_to_none=True) in between only drops the caller's reference, so with overlap
    the first modules of the next forward run while gradients of later ones are still held.
    """

    def __init__(self, params: Any, lr: Union[float, torch.Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, clip_norm: Union[float, str, None] = "auto",
                 plan: Union[Plan, str, "os.PathLike[str]", None] = None, gpu_memory: Union[int, str] = 0,
                 bucket: Union[int, str, None] = None, depth: Optional[int] = None,
                 moments: Optional[torch.dtype] = None, nvme: Union[str, "os.PathLike[str]", None] = None,
                 host_memory: Union[int, str] = "auto", overlap: Union[bool, str] = "auto",
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
        self._loaded = False  # masters that were not compared with the parameters yet
        self._torn: Optional[str] = None  # what failed in Checkpoint.load
        given = local_plan.Settings(settings.gpu_memory(gpu_memory) or 0, None, settings.bucket(bucket), settings.depth(depth),
                                    settings.moments(moments) or "fp32")
        if plan is not None and (gpu_memory != 0 or any(o is not None for o in [bucket, depth, moments])):
            raise ValueError("gpu_memory, bucket, depth and moments follow from plan: give one or the other")
        self._job = settings.plan(plan)
        planned = job_plan.Planned() if self._job is None else job_plan.planned(self._job)
        self.clip_norm = planned.clip_norm if clip_norm == "auto" else clip_norm
        settings.clip_norm(self.clip_norm)
        hide = planned.overlap and isinstance(params, torch.nn.Module) if overlap == "auto" else settings.flag("overlap", overlap)
        on_disk, of_host = settings.nvme(nvme), settings.host_memory(host_memory)
        if on_disk is None and of_host is not None:
            raise ValueError("host_memory is for nvme: without it all streamed state is in host memory")
        self._settings = given if self._job is None else job_plan.settings(self._job, on_disk is not None)
        if of_host is None:
            of_host = self._settings.host_memory  # as planned
        self._settings = self._settings._replace(nvme=on_disk, host_memory=of_host)
        self._fill_gpu = gpu_memory == "auto"
        self._process_group = settings.process_group(process_group)
        self._backend = settings.backend(backend)
        self._overlap = Overlap(lambda: parts[0].device)  # not of self: _close keeps it
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize,
                        foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused,
                        decoupled_weight_decay=True)
        model = params if isinstance(params, torch.nn.Module) else None
        if hide and model is None:
            raise ValueError("overlap=True needs a module as params; or leave it out and call hide_behind(model)")
        if model is not None:
            params = [(clean_name(name), param) for name, param in model.named_parameters()]
            self._know(all_names(model))
        self._model = weakref.ref(model) if model is not None else None
        super().__init__(self._take_names(params), defaults)
        self._saves: List[Saved] = []  # checkpoints whose saves read state of the parts
        self._close = weakref.finalize(self, _close, self._parts, self._overlap, self._saves)
        _live.add(self)
        if model is not None and hide:
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
            settings.check_groups(self.param_groups)
            for index, param in enumerate(self.param_groups[-1]["params"]):
                if param.requires_grad:
                    check_dtype(self._names.get(id(param)) or f"group{len(self.param_groups) - 1}.param{index}", param.dtype)
        except (TypeError, ValueError, _native.Error):
            self.param_groups.pop()
            raise

    def hide_behind(self, model: torch.nn.Module) -> None:
        """Hide steps behind the forward of `model`: each of its modules waits for its own parameters, in the order of the
        model. Call it when the model is complete (wrapped, sharded, compiled), before the first step. Given a module as
        `params` and overlap=True the constructor has done it.

        Whoever reaches a parameter through its module waits by itself: any forward, attributes, parameters(), state_dict(),
        load_state_dict(), to(), copies, model.zero_grad(), FSDP2's unshard(), other optimizers of this kind. step() itself waits
        for FSDP1's and script modules' parameters, for those that modules outside the model had at the first step, and for those
        in graphs of torch.compile that no module's own call leads to.

        After step() call wait() before parameters or gradients are used in another way: by tensors that were taken out of their
        modules earlier (a list kept by a moving average, param_groups, views), by a CUDA graph's replay, or by modules that were
        given the model's parameters after the first step."""
        with self._turn():
            self._hide_behind(model)

    def _hide_behind(self, model: torch.nn.Module) -> None:
        if not isinstance(model, torch.nn.Module):
            raise settings.refuse("hide_behind", model, "a torch.nn.Module", TypeError)
        self._overlap.remove()
        self._know(all_names(model))
        found = self._overlap.add(model, {id(p) for group in self.param_groups for p in group["params"]})
        if not found:
            raise _native.Error("hide_behind: the model has none of the optimizer's parameters")

    def _take_names(self, params: Any) -> Any:
        """Remember names; torch before 2.6 gets the tensors alone."""
        if isinstance(params, (torch.Tensor, set, dict, str)) or not hasattr(params, "__iter__"):
            raise TypeError(f"params: found a {type(params).__name__}, expected a module, or an ordered iterable of tensors, "
                            "(name, tensor) pairs or groups")
        items = []
        for item in list(params):
            if isinstance(item, dict):
                if "params" not in item:
                    raise ValueError(f'params: found a group of {", ".join(map(str, item)) or "nothing"}, expected one with "params"')
                item = {**item, "params": item["params"] if isinstance(item["params"], torch.Tensor)
                        else self._take_names(item["params"])}
            elif isinstance(item, tuple):
                if len(item) != 2 or not isinstance(item[0], str) or not isinstance(item[1], torch.Tensor):
                    raise TypeError(f"params: found a tuple of {', '.join(type(i).__name__ for i in item)}, expected (name, tensor)")
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
        if not self._parts and self._job is not None:
            job_plan.check(self._job, members, self._sizes, self._elements)
        self._warn_of_others()
        order = self._overlap.order()
        lists = [sorted(of_part, key=lambda m: order.get(id(m.param), len(order))) for of_part in split(members)]
        budget = self._free_memory(members[0].device) if self._fill_gpu else self._settings.gpu_memory
        total = sum(m.elements for m in members) or 1
        opened: List[Part] = []
        try:
            for of_part in lists:
                elements = sum(m.elements for m in of_part)
                of_host = local_plan.host_share(self._settings, elements, total)
                with on_device(of_part[0].device):
                    opened.append(Part(of_part, of_host._replace(gpu_memory=budget * elements // total), self._backend))
        except BaseException:
            for part in opened:
                part.close()
            raise
        self._parts.extend(opened)
        for part in opened:
            for member in part.members:
                self.state[member.param]["step"] = part.step_tensor

    def _others(self) -> Dict["AdamW", Member]:
        """Other optimizers that have stepped parameters of this one, with the first of those."""
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        found: Dict[AdamW, Member] = {}
        for other in list(_live):
            shared = (m for part in other._parts for m in part.members if id(m.param) in mine)
            first = next(shared, None) if other is not self else None
            if first is not None:
                found[other] = first
        return found

    def _warn_of_others(self) -> None:
        if self._others():
            gc.collect()  # they may be garbage: schedulers and optimizers refer to each other
        for member in self._others().values():
            warnings.warn(f"{member.name}: another stowage.torch.AdamW has this parameter, too; each keeps state of its own",
                          stacklevel=6)

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
        with self._turn():
            self._check_whole()
            on_cuda = any(p.is_cuda for group in self.param_groups for p in group["params"][:1])
            if on_cuda and torch.cuda.is_current_stream_capturing():
                raise _native.Error("stowage.torch.AdamW cannot be captured in a CUDA graph: leave step() out of it")
            self._overlap.land()
            settings.check_groups(self.param_groups)
            self._open()
            pending, self._pending = self._pending, None
            if pending is not None:
                state.load(self.param_groups, self._parts, pending)
                self._loaded = True
            self._match_masters()
            if self._parts:
                with on_device(self._parts[0].device):
                    self._begin()

    def _begin(self) -> None:
        """Queue the step of every part."""
        clip = settings.clip_norm(self.clip_norm)
        try:
            grads = [part.gradients() for part in self._parts]  # all are checked before anything is done
        except _native.Error:
            self._check_replaced()
            raise
        for other in self._others():
            other._overlap.land()
        for part, of_part in zip(self._parts, grads):
            part.bind(self.param_groups, of_part)
        stream = current_stream(self._parts[0].device)
        if clip:
            norm.begin(self._parts, stream, self._process_group)
        group = self.param_groups[0]
        betas, eps = settings.betas(group["betas"], "parameter group 0"), float(group["eps"])
        of_params = {id(m.param): g for part, of_part in zip(self._parts, grads) for m, g in zip(part.held, of_part)}
        with _signals.held():  # Ctrl-C leaves nothing done, or a step that is counted
            for part in self._parts:
                if part.native is not None:
                    part.native.begin_step(part.step + 1, betas, eps, clip, stream)
                part.set_step(part.step + 1)
            self._norm = None
            self._overlap.begin(self._parts, of_params, stream)

    def _check_whole(self) -> None:
        if self._torn is not None:
            raise _native.Error(f"{self._torn}; expected a load that succeeds, or load_state_dict of both, the optimizer's last")

    def _check_replaced(self) -> None:
        model = self._model() if self._model is not None else None
        now = dict(all_names(model)) if model is not None else {}
        for member in (member for part in self._parts for member in part.members):
            if now.get(member.name, member.param) is not member.param:
                raise _native.Error(f"{member.name}: the module now holds another tensor than when the optimizer was made; make a new "
                                    "optimizer after parameters are replaced")

    def _match_masters(self) -> None:
        """Masters that load_state_dict took and that are not of the parameters are made anew. Parameters may be loaded after the
        state: this is called when they are used first."""
        names = [name for part in self._parts for name in state.match_masters(part)] if self._loaded else []
        self._loaded = False
        if names:
            warnings.warn(f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: the loaded master weights do not round to "
                          "the parameters, which another optimizer trained or another file gave; where they differ the master weights "
                          "are made anew from the parameters", stacklevel=5)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One thread at a time, of the process that made the optimizer, with its device as the current one."""
        if os.getpid() != self._pid:
            raise _native.Error("the optimizer was made by another process; a forked child must make its own")
        with self._overlap.lock:
            if not self._parts:
                yield
                return
            with on_device(self._parts[0].device):
                yield

    def wait(self) -> None:
        """Make the current stream wait for a step under way. hide_behind says when it is needed."""
        with self._turn():
            self._overlap.land()

    def synchronize(self) -> None:
        """Block until a step under way is done. Raises what went wrong in it."""
        with self._turn():
            self._overlap.land()
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
        with self._turn():
            natives = [part.native for part in self._parts if part.native is not None]
            if self._norm is None and natives and self._parts[0].step:
                self._norm = natives[0].finish()
            return self._norm or (float("nan"), 1.0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim.Optimizer.zero_grad. Zeroing in place waits (on the current stream) for the step that reads the
        gradients; set_to_none does not."""
        if not set_to_none:
            self.wait()
        super().zero_grad(set_to_none=set_to_none)

    @property
    def info(self) -> List[Info]:
        """Bytes that the native optimizers hold, one for each dtype and kind of sharding. Empty before the first step."""
        return [part.info for part in self._parts if part.info is not None]

    # ---- state ---------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """The state of the last step in torch.optim.AdamW's format, in host memory. Blocks until the step is done."""
        for hook in getattr(self, "_optimizer_state_dict_pre_hooks", {}).values():
            hook(self)
        with self._turn():
            self._check_whole()
            self._overlap.land()
            if self._pending is not None:
                return self._pending
            captured = state.capture(self.param_groups, self._parts)
        for hook in getattr(self, "_optimizer_state_dict_post_hooks", {}).values():
            captured = hook(self, captured) or captured
        return captured

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Take state of stowage.torch.AdamW or torch.optim.AdamW, before or after the parameters are loaded. At the next step master
        weights of bf16 parameters that do not round to the parameters (torch.optim.AdamW carries "master" along and does not train
        it) or are missing are made from the parameters, the former with a warning. Before the first step of a model without memory ("meta") it is
        kept until then."""
        state_dict = dict(state_dict)
        for hook in getattr(self, "_optimizer_load_state_dict_pre_hooks", {}).values():
            state_dict = hook(self, state_dict) or state_dict
        with self._turn():
            self._overlap.land()
            groups = state.load_groups(self.param_groups, state_dict)
            settings.check_groups(groups)
            if any(p.is_meta for group in groups for p in group["params"] if p.requires_grad):
                self._pending = state_dict
            elif state_dict["state"] or self._parts:
                self._open()
                state.load(groups, self._parts, state_dict)
                self._loaded = True
            for group, loaded in zip(self.param_groups, groups):
                group.update(loaded)
            self._torn = None
        for hook in getattr(self, "_optimizer_load_state_dict_post_hooks", {}).values():
            hook(self)

    def adopt_params(self) -> None:
        """Make the master weights of bf16 parameters anew, from parameters that were changed outside the optimizer."""
        with self._turn():
            self._overlap.land()
            self._loaded = False
            for part in self._parts:
                if "master" in part.components:
                    for member in part.members:
                        part.write("master", member, local(member.param))

    def __getstate__(self) -> NoReturn:
        raise TypeError("stowage.torch.AdamW cannot be pickled or copied: its state is native memory. Save state_dict()")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.__getstate__()


def _close(parts: List[Part], overlap: Overlap, saves: List[Saved]) -> None:
    """At the optimizer's end or the interpreter's: waits for work under way before memory goes."""
    for saved in saves:
        saved.close()
    for part in parts:
        part.close()
    overlap.close()
