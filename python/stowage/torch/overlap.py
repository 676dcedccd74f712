# SPDX-License-Identifier: Apache-2.0
"""Hiding a step behind the next forward: each module waits for its own parameters only.

`Flight` is one step under way: which parameters the compute stream has not waited for, and their gradients. `Overlap` makes
everything wait that reads parameters through their modules: forward pre-hooks, module._parameters (waiting.py), FSDP2's
unshard. The end of the model's forward waits for what it did not use.

A parameter is hidden only if its module ran eagerly, or as the whole of a compiled graph, with gradients since the last step,
and if nothing was seen that may read it past these. step() waits for the others.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from .part import Part
from .tensors import clean_name, is_loaded_instance, on_device
from .waiting import Waiting, forget, is_compiling, trace, when_traced

_numbers = itertools.count()


def is_fsdp(module: Any) -> bool:
    return is_loaded_instance(module, "torch.distributed.fsdp", "FSDPModule")


def is_fsdp1(module: Any) -> bool:
    return is_loaded_instance(module, "torch.distributed.fsdp", "FullyShardedDataParallel")


def is_compiled(module: Any) -> bool:
    """By torch.compile(module) or module.compile()."""
    return (is_loaded_instance(module, "torch._dynamo.eval_frame", "OptimizedModule")
            or getattr(module, "_compiled_call_impl", None) is not None)


def current_stream(device: torch.device) -> int:
    """The cudaStream_t on which torch queues work now; 0 without CUDA, where all work is done when a call returns."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


class Flight:
    """One step whose new parameters the compute stream has not all waited for. Gradients live here until it has: then
    their memory may be reused, since torch reuses it in the order of that stream."""

    def __init__(self, entries: Dict[int, Tuple[Part, torch.Tensor]], grads: Dict[int, torch.Tensor], stream: int) -> None:
        self._entries = entries  # id(parameter) -> its part and itself
        self._grads = grads
        self._stream = stream  # the compute stream: the one on which step() was called
        self._waited: Set[Tuple[int, int]] = set()  # parameters and other streams

    def wait(self, params: Iterable[int], stream: int) -> None:
        """Make a stream wait for parameters. Once the compute stream has waited, their gradients are dropped."""
        for number in params:
            entry = self._entries.get(number)
            if entry is None or (number, stream) in self._waited:
                continue
            entry[0].wait(entry[1], stream)
            if stream == self._stream:
                self._entries.pop(number, None)
                self._grads.pop(number, None)
            else:
                self._waited.add((number, stream))

    def land(self, stream: int) -> None:
        """Make the compute stream, and this one, wait for everything."""
        for waiting in {stream, self._stream}:
            self.peek(waiting)
        self._entries.clear()
        self._grads.clear()

    def peek(self, stream: int) -> None:
        """Make a stream wait for everything."""
        for part in {id(part): part for part, _ in self._entries.values()}.values():
            part.wait_all(stream)

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class _Owner:
    """A module's parameters, and the modules that have them: itself, or those that it gathers or has in its graph. Nothing here
    keeps modules alive: they may hold the optimizer."""

    def __init__(self, overlap: "Overlap", module: torch.nn.Module) -> None:
        self.overlap = weakref.ref(overlap)
        self.module = weakref.ref(module)
        self.params: Dict[int, None] = {}
        self.having: Dict["weakref.ref[torch.nn.Module]", None] = {}
        self.place: Optional[int] = None  # in the order of the first forward
        self.ran = False  # with gradients, since the last step
        self.traced = False  # a compiled graph has it, and no hook runs before that graph
        self.token = str(next(_numbers))  # a number would be made symbolic by torch.compile

    @property
    def modules(self) -> List[torch.nn.Module]:
        return [module for module in (about() for about in self.having) if module is not None]


