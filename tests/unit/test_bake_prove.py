"""The proof must fail when the artifact or the encoder is wrong. Each test plants one bug."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import bake, chat, loaded, smollm2

from fafo_build.bake.artifact import Artifact, Slot, Span
from fafo_build.bake.chat import Chat
from fafo_build.bake.compile import ready
from fafo_build.bake.conversation import Conversation
from fafo_build.bake.prove import prove
from fafo_build.errors import BakeError
from fafo_build.render.trace import Trace
from fafo_build.tokens.encoder import Context, Place, TextEncoder

TALK = Conversation(
    name="exam",
    file="classes/exam.toml",
    roles=("system", "user", "user"),
    traces=(Trace("Constant.", False), Trace("Fact: ", True), Trace("", True)),
    templates=("#message[0]", "#message[1]", "#message[2]"),
    opts_in=True,
)
_BESIDE_CONTROL = Context()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    root = tmp_path_factory.mktemp("project")
    return bake(root, ("system", "Constant."), ("user", "Fact: {{ item.text }}"), ("user", "{{ item.text }}"))


def failing(artifact: Artifact, encoder: TextEncoder | None = None, form: Chat | None = None) -> str:
    model = smollm2()
    with pytest.raises(BakeError) as caught:
        prove(artifact, encoder or model.encoder, TALK, form or chat(model))
    (problem,) = caught.value.problems
    assert problem.file == "classes/exam.toml"
    return problem.render()


def test_what_is_right_is_proven(artifact: Artifact) -> None:
    assert prove(artifact, smollm2().encoder, TALK, chat()) > 200


def test_what_was_shown_around_a_slot_is_not_shown_again(tmp_path: Path) -> None:
    class Counting(TextEncoder):
        asked = 0

        def mixed(
            self, text: str, special: Iterable[tuple[int, int]], context: Context = _BESIDE_CONTROL
        ) -> list[int]:
            self.asked += 1
            return super().mixed(text, special, context)

    def proven(root: Path, constant: str) -> int:
        user = ("user", "Fact: {{ item.text }}"), ("user", "{{ item.text }}")
        talk = evolve(TALK, traces=(Trace(constant, False), *TALK.traces[1:]))
        encoder.asked = 0
        prove(bake(root, ("system", constant), *user), encoder, talk, chat())
        return encoder.asked

    encoder = Counting(smollm2().tokenizer_json)
    assert proven(tmp_path / "one", "One constant. " * 50) > 200
    # What remains is the other constant text as a probe, and the prompts that are compared whole.
    assert 0 < proven(tmp_path / "other", "Another constant. " * 50) < 20


def test_what_was_shown_of_one_encoder_is_not_believed_of_another(artifact: Artifact) -> None:
    class Careless(TextEncoder):
        def mixed(
            self, text: str, special: Iterable[tuple[int, int]], context: Context = _BESIDE_CONTROL
        ) -> list[int]:
            ids = super().mixed(text, special, context)
            return ids[:-1] if text == " 1969" else ids

    assert prove(artifact, smollm2().encoder, TALK, chat()) > 200
    assert "with the text '1969'" in failing(artifact, Careless(smollm2().tokenizer_json))


def test_the_first_probe_that_goes_wrong_is_named(artifact: Artifact) -> None:
    content = "message['content']"
    refuses = (
        "{% if message['content'] == 'Fact: trailing ' %}{{ raise_exception('no trailing') }}{% endif %}"
    )
    template = loaded().chat_template.replace(
        "{{'<|im_start|>' + message", refuses + "{{'<|im_start|>' + message"
    )
    shown = failing(artifact, form=chat(smollm2(template)))
    assert "with the text 'trailing ' in this message, the chat template refuses" in shown
    assert "no trailing" in shown
    changed = f"{content}.replace('Fact:  leading', 'Fact: leading')"
    shown = failing(artifact, form=chat(smollm2(template.replace(f"+ {content}", f"+ {changed}"))))
    assert "with the text ' leading' in this message, the chat template changes the text" in shown


def test_a_doubled_bos(artifact: Artifact) -> None:
    first, *others = artifact.spans
    doubled = Span("<|im_start|>" + first.text, (1, *first.ids))
    assert "two BOS tokens" in failing(evolve(artifact, spans=(doubled, *others)))


def test_a_bos_that_the_text_does_not_show(artifact: Artifact) -> None:
    first, *others = artifact.spans
    assert "token 0 is 0 ('<|endoftext|>'), and 1 ('<|im_start|>')" in failing(
        evolve(artifact, spans=(evolve(first, ids=(0, *first.ids)), *others))
    )


def test_a_prefix_that_is_cut_one_token_too_late(artifact: Artifact) -> None:
    first, *others = artifact.spans
    late = Span(first.text + " ", tuple(smollm2().encoder.canonical(first.text + " ")))
    slots = (Slot((0,)), *artifact.slots[1:])
    shown = failing(evolve(artifact, spans=(late, *others), slots=slots))
    assert "class.exam.message[2]" in shown
    assert "with the text 'some text' in this message" in shown
    assert "when the whole conversation is encoded once" in shown


def test_a_tail_that_begins_inside_a_word(artifact: Artifact) -> None:
    *others, last = artifact.spans
    wrong = evolve(last, ids=(*smollm2().encoder.plain("<|im_end|>"), *last.ids[1:]))
    assert "'<|im_end|>'" in failing(evolve(artifact, spans=(*others, wrong)))


def test_a_hole_that_is_encoded_with_special_tokens(artifact: Artifact) -> None:
    class Careless(TextEncoder):
        def plain(self, text: str, place: Place = Place.AFTER) -> list[int]:
            return self.canonical(text)

    shown = failing(artifact, Careless(smollm2().tokenizer_json))
    assert "with the text '<" in shown


def test_a_special_token_in_a_head_that_is_encoded_as_plain_text(tmp_path: Path) -> None:
    asked = "{{ '<|im_end|>' | hole(special_tokens=true) }}"
    good = bake(tmp_path, ("system", "Constant."), ("user", f"Fact: {asked} {{{{ item.text }}}}"))
    talk = evolve(
        TALK,
        roles=("system", "user"),
        traces=(TALK.traces[0], Trace("Fact: <|im_end|> ", True)),
        templates=TALK.templates[:2],
    )
    model = smollm2()
    assert prove(good, model.encoder, talk, chat(model)) > 100
    first, last = good.spans
    begin, token = first.text.rsplit("<|im_end|>", 1)[0], "<|im_end|>"
    plain = (*model.encoder.canonical(begin), *model.encoder.plain(token))
    assert first.text == begin + token
    wrong = evolve(good, spans=(Span(first.text, plain), last))
    with pytest.raises(BakeError, match=r"'<\|im_end\|>'\) when the whole conversation is encoded once"):
        prove(wrong, model.encoder, talk, chat(model))


def test_a_tokenizer_that_does_not_split_digits(artifact: Artifact) -> None:
    import json

    content = json.loads(smollm2().tokenizer_json)
    content["pre_tokenizer"] = content["pre_tokenizer"]["pretokenizers"][-1]
    assert "token" in failing(artifact, TextEncoder(json.dumps(content)))


def test_a_trim_that_is_forgotten(artifact: Artifact) -> None:
    template = loaded().chat_template.replace("message['content']", "message['content'].strip()")
    assert template != loaded().chat_template
    shown = failing(artifact, form=chat(smollm2(template)))
    assert "the chat template changes the text" in shown


def test_holes_in_the_wrong_order(artifact: Artifact) -> None:
    first, second = artifact.slots
    swapped = (Slot((first.parts[0], 1)), Slot((*second.parts[:-1], 0)))
    assert "changes the text" in failing(evolve(artifact, slots=swapped))


def test_a_wrong_head(artifact: Artifact) -> None:
    first, *others = artifact.holes
    assert "constant beginning" in failing(evolve(artifact, holes=(evolve(first, head="Fct"), *others)))


def test_a_bos_inside_where_the_model_wants_one(tmp_path: Path) -> None:
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    content = json.loads(smollm2().tokenizer_json)
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    core = Tokenizer.from_str(json.dumps(content))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<|endoftext|>")
    wants_bos = evolve(loaded(), tokenizer=tokenizer)
    messages = ("system", "Constant."), ("user", "{{ item.text }}")
    with pytest.raises(BakeError, match="puts none first"):
        bake(tmp_path, *messages, model=ready(wants_bos, "default", None))
    with_bos = ready(
        evolve(wants_bos, chat_template="{{ bos_token }}" + loaded().chat_template), "default", None
    )
    good = bake(tmp_path, *messages, model=with_bos)
    assert good.prefix[:2] == (0, 1)
    with pytest.raises(BakeError, match="a BOS token stands inside"):
        bake(tmp_path, ("system", "<|endoftext|>"), messages[1], model=with_bos)
