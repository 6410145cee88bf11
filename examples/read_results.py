"""Reads what a run has brought, without fafo: all that it knows stands in docs/format.md.

python read_results.py runs/main     one JSON line per item that has a result; needs msgspec and xxhash
"""

import json
import struct
import sys
from pathlib import Path

import msgspec
import xxhash

OUTPUT, FAILURE, PROVENANCE, WIDE = 2, 3, 4, 1 << 31
ENTRY, FIELDS = struct.Struct("<4sIII16sQ"), {OUTPUT: 18, FAILURE: 16, PROVENANCE: 12}


def uuid_of(data):
    """Return the uuid in the first header that is whole; None when neither of the two is."""
    for copy in data[:2048], data[2048:4096]:
        checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(copy[:2040]))
        if copy[:8] == b"FAFOSEG\n" and copy[2040:] == checksum:
            if struct.unpack_from("<II", copy, 8) != (2, 2):
                sys.exit("this reads results of format version 2, and nothing else")
            return copy[24:40]
    return None


def entries(data):
    """Yield kind, kind and flags, identity and fields of every valid entry, whatever stands between them."""
    at, uuid = 4096, uuid_of(data)
    while uuid and (at := data.find(b"\xfa\xf0EN", at)) >= 0 and at + 40 <= len(data):
        magic, _, length, word, identity, checksum = ENTRY.unpack_from(data, at)
        end, payload = at + (40 + length + 7) // 8 * 8, data[at + 40 : at + 40 + min(length, 64 << 20)]
        covered = uuid + struct.pack("<Q4sII16s", at, magic, length, word, identity) + payload
        if at % 8 or end > len(data) or xxhash.xxh3_64_intdigest(covered) != checksum:
            at += 1
            continue
        at, kind = end, word & 0xFFFF
        fields = msgspec.msgpack.decode(payload) if kind in FIELDS else []
        if len(fields) == FIELDS.get(kind):
            yield kind, word, identity, fields


best = {}  # identity: rank and line. The higher rank counts, of equal ones the first; outputs are highest.
segments = [path for path in Path(sys.argv[1], "results").glob("*.seg") if path.stem.isdecimal()]
for path in sorted(segments, key=lambda path: int(path.stem)):
    found = list(entries(path.read_bytes()))
    said = {fields[0]: fields for kind, _, _, fields in found if kind == PROVENANCE}
    for kind, word, identity, fields in found:
        rank = 1 << 32 if kind == OUTPUT else fields[12] if kind == FAILURE else -1
        if fields[0] not in said or rank <= best.get(identity, (-1, ""))[0]:
            continue
        line = {"identity": identity.hex(), "class": said[fields[0]][1], "source": said[fields[0]][2]}
        line |= {"key": fields[1], "failure" if kind == FAILURE else "output_ids": fields[13:16]}
        if kind == OUTPUT:
            size, letter = (4, "I") if word & WIDE else (2, "H")
            line["output_ids"] = struct.unpack(f"<{len(fields[13]) // size}{letter}", fields[13])
        best[identity] = rank, json.dumps(line)
print("\n".join(line for _, line in best.values()))
