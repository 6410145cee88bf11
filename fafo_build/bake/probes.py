"""Hostile texts for holes: what has been seen to change ids at the edge of a text, or to change the text
itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from jinja2 import Environment, TemplateSyntaxError

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
    "x" * 3000,
    "word " * 2000,
    " " * 500,
)
"""Without the texts of control tokens, which depend on the tokenizer."""

_MOST = 60


def control_probes(control: Iterable[str]) -> tuple[str, ...]:
    """Return texts that look like control tokens: each as it is and within text, and pieces of the first."""
    tokens = sorted(control)
    texts = [text for token in tokens for text in (token, f"a {token}\nb{token}{token}")]
    texts += [part for token in tokens[:3] for part in (token[:-1], token[1:], token + " ", " " + token)]
    return tuple(texts[: 4 * _MOST])


def template_probes(chat_template: str) -> tuple[str, ...]:
    """Return the words by which a chat template may look into the content of a message: the strings in its
    code.
    """
    try:
        tokens = list(Environment().lex(chat_template))
    except TemplateSyntaxError:
        return ()
    words = dict.fromkeys(text[1:-1] for _, kind, text in tokens if kind == "string" and len(text) > 2)
    return tuple(islice((form for word in words for form in (word, f"a{word}b{word}")), _MOST))
