"""For every family of tokenizers: what a run encodes is what a user gets, for any text in any hole.

`make test` tries few texts on one family of each kind; CI tries thousands on all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import product

import pytest
from _pytest.mark import ParameterSet
from attrs import evolve
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fafo_build.bake.artifact import Artifact, Slot
from fafo_build.bake.compile import ready
from fafo_build.errors import BakeError
from fafo_run.prompt import PromptEncoder
from tests.families import FAMILIES, PLAIN, QUICK, loaded, model
from tests.property.bench import FIELDS, HARMLESS, Bench, Row
from tests.property.texts import texts

FEW, MANY = 100, 10_000
"""How many rows are tried: few with each chat template of a family, many with all of one together."""
ROWS = 10
"""How many of them are one example of Hypothesis, whose own work would take longer than the checks."""
REFUSED = {"normalized": ("own", "plain"), "shouting": ("own",)}
"""Families whose control tokens are looked for in what normalizing makes of a text, and the chat templates
with which that is seen at the build.
"""
Benches = Callable[[str, str], Bench]


def cases(families: Iterable[str], styles: Iterable[str] = ("own", "plain")) -> list[ParameterSet]:
    """Return the names of families that can be baked, with their chat templates, and marks."""
    made = []
    for name, style in product(families, styles):
        if style not in REFUSED.get(name, ()):
            slow = () if name in QUICK else (pytest.mark.slow,)
            made.append(pytest.param(name, style, marks=slow))
    return made


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Benches:
    """A family and a chat template ("own" or "plain") in, what to try texts on out."""

    @cache
    def make(name: str, style: str) -> Bench:
        used = model(name)
        if style == "plain":
            used = ready(evolve(loaded(name), chat_template=PLAIN), "default", None)
        return Bench(tmp_path_factory.mktemp("project"), used)

    return make


def hold(bench: Bench, rows: int, artifact: Artifact | None = None, *, shrink: bool = True) -> None:
    """Try that many rows on a bench, with the artifact given or its own; raise what a wrong one does."""
    tried = 0
    fields = st.fixed_dictionaries(dict.fromkeys(FIELDS, texts(bench.judge.control)))

    @settings(
        max_examples=rows // ROWS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(fields, min_size=ROWS, max_size=ROWS))
    def check(batch: list[Row]) -> None:
        nonlocal tried
        bench.check(batch, artifact)
        tried += len(batch)

    check()
    assert tried >= rows


@pytest.mark.parametrize(("name", "style"), cases(QUICK))
def test_a_few_texts(bench: Benches, name: str, style: str) -> None:
    hold(bench(name, style), FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "style"), cases(FAMILIES))
def test_thousands_of_texts(bench: Benches, name: str, style: str) -> None:
    hold(bench(name, style), MANY // (2 - len(REFUSED.get(name, ()))))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "style"), [(name, style) for name in REFUSED for style in REFUSED[name]])
def test_what_cannot_be_reproduced_is_refused(bench: Benches, name: str, style: str) -> None:
    with pytest.raises(BakeError, match="can't be baked") as caught:
        bench(name, style)
    assert "in what normalizing makes of a text" in (caught.value.problems[0].cure or "")


def doubled_bos(bench: Bench) -> Artifact:
    first, *others = bench.artifact.spans
    bos = bench.model.loaded.tokenizer.bos_token_id
    again = (first.ids[0] if bos is None else bos, *first.ids)
    return evolve(bench.artifact, spans=(evolve(first, ids=again), *others))


def cut_too_late(bench: Bench) -> Artifact:
    """The last hole sticks to the `pre` before it, and is now encoded without it."""
    artifact = bench.artifact
    *slots, last = artifact.slots
    *before, span, tail = artifact.spans
    glue, *parts = last.parts
    assert isinstance(glue, str) and glue.endswith("pre")
    encode = PromptEncoder(artifact, bench.model.encoder).encode
    prompts = (encode({**HARMLESS, "d": text}, "rows", "1") for text in ("!", "?"))
    one, other = (prompt.suffix[slice(*prompt.bounds[-1])] for prompt in prompts)
    same = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    longer = evolve(span, text=span.text + glue, ids=(*span.ids, *one[:same]))
    return evolve(artifact, spans=(*before, longer, tail), slots=(*slots, Slot(tuple(parts))))


def special_tokens_on(bench: Bench) -> Artifact:
    asked = {
        name: source.replace("{{ item.d }}", "{{ item.d | hole(special_tokens=true) }}")
        for name, source in bench.artifact.templates.items()
    }
    assert asked != bench.artifact.templates
    return evolve(bench.artifact, templates=asked)


BAKED = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in FAMILIES
    if "own" not in REFUSED.get(name, ())
]


@pytest.mark.parametrize("bug", [doubled_bos, cut_too_late, special_tokens_on])
@pytest.mark.parametrize("name", BAKED)
def test_a_planted_bug_is_found(bench: Benches, name: str, bug: Callable[[Bench], Artifact]) -> None:
    broken = bug(bench(name, "own"))
    with pytest.raises(AssertionError, match=r"control token|got .* want"):
        hold(bench(name, "own"), 3 * FEW, broken, shrink=False)
