"""What SIGINT and SIGTERM do to a run: end it before it works, drain it while it works, nothing while it
closes.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BOTH = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminating() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, and put all handlers back at the end."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def defer() -> Callable[[], None]:
    """Hold signals back until the function that is returned is called; it raises what came meanwhile.

    So that what is opened in between is surely in the hands of whoever must close it.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in BOTH}
    for number in BOTH:
        signal.signal(number, lambda number, _: came.append(number))

    def release() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            raise KeyboardInterrupt

    return release


@contextmanager
def calling(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` in the running event loop for every signal; ignore them when the block has ended."""
    loop = asyncio.get_running_loop()
    for number in BOTH:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in BOTH:
            loop.remove_signal_handler(number)
        ignore()


def ignore() -> None:
    """Ignore interrupts from here on: what is left takes moments, and must not be torn."""
    for number in BOTH:
        signal.signal(number, signal.SIG_IGN)
