"""`fafo diff`: what changed between two artifacts of a class, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fafo_build.cli.options import json_option, print_json, project_of, tell

if TYPE_CHECKING:
    from fafo_build.bake.compare import Comparison
    from fafo_build.bake.diff import Difference, FirstDifference
    from fafo_build.tokens.encoder import TextEncoder

_SIDES = {"given": "{}", "before": "before, {}", "build": "build/, {}", "sources": "sources now, {}"}
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@click.command(short_help="Show what changed between two artifacts of a class.")
@click.argument("name", metavar="CLASS")
@click.argument("old", required=False)
@json_option
@click.pass_context
def diff(context: click.Context, name: str, old: str | None, as_json: bool) -> None:
    """Show what changed between two artifacts of CLASS, and from which token on the cache is lost.

    OLD is the beginning of an artifact's hash. Without it: after an edit, the build is compared with the
    sources; when the build is current, the artifact before with the present one.
    """
    from fafo_build.bake.compare import compare
    from fafo_build.tokens.encoder import TextEncoder

    found = compare(project_of(context), name, old)
    encoder = TextEncoder(found.tokenizer_json) if found.tokenizer_json is not None else None
    if as_json:
        print_json(_as_json(found, encoder))
        return
    for line, style in _lines(found, encoder):
        tell(line, **style)


def _lines(found: Comparison, encoder: TextEncoder | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line with its style on a terminal."""
    between = found.difference
    if between is None:
        yield f"  {found.name}: {found.new.hash[:8]} is the first artifact that it has had here", {}
        return
    for mark, side, artifact in (("---", found.old_is, between.old), ("+++", found.new_is, between.new)):
        shown = _SIDES[side].format(artifact.hash[:8])
        yield f"{mark} {found.name} ({shown})", {"bold": True}
    for line in between.text:
        yield line, {"fg": _COLOURS.get(line[:1])}
    yield from ((f"  {change}", {}) for change in between.changes)
    yield from ((f"  {line}", {}) for line in _cost(between, encoder))


def _cost(between: Difference, encoder: TextEncoder | None) -> Iterator[str]:
    from fafo_build.bake.diff import per_item

    if between.same:
        yield "the same artifact: the cache and all results stay valid"
        return
    old, new = len(between.old.prefix), len(between.new.prefix)
    if between.old.model != between.new.model:
        yield f"another model: the cache keeps nothing; all {new} prefix tokens are computed, once per server"
    elif between.first is None:
        yield f"the prefix is the same: the cache keeps all {new} tokens"
    else:
        yield _difference(between.first, between, encoder)
        yield (
            f"the cache keeps {between.kept} of {old} prefix tokens; {between.anew} of the new {new} must be "
            "computed anew, once per server"
        )
    before, now = per_item(between.old), per_item(between.new)
    if before != now:
        yield f"constant tokens behind the prefix, of every item: {now}, were {before}"
    yield "the artifact is another one: every item of the class is new work"


def _difference(first: FirstDifference, between: Difference, encoder: TextEncoder | None) -> str:
    after = ""
    if encoder is not None and first.common:
        after = f", after {_quoted(encoder.decode(first.common))}"
    old = _token(first.old, encoder if between.old.tokenizer == between.new.tokenizer else None)
    new = _token(first.new, encoder)
    return f"first different token: number {first.index + 1}{after}: {old}, now {new}"


def _token(token: int | None, encoder: TextEncoder | None) -> str:
    if token is None:
        return "the prefix's end"
    return str(token) if encoder is None else f"{token} {_quoted(encoder.decode([token]))}"


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)


def _as_json(found: Comparison, encoder: TextEncoder | None) -> dict[str, Any]:
    from fafo_build.bake.diff import per_item

    between = found.difference
    told: dict[str, Any] = {
        "class": found.name,
        "old": None,
        "new": {"artifact": found.new.hash, "from": found.new_is, "prefix_tokens": len(found.new.prefix)},
    }
    if between is None:
        return told
    old = between.old
    told["old"] = {"artifact": old.hash, "from": found.old_is, "prefix_tokens": len(old.prefix)}
    return told | {
        "same": between.same,
        "first_difference": _first_as_json(between, encoder),
        "kept_tokens": between.kept,
        "lost_tokens": between.lost,
        "new_tokens": between.anew,
        "tokens_per_item": {"old": per_item(old), "new": per_item(between.new)},
        "changes": list(between.changes),
        "text": list(between.text),
    }


def _first_as_json(between: Difference, encoder: TextEncoder | None) -> dict[str, Any] | None:
    first = between.first
    if first is None:
        return None

    def token(number: int | None, encoder: TextEncoder | None) -> dict[str, Any] | None:
        text = encoder.decode([number]) if encoder is not None and number is not None else None
        return None if number is None else {"id": number, "text": text}

    return {
        "index": first.index,
        "after": encoder.decode(first.common) if encoder is not None else None,
        "old": token(first.old, encoder if between.old.tokenizer == between.new.tokenizer else None),
        "new": token(first.new, encoder),
    }
