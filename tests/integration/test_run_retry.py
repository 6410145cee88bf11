"""`fafo failures` and `fafo retry` through the front door: what failed is put back, and its history stays."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fake_sglang import Fault
from tests.helpers import MAIN, RULES, build, fafo, fafo_json, kill, reaches, start, until, write_project
from tests.serving import serving, use

ITEMS = 6


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, ITEMS)


class Refusing:
    """Refuses the first item that it is asked for, until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.asked = 0
        self._refused: list[int] | None = None

    def fault(self) -> Fault:
        async def refuse(_: web.Request, body: dict[str, Any]) -> web.Response | None:
            if body["rid"].startswith("warm"):
                return None
            self._refused = self._refused or body["input_ids"]
            if body["input_ids"] != self._refused:
                return None
            self.asked += 1
            return None if self.mended else web.json_response({"error": {"message": "not yet"}}, status=400)

        return refuse


def completeness(folder: Path, check: int | None = None) -> dict[str, int]:
    found: dict[str, int] = fafo_json(folder, "verify", check=check)["completeness"]
    return found


def records(folder: Path) -> tuple[int, int, int, int]:
    """Return what `fafo status` says of all records: none is left out, and `verify` agrees."""
    told = fafo_json(folder, "status")
    found = told["completed"], told["failed"], told["superseded"], told["replaced"]
    held = fafo_json(folder, "store", "check")
    assert sum(found) == held["outputs"] + held["failures"] - told["queued"]
    assert completeness(folder)["superseded"] == told["superseded"]
    return found


def test_what_failed_is_put_back_done_and_its_history_stays(project: Path) -> None:
    refusing = Refusing()
    with serving(refusing.fault()) as server:
        told = fafo_json(use(project, server), "run", check=3)
        assert told["failures"] == {"rejected": 1}
        told = fafo_json(project, "failures")
        assert (told["count"], told["waiting"], told["superseded"]) == (1, 0, 0)
        (group,) = told["groups"]
        assert (group["code"], group["class"], group["count"]) == ("rejected", "ask", 1)
        (example,) = group["examples"]
        assert example["where"].startswith("facts.jsonl:")
        assert "not yet" in example["message"]
        assert f"{example['key']} ({example['where']})" in fafo(project, "failures").stdout

        put_back = fafo_json(project, "retry")
        assert (put_back["put_back"], put_back["codes"]) == (1, {"rejected": 1})
        refusing.mended = True
        told = fafo_json(project, "run")
    assert (told["completed"], told["before"], told["failed_before"], told["left"]) == (1, 5, 0, 0)
    assert refusing.asked == 2
    assert fafo_json(project, "failures")["count"] == 0
    (shown,) = fafo_json(project, "show", example["identity"])
    assert shown["output"]["ids"]
    (before,) = shown["history"]
    assert (before["code"], before["stage"], before["retry"]) == ("rejected", "engine", 0)
    assert "not yet" in before["message"]
    assert "rejected at engine" in fafo(project, "show", example["identity"]).stdout
    assert completeness(project, 0)["completed"] == ITEMS
    assert records(project) == (ITEMS, 0, 0, 1)
    assert "replaced: 1 record" in fafo(project, "status").stdout


def test_what_fails_again_counts_its_retries(project: Path) -> None:
    refusing = Refusing()
    with serving(refusing.fault()) as server:
        fafo(use(project, server), "run", check=3)
        for retry in (1, 2):
            assert fafo_json(project, "retry")["put_back"] == 1
            told = fafo_json(project, "run", check=3)
            assert (told["completed"], told["failed"], told["failed_before"]) == (0, 1, 0)
            (group,) = fafo_json(project, "failures")["groups"]
            assert group["examples"][0]["retry"] == retry
    assert refusing.asked == 3
    (shown,) = fafo_json(project, "show", group["examples"][0]["identity"])
    assert [before["retry"] for before in shown["history"]] == [0, 1]
    assert records(project) == (ITEMS - 1, 1, 0, 2)
    (project / "prompts" / "rules.md").write_text(RULES + "Be kind.\n", "utf-8")
    build(project)
    assert records(project) == (0, 0, ITEMS, 2), "of old work, too, one record an item counts"
    assert fafo_json(project, "store", "compact")["superseded"] == 2
    assert records(project) == (0, 0, ITEMS, 0)


