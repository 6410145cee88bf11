from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest

from fafo_build.errors import StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, DiskFull, StoreGone
from fafo_run.log.listing import segments, strays
from fafo_run.log.locking import StoreBusy, StoreLock, boot_id, file_system, is_held
from fafo_run.log.quarantine import kept
from fafo_run.log.recovery import recover

HOLD = """
import sys
from pathlib import Path
from fafo_run.log.directory import RunDirectory
with RunDirectory.own(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_folder_of_a_new_run(tmp_path):
    with RunDirectory.own(tmp_path / "runs" / "main") as directory:
        names = {path.name for path in directory.path.iterdir()}
        assert names == {"LOCK", "FORMAT", "queue", "results", "index", "quarantine"}
        said = json.loads((directory.path / "FORMAT").read_text())
        assert said == {"format": 2, "store": directory.store, "byte_order": "little"}
        store = directory.store
    with RunDirectory.own(tmp_path / "runs" / "main") as directory:
        assert directory.store == store
    assert RunDirectory.look(tmp_path / "runs" / "main").store == store


def test_two_runs_on_one_store(tmp_path):
    with RunDirectory.own(tmp_path) as first, pytest.raises(StoreBusy, match=f"process {os.getpid()} "):
        RunDirectory.own(first.path)
    RunDirectory.own(tmp_path).close()


def test_another_process_is_named(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin and child.stdout
    assert child.stdout.readline() == "held\n"
    assert is_held(tmp_path / "LOCK")
    with pytest.raises(StoreBusy, match=f"process {child.pid} is using this store") as caught:
        RunDirectory.own(tmp_path)
    assert caught.value.problems[0].cure
    RunDirectory.look(tmp_path)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert not is_held(tmp_path / "LOCK")
    with RunDirectory.own(tmp_path):
        pass


@pytest.mark.parametrize("said", [b"", b"not json", b"[]", b'{"pid": 1}', b"\xff"])
def test_what_lock_contains_decides_nothing(tmp_path, said):
    (tmp_path / "LOCK").write_bytes(said)
    with RunDirectory.own(tmp_path) as directory:
        (tmp_path / "LOCK").write_bytes(said)
        with pytest.raises(StoreBusy, match="is using this store"):
            RunDirectory.own(directory.path)


def test_lock_deleted_while_held(tmp_path):
    with RunDirectory.own(tmp_path) as directory:
        assert directory.lock is not None
        (tmp_path / "LOCK").unlink()
        assert is_held(tmp_path / "LOCK")
        with pytest.raises(StoreBusy):
            RunDirectory.own(tmp_path)
        (tmp_path / "LOCK").write_bytes(b"")
        assert is_held(tmp_path / "LOCK")
        with pytest.raises(StoreBusy):
            RunDirectory.own(tmp_path)
    assert not is_held(tmp_path / "LOCK")
    assert not is_held(tmp_path / "nothing" / "LOCK") and not is_held(tmp_path / "LOCK" / "LOCK")


def test_a_lock_on_the_same_inode_of_another_device_holds_nothing(tmp_path, monkeypatch):
    (tmp_path / "LOCK").write_bytes(b"")
    status = (tmp_path / "LOCK").stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    locks = tmp_path / "locks"
    monkeypatch.setattr("fafo_run.log.locking._LOCKS", locks)
    line = "1: {kind}  ADVISORY  {mode} 4711 {device}:{inode} 0 EOF\n"
    for kind, mode, where, inode, held in [
        ("FLOCK", "WRITE", device, status.st_ino, True),
        ("FLOCK", "WRITE", device, tmp_path.stat().st_ino, True),
        ("FLOCK", "WRITE", "ff:ff", status.st_ino, False),
        ("FLOCK", "READ ", device, status.st_ino, False),
        ("POSIX", "WRITE", device, status.st_ino, False),
        ("FLOCK", "WRITE", device, f"1{status.st_ino}", False),
    ]:
        locks.write_text("broken\n" + line.format(kind=kind, mode=mode, device=where, inode=inode))
        assert is_held(tmp_path / "LOCK") is held, (kind, mode, where, inode)


def test_a_lock_is_found_under_the_device_of_its_mount(tmp_path, monkeypatch):
    (tmp_path / "LOCK").write_bytes(b"")
    mounts, locks = tmp_path / "mountinfo", tmp_path / "locks"
    mounts.write_text(f"30 22 0:255 / {tmp_path} rw - btrfs /dev/vda rw\n")
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 4711 00:ff:{(tmp_path / 'LOCK').stat().st_ino} 0 EOF\n")
    monkeypatch.setattr("fafo_run.log.locking._MOUNTS", mounts)
    monkeypatch.setattr("fafo_run.log.locking._LOCKS", locks)
    assert is_held(tmp_path / "LOCK")


def test_a_lock_that_was_replaced_between_open_and_flock(tmp_path):
    class Replacing(Disk):
        replaced = False

        def lock(self, fd, *, exclusive):
            got = super().lock(fd, exclusive=exclusive)
            if not self.replaced and (tmp_path / "LOCK").exists():
                self.replaced = True
                (tmp_path / "LOCK").unlink()
                (tmp_path / "LOCK").write_bytes(b"")
            return got

    lock = StoreLock.acquire(Replacing(), tmp_path / "LOCK")
    assert is_held(tmp_path / "LOCK")
    lock.release()
    lock.release()
    assert not lock.held and not is_held(tmp_path / "LOCK")


@pytest.mark.parametrize("call", ["truncate", "pwrite"])
def test_no_room_for_the_message_in_lock(tmp_path, call):
    class Full(Disk):
        pass

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    setattr(Full, call, refuse)
    with pytest.raises(DiskFull, match="no room to write") as caught:
        RunDirectory.own(tmp_path, Full())
    assert caught.value.problems[0].cure
    assert not is_held(tmp_path / "LOCK"), "nothing is held by a run that couldn't start"
    RunDirectory.own(tmp_path).close()


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:50 / {base}/net rw - nfs4 server:/x rw
31 22 0:51 / {base}/net/local rw - tmpfs tmpfs rw
broken line
"""


