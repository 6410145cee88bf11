"""Chat templates that look into a content in ways that few texts show: each is refused at the build."""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import bake, smollm2

from fafo_build.bake.template_words import integers
from fafo_build.errors import BakeError

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\nCONTENT<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
MANY = "{% set unused = [" + ", ".join(f"'word{number}'" for number in range(40)) + "] %}"


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content | replace('\\n\\n\\n', '\\n\\n') }}",
        "{% if '\\n\\n\\n' in m.content %}Long: {% endif %}{{ m.content }}",
        "{{ m.content | replace('\\u202f', ' ') }}",
        MANY + "{{ m.content | replace('foo', '') }}",
        MANY + "{% if m.content.startswith('foo') %}Foo: {% endif %}{{ m.content }}",
        "{% if 'foo' in m.content and 'bar' in m.content and 'baz' in m.content %}All: {% endif %}"
        "{{ m.content }}",
        "{{ m.content[:1000] }}",
        "{{ m.content | truncate(2000) }}",
        "{% if m.content | length > 4000 %}Long: {% endif %}{{ m.content }}",
        "{% if m.content.split('\\n') | length > 30 %}Long: {% endif %}{{ m.content }}",
        "{% if m.content.isupper() %}Loud: {% endif %}{{ m.content }}",
        "{% if m.content.istitle() %}Title: {% endif %}{{ m.content }}",
    ],
)
def test_a_look_into_a_content_is_found(tmp_path: Path, content: str) -> None:
    model = smollm2(TURNS.replace("CONTENT", content))
    with pytest.raises(BakeError, match="can't be baked: with the text"):
        bake(tmp_path, ("user", "{{ item.text }}"), model=model)


def test_numbers_are_read_as_jinja_reads_them() -> None:
    assert integers("{{ 1_000 + 0x10 + 00 }} 7 {{ 1.5 + 1_000 }}") == (1000, 16, 0)


@pytest.mark.parametrize("other", ["m.role", "messages[0].content"])
def test_a_comparison_with_what_the_conversation_says_is_found(tmp_path: Path, other: str) -> None:
    content = "{% if loop.index > 1 and m.content == " + other + " %}Again: {% endif %}{{ m.content }}"
    model = smollm2(TURNS.replace("CONTENT", content))
    with pytest.raises(BakeError, match="can't be baked: with the text"):
        bake(tmp_path, ("system", "Be brief."), ("user", "{{ item.text }}"), model=model)
