"""A disk in memory that knows what a power cut may leave of it.

What isn't synced is kept apart: per file the 512-byte sectors and the size, per folder the names. A survivor
takes any of them in any mixture. After a refused sync the kernel believes that its pages are clean, and so
does this disk: a later sync that succeeds doesn't write them.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fafo_run.log.fs import Disk
from tests.disk.mixtures import mixture, mixtures
from tests.disk.nodes import Change, FileNode, FolderNode, Mapping, Node, all_of, files_in, reachable

_FIRST_FD = 1_000_000
"""No descriptor of this process: a call that goes past this disk fails."""


class SimulatedDisk(Disk):
    """A file system in memory; `survivors` are what a power cut at this moment may leave.

    `room` is how many bytes all files together may take; None for any number.
    """

    def __init__(self) -> None:
        self.root = FolderNode(1)
        self.room: int | None = None
        self._numbers = itertools.count(2)
        self._fds = itertools.count(_FIRST_FD)
        self._open: dict[int, tuple[Node, int, Path]] = {}
        self._locks: dict[int, dict[int, bool]] = {}

    # The calls.

    def open(self, path: Path, flags: int) -> int:
        folder, name = self._place(path)
        node = folder.live.get(name) if name else folder
        writes = flags & (os.O_RDWR | os.O_WRONLY)
        if node is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            node = FileNode(next(self._numbers))
            node.links = 1
            folder.change(None, (name, node))
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            raise _error(errno.EEXIST, path)
        elif isinstance(node, FolderNode):
            if writes or flags & os.O_CREAT:
                raise _error(errno.EISDIR, path)
        elif flags & os.O_TRUNC and writes:
            node.truncate(0)
        fd = next(self._fds)
        self._open[fd] = (node, flags, path)
        return fd

    def close(self, fd: int) -> None:
        node = self._opened(fd)[0]
        del self._open[fd]
        self._locks.get(node.number, {}).pop(fd, None)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        node = self._file(fd)
        if node.maps:
            node.absorb()
        return bytes(node.live[offset : offset + length])

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        node = self._file(fd, write=True)
        node.absorb()
        room = len(data)
        if self.room is not None:
            grows = max(offset + len(data) - len(node.live), 0)
            room -= max(grows - max(self.room - self.used(), 0), 0)
            if room <= 0 < len(data):
                raise _error(errno.ENOSPC, self.path_of(fd))
        node.write(bytes(data[:room]), offset)
        return room

    def size(self, fd: int) -> int:
        return len(self._file(fd).live)

    def links(self, fd: int) -> int:
        return self._file(fd).links

    def fdatasync(self, fd: int) -> None:
        self._file(fd).sync()

    def truncate(self, fd: int, size: int) -> None:
        self._file(fd, write=True).truncate(size)

    def map(self, fd: int, length: int) -> Any:
        node = self._file(fd, write=True)
        node.absorb()
        if length > len(node.live):
            raise ValueError("mmap length is greater than file size")
        mapping = Mapping(node.live[:length])
        mapping.node = node
        node.maps.append(mapping)
        return mapping

    def lock(self, fd: int, *, exclusive: bool) -> bool:
        holders = self._locks.setdefault(self._opened(fd)[0].number, {})
        others = [held for holder, held in holders.items() if holder != fd]
        if any(others) or (exclusive and others):
            return False
        holders[fd] = exclusive
        return True

    def inode(self, path: Path | int) -> tuple[int, int] | None:
        node = self._opened(path)[0] if isinstance(path, int) else self._node(path)
        return (0, node.number) if node is not None else None

    def is_file(self, path: Path) -> bool:
        return isinstance(self._node(path), FileNode)

    def is_folder(self, path: Path) -> bool:
        return isinstance(self._node(path), FolderNode)

    def listdir(self, path: Path) -> list[str]:
        return sorted(self._folder(path).live)

    def mkdir(self, path: Path) -> None:
        folder, name = self._place(path)
        if not name or name in folder.live:
            raise _error(errno.EEXIST, path)
        folder.change(None, (name, FolderNode(next(self._numbers))))

    def rename(self, old: Path, new: Path) -> None:
        source, name = self._place(old)
        target, new_name = self._place(new)
        node = source.live.get(name)
        if node is None:
            raise _error(errno.ENOENT, old)
        replaced = target.live.get(new_name)
        if replaced is node:
            return
        if isinstance(replaced, FolderNode) and isinstance(node, FileNode):
            raise _error(errno.EISDIR, new)
        if isinstance(replaced, FileNode):
            replaced.links -= 1
        if source is target:
            source.change(name, (new_name, node))
        else:
            source.change(name, None, needs=target.change(None, (new_name, node)))

    def unlink(self, path: Path) -> None:
        folder, name = self._place(path)
        node = folder.live.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, FolderNode):
            raise _error(errno.EISDIR, path)
        node.links -= 1
        folder.change(name, None)

    def sync_dir(self, path: Path) -> None:
        self._folder(path).sync()

    # What tests ask.

    def refuse_sync(self, fd: int) -> None:
        """Do what a kernel does when the disk refuses a sync, and what the caller then can't know."""
        self._file(fd).refuse_sync()

    def path_of(self, fd: int) -> Path:
        """Return a path of an open file; one without a name has the path that it was opened by."""
        node, _, opened = self._opened(fd)
        if self._node(opened) is node:
            return opened
        return next((path for path, found in self.files() if found is node), opened)

    def used(self) -> int:
        """Return how many bytes all files take."""
        return sum(len(node.live) for _, node in self.files())

    def files(self) -> Iterator[tuple[Path, FileNode]]:
        """Yield every file with its path, in the order of their paths."""
        yield from files_in(self.root, Path("/"))

    def read(self, path: Path) -> bytes:
        """Return a file's bytes as they are seen now."""
        node = self._node(path)
        assert isinstance(node, FileNode), path
        node.absorb()
        return bytes(node.live)

    def spoil(self, path: Path, data: bytes) -> None:
        """Let a file hold other bytes, durably, as when a disk rots."""
        node = self._node(path)
        assert isinstance(node, FileNode), path
        node.live, node.durable = bytearray(data), data

    def fingerprint(self, but: Callable[[Path], bool] = lambda _: False) -> bytes:
        """Return a hash of all paths and, `but` for some, of what the files hold."""
        whole = hashlib.blake2b(digest_size=16)
        for path, node in self.files():
            node.absorb()
            data = b"" if but(path) else bytes(node.live)
            whole.update(b"%b\0%d\0" % (str(path).encode(), len(data)))
            whole.update(data)
        return whole.digest()

    def untouched(self) -> SimulatedDisk:
        """Return a disk that holds what is seen now, all of it durable, and that nobody uses."""
        return self._copy(lambda folder: folder.live, lambda node: node.surviving(*all_of(node)))

    def killed(self) -> SimulatedDisk:
        """Return the disk as the next process finds it after a kill: what isn't durable still isn't."""
        disk = SimulatedDisk()
        disk._numbers = itertools.count(next(self._numbers))
        known: dict[int, Node] = {}

        def node_of(node: Node) -> Node:
            if node.number not in known:
                if isinstance(node, FileNode):
                    known[node.number] = node.copy()
                else:
                    known[node.number] = made = FolderNode(node.number)
                    made.live = {name: node_of(inner) for name, inner in node.live.items()}
                    made.durable = {name: node_of(inner) for name, inner in node.durable.items()}
                    made.changes = [change_of(change) for change in node.changes]
            return known[node.number]

        def change_of(change: Change) -> Change:
            if id(change) not in changes:
                come = change.come and (change.come[0], node_of(change.come[1]))
                needs = change.needs and change_of(change.needs)
                changes[id(change)] = Change(change.gone, come, needs)
            return changes[id(change)]

        changes: dict[int, Change] = {}
        root = node_of(self.root)
        assert isinstance(root, FolderNode)
        disk.root = root
        return disk

    def survivors(self, limit: int, chance: random.Random) -> Iterator[SimulatedDisk]:
        """Yield disks that a cut at this moment may leave: all, or `limit` of the most telling ones."""
        doubts, count = self._doubts()
        for chosen in mixtures([len(options) for options in count], limit, chance):
            yield self._survivor(doubts, count, chosen)

    def survivor(self, chance: random.Random) -> SimulatedDisk:
        """Return one disk that a cut at this moment may leave."""
        doubts, count = self._doubts()
        return self._survivor(doubts, count, mixture([len(options) for options in count], chance))

    def _doubts(self) -> tuple[list[tuple[Any, ...]], list[Sequence[Any]]]:
        """Return what is uncertain, and the possibilities of each: the first is that nothing survives."""
        doubts: list[tuple[Any, ...]] = []
        options: list[Sequence[Any]] = []
        for folder, files in reachable(self.root):
            for change in folder.changes:
                doubts.append((change,))
                options.append((False, True))
            for node in files:
                sizes, sectors = node.choices()
                if len(sizes) > 1:
                    doubts.append((node, "size"))
                    options.append(sizes)
                for sector in sectors:
                    doubts.append((node, sector))
                    options.append(range(len(node.versions[sector]) + 1))
        return doubts, options

    def _survivor(
        self, doubts: list[tuple[Any, ...]], options: list[Sequence[Any]], chosen: Sequence[int]
    ) -> SimulatedDisk:
        kept: set[Change] = set()
        sizes: dict[int, int] = {}
        sectors: dict[int, dict[int, int]] = {}
        for doubt, possible, index in zip(doubts, options, chosen, strict=True):
            if len(doubt) == 1:
                if index:
                    kept.add(doubt[0])
            elif doubt[1] == "size":
                sizes[doubt[0].number] = possible[index]
            else:
                sectors.setdefault(doubt[0].number, {})[doubt[1]] = index

        def names(folder: FolderNode) -> dict[str, Node]:
            found = dict(folder.durable)
            for change in folder.changes:
                if change in kept and (change.needs is None or change.needs in kept):
                    change.apply(found)
            return found

        def data(node: FileNode) -> bytes:
            return node.surviving(sizes.get(node.number, len(node.durable)), sectors.get(node.number, {}))

        return self._copy(names, data)

    def _copy(
        self, names: Callable[[FolderNode], dict[str, Node]], data: Callable[[FileNode], bytes]
    ) -> SimulatedDisk:
        disk = SimulatedDisk()
        known: dict[int, FileNode] = {}

        def copy(folder: FolderNode, made: FolderNode) -> None:
            for name, node in names(folder).items():
                if isinstance(node, FolderNode):
                    inner = FolderNode(next(disk._numbers))
                    copy(node, inner)
                    made.live[name] = inner
                    continue
                if node.number not in known:
                    known[node.number] = FileNode(next(disk._numbers), data(node))
                known[node.number].links += 1
                made.live[name] = known[node.number]
            made.durable = dict(made.live)

        copy(self.root, disk.root)
        return disk

    def _opened(self, fd: int) -> tuple[Node, int, Path]:
        try:
            return self._open[fd]
        except KeyError:
            raise _error(errno.EBADF, Path(str(fd))) from None

    def _file(self, fd: int, *, write: bool = False) -> FileNode:
        node, flags, path = self._opened(fd)
        if isinstance(node, FolderNode):
            raise _error(errno.EISDIR, path)
        if write and not flags & (os.O_RDWR | os.O_WRONLY):
            raise _error(errno.EBADF, path)
        return node

    def _node(self, path: Path) -> Node | None:
        node: Node | None = self.root
        for name in path.parts[1:]:
            node = node.live.get(name) if isinstance(node, FolderNode) else None
        return node

    def _folder(self, path: Path) -> FolderNode:
        node = self._node(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _place(self, path: Path) -> tuple[FolderNode, str]:
        return self._folder(path.parent), path.name


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
