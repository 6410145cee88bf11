"""Shows what is inside one segment, for people: every entry and every gap. It trusts and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fafo_build.errors import Problem, StoreError
from fafo_run.log import format as layout
from fafo_run.log.batch import Entry
from fafo_run.log.format import LIVE, RETIRED, WIDE, Kind
from fafo_run.log.fs import Disk, File
from fafo_run.log.payload import FIELDS, Undecodable, ids_of, unpack
from fafo_run.log.reader import Gap, read_header, walk

_MARKERS = {LIVE: "live", RETIRED: "retired"}
_KINDS = {int(kind): kind.name.lower() for kind in Kind}
_IDS = frozenset({"suffix", "ids"})


def dump(path: Path, disk: Disk | None = None) -> Iterator[dict[str, Any]]:
    """Yield one JSON-ready dict per thing in the file, in order; `what` is header, entry, gap or seal.

    Raises `StoreError` when the file can't be read, has no readable header, or is of another version.
    """
    try:
        file = File(disk or Disk(), path)
    except FileNotFoundError as error:
        cure = "segments are RUN/queue/*.seg and RUN/results/*.seg"
        raise StoreError(Problem("no such file", file=str(path), cure=cure)) from error
    try:
        header, both = read_header(file)
        if header is None:
            cure = "`fafo run` puts such a file aside, in quarantine/"
            raise StoreError(Problem("no readable header: not a segment", file=str(path), cure=cure))
        yield {
            "what": "header",
            "version": layout.VERSION,
            "kind": header.kind.name.lower(),
            "sequence": header.sequence,
            "uuid": header.uuid.hex(),
            "model_fingerprint": header.model_fingerprint.hex(),
            "artifact": header.artifact.hex(),
            "lane": header.lane,
            "created_ns": header.created,
            "both_copies_whole": both,
        }
        for found in walk(file, header):
            yield _gap(found) if isinstance(found, Gap) else _entry(found)
    finally:
        file.close()


def _gap(gap: Gap) -> dict[str, Any]:
    return {
        "what": "gap",
        "offset": gap.offset,
        "length": gap.length,
        "checksum_ok": False,
        "reason": gap.reason,
        "tail": gap.tail,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    if entry.kind == Kind.SEAL and (seal := layout.unpack_seal(entry.payload)) is not None:
        return {
            "what": "seal",
            "offset": entry.offset,
            "checksum_ok": True,
            "count": seal.count,
            "end": seal.end,
            "digest": f"{seal.digest:016x}",
        }
    if entry.kind == Kind.COMMIT and (digest := layout.unpack_commit(entry.payload)) is not None:
        return {
            "what": "commit",
            "offset": entry.offset,
            "checksum_ok": True,
            "digest": f"{digest:016x}",
        }
    return {
        "what": "entry",
        "offset": entry.offset,
        "marker": _MARKERS.get(entry.marker, f"odd 0x{entry.marker:08x}"),
        "kind": _KINDS.get(entry.kind, f"unknown {entry.kind}"),
        "identity": entry.identity.hex(),
        "checksum_ok": True,
        "length": len(entry.payload),
        "payload": _payload(entry),
    }


def _payload(entry: Entry) -> dict[str, Any]:
    try:
        fields = unpack(entry.payload, entry.kind)
        return {
            name: _shown(name, value, entry.word)
            for name, value in zip(FIELDS[entry.kind], fields, strict=True)
        }
    except Undecodable as error:
        return {"undecodable": str(error)}


def _shown(name: str, value: Any, word: int) -> Any:
    if not isinstance(value, bytes):
        return value
    if name in _IDS:
        return {"bits": 32 if word & WIDE else 16, "ids": list(ids_of(word, value))}
    return value.hex()
