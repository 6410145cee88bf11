"""What is printed of a run where no bar can be drawn."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from attrs import evolve

from fafo_run.run.state import ClassCount, Snapshot
from fafo_run.watch import progress
from fafo_run.watch.progress import RunView

SEEN = Snapshot(
    by_class={"ask": ClassCount(10, 0, 0, 2, 0)},
    queued=0, in_flight=0, prompt_tokens=0, cached_tokens=0, expected_cached_tokens=0, output_tokens=0,
    finish_reasons={}, empty=0, rate=2.0, eta=None, notice="", elapsed=1.0, failures={},
)  # fmt: skip


@pytest.fixture(params=[False, True], ids=["text", "JSON"])
def lines(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.0)
    view = RunView(None, as_json=request.param)  # type: ignore[arg-type]

    def shown(*snapshots: Snapshot) -> list[str]:
        for snapshot in snapshots:
            view.tick(snapshot)
        lines = capsys.readouterr().err.splitlines()
        assert not request.param or all(json.loads(line)["event"] == "progress" for line in lines)
        return lines

    return shown


def test_a_line_is_printed_when_its_numbers_have_changed(lines: Callable[..., list[str]]) -> None:
    assert len(lines(SEEN)) == 1
    slower = (evolve(SEEN, rate=2.0 / second, elapsed=second, eta=second) for second in range(1, 9))
    assert lines(*slower) == [], "nothing has happened"
    for changed in (
        {"by_class": {"ask": ClassCount(11, 0, 0, 2, 0)}},
        {"by_class": {"ask": ClassCount(11, 0, 0, 3, 0)}},
        {"notice": "the engine gives no answers"},
        {"queued": 3},
    ):
        seen = evolve(SEEN, **changed)
        assert len(lines(seen, evolve(seen, rate=0.5))) == 1, changed


def test_what_is_as_before_again_is_told(lines: Callable[..., list[str]]) -> None:
    waits = evolve(SEEN, notice="no answers")
    assert len(lines(SEEN, waits, SEEN)) == 3
