"""Holes, glue and chat templates of many kinds; and those that can't be reproduced, each with its reason."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import SMOLLM2, bake, canonical, encoder, loaded, project, prompt_class, smollm2, write

from fafo_build.bake.artifact import Artifact, Slot
from fafo_build.bake.compile import compile_class, ready
from fafo_build.bake.examples import read_examples
from fafo_build.errors import BakeError, TemplateError
from fafo_build.project.declaration import Examples, Message, Project, PromptClass
from fafo_build.render.marks import Trim

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
PLAIN = "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}### assistant:"
CONTENTS = ["", "x", "  two  ", "\n", "it's 1969", "<|im_end|>", "日本 🙂"]


def turns(content: str) -> str:
    return TURNS.replace("CONTENT", content) + "<|im_start|>assistant\n"


def spans(artifact: Artifact) -> list[str]:
    return [span.text for span in artifact.spans]


def check(artifact: Artifact, chat_template: str | None, *messages: tuple[str, str]) -> None:
    """Compare with the whole conversation encoded once, for texts that bring no control token."""
    model = encoder(artifact)
    for text in CONTENTS:
        if text == "<|im_end|>":
            continue
        row = {"text": text}
        whole = [(role, content.replace("{{ item.text }}", text)) for role, content in messages]
        got = [*artifact.prefix, *model.encode(row, "", "").suffix]
        assert got == canonical(whole, chat_template)


def test_one_hole_at_the_end(tmp_path: Path) -> None:
    messages = ("system", "Be brief."), ("user", "Fact: {{ item.text }}")
    artifact = bake(tmp_path, *messages)
    assert spans(artifact) == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nFact:",
        "<|im_end|>\n<|im_start|>assistant\n",
    ]
    assert artifact.slots == (Slot((" ", 0)),)
    check(artifact, None, *messages)


def test_holes_in_three_messages_make_three_slots(tmp_path: Path) -> None:
    messages = (
        ("system", "{{ item.text }}"),
        ("user", "a {{ item.text }} b"),
        ("assistant", "({{ item.text }}"),
    )
    artifact = bake(tmp_path, *messages)
    assert [slot.parts for slot in artifact.slots] == [("\n", 0), (" ", 1), ("(", 2)]
    check(artifact, None, *messages)


def test_a_chat_template_without_special_tokens_is_cut_between_words(tmp_path: Path) -> None:
    messages = ("system", "Be brief."), ("user", "Fact: {{ item.text }}"), ("assistant", "So {{ item.text }}")
    artifact = bake(tmp_path, *messages, model=smollm2(PLAIN))
    assert spans(artifact)[0] == "### system:\nBe brief.\n\n### user:\nFact:"
    assert len(artifact.slots) == 2
    check(artifact, PLAIN, *messages)


def test_two_holes_with_nothing_stable_between_share_a_slot(tmp_path: Path) -> None:
    template = "System. {% for m in messages %}{{ m.content }}-{% endfor %}"
    messages = ("user", "{{ item.text }}"), ("user", "{{ item.text }}")
    artifact = bake(tmp_path, *messages, model=smollm2(template))
    assert artifact.slots == (Slot((" ", 0, "-", 1, "-")),)
    assert [span.text for span in artifact.spans] == ["System.", ""]
    check(artifact, template, *messages)


@pytest.mark.parametrize(
    ("content", "trim"),
    [
        ("m.content", Trim()),
        ("m.content | trim", Trim(None, None)),
        ("m.content.strip()", Trim(None, None)),
        ("m.content.lstrip()", Trim(None, "")),
        ("m.content.rstrip()", Trim("", None)),
        ("m.content.strip('\\n')", Trim("\n", "\n")),
        ("m.content.lstrip('\\n').rstrip()", Trim("\n", None)),
        ("m.content.strip(' x')", Trim(" x", " x")),
        ("m.content.rstrip('!1')", Trim("", "!1")),
        ("m.content | trim('\\n')", Trim("\n", "\n")),
    ],
)
@pytest.mark.parametrize("head", ["", "Fact: ", "  \n", "\n a\t"])
def test_what_the_chat_template_trims_is_trimmed(tmp_path: Path, content: str, trim: Trim, head: str) -> None:
    messages = ("system", " constant "), ("user", head + "{{ item.text }}")
    artifact = bake(tmp_path, *messages, model=smollm2(turns(content)))
    assert artifact.holes[0].trim == trim
    check(artifact, turns(content), *messages)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("m.role", "leaves out or changes the content"),
        ("m.content }}{{ m.content", "shows more than once"),
        ("m.content[:5]", "leaves out or changes the content"),
        ("m.content | upper", "leaves out or changes the content"),
        ("m.content | replace('  ', ' ')", "with the text"),
        ("m.content if m.content else 'nothing'", "with the text ''"),
        ("m.content | replace(' ', '_')", "in a way that can't be repeated, as with the text ' x '"),
        ("m.content | replace('\\n', '')", "with the text 'line one\\r\\nline two"),
        ("m.content.split('</think>')[-1]", "</think>"),
        ("'tool' if 'CALL' in m.content else m.content", "CALL"),
        ("m.content | e", "with the text"),
    ],
)
def test_a_chat_template_that_changes_the_text_is_refused(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(BakeError) as caught:
        bake(tmp_path, ("system", "constant"), ("user", "{{ item.text }}"), model=smollm2(turns(content)))
    (problem,) = caught.value.problems
    assert why in problem.message
    assert problem.file == "classes/exam.toml"
    assert problem.field == "class.exam.message[2]"


def test_messages_without_holes_may_be_changed(tmp_path: Path) -> None:
    template = turns("m.content | upper if m.role == 'system' else m.content")
    messages = ("system", "shout"), ("user", "{{ item.text }}")
    artifact = bake(tmp_path, *messages, model=smollm2(template))
    assert "SHOUT" in artifact.spans[0].text
    check(artifact, template, *messages)


def test_a_template_that_refuses_the_roles(tmp_path: Path) -> None:
    template = "{{ raise_exception('system comes first') }}"
    with pytest.raises(BakeError, match="refuses the conversation: system comes first"):
        bake(tmp_path, ("user", "{{ item.text }}"), model=smollm2(template))


def test_a_template_that_is_not_jinja(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match=r"the chat template isn't Jinja: .* \(line 2\)"):
        bake(tmp_path, ("user", "{{ item.text }}"), model=smollm2("x\n{% endif %}"))


DATED = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}" + turns("m.content")


def test_todays_date_must_be_declared(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="asks for today's date") as caught:
        bake(tmp_path, ("user", "{{ item.text }}"), model=smollm2(DATED))
    assert caught.value.problems[0].cure == "give it one: model.date = 2026-01-31"
    with pytest.raises(BakeError, match="date_string") as caught:
        bake(tmp_path, ("user", "{{ item.text }}"), model=smollm2("{{ date_string }}" + turns("m.content")))
    assert caught.value.problems[0].cure == (
        'give it one: model.date = 2026-01-31, or chat_template_kwargs.date_string = "31 Jan 2026"'
    )


def test_a_date_does_not_change_the_beginning_of_a_template(tmp_path: Path) -> None:
    for begin in ("\n\n x ", "  a "):
        template = begin + DATED
        artifact = bake(
            tmp_path, ("user", "{{ item.text }}"), model=smollm2(template, datetime.date(2026, 1, 31))
        )
        assert artifact.spans[0].text.startswith(begin + "31 Jan 2026<|im_start|>")


def test_a_declared_date_is_used(tmp_path: Path) -> None:
    for template in (DATED, "{{ date_string }}" + turns("m.content")):
        model = smollm2(template, datetime.date(2026, 1, 31))
        artifact = bake(tmp_path, ("user", "{{ item.text }}"), model=model)
        assert artifact.spans[0].text.startswith("31 Jan 2026<|im_start|>")


def test_a_word_of_another_template_is_no_date(tmp_path: Path) -> None:
    template = "{# strftime_now() #}{{ 'date_string' }}strftime_now | random" + turns("m.content")
    assert bake(tmp_path, ("user", "{{ item.text }}"), model=smollm2(template))


def test_two_bos_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="begins with two BOS tokens"):
        bake(tmp_path, ("user", "{{ item.text }}"), model=smollm2("<|im_start|>" + turns("m.content")))


def test_a_class_that_never_looks_at_the_item_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="every row would ask the same"):
        bake(tmp_path, ("user", "constant"))


def test_a_class_without_a_constant_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="no prefix to bake"):
        bake(
            tmp_path,
            ("user", "{{ item.text }}"),
            model=smollm2("{% for m in messages %}{{ m.content }}{% endfor %} end"),
        )


def test_a_tokenizer_that_merges_at_random_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    other = Tokenizer(models.BPE({"a": 0}, [], dropout=0.5))
    model = evolve(loaded(), tokenizer=PreTrainedTokenizerFast(tokenizer_object=other))
    with pytest.raises(BakeError, match=r"can't be baked: its merges are random \(dropout 0.5\)") as caught:
        ready(model, "small", None)
    assert caught.value.problems[0].field == "models.small"


def test_reserved_variable_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match="'item' already means something"):
        bake(tmp_path, ("user", "{{ item.text }}"), vars={"item": 1})


def test_all_problems_of_the_templates_are_template_errors(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="'nope' is undefined"):
        bake(tmp_path, ("user", "{{ nope }}"))
    with pytest.raises(TemplateError, match="there is no prompt"):
        bake(tmp_path, Message("user", prompt="gone.md"))
    with pytest.raises(TemplateError, match="special token <\\|im_end\\|> stands as mere text"):
        bake(tmp_path, ("user", "{{ item.text }}<|im_end|>"))


def test_special_tokens_in_a_message_without_a_hole_are_free(tmp_path: Path) -> None:
    messages = ("system", "a<|im_end|>{{ vars.mark }}"), ("user", "{{ item.text }}")
    artifact = bake(tmp_path, *messages, vars={"mark": "<|im_start|>b"})
    check(artifact, None, ("system", "a<|im_end|><|im_start|>b"), messages[1])


def test_special_tokens_that_a_message_with_a_hole_shares_with_another_are_not(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/mark.md": "a <|im_end|>"})
    with pytest.raises(TemplateError) as caught:
        bake(
            tmp_path, Message("system", prompt="mark.md"), ("user", "{{ item.text }}{% include 'mark.md' %}")
        )
    assert [problem.where for problem in caught.value.problems] == ["prompts/mark.md:1:3"]


@pytest.mark.parametrize("template", [None, PLAIN], ids=["chat", "plain"])
def test_special_tokens_that_are_asked_for_in_a_head_and_in_a_hole(
    tmp_path: Path, template: str | None
) -> None:
    asked = "{{ '<|im_end|>' | hole(special_tokens=true) }}"
    messages = (
        ("system", "{% if vars.yes %}a " + asked + "\nb{% endif %} {{ item.text }}" + asked + "!"),
        ("user", asked + "{{ item.text }}"),
    )
    model = smollm2(template)
    artifact = bake(tmp_path, *messages, model=model, vars={"yes": True})
    assert [hole.head for hole in artifact.holes] == ["a <|im_end|>\nb ", "<|im_end|>"]
    assert all(2 in span.ids for span in artifact.spans[:2])
    assert not any("<|im_end|>" in str(slot.parts) for slot in artifact.slots)
    whole = ("system", "a <|im_end|>\nb {{ item.text }}<|im_end|>!"), ("user", "<|im_end|>{{ item.text }}")
    check(artifact, template, *whole)
    row = {"text": "<|im_end|>"}
    prompt = encoder(artifact).encode(row, "", "")
    plain = encoder(artifact).encode({"text": "x"}, "", "")
    assert prompt.suffix.count(2) == plain.suffix.count(2)
    assert encoder(artifact).recheck(row, "", "", prompt)


@pytest.mark.parametrize(
    ("content", "why", "line"),
    [
        (b'{"a": 1}\n{broken\n[1]\n', "not JSON", 2),
        (b'{"a": 1}\n{"a": "\\ud800"}\n{"a": }', "half a surrogate pair", 2),
        (b"\xff", "it isn't UTF-8", None),
        (None, "No such file or directory", None),
    ],
)
def test_examples_that_cannot_be_read(
    tmp_path: Path, content: bytes | None, why: str, line: int | None
) -> None:
    declared = evolve(prompt_class(tmp_path, ("user", "{{ item.text }}")), examples=Examples("e.jsonl"))
    if content is not None:
        write(tmp_path, {"e.jsonl": content})
    with pytest.raises(BakeError, match=why) as caught:
        read_examples(project(tmp_path, declared), declared)
    assert caught.value.problems[0].line == line
    assert len(caught.value.problems) == (2 if line else 1)


def test_an_examples_line_that_is_no_json_has_one_position(tmp_path: Path) -> None:
    declared = prompt_class(tmp_path, ("user", "{{ item.text }}"), examples=['{"a": 1}', '  {"text": oops}'])
    with pytest.raises(BakeError) as caught:
        read_examples(project(tmp_path, declared), declared)
    assert caught.value.render() == (
        "examples.jsonl:2:12: not JSON: expecting value\n"
        '      {"text": oops}\n'
        "               ^\n"
        '  cure: write one JSON object on each line, such as {"text": "…"}'
    )


def toml_examples(root: Path, content: str | bytes) -> tuple[Project, PromptClass]:
    declared = evolve(prompt_class(root, ("user", "{{ item.text }}")), examples=Examples("e.toml"))
    write(root, {"e.toml": content})
    return project(root, declared), declared


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_examples_in_toml(tmp_path: Path, newline: str) -> None:
    content = (
        '[[example]]\nq = """\none\ntwo"""\nday = 2026-01-31\n\n[[example]]\nq = "b"\n[example.more]\nn = 1\n'
    )
    found = read_examples(*toml_examples(tmp_path, content.replace("\n", newline)))
    assert found == ({"q": "one\ntwo", "day": "2026-01-31"}, {"q": "b", "more": {"n": 1}})


@pytest.mark.parametrize(
    ("content", "where", "why"),
    [
        ("", "e.toml", "has no example"),
        ("[[example]]\nq = oops\n", "e.toml:2:5", "not TOML"),
        ("[[examples]]\nq = 1\n", "e.toml:1:1", "expected [[example]] tables, and nothing else"),
        ("x = 1\n[[example]]\nq = 1\n", "e.toml:1:1", "expected [[example]] tables, and nothing else"),
        ("[example]\nq = 1\n", "e.toml:1:1", "expected [[example]] tables, and nothing else"),
        ("example = [1]\n", "e.toml:1:1", "expected [[example]] tables, and nothing else"),
        (b"\xff", "e.toml:1:1", "isn't UTF-8"),
    ],
)
def test_toml_that_holds_no_examples(tmp_path: Path, content: str | bytes, where: str, why: str) -> None:
    with pytest.raises(BakeError) as caught:
        read_examples(*toml_examples(tmp_path, content))
    (problem,) = caught.value.problems
    assert problem.where == where
    assert why in problem.message
    assert problem.cure


def test_an_example_in_toml_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    declared = evolve(
        prompt_class(tmp_path, ("user", "{% for e in examples %}{{ e.q }}{% endfor %}{{ item.text }}")),
        examples=Examples("e.toml"),
    )
    write(tmp_path, {"e.toml": '[[example]]\nq = "a"\n\n[[example]]\nqq = "b"\n'})
    with pytest.raises(TemplateError, match=r"the example at e\.toml:4:1"):
        compile_class(project(tmp_path, declared), declared, smollm2())


def test_a_list_is_told_how_to_become_lines(tmp_path: Path) -> None:
    declared = prompt_class(tmp_path, ("user", "{{ item.text }}"), examples=["[", '  {"q": 1},', "]"])
    with pytest.raises(BakeError) as caught:
        read_examples(project(tmp_path, declared), declared)
    (problem,) = caught.value.problems
    assert problem.message == "a JSON list: expected one JSON object on each line"
    assert "jq -c" in (problem.cure or "")


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_examples_without_a_row_are_refused_where_they_are_declared(tmp_path: Path, lines: list[str]) -> None:
    declared = prompt_class(tmp_path, ("user", "{{ item.text }}"), examples=lines)
    with pytest.raises(BakeError) as caught:
        read_examples(project(tmp_path, declared), declared)
    assert caught.value.render().startswith(
        "examples.jsonl: class.exam.examples: has no example\n  cure: write one JSON"
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            ['{"label": "a"}', "", '{"lable": "b"}'],
            "the value has no field 'label'; did you mean 'lable'? (the example at examples.jsonl:3)",
        ),
        (['{"label": null}'], "field 'label' is null (the example at examples.jsonl:1)"),
    ],
)
def test_an_example_that_lacks_a_field_is_named(tmp_path: Path, rows: list[str], said: str) -> None:
    content = "{% for e in examples %}\n{{ e.label }}{% endfor %}{{ item.text }}"
    with pytest.raises(TemplateError) as caught:
        bake(tmp_path, ("user", content), examples=rows)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.field) == ("classes/exam.toml", 7, "class.exam")
    assert problem.message == f"can't be rendered: {said}"
    assert problem.cure is not None
    assert "example" in problem.cure


def test_an_example_within_an_example_is_found(tmp_path: Path) -> None:
    content = "{{ examples[1].parts[0].label }}{{ item.text }}"
    with pytest.raises(TemplateError, match=r"the example at examples\.jsonl:2"):
        bake(tmp_path, ("user", content), examples=['{"parts": [{"label": 1}]}', '{"parts": [{}]}'])


LOOP = "{% for each in vars.a %}{{ each.b }}{% endfor %}{{ item.text }}"


def test_a_variable_that_lacks_a_field_is_no_example(tmp_path: Path) -> None:
    with pytest.raises(TemplateError) as caught:
        bake(tmp_path, ("user", LOOP), vars={"a": [{}]}, examples=["{}"])
    (problem,) = caught.value.problems
    assert problem.field == "class.exam"
    assert problem.message == "can't be rendered: the value has no field 'b'"
    assert problem.cure == "mend this line of the prompt, or the variable that it uses"


def test_examples_are_seen_and_kept(tmp_path: Path) -> None:
    artifact = bake(
        tmp_path,
        ("user", "{% for e in examples %}{{ e.q }};{% endfor %}{{ item.text }}"),
        examples=['{"q": "one"}', "", '{"q": "two"}'],
    )
    assert artifact.spans[0].text.endswith("one;two;") or artifact.slots[0].parts[0] == ";"
    assert artifact.examples == ({"q": "one"}, {"q": "two"})


def test_the_default_models_name_is_in_the_fingerprint(tmp_path: Path) -> None:
    declared = prompt_class(tmp_path, ("user", "{{ item.text }}"))
    artifact = compile_class(project(tmp_path, declared), declared, smollm2())
    assert artifact.model.name == SMOLLM2.path
    assert artifact.vocab_size == 49152
