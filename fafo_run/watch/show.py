"""One item whole: its row, its prompt as rendered, where the prefix ends, what came back, and all that
led to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from fafo_build.visible import one_line
from fafo_run.engines.repeat import Repeatability, repeatability
from fafo_run.item import BrokenRow, Failure, Output, Record, Row
from fafo_run.prompt import PromptEncoder
from fafo_run.watch.rows import RowNow, row_now
from fafo_run.watch.words import bounded, counted, times

_NO_ARTIFACT = "its artifact isn't in build/ any more, or is of an older format"

_LONGEST = 60
"""Characters of a parameter that people are shown."""
_FIELD = 2_000
"""Characters of a column or a message."""
_TEXT = 8_000
"""Characters of a prompt's part, or of an output."""
_IDS = 1_000
"""Token ids of an output."""


@frozen
class Shown:
    """One item, ready to be printed."""

    record: Record
    row: Row | BrokenRow | None
    """The source's row with its key as it is now, be it another than it was; None when there is none."""
    current: bool
    """False when the class, its sampling, its model or the row has changed since, or the row is gone."""
    prefix_text: str | None
    """None when the artifact isn't there any more, or is of an older format."""
    suffix_text: str | None
    prefix_tokens: int | None
    output_text: str | None
    earlier: tuple[Record, ...] = ()
    """Its failures before that, the first one first."""

    @property
    def row_now(self) -> RowNow:
        """What has become of its row."""
        return row_now(self.record, self.row) if self.row is not None else RowNow.GONE

    def as_json(self) -> dict[str, Any]:
        """Return everything, ids included."""
        record, of = self.record, self.record.provenance
        same = self.row if self.row_now is RowNow.SAME else None
        told: dict[str, Any] = {
            "identity": record.identity.hex(),
            "class": of.class_name,
            "source": of.source,
            "key": record.key,
            "sample": record.sample,
            "current": self.current,
            "row": dict(same.fields) if isinstance(same, Row) else None,
            "row_now": self.row_now.value,
            "where": self.row.where if self.row else None,
            "broken": same.message if isinstance(same, BrokenRow) else None,
            "prompt": {
                "prefix": self.prefix_text,
                "suffix": self.suffix_text,
                "prefix_tokens": self.prefix_tokens,
                "prompt_tokens": record.prompt_tokens,
                "suffix_ids": list(record.suffix),
                "lane": record.lane,
            },
            "artifact": of.artifact,
            "model": of.model,
            "model_fingerprint": of.model_fingerprint,
            "sampling": dict(of.sampling),
            "seed": record.seed,
            "engine": {
                "kind": of.engine,
                "version": of.engine_version,
                "settings": dict(of.engine_settings),
                "server": record.server,
                "repeats": repeats(record).as_json() if isinstance(record.outcome, Output) else None,
            },
            "attempt": record.attempt,
            "retry": record.retry,
            "history": [_earlier(before) for before in self.earlier],
            "started": _moment(record.started),
            "seconds": record.seconds,
        }
        if isinstance(record.outcome, Output):
            told["output"] = {
                "text": self.output_text,
                "ids": list(record.outcome.ids),
                "finish_reason": record.outcome.finish_reason.type,
                "matched": record.outcome.finish_reason.matched,
                "cached_tokens": record.outcome.cached_tokens,
                "expected_cached_tokens": record.outcome.expected_cached_tokens,
            }
        else:
            told["failure"] = _failure(record.outcome)
        return told


def shown(
    record: Record,
    row: Row | BrokenRow | None,
    encoder: PromptEncoder | None,
    *,
    current: bool,
    earlier: Sequence[Record] = (),
) -> Shown:
    """Gather what there is to show of a record; `encoder` is that of its artifact, if it is still there.

    `earlier` are the records that this one took the place of, the first one first.
    """
    output = record.outcome if isinstance(record.outcome, Output) else None
    prompt = encoder.prompt_text(record.suffix) if encoder and record.prompt_tokens else (None, None)
    return Shown(
        record=record,
        row=row,
        current=current,
        prefix_text=prompt[0],
        suffix_text=prompt[1],
        prefix_tokens=len(encoder.prefix) if encoder else None,
        output_text=encoder.output_text(output, record.provenance.sampling.get("stop_token_ids", ()))
        if encoder and output
        else None,
        earlier=tuple(earlier),
    )


def title(record: Record) -> str:
    """Return the line that names an item to people."""
    of = record.provenance
    names = f"{of.class_name} · {of.source} · {one_line(record.key)} · sample {record.sample}"
    return f"{record.identity.hex()}  {names}"


