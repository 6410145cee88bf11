"""The committed segments are read for ever; that they are written the same way is how a change is noticed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from attrs import evolve
from msgspec.structs import replace

from fafo_build.errors import StoreError
from fafo_run.item import FailureCode
from fafo_run.log.directory import RunDirectory
from fafo_run.log.dump import dump
from fafo_run.log.format import SegmentKind
from fafo_run.log.payload import FIELDS, ProvenanceCache
from fafo_run.log.recovery import recover
from fafo_run.queue import payload as queue_payload
from fafo_run.queue.reader import QueueReader
from fafo_run.results import payload as results_payload
from fafo_run.results.reader import open_reader
from tests.log_nouns import FAKE, JUDGE, failure, fixed_appender, item, output, provenance, record

GOLDEN = Path(__file__).parents[1] / "golden" / "log"
FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "format.md"
OTHER = provenance("explain", artifact="judge")

AGAIN = replace(item(5, suffix=()), attempts=2, retry=1, failure=failure(FailureCode.ROW_INVALID, "no ☃"))
ITEMS = [item(1), item(2, suffix=(65_536, 1)), item(3, OTHER), item(4, suffix=()), AGAIN]
RECORDS = [
    record(1),
    record(2, output((70_000,), finish="length"), server="http://localhost:30000"),
    record(3, failure(FailureCode.REJECTED, "no ☃ here")),
    record(4, output(())),
    evolve(record(5), retry=2, attempt=3),
]


def write(path: Path, kind: SegmentKind) -> bytes:
    """Write the golden segment anew and return its bytes."""
    cache = ProvenanceCache()
    with RunDirectory.own(path) as directory:
        appender = fixed_appender(directory, kind)
        if kind is SegmentKind.QUEUE:
            drafts = [queue_payload.draft(one, cache) for one in ITEMS]
        else:
            drafts = [results_payload.draft(one, cache) for one in RECORDS]
        segment = appender.commit(drafts)[0].segment
        appender.roll(segment)
        segment.writer.close()
        return segment.writer.file.path.read_bytes()


@pytest.mark.parametrize("kind", list(SegmentKind))
def test_segments_are_written_as_ever(tmp_path, kind):
    assert write(tmp_path / "run", kind) == (GOLDEN / f"{kind.name.lower()}.seg").read_bytes()


def test_segments_are_read_as_ever(tmp_path):
    with RunDirectory.own(tmp_path) as directory:
        (directory.queue / "00000001.seg").write_bytes((GOLDEN / "queue.seg").read_bytes())
        (directory.results / "00000001.seg").write_bytes((GOLDEN / "results.seg").read_bytes())
        report = recover(directory, thorough=True)
    assert report.findings == () and report.sealed == 0
    assert list(QueueReader.open(tmp_path).items()) == ITEMS
    reader = open_reader(tmp_path)
    assert list(reader.scan()) == RECORDS
    reader.close()
    assert ITEMS[0].provenance == JUDGE and RECORDS[0].provenance == FAKE


@pytest.mark.parametrize("kind", list(SegmentKind))
def test_dump_as_ever(kind):
    name = kind.name.lower()
    shown = "".join(json.dumps(thing) + "\n" for thing in dump(GOLDEN / f"{name}.seg"))
    assert shown == (GOLDEN / f"{name}.dump.jsonl").read_text()


def test_dump_shows_damage(tmp_path):
    data = bytearray((GOLDEN / "queue.seg").read_bytes())
    things = list(dump(GOLDEN / "queue.seg"))
    entries = [thing for thing in things if thing["what"] == "entry"]
    data[entries[1]["offset"] + 4] ^= 1
    data[entries[2]["offset"] + 50] ^= 1
    (tmp_path / "x.seg").write_bytes(bytes(data) + b"tail")
    shown = list(dump(tmp_path / "x.seg"))
    gaps = [thing for thing in shown if thing["what"] == "gap"]
    assert [gap["offset"] for gap in gaps] == [entries[2]["offset"], len(data)]
    assert gaps[0]["reason"] == "the checksum doesn't hold" and gaps[1]["tail"]
    odd = [thing for thing in shown if thing["what"] == "entry"][1]
    assert odd["marker"].startswith("odd 0x") and odd["checksum_ok"]


@pytest.mark.parametrize(("data", "message"), [(None, "no such file"), (b"x" * 5000, "not a segment")])
def test_dump_of_what_is_no_segment(tmp_path, data, message):
    if data is not None:
        (tmp_path / "x").write_bytes(data)
    with pytest.raises(StoreError, match=message) as caught:
        list(dump(tmp_path / "x"))
    assert caught.value.problems[0].cure


def test_the_page_has_the_picture_and_every_field():
    from fafo_run.log import format as layout

    page = FORMAT_PAGE.read_text()
    picture = (layout.__doc__ or "").split("\n\n", 1)[1]
    assert [line.strip() for line in picture.splitlines() if line.strip()] == [
        line.strip() for line in page.split("```text\n", 1)[1].split("```", 1)[0].splitlines() if line.strip()
    ]
    for names in FIELDS.values():
        for name in names:
            assert re.search(rf"`{name}`", page), f"docs/format.md doesn't describe {name}"
