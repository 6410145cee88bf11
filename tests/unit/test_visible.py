"""What people are shown is what is there: nothing in it commands the terminal, nothing is dropped."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import click
import pytest
from rich.console import Console

from fafo_build.cli.options import print_json, say, tell
from fafo_build.visible import one_line, visible
from fafo_run.watch.progress import RunView

REPO = Path(__file__).parents[2]

HOSTILE = "a\x1b[2Jb\x07c\u202ed\x9b31me\rf\ud800g\x7f"
SHOWN = r"a\x1b[2Jb\x07c\u202ed\x9b31me\rf\ud800g\x7f"


def test_every_character_that_cant_be_seen_is_escaped_and_no_other() -> None:
    for number in range(0x110000):
        char = chr(number)
        hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        if hidden and char not in "\n\t\u200c\u200d":
            assert re.fullmatch(r"\\(r|x..|u....|U........)", visible(char)), hex(number)
        else:
            assert visible(char) == char, hex(number)


@pytest.mark.parametrize(
    "text", ["", "plain", "two\nlines\tand a tab", "Größe 中文 \u00a0👩\u200d🚀 می\u200cخواهم"]
)
def test_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_what_commands_a_terminal_is_shown() -> None:
    assert visible(HOSTILE) == SHOWN


def test_lines_for_people_are_escaped_before_they_are_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    tell(HOSTILE, fg="red")
    say(HOSTILE)
    found = capsys.readouterr()
    assert (found.out, found.err) == (f"{SHOWN}\n", f"{SHOWN}\n")


def test_a_terminal_is_shown_what_a_pipe_is(capsys: pytest.CaptureFixture[str]) -> None:
    with click.Context(click.Command("as on a terminal"), color=True):
        tell(HOSTILE)
        say(HOSTILE)
        tell(HOSTILE, fg="red")
    found = capsys.readouterr()
    assert (found.out, found.err) == (f"{SHOWN}\n\x1b[31m{SHOWN}\x1b[0m\n", f"{SHOWN}\n")


def test_a_text_within_a_line_stays_in_it() -> None:
    assert one_line("k\nfailed: \x1b[0m\tforged") == r"k\nfailed: \x1b[0m" + "\tforged"


def test_json_is_left_to_its_own_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "a\x1b[2Jb\u202e"})
    assert capsys.readouterr().out == '{\n  "text": "a\\u001b[2Jb\u202e"\n}\n'


def test_what_a_run_says_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view = RunView(None)  # type: ignore[arg-type]
    view._console = Console(stderr=True, highlight=False, width=200)
    view.notice(HOSTILE)
    assert capsys.readouterr().err == f"  {SHOWN}\n"


def test_commands_print_at_one_place() -> None:
    files = [*REPO.glob("fafo_build/cli/*.py"), *REPO.glob("fafo_run/cli/*.py")]
    printing = {str(path.relative_to(REPO)) for path in files if "click.echo" in path.read_text("utf-8")}
    assert printing == {"fafo_build/cli/options.py"}
