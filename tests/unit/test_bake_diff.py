"""`fafo diff`: what a change costs, as tokens and as text, and which two artifacts it compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import project, prompt_class, smollm2, write
from build_kit import change_prompt, child, content, exam, quick_model, small
from click.testing import CliRunner

from fafo_build.bake.artifact import Artifact, Hole, ModelFingerprint, Slot, Span
from fafo_build.bake.bake import build
from fafo_build.bake.compare import compare
from fafo_build.bake.diff import difference, per_item, rendered
from fafo_build.bake.history import history_path
from fafo_build.bake.store import tokenizer_path
from fafo_build.cli.diff import diff
from fafo_build.errors import BakeError, DeclarationError, TemplateError
from fafo_build.project.declaration import Project
from fafo_build.render.marks import Trim

__all__ = ["quick_model"]

ARTIFACT = Artifact(
    model=ModelFingerprint("hub/model", None, "ab" * 32),
    tokenizer="cd" * 32,
    vocab_size=100,
    spans=(Span("<s>Be brief.\nFact", (1, 2, 3, 4, 5)), Span("</s>", (9,))),
    slots=(Slot((":", 0)),),
    holes=(Hole(0, "Be brief.\nFact:", Trim(), "m.md"),),
    lead=0,
    templates={"m.md": "Be brief.\nFact: {{ item.x }}\n{% include 'end.md' %}", "end.md": "Go."},
    vars={"tone": "plain"},
    examples=(),
)


def with_prefix(*ids: int, text: str = "<s>Be brief.\nFact") -> Artifact:
    return evolve(ARTIFACT, spans=(Span(text, ids), ARTIFACT.spans[1]))


def test_rendered_shows_spans_glue_and_what_each_hole_renders() -> None:
    assert rendered(ARTIFACT) == ["<s>Be brief.", "Fact:‹ {{ item.x }}", "{% include 'end.md' %}›</s>"]


@pytest.mark.parametrize(
    ("ids", "index", "old", "new", "kept", "lost", "anew"),
    [
        ((1, 2, 7, 8), 2, 3, 7, 2, 3, 2),
        ((7, 2, 3, 4, 5), 0, 1, 7, 0, 5, 5),
        ((1, 2, 3), 3, 4, None, 3, 2, 0),
        ((1, 2, 3, 4, 5, 6), 5, None, 6, 5, 0, 1),
        ((), 0, 1, None, 0, 5, 0),
    ],
)
def test_from_which_token_on_the_cache_is_lost(
    ids: tuple[int, ...], index: int, old: int | None, new: int | None, kept: int, lost: int, anew: int
) -> None:
    found = difference(ARTIFACT, with_prefix(*ids))
    assert found.first is not None
    assert (found.first.index, found.first.old, found.first.new) == (index, old, new)
    assert found.first.common == ids[:index]
    assert (found.kept, found.lost, found.anew) == (kept, lost, anew)
    assert not found.same


def test_the_same_prefix_and_another_end() -> None:
    longer = evolve(ARTIFACT, spans=(ARTIFACT.spans[0], Span("</s><s>", (9, 1))))
    found = difference(ARTIFACT, longer)
    assert (found.first, found.kept, found.lost, found.anew) == (None, 5, 0, 0)
    assert (per_item(ARTIFACT), per_item(longer)) == (1, 2)
    assert [line for line in found.text if line[0] in "+-"] == [
        "-{% include 'end.md' %}›</s>",
        "+{% include 'end.md' %}›</s><s>",
    ]


def test_the_same() -> None:
    found = difference(ARTIFACT, with_prefix(1, 2, 3, 4, 5))
    assert found.same
    assert (found.first, found.kept, found.anew, found.changes, found.text) == (None, 5, 0, (), ())


def test_another_model_keeps_nothing() -> None:
    other = evolve(ARTIFACT, model=evolve(ARTIFACT.model, revision="v2"))
    found = difference(ARTIFACT, other)
    assert (found.first, found.kept, found.lost, found.anew) == (None, 0, 5, 5)
    assert found.changes == ('model.revision: null, now "v2"',)


def test_what_changed_beside_the_text() -> None:
    other = evolve(
        ARTIFACT,
        tokenizer="ef" * 32,
        vocab_size=101,
        lead=3,
        holes=(evolve(ARTIFACT.holes[0], trim=Trim(None, "\n")),),
        templates={**ARTIFACT.templates, "end.md": "Stop.", "new.md": ""},
        vars={"tone": "warm", "n": 1},
        examples=({"q": 1},),
    )
    assert difference(ARTIFACT, other).changes == (
        "tokenizer: cdcdcdcd, now efefefef",
        "vocab_size: 100, now 101",
        "characters before which the tokenizer's text begins: 0, now 3",
        'hole 1.trim: {"left": "", "right": ""}, now {"left": null, "right": "\\n"}',
        "template end.md, which a hole pulls in: changed",
        "template new.md, which a hole pulls in: new",
        "vars.n: none, now 1",
        'vars.tone: "plain", now "warm"',
        "examples that a hole looks at: 0, now 1; they differ",
    )
    assert difference(ARTIFACT, evolve(ARTIFACT, holes=(), slots=(), spans=ARTIFACT.spans[:1])).changes == (
        "holes: 1, now 0",
    )


def of(root: Path, text: str) -> Project:
    return project(root, prompt_class(root, ("user", f"{text} {{{{ item.text }}}}"), name="child"))


def test_an_edit_is_compared_with_the_build_before_it_is_built(tmp_path: Path) -> None:
    made = small(tmp_path)
    first = build(made).classes[1].artifact
    change_prompt(tmp_path)
    before = content(made.build_dir)
    found = compare(made, "exam")
    assert content(made.build_dir) == before, "nothing is written"
    assert (found.old_is, found.new_is) == ("build", "sources")
    assert found.difference is not None
    assert found.difference.old == first
    second = build(made).classes[1].artifact
    assert found.difference.new == second
    # Now it is built: the same two, from build/ alone.
    later = compare(made, "exam")
    assert (later.old_is, later.new_is, later.difference) == ("before", "build", found.difference)
    assert later.tokenizer_json == found.tokenizer_json == smollm2().tokenizer_json


def test_old_names_an_artifact(tmp_path: Path) -> None:
    first = build(of(tmp_path, "One")).classes[0].artifact
    made = of(tmp_path, "Two")
    second = build(made).classes[0].artifact
    found = compare(made, "child", second.hash[:8])
    assert found.old_is == "given"
    assert found.difference is not None
    assert found.difference.same
    found = compare(of(tmp_path, "Three"), "child", first.hash)
    assert found.difference is not None
    assert (found.difference.old, found.old_is, found.new_is) == (first, "given", "sources")


def test_the_first_artifact_has_nothing_before_it(tmp_path: Path) -> None:
    made = of(tmp_path, "One")
    artifact = build(made).classes[0].artifact
    found = compare(made, "child")
    assert (found.difference, found.new) == (None, artifact)


def test_mistakes(tmp_path: Path) -> None:
    made = small(tmp_path)
    with pytest.raises(DeclarationError, match='no class named "exan"') as unknown:
        compare(made, "exan")
    assert unknown.value.problems[0].cure == "did you mean exam?"
    with pytest.raises(BakeError, match="isn't built yet, so there is nothing to compare"):
        compare(made, "exam")
    build(made)
    write(made.build_dir, {f"artifacts/{'ab' * 30}{end}.json": "{}" for end in ("0000", "1111")})
    with pytest.raises(BakeError, match='"abab" stands for 2 artifacts: abababab, abababab'):
        compare(made, "exam", "abab")
    with pytest.raises(BakeError, match='there is no artifact "0123" in build/'):
        compare(made, "exam", "0123")
    for wrong in ("", "abc", "ABAB", "../../x", "ab*d"):
        with pytest.raises(BakeError, match="isn't the beginning of an artifact's hash"):
            compare(made, "exam", wrong)
    with pytest.raises(BakeError, match="the file is damaged"):
        compare(made, "exam", "ab" * 30 + "00")
    # A mistake in another class is no matter here, one in the class itself is.
    broken = project(tmp_path, exam(tmp_path), prompt_class(tmp_path, ("user", "{{ nope }}"), name="child"))
    assert compare(broken, "exam").difference is None
    with pytest.raises(TemplateError, match="'nope' is undefined"):
        compare(broken, "child")


def printed(monkeypatch: pytest.MonkeyPatch, made: Project, *arguments: str) -> str:
    monkeypatch.setattr("fafo_build.cli.diff.project_of", lambda _: made)
    return CliRunner().invoke(diff, arguments, catch_exceptions=False).output


def test_what_a_person_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small(tmp_path)
    first = build(made).classes[1].artifact
    assert printed(monkeypatch, made, "exam") == (
        f"  exam: {first.hash[:8]} is the first artifact that it has had here\n"
    )
    change_prompt(tmp_path, "Be \x1bvery brief.")
    shown = printed(monkeypatch, made, "exam")
    build(made)
    second = compare(made, "exam").new
    assert (
        shown
        == (
            f"--- exam (build/, {first.hash[:8]})\n"
            f"+++ exam (sources now, {second.hash[:8]})\n"
            "@@ -1,5 +1,5 @@\n"
            " <|im_start|>system\n"
            "-Be brief. Ask.<|im_end|>\n"
            "+Be \\x1bvery brief. Ask.<|im_end|>\n"
            " <|im_start|>user\n"
            " What? ‹{{ examples[0].q }} {{ item.text }}›<|im_end|>\n"
            " <|im_start|>assistant\n"
        )
        + shown[shown.index("  first different") :]
    )
    assert 'after "<|im_start|>system\\nBe": 5453 " brief", now' in shown
    assert "  the cache keeps 4 of 15 prefix tokens; " in shown
    assert "must be computed anew, once per server\n" in shown
    assert shown.endswith("  the artifact is another one: every item of the class is new work\n")
    tokenizer_path(made.build_dir, first.tokenizer).rename(tmp_path / "gone")
    assert "the same artifact: the cache and all results stay valid" in printed(
        monkeypatch, made, "exam", second.hash[:12]
    )


def test_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = of(tmp_path, "One")
    first = build(made).classes[0].artifact
    alone = json.loads(printed(monkeypatch, made, "child", "--json"))
    new = {"artifact": first.hash, "from": "build", "prefix_tokens": len(first.prefix)}
    assert alone == {"class": "child", "old": None, "new": new}
    told = json.loads(printed(monkeypatch, of(tmp_path, "Two"), "child", "--json"))
    assert list(told) == [
        "class", "old", "new", "same", "first_difference", "kept_tokens", "lost_tokens", "new_tokens",
        "tokens_per_item", "changes", "text",
    ]  # fmt: skip
    assert told["old"] == new | {"from": "build"}
    found = told["first_difference"]
    assert (found["old"]["text"], found["new"]["text"]) == ("One", "Two")
    assert found["index"] == told["kept_tokens"] == len(first.prefix) - told["lost_tokens"]
    assert told["tokens_per_item"] == {"old": 6, "new": 6}


def test_a_forgotten_history(tmp_path: Path) -> None:
    build(of(tmp_path, "One"))
    made = of(tmp_path, "Two")
    build(made)
    history_path(made.build_dir).unlink()
    assert compare(made, "child").difference is None
    assert child(tmp_path).name == "child"
