# SPDX-License-Identifier: Apache-2.0
"""Hiding a step behind the next forward: each module waits for its own parameters only.

`Flight` is one step under way: which parameters the compute stream has not waited for, and their gradients. `Overlap`
puts forward pre-hooks on the modules that own parameters. A parameter is hidden only if its module ran, with gradients,
since the last step: a weight that is used past its module (a fused loss that takes `lm_head.weight`, a compiled graph) is waited for
in step() itself.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from .part import Part
from .tensors import clean_name, is_loaded_instance, on_device

is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def is_fsdp(module: Any) -> bool:
    return is_loaded_instance(module, "torch.distributed.fsdp", "FSDPModule")


def is_compiled(module: Any) -> bool:
    return is_loaded_instance(module, "torch._dynamo.eval_frame", "OptimizedModule")


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

    def wait(self, params: Sequence[int], stream: int) -> None:
        """Make a stream wait for parameters. Once the compute stream has waited, their gradients are dropped."""
        if stream != self._stream:
            self.peek(params, stream)
            return
        for number in params:
            entry = self._entries.pop(number, None)
            if entry is not None:
                entry[0].wait(entry[1], stream)
                self._grads.pop(number, None)

    def peek(self, params: Sequence[int], stream: int) -> None:
        """Make another stream wait for parameters, too."""
        for number in params:
            entry = self._entries.get(number)
            if entry is not None:
                entry[0].wait(entry[1], stream)

    def land(self, stream: int) -> None:
        """Make the compute stream, and this one, wait for everything."""
        for part in {id(part): part for part, _ in self._entries.values()}.values():
            for waiting in {stream, self._stream}:
                part.wait_all(waiting)
        self._entries.clear()
        self._grads.clear()

    def __len__(self) -> int:
        return len(self._entries)


class _Owner:
    """A module with a hook and the parameters that it waits for."""

    __slots__ = ("params", "place", "ran", "state")

    def __init__(self) -> None:
        self.params: List[int] = []
        self.place: Optional[int] = None  # in the order of the first forward
        self.ran = False  # with gradients, since the last step
        self.state: Any = None  # FSDP2's, of an FSDPModule


class _Hook:
    """A forward pre-hook. It does not keep the optimizer alive, and copies and pickles of the model have none."""

    def __init__(self, overlap: Optional["Overlap"], owner: Optional[_Owner]) -> None:
        self._overlap = weakref.ref(overlap) if overlap is not None else None
        self._owner = owner

    def __call__(self, module: torch.nn.Module, *_: Any) -> None:
        if is_compiling() or self._overlap is None:
            return
        overlap = self._overlap()
        if overlap is not None and self._owner is not None:
            overlap.arrive(self._owner)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Hook, (None, None)


class _SaveHook(_Hook):
    """A state-dict hook: what is saved are the parameters after the step."""

    def __call__(self, module: torch.nn.Module, *_: Any) -> None:
        overlap = self._overlap() if self._overlap is not None else None
        if overlap is not None:
            overlap.land()


class Overlap:
    """Hooks on the modules of the models given to `add`, and the step under way."""

    def __init__(self, device: Callable[[], torch.device]) -> None:
        self._device = device
        self._owners: List[_Owner] = []
        self._by_state: Dict[int, _Owner] = {}
        self._handles: List[Any] = []
        self._places = 0
        self.names: Dict[int, str] = {}  # of the models' parameters that the optimizer has
        self.flight: Optional[Flight] = None

    def add(self, model: torch.nn.Module, params: Set[int]) -> int:
        """Put hooks on the modules that own parameters of the optimizer; returns how many parameters were found."""
        found = 0
        for name, param in model.named_parameters():
            if id(param) in params:
                found += 1
                self.names.setdefault(id(param), clean_name(name))
        for module, numbers in owners(model, params):
            owner = _Owner()
            owner.params = numbers
            if is_fsdp(module):
                owner.state = module._get_fsdp_state()
                self._by_state[id(owner.state)] = owner
            self._owners.append(owner)
            handle = module.register_forward_pre_hook(_Hook(self, owner))
            module._forward_pre_hooks.move_to_end(handle.id, last=False)  # before FSDP2's own
            self._handles.append(handle)
        self._handles.append(model._register_state_dict_hook(_SaveHook(self, None)))
        return found

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

    def begin(self, parts: Sequence[Part], grads: Dict[int, torch.Tensor], stream: int) -> None:
        """A step was queued: hide what the last forward showed to be safe, make the stream wait for the rest."""
        hidden = {number for owner in self._owners if owner.ran for number in owner.params}
        for owner in self._owners:
            hidden.difference_update(() if owner.ran else owner.params)
            owner.ran = False
        entries = {id(m.param): (part, m.param) for part in parts for m in part.held}
        flight = Flight(entries, grads, stream)
        late = [number for number in entries if number not in hidden]
        if len(late) == len(entries):
            flight.land(stream)
        else:
            flight.wait(late, stream)
            self.flight = flight

    def arrive(self, owner: _Owner) -> None:
        """A module is about to run."""
        owner.ran = owner.ran or torch.is_grad_enabled()
        if owner.place is None:
            owner.place = self._places
            self._places += 1
        flight = self.flight
        if flight is None:
            return
        device = self._device()
        with on_device(device):
            if owner.state is not None:
                self._arrive_fsdp(flight, owner)
            flight.wait(owner.params, current_stream(device))
        if not len(flight):
            self.flight = None

    def _arrive_fsdp(self, flight: Flight, owner: _Owner) -> None:
        """FSDP2 copies shards into the all-gather on a stream of its own, and those of modules that it prefetches."""
        stream = getattr(getattr(owner.state, "_comm_ctx", None), "all_gather_copy_in_stream", None)
        address = getattr(stream, "cuda_stream", 0)
        if not address:
            return
        flight.peek(owner.params, address)
        for state in getattr(owner.state, "_states_to_forward_prefetch", ()):
            later = self._by_state.get(id(state))
            if later is not None:
                flight.peek(later.params, address)

    def land(self) -> None:
        """Make the current stream wait for a step under way."""
        if self.flight is not None:
            device = self._device()
            with on_device(device):
                self.flight.land(current_stream(device))
            self.flight = None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._owners.clear()
        self._by_state.clear()


def owners(model: torch.nn.Module, params: Set[int]) -> Iterator[Tuple[torch.nn.Module, List[int]]]:
    """Modules that wait, and the parameters each waits for.

    Usually a module waits for its own parameters. An FSDPModule waits for all that it gathers. Hooks inside a compiled
    graph would break it: what is compiled by torch.compile(module) waits before the graph, what is compiled by
    module.compile() in the module around it; without one it is not hidden.
    """
    found: Dict[int, Tuple[torch.nn.Module, Dict[int, None]]] = {}

    def visit(module: torch.nn.Module, owner: Optional[torch.nn.Module], fixed: bool, path: Tuple[int, ...]) -> None:
        if id(module) in path:
            return
        if not fixed:
            if is_compiled(module):
                owner, fixed = module, True
            elif getattr(module, "_compiled_call_impl", None) is not None:
                fixed = True
            elif is_fsdp(module):
                owner = module
            elif not is_fsdp(owner):
                owner = module
        if owner is not None:
            own = [id(p) for p in module._parameters.values() if p is not None and id(p) in params]
            if own:
                found.setdefault(id(owner), (owner, {}))[1].update(dict.fromkeys(own))
        for child in module._modules.values():
            if child is not None:
                visit(child, owner, fixed, (*path, id(module)))

    visit(model, None, False, ())
    for module, numbers in found.values():
        yield module, list(numbers)