def render(item: Shown) -> str:
    """Return the item as people read it."""
    record, of = item.record, item.record.provenance
    lines = [
        title(record),
        *(
            []
            if item.current
            else ["superseded: the class, its parameters, its model or the row has changed since"]
        ),
        "",
        "row",
        *_row_lines(item),
        "",
        *_prompt_lines(item),
        *_outcome_lines(item),
        "",
        f"artifact  {of.artifact}",
        f"model     {of.model} ({of.model_fingerprint[:16]}…)",
        f"sampling  {_pairs(of.sampling)} · seed {record.seed}",
        f"engine    {of.engine or '-'} {of.engine_version} · {_pairs(of.engine_settings)}"
        + (f" · {record.server}" if record.server else ""),
        *_repeats_lines(record),
        f"time      {_moment(record.started)} · {record.seconds:.3f} s · attempt {record.attempt}"
        + (f" · put back {times(record.retry)}" if record.retry else ""),
        *_earlier_lines(item.earlier),
    ]
    return "\n".join(lines)


def _repeats_lines(record: Record) -> list[str]:
    if not isinstance(record.outcome, Output):
        return []
    found = repeats(record)
    return [f"repeats   {found.level.value}: {found.why}"]


def repeats(record: Record) -> Repeatability:
    """Return whether the same request would get the same output again, by what its engine said of itself."""
    of = record.provenance
    return repeatability(of.engine, of.engine_settings, of.sampling)


def _row_lines(item: Shown) -> list[str]:
    row = item.row
    if row is None:
        return ["  the source has no row with this key now"]
    if item.row_now is RowNow.CHANGED:
        return [f"  it has changed since ({row.where})"]
    if isinstance(row, BrokenRow):
        return [f"  it can't be used: {one_line(bounded(row.message, _FIELD))}", f"  ({row.where})"]
    columns = [_column(name, bounded(str(value), _FIELD)) for name, value in row.fields.items()]
    return [*columns, f"  ({row.where})"]


def _column(name: str, text: str) -> str:
    return f"  {one_line(name)}:" + (f"\n{_indent(text)}" if "\n" in text else f" {text}")


def _prompt_lines(item: Shown) -> list[str]:
    if item.record.prompt_tokens == 0:
        return []
    if item.prefix_text is None or item.suffix_text is None:
        return [f"prompt: {_NO_ARTIFACT}", ""]
    suffix = item.record.prompt_tokens - (item.prefix_tokens or 0)
    return [
        f"prompt: {item.prefix_tokens} prefix tokens, of all items of the class",
        _indent(item.prefix_text),
        f"──── here the prefix ends; {suffix} tokens of this item follow ────",
        _indent(item.suffix_text),
        "",
    ]


def _outcome_lines(item: Shown) -> list[str]:
    outcome = item.record.outcome
    if isinstance(outcome, Failure):
        return [
            f"failed: {outcome.code.value} at {outcome.stage.value}",
            f"  {one_line(bounded(outcome.message, _FIELD))}",
        ]
    matched = "" if outcome.finish_reason.matched is None else f" ({outcome.finish_reason.matched})"
    return [
        f"output: {len(outcome.ids)} tokens, finished by {outcome.finish_reason.type}{matched}",
        _indent(item.output_text if item.output_text is not None else f"({_NO_ARTIFACT})"),
        f"  ids {_ids(outcome.ids)}",
        "",
        f"cached    {outcome.cached_tokens} of {item.record.prompt_tokens} prompt tokens, "
        f"expected {outcome.expected_cached_tokens}",
    ]


def _ids(ids: Sequence[int]) -> str:
    more = len(ids) - _IDS
    return " ".join(map(str, ids[:_IDS])) + (f" and {more:,} more; --json has them" if more > 0 else "")


def _earlier_lines(earlier: Sequence[Record]) -> Iterator[str]:
    for record in earlier:
        told = _earlier(record)
        tries = counted(record.attempt, "attempt")
        yield f"before    {told['started']} · {told['code']} at {told['stage']}, {tries}"
        yield f"  {one_line(bounded(told['message'], _FIELD))}"


def _earlier(record: Record) -> dict[str, Any]:
    told: dict[str, Any] = _failure(record.outcome) if isinstance(record.outcome, Failure) else {}
    return told | {"attempts": record.attempt, "retry": record.retry, "started": _moment(record.started)}


def _failure(failure: Failure) -> dict[str, str]:
    return {"code": failure.code.value, "stage": failure.stage.value, "message": failure.message}


def _pairs(values: Any) -> str:
    """Return what is set; a schema or a grammar is shown whole by --json."""
    return " ".join(f"{name}={_brief(value)}" for name, value in values.items() if value is not None) or "-"


def _brief(value: Any) -> str:
    shown = value if isinstance(value, str) and value.isprintable() else repr(value)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _indent(text: str) -> str:
    return "\n".join(f"  │ {line}" for line in bounded(text, _TEXT).split("\n"))
