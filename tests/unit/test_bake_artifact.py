"""The artifact as a file: a golden copy, its hash, and what comes back when it is read."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from bake_kit import bake
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_build.bake.artifact import Artifact, Hole, ModelFingerprint, Slot, Span, decoded
from fafo_build.bake.canonical import canonical, tagged, untagged
from fafo_build.bake.sampling import sampling_hash
from fafo_build.project.declaration import Sampling
from fafo_build.render.marks import Trim

ARTIFACT = Artifact(
    model=ModelFingerprint("hub/model", None, "ab" * 32),
    tokenizer="cd" * 32,
    vocab_size=10,
    spans=(Span("<s>", (1,)), Span("</s>", (2, 3))),
    slots=(Slot((" ", 0)),),
    holes=(Hole(0, "head ", Trim(None, "\n"), "m.md"),),
    lead=0,
    templates={"m.md": "head {{ item.x }}"},
    vars={"half": 0.5, "many": 2**60, "table": {"b": 1, "a": [True, None]}},
    examples=({"q": 1.0},),
)


def test_it_comes_back_as_it_was() -> None:
    back = decoded(ARTIFACT.encoded)
    assert back == ARTIFACT
    assert back.hash == ARTIFACT.hash
    assert evolve(back).encoded == ARTIFACT.encoded, "also when it is encoded anew"
    assert list(back.vars["table"]) == ["b", "a"]
    assert isinstance(back.examples[0]["q"], float)


def test_the_hash_is_that_of_the_file() -> None:
    assert hashlib.sha256(ARTIFACT.encoded).hexdigest() == ARTIFACT.hash
    assert json.loads(ARTIFACT.encoded)["format"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": ModelFingerprint("hub/model", "v2", "ab" * 32)},
        {"tokenizer": "ee" * 32},
        {"vocab_size": 11},
        {"spans": (Span("<s>", (1,)), Span("</s>", (2, 4)))},
        {"slots": (Slot((0,)),)},
        {"holes": (Hole(0, "head ", Trim(), "m.md"),)},
        {"holes": (Hole(0, "head ", Trim(None, "\n"), "m.md", before=" "),)},
        {"holes": (Hole(0, "head ", Trim(None, "\n"), "m.md", after=" "),)},
        {"templates": {"m.md": "head {{ item.y }}"}},
        {"vars": {}},
        {"examples": ({"q": 1},)},
    ],
)
def test_every_part_counts(change: dict[str, Any]) -> None:
    assert evolve(ARTIFACT, **change).hash != ARTIFACT.hash


def test_the_fingerprint_covers_its_three_parts() -> None:
    base = ModelFingerprint("m", None, "00" * 32)
    others = [evolve(base, name="n"), evolve(base, revision="1"), evolve(base, config_sha256="01" * 32)]
    assert len({base.digest, *(other.digest for other in others)}) == 4


def test_a_newer_format_is_not_guessed_at() -> None:
    value = {**json.loads(ARTIFACT.encoded), "format": 3}
    with pytest.raises(ValueError, match="artifact format 3"):
        decoded(canonical(value))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(PLAIN)
def test_tagged_values_come_back_exactly(value: Any) -> None:
    back = untagged(json.loads(canonical(tagged(value))))
    assert back == value
    assert repr(back) == repr(value), "kinds of numbers and the order of keys"


def test_golden_artifact(tmp_path: Path) -> None:
    artifact = bake(
        tmp_path,
        ("system", "You write for {{ audience }}.{# a comment #}"),
        ("user", "Fact: {{ item.text }}\nFrom {{ item_source }}, {{ vars.year }}.\n"),
        vars={"audience": "students", "year": 1969, "unused": 1.5},
    )
    golden = Path(__file__).parents[1] / "golden/bake/artifact.json"
    assert artifact.encoded == golden.read_bytes()


def test_comments_unused_variables_and_the_class_name_change_nothing(tmp_path: Path) -> None:
    def made(content: str, **options: Any) -> str:
        return bake(tmp_path, ("system", "Constant."), ("user", content), **options).hash

    base = made("a {{ item.text }}")
    assert made("a {{ item.text }}{# seen by nobody #}") == base
    assert made("a {{ item.text }}", vars={"unused": 1}) == base
    assert made("a {{ item.text }}", examples=['{"q": 1}']) == base
    assert made("a {{ item.text }}", name="other", comment="another file") == base
    assert made("a {{ item.text }}\n") == base, "one newline at the end is dropped"
    assert made("a {{ item.text }}.") != base
    assert made("b {{ item.text }}") != base


def test_the_sampling_hash() -> None:
    base = sampling_hash(Sampling())
    assert base == "8a30fa246230ad4724408b5642b853bf51516c3774f65e841311fb6bd0b4d6f3"
    assert sampling_hash(Sampling(samples=9)) == base
    changes = [Sampling(max_new_tokens=1), Sampling(temperature=0.0), Sampling(top_p=0.9), Sampling(top_k=5)]
    changes.append(Sampling(min_p=0.1))
    assert len({base, *map(sampling_hash, changes)}) == 6


def test_importing_the_prompt_encoder_needs_no_transformers() -> None:
    imports = "import sys, fafo_run.prompt, fafo_build.bake.bake"
    code = f"{imports}; print({{'transformers', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
