"""`fafo run --service` through the front door: it stays, takes what comes, and stops as it should."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from tests.helpers import (
    CLASS,
    MAIN,
    build,
    exported,
    fafo,
    fafo_json,
    kill,
    reaches,
    start,
    write_project,
)
from tests.serving import pace, serving, use

QUICK = MAIN + '\n[run]\npoll = "100ms"\nstop_within = "1s"\n'
ITEMS = 12


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = write_project(tmp_path, ITEMS, main=QUICK)
    build(folder)
    return folder


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list; what is put there is killed at the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        kill(process)


def add(folder: Path, *rows: dict[str, object], source: str = "facts") -> None:
    with (folder / f"{source}.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def completed(folder: Path, count: int) -> None:
    reaches(folder, lambda now: now.completed == count, f"{count} completed")


def stop(process: subprocess.Popen[str], code: int = 0) -> str:
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return out


def test_a_service_takes_rows_that_come_later_and_stops_cleanly(
    project: Path, processes: list[subprocess.Popen[str]]
) -> None:
    processes.append(start(project, "run", "--service", "--json"))
    idle = ("running", True, "", 0, ITEMS)
    seen = attrgetter("status", "service", "notice", "queued", "completed")
    reaches(project, lambda now: seen(now) == idle, f"{idle}")
    add(project, {"id": "a", "text": "one more"}, {"id": "b", "text": "and another"})
    completed(project, ITEMS + 2)
    reaches(project, lambda now: now.total == ITEMS + 2, f"{ITEMS + 2} in all")
    told = json.loads(stop(processes[0]))
    assert (told["status"], told["completed"], told["left"]) == ("stopped", ITEMS + 2, 0)
    told = fafo_json(project, "status")
    assert (told["status"], told["service"]) == ("stopped", False)
    assert fafo_json(project, "verify")["verdict"] == "ok"


def test_a_service_goes_on_where_a_run_ended_and_a_query_is_asked_again(
    tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    import sqlite3

    main = QUICK.replace('type = "files"\npath = "facts.jsonl"', 'type = "sql"\nurl = "sqlite:///facts.db"')
    main = main.replace('key = "id"', 'key = "id"\nquery = "select id, text from fact order by id"')
    folder = write_project(tmp_path, 1, main=main)
    with sqlite3.connect(folder / "facts.db") as database:
        database.execute("create table fact (id integer, text text)")
        database.execute("insert into fact values (1, 'one')")
    build(folder)
    assert fafo_json(folder, "run")["completed"] == 1
    processes.append(start(folder, "run", "--service", "--json"))
    reaches(folder, lambda now: now.service, "the service")
    with sqlite3.connect(folder / "facts.db") as database:
        database.execute("insert into fact values (2, 'two')")
    completed(folder, 2)
    told = json.loads(stop(processes[0]))
    assert (told["completed"], told["before"]) == (1, 1)


def test_sources_that_cant_be_read_hold_up_nobody_else(
    tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    main = QUICK + '\n[[source]]\nname = "more"\ntype = "files"\npath = "more.jsonl"\nkey = "id"\n'
    both = CLASS.replace('sources = ["facts"]', 'sources = ["facts", "more"]')
    folder = write_project(tmp_path, 4, main=main, classes={"ask": both})
    build(folder)
    # The second source isn't there yet: a run would be refused, a service waits for it.
    processes.append(start(folder, "run", "--service", "--json"))
    completed(folder, 4)
    reaches(folder, lambda now: "source more" in now.notice, "the source that isn't there")
    add(folder, {"id": 1, "text": "there"}, source="more")
    completed(folder, 5)
    reaches(folder, lambda now: now.notice == "", "no notice")
    # Two rows that contradict each other: told, and the other source goes on.
    add(folder, {"id": 1, "text": "something else"}, source="more")
    reaches(folder, lambda now: "two rows have the key" in now.notice, "the contradiction")
    add(folder, {"id": "new", "text": "beside it"})
    completed(folder, 6)
    (folder / "more.jsonl").write_text('{"id": 1, "text": "there"}\n{"id": 2, "text": "two"}\n', "utf-8")
    completed(folder, 7)
    stop(processes[0])
    assert fafo_json(folder, "verify")["verdict"] == "ok"


def test_a_service_finishes_what_is_under_way(tmp_path: Path, processes: list[subprocess.Popen[str]]) -> None:
    folder = write_project(tmp_path, 200)
    with serving(pace(0.3)) as server:
        use(folder, server, QUICK.replace('"1s"', '"60s"'))
        processes.append(start(folder, "run", "--service", "--json"))
        reaches(folder, lambda now: now.completed > 0, "something is answered")
        told = json.loads(stop(processes[0]))
        answered = sum(not body["rid"].startswith("warm") for body in server.received)
    assert told["status"] == "stopped"
    assert told["completed"] == answered < 200
    (folder / "fafo.toml").write_text(MAIN, "utf-8")
    rest = fafo_json(folder, "run")
    assert rest["completed"] + rest["before"] == 200


@pytest.mark.parametrize("service", [("--service",), ()])
def test_after_sigterm_nobody_waits_longer_than_the_bound(
    tmp_path: Path, processes: list[subprocess.Popen[str]], service: tuple[str, ...]
) -> None:
    folder = write_project(tmp_path, 20)
    with serving(pace(600)) as server:
        use(folder, server, QUICK)
        processes.append(start(folder, "run", "--json", *service))
        reaches(folder, lambda now: now.in_flight > 0, "in flight")
        told = json.loads(stop(processes[0], code=130))  # within 60 s, though an answer takes 600
    assert (told["status"], told["completed"]) == ("interrupted", 0)
    assert fafo_json(folder, "status")["status"] == "interrupted"
    (folder / "fafo.toml").write_text(MAIN, "utf-8")
    assert fafo_json(folder, "run")["completed"] == 20
    assert fafo_json(folder, "verify")["completeness"]["doubled"] == 0


def test_a_killed_submit_and_a_killed_service_lose_and_double_nothing(
    tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    """The producer in another process, and the dispatcher with all the rest, die and are started again."""
    many = 6_000
    rows = "".join(json.dumps({"id": f"n{at}", "text": f"row {at}"}) + "\n" for at in range(many))
    folder = write_project(tmp_path, ITEMS, main=QUICK.replace('"100ms"', '"1h"'))
    build(folder)
    processes.append(start(folder, "run", "--service", "--quiet"))
    completed(folder, ITEMS)
    with (folder / "facts.jsonl").open("a") as file:
        file.write(rows)
    for _ in range(2):
        submitting = start(folder, "submit")
        before = fafo_json(folder, "status")["completed"]
        reaches(folder, lambda now, at=before: now.completed >= min(at + 1, ITEMS + many), "more completed")
        kill(submitting)
        kill(processes[-1])
        processes.append(start(folder, "run", "--service", "--quiet"))
        reaches(folder, lambda now: now.status == "running", "the service is back")
    fafo(folder, "submit")
    completed(folder, ITEMS + many)
    stop(processes[-1])
    told = fafo_json(folder, "verify")
    assert told["verdict"] == "ok"
    assert told["completeness"]["completed"] == ITEMS + many
    assert len({row["identity"] for row in exported(folder)}) == ITEMS + many


def test_a_service_has_no_limit(project: Path) -> None:
    assert "--limit" in fafo(project, "run", "--service", "--limit", "3", check=2).stderr
