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
