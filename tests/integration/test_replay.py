"""`fafo replay`: one item sent again, against a server that answers the same, or doesn't."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fake_sglang import FakeSglang
from tests.helpers import CLASS, MAIN, build, exported, fafo, fafo_json, write_project
from tests.serving import serving, use

KEYS = [
    "identity", "class", "source", "key", "sample", "seed", "equal", "expected", "changes", "recorded",
    "answers",
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[FakeSglang]:
    with serving() as found:
        found.server_info |= {"enable_deterministic_inference": True, "attention_backend": "fa3"}
        yield found


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, server: FakeSglang) -> Path:
    folder = use(write_project(tmp_path_factory.mktemp("replay"), 4), server)
    fafo(folder, "run", "--quiet")
    return folder


@pytest.fixture
def done(original: Path, tmp_path: Path, server: FakeSglang) -> Iterator[Path]:
    """A project whose items the server has answered; the server is as it was before, afterwards."""
    info = dict(server.server_info)
    server.received.clear()
    yield Path(shutil.copytree(original, tmp_path / "p"))
    server.server_info, server.fault = info, None


def written(folder: Path) -> dict[Path, int]:
    """Return when each file was written; whoever reads an index leaves a mark in its lock."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock.mdb"}


def test_the_same_ids_parameters_and_seed_go_to_the_same_server_and_nothing_is_written(
    done: Path, server: FakeSglang
) -> None:
    (row,) = (row for row in exported(done) if row["key"] == "3")
    before = written(done / "runs")
    told = fafo_json(done, "replay", "3", "--check")
    assert written(done / "runs") == before
    assert list(told) == KEYS
    assert (told["identity"], told["class"], told["key"]) == (row["identity"], "ask", "3")
    assert told["equal"] is True
    assert told["expected"]["level"] == "yes"
    assert told["changes"] == []
    assert told["recorded"]["ids"] == row["output_ids"] == told["answers"][0]["ids"]
    assert told["answers"][0]["parts_at"] is None
    assert told["answers"][0]["server"] == server.url
    warm, sent = server.received
    assert warm["input_ids"] == sent["input_ids"][: len(warm["input_ids"])]
    assert sent["sampling_params"]["max_new_tokens"] == 8
    assert "the output is the recorded one" in fafo(done, "replay", row["identity"][:10]).stdout


def test_where_outputs_part_is_shown_with_what_comes_then(done: Path, server: FakeSglang) -> None:
    recorded = next(row["output_ids"] for row in exported(done) if row["key"] == "1")
    at = len(recorded) - 1

    async def fault(request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        if body["rid"].startswith("warm"):
            return None
        found = await server.answer(body)
        found["output_ids"][at] = (found["output_ids"][at] + 1_000) % 40_000
        return web.json_response(found)

    server.fault = fault
    told = fafo_json(done, "replay", "1", "--times", "2", "--check", check=1)
    assert told["equal"] is False
    assert [answer["parts_at"] for answer in told["answers"]] == [at, at]
    (first, _) = told["answers"]
    assert first["before"] + first["recorded"] == told["recorded"]["text"]
    assert first["before"] + first["answered"] == first["text"]
    assert first["recorded"] != first["answered"]
    text = fafo(done, "replay", "1", check=0).stdout
    assert f"they part at token {at}" in text
    assert "they should be equal, and the engine says that nothing has changed" in text


def test_what_has_changed_in_the_engine_is_said(done: Path, server: FakeSglang) -> None:
    server.server_info |= {"version": "0.6.0", "enable_deterministic_inference": False}
    told = fafo_json(done, "replay", "2")
    assert told["expected"]["level"] == "mostly", "it was greedy, and isn't deterministic now"
    assert {change["what"]: (change["then"], change["now"]) for change in told["changes"]} == {
        "version": ("0.5.23", "0.6.0"),
        "enable_deterministic_inference": (True, False),
    }
    assert "changed: version: 0.5.23 then, 0.6.0 now" in fafo(done, "replay", "2").stdout


def test_another_server_or_engine_is_asked_when_the_old_one_isnt_declared(done: Path) -> None:
    main = (done / "fafo.toml").read_text("utf-8")
    with serving() as second:
        text = main.replace("urls = [", f'urls = ["{second.url}", ')
        (done / "fafo.toml").write_text(text, "utf-8")
        told = fafo_json(done, "replay", "2")
        assert told["answers"][0]["server"] != second.url, "the one that answered is still there"
        (done / "fafo.toml").write_text(
            "\n".join(f'urls = ["{second.url}"]' if "urls" in line else line for line in main.splitlines()),
            "utf-8",
        )
        told = fafo_json(done, "replay", "2")
        assert told["answers"][0]["server"] == second.url
        assert "server" in {change["what"] for change in told["changes"]}
    assert "cure" in fafo(done, "replay", "2", check=1).stderr


def test_an_old_item_is_replayed_as_it_was_made(done: Path, server: FakeSglang) -> None:
    old = next(row for row in exported(done) if row["key"] == "3")
    (done / "prompts" / "rules.md").write_text("Wholly other rules.\n", "utf-8")
    (done / "classes" / "ask.toml").write_text(CLASS.replace("= 8", "= 5"), "utf-8")
    build(done)
    told = fafo_json(done, "replay", old["identity"])
    assert told["equal"] is True
    assert server.received[-1]["sampling_params"]["max_new_tokens"] == 8
    for path in (done / "build" / "artifacts").glob(f"{old['artifact']}*"):
        path.unlink()
    assert "isn't in build/ any more" in fafo(done, "replay", old["identity"], check=1).stderr


def test_an_item_that_isnt_one_is_told(tmp_path: Path) -> None:
    both = {"ask": CLASS, "tell": CLASS.replace("Ask one question", "Tell a story")}
    folder = write_project(tmp_path, 2, main=MAIN, classes=both)
    with (folder / "facts.jsonl").open("a") as file:
        file.write('{"id": 9, "text": null}\n')
    build(folder)
    fafo(folder, "run", "--quiet", check=3)
    said = fafo(folder, "replay", "1", check=1).stderr
    assert '"1" names 2 items, which differ in class and artifact: ' in said
    assert "(class ask, artifact " in said and "(class tell, artifact " in said
    assert "or choose with --class" in said
    assert fafo_json(folder, "replay", "1", "--class", "tell")["equal"] is True
    assert "fafo retry" in fafo(folder, "replay", "9", "--class", "ask", check=1).stderr
    assert "fafo items" in fafo(folder, "replay", "nobody", check=1).stderr


def test_show_says_whether_an_output_repeats(done: Path) -> None:
    (told,) = fafo_json(done, "show", "3")
    assert told["engine"]["repeats"]["level"] == "yes"
    assert "repeats   yes: the server's inference is deterministic (fa3)" in fafo(done, "show", "3").stdout
