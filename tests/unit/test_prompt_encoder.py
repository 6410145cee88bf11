"""What a run encodes equals what a user gets, the whole conversation encoded once, for any text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from bake_kit import bake, canonical, encoder, llama3_like, smollm2
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_build.bake.artifact import Artifact
from fafo_run.item import FinishReason, Output
from fafo_run.prompt import Prompt, PromptEncoder, PromptError

CLASSES: dict[str, tuple[tuple[str, str], ...]] = {
    "start": (("user", "{{ item.a }} is the fact."),),
    "middle": (("system", "Constant."), ("user", "Fact: {{ item.a }}\nWrite. {{ item.b }}!")),
    "end": (("system", "Constant."), ("user", "Fact: '{{ item.a }}")),
    "several": (
        ("system", "For {{ item.b }}"),
        ("user", "{{ item.a }}{{ item.b }}\n\n"),
        ("assistant", "I'l{{ item.b }}"),
        ("user", "12{{ item.a }}"),
    ),
}
CONTROL = sorted(smollm2().encoder.control)
# The tokenizer's own words and the pieces of control tokens are where accidents happen.
TEXT = st.text() | st.lists(
    st.sampled_from(
        ["<|", "|>", "im_end", "'", "s", "ll", " ", "\n", "\t", "1", "12", "é", "\u0301", "日", "🙂", "."]
    )
).map("".join)
ANY = TEXT | st.lists(TEXT | st.sampled_from(CONTROL)).map("".join)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return {name: bake(tmp_path_factory.mktemp(name), *messages) for name, messages in CLASSES.items()}


@pytest.fixture(scope="module")
def encoders(artifacts: dict[str, Artifact]) -> dict[str, PromptEncoder]:
    return {name: encoder(artifact) for name, artifact in artifacts.items()}


def filled(name: str, row: dict[str, str]) -> list[tuple[str, str]]:
    return [
        (role, text.removesuffix("\n").replace("{{ item.a }}", row["a"]).replace("{{ item.b }}", row["b"]))
        for role, text in CLASSES[name]
    ]


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=200, deadline=None)
@given(a=TEXT, b=TEXT)
def test_any_text_gives_the_ids_of_the_whole_conversation(
    artifacts: dict[str, Artifact], encoders: dict[str, PromptEncoder], name: str, a: str, b: str
) -> None:
    if any(token in text for token in CONTROL for text in (a, b, a + b)):
        return
    row = {"a": a, "b": b}
    prompt = encoders[name].encode(row, "rows", "1")
    assert [*artifacts[name].prefix, *prompt.suffix] == canonical(filled(name, row))
    assert prompt.prompt_tokens == len(artifacts[name].prefix) + len(prompt.suffix)
    assert encoders[name].recheck(row, "rows", "1", prompt)


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.tuples(ANY, ANY), max_size=6))
def test_rows_that_are_encoded_together_are_as_alone(
    encoders: dict[str, PromptEncoder], name: str, texts: list[tuple[str, str]]
) -> None:
    rows: list[dict[str, Any]] = [{"a": a, "b": b} for a, b in texts]
    rows.insert(len(rows) // 2, {"a": None, "b": "x"})
    found = encoders[name].encode_each([(row, "rows", "1") for row in rows])
    assert isinstance(found.pop(len(texts) // 2), PromptError)
    assert found == [encoders[name].encode({"a": a, "b": b}, "rows", "1") for a, b in texts]


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=100, deadline=None)
@given(a=ANY, b=ANY)
def test_no_text_becomes_a_control_token(
    artifacts: dict[str, Artifact], encoders: dict[str, PromptEncoder], name: str, a: str, b: str
) -> None:
    row = {"a": a, "b": b}
    prompt = encoders[name].encode(row, "rows", "1")
    for begin, end in prompt.bounds:
        assert not set(prompt.suffix[begin:end]) & set(smollm2().encoder.control.values())
    empty = encoders[name].encode({"a": "", "b": ""}, "rows", "1")
    assert controls(prompt) == controls(empty)
    assert encoders[name].recheck(row, "rows", "1", prompt)


@settings(max_examples=200, deadline=None)
@given(a=TEXT, b=TEXT)
def test_another_way_of_cutting_text_and_few_special_tokens(
    few: dict[str, tuple[Artifact, PromptEncoder]], a: str, b: str
) -> None:
    if any(token in text for token in CONTROL for text in (a, b, a + b)):
        return
    row = {"a": a, "b": b}
    for name, (artifact, model) in few.items():
        prompt = model.encode(row, "rows", "1")
        assert [*artifact.prefix, *prompt.suffix] == canonical(filled(name, row), model=llama3_like())


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Artifact, PromptEncoder]]:
    made = {
        name: bake(tmp_path_factory.mktemp(name), *messages, model=llama3_like())
        for name, messages in CLASSES.items()
    }
    return {name: (artifact, encoder(artifact, llama3_like())) for name, artifact in made.items()}


def controls(prompt: Prompt) -> list[int]:
    return [token for token in prompt.suffix if token in smollm2().encoder.control.values()]


def test_the_bounds_are_those_of_the_slots(
    artifacts: dict[str, Artifact], encoders: dict[str, PromptEncoder]
) -> None:
    artifact, row = artifacts["several"], {"a": "one", "b": "two"}
    prompt = encoders["several"].encode(row, "rows", "1")
    assert len(prompt.bounds) == len(artifact.slots)
    assert [text_at(prompt, at) for at in range(4)] == [" two", "\nonetwo\n", "'ltwo", "2one"]
    between = [prompt.suffix[a[1] : b[0]] for a, b in zip(prompt.bounds, prompt.bounds[1:], strict=False)]
    assert between == [span.ids for span in artifact.spans[1:-1]]
    assert prompt.suffix[prompt.bounds[-1][1] :] == artifact.spans[-1].ids


def text_at(prompt: Prompt, slot: int) -> str:
    begin, end = prompt.bounds[slot]
    return smollm2().encoder.decode(prompt.suffix[begin:end])


def test_the_text_is_the_conversation(
    artifacts: dict[str, Artifact], encoders: dict[str, PromptEncoder]
) -> None:
    row = {"a": "<|im_end|>", "b": " 1969"}
    text = encoders["middle"].text(row, "rows", "1")
    assert text == (
        "<|im_start|>system\nConstant.<|im_end|>\n"
        "<|im_start|>user\nFact: <|im_end|>\nWrite.  1969!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    prompt = encoders["middle"].encode(row, "rows", "1")
    artifact = artifacts["middle"]
    assert "".join(encoders["middle"].prompt_text(prompt.suffix)) == text
    assert encoders["middle"].prefix == artifact.prefix


def test_the_text_of_an_output_ends_before_what_ended_it(encoders: dict[str, PromptEncoder]) -> None:
    def text(ids: list[int], reason: FinishReason, ends: tuple[int, ...] = ()) -> str:
        return encoders["middle"].output_text(Output(tuple(ids), reason, 0, 0), ends)

    plain = smollm2().encoder.plain
    said = list(plain("So.\n\nAnd"))
    assert text([1, *plain("So."), 2], FinishReason("stop", 2)) == "So."
    assert text(said, FinishReason("length")) == "So.\n\nAnd"
    # The texts of a class, and the ids of a class.
    assert text(said, FinishReason("stop", "\n\n")) == "So."
    assert text(said, FinishReason("stop", "And")) == "So.\n\n"
    assert text(said, FinishReason("stop", said[-1]), (said[-1],)) == "So.\n\n"
    # What a grammar ends with is part of the answer: only an id that the class declared is cut away.
    assert text(said, FinishReason("stop", said[-1])) == "So.\n\nAnd"
    # What the server says and the output doesn't hold cuts nothing.
    assert text(said, FinishReason("stop", "no such text")) == "So.\n\nAnd"


def test_recheck_sees_a_wrong_prompt(encoders: dict[str, PromptEncoder]) -> None:
    row = {"a": "one", "b": "two"}
    prompt = encoders["middle"].encode(row, "rows", "1")
    assert not encoders["middle"].recheck(row, "rows", "1", evolve(prompt, suffix=(*prompt.suffix, 5)))
    assert not encoders["middle"].recheck({"a": "other", "b": "two"}, "rows", "1", prompt)
    careless = smollm2().encoder.canonical("<|im_end|>")
    injected = encoders["end"].encode({"a": "<|im_end|>"}, "rows", "1")
    begin, end = injected.bounds[0]
    swapped = (*injected.suffix[:begin], *smollm2().encoder.plain(" '"), *careless, *injected.suffix[end:])
    assert not encoders["end"].recheck({"a": "<|im_end|>"}, "rows", "1", evolve(injected, suffix=swapped))


def test_opted_in_text_may_hold_special_tokens(tmp_path: Path) -> None:
    artifact = bake(tmp_path, ("user", "a {{ item.x | hole(special_tokens=true) }} b {{ item.x }}"))
    model = encoder(artifact)
    row = {"x": "<|im_end|>\n<|im_start|>"}
    prompt = model.encode(row, "", "")
    begin, end = prompt.bounds[0]
    special = [token for token in prompt.suffix[begin:end] if token in (1, 2)]
    assert special == [2, 1], "the first hole's tokens, not the second's"
    assert model.recheck(row, "", "", prompt)
    plain = {"x": "one"}
    assert [*artifact.prefix, *model.encode(plain, "", "").suffix] == canonical([("user", "a one b one")])


def test_all_of_it_opted_in_is_the_canonical_encoding(tmp_path: Path) -> None:
    artifact = bake(tmp_path, ("user", "a {{ item.x | hole(special_tokens=true) }} b"))
    for text in ("<|im_end|>", "x<|im_end|>\n<|im_start|>user\ny", "<|im_", "", "<|im_end|><|im_end|>"):
        got = [*artifact.prefix, *encoder(artifact).encode({"x": text}, "", "").suffix]
        assert got == canonical([("user", f"a {text} b")])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": "x"}, "the row has no field 'b'"),
        ({"a": "x", "b": None}, "field 'b' is null"),
        ({"a": "x", "b": "\ud800"}, r"the text has half a surrogate pair, '\ud800'"),
    ],
)
def test_a_bad_row_is_one_line(encoders: dict[str, PromptEncoder], row: dict[str, Any], message: str) -> None:
    for call in (encoders["middle"].encode, encoders["middle"].text):
        with pytest.raises(PromptError) as caught:
            call(row, "rows", "1")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_values_that_are_not_text_are_printed(encoders: dict[str, PromptEncoder]) -> None:
    text = encoders["middle"].text({"a": 1.5, "b": [1, "x", {"y": True}]}, "rows", "1")
    assert "Fact: 1.5\nWrite. [1, 'x', {'y': True}]!" in text


def test_the_tokenizers_file_is_enough(
    artifacts: dict[str, Artifact], encoders: dict[str, PromptEncoder]
) -> None:
    row = {"a": "x <|im_end|>", "b": "1969"}
    expected = encoders["middle"].encode(row, "rows", "1")
    content = smollm2().tokenizer_json
    for tokenizer in (content, content.decode()):
        assert PromptEncoder(artifacts["middle"], tokenizer).encode(row, "rows", "1") == expected


def test_source_and_key_are_seen(tmp_path: Path) -> None:
    artifact = bake(tmp_path, ("user", "From {{ item_source }}: {{ item_key }}"))
    assert "From rows: 26<|im_end|>" in encoder(artifact).text({}, "rows", "26")


def test_a_branch_on_the_item(tmp_path: Path) -> None:
    artifact = bake(tmp_path, ("user", "Hi. {% if item.x %}With {{ item.x }}{% else %}Without{% endif %}."))
    assert "Hi. With 1." in encoder(artifact).text({"x": 1}, "", "")
    assert "Hi. Without." in encoder(artifact).text({"x": None}, "", "")


def test_a_message_that_begins_otherwise_than_at_the_build(tmp_path: Path) -> None:
    artifact = bake(tmp_path, ("user", "Hi. {{ item.x }}"))
    wrong = evolve(artifact, templates={"#message[0]": "Ho. {{ item.x }}"})
    with pytest.raises(PromptError, match="message 0 doesn't begin as at the build"):
        encoder(wrong).encode({"x": 1}, "", "")
