"""Probes running servers: two requests per class to each rank of each, of which the second has to find the
prefix in the cache. It needs no run, and leaves none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from fafo_build.errors import EngineError
from fafo_run.engines.base import Capabilities, Counters, Engine, Unavailable
from fafo_run.engines.fleet import difference, strangers
from fafo_run.engines.sglang_wire import OtherPromptError
from fafo_run.run import preflight
from fafo_run.run.plan import RunPlan
from fafo_run.run.records import ceiling
from fafo_run.run.server import IN_PROCESS
from fafo_run.run.view import ClassView
from fafo_run.verify.pages import beyond, none_filled
from fafo_run.verify.probing import UnansweredError, answer, made_up, one_token, opened, prompts
from fafo_run.verify.report import Cause, Finding, Verdict, verdict_of
from fafo_run.verify.sums import Hits, Misses


@frozen
class Probe:
    """What the second request of one class found at one server."""

    server: str
    rank: int
    class_name: str
    page_size: int
    prefix_cache: bool
    hits: Hits
    seconds: float
    """Both requests together."""

    def as_json(self) -> dict[str, Any]:
        """Return what docs/verify.md describes."""
        return {
            "server": self.server,
            "rank": self.rank,
            "class": self.class_name,
            "prompt_tokens": self.hits.prompt_tokens,
            "cached_tokens": self.hits.cached_tokens,
            "ceiling_tokens": self.hits.ceiling_tokens,
            "ratio": self.hits.ratio,
            "seconds": self.seconds,
        }


@frozen
class LiveReport:
    """The probing of all servers of an engine."""

    probes: tuple[Probe, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    min_hit_rate: float

    @property
    def hits(self) -> Hits:
        """All probes together."""
        return sum((probe.hits for probe in self.probes), Hits())

    @property
    def verdict(self) -> Verdict:
        """What the findings come to."""
        return verdict_of(self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/verify.md describes."""
        hits = self.hits
        return {
            "verdict": self.verdict.value,
            "hit_rate": hits.hit_rate,
            "ceiling": hits.ceiling,
            "ratio": hits.ratio,
            "min_hit_rate": self.min_hit_rate,
            "probes": [probe.as_json() for probe in self.probes],
            "causes": [found.as_json() for found in self.findings],
            "notes": [found.as_json() for found in self.notes],
        }


@frozen
class _Server:
    """A server that was started to be probed, and what came of it."""

    limits: Capabilities
    probes: tuple[Probe, ...]
    findings: tuple[Finding, ...]
    before: Counters | None
    after: Counters | None
    sent: int
    """Requests that it answered."""

    @property
    def name(self) -> str:
        return self.limits.server or IN_PROCESS


async def live(plan: RunPlan, min_hit_rate: float) -> LiveReport:
    """Probe every server of the plan's engine; the servers at once, the classes one after the other.

    Raises `EngineError` for servers that can't be meant, `SourceError` when a source can't be read.
    """
    firsts = {of.name: [each.suffix for each in prompts(plan.view, of, 1)] for of in plan.view.classes}
    # A real item's, if there is one.
    suffixes = {of.name: (firsts[of.name] or [made_up(of, ())])[0] for of in plan.view.classes}
    async with opened(plan) as engines:
        found = await asyncio.gather(*(_probe(plan, engine, suffixes) for engine in engines))
    servers = [each for each in found if isinstance(each, _Server)]
    findings = [each for each in found if isinstance(each, Finding)]
    findings += _differences(servers)
    for server in servers:
        findings += server.findings
        findings += _below(server, min_hit_rate)
    probes = tuple(probe for server in servers for probe in server.probes)
    if probes and not any(probe.hits.ceiling_tokens for probe in probes):
        findings += _no_ceiling(plan, servers)
    told = {finding.cause for finding in findings}
    declared = [of.model.locked.path for of in plan.view.classes[:1]]
    return LiveReport(
        probes,
        tuple(findings),
        (
            *(note for server in servers for note in _notes(plan, server) if note.cause not in told),
            *(Finding(Cause.DRIFT, line) for line in strangers([each.limits for each in servers], declared)),
        ),
        min_hit_rate,
    )


