"""Ports of this machine: which are free, and who listens at one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_LAST_PORT = 65535
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_ADDRESS, _STATE, _INODE = 1, 3, 9
"""Columns of these tables."""


def others_listen(port: int, mine: Iterable[int]) -> bool:
    """Return whether somebody listens at a port, and none of these processes does.

    False, too, where that can't be seen: nobody listens on this side of a container's wall, or what a process
    has open is hidden.
    """
    listening = _listening(port)
    if not listening:
        return False
    try:
        return listening.isdisjoint(link for pid in mine for link in _open_files(pid))
    except PermissionError:
        return False


def _listening(port: int) -> set[str]:
    """Return the sockets that listen at a port, at any address, as links of /proc name them."""
    found = set()
    for table in _TABLES:
        with suppress(FileNotFoundError):  # a machine without IPv6
            rows = [line.split() for line in Path(table).read_text("ascii").splitlines()[1:]]
            found |= {
                f"socket:[{row[_INODE]}]"
                for row in rows
                if row[_STATE] == _LISTEN and int(row[_ADDRESS].rpartition(":")[2], 16) == port
            }
    return found


def _open_files(pid: int) -> list[str]:
    """Return what a process has open; nothing of one that has ended. Raises `PermissionError`."""
    links = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(str(entry.readlink()))
    return links


def free_ports(host: str, count: int, first: int | None, *, without: Sequence[int] = ()) -> list[int]:
    """Return ports at which nobody listens: from `first` on, or any.

    Somebody else may take one before the server does; then the server ends, and says so.
    Raises `OSError` when there aren't enough, or `host` is no address of this machine.
    """
    found: list[int] = []
    held: list[socket.socket] = []
    try:
        port = first or 0
        while len(found) < count:
            if port > _LAST_PORT:
                raise OSError(f"no {count} ports are free from {first} on")
            taken = _bound(host, port)
            if taken is not None:
                held.append(taken)
                number: int = taken.getsockname()[1]
                found += [number] if number not in without else []
            port += 1 if first else 0
    finally:
        for sock in held:
            sock.close()
    return found


def _bound(host: str, port: int) -> socket.socket | None:
    """Return a socket bound as a server would bind it, None when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        # Two sockets may be bound to one port, as long as none listens.
        sock.listen(1)
    except OSError as error:
        sock.close()
        if port and error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    return sock
