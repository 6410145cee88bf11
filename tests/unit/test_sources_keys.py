"""Keys that stand twice are found wherever the first one lies: in memory, or in a file."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fafo_build.errors import StoreError
from fafo_run.sources.keys import Keys, Twice
from tests.helpers import REPO


def twice(root: Path, *keys: tuple[str, bytes, str], in_memory: int) -> list[Twice]:
    with Keys(root, in_memory) as found:
        at_once = [each for key in keys if (each := found.put(*key))]
        later = list(found.later())
    assert list(root.iterdir()) == [], "nothing is left behind"
    return at_once + later


@pytest.mark.parametrize("in_memory", [200_000, 7, 1, 0])
def test_each_later_one_is_told_once_with_both_places(in_memory: int, tmp_path: Path) -> None:
    keys = [(f"k{number}", b"same", f"a:{number}") for number in range(40)]
    more = [("k3", b"same", "b:1"), ("k39", b"other", "b:2"), ("k3", b"same", "b:3"), ("new", b"", "b:4")]
    found = twice(tmp_path, *keys, *more, in_memory=in_memory)
    assert {(each.name, each.is_equal, each.second) for each in found} == {
        ("k3", True, "b:1"), ("k3", True, "b:3"), ("k39", False, "b:2"),
    }  # fmt: skip
    assert len(found) == 3
    assert {"a:39"} < {each.first for each in found} <= {"a:3", "a:39", "b:1"}


def test_a_place_may_be_in_a_file_whose_name_is_no_utf8(tmp_path: Path) -> None:
    where = b"caf\xe9.csv:7".decode("utf-8", "surrogateescape")
    (found,) = twice(tmp_path, ("k", b"a", where), ("k", b"b", "x:1"), in_memory=0)
    assert (found.first, found.second) == (where, "x:1")


def open_in(folder: Path) -> list[int]:
    """Return the sizes of the files that this process has open in a folder, with a name or without."""
    links = [(link, str(link.readlink())) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link.stat().st_size for link, target in links if target.startswith(f"{folder}/")]


def test_no_more_than_so_many_are_in_memory_and_one_file_is_open(tmp_path: Path) -> None:
    with Keys(tmp_path, 5) as keys:
        for number in range(1_000):
            keys.put(f"k{number}", b"", "")
        (size,) = open_in(tmp_path)
        assert size > (1_000 - 5) * len("k000")
        assert list(keys.later()) == []
    assert open_in(tmp_path) == []


KILLED = """
import os, sys
from pathlib import Path
from fafo_run.sources.keys import Keys
with Keys(Path(sys.argv[1]), 5) as keys:
    for number in range(1_000):
        keys.put(f"k{number}", b"", "")
    os.kill(os.getpid(), 9)
"""


def test_who_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=REPO, check=False)
    assert done.returncode == -signal.SIGKILL and list(tmp_path.iterdir()) == []


def test_a_file_that_cant_be_made_or_written_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError) as caught, Keys(tmp_path / "nowhere", 0) as keys:
        keys.put("k", b"", "")
    assert caught.value.problems[0].file == str(tmp_path / "nowhere")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StoreError) as caught, Keys(tmp_path, 0) as keys:
            for number in range(1_000):
                keys.put(f"k{number}", b"", "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.problems[0].file == str(tmp_path) and list(tmp_path.iterdir()) == []
