"""What was seen of a run's servers and broke no promise: for people to know. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fafo_run.run.evidence import Excluded
from fafo_run.verify.causes import difference, is_off
from fafo_run.verify.counters import Agreement
from fafo_run.verify.known import Known
from fafo_run.verify.pages import beyond
from fafo_run.verify.report import Cause, Finding


def notes(known: Known, told: Collection[Cause]) -> Iterator[Finding]:
    """Yield a line for each thing that no finding names; `told` are the causes that some name."""
    servers = sorted({server for _, server in known.hits} | {life.server for life in known.lives})
    for server in servers:
        found = [*_rounding(known, server), *_events(known, server), *_counted(known, server)]
        yield from (finding for finding in found if finding.cause not in told)


def _rounding(known: Known, server: str) -> Iterator[Finding]:
    """Yield what each prefix has beyond its last whole page: no cache of such pages can serve it."""
    page = max((life.page_size for life in known.at(server)), default=1)
    for (name, at), hits in sorted(known.hits.items()):
        length = len(known.prefixes[known.artifacts[name]])
        if at == server and hits.items and length % page:
            yield beyond(name, length, server, page)


def _events(known: Known, server: str) -> Iterator[Finding]:
    own = known.at(server)
    if off := sum(map(is_off, own)):
        yield Finding(Cause.RADIX_OFF, f"{server} was without its prefix cache in {off} of {len(own)} lives")
    for event in (event for life in own for event in life.events if isinstance(event, Excluded)):
        yield Finding(Cause.DRIFT, f"{server} wasn't asked any more: {event.reason}")
    if colds := sum(life.cold is not None for life in own):
        yield Finding(Cause.COLD_RESTART, f"{server} came back with an empty cache; {colds} in all")
    if lost := sum(event.why == "evicted" for life in own for event in life.warmed):
        yield Finding(Cause.EVICTED, f"{server} lost prefixes that were warm; {lost} in all")


def _counted(known: Known, server: str) -> Iterator[Finding]:
    found = known.counters.get(server)
    if found is not None and found.agreement is Agreement.MORE:
        yield Finding(Cause.ANOTHER_TENANT, difference(server, found))