def test_what_waits_for_its_retry_waits_and_isnt_put_back_twice(project: Path) -> None:
    with serving(Refusing().fault()) as server:
        fafo(use(project, server), "run", check=3)
    assert fafo_json(project, "retry", "--dry-run")["put_back"] == 1
    assert fafo_json(project, "status")["queued"] == 0, "a dry run queued it"
    assert fafo_json(project, "retry")["put_back"] == 1
    again = fafo_json(project, "retry")
    assert (again["put_back"], again["waiting"]) == (0, 1)
    told = fafo_json(project, "status")
    assert (told["queued"], told["completed"], told["failed"]) == (1, ITEMS - 1, 0)
    assert records(project) == (ITEMS - 1, 0, 0, 0)
    assert told["by_class"] == {"ask": {"completed": ITEMS - 1, "failed": 0}}
    found = completeness(project)
    assert (found["failed"], found["waiting"], found["lost"], found["superseded"]) == (0, 1, 0, 0)
    (group,) = fafo_json(project, "failures")["groups"]
    assert (group["waiting"], group["examples"][0]["waiting"]) == (1, True)
    assert fafo_json(project, "submit")["waiting"] == 1


def test_a_retry_outlives_a_kill(project: Path) -> None:
    """Its earlier failure is no reason to take it out of the queue at the next start."""
    refusing = Refusing()
    with serving(refusing.fault()) as server:
        fafo(use(project, server), "run", check=3)
        fafo(project, "retry")

        async def hang(_: web.Request, body: dict[str, Any]) -> None:
            if not body["rid"].startswith("warm"):
                hung.append(body["rid"])
                await asyncio.sleep(60)

        hung: list[str] = []
        server.fault = hang
        process = start(project, "run", "--quiet")
        until(lambda: bool(hung), "the retry is asked for")
        kill(process)
        refusing.mended = True
        server.fault = refusing.fault()
        assert fafo_json(project, "run")["completed"] == 1
    assert completeness(project, 0)["completed"] == ITEMS


def test_a_row_that_made_no_prompt_is_made_anew_and_a_mended_one_is_new_work(project: Path) -> None:
    file = project / "facts.jsonl"
    good = file.read_text("utf-8")
    bad = "".join(json.dumps({"id": name, "text": None}) + "\n" for name in ("x", "y"))
    file.write_text(good + bad, "utf-8")
    build(project)
    fafo(project, "run", check=3)
    file.write_text(good + bad.replace('"y", "text": null', '"y", "text": "mended"'), "utf-8")
    told = fafo_json(project, "retry", "--code", "row_invalid")
    assert (told["put_back"], told["gone"]) == (1, 1)
    told = fafo_json(project, "run", check=3)
    assert (told["completed"], told["failed"]) == (1, 1)
    found = fafo_json(project, "failures")["groups"][0]["examples"]
    assert {(each["key"], each["retry"], each["row"], each["where"]) for each in found} == {
        ("x", 1, "same", "facts.jsonl:7"),
        ("y", 0, "changed", "facts.jsonl:8"),
    }
    said = fafo(project, "failures").stdout
    assert "x, put back once: facts.jsonl:7: " in said, "the place stands once"
    assert "y (the row has changed since: facts.jsonl:8): facts.jsonl:8: " in said


def test_filters_choose_and_what_isnt_declared_any_more_stays(project: Path) -> None:
    with serving(Refusing().fault()) as server:
        fafo(use(project, server), "run", check=3)
    assert fafo_json(project, "retry", "--code", "too_long")["put_back"] == 0
    assert fafo_json(project, "failures", "--class", "ask")["count"] == 1
    assert fafo_json(project, "failures", "--source", "facts", "--limit", "0")["groups"][0]["examples"] == []
    assert "row_invalid" in fafo(project, "retry", "--code", "nonsense", check=2).stderr
    assert "no source named" in fafo(project, "retry", "--source", "nonsense", check=1).stderr
    for command in ("failures", "retry"):
        assert "no class named" in fafo(project, command, "--class", "nonsense", check=1).stderr
    (project / "prompts" / "rules.md").write_text(RULES + "Be kind.\n", "utf-8")
    assert "fafo build" in fafo(project, "retry", check=1).stderr
    shutil.copy(project / "classes" / "ask.toml", project / "classes" / "other.toml")
    build(project)
    assert fafo_json(project, "failures", "--class", "other")["count"] == 0
    told = fafo_json(project, "retry")
    assert (told["put_back"], told["superseded"]) == (0, 1)
    told = fafo_json(project, "failures")
    assert (told["count"], told["superseded"]) == (1, 1)


def test_a_service_does_what_is_put_back_beside_it(project: Path) -> None:
    refusing = Refusing()
    with serving(refusing.fault()) as server:
        use(project, server, MAIN + '\n[run]\npoll = "100ms"\n')
        process = start(project, "run", "--service", "--json")
        reaches(project, lambda now: now.failed == 1, "the failure")
        reaches(project, lambda now: now.completed == ITEMS - 1, "the others")
        refusing.mended = True
        assert fafo_json(project, "retry")["put_back"] == 1
        reaches(project, lambda now: now.completed == ITEMS, "the retry")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert (told["completed"], told["failed"], told["left"]) == (ITEMS, 0, 0)