class _Hook:
    """Called before a module runs. It does not keep the optimizer alive, and copies and pickles of the model have none."""

    def __init__(self, owner: Optional[_Owner] = None) -> None:
        self._owner = owner
        self._token = owner.token if owner is not None else ""

    def __call__(self, *_: Any) -> None:
        if is_compiling():
            trace(self._token)
        elif self._owner is not None:
            overlap = self._owner.overlap()
            if overlap is not None:
                overlap.arrive(self._owner)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Hook, ()


class _EndHook:
    """Called after the model's forward."""

    def __init__(self, overlap: Optional["Overlap"] = None) -> None:
        self._overlap = weakref.ref(overlap) if overlap is not None else None

    def __call__(self, *_: Any) -> None:
        overlap = self._overlap() if self._overlap is not None and not is_compiling() else None
        if overlap is not None:
            overlap.land()

    def __reduce__(self) -> Tuple[Any, ...]:
        return _EndHook, ()


class _CompiledCall:
    """What module.compile() made, after a hook."""

    def __init__(self, hook: _Hook, call: Callable[..., Any]) -> None:
        self._hook = hook
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._hook()
        return self.call(*args, **kwargs)


class _Unshard:
    """FSDPParamGroup.unshard of FSDP2, for explicit calls, prefetches and forwards: the all-gather copies the shards."""

    def __init__(self, overlap: "Overlap", group: Any) -> None:
        self._overlap = weakref.ref(overlap)
        self._group = group

    def __call__(self, async_op: bool = False) -> Any:
        overlap = self._overlap()
        if overlap is not None and not is_compiling():
            overlap.gather(self._group, async_op)
        return type(self._group).unshard(self._group, async_op)


