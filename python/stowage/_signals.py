# SPDX-License-Identifier: Apache-2.0
"""Signals held back while work and its bookkeeping become one unit."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Callable, Dict, Iterator, List, Tuple

_HELD = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2]


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Python's handlers of these signals, which may raise, run at the end of the block. Only the main thread runs handlers; on
    others this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Dict[int, Callable[[int, Any], Any]] = {}
    arrived: List[Tuple[int, Any]] = []
    holding = True

    def keep(number: int, frame: Any) -> None:
        if holding:
            arrived.append((number, frame))
        else:  # the block is over, its handler not yet back
            before[number](number, frame)
    try:
        for number in _HELD:
            handler = signal.getsignal(number)
            if callable(handler):  # neither the default nor one of C
                before[number] = handler
                signal.signal(number, keep)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        holding = False
        with contextlib.ExitStack() as all_of_them:  # one that raises does not keep others from running
            for number, frame in reversed(arrived):
                all_of_them.callback(before[number], number, frame)
