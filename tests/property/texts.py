"""Random texts for holes: any Unicode, and more often what tokenizers stumble over."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

SPACES = "".join(chr(point) for point in range(0x3001) if chr(point).isspace())
ODD = (
    *SPACES,
    *("  ", " " * 20, "\n\n", "\r\n", " \n", "\t\n", "\n ", "\0", "\x01", "\x1b", "\x7f", "\x85", "\xad"),
    # Marks that join what precedes them, and letters that normalizing puts together or takes apart.
    *("\u0301", "\u0308", "\u0323", "\u20e3", "\ufe0f", "\u200c", "\u200d", "\u2060", "\ufeff", "\u202e"),
    *("e\u0301", "é", "A\u030a", "Å", "\u212b", "ﬁ", "①", "½", "\u1112", "\u1161", "\u11ab", "\uac00", "ﷺ"),
    *("İ", "ß", "ǅ", "ς", "\u0345", "़", "क्षि", "ไทย", "한국어", "日本", "中", "。", "\u3099", "か\u3099"),
    *("🙂", "👩\u200d👧", "🏳️\u200d🌈", "🇳", "🇳🇴", "🏴\U000e0067\U000e007f", "\U0010ffff", "\ue000", "\ufdd0"),
    *("0", "1", "12", "123", "1234", "٣", "²", "Ⅷ", "1,000.5", "x" * 300, "-" * 40, "a b " * 40),
    *(
        "'",
        "'s",
        "'ll",
        "’s",
        '"',
        ".",
        "...",
        "!",
        "/",
        "//",
        "\\",
        "_",
        "#",
        "##",
        "##s",
        "<",
        ">",
        "<0x0A>",
    ),
    # What vocabularies write in place of a space, and how texts of our class go on.
    *("\u2581", "\u2581\u2581", "\u0120", "\u010a", " s", " the", "\n#"),
)
STICKY = (
    *("fix", "sent", "pare", "vious", "mium", "s", "ly", "tion", "l", "the", "0", "19", "'s", " ", "\n"),
    *("\u0301", "\u0308", "\u0323"),
)
"""What makes one token, or one letter, with the text before it: with the `pre` of our class's, say."""


def texts(control: Iterable[str]) -> st.SearchStrategy[str]:
    """Return texts in which control tokens, their pieces and what looks like them are frequent."""
    tokens = st.sampled_from(sorted(control))
    looks = tokens.flatmap(
        lambda token: st.sampled_from(
            (token, token[1:], token[:-1], token.upper(), token.lower(), "\u2581" + token, _wide(token))
        )
    )
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    pieces = st.one_of(anything, st.sampled_from(ODD), st.sampled_from(STICKY), tokens, looks)
    return st.lists(pieces, max_size=5).map("".join)


def _wide(token: str) -> str:
    """Return what the normal form NFKC makes into `token`."""
    return "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in token)
