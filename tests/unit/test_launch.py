"""Servers that fafo starts: they get ready, are started again when they die, and leave nothing behind."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from fafo_build.errors import EngineError
from fafo_build.project.declaration import Engine, Launch
from fafo_run.engines import launch, launch_server
from fafo_run.engines.launch import Servers
from fafo_run.engines.launch_guard import stat
from fafo_run.engines.launch_recipe import Recipe, recipe, visible_gpus
from tests.helpers import REPO, until
from tests.launch_kit import COMMAND, Starts, alive, starts_in


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait shortly where a real server would be waited for longer."""
    monkeypatch.setattr(launch_server, "POLL", 0.02)
    monkeypatch.setattr(launch_server, "FIRST", 0.05)


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    with starts_in(tmp_path) as read:
        yield read


def how_to(folder: Path, *args: str, replicas: int = 1, **said: Any) -> Recipe:
    spec = Launch(
        replicas=replicas, gpus=0, command=COMMAND, args=args, env={"STARTS": str(folder / "starts")}
    )
    return recipe(
        Engine("default", "sglang", launch=evolve(spec, **said)),
        folder / "model",
        root=folder,
        trust_remote_code=False,
    )


class Told(list[str]):
    """Lines for people."""

    def __call__(self, line: str) -> None:
        self.append(line)


def servers_of(made: Recipe, told: Told | None = None, *, grace: float = 5.0) -> Servers:
    return Servers(made, made.root / "logs", told if told is not None else Told(), grace=grace)


def servers_log(folder: Path, url: str) -> Path:
    return folder / "logs" / f"{url.rpartition(':')[2]}.log"


async def becomes(is_so: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(until, lambda: bool(is_so()), what)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))  # type: ignore[arg-type]

    return run


@in_loop
async def test_starts_waits_and_stops(tmp_path: Path, starts: Starts) -> None:
    progress = Told()
    servers = servers_of(how_to(tmp_path, "--flag", "a b", replicas=2))
    urls = await servers.start(progress)
    assert len(set(urls)) == 2
    assert len(starts()) == 2
    for start in starts():
        assert alive(start["pid"])
        port = start["argv"][start["argv"].index("--port") + 1]
        assert f"http://127.0.0.1:{port}" in urls
        assert start["argv"][:2] == ["--model-path", str(tmp_path / "model")]
        assert "--enable-metrics" in start["argv"]
        assert start["argv"][-2:] == ["--flag", "a b"]
        log = (tmp_path / "logs" / f"{port}.log").read_text()
        assert ": starts " in log
        assert f"listening at {port}" in log
    assert progress[0].startswith("starting 2 servers (ports ")
    assert progress[0].endswith("; logs in logs")
    assert sorted(line.split(" is ready")[0] for line in progress[1:]) == sorted(urls)
    await servers.stop()
    assert not any(alive(start["pid"]) for start in starts())
    await servers.stop()
    assert "ended by fafo" in (tmp_path / "logs" / f"{port}.log").read_text()


@in_loop
async def test_says_how_many_load(tmp_path: Path, starts: Starts) -> None:
    waits = Told()
    servers = servers_of(how_to(tmp_path, replicas=2))
    await servers.start(Told(), waits=waits)
    await servers.stop()
    assert waits == ["waiting for 2 of 2 servers to load", "waiting for 1 of 2 servers to load", ""]


@in_loop
async def test_stops_one_that_hears_no_sigterm_with_a_child_that_left(tmp_path: Path, starts: Starts) -> None:
    servers = servers_of(how_to(tmp_path, "--stubborn", "--family"), grace=0.1)
    await servers.start(Told())
    await becomes(lambda: len(starts()) == 2, "the grandchild has said who it is")
    (server,) = (start["pid"] for start in starts() if start["who"] == "server")
    (far,) = (start["pid"] for start in starts() if start["who"] == "grandchild")
    assert os.getsid(far) not in (os.getsid(0), os.getsid(server))
    await servers.stop()
    assert not alive(far)
    assert not alive(server)


