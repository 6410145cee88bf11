"""What `show` and `failures` say of rows as people meet them: hostile, broken, mended, very long."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers import build, fafo, fafo_json, write_project

HOSTILE = "\x1b[2Jcleared\x07 \u202edrowkcab\u202c \x9b31m"
SHOWN = r"\x1b[2Jcleared\x07 \u202edrowkcab\u202c \x9b31m"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_project(tmp_path_factory.mktemp("shown"), 2)
    with (folder / "facts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": f"k{HOSTILE}", "text": HOSTILE}) + "\n")
        file.write(f'{{"id": 7, "text": {2**64}}}\n')
        file.write('{"text": "no key"}\n')
    build(folder)
    fafo(folder, "run", "--quiet", check=3)
    return folder


@pytest.fixture
def done(original: Path, tmp_path: Path) -> Path:
    """A project of two good rows, a hostile one and two that failed, to change."""
    return Path(shutil.copytree(original, tmp_path / "p"))


def test_a_row_cant_command_the_terminal(original: Path) -> None:
    text = fafo(original, "show", f"k{HOSTILE}").stdout
    assert f"  text: {SHOWN}\n" in text
    assert f" · k{SHOWN} · " in text
    assert f": {SHOWN}\n" in text.partition("here the prefix ends")[2], "the prompt"
    (told,) = fafo_json(original, "show", f"k{HOSTILE}")
    assert told["row"]["text"] == HOSTILE


def broken(folder: Path) -> tuple[str, str]:
    """Return the keys of the two rows that can't be used: its own, and one made of the row's bytes."""
    items = [json.loads(line) for line in fafo(folder, "items").stdout.splitlines()]
    (keyless,) = (item["key"] for item in items if item["key"].startswith("!"))
    return "7", keyless


def test_a_broken_row_that_is_still_there_is_current(original: Path) -> None:
    own, keyless = broken(original)
    (told,) = fafo_json(original, "show", keyless)
    assert (told["current"], told["row_now"], told["row"]) == (True, "same", None)
    assert told["where"] == "facts.jsonl:5"
    assert told["broken"] == 'the key column "id" is missing'
    text = fafo(original, "show", keyless).stdout
    assert "superseded" not in text
    assert f"  it can't be used: {told['broken']}\n  (facts.jsonl:5)\n" in text
    (told,) = fafo_json(original, "show", own)
    assert (told["current"], told["row_now"], told["where"]) == (True, "same", "facts.jsonl:4")
    assert told["broken"] == "a whole number doesn't fit 64 bits"
    assert "superseded" not in fafo(original, "show", own).stdout


def mend(folder: Path) -> tuple[str, str]:
    """Mend both rows that failed, and return the keys that they had."""
    keys = broken(folder)
    text = (folder / "facts.jsonl").read_text("utf-8")
    text = text.replace(f'"text": {2**64}', '"text": "mended"').replace(
        '{"text": "no key"}', '{"id": 8, "text": "k"}'
    )
    (folder / "facts.jsonl").write_text(text, "utf-8")
    return keys


def test_a_row_that_was_mended_is_said_to_have_changed(done: Path) -> None:
    own, keyless = mend(done)
    (told,) = fafo_json(done, "show", own)
    assert (told["current"], told["row_now"], told["where"]) == (False, "changed", "facts.jsonl:4")
    assert "  it has changed since (facts.jsonl:4)\n" in fafo(done, "show", own).stdout
    (told,) = fafo_json(done, "show", keyless)
    assert (told["current"], told["row_now"], told["where"]) == (False, "gone", None)
    text = fafo(done, "show", keyless).stdout
    assert "superseded" in text and "no row with this key now" in text


def test_failures_of_mended_rows_are_superseded_until_a_compaction_drops_them(done: Path) -> None:
    (group,) = fafo_json(done, "failures")["groups"]
    assert (group["count"], group["gone"]) == (2, 0)
    assert "superseded" not in fafo(done, "failures").stdout
    own, keyless = mend(done)
    fafo(done, "run", "--quiet")
    told = fafo_json(done, "failures", "--limit", "1")
    assert (told["count"], told["gone"], told["superseded"]) == (2, 2, 0), "not only examples are looked for"
    (group,) = fafo_json(done, "failures")["groups"]
    assert {(each["key"], each["row"], each["where"]) for each in group["examples"]} == {
        (own, "changed", "facts.jsonl:4"),
        (keyless, "gone", None),
    }
    text = fafo(done, "failures").stdout
    assert "2 failed, 2 of them superseded: the row is gone or has changed" in text
    assert "7 (the row has changed since: facts.jsonl:4): " in text
    assert "`fafo store compact --failed`" in text
    assert "`fafo failures` says why" in fafo(done, "status").stdout
    fafo(done, "store", "compact", "--failed")
    assert fafo_json(done, "failures")["count"] == 0
    assert fafo_json(done, "status")["failed"] == 0
    assert "`fafo failures`" not in fafo(done, "status").stdout


def test_failures_of_a_source_that_cant_be_read_are_not_called_superseded(done: Path) -> None:
    (done / "facts.jsonl").unlink()
    told = fafo_json(done, "failures")
    assert (told["count"], told["gone"]) == (2, 0)
    assert {each["row"] for each in told["groups"][0]["examples"]} == {None}
    assert "(its source can't be read now)" in fafo(done, "failures").stdout


def test_a_run_and_failures_keep_what_a_key_says_in_its_line(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 1)
    with (folder / "facts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "k\nforged \x1b[31m", "text": None}) + "\n")
    build(folder)
    told = fafo(folder, "run", check=3).stderr
    assert r"k\nforged \x1b[31m" in told and "\nforged" not in told
    told = fafo(folder, "failures").stdout
    assert r"k\nforged \x1b[31m" in told and "\nforged" not in told