async def _probe(plan: RunPlan, engine: Engine, suffixes: Mapping[str, tuple[int, ...]]) -> _Server | Finding:
    try:
        limits = await engine.start()
        preflight.check(plan.view, limits)
    except EngineError as error:
        return Finding(Cause.NO_ANSWER, " ".join(str(error).split()))
    before, probes, findings = await _counters(engine), list[Probe](), list[Finding]()
    for of, rank in itertools.product(plan.view.classes, range(limits.ranks)):
        try:
            probes.append(await _probe_class(of, engine, limits, suffixes[of.name], rank))
        except UnansweredError as error:
            lost = error.unavailable
            other = lost is not None and isinstance(lost.__cause__, OtherPromptError)
            findings.append(Finding(Cause.DRIFT if other else Cause.NO_ANSWER, f"{of.name}: {error}"))
    after = await _counters(engine)
    return _Server(limits, tuple(probes), tuple(findings), before, after, 2 * len(probes))


async def _probe_class(
    of: ClassView, engine: Engine, limits: Capabilities, suffix: tuple[int, ...], rank: int
) -> Probe:
    """Send a rank a prompt, and when it is answered another with the same prefix that is new to the server.

    Raises `UnansweredError`.
    """
    first = await answer(engine, limits, one_token(of, suffix), rank)
    asked = one_token(of, made_up(of, suffix))
    second = await answer(engine, limits, asked, rank)
    most = ceiling(asked.prefix.ids, asked.prompt_tokens, limits.page_size)
    cached = second.cached_tokens
    return Probe(
        limits.server or IN_PROCESS,
        rank,
        of.name,
        limits.page_size,
        limits.prefix_cache,
        Hits(1, asked.prompt_tokens, cached, most, min(cached, most)),
        first.seconds + second.seconds,
    )


async def _counters(engine: Engine) -> Counters | None:
    try:
        return await engine.counters()
    except Unavailable:
        return None


# ---- what it comes to


def _below(server: _Server, min_hit_rate: float) -> Iterator[Finding]:
    for probe in server.probes:
        hits = probe.hits
        if hits.ratio is not None and hits.ratio < min_hit_rate:
            yield Finding(
                Cause.HIT_RATE,
                f"{probe.class_name}: {hits.reached_tokens} of {hits.ceiling_tokens} tokens from the cache "
                f"at {server.name}, though the prefix had just been computed",
            )
            yield _why(probe, server)


def _why(probe: Probe, server: _Server) -> Finding:
    what, hits = f"{probe.class_name}: {server.name}", probe.hits
    if not probe.prefix_cache:
        return Finding(Cause.RADIX_OFF, f"{what} was started without its prefix cache")
    lacking = hits.ceiling_tokens - hits.cached_tokens
    if page := Misses(1, lacking, lacking, unit=hits.cached_tokens).whole_pages:
        return Finding(Cause.PAGE_SIZE, f"{what} found whole pages of {page}, and says {probe.page_size}")
    dropped = _grown(server, "evicted_tokens")
    if dropped:
        holds = f"; its cache holds {server.limits.cache_tokens}" if server.limits.cache_tokens else ""
        return Finding(Cause.EVICTED, f"{what} dropped {dropped} tokens to make room meanwhile{holds}")
    if others := _others(server):
        return Finding(Cause.ANOTHER_TENANT, f"{what} answered {others} requests of others meanwhile")
    return Finding(Cause.NOT_EXPLAINED, f"{what} lost the prefix at once, and doesn't say why")


def _differences(servers: Sequence[_Server]) -> Iterator[Finding]:
    for server in servers[1:]:
        differs = difference(servers[0].limits, server.limits)
        if differs is not None:
            yield Finding(Cause.DRIFT, f"two servers differ: {differs}")


def _no_ceiling(plan: RunPlan, servers: Sequence[_Server]) -> Iterator[Finding]:
    yield Finding(Cause.NO_CEILING, "no prefix fills a page of the engine's cache")
    longest = max(len(of.artifact.prefix) for of in plan.view.classes)
    for server in servers:
        if not server.limits.prefix_cache:
            yield Finding(Cause.RADIX_OFF, f"{server.name} was started without its prefix cache")
        elif server.limits.page_size > 1:
            yield none_filled(server.name, server.limits.page_size, longest)


def _notes(plan: RunPlan, server: _Server) -> Iterator[Finding]:
    page = server.limits.page_size
    for of in plan.view.classes:
        length = len(of.artifact.prefix)
        if length % page:
            yield beyond(of.name, length, server.name, page)
    if others := _others(server):
        yield Finding(Cause.ANOTHER_TENANT, f"{server.name} answered {others} requests of others meanwhile")


def _others(server: _Server) -> int:
    """Return how many requests a server counted that weren't sent from here."""
    return max(0, _grown(server, "requests") - server.sent)


def _grown(server: _Server, name: str) -> int:
    """Return by how much a counter grew during the probing; 0 when the server doesn't tell."""
    if server.before is None or server.after is None:
        return 0
    return (getattr(server.after, name) or 0) - (getattr(server.before, name) or 0)
