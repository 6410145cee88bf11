"""`fafo submit` through the front door: alone, beside a run, several at once, and killed."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from tests.helpers import (
    CLASS,
    MAIN,
    build,
    exported,
    fafo,
    fafo_json,
    identities,
    kill,
    reaches,
    start,
    until,
    write_project,
)
from tests.serving import gated, serving, use

MANY = 8_000


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = write_project(tmp_path)
    build(folder)
    return folder


def queued_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "runs" / "main" / "queue").glob("*.seg"))


def add_rows(folder: Path, *names: str) -> None:
    with (folder / "facts.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": name, "text": f"more about {name}"}) + "\n" for name in names)


def test_what_is_submitted_waits_and_a_run_does_it(project: Path) -> None:
    assert fafo_json(project, "submit") == {
        "queued": 12, "unsendable": 0, "done": 0, "failed": 0, "waiting": 0, "interrupted": False,
    }  # fmt: skip
    told = fafo_json(project, "status")
    assert (told["status"], told["queued"]) == ("new", 12)
    assert fafo_json(project, "submit")["waiting"] == 12
    told = fafo_json(project, "run")
    assert (told["completed"], told["left"], told["dropped"]) == (12, 0, 0)
    assert fafo_json(project, "submit")["done"] == 12
    assert fafo_json(project, "verify")["verdict"] == "ok"


def test_submitting_needs_no_engine(project: Path) -> None:
    dead = MAIN.replace('kind = "fake"\nmax_running = 8', 'kind = "sglang"\nurls = ["http://127.0.0.1:9"]')
    (project / "fafo.toml").write_text(dead, "utf-8")
    assert fafo_json(project, "submit", "--limit", "5")["queued"] == 5


def test_filters_choose_what_is_submitted(tmp_path: Path) -> None:
    tell = CLASS.replace("Ask one question", "Tell a story")
    folder = write_project(tmp_path, 4, classes={"ask": CLASS, "tell": tell})
    build(folder)
    assert fafo_json(folder, "submit", "--class", "tell")["queued"] == 4
    assert fafo_json(folder, "run", "--class", "ask")["completed"] == 4
    assert fafo_json(folder, "status")["queued"] == 4
    assert fafo_json(folder, "run")["completed"] == 4


def test_a_submit_refuses_a_build_that_isnt_current(project: Path) -> None:
    (project / "prompts" / "rules.md").write_text("Other rules.\n", "utf-8")
    assert "fafo build" in fafo(project, "submit", check=1).stderr
    assert fafo_json(project, "submit", "--stale")["queued"] == 12


def test_nothing_is_queued_of_a_source_that_contradicts_itself(project: Path) -> None:
    with (project / "facts.jsonl").open("a") as file:
        file.write('{"id": 2, "text": "something else"}\n')
    assert 'two rows have the key "2"' in fafo(project, "submit", check=1).stderr
    assert fafo_json(project, "status")["queued"] == 0


def test_what_cant_be_a_prompt_is_queued_and_becomes_a_failure_record(project: Path) -> None:
    rows = [
        '{"id": "torn", "text": "no end',
        json.dumps({"id": "null", "text": None}),
        json.dumps({"id": "long", "text": "word " * 9_000}),
    ]
    with (project / "facts.jsonl").open("a") as file:
        file.writelines(f"{row}\n" for row in rows)
    told = fafo_json(project, "submit")
    assert (told["queued"], told["unsendable"]) == (15, 3)
    told = fafo_json(project, "run", check=3)
    assert (told["completed"], told["failures"]) == (12, {"row_invalid": 2, "too_long": 1})
    assert fafo_json(project, "submit")["failed"] == 3
    assert fafo_json(project, "verify")["completeness"]["lost"] == 0


def test_an_engine_with_less_context_than_the_model_fails_what_is_too_long(project: Path) -> None:
    (project / "facts.jsonl").write_text(json.dumps({"id": "long", "text": "word " * 300}) + "\n", "utf-8")
    with serving(context_length=256) as server:
        use(project, server)
        assert fafo_json(project, "submit")["unsendable"] == 0
        told = fafo_json(project, "run", check=3)
        assert told["failures"] == {"too_long": 1}
        assert all(body["rid"].startswith("warm") for body in server.received), "it was sent"


def test_what_waits_and_whose_row_has_changed_or_gone_isnt_asked(project: Path) -> None:
    facts = project / "facts.jsonl"
    torn = '{"id": 99, "text": '
    facts.write_text(facts.read_text("utf-8") + torn + "\n", "utf-8")
    assert fafo_json(project, "submit")["queued"] == 13
    before = facts.read_text("utf-8").splitlines()
    changed = json.dumps({"id": 3, "text": "another text"})
    mended = torn + '"now whole"}'
    facts.write_text("\n".join([*before[:3], changed, before[4], *before[6:12], mended]) + "\n", "utf-8")
    with serving() as server:
        use(project, server)
        told = fafo_json(project, "run")
        asked = [body["rid"] for body in server.received if not body["rid"].startswith("warm")]
        assert (told["completed"], told["failed"], told["left"], len(asked)) == (12, 0, 0, 12)
        assert fafo_json(project, "verify")["completeness"] == {
            "total": 12, "completed": 12, "failed": 0, "waiting": 0, "superseded": 0, "doubled": 0,
            "lost": 0, "undecodable": 0,
        }  # fmt: skip
        # The broken row was alone in its lane, and so in its segment.
        assert fafo_json(project, "status")["queued"] == 2
        facts.write_text("\n".join([*before[:3], changed, *before[4:12], mended]) + "\n", "utf-8")
        assert fafo_json(project, "run")["completed"] == 1
        assert fafo_json(project, "status")["queued"] == 1
        told = fafo(project, "run").stderr
        assert "1 waiting items are superseded by newer prompts or rows; taken out" in told
    assert fafo_json(project, "status")["queued"] == 0
    assert len(exported(project)) == 13


def test_all_samples_of_a_row_that_has_gone_are_passed_over_and_other_rows_are_not(tmp_path: Path) -> None:
    sampled = CLASS.replace("temperature = 0", "temperature = 1.0\nsamples = 3")
    tell = CLASS.replace("Ask one question", "Tell a story")
    folder = write_project(tmp_path, 4, classes={"ask": sampled, "tell": tell, "twin": sampled})
    build(folder)
    assert fafo_json(folder, "submit")["queued"] == 16
    rows = (folder / "facts.jsonl").read_text("utf-8").splitlines()
    (folder / "facts.jsonl").write_text("\n".join(rows[1:]) + "\n", "utf-8")
    assert fafo_json(folder, "run", "--class", "tell", "--limit", "2")["completed"] == 2
    assert fafo_json(folder, "run", "--class", "tell")["completed"] == 1
    assert fafo_json(folder, "run")["completed"] == 9
    assert len(exported(folder)) == 12


def test_two_submits_at_once_are_computed_once(tmp_path: Path) -> None:
    folder = write_project(tmp_path, MANY)
    build(folder)
    both = [start(folder, "submit", "--json") for _ in range(2)]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert all(each["queued"] + each["waiting"] == MANY for each in told)
    assert sum(each["queued"] for each in told) >= MANY
    done = fafo_json(folder, "run")
    assert (done["completed"], done["left"], done["dropped"]) == (MANY, 0, 0)
    assert fafo_json(folder, "verify")["completeness"]["doubled"] == 0
    assert sorted(row["identity"] for row in exported(folder)) == sorted(identities(folder))


def test_a_run_does_what_is_submitted_while_it_works(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 40)
    gate = threading.Event()
    with serving(gated(gate)) as server:
        use(folder, server)
        process = start(folder, "run", "--json")
        reaches(folder, lambda now: now.queued == 40, "its pass over the view is over")
        add_rows(folder, "a", "b", "c")
        assert fafo_json(folder, "submit")["queued"] == 3
        gate.set()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["completed"] == 43
    assert fafo_json(folder, "status")["queued"] == 0


def test_a_run_with_a_filter_leaves_what_others_submit_of_the_rest(tmp_path: Path) -> None:
    tell = CLASS.replace("Ask one question", "Tell a story")
    main = MAIN + "\n[run]\nqueue = { low = 5, high = 20 }\n"
    folder = write_project(tmp_path, 40, classes={"ask": CLASS, "tell": tell})
    gate = threading.Event()
    with serving(gated(gate)) as server:
        use(folder, server, main)
        process = start(folder, "run", "--json", "--class", "ask")
        reaches(folder, lambda now: now.in_flight > 0, "in flight")
        # More than the queue's high mark: it must not hold up the run's own producer.
        assert fafo_json(folder, "submit", "--class", "tell")["queued"] == 40
        gate.set()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["completed"] == 40
    assert fafo_json(folder, "status")["queued"] == 40


def test_a_submit_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    folder = write_project(tmp_path, MANY)
    build(folder)
    process = start(folder, "submit")
    until(lambda: queued_bytes(folder) > 100_000, "something is queued")
    kill(process)
    told = fafo_json(folder, "submit")
    assert told["queued"] + told["waiting"] == MANY
    assert told["waiting"] > 0
    assert fafo_json(folder, "status")["queued"] == MANY
    done = fafo_json(folder, "run")
    assert (done["completed"], done["left"], done["dropped"]) == (MANY, 0, 0)
    told = fafo_json(folder, "verify")
    assert told["verdict"] == "ok"
    assert told["completeness"]["completed"] == MANY


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_submit_that_is_interrupted_keeps_what_it_queued(tmp_path: Path, number: signal.Signals) -> None:
    folder = write_project(tmp_path, 3 * MANY)
    build(folder)
    process = start(folder, "submit", "--json")
    until(lambda: queued_bytes(folder) > 100_000, "something is queued")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["interrupted"]
    assert 0 < told["queued"] < 3 * MANY
    assert fafo_json(folder, "status")["queued"] == told["queued"]