def test_file_system_of_a_folder(tmp_path):
    mounts = MOUNTS.format(base=tmp_path)
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(tmp_path / "net" / "run", mounts) == "nfs4"
    assert file_system(tmp_path / "network", mounts) == "ext4"
    assert file_system(tmp_path / "net" / "local", mounts) == "tmpfs"
    assert file_system(tmp_path, "") is None


def test_a_network_file_system_is_refused_unless_forced(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(base=tmp_path))
    monkeypatch.setattr("fafo_run.log.locking._MOUNTS", mounts)
    with pytest.raises(StoreError, match="network file system \\(nfs4\\)"):
        RunDirectory.own(tmp_path / "net" / "run")
    RunDirectory.own(tmp_path / "net" / "run", force=True).close()


DEEP = b"[" * 100_000
"""What a JSON reader that calls itself gives up on."""


@pytest.mark.parametrize("said", [b"", b"{", b"[]", DEEP, b'{"format": 2}'])
def test_a_format_file_that_cannot_be_read(tmp_path, said):
    (tmp_path / "FORMAT").write_bytes(said)
    for attempt in (RunDirectory.own, RunDirectory.look):
        with pytest.raises(StoreError, match="FORMAT can't be read"):
            attempt(tmp_path)


@pytest.mark.parametrize("changed", [{"format": 3}, {"byte_order": "big"}])
def test_a_store_of_another_format(tmp_path, changed):
    said = {"format": 2, "store": "0" * 32, "byte_order": "little"} | changed
    (tmp_path / "FORMAT").write_text(json.dumps(said))
    with pytest.raises(StoreError, match="this fafo reads 2") as caught:
        RunDirectory.own(tmp_path)
    assert "version of fafo" in (caught.value.problems[0].cure or "")


