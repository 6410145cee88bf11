"""What `fafo show` can say of a record whose artifact is gone, or of an older format."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from bake_kit import bake, smollm2, write

from fafo_build.bake.canonical import canonical, sha256
from fafo_build.errors import BakeError
from fafo_run.watch.find import _encoder
from fafo_run.watch.show import render, shown
from tests.log_nouns import record


def found(build: Path, artifact: str) -> Any:
    """Return the encoder of a record of that artifact, and what is shown of it."""
    made = record(1)
    made = evolve(made, provenance=evolve(made.provenance, artifact=artifact))
    view: Any = SimpleNamespace(project=SimpleNamespace(build_dir=build))
    encoder = _encoder(view, made)
    return encoder, render(shown(made, None, encoder, current=False))


def test_an_artifact_that_is_there_gone_old_or_damaged(tmp_path: Path) -> None:
    artifact = bake(tmp_path, ("user", "Explain {{ item.text }}"))
    older = canonical({"format": 1, "tokenizer": artifact.tokenizer, "holes": [{"trim": "none"}]})
    write(
        tmp_path / "build",
        {
            f"artifacts/{artifact.hash}.json": artifact.encoded,
            f"artifacts/{sha256(older)}.json": older,
            f"artifacts/{'ab' * 32}.json": "damaged",
            f"tokenizers/{artifact.tokenizer}.json": smollm2().tokenizer_json,
        },
    )
    encoder, text = found(tmp_path / "build", artifact.hash)
    assert encoder.prefix == artifact.prefix
    assert "older format" not in text
    for gone in (sha256(older), "cd" * 32):
        encoder, text = found(tmp_path / "build", gone)
        assert encoder is None
        assert "prompt: its artifact isn't in build/ any more, or is of an older format" in text
        assert "ids 1 2 3" in text
    with pytest.raises(BakeError, match="the file is damaged"):
        found(tmp_path / "build", "ab" * 32)
