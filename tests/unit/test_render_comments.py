from __future__ import annotations

import pytest
from jinja2 import Environment

from fafo_build.render.comments import without_comments

SOURCES = [
    "a{# x #}b",
    "a {#- x -#} b",
    "a\n{# c #}\n{{ x -}}\n\n b",
    "{% raw %}{# keep #}{{ x }}{% endraw %}{# gone #}",
    "a  {#- y #}  {{- x }}",
    "{# one #}{# two #}\n",
    "{% set y = '{# text #}' %}{{ y }}",
    "{ {#- kept #}{ x }}",
    "no comment",
    "",
]


@pytest.mark.parametrize("source", SOURCES)
def test_the_text_stays(source: str) -> None:
    environment = Environment(keep_trailing_newline=True)
    expected = environment.from_string(source).render(x="X")
    assert environment.from_string(without_comments(source)).render(x="X") == expected


def test_the_words_of_a_comment_go() -> None:
    assert without_comments("a{# first #}b{{ x }}{#- second -#} c") == "ab{{ x }}c"
    assert without_comments("{% raw %}{# keep #}{% endraw %}") == "{% raw %}{# keep #}{% endraw %}"
