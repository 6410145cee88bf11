"""What a run writes down about its servers can be read back, whole or torn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from attrs import fields

from fafo_build.errors import StoreError
from fafo_run.engines.base import Counters
from fafo_run.run.evidence import (
    NAME,
    AnyEvent,
    Ended,
    Event,
    Evidence,
    Excluded,
    Missed,
    Quarantined,
    Returned,
    Started,
    Sums,
    Warmed,
    lives,
    read,
)
from tests.helpers import REPO

URL = "http://10.0.0.7:30000"
OTHER = "http://10.0.0.8:30000"


def start(evidence: Evidence, server: str = URL) -> None:
    evidence.add(Started, server, version="0.5.23", model="m", page_size=1, prefix_cache=True)


def test_every_event_comes_back_as_it_was_said(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path)
    evidence.add(
        Started, URL, version="0.5.23", model="m", page_size=16, prefix_cache=True, cache_tokens=20_000,
        ranks=2, settings={"schedule_policy": "lpm"}, counters=Counters(1, 2, 3, 4, 5),
    )  # fmt: skip
    evidence.add(Warmed, URL, artifact="a", rank=1, prompt_tokens=400, cached_tokens=0, why="first")
    evidence.add(Missed, URL, artifact="a", rank=1, cached_tokens=16, ceiling=400)
    evidence.add(Quarantined, URL, reason="no answer")
    evidence.add(Returned, URL, after=2.5, restarted=False)
    evidence.add(Excluded, URL, reason="another model")
    evidence.add(Ended, URL, sums=Sums(10, 4000, 3600, 1), counters=Counters(5000, 3600, 12))
    events, torn = read(tmp_path)
    assert [type(event) for event in events] == [
        Started, Warmed, Missed, Quarantined, Returned, Excluded, Ended,
    ]  # fmt: skip
    assert torn == 0
    assert isinstance(events[0], Started) and events[0].counters == Counters(1, 2, 3, 4, 5)
    assert events[0].settings == {"schedule_policy": "lpm"} and events[0].cache_tokens == 20_000
    assert isinstance(events[1], Warmed) and (events[1].rank, events[1].why) == (1, "first")
    assert isinstance(events[-1], Ended) and events[-1].sums == Sums(10, 4000, 3600, 1)
    assert events[-1].counters == Counters(5000, 3600, 12, 0, None)
    assert {event.session for event in events} == {evidence.session}
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_the_page_says_every_event_and_field() -> None:
    page = (REPO / "docs" / "format.md").read_text("utf-8")
    section = page.partition("## servers.jsonl")[2].partition("\n## ")[0]
    rows = {row.split("`")[1]: row for row in section.splitlines() if row.startswith("| `")}
    events = {kind.__struct_config__.tag: kind for kind in get_args(AnyEvent)}
    assert set(rows) == set(events)
    common = set(Event.__struct_fields__)
    assert all(f"`{name}`" in section for name in common)
    for tag, kind in events.items():
        told = set(re.findall(r"`(\w+)`", rows[tag].split("|")[3]))
        assert set(kind.__struct_fields__) - common <= told, tag
    for noun in (Sums.__struct_fields__, [field.name for field in fields(Counters)]):
        assert all(f"`{name}`" in section for name in noun)


def test_a_line_is_as_it_always_was(tmp_path: Path) -> None:
    """What outlives a process is read by later versions."""
    (tmp_path / NAME).write_text(
        '{"event":"started","at":1.5,"session":"s","server":"http://a","version":"0.5.23","model":"m",'
        '"page_size":1,"prefix_cache":true,"cache_tokens":9,"ranks":1,"running":4,"settings":{"dtype":"b"},'
        '"counters":{"prompt_tokens":1,"cached_tokens":2,"requests":3,"aborted":0,"evicted_tokens":null}}\n'
        '{"event":"warmed","at":2,"session":"s","server":"http://a","artifact":"a","rank":0,'
        '"prompt_tokens":5,"cached_tokens":0,"why":"first"}\n'
        '{"event":"ended","at":3,"session":"s","server":"http://a",'
        '"sums":{"requests":1,"prompt_tokens":5,"cached_tokens":0,"lost":0},"counters":null}\n'
    )
    (started, warmed, ended), torn = read(tmp_path)
    assert torn == 0 and isinstance(started, Started) and isinstance(warmed, Warmed)
    assert started.counters == Counters(1, 2, 3, 0, None) and warmed.prompt_tokens == 5
    assert isinstance(ended, Ended) and ended.sums == Sums(1, 5, 0, 0)


def test_a_run_without_evidence_has_none(tmp_path: Path) -> None:
    assert read(tmp_path) == ([], 0)


def test_a_line_that_a_crash_tore_is_passed_over_and_counted(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path)
    start(evidence)
    evidence.add(Quarantined, URL, reason="no answer")
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-9])
    Evidence(tmp_path).add(Quarantined, URL, reason="the next session")
    events, torn = read(tmp_path)
    assert [type(event) for event in events] == [Started, Quarantined]
    assert isinstance(events[1], Quarantined) and events[1].reason == "the next session"
    assert torn == 1


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"\xff\xfe",
        b'{"event":"of a later version"}',
        b"\0" * 20,
        b'{"event":"started","at":1,"session":"s","server":"u","version":"1","model":"m","page_size":0,'
        b'"prefix_cache":true}',
    ],
)
def test_what_is_no_event_is_counted(tmp_path: Path, line: bytes) -> None:
    start(Evidence(tmp_path))
    with (tmp_path / NAME).open("ab") as file:
        file.write(line + b"\n")
    events, torn = read(tmp_path)
    assert (len(events), torn) == (1, 1)


def test_evidence_that_cant_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(StoreError, match="can't be read"):
        read(tmp_path)
    with pytest.raises(StoreError, match="can't be written"):
        start(Evidence(tmp_path))


def test_a_life_is_one_process_of_one_server_in_one_session(tmp_path: Path) -> None:
    first = Evidence(tmp_path)
    start(first)
    start(first, OTHER)
    first.add(Returned, URL, after=1.0, restarted=False)
    first.add(Returned, URL, after=9.0, restarted=True)
    first.add(Ended, OTHER, sums=Sums())
    first.add(Ended, URL, sums=Sums())
    start(Evidence(tmp_path))
    found = [(life[0].server, [type(event).__name__ for event in life]) for life in lives(read(tmp_path)[0])]
    assert sorted(found) == [
        (URL, ["Returned", "Ended"]),
        (URL, ["Started"]),
        (URL, ["Started", "Returned"]),
        (OTHER, ["Started", "Ended"]),
    ]
