"""Formats of classes, roles, the beginning of the answer, and what a chat template is told besides."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_files import problems, write

from fafo_build.project.declaration import PromptClass
from fafo_build.project.load import load_project

MESSAGE = '[[message]]\nrole = "user"\ncontent = "x"\n'
ANSWER = '[[message]]\nrole = "assistant"\ncontent = "So"\n'


def said(tmp_path: Path, exam: str) -> str:
    return problems(write(tmp_path, exam='sources = "elements"\n' + exam))


def read(tmp_path: Path, exam: str) -> PromptClass:
    return load_project(write(tmp_path, exam='sources = "elements"\n' + exam)).classes["exam"]


def test_a_class_is_a_chat_without_further_arguments(tmp_path: Path) -> None:
    made = read(tmp_path, MESSAGE)
    assert (made.format, made.chat_template_kwargs, made.messages[0].prefill) == ("chat", {}, False)


@pytest.mark.parametrize("form", ["raw", "completion"])
def test_a_class_without_roles(tmp_path: Path, form: str) -> None:
    made = read(tmp_path, f'format = "{form}"\n[[message]]\ncontent = "a"\n[[message]]\ncontent = "b"\n')
    assert made.format == form
    assert [message.role for message in made.messages] == [None, None]


def test_a_prefill(tmp_path: Path) -> None:
    made = read(tmp_path, MESSAGE + ANSWER + "prefill = true\n")
    assert [message.prefill for message in made.messages] == [False, True]


def test_arguments_of_a_chat_template(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        MESSAGE + "[chat_template_kwargs]\nenable_thinking = false\nday = 2026-01-31\n"
        'documents = "docs.json"\n[[chat_template_kwargs.tools]]\ntype = "function"\n',
    )
    assert made.chat_template_kwargs == {
        "enable_thinking": False,
        "day": "2026-01-31",
        "documents": "docs.json",
        "tools": [{"type": "function"}],
    }


@pytest.mark.parametrize(
    ("exam", "expected"),
    [
        ('format = "chatty"\n' + MESSAGE, '2:10: class.exam.format: expected one of "chat", "raw"'),
        (
            'format = "raw"\n' + MESSAGE,
            '4:1: class.exam.message[1].role: role has no meaning in a class of format "raw"',
        ),
        (
            'format = "completion"\n[[message]]\ncontent = "x"\nprefill = true\n',
            "5:1: class.exam.message[1].prefill: prefill has no meaning in a class of format",
        ),
        (
            'format = "raw"\nchat_template_kwargs = {}\n[[message]]\ncontent = "x"\n',
            "3:1: class.exam.chat_template_kwargs: chat_template_kwargs has no meaning",
        ),
        (MESSAGE + '[[message]]\ncontent = "x"\n', "5:1: class.exam.message[2]: role is missing"),
        (
            MESSAGE + '[[message]]\nrol = "user"\ncontent = "x"\n',
            "6:1: class.exam.message[2].rol: there is no such key",
        ),
        (
            ANSWER + "prefill = true\n" + MESSAGE,
            "5:1: class.exam.message[1].prefill: only the last message can be",
        ),
        (
            MESSAGE + "prefill = true\n",
            "5:1: class.exam.message[1].prefill: the beginning of the answer is the assistant's",
        ),
        (
            MESSAGE + ANSWER,
            "6:8: class.exam.message[2].role: the last message is the assistant's, and nothing says",
        ),
        (
            MESSAGE + ANSWER + "prefill = false\n",
            "6:8: class.exam.message[2].role: the last message is the assistant's, and nothing says",
        ),
        (
            MESSAGE + ANSWER + 'prefill = "So"\n',
            "8:11: class.exam.message[2].prefill: expected true or false",
        ),
        ("tools = []\n" + MESSAGE, "2:1: class.exam.tools: there is no such key"),
        *(
            (
                MESSAGE + f"[chat_template_kwargs]\n{name} = 1\n",
                f"6:1: class.exam.chat_template_kwargs.{name}: {name} isn't for a class to set",
            )
            for name in (
                *("messages", "conversation", "add_generation_prompt", "continue_final_message"),
                *("tokenize", "return_dict", "chat_template", "strftime_now", "raise_exception"),
            )
        ),
        (
            MESSAGE + '[chat_template_kwargs]\n"enable-thinking" = true\n',
            "6:1: class.exam.chat_template_kwargs.enable-thinking: no chat template can read a name like",
        ),
        (
            MESSAGE + "[chat_template_kwargs]\ntools = [1]\n",
            "6:9: class.exam.chat_template_kwargs.tools: expected a list of tables, or a JSON file",
        ),
        (
            MESSAGE + "[chat_template_kwargs]\ndocuments = {}\n",
            "6:13: class.exam.chat_template_kwargs.documents: expected a list of tables, or a JSON file",
        ),
    ],
)
def test_what_is_refused_and_where(tmp_path: Path, exam: str, expected: str) -> None:
    shown = said(tmp_path, exam)
    assert shown.startswith(f"classes/exam.toml:{expected}")
    assert shown.count("cure: ") == 1
    assert len(shown.split("\n\n")) == 1


def test_arguments_in_the_main_file(tmp_path: Path) -> None:
    root = write(tmp_path)
    file = root / "fafo.toml"
    file.write_text(file.read_text() + "\n[chat_template_kwargs]\nenable_thinking = true\n")
    assert "cure: it belongs in a class: classes/NAME.toml" in problems(root)
    file.write_text(file.read_text().replace("[model]", "[model]\nchat_template_kwargs = {}"))
    assert "cure: a class has them: [chat_template_kwargs] in classes/NAME.toml" in problems(root)