@in_loop
async def test_one_that_dies_is_started_again_and_what_it_left_is_ended(
    tmp_path: Path, starts: Starts
) -> None:
    told = Told()
    servers = servers_of(how_to(tmp_path, "--family"), told)
    (url,) = await servers.start(Told())
    await becomes(lambda: len(starts()) == 2, "the grandchild has said who it is")
    before = {start["who"]: start["pid"] for start in starts()}
    os.kill(before["server"], signal.SIGKILL)
    await becomes(lambda: len(starts()) == 4, "both are there again")
    assert not alive(before["grandchild"])
    port = url.rpartition(":")[2]
    assert told == [
        f"{url} was killed by SIGKILL, and is started again in 0.05 s; its log: logs/{port}.log",
    ]
    ports = {start["argv"][start["argv"].index("--port") + 1] for start in starts()}
    assert ports == {port}
    # The next time it takes twice as long.
    again = [start["pid"] for start in starts() if start["who"] == "server"][-1]
    os.kill(again, signal.SIGKILL)
    await becomes(lambda: len(told) == 2, "its second death is told")
    assert "started again in 0.1 s" in told[1]
    await servers.stop()


@in_loop
async def test_one_that_hangs_when_it_is_started_again_is_killed_and_started_once_more(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each that got ready has lived for long.
    monkeypatch.setattr(launch_server, "SETTLED", 0.0)
    told, once = Told(), tmp_path / "once"
    servers = servers_of(how_to(tmp_path, "--once", str(once), start_within=3.0), told)
    (url,) = await servers.start(Told())
    os.kill(starts()[0]["pid"], signal.SIGKILL)
    await becomes(lambda: len(starts()) == 3, "the second one is given up")
    assert not alive(starts()[1]["pid"])
    assert told[0].startswith(f"{url} was killed by SIGKILL, and is started again in 0.05 s; its log: ")
    assert told[1] == f"{url} isn't ready 3 s after it was started again, and is killed"
    assert told[2].startswith(f"{url} was killed by SIGKILL, and is started again in 0.1 s; its log: ")
    assert "isn't ready after 3 s, and is killed\n" in servers_log(tmp_path, url).read_text()
    once.unlink()
    await becomes(lambda: once.exists(), "another one loads")
    await becomes(lambda: "listening" in servers_log(tmp_path, url).read_text()[-40:], "and listens")
    await servers.stop()


@in_loop
async def test_one_that_hangs_under_a_new_guard_is_killed_and_started_once_more(
    tmp_path: Path, starts: Starts
) -> None:
    servers = servers_of(how_to(tmp_path, "--once", str(tmp_path / "once"), start_within=3.0), told := Told())
    (url,) = await servers.start(Told())
    found = stat(starts()[0]["pid"])
    assert found is not None
    os.kill(found.parent, signal.SIGKILL)
    await becomes(lambda: len(starts()) == 3, "the second one is given up")
    assert told[1] == f"{url} isn't ready 3 s after it was started again, and is killed"
    await servers.stop()


@in_loop
async def test_one_that_is_ready_again_is_not_given_up(tmp_path: Path, starts: Starts) -> None:
    servers = servers_of(how_to(tmp_path, start_within=3.0), told := Told())
    await servers.start(Told())
    os.kill(starts()[0]["pid"], signal.SIGKILL)
    await becomes(lambda: len(starts()) == 2, "it is there again")
    await asyncio.sleep(4.0)
    assert len(told) == 1 and alive(starts()[1]["pid"])
    await servers.stop()


@in_loop
async def test_released_it_is_given_up_all_the_same(tmp_path: Path, starts: Starts) -> None:
    guards: list[int] = []
    servers = servers_of(how_to(tmp_path, "--once", str(tmp_path / "once"), start_within=3.0))
    await servers.start(Told(), begun=lambda server: guards.append(server.guard))
    await servers.release()
    os.kill(starts()[0]["pid"], signal.SIGKILL)
    await becomes(lambda: len(starts()) == 3, "the second one is given up, with nobody who reads of it")
    assert not alive(starts()[1]["pid"])
    os.kill(guards[0], signal.SIGTERM)
    await becomes(lambda: not alive(starts()[2]["pid"]), "SIGTERM to the guard ended it")
    os.waitpid(guards[0], 0)


@in_loop
async def test_one_whose_guard_is_killed_dies_with_it_and_gets_another(
    tmp_path: Path, starts: Starts
) -> None:
    told = Told()
    servers = servers_of(how_to(tmp_path, "--family", "--stubborn"), told, grace=0.1)
    (url,) = await servers.start(Told())
    await becomes(lambda: len(starts()) == 2, "the grandchild has said who it is")
    before = starts()
    found = stat(before[0]["pid"])
    assert found is not None
    os.kill(found.parent, signal.SIGKILL)
    await becomes(lambda: len(starts()) == 4, "both are there again")
    assert not any(alive(start["pid"]) for start in before)
    assert told == [f"{url} has lost its guard, and is ended and started again"]
    os.kill(starts()[2]["pid"], signal.SIGKILL)
    await becomes(lambda: len(starts()) == 6, "the new guard knows that the server was ready once")
    await servers.stop()


@in_loop
async def test_one_that_dies_at_the_start_ends_all_and_its_last_words_are_shown(
    tmp_path: Path, starts: Starts
) -> None:
    made = how_to(tmp_path, "--fail", "x" * 1000 + "\nCUDA out of memory", replicas=2)
    with pytest.raises(EngineError) as caught:
        await servers_of(made).start(Told())
    said = caught.value.render()
    assert " ended with exit code 3 before it was ready; the end of logs/" in said
    assert "…\n    CUDA out of memory\n  cure: mend what its log says" in said
    assert max(map(len, said.splitlines())) < 400
    assert said.startswith("fafo.toml: engine.launch: the server at http://127.0.0.1:")


@in_loop
async def test_what_an_earlier_start_said_is_not_shown(tmp_path: Path, starts: Starts) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    for words in ("the first", "the second"):
        with pytest.raises(EngineError) as caught:
            await servers_of(how_to(tmp_path, "--fail", words, port=port)).start(Told())
    log = tmp_path / "logs" / f"{port}.log"
    assert "the first\n" in log.read_text()
    assert "the first\n" not in caught.value.render()


@in_loop
async def test_a_program_that_is_not_there(tmp_path: Path, starts: Starts) -> None:
    made = how_to(tmp_path, command=("/nonexistent/python",))
    with pytest.raises(EngineError) as caught:
        await servers_of(made).start(Told())
    assert "ended with exit code 127 before it was ready" in caught.value.render()
    assert "/nonexistent/python can't be started: No such file or directory" in caught.value.render()


@in_loop
async def test_one_that_is_never_ready(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "PROGRESS", 0.2)
    progress = Told()
    with pytest.raises(EngineError) as caught:
        await servers_of(how_to(tmp_path, "--mute", start_within=1.5)).start(progress)
    said = caught.value.render()
    assert "isn't ready after 1.5 s; the end of logs/" in said
    assert "listening at" in said
    assert any(": not ready after " in line and "listening at" in line for line in progress)
    assert not any(alive(start["pid"]) for start in starts())


@in_loop
async def test_cancelled_while_it_starts_it_leaves_nothing(tmp_path: Path, starts: Starts) -> None:
    starting = asyncio.create_task(servers_of(how_to(tmp_path, "--mute", "--family")).start(Told()))
    await becomes(lambda: len(starts()) == 2, "both processes are there")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(alive(start["pid"]) for start in starts())


@in_loop
async def test_a_port_that_is_taken_is_passed_over(tmp_path: Path, starts: Starts) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        port = sock.getsockname()[1]
        servers = servers_of(how_to(tmp_path, port=port))
        (url,) = await servers.start(Told())
        await servers.stop()
    assert int(url.rpartition(":")[2]) > port


@in_loop
async def test_one_that_finds_its_port_taken_gets_another(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        taken = sock.getsockname()[1]
        right = launch.free_ports
        lies = iter([[taken]])
        monkeypatch.setattr(launch, "free_ports", lambda *a, **k: next(lies, None) or right(*a, **k))
        servers = servers_of(how_to(tmp_path))
        (url,) = await servers.start(Told())
        assert url != f"http://127.0.0.1:{taken}"
        assert len(starts()) == 2
        await servers.stop()


def below(folder: Path) -> dict[str, Any]:
    """Settings by which a stand-in is started as SGLang is, and not by a command of its own."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {" ".join(COMMAND)} "$@"\n')
    python.chmod(0o755)
    return {"command": (), "python": str(python)}


@in_loop
async def test_another_server_at_its_port_is_not_taken_for_it(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        right = launch.free_ports
        lies = iter([[other.server_port]])
        monkeypatch.setattr(launch, "free_ports", lambda *a, **k: next(lies, None) or right(*a, **k))
        servers = servers_of(how_to(tmp_path, "--late", "0.5", **below(tmp_path)))
        (url,) = await servers.start(Told())
        await servers.stop()
        other.shutdown()
        thread.join()
    assert url != f"http://127.0.0.1:{other.server_port}"
    assert len(starts()) == 2


@in_loop
async def test_released_it_goes_on_and_is_started_again(tmp_path: Path, starts: Starts) -> None:
    guards: list[int] = []
    servers = servers_of(how_to(tmp_path))
    await servers.start(Told(), begun=lambda server: guards.append(server.guard))
    await servers.release()
    os.kill(starts()[0]["pid"], signal.SIGKILL)
    await becomes(lambda: len(starts()) == 2, "it is there again, with nobody who reads of it")
    assert alive(starts()[1]["pid"])
    os.kill(guards[0], signal.SIGTERM)
    await becomes(lambda: not alive(starts()[1]["pid"]), "SIGTERM to the guard ended it")
    os.waitpid(guards[0], 0)


OWNER = """
import asyncio, pathlib, sys
from fafo_build.project.declaration import Engine, Launch
from fafo_run.engines.launch import Servers
from fafo_run.engines.launch_recipe import recipe
folder = pathlib.Path(sys.argv[1])
launch = Launch(replicas=2, gpus=0, command=tuple(sys.argv[3:]), args=("--stubborn", "--family", sys.argv[2]),
    env={"STARTS": str(folder / "starts")})
engine = Engine("default", "sglang", launch=launch)
made = recipe(engine, folder / "model", root=folder, trust_remote_code=False)
async def main():
    await Servers(made, folder / "logs", print, grace=0.1).start(print)
    print("all ready", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("flag", ["--mute", "--ready"])
def test_killed_with_kill_9_it_leaves_nothing(tmp_path: Path, starts: Starts, flag: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), flag, *COMMAND],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPO)},
    )
    assert owner.stdout is not None
    if flag == "--ready":
        assert any(line == "all ready\n" for line in owner.stdout)
    until(lambda: len(starts()) == 4, "all processes are there")
    assert all(alive(start["pid"]) for start in starts())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until(lambda: not any(alive(start["pid"]) for start in starts()), "nothing is left")


