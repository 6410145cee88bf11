"""One item whole: its row, its prompt as rendered, where the prefix ends, what came back, and all that
led to it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from fafo_run.item import Failure, Output, Record, Row
from fafo_run.prompt import PromptEncoder


@frozen
class Shown:
    """One item, ready to be printed."""

    record: Record
    row: Row | None
    """The source's row as it is now; None when it is gone, has changed since, or can't be read."""
    current: bool
    """False when the class, its sampling, its model or the row has changed since, or the row is gone."""
    prefix_text: str | None
    """None when the artifact isn't there any more."""
    suffix_text: str | None
    prefix_tokens: int | None
    output_text: str | None

    def as_json(self) -> dict[str, Any]:
        """Return everything, ids included."""
        record, of = self.record, self.record.provenance
        told: dict[str, Any] = {
            "identity": record.identity.hex(),
            "class": of.class_name,
            "source": of.source,
            "key": record.key,
            "sample": record.sample,
            "current": self.current,
            "row": dict(self.row.fields) if self.row else None,
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
            },
            "attempt": record.attempt,
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


def shown(record: Record, row: Row | None, encoder: PromptEncoder | None, *, current: bool) -> Shown:
    """Gather what there is to show of a record; `encoder` is that of its artifact, if it is still there."""
    output = record.outcome if isinstance(record.outcome, Output) else None
    prompt = encoder.prompt_text(record.suffix) if encoder and record.prompt_tokens else (None, None)
    return Shown(
        record=record,
        row=row if row is not None and row.content_hash == record.content_hash else None,
        current=current,
        prefix_text=prompt[0],
        suffix_text=prompt[1],
        prefix_tokens=len(encoder.prefix) if encoder else None,
        output_text=encoder.output_text(output.ids) if encoder and output else None,
    )


def render(item: Shown) -> str:
    """Return the item as people read it."""
    record, of = item.record, item.record.provenance
    lines = [
        f"{record.identity.hex()}  {of.class_name} · {of.source} · {record.key} · sample {record.sample}",
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
        f"time      {_moment(record.started)} · {record.seconds:.3f} s · attempt {record.attempt}",
    ]
    return "\n".join(lines)


def _row_lines(item: Shown) -> list[str]:
    if item.row is None:
        return ["  the source has no such row now"]
    return [f"  {name}: {value}" for name, value in item.row.fields.items()] + [f"  ({item.row.where})"]


def _prompt_lines(item: Shown) -> list[str]:
    if item.record.prompt_tokens == 0:
        return []
    if item.prefix_text is None or item.suffix_text is None:
        return ["prompt: its artifact isn't in build/ any more", ""]
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
        return [f"failed: {outcome.code.value} at {outcome.stage.value}", f"  {outcome.message}"]
    matched = "" if outcome.finish_reason.matched is None else f" ({outcome.finish_reason.matched})"
    return [
        f"output: {len(outcome.ids)} tokens, finished by {outcome.finish_reason.type}{matched}",
        _indent(
            item.output_text if item.output_text is not None else "(its artifact isn't in build/ any more)"
        ),
        f"  ids {' '.join(map(str, outcome.ids))}",
        "",
        f"cached    {outcome.cached_tokens} of {item.record.prompt_tokens} prompt tokens, "
        f"expected {outcome.expected_cached_tokens}",
    ]


def _failure(failure: Failure) -> dict[str, str]:
    return {"code": failure.code.value, "stage": failure.stage.value, "message": failure.message}


def _pairs(values: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None) or "-"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _indent(text: str) -> str:
    return "\n".join(f"  │ {line}" for line in text.split("\n"))
