"""`fafo build --explain CLASS` as people read it: the conversation, where its prefix ends, and what would
lengthen it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fafo_build.cli.beginnings import some, tokens
from fafo_build.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from fafo_build.bake.explanation import Advice, Boundary, Explanation
    from fafo_build.bake.now import Present

_STYLES = {
    "prefix": "green",
    "glue": "black on yellow",
    "hole": "bold magenta",
    "late": "yellow",
    "span": "cyan",
    "tail": "cyan",
}
_EXCERPT = 60
"""Characters of a text that a line of advice shows."""


def show(present: Present, explanation: Explanation) -> None:
    """Print to stdout: in colour on a terminal that has them (`NO_COLOR` is heeded), else with markers."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
    coloured = console.is_terminal and not console.no_color and console.color_system is not None
    console.print(visible(_title(present)))
    console.print()
    console.print(_conversation(explanation, coloured=coloured))
    console.print()
    for line in _facts(explanation):
        console.print(visible(line))
    _print_advice(console, present, explanation)


def as_json(present: Present, explanation: Explanation) -> dict[str, Any]:
    """Return what `--json` prints; messages count from 1, as in errors."""
    artifact = present.subject.artifact
    boundary = explanation.boundary
    return {
        "class": present.subject.declared.name,
        "state": present.state,
        "artifact": artifact.hash,
        "prefix_tokens": len(artifact.prefix),
        "parts": [
            {"kind": part.kind, "text": part.text, "tokens": part.tokens, "message": _number(part.message)}
            for part in explanation.parts
        ],
        "boundary": {
            "reason": boundary.reason,
            "last": boundary.last,
            "glue": boundary.glue,
            "glue_tokens": boundary.glue_tokens,
        },
        "advice": [
            {
                "kind": found.kind,
                "tokens": found.tokens,
                "text": found.text,
                "message": _number(found.message),
                "hole": found.hole,
                "messages": [number + 1 for number in found.messages],
                "classes": list(found.classes),
                "prompts": list(found.prompts),
            }
            for found in explanation.advice
        ],
        "not_compared": list(present.missing),
    }


def _title(present: Present) -> str:
    artifact = present.subject.artifact
    state = "as built" if present.state == "current" else f"{present.state}, baked in memory"
    return f"{present.subject.declared.name} · {artifact.hash[:8]}… · {state}"


def _conversation(explanation: Explanation, *, coloured: bool) -> Text:
    """Return the rendered conversation; without colours a marker stands before each part."""
    from rich.text import Text

    shown = Text()
    if coloured:
        for kind in dict.fromkeys(part.kind for part in explanation.parts):
            shown.append(f" {_name(kind)} ", f"{_STYLES[kind]} reverse").append(" ")
        shown.append("\n")
    for part in explanation.parts:
        if coloured:
            shown.append(visible(part.text), _STYLES[part.kind])
        else:
            count = "" if part.tokens is None else f" {part.tokens}"
            shown.append(f"⟦{_name(part.kind)}{count}⟧{visible(part.text)}")
    return shown


def _name(kind: str) -> str:
    return "constant" if kind in ("late", "span") else kind


def _facts(explanation: Explanation) -> Iterator[str]:
    parts = explanation.parts
    yield f"prefix    {tokens(parts[0].tokens or 0)}, {_why(explanation.boundary)}"
    for part in (part for part in parts if part.kind == "hole" and part.message is not None):
        yield f"hole      message {_number(part.message)}: {_excerpt(part.text)}"
    constant = sum(part.tokens or 0 for part in parts if part.kind in ("late", "span", "glue"))
    if constant:
        yield f"constant  {tokens(constant)} between prefix and tail, computed for each item"
    yield f"tail      {tokens(parts[-1].tokens or 0)}"


def _why(boundary: Boundary) -> str:
    if boundary.reason == "special token":
        ends = f"ends after the special token {boundary.last}"
    else:
        ends = f"ends after the piece {_quoted(boundary.last)}, which no text that follows can change"
    if not boundary.glue_tokens:
        return f"{ends}; it costs nothing"
    return f"{ends}; that costs {tokens(boundary.glue_tokens)}: {_quoted(boundary.glue)} goes with each item"


def _print_advice(console: Console, present: Present, explanation: Explanation) -> None:
    if explanation.advice:
        console.print("\nwhat would lengthen the prefix, or let classes share more of it")
        for found in explanation.advice:
            console.print(visible(f"  {found.tokens:5}  {_advice(found)}"))
            console.print(visible(f"         {_quoted(_excerpt(found.text))}"))
    else:
        console.print("\nnothing was found that would lengthen the prefix")
    if present.missing:
        console.print(f"\nnot compared, since they aren't built: {some(present.missing)}")


def _advice(found: Advice) -> str:
    where = f"message {_number(found.message)}"
    hole = _excerpt(found.hole)
    match found.kind:
        case "text":
            return f"constant tokens follow {hole} in {where}: put the hole after them"
        case "block":
            return f"constant tokens stand inside {hole} in {where}: put before it what every item has"
        case "message":
            later = ", ".join(str(number + 1) for number in found.messages)
            many = "messages" if len(found.messages) > 1 else "message"
            return f"constant tokens of {many} {later} follow {hole} in {where}: look at the item after them"
        case "fragment":
            files = f" ({', '.join(found.prompts)})" if found.prompts else ""
            return f"tokens are also in {some(found.classes)}{files}: put first, the cache has them once"


def _number(message: int | None) -> int | None:
    return None if message is None else message + 1


def _excerpt(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _EXCERPT else f"{flat[: _EXCERPT - 1]}…"


def _quoted(text: str) -> str:
    return f"“{text.replace(chr(10), '⏎')}”"
