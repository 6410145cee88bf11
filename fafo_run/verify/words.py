"""The reports of a verification as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fafo_run.verify.live import LiveReport
from fafo_run.verify.report import Finding, Report
from fafo_run.verify.saving import Saving, SavingReport
from fafo_run.verify.sums import Hits


def report_text(report: Report) -> str:
    """Return the verification of a run in lines."""
    complete = report.completeness
    parts = [_rate(report.hits), f"{complete.completed} of {complete.total} items"]
    parts += [f"{complete.failed} failed"] if complete.failed else []
    parts += [f"{complete.waiting} waiting"] if complete.waiting else []
    parts += [f"{complete.superseded} superseded"] if complete.superseded else []
    parts.append("artifacts stale" if report.stale else "artifacts current")
    sound = not (complete.doubled or complete.lost or complete.undecodable)
    parts.append("records sound" if sound else "records unsound")
    agreed = [found for found in report.counters.values() if found.compared]
    if agreed and all(found.agreement.value == "agree" for found in agreed):
        of = "" if len(agreed) == len(report.counters) else f" at {len(agreed)} of {len(report.counters)}"
        parts.append(f"servers' counters agree{of}")
    lines = [f"  {report.verdict.value}    {' · '.join(parts)}"]
    return "\n".join([*lines, *_causes(report.findings), *_notes(report.notes)])


def live_text(report: LiveReport) -> str:
    """Return the probing of servers in lines."""
    servers = len({probe.server for probe in report.probes})
    classes = len({probe.class_name for probe in report.probes})
    seconds = max((probe.seconds for probe in report.probes), default=0.0)
    parts = [_rate(report.hits), f"{_many(classes, 'class')} at {_many(servers, 'server')}"]
    parts += [f"at most {seconds:.1f} s a class"] if report.probes else []
    lines = [f"  {report.verdict.value}    {' · '.join(parts)}"]
    return "\n".join([*lines, *_causes(report.findings), *_notes(report.notes)])


def saving_text(report: SavingReport) -> str:
    """Return what the cache saves in lines, one for each class."""
    rows = [*report.by_class.items()]
    if len(rows) > 1:
        rows.append(("all", report.total))
    wide = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{wide}}  {_saving(found)}" for name, found in rows)


def _saving(found: Saving) -> str:
    if not found.items or found.ratio is None:
        return "no items"
    return (
        f"{_many(found.items, 'item')} · {found.cached_seconds / found.items:.3f} s each with the cache, "
        f"{found.uncached_seconds / found.items:.3f} s without: {found.ratio:.2f} times as long · "
        f"{found.cached_tokens - found.uncached_tokens} tokens saved"
    )


def _rate(hits: Hits) -> str:
    if hits.hit_rate is None or hits.ceiling is None or hits.ratio is None:
        return "no hit rate"
    rate = f"hit rate {hits.hit_rate:.3f} of {hits.ceiling:.3f}"
    if hits.hit_rate > hits.ceiling:
        # More than all would read as a fault.
        rate += f", since items share more than prefixes; {hits.ratio:.3f} of these came from the cache"
    return rate


def _causes(findings: Iterable[Finding]) -> Iterator[str]:
    return (f"  {found.cause.value}: {found.detail}" for found in findings)


def _notes(notes: Iterable[Finding]) -> Iterator[str]:
    return (f"  note: {found.cause.value}: {found.detail}" for found in notes)


def _many(count: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{count} {what if count == 1 else plural}"