def test_what_a_server_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret")
    spec = Engine("gpu", "sglang", launch=Launch(args=("--log-level-http=debug",)), api_key_env="KEY")
    made = recipe(spec, tmp_path, root=tmp_path, trust_remote_code=True)
    words = made.command(30000)
    assert words[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert words[3:] == [
        *("--model-path", str(tmp_path), "--host", "127.0.0.1", "--port", "30000", "--trust-remote-code"),
        *("--enable-metrics", "--api-key", "secret", "--log-level-http=debug"),
    ]
    assert "secret" not in made.shown(30000) + repr(made)
    monkeypatch.setenv("KEY", "")
    with pytest.raises(EngineError, match="KEY holds no API key"):
        recipe(spec, tmp_path, root=tmp_path, trust_remote_code=True)


@pytest.mark.parametrize(
    ("args", "url"),
    [
        ((), "http://127.0.0.1:1"),
        (("--host", "0.0.0.0"), "http://127.0.0.1:1"),
        (("--host=10.0.0.7",), "http://10.0.0.7:1"),
        (("--host", "::1"), "http://[::1]:1"),
    ],
)
def test_where_a_server_is_asked(tmp_path: Path, args: tuple[str, ...], url: str) -> None:
    assert how_to(tmp_path, *args).url(1) == url


def test_each_server_has_its_share_of_the_gpus(tmp_path: Path) -> None:
    made = how_to(tmp_path, replicas=2, gpus=2, env={"CUDA_VISIBLE_DEVICES": "4,5, 6,GPU-abc"})
    gpus = made.visible_gpus()
    made.check(gpus)
    assert [made.share(gpus, replica) for replica in (0, 1)] == ["4,5", "6,GPU-abc"]
    assert made.environment("4,5", "t")["CUDA_VISIBLE_DEVICES"] == "4,5"


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("4,5,6", "2 times 2 GPUs are needed, and 3 are visible"),
        ("", "no GPU is found, and the servers need 4"),
    ],
)
def test_too_few_gpus(tmp_path: Path, visible: str, said: str) -> None:
    made = how_to(tmp_path, replicas=2, gpus=2, env={"CUDA_VISIBLE_DEVICES": visible})
    with pytest.raises(EngineError, match=said):
        made.check(made.visible_gpus())


def test_gpus_are_listed_by_the_drivers_own_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'; echo '  MIG 1g: y'; echo 'GPU 1: B (UUID: z)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert visible_gpus({}) == ("0", "1")


def test_without_the_package_one_line_says_so(tmp_path: Path) -> None:
    made = how_to(tmp_path, command=())
    assert find_spec("sglang") is None
    with pytest.raises(EngineError) as caught:
        made.check(None)
    assert caught.value.render() == (
        "fafo.toml: engine.launch: the package sglang isn't installed beside fafo\n"
        "  cure: pip install 'fafo[sglang]', or name the Python that has it: launch = { python = \"...\" }"
    )
    evolve(made, launch=evolve(made.launch, python="elsewhere")).check(None)
