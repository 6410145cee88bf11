"""Hostile texts for holes: what has been seen to change ids at the edge of a text, or to change the text
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, permutations

from fafo_build.bake.template_words import arguments, integers, operands, strings

PROBES: tuple[str, ...] = (
    "",
    "plain text",
    " leading",
    "trailing ",
    "  two  ",
    "\nnewline first",
    "newline last\n",
    "\n\n",
    " ",
    "\t",
    "\ttab",
    "line one\r\nline two\r\n",
    "\r",
    "\u00a0no-break\u00a0",
    "\u3000全角",
    "\u2028\u2029",
    "a\n\n\n\nb\u202fc\u2009d",
    "\u200b\u200d\u2060\ufeff",
    "1",
    "1969",
    "3.14159, 2,000,000",
    "٠١٢٣٤ ²³¹ ⅷ",
    "s",
    "'s",
    "'ll go, we've, I'M",
    "’tis “quoted”",
    "...",
    "!",
    "-",
    "_under__score_",
    "LOUD WORDS",
    "Title Case",
    "<b>&amp;</b>",
    "{{ item }} {% raw %}",
    "[INST] </s> <s>",
    "日本語のテキスト",
    "中文，标点。",
    "한국어",
    "ไทย",
    "עברית العربية",
    "हिन्दी क्षि",
    "e\u0301a\u0308\u0300",
    "\u0301",
    "\ufe0f",
    "🙂",
    "👩\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈🇳🇴",
    "🇩",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\u0000",
    "\u0001\u001b[0m\u007f",
    "\U0010ffff\ue000",
    "ﬁ Å Å",
    "x" * 300,
    "word " * 100,
    " " * 100,
)
"""Without the texts of control tokens, which depend on the tokenizer."""

HOSTILE = "\n\u2028'll e\u0301 12345  日本語\u3000👩\u200d👧 ﬁ\r\n\t x \u00a0\u0301 \n"
"""A bit of everything that is hostile, at both ends and within."""

_MOST_PAIRS = 60

_LONGEST = 100_000
"""Characters; no chat template of note counts further."""


def control_probes(control: Iterable[str]) -> tuple[str, ...]:
    """Return texts that look like control tokens: each as it is and within text, and pieces of the first."""
    tokens = sorted(control)
    texts = [text for token in tokens for text in (token, f"a {token}\nb{token}{token}")]
    texts += [part for token in tokens[:3] for part in (token[:-1], token[1:], token + " ", " " + token)]
    return tuple(texts)


def template_probes(chat_template: str) -> tuple[str, ...]:
    """Return the texts by which a chat template may look into the content of a message: the strings in its
    code, each, all together, and in pairs those that it looks for at beginnings, at ends or anywhere; and
    texts as long as the numbers in its code, in characters and in lines.
    """
    words = strings(chat_template)
    looked_for = [
        *arguments(chat_template, "startswith", "endswith", "split", "rsplit", "partition", "rpartition"),
        *(word for word in operands(chat_template) if not word.isidentifier()),
    ]
    pairs = (f"{first}x{last}" for first, last in permutations(dict.fromkeys(looked_for), 2))
    single = (form for word in words for form in (word, f"a{word}b{word}"))
    together = (" ".join(words), " ".join(reversed(words)))
    return (*single, *islice(pairs, _MOST_PAIRS), *together, *_as_long_as(integers(chat_template)))


def _as_long_as(numbers: Iterable[int]) -> Iterator[str]:
    lengths = sorted({near for number in numbers for near in (number - 1, number, number + 1)})
    for length in lengths:
        if 0 < length <= _LONGEST:
            yield ("word " * length)[:length]
            yield "x\n" * length


def trimmed_characters(chat_template: str) -> str:
    """Return the characters that a chat template strips by name, as in `content.strip('\\n')`."""
    words = arguments(chat_template, "strip", "lstrip", "rstrip", "trim")
    return "".join(dict.fromkeys("".join(words)))
