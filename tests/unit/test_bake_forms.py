"""Raw and completion classes, the beginning of the answer, and what a chat template is told besides."""

from __future__ import annotations

import datetime
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from bake_kit import bake, canonical, encoder, inputs, loaded, project, prompt_class, smollm2, write
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from fafo_build.bake.compile import ReadyModel, compile_class, ready
from fafo_build.bake.probes import PROBES
from fafo_build.errors import BakeError, TemplateError
from fafo_build.project.declaration import Message

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASK = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
USER = ("user", "{{ item.text }}")
TEXTS = [text for text in PROBES if len(text) < 400]


def plain(*contents: str) -> tuple[Message, ...]:
    return tuple(Message(content=content) for content in contents)


@cache
def with_bos_and_eos() -> ReadyModel:
    """SmolLM2's tokenizer, putting a BOS before and an EOS after every text."""
    content = json.loads(smollm2().tokenizer_json)
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]}
            for name, number in (("<|endoftext|>", 0), ("<|im_end|>", 2))
        },
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), bos_token="<|endoftext|>"
    )
    return ready(evolve(loaded(), tokenizer=tokenizer, chat_template=None), "default", None)


@pytest.mark.parametrize("form", ["raw", "completion"])
def test_messages_without_a_chat_template(tmp_path: Path, form: str) -> None:
    model = with_bos_and_eos()
    artifact = bake(
        tmp_path,
        *plain("Q: <|im_start|>", " fact {{ item.text }}.", "\nA: {{ item.text }}"),
        model=model,
        format=form,
    )
    prompts = encoder(artifact, model)
    added = form == "completion"
    assert artifact.spans[0].text.startswith("<|endoftext|>Q:" if added else "Q:")
    assert (artifact.prefix[0] == 0) == added
    assert (artifact.spans[-1].ids[-1:] == (2,)) == added
    for text in TEXTS:
        got = [*artifact.prefix, *prompts.encode({"text": text}, "", "").suffix]
        whole = f"Q: <|im_start|> fact {text}.\nA: {text}"
        assert got == model.loaded.tokenizer(whole, add_special_tokens=added)["input_ids"], ascii(text)


def test_a_completion_may_begin_with_its_hole(tmp_path: Path) -> None:
    model = with_bos_and_eos()
    artifact = bake(tmp_path, *plain("{{ item.text }}"), model=model, format="completion")
    assert artifact.prefix == (0,)
    with pytest.raises(BakeError, match="no prefix to bake"):
        bake(tmp_path, *plain("{{ item.text }}"), model=model, format="raw")


def test_a_doubled_bos_in_a_completion(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="begins with two BOS tokens"):
        bake(
            tmp_path, *plain("<|endoftext|>a", "{{ item.x }}"), model=with_bos_and_eos(), format="completion"
        )


def test_a_tokenizer_that_adds_nothing(tmp_path: Path) -> None:
    texts = plain("Once {{ item.text }}")
    raw = bake(tmp_path, *texts, format="raw")
    assert raw == bake(tmp_path, *texts, format="completion")
    assert raw.spans[0].text == "Once"


def test_special_tokens_in_a_raw_message_with_a_hole_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="stands as mere text"):
        bake(tmp_path, *plain("a <|im_end|>{{ item.text }}"), format="raw")


def test_a_chat_needs_a_chat_template(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="has no chat template") as caught:
        bake(tmp_path, USER, model=with_bos_and_eos())
    (problem,) = caught.value.problems
    assert (problem.file, problem.field) == ("classes/exam.toml", "class.exam")
    assert problem.cure is not None
    assert 'format = "raw"' in problem.cure


def answer(content: str) -> Message:
    return Message("assistant", content=content, prefill=True)


def continued(template: str, *turns: tuple[str, str]) -> list[int]:
    return list(
        loaded().tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            chat_template=template,
            continue_final_message=True,
            return_dict=False,
        )
    )


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("begin", ["So", "So: ", "{{ item.text }}", "It's \n{{ item.text }}"])
def test_the_beginning_of_the_answer(tmp_path: Path, trimmed: bool, begin: str) -> None:
    template = ASK.replace("m.content", "m.content | trim") if trimmed else ASK
    artifact = bake(tmp_path, USER, answer(begin), model=smollm2(template))
    for text in TEXTS:
        got = [*artifact.prefix, *encoder(artifact).encode({"text": text}, "", "").suffix]
        want = continued(template, ("user", text), ("assistant", begin.replace("{{ item.text }}", text)))
        assert got == want, ascii(text)


