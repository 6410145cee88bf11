"""A tokenizer's JSON made over: without control tokens, and for text that goes on in the middle of a text.

It works on the JSON form of the `tokenizers` library alone. Whether what it makes is right for a tokenizer is
never taken for granted: a cut holds only if `boundary` and the build's proof find that it does.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Any

Json = dict[str, Any]


def is_control(token: Mapping[str, Any]) -> bool:
    """Tell whether an added token has a meaning of its own: it is called special, or isn't white space."""
    return bool(token["special"]) or not token["content"].isspace()


def unknown_id(model: Mapping[str, Any]) -> int | None:
    """Return the id of the token for what a vocabulary doesn't know, if there is one."""
    if isinstance(model["vocab"], list):
        number = model.get("unk_id")
    else:
        number = model["vocab"].get(model.get("unk_token"))
    return None if number is None else int(number)


def without_control(content: Mapping[str, Any]) -> Json:
    """Return a tokenizer to which the text of a control token is text like any other.

    It isn't enough to look for no added tokens: the texts of control tokens stand in most vocabularies too,
    and some models (Unigram, WordPiece, BPE with `ignore_merges`) take whatever stands there. So they are
    given names there that no text can have. All other tokens keep their ids.
    """
    added = content["added_tokens"]
    control = {token["content"] for token in added if is_control(token)}
    kept = [token for token in added if token["content"] not in control]
    model = _without(content["model"], control, kept)
    # The post-processor adds tokens and moves offsets; neither is wanted of a piece of text.
    return {**content, "added_tokens": kept, "model": model, "post_processor": None}


def going_on(content: Json) -> Json:
    """Return a tokenizer for text that goes on in the middle of a text: nothing is put before it.

    It is `content` itself where nothing is put before any text.
    """
    made = dict(content)
    for key, inner, rewritten in (
        ("normalizer", "normalizers", _plain_normalizer),
        ("pre_tokenizer", "pretokenizers", _plain_splitter),
    ):
        parts = flat(content.get(key), inner)
        kept = [new for part in parts if (new := rewritten(part)) is not None]
        if kept != parts:
            made[key] = {"type": "Sequence", inner: kept} if kept else None
    return content if made == content else made


def marks_only_the_first(content: Mapping[str, Any]) -> bool:
    """Tell whether a word-start mark comes before the whole text, but not after a control token."""
    parts = flat(content.get("pre_tokenizer"), "pretokenizers")
    return any(part["type"] == "Metaspace" and part.get("prepend_scheme") == "first" for part in parts)


def flat(part: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """Return the parts of a normalizer or pre-tokenizer in order, sequences taken apart."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [found for one in part[inner] for found in flat(one, inner)]
    return [part]


def _plain_normalizer(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = part["type"]
    if kind == "Prepend":
        return None
    if kind == "Replace" and "Regex" in part["pattern"]:
        choices = part["pattern"]["Regex"].split("|")
        kept = [choice for choice in choices if not choice.startswith(("\\A", "^"))]
        # What is nested in brackets isn't taken apart: then no cut holds, and the span ends earlier.
        return {**part, "pattern": {"Regex": "|".join(kept)}} if kept else None
    return {**part, "strip_left": False} if kind == "Strip" else part


def _plain_splitter(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part["type"] == "Metaspace":
        # Older files say `add_prefix_space`; the library writes `prepend_scheme`.
        return {**part, "prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if part["type"] == "ByteLevel" else part


def _without(model: Mapping[str, Any], control: Collection[str], kept: list[Json]) -> Json:
    """Return a model without the texts `control` and with the texts of `kept`, all at their ids."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        return {**model, "vocab": _without_pieces(vocabulary, control, kept)}
    names = {token["content"]: token["id"] for token in kept}
    hidden = {text: number for text, number in vocabulary.items() if text in control}
    if not hidden and names.keys() <= vocabulary.keys():
        return dict(model)
    left = {text: number for text, number in vocabulary.items() if text not in control}
    renamed = {text: _unreachable(number) for text, number in hidden.items()}
    made: Json = {**model, "vocab": {**names, **left, **{renamed[text]: hidden[text] for text in hidden}}}
    if model.get("unk_token") in renamed:
        made["unk_token"] = renamed[model["unk_token"]]
    if "merges" in model and hidden:
        made["merges"] = [merge for merge in model["merges"] if not _touches(merge, control)]
    return made


def _without_pieces(vocabulary: list[Any], control: Collection[str], kept: list[Json]) -> list[Any]:
    worst = min(score for _, score in vocabulary)
    pieces = [
        [_unreachable(number), worst] if text in control else [text, score]
        for number, (text, score) in enumerate(vocabulary)
    ]
    present = {text for text, _ in vocabulary}
    for token in sorted(kept, key=lambda token: token["id"]):
        if token["content"] not in present:
            pieces += [[_unreachable(number), worst] for number in range(len(pieces), token["id"])]
            pieces.append([token["content"], worst])
    return pieces


def _touches(merge: str | list[str], control: Collection[str]) -> bool:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in control or right in control or left + right in control


def _unreachable(number: int) -> str:
    # Drawn anew for each tokenizer and never written down, so no text can have been made to hold it.
    return f"{secrets.token_hex(16)}{number}"
