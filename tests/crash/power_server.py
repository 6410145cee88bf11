"""Cuts the power of an ext4 file system under a worker, again and again, by the shutdown call that ext4 has.

A process of its own, since it forks: `python -m tests.crash.power_server FOLDER …` prints JSON. It needs
root, `mkfs.ext4` and a loop device. What isn't synced when the power goes is gone, or partly there; the
journal is replayed when the image is mounted again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import struct
import subprocess
from pathlib import Path

from fafo_build.errors import StoreError
from fafo_run.log.fs import Disk
from tests.crash.forking import BROKEN, Told
from tests.crash.kill_server import Loop
from tests.disk.oracle import Broken

_SHUTDOWN = 0x8004587D
_MODES = (0, 1, 2, 2, 2)
"""Flush everything, flush the log, flush nothing; see `EXT4_GOING_FLAGS_`."""
CUTS_PER_IMAGE = 25
IMAGE_BYTES = 128 << 20


class Unsynced(Disk):
    """A seeded fault: results aren't synced."""

    def fdatasync(self, fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().parent.name != "results":
            super().fdatasync(fd)


class PowerLoop(Loop):
    """Cuts instead of killing."""

    disk = Disk
    # ext4's shutdown isn't quite a power cut: a sync that was under way may say afterwards that all is well,
    # since the transaction that it waited for was thrown away meanwhile.
    believed_to_the_end = False

    def run(self, cycles: int) -> None:
        image, mount = self.folder / "image", self.folder / "mount"
        mount.mkdir()
        for first in range(0, cycles, CUTS_PER_IMAGE):
            with image.open("wb") as file:
                file.truncate(IMAGE_BYTES)
            command("mkfs.ext4", "-q", "-F", "-b", "4096", str(image))
            oracle = Told()
            for _ in range(min(CUTS_PER_IMAGE, cycles - first)):
                with mounted(image, mount):
                    self.cycle(mount / "run", oracle)
            with mounted(image, mount):
                self.finish(mount / "run", oracle)

    def meanwhile(self, path: Path) -> None:
        """Have the kernel write back some file now: what is on the disk at a cut is then a mixture."""
        files = sorted(file for file in path.rglob("*.seg*") if file.is_file()) if path.is_dir() else []
        if not files or self.chance.random() < 0.5:
            return
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.chance.choice(files), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def strike(self, path: Path, pid: int) -> None:
        fd = os.open(path.parent, os.O_RDONLY)
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", self.chance.choice(_MODES)))
        os.close(fd)
        super().strike(path, pid)

    def expected(self, code: int) -> bool:
        # Without a disk under it a worker may end in many ways before it is killed: SIGBUS is one.
        return code not in (0, BROKEN)


@contextlib.contextmanager
def mounted(image: Path, mount: Path):
    command("mount", "-o", "loop", str(image), str(mount))
    try:
        yield
    finally:
        command("umount", str(mount))


def command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=["", "unsynced", "early", "markers"], default="")
    asked = parser.parse_args()
    loop = PowerLoop(asked.folder, asked.seed, asked.fault)
    if asked.fault == "unsynced":
        loop.disk = Unsynced
    broken = ""
    try:
        loop.run(asked.cycles)
    except (Broken, StoreError) as error:
        broken = f"seed {asked.seed}, after {loop.killed} cuts: {error}"
    told = {"broken": broken, "cuts": loop.killed, "early": loop.early, "acknowledged": loop.acknowledged}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