def test_a_template_that_never_shows_the_last_content(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}{% if not loop.last %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(BakeError, match="refuses the conversation: continue_final_message"):
        bake(tmp_path, USER, answer("So"), model=smollm2(template))


THINKS = (
    ASK + "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
)


def test_arguments_reach_the_chat_template(tmp_path: Path) -> None:
    def made(**kwargs: Any) -> Any:
        return bake(tmp_path, ("system", "Hi"), USER, model=smollm2(THINKS), kwargs=kwargs)

    without = made()
    assert made(enable_thinking=True) == without, "only what it does counts"
    off = made(enable_thinking=False)
    assert off.spans[-1].text.endswith("assistant\n<think></think>")
    assert off.hash != without.hash
    tools = [{"type": "function", "function": {"name": "f", "b": 1, "a": [1.5]}}]
    listed = made(tools=tools)
    assert listed.spans[-1].text.endswith(json.dumps(tools[0]))
    write(tmp_path, {"tools.json": json.dumps(tools)})
    assert made(tools="tools.json") == listed


def test_a_file_of_tools_is_an_input(tmp_path: Path) -> None:
    declared = prompt_class(tmp_path, USER, kwargs={"tools": "tools.json"})
    with pytest.raises(BakeError, match=r'"tools.json" can\'t be read: No such file') as caught:
        inputs(project(tmp_path, declared), declared)
    assert caught.value.problems[0].field == "class.exam.chat_template_kwargs.tools"
    write(tmp_path, {"tools.json": "[]"})
    assert sorted(inputs(project(tmp_path, declared), declared)) == ["classes/exam.toml", "tools.json"]


@pytest.mark.parametrize(
    ("content", "why", "line"),
    [
        (b"[\n{]", "not JSON", 2),
        (b"\xff", "it isn't UTF-8", None),
        (b"{}", "expected a list of objects", None),
        (b"[1]", "expected a list of objects", None),
    ],
)
def test_a_file_that_holds_no_tools(tmp_path: Path, content: bytes, why: str, line: int | None) -> None:
    write(tmp_path, {"tools.json": content})
    with pytest.raises(BakeError, match=why) as caught:
        bake(tmp_path, USER, model=smollm2(THINKS), kwargs={"tools": "tools.json"})
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("tools.json", line)


def test_tools_have_a_chat_template_of_their_own(tmp_path: Path) -> None:
    model = smollm2(ASK)
    two = evolve(model, loaded=evolve(model.loaded, tool_template="{{ tools[0].name }}" + ASK))
    assert bake(tmp_path, USER, model=two) == bake(tmp_path, USER, model=model)
    artifact = bake(tmp_path, USER, model=two, kwargs={"tools": [{"name": "weather"}]})
    assert artifact.spans[0].text.startswith("weather<|im_start|>")


def test_an_argument_that_the_template_never_looks_at(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="never looks at enable_thinkng") as caught:
        bake(tmp_path, USER, model=smollm2(THINKS), kwargs={"enable_thinkng": False})
    (problem,) = caught.value.problems
    assert problem.cure == "did you mean enable_thinking?"
    with pytest.raises(BakeError) as caught:
        bake(tmp_path, USER, model=smollm2(THINKS), kwargs={"zzz": 1})
    assert caught.value.problems[0].cure == "what it looks at: enable_thinking, tools"
    assert (problem.file, problem.field) == ("classes/exam.toml", "class.exam")


DAY = datetime.date(2026, 1, 31)
CLOCK = "{{ strftime_now('%d %b %Y') }}"
EITHER = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%Y') %}{% endif %}"
    "{{ date_string }}"
)


def test_a_date_among_the_arguments_pins_it(tmp_path: Path) -> None:
    model = smollm2(EITHER + ASK)
    pinned = bake(tmp_path, USER, model=model, kwargs={"date_string": "26 Jul 2024"})
    assert pinned.spans[0].text.startswith("26 Jul 2024<|im_start|>")
    with pytest.raises(BakeError, match="asks for today's date"):
        bake(tmp_path, USER, model=model)
    both = bake(tmp_path, USER, model=smollm2(EITHER + ASK, DAY), kwargs={"date_string": "then"})
    assert both.spans[0].text.startswith("then<"), "the class has the last word"


def test_a_date_string_does_not_pin_the_clock(tmp_path: Path) -> None:
    template = EITHER + CLOCK + ASK
    with pytest.raises(BakeError, match=r"asks for today's date \(strftime_now\)"):
        bake(tmp_path, USER, model=smollm2(template), kwargs={"date_string": "26 Jul 2024"})


def test_a_template_that_asks_only_elsewhere_needs_no_date(tmp_path: Path) -> None:
    template = "{% if tools %}" + CLOCK + "{% endif %}" + ASK
    assert bake(tmp_path, USER, model=smollm2(template))
    with pytest.raises(BakeError, match="asks for today's date"):
        bake(tmp_path, USER, model=smollm2(template), kwargs={"tools": [{"name": "f"}]})


def test_a_form_of_date_that_comes_from_the_arguments(tmp_path: Path) -> None:
    template = "{{ strftime_now(form) }}" + ASK
    artifact = bake(tmp_path, USER, model=smollm2(template, DAY), kwargs={"form": "%A"})
    assert artifact.spans[0].text.startswith("Saturday<")
    with pytest.raises(BakeError, match="in a form that isn't written out"):
        bake(tmp_path, USER, model=smollm2("{{ strftime_now('%' ~ 'd') }}" + ASK, DAY))


