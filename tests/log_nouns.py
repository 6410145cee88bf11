"""Nouns for the tests of the log, the queue and the results."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

from fafo_run import identity
from fafo_run.item import (
    Failure,
    FailureCode,
    FinishReason,
    Ids,
    Output,
    Provenance,
    QueuedItem,
    Record,
    Stage,
    pack_ids,
)
from fafo_run.log.appender import Appender
from fafo_run.log.batch import Entry
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Header, SegmentKind
from fafo_run.log.fs import Disk, File
from fafo_run.log.reader import Scan, read_header, scan


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def provenance(name: str = "judge", *, engine: str = "", artifact: str = "") -> Provenance:
    return Provenance(
        class_name=name,
        source="elements",
        artifact=digest(artifact or name),
        model="models/tiny@1",
        model_fingerprint=digest("tiny"),
        sampling={"max_new_tokens": 8, "stop": ["\n", None], "temperature": 0.5},
        sampling_hash=digest("sampling"),
        engine=engine,
        engine_version="1.0" if engine else "",
        engine_settings={"dtype": "float32", "nested": {"a": [1, 2.5, True]}} if engine else {},
        fafo_version="0.1.0",
    )


JUDGE = provenance()
FAKE = provenance(engine="fake")


def name_of(number: int) -> bytes:
    return hashlib.sha256(b"item %d" % number).digest()[:16]


def item(
    number: int, said: Provenance = JUDGE, *, lane: int = 512, suffix: Ids = (5, 6, 65535)
) -> QueuedItem:
    return QueuedItem(
        identity=name_of(number),
        provenance=said,
        key=f"k{number}é",
        sample=number % 3,
        seed=identity.seed(name_of(number)),
        content_hash=hashlib.sha256(b"row %d" % number).digest(),
        suffix=pack_ids(suffix),
        bounds=((0, 1), (1, len(suffix))),
        prompt_tokens=300 + len(suffix),
        lane=lane,
    )


def record(
    number: int,
    outcome: Output | Failure | None = None,
    said: Provenance = FAKE,
    *,
    lane: int = 512,
    server: str = "",
    suffix: Ids = (5, 6, 65535),
) -> Record:
    queued = item(number, said, lane=lane, suffix=suffix)
    return Record(
        identity=queued.identity,
        provenance=said,
        key=queued.key,
        sample=queued.sample,
        seed=queued.seed,
        content_hash=queued.content_hash,
        suffix=queued.suffix,
        bounds=queued.bounds,
        prompt_tokens=queued.prompt_tokens,
        lane=lane,
        attempt=1,
        server=server,
        started=1_700_000_000.25 + number,
        seconds=0.125,
        outcome=outcome if outcome is not None else output(),
    )


def output(ids: Ids = (1, 2, 3), *, cached: int = 256, expected: int = 288, finish: str = "stop") -> Output:
    return Output(ids, FinishReason(finish, 3 if finish == "stop" else None), cached, expected)


def failure(code: FailureCode = FailureCode.TOO_LONG, message: str = "too long") -> Failure:
    return Failure(code, Stage.PROMPT, message)


def fixed_appender(directory: RunDirectory, kind: SegmentKind, **settings: int) -> Appender:
    """An appender whose segments are the same bytes every time."""
    uuids = (bytes([kind]) * 15 + bytes([number]) for number in itertools.count(1))
    return Appender(
        directory,
        kind,
        now=lambda: 1_700_000_000_000_000_000,
        new_uuid=lambda: next(uuids),
        **settings,
    )


def look(path: Path) -> tuple[Header, Scan, list[Entry]]:
    """Walk a segment file."""
    file = File(Disk(), path)
    try:
        header, _ = read_header(file)
        assert header is not None
        entries: list[Entry] = []
        found = scan(file, header, entries.append)
        return header, found, entries
    finally:
        file.close()
