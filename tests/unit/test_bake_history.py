"""Which artifact a class had before, also after builds that were killed half-way."""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import project, write
from build_kit import change_prompt, child, exam, quick_model, small

from fafo_build.bake.bake import build
from fafo_build.bake.history import encode_history, history_path, previous, read_history, remembered
from fafo_build.bake.lock import lock_path
from fafo_build.errors import BakeError

__all__ = ["quick_model"]
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def there(root: Path, *artifacts: str) -> Path:
    write(root, {f"artifacts/{made}.json": "x" for made in artifacts})
    return root


def test_the_newest_before_the_present_one_that_is_still_there(tmp_path: Path) -> None:
    build_dir = there(tmp_path, A, B, C)
    history = remembered(remembered({}, {"exam": (A, B)}), {"exam": (B, C)})
    assert history == {"exam": (C, B, A)}
    assert previous(build_dir, history, "exam", C) == B
    (build_dir / f"artifacts/{B}.json").unlink()
    assert previous(build_dir, history, "exam", C) == A
    assert previous(build_dir, history, "other", C) is None


def test_back_to_what_it_was(tmp_path: Path) -> None:
    history = remembered(remembered({}, {"exam": (A, B)}), {"exam": (B, A)})
    assert previous(there(tmp_path, A, B), history, "exam", A) == B


def test_what_a_killed_build_wrote_and_never_locked_is_passed_over(tmp_path: Path) -> None:
    build_dir = there(tmp_path, A, B, C)
    killed = remembered({"exam": (B, A)}, {"exam": (B, C)})
    assert previous(build_dir, killed, "exam", B) == A, "the lock still says B"
    assert remembered(killed, {"exam": (B, A)})["exam"][:3] == (A, B, A)


def test_an_unknown_present_one_forgets_the_past(tmp_path: Path) -> None:
    """The lock came from somewhere else."""
    assert remembered({"exam": (B, A)}, {"exam": (C, A)}) == {"exam": (A, C)}
    assert previous(there(tmp_path, A, B), {"exam": (B, A)}, "exam", C) is None


def test_it_stays_short() -> None:
    history = {"exam": (A, *(f"{number:064}" for number in range(50)))}
    assert len(remembered(history, {"exam": (A, B)})["exam"]) == 8


def test_a_build_remembers_what_changed_and_only_then(tmp_path: Path) -> None:
    made = small(tmp_path)
    first = {found.plan.name: found.artifact.hash for found in build(made).classes}
    assert not history_path(made.build_dir).exists()
    exam(tmp_path, comment="changes no artifact")
    build(made)
    assert not history_path(made.build_dir).exists()
    change_prompt(tmp_path)
    second = {found.plan.name: found.artifact.hash for found in build(made).classes}
    assert read_history(made.build_dir) == {"exam": (second["exam"], first["exam"])}
    assert history_path(made.build_dir).read_bytes() == encode_history(read_history(made.build_dir))
    assert "history" not in lock_path(made.build_dir).read_text()


@pytest.mark.parametrize("text", ["<<<<<<<", 'exam = "x"', "\xff"])
def test_one_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    made = project(tmp_path, child(tmp_path))
    write(tmp_path, {"build/history.toml": text.encode("latin-1")})
    with pytest.raises(BakeError, match="the history can't be read") as caught:
        read_history(made.build_dir)
    assert caught.value.problems[0].file == "build/history.toml"
    assert (caught.value.problems[0].cure or "").startswith("delete the file")