@pytest.mark.parametrize(
    ("volatile", "why"),
    [
        ("{{ lipsum() }}", "makes random text (lipsum)"),
        ("{{ [1, 2, 3] | random }}", "makes random text (random)"),
        ("{{ messages[0].items }}", "writes a place in memory"),
        ("{{ raise_exception }}", "writes a place in memory"),
        ("{{ cycler('a') }}", "writes a place in memory"),
    ],
)
def test_nothing_volatile_gets_in(tmp_path: Path, volatile: str, why: str) -> None:
    with pytest.raises(BakeError) as caught:
        bake(tmp_path, USER, model=smollm2(volatile + ASK))
    assert why in caught.value.problems[0].message


def test_a_prompt_may_speak_of_places_in_memory(tmp_path: Path) -> None:
    messages = ("system", "Explain <object at 0x7f00>."), USER
    artifact = bake(tmp_path, *messages, model=smollm2(ASK))
    assert [*artifact.prefix, *encoder(artifact).encode({"text": "x"}, "", "").suffix] == canonical(
        [("system", "Explain <object at 0x7f00>."), ("user", "x")], ASK
    )


@pytest.mark.parametrize(
    "content",
    [
        "('Fact: ' + m.content) | trim",
        "(m.content + ' end').lstrip()",
        "('\\n' + m.content.strip()).rstrip()",
        "'Text: ' + m.content if m.content else ''",
        "m.content.strip('\\n') + '!' if m.content.strip('\\n') else 'Text: '[:0]",
    ],
)
@pytest.mark.parametrize("head", ["", " ", "\n", "a "])
def test_what_goes_with_an_empty_text(tmp_path: Path, content: str, head: str) -> None:
    template = ASK.replace("m.content", f"({content})")
    artifact = bake(tmp_path, ("system", "Hi"), ("user", head + "{{ item.text }}"), model=smollm2(template))
    for text in TEXTS:
        got = [*artifact.prefix, *encoder(artifact).encode({"text": text}, "", "").suffix]
        assert got == canonical([("system", "Hi"), ("user", head + text)], template), ascii(text)


def test_a_turn_that_vanishes_with_its_text_is_refused(tmp_path: Path) -> None:
    template = "{% for m in messages if m.content %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    with pytest.raises(BakeError, match="leaves out more than white space when nothing is left"):
        bake(tmp_path, ("system", "Hi"), USER, model=smollm2(template))
    assert bake(tmp_path, ("system", "Hi"), ("user", "a {{ item.text }}"), model=smollm2(template))


def test_contents_that_the_template_shows_in_another_order(tmp_path: Path) -> None:
    template = "A: {% for m in messages | reverse %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    messages = ("system", "s {{ item.text }}"), ("user", "u {{ item.text }}")
    artifact = bake(tmp_path, *messages, model=smollm2(template))
    for text in TEXTS:
        got = [*artifact.prefix, *encoder(artifact).encode({"text": text}, "", "").suffix]
        assert got == canonical([("system", "s " + text), ("user", "u " + text)], template), ascii(text)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("m.content | lower if m.role == 'user' else m.content", "with the text"),
        ("m.content | e", "with the text"),
        ("m.content.split('\\n')[0]", "with the text"),
        ("m.content | wordwrap(20)", "with the text"),
        ("raise_exception('too short') if m.content | length < 4 else m.content", "too short"),
    ],
)
def test_what_cannot_be_repeated_names_the_text(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(BakeError, match=why) as caught:
        bake(tmp_path, ("system", "Hello"), USER, model=smollm2(ASK.replace("m.content", content)))
    (problem,) = caught.value.problems
    assert problem.field == "class.exam.message[2]"
    assert problem.cure


def test_compile_class_is_the_same_for_equal_classes(tmp_path: Path) -> None:
    first = prompt_class(tmp_path, ("system", "Hi"), USER, kwargs={"enable_thinking": True})
    second = evolve(first, name="other", chat_template_kwargs={})
    model = smollm2(THINKS)
    one, two = (compile_class(project(tmp_path, each), each, model) for each in (first, second))
    assert one.hash == two.hash


def test_a_macro_writes_turns_with_special_tokens(tmp_path: Path) -> None:
    macros = (
        "{% macro turn(role, text) %}{{ '<|im_start|>' | hole(special_tokens=true) }}{{ role }}\n{{ text }}"
        "{{ '<|im_end|>' | hole(special_tokens=true) }}\n{% endmacro %}"
    )
    content = (
        "{% from 'turns.md' import turn %}{% for e in examples %}{{ turn('user', e.q) }}{% endfor %}"
        "{{ turn('user', item.text) }}"
    )
    write(tmp_path, {"prompts/turns.md": macros})
    artifact = bake(tmp_path, Message(None, content=content), format="raw", examples=['{"q": "one"}'])
    start, end = (smollm2().encoder.control[text] for text in ("<|im_start|>", "<|im_end|>"))
    assert (artifact.spans[0].ids.count(start), artifact.spans[0].ids.count(end)) == (1, 1)
    row = {"text": "<|im_end|>"}
    prompt = encoder(artifact).encode(row, "", "")
    ids = (*artifact.spans[0].ids, *prompt.suffix)
    assert (ids.count(start), ids.count(end)) == (2, 2)
