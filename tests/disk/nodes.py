"""Files and folders of a simulated disk, each with what is durable of it and what isn't yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SECTOR = 512


class Bus(BaseException):
    """A store through a mapping into space that isn't there: SIGBUS."""


class Mapping(bytearray):
    """What `SimulatedDisk.map` returns. What is stored in it is found by comparing."""

    def close(self) -> None:
        """Stores that were made before the close stay."""
        self.node.absorb()
        self.node.maps = [mapping for mapping in self.node.maps if mapping is not self]

    node: FileNode


class FileNode:
    """A file, whatever its names are."""

    def __init__(self, number: int, data: bytes = b"") -> None:
        self.number = number
        self.live = bytearray(data)
        self.durable = data
        self.versions: dict[int, list[bytes]] = {}
        """Per unsynced sector, all that it held since the last sync."""
        self.sizes: list[int] = []
        """Since the last sync."""
        self.lost: set[int] = set()
        """Sectors that a refused sync dropped, and that weren't written again."""
        self.maps: list[Mapping] = []
        self.links = 0

    def copy(self) -> FileNode:
        """Return the same file, with what is in doubt, and with nobody's mappings."""
        self.absorb()
        other = FileNode(self.number, self.durable)
        other.live = bytearray(self.live)
        other.versions = {sector: list(held) for sector, held in self.versions.items()}
        other.sizes, other.lost, other.links = list(self.sizes), set(self.lost), self.links
        return other

    def write(self, data: bytes | memoryview, offset: int) -> None:
        if offset > len(self.live):
            self.live.extend(bytes(offset - len(self.live)))
        self.live[offset : offset + len(data)] = data
        if len(self.live) != (self.sizes[-1] if self.sizes else len(self.durable)):
            self.sizes.append(len(self.live))
        self._touch(offset, offset + len(data))
        for mapping in self.maps:
            end = min(offset + len(data), len(mapping))
            if end > offset:
                mapping[offset:end] = data[: end - offset]

    def truncate(self, size: int) -> None:
        self.absorb()
        old = len(self.live)
        if size < old:
            del self.live[size:]
            if size % SECTOR:
                self._touch(size, size + 1)
        else:
            self.live.extend(bytes(size - old))
        if size != old:
            self.sizes.append(size)

    def absorb(self) -> None:
        """Take in what was stored through mappings. Raises `Bus`."""
        stored: list[tuple[int, bytes]] = []
        for mapping in self.maps:
            shared = min(len(mapping), len(self.live))
            if len(mapping) > shared and any(mapping[shared:]):
                raise Bus
            if mapping[:shared] == self.live[:shared]:
                continue
            # Byte by byte where something differs: another mapping may have stored beside it.
            for start in range(0, shared, 64):
                stop = min(start + 64, shared)
                if mapping[start:stop] != self.live[start:stop]:
                    differing = [at for at in range(start, stop) if mapping[at] != self.live[at]]
                    stored += [(at, bytes(mapping[at : at + 1])) for at in differing]
        for at, data in stored:
            self.live[at : at + 1] = data
            for mapping in self.maps:
                if at < len(mapping):
                    mapping[at : at + 1] = data
        for sector in {at // SECTOR for at, _ in stored}:
            self._touch(sector * SECTOR, sector * SECTOR + 1)

    def sync(self) -> None:
        self.absorb()
        if not (self.versions or self.sizes):
            return
        data = bytes(self.live)
        if self.lost:
            parts = bytearray(data)
            for sector in self.lost:
                start = sector * SECTOR
                stop = min(start + SECTOR, len(parts))
                parts[start:stop] = self.durable[start:stop].ljust(max(stop - start, 0), b"\0")
            data = bytes(parts)
        self.durable = data
        self.versions = {sector: held for sector, held in self.versions.items() if sector in self.lost}
        self.sizes = []

    def refuse_sync(self) -> None:
        """The pages are marked clean, and nobody knows what was written."""
        self.absorb()
        self.lost.update(self.versions)

    def choices(self) -> tuple[list[int], list[int]]:
        """Return the sizes that it may have after a cut, and the sectors that are in doubt."""
        self.absorb()
        sizes = {len(self.durable), *self.sizes}
        low, high = min(sizes), max(sizes)
        if self.sizes:
            sizes.update(range((low // SECTOR + 1) * SECTOR, high, SECTOR))
        durable = len(self.durable)
        return [durable, *sorted(sizes - {durable})], sorted(self.versions)

    def surviving(self, size: int, kept: dict[int, int]) -> bytes:
        """Return the bytes of one survivor; `kept` says which version of a sector, 0 for what was durable."""
        data = bytearray(self.durable[:size].ljust(size, b"\0"))
        for sector, version in kept.items():
            start = sector * SECTOR
            if version and start < size:
                part = self.versions[sector][version - 1][: size - start]
                data[start : start + len(part)] = part
        return bytes(data)

    def _touch(self, start: int, stop: int) -> None:
        for sector in range(start // SECTOR, (stop - 1) // SECTOR + 1):
            self.lost.discard(sector)
            now = bytes(self.live[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")
            held = self.versions.setdefault(sector, [])
            if not held or held[-1] != now:
                held.append(now)


class Change:
    """Names of a folder that weren't synced: what goes and what comes, as one."""

    def __init__(self, gone: str | None, come: tuple[str, Node] | None, needs: Change | None = None) -> None:
        self.gone = gone
        self.come = come
        self.needs = needs
        """Of another folder: without it this one doesn't survive, for no file system loses a renamed file."""

    def apply(self, names: dict[str, Node]) -> None:
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.come is not None:
            names[self.come[0]] = self.come[1]


class FolderNode:
    """A folder."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.live: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes: list[Change] = []

    def change(self, gone: str | None, come: tuple[str, Node] | None, needs: Change | None = None) -> Change:
        change = Change(gone, come, needs)
        change.apply(self.live)
        self.changes.append(change)
        return change

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.changes = []


Node = FileNode | FolderNode


def files_in(folder: FolderNode, path: Path) -> Iterator[tuple[Path, FileNode]]:
    for name, node in sorted(folder.live.items()):
        if isinstance(node, FolderNode):
            yield from files_in(node, path / name)
        else:
            yield path / name, node


def all_of(node: FileNode) -> tuple[int, dict[int, int]]:
    node.absorb()
    return len(node.live), {sector: len(held) for sector, held in node.versions.items()}


def reachable(root: FolderNode) -> Iterator[tuple[FolderNode, list[FileNode]]]:
    """Yield every folder, and the files that some survivor may find in it; no file twice."""
    seen: set[int] = set()
    folders = [root]
    while folders:
        folder = folders.pop(0)
        come = [change.come[1] for change in folder.changes if change.come is not None]
        files: list[FileNode] = []
        for node in (*folder.durable.values(), *folder.live.values(), *come):
            if node.number in seen:
                continue
            seen.add(node.number)
            if isinstance(node, FolderNode):
                folders.append(node)
            else:
                files.append(node)
        yield folder, files