def test_running_tells_an_unclean_end(tmp_path):
    with RunDirectory.own(tmp_path) as directory:
        assert directory.stopped_cleanly()
        directory.mark_running()
        said = json.loads((tmp_path / "RUNNING").read_text())
        assert said["pid"] == os.getpid() and said["boot_id"] == boot_id()
    with RunDirectory.own(tmp_path) as directory:
        assert not directory.stopped_cleanly()
        directory.mark_stopped()
        directory.mark_stopped()
        assert directory.stopped_cleanly()


def test_progress_is_replaced_whole(tmp_path):
    with RunDirectory.own(tmp_path) as directory:
        assert directory.read_progress() is None
        directory.write_progress({"done": 3})
        assert RunDirectory.look(tmp_path).read_progress() == {"done": 3}
        for said in (b"{", b"[1]", b"\xff", b'{"eta": NaN}', b'{"eta": 1e999}', DEEP):
            (tmp_path / "progress.json").write_bytes(said)
            assert directory.read_progress() is None
    assert not list(tmp_path.glob("*.tmp"))


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path):
    with RunDirectory.own(tmp_path) as directory:
        for name in ("FORMAT", "progress.json", "RUNNING"):
            (tmp_path / name).unlink(missing_ok=True)
            os.mkfifo(tmp_path / name)
        assert directory.read_progress() is None
        assert directory.running_boot() == ""
        with pytest.raises(StoreError, match="FORMAT can't be read"):
            RunDirectory.look(tmp_path)


def test_a_folder_whose_files_cannot_be_looked_at(tmp_path):
    class Refusing(Disk):
        def is_file(self, path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with RunDirectory.own(tmp_path) as directory:
        for folder in (directory.queue, directory.results, directory.quarantine):
            (folder / "00000001.seg").touch()
        looks = (
            lambda: segments(Refusing(), directory.queue),
            lambda: strays(Refusing(), directory.queue),
            lambda: list(kept(RunDirectory(tmp_path, Refusing(), directory.store))),
        )
        for look in looks:
            with pytest.raises(StoreError, match="Permission denied"):
                look()


def test_a_lock_that_cannot_be_looked_at(tmp_path):
    (tmp_path / "LOCK").symlink_to("LOCK")
    with pytest.raises(StoreError, match="the disk refused"):
        is_held(tmp_path / "LOCK")


def test_looking_makes_nothing(tmp_path):
    with pytest.raises(StoreError, match="no store is here"):
        RunDirectory.look(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in ("file", "file/run", "file/runs/main"):
        with pytest.raises(StoreError, match="a file is where a folder has to be") as caught:
            RunDirectory.own(tmp_path / path)
        assert caught.value.problems[0].file == str(tmp_path / "file")
    (tmp_path / "nowhere").symlink_to(tmp_path / "not" / "there")
    with pytest.raises(StoreError, match="a link to nowhere is where a folder has to be"):
        RunDirectory.own(tmp_path / "nowhere" / "main")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_parent_that_cannot_be_made(tmp_path, number):
    class Refusing(Disk):
        def mkdir(self, path):
            raise OSError(number, os.strerror(number))

    with pytest.raises(StoreError, match=os.strerror(number)):
        RunDirectory.own(tmp_path / "runs" / "main", Refusing())


def test_a_folder_that_cannot_be_looked_into(tmp_path):
    class Refusing(Disk):
        def inode(self, path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(StoreError, match="Permission denied"):
        RunDirectory.own(tmp_path / "runs" / "main", Refusing())


def test_the_folder_is_gone_while_a_run_works(tmp_path):
    with RunDirectory.own(tmp_path / "main") as directory:
        directory.mark_running()
        shutil.rmtree(directory.path)
        for write in (
            directory.mark_running,
            directory.mark_stopped,
            lambda: directory.write_progress({}),
            lambda: recover(directory),
        ):
            with pytest.raises(StoreGone, match="the run's folder is gone") as caught:
                write()
            assert caught.value.problems[0].cure