class Overlap:
    """Hooks on the modules of the model given to `add`, and the step under way."""

    def __init__(self, device: Callable[[], torch.device]) -> None:
        self.lock = threading.RLock()  # a native optimizer belongs to one thread at a time
        self._pid = os.getpid()
        self._device = device
        self._owners: List[_Owner] = []
        self._undo: List[Callable[[], None]] = []
        self._places = 0
        self._elsewhere: Optional[Set[int]] = None  # parameters that modules outside the model have, too
        self._tables: List[Tuple["weakref.ref[torch.nn.Module]", Waiting]] = []
        self.names: Dict[int, str] = {}  # of the model's parameters that the optimizer has
        self.flight: Optional[Flight] = None

    # ---- hooks ---------------------------------------------------------------------------------

    def add(self, model: torch.nn.Module, params: Set[int]) -> int:
        """Put hooks on the modules that have parameters of the optimizer; returns how many parameters were found."""
        named = [(name, param) for name, param in model.named_parameters() if id(param) in params]
        for name, param in named:
            self.names.setdefault(id(param), clean_name(name))
        self._owners = owners(self, model, params)
        for owner in self._owners:
            self._hook(owner, owner.module())
        for module in model.modules():
            group = fsdp_group(module) if is_fsdp(module) else None
            if group is not None:
                group.unshard = _Unshard(self, group)
                self._undo.append(_without(group, "unshard"))
        self._undo.append(model.register_forward_hook(_EndHook(self)).remove)
        return len(named)

    def _hook(self, owner: _Owner, module: Any) -> None:
        hook = _Hook(owner)
        when_traced(owner.token, _weakly(owner))
        self._undo.append(lambda: forget(owner.token))
        call = getattr(module, "_compiled_call_impl", None)
        if call is not None:  # a hook of the module itself would be in the graph
            module._compiled_call_impl = _CompiledCall(hook, call)
            self._undo.append(_with_call(module))
            return
        handle = module.register_forward_pre_hook(hook)
        module._forward_pre_hooks.move_to_end(handle.id, last=False)  # before FSDP2's own
        self._undo.append(handle.remove)

    def remove(self) -> None:
        self.land()
        self.close()

    def close(self) -> None:
        """Without a wait: the native optimizers are closed, or nothing is under way."""
        self._end()
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._owners.clear()
        self._elsewhere = None

    def order(self) -> Dict[int, int]:
        """Parameters by the order in which a forward waits for them: that of the first forward if there was one, else that
        of the modules. FSDP2's root comes first with all that it gathers, its last layers too."""
        known = [owner for owner in self._owners if owner.place is not None]
        known.sort(key=lambda owner: owner.place or 0)
        order: Dict[int, int] = {}
        for owner in known + [owner for owner in self._owners if owner.place is None]:
            for number in owner.params:
                order.setdefault(number, len(order))
        return order

    # ---- a step under way ----------------------------------------------------------------------

    def begin(self, parts: Sequence[Part], grads: Dict[int, torch.Tensor], stream: int) -> None:
        """A step was queued: hide what the last forward showed to be safe, make the stream wait for the rest."""
        hidden = self._hideable()
        for owner in self._owners:
            owner.ran = False
        flight = Flight({id(m.param): (part, m.param) for part in parts for m in part.held}, grads, stream)
        self.flight = flight
        late = [m for part in parts for m in part.held if id(m.param) not in hidden]
        if len(late) == len(flight):
            self.land()
            return
        flight.wait([id(m.param) for m in late], stream)
        for owner in self._owners:
            for module in owner.modules:
                self._guard(owner, module)

    def _hideable(self) -> Set[int]:
        """Parameters all of whose modules ran since the last step, out of nobody else's reach."""
        safe = {number for owner in self._owners if owner.ran for number in owner.params}
        for owner in self._owners:
            if not owner.ran or owner.traced:
                safe.difference_update(owner.params)
        if safe and self._elsewhere is None:
            self._elsewhere = elsewhere({n for owner in self._owners for n in owner.params},
                                        {id(module) for owner in self._owners for module in owner.modules})
        return safe - (self._elsewhere or set())

    def _guard(self, owner: _Owner, module: torch.nn.Module) -> None:
        real = module._parameters
        if isinstance(real, Waiting) or not any(id(p) in self.flight for p in real.values()):  # type: ignore[operator]
            return
        overlap, about = weakref.ref(self), weakref.ref(module)

        def arrive() -> None:
            this, the_module = overlap(), about()
            if this is not None and the_module is not None:
                this._wait([id(p) for p in real.values()], [the_module])
        table = Waiting(real, arrive, owner.token)
        module.__dict__["_parameters"] = table
        self._tables.append((about, table))

    def arrive(self, owner: _Owner) -> None:
        """A module is about to run."""
        owner.ran = owner.ran or torch.is_grad_enabled()
        if owner.place is None:
            owner.place = self._places
            self._places += 1
        self._wait(owner.params, owner.modules)

    def _wait(self, params: Iterable[int], modules: Iterable[torch.nn.Module]) -> None:
        """Make the current stream wait for parameters of modules."""
        if self.flight is None or self._forked():
            return
        device = self._device()
        with self.lock, on_device(device):
            flight = self.flight
            if flight is None:
                return
            flight.wait(params, current_stream(device))
            for module in modules:
                table = module.__dict__["_parameters"]
                if isinstance(table, Waiting) and not any(id(p) in flight for p in table.real.values()):
                    module.__dict__["_parameters"] = table.real
            if not len(flight):
                self._end()

    def _forked(self) -> bool:
        """In a forked child nothing is under way: on the host the step is done, and CUDA does not work there."""
        if os.getpid() == self._pid:
            return False
        self._end()
        return True

    def gather(self, group: Any, async_op: bool) -> None:
        """FSDP2 is about to copy a group's shards into an all-gather."""
        flight = self.flight
        if flight is None or self._forked():
            return
        params = [id(p.sharded_param) for p in group.fsdp_params]
        # in a forward on a stream of FSDP2's own, and before the module that it is for; else on the current one
        forward = not async_op and getattr(group._training_state, "name", "") in ("FORWARD", "PRE_BACKWARD")
        stream = getattr(getattr(group.comm_ctx, "all_gather_copy_in_stream", None), "cuda_stream", 0) if forward else 0
        if stream:
            with self.lock, on_device(self._device()):
                flight.wait(params, stream)
        else:
            self._wait(params, [module for owner in self._owners for module in owner.modules])

    def trace(self, owner: _Owner) -> None:
        """torch.compile has put a module into a graph that no hook runs before: from now on step() waits for it. Tables stay
        as they are until the graph is made, which is checked against them."""
        owner.traced = True
        if self.flight is not None and not self._forked():
            device = self._device()
            with self.lock, on_device(device):
                self.flight.peek(current_stream(device))

    def land(self) -> None:
        """Make the current stream wait for a step under way."""
        if self.flight is None or self._forked():
            return
        device = self._device()
        with self.lock, on_device(device):
            if self.flight is not None:
                self.flight.land(current_stream(device))
            self._end()

    def _end(self) -> None:
        """Nothing is under way: all modules have their own _parameters back."""
        self.flight = None
        for about, table in self._tables:
            module = about()
            if module is not None and module.__dict__["_parameters"] is table:
                module.__dict__["_parameters"] = table.real
        self._tables.clear()


