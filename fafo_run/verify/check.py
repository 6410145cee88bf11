"""Makes the verification of a run: sums from the results, the view held against them, build/ against
its inputs, the servers' counters against the run's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fafo_build.bake.plan import plan_build
from fafo_build.project.declaration import Project
from fafo_run.results.audit import Duplicates
from fafo_run.run import evidence
from fafo_run.run.server import IN_PROCESS
from fafo_run.run.store import RunReader
from fafo_run.run.view import View
from fafo_run.verify.causes import difference, explain, no_ceiling
from fafo_run.verify.complete import complete
from fafo_run.verify.counters import Agreement, Comparison, compare
from fafo_run.verify.known import Known
from fafo_run.verify.lives import Losses, lives_of
from fafo_run.verify.notes import notes
from fafo_run.verify.records import RecordSums
from fafo_run.verify.report import Cause, Finding, Report
from fafo_run.verify.sums import Completeness, Hits, Pair
from fafo_run.verify.warming import warm_ups


def verify(view: View, reader: RunReader, min_hit_rate: float) -> Report:
    """Return the verification of a run for the classes of the view. Reads only.

    Raises `SourceError` when a source can't be read, `StoreError` when the store can't.
    """
    events, unreadable = evidence.read(reader.directory.path)
    lives = lives_of(events)
    hits, failures = _sums(view, reader)
    records = RecordSums(view.owner, Losses(events).why)
    # The audit first: what is recorded while it reads can only be missing from it, never doubled by it.
    audit = reader.results.duplicates(records.see)
    completeness = complete(view, reader, audit)
    stale = [(name, f"{name}: {reason}") for name, reason in _stale(view.project)]
    known = Known(
        hits=hits,
        misses=records.misses(),
        lives=lives,
        prefixes={of.artifact.hash: of.artifact.prefix for of in view.classes},
        artifacts={of.name: of.artifact.hash for of in view.classes},
        outputs={of.name: of.sampling.max_new_tokens for of in view.classes},
        counters=compare(lives),
        stale=frozenset(name for name, _ in stale),
    )
    by_class = {of.name: _over(hits, 0, of.name) for of in view.classes}
    findings = [
        *_hit_rates(by_class, known, min_hit_rate),
        *_records(completeness, audit),
        *(Finding(Cause.STALE, line) for _, line in stale),
        *_counters(known.counters),
        *_nothing(by_class, failures, known),
    ]
    return Report(
        by_class=by_class,
        by_server={
            server: _over(hits, 1, server)
            for server in dict.fromkeys(pair[1] for pair, sums in hits.items() if sums.items)
        },
        by_hour=records.by_hour(),
        warm_ups=warm_ups(lives, known.prefixes),
        counters=known.counters,
        completeness=completeness,
        stale=tuple(line for _, line in stale),
        findings=tuple(findings),
        notes=tuple(notes(known, {found.cause for found in findings})),
        events=len(events),
        unreadable=unreadable,
        min_hit_rate=min_hit_rate,
    )


def _sums(view: View, reader: RunReader) -> tuple[dict[Pair, Hits], dict[str, int]]:
    """Return the sums over finished items by class and server, and the number of failures by class."""
    hits: dict[Pair, Hits] = {}
    failures = dict.fromkeys((of.name for of in view.classes), 0)
    for group, counts in reader.results.summary().groups.items():
        owner = view.owner(group)
        if owner in failures:
            pair = owner, group.server or IN_PROCESS
            hits[pair] = hits.get(pair, Hits()) + Hits.of(counts)
            failures[owner] += counts.failed
    return hits, failures


def _over(hits: Mapping[Pair, Hits], at: int, name: str) -> Hits:
    """Return the sums of one class (`at` 0) or one server (1)."""
    return sum((sums for pair, sums in hits.items() if pair[at] == name), Hits())


def _stale(project: Project) -> Iterator[tuple[str, str]]:
    """Yield each class that isn't baked as it is declared, with each reason."""
    plan = plan_build(project)
    for waiting in plan.waiting:
        yield from ((waiting.name, reason) for reason in waiting.reasons)
    for name in plan.gone:
        yield name, "the class is gone"


def _hit_rates(by_class: Mapping[str, Hits], known: Known, min_hit_rate: float) -> Iterator[Finding]:
    """Yield the classes that are below, each with what explains it."""
    for name, hits in by_class.items():
        if hits.ratio is not None and hits.ratio < min_hit_rate:
            yield Finding(
                Cause.HIT_RATE,
                f"{name}: {hits.ratio:.3f} of the ceiling, {min_hit_rate:g} asked for "
                f"({hits.reached_tokens} of {hits.ceiling_tokens} tokens)",
            )
            yield from explain(name, known)


def _records(completeness: Completeness, audit: Duplicates) -> Iterator[Finding]:
    if completeness.doubled:
        first = ", ".join(identity.hex() for identity in audit.identities[:3])
        yield Finding(Cause.DOUBLED, f"{completeness.doubled} identities have two outputs: {first}")
    if completeness.lost:
        yield Finding(Cause.LOST, f"{completeness.lost} items left the queue without a record")
    for line in audit.damaged:
        yield Finding(Cause.UNDECODABLE, line)


def _counters(found: Mapping[str, Comparison]) -> Iterator[Finding]:
    for server, comparison in found.items():
        if comparison.agreement is Agreement.FEWER:
            yield Finding(
                Cause.COUNTERS,
                f"{difference(server, comparison)}: one of the two is wrong, unless the server was restarted "
                "so quickly that nobody saw it",
            )


def _nothing(by_class: Mapping[str, Hits], failures: Mapping[str, int], known: Known) -> Iterator[Finding]:
    """Yield why there is no hit rate, of some class or of all."""
    for name, failed in failures.items():
        if failed and not by_class[name].items:
            yield Finding(Cause.NO_RESULTS, f"{name}: no output, {failed} failed")
    total = sum(by_class.values(), Hits())
    if not total.items and not any(failures.values()):
        yield Finding(Cause.NO_RESULTS, "no item has an output yet")
    elif total.items and not total.ceiling_tokens:
        yield Finding(Cause.NO_CEILING, "no prefix fills a page of the engine's cache")
        yield from no_ceiling(known)
