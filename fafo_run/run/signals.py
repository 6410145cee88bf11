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
def noting() -> Iterator[Callable[[], bool]]:
    """Let signals only be noted, since what goes on must not be torn; yields whether one came.

    Puts all handlers back at the end.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in BOTH}
    for number in BOTH:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def cancelling() -> Iterator[None]:
    """Let SIGTERM cancel the running task, as Ctrl-C does in asyncio: an exception out of a handler would end
    all tasks at once, those that end a server among them. Whatever set it aside inside the block stays.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        if loop.remove_signal_handler(signal.SIGTERM):
            signal.signal(signal.SIGTERM, before)


@contextmanager
def calling(interrupt: Callable[[int], None]) -> Iterator[None]:
    """Call `interrupt` with its number in the running event loop for every signal; ignore them when the block
    has ended.
    """
    loop = asyncio.get_running_loop()
    for number in BOTH:
        loop.add_signal_handler(number, interrupt, number)
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
