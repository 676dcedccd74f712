# SPDX-License-Identifier: Apache-2.0
"""A native optimizer whose updates appear only when they are waited for, as on a GPU: who reads a parameter too early sees the
value before the step, and who changes a gradient too early is found."""

import ctypes
import unittest.mock
from typing import Any, List, Sequence

from stowage import _native
from stowage._optimizer import Optimizer
from stowage.torch import part

BYTES = {"F32": 4, "BF16": 2}


class Lazy(Optimizer):
    def __init__(self, plan: Any, tensors: Sequence[Any], *more: Any, **named: Any) -> None:
        super().__init__(plan, tensors, *more, **named)
        self.sizes = [t.elements * BYTES[t.dtype] for t in tensors]
        self.params = [t.address for t in tensors]
        self.grads: List[int] = []
        self.late: dict = {}  # tensor -> its new bytes, and those of the gradient that is still read
        self.waits = 0

    def bind_params(self, addresses: Sequence[int]) -> None:
        self.show()
        super().bind_params(addresses)
        self.params = [new or old for new, old in zip(addresses, self.params)]

    def bind_gradients(self, addresses: Sequence[int]) -> None:
        self.show()
        super().bind_gradients(addresses)
        self.grads = list(addresses)

    def begin_step(self, *arguments: Any) -> None:
        self.show()
        old = [ctypes.string_at(a, n) for a, n in zip(self.params, self.sizes)]
        grads = [ctypes.string_at(a, n) for a, n in zip(self.grads, self.sizes)]
        super().begin_step(*arguments)
        super().finish()
        for i, (address, size) in enumerate(zip(self.params, self.sizes)):
            self.late[i] = ctypes.string_at(address, size), grads[i]
            ctypes.memmove(address, old[i], size)

    def wait(self, tensor: int, stream: int) -> None:
        self.waits += 1
        super().wait(tensor, stream)
        self.show(None if tensor == _native.NONE else [tensor])

    def finish(self) -> Any:
        self.show()
        return super().finish()

    def read_state(self, *arguments: Any) -> None:
        self.show()
        super().read_state(*arguments)

    def write_state(self, *arguments: Any) -> None:
        self.show()
        super().write_state(*arguments)

    def show(self, tensors: Any = None) -> None:
        """The update of tensors (None: all) takes place."""
        for i in list(self.late) if tensors is None else tensors:
            if i in self.late:
                new, grad = self.late.pop(i)
                if ctypes.string_at(self.grads[i], len(grad)) != grad:
                    raise AssertionError(f"tensor {i}: its gradient changed before the step read it")
                ctypes.memmove(self.params[i], new, len(new))


def lazily() -> Any:
    """Patches the package: optimizers opened meanwhile are lazy."""
    return unittest.mock.patch.object(part, "Optimizer", Lazy)