def _without(group: Any, name: str) -> Callable[[], None]:
    about = weakref.ref(group)
    return lambda: getattr(about(), "__dict__", {}).pop(name, None)


def _with_call(module: torch.nn.Module) -> Callable[[], None]:
    """Gives a module back what module.compile() made."""
    about = weakref.ref(module)

    def undo() -> None:
        the_module: Any = about()
        made = getattr(the_module, "_compiled_call_impl", None)
        if isinstance(made, _CompiledCall):
            the_module._compiled_call_impl = made.call
    return undo


def _weakly(owner: _Owner) -> Callable[[], None]:
    reference = weakref.ref(owner)

    def note() -> None:
        this = reference()
        overlap = this.overlap() if this is not None else None
        if this is not None and overlap is not None:
            overlap.trace(this)
    return note


def fsdp_group(module: Any) -> Any:
    """FSDP2's FSDPParamGroup of a module; None if it gathers nothing itself."""
    return getattr(module._get_fsdp_state(), "_fsdp_param_group", None)


def owners(overlap: Overlap, model: torch.nn.Module, params: Set[int]) -> List[_Owner]:
    """Modules that wait, with what each waits for.

    Usually a module waits for its own parameters. An FSDPModule waits for all that it gathers, a compiled module for all that
    its graph has. FSDP1's parameters are copied on streams that no hook sees: they are not hidden, nor are script modules'.
    """
    found: Dict[int, _Owner] = {}

    def visit(module: torch.nn.Module, above: Optional[torch.nn.Module], compiled: bool, path: Tuple[int, ...]) -> None:
        if id(module) in path or is_fsdp1(module):
            return
        if is_fsdp(module) and not hasattr(module._get_fsdp_state(), "_fsdp_param_group"):
            return  # of a torch that keeps it elsewhere
        if not compiled and (above is None or is_compiled(module) or is_fsdp(module) or not is_fsdp(above)):
            above, compiled = module, is_compiled(module)
        own = [id(p) for p in module._parameters.values() if id(p) in params]
        if own and type(module._parameters) in (dict, OrderedDict):
            assert above is not None
            owner = found.setdefault(id(above), _Owner(overlap, above))
            owner.params.update(dict.fromkeys(own))
            owner.having[weakref.ref(module)] = None
        for child in module._modules.values():
            if child is not None:
                visit(child, above, compiled, (*path, id(module)))

    visit(model, None, False, ())
    return list(found.values())


def elsewhere(params: Set[int], known: Set[int]) -> Set[int]:
    """Parameters that a module outside `known` has, too."""
    shared: Set[int] = set()
    for found in gc.get_objects():
        if issubclass(type(found), torch.nn.Module) and id(found) not in known:
            shared.update(params.intersection(id(p) for p in tuple(found.__dict__.get("_parameters", {}).values())))
    return shared
