# SPDX-License-Identifier: Apache-2.0
"""Reads of parameters that a step under way has not updated yet.

While a step is hidden, a `Waiting` stands in for `_parameters` of each module whose parameters it updates. Every way to a
parameter through its module leads past it: attributes, parameters(), state_dict(), load_state_dict(), to(), copy.deepcopy,
functional calls. The first read waits, then the module has its own dictionary back.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterator

import torch

is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

_FRAMES = 8  # from Module.zero_grad through parameters() to items(): 6 in torch 1.13 and 2.11
_traced: Dict[str, Callable[[], None]] = {}  # by token


def trace(token: str) -> bool:
    """Runs when torch.compile traces its caller, not when the graph runs."""
    noted = _traced.get(token)
    if noted is not None:
        noted()
    return True


trace._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def when_traced(token: str, note: Callable[[], None]) -> None:
    _traced[token] = note


def forget(token: str) -> None:
    _traced.pop(token, None)


class Waiting(dict):  # type: ignore[type-arg]
    """module._parameters; `arrive` is called before a parameter is read, and under torch.compile what `token` stands for."""

    def __init__(self, real: Dict[str, Any], arrive: Callable[[], None], token: str) -> None:
        super().__init__(real)
        self.real = real
        self._arrive = arrive
        self._token = token

    def _enter(self) -> None:
        if is_compiling():
            trace(self._token)
        else:
            self._arrive()

    def __getitem__(self, name: str) -> Any:
        self._enter()
        return dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        self._enter()
        return dict.get(self, name, default)

    def values(self) -> Any:
        self._enter()
        return dict.values(self)

    def items(self) -> Any:
        if is_compiling() or not _drops_gradients():
            self._enter()
        return dict.items(self)

    def __iter__(self) -> Iterator[str]:  # else dict(self) copies past the methods above
        return dict.__iter__(self)

    def copy(self) -> Dict[str, Any]:
        self._enter()
        return self.real.copy()

    def __reduce_ex__(self, protocol: Any) -> Any:  # copies and pickles have the dictionary itself
        self._enter()
        return type(self.real), (), None, None, iter(self.real.items())

    def __setitem__(self, name: str, value: Any) -> None:
        self._enter()
        self.real[name] = value
        dict.__setitem__(self, name, value)

    def __delitem__(self, name: str) -> None:
        self._enter()
        del self.real[name]
        dict.__delitem__(self, name)

    def pop(self, name: str, *default: Any) -> Any:
        self._enter()
        self.real.pop(name, *default)
        return dict.pop(self, name, *default)

    def popitem(self) -> Any:
        name = next(reversed(self))
        return name, self.pop(name)

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *others: Any, **named: Any) -> None:
        for name, value in dict(*others, **named).items():
            self[name] = value

    def clear(self) -> None:
        for name in list(self):
            del self[name]


def _drops_gradients() -> bool:
    """The caller is Module.zero_grad(set_to_none=True), which most loops call right after step() and which reads no memory."""
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame.f_code is torch.nn.Module.zero_grad.__code__:
            return bool(frame.f_locals.get("set_to_none"))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False
