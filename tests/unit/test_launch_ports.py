"""Which ports are free, and whether it is ours that listens at one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fafo_run.engines import launch_ports
from fafo_run.engines.launch_ports import free_ports, others_listen


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_who_listens(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        port = sock.getsockname()[1]
        assert not others_listen(port, []), "bound, and nobody listens"
        sock.listen()
        assert others_listen(port, [])
        assert others_listen(port, [os.getppid()])
        assert not others_listen(port, [os.getppid(), os.getpid()])
    assert not others_listen(port, [])


def test_what_is_hidden_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(_: Path) -> Path:
        raise PermissionError

    with socket.create_server(("127.0.0.1", 0)) as sock:
        monkeypatch.setattr(Path, "readlink", hidden)
        assert not others_listen(sock.getsockname()[1], [os.getpid()])


def test_what_is_taken_or_not_wanted_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = sock.getsockname()[1]
        (first,) = free_ports("127.0.0.1", 1, taken)
        assert first > taken
        assert free_ports("127.0.0.1", 1, taken, without=[first])[0] > first


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    (free,) = free_ports("127.0.0.1", 1, None)
    monkeypatch.setattr(launch_ports, "_LAST_PORT", free)
    with pytest.raises(OSError, match=f"no 2 ports are free from {free} on"):
        free_ports("127.0.0.1", 2, free)
