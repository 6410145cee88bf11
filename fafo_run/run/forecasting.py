"""Makes the forecast of a run, before one is started: from the view, the results so far, and what servers say
of their caches. Writes nothing, sends no work.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import evolve

from fafo_build.bake.tree import prefix_trees
from fafo_run.item import FailureCode, Ids
from fafo_run.log.format import HEADER_SIZE
from fafo_run.run import placement
from fafo_run.run.caches import Given, ServerCache, by_rank, caches_of
from fafo_run.run.forecast import Concern, DiskNeed, Forecast, lanes
from fafo_run.run.left import Left, look
from fafo_run.run.plan import RunPlan
from fafo_run.run.rehearsal import Rehearsal, rehearse
from fafo_run.run.simulated_server import CacheSize


def forecast(plan: RunPlan, folder: Path, *, sample: int | None, given: Given) -> Forecast:
    """Return the forecast of a run in `folder`, with about `sample` items encoded; None: all of them.

    Raises `SourceError` as the run would, and `StoreError` when its store can't be read.
    """
    view, spec = plan.view, plan.engine
    servers = caches_of(spec, given)
    page_size = given.page_size or max((server.page_size for server in servers if server.tokens), default=1)
    left = look(view, folder, sample=sample, page_size=page_size, server=spec.urls[0] if spec.urls else "")
    is_off = any(not server.radix for server in servers)
    rehearsal = None if is_off else _rehearse(plan, left, servers)
    found = Forecast(
        run=folder.name,
        engine=spec.name,
        kind=spec.kind,
        left=left,
        trees=prefix_trees({of.name: of.artifact for of in view.classes}),
        disk=_disk(plan, left, folder),
        servers=servers,
        page_size=page_size,
        rehearsal=rehearsal,
        min_hit_rate=_asked(plan),
        cache_off=is_off,
        warnings=(),
    )
    return evolve(found, warnings=tuple(_warnings(found, plan)))


def _asked(plan: RunPlan) -> float:
    return plan.view.project.verify.min_hit_rate


def _rehearse(plan: RunPlan, left: Left, servers: Sequence[ServerCache]) -> Rehearsal | None:
    """Play the share of the fullest cache: all classes in equal parts, or, where their prefixes don't fit
    every cache together, the classes that it prefers. None where no size is known, or nothing is left.
    """
    max_running = plan.engine.max_running
    sizes = {
        name: server.size(max_running) if server.tokens else None for name, server in by_rank(servers).items()
    }
    if not any(each.sample for each in left.classes):
        return None
    prefixes = {each.of.artifact.hash: each.of.artifact.prefix for each in left.classes if each.left}
    longest = max(each.of.sampling.max_new_tokens for each in left.classes)
    own = placement.shares(
        [
            placement.Seat(name, size.tokens if size else None, size.running * longest if size else 0)
            for name, size in sizes.items()
        ],
        {artifact: len(ids) for artifact, ids in prefixes.items()},
        placement.together(prefixes.values()),
    )
    # A cache that prefers nothing has nothing to be played.
    mine = {name: own.get(name, []) if own else list(prefixes) for name in sizes}
    known = {name: size for name, size in sizes.items() if size and mine[name]}
    if not known:
        return None
    name = max(known, key=lambda name: _fullness(known[name], mine[name], prefixes, longest))
    return rehearse(
        [each for each in left.classes if each.of.artifact.hash in mine[name]],
        known[name],
        server="" if not own and len(set(sizes.values())) == 1 else name,
        caches=len(sizes),
        parts=1 if own else len(sizes),
        min_hit_rate=_asked(plan),
    )


def _fullness(size: CacheSize, own: Iterable[str], prefixes: Mapping[str, Ids], longest: int) -> float:
    """Return how much its prefixes and the outputs that it works on need of a cache, as a share of it."""
    return (placement.together(prefixes[name] for name in own) + size.running * longest) / size.tokens


def _disk(plan: RunPlan, left: Left, folder: Path) -> DiskNeed:
    run = plan.view.project.run
    items = sum(each.left for each in left.classes)
    entries = sum(each.sums.queue_bytes * each.scale for each in left.classes)
    segments = len(left.classes) * max(1, len(lanes(left))) * HEADER_SIZE if items else 0
    # A segment goes when nothing of it waits any more: one of full size may wait for its last item.
    queue = min(entries, entries / items * run.queue.high + run.segment.size) if items else 0
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return DiskNeed(
        queue=round(queue) + segments,
        results=round(sum(each.sums.results_bytes * each.scale for each in left.classes)) + segments,
        expected=round(sum(each.sums.expected_bytes * each.scale for each in left.classes)) + segments,
        free=shutil.disk_usage(there).free,
    )


def _warnings(found: Forecast, plan: RunPlan) -> Iterator[Concern]:
    disk = found.disk
    if not disk.fits:
        yield Concern(
            "error" if disk.queue + disk.expected > disk.free else "warning",
            f"the disk has {disk.free:,} bytes free, and the run may need {disk.needed:,}",
            "make room, put `project.runs` on a larger disk, or lower max_new_tokens or run.queue.high",
        )
    for server in dict.fromkeys(found.servers):
        if server.trouble:
            yield Concern("warning", server.trouble, server.cure)
    if found.cache_off:
        off = ", ".join(dict.fromkeys(server.url for server in found.servers if not server.radix))
        yield Concern(
            "warning",
            f"{off}: started with --disable-radix-cache, so nothing will come from its cache",
            "start it without that flag",
        )
    elif found.below and found.rehearsal is not None:
        yield _below(found, found.rehearsal)
    for line in found.left.totals.unmatched:
        yield Concern("warning", line, "mend the pattern, unless its files come later")
    yield from _unsendable(found.left)


def _unsendable(left: Left) -> Iterator[Concern]:
    failures = sum((each.sums.failures for each in left.classes), Counter[FailureCode]())
    if failures:
        codes = ", ".join(f"{count} {code.value}" for code, count in failures.most_common())
        example = next(each.sums.example for each in left.classes if each.sums.example)
        yield Concern(
            "warning",
            f"{failures.total()} of {left.encoded} encoded items can't be sent, and will be failures "
            f"({codes}); the first: {example}",
            "mend these rows or their classes (docs/errors.md says what each code means), or let them fail",
        )


def _below(found: Forecast, played: Rehearsal) -> Concern:
    needs, size = played.needs, played.size
    at = f"at {played.server} " if played.server else ""
    who = ", ".join(played.below[:3]) + (
        f" and {len(played.below) - 3} more" if len(played.below) > 3 else ""
    )
    return Concern(
        "warning",
        f"predicted {played.ratio:.3f} of the ceiling, {found.min_hit_rate:g} asked for ({who}): "
        f"{needs.prefixes} prefixes in flight at once need {needs.prefix_tokens:,} tokens, running requests "
        f"up to {needs.running_tokens:,} more, and the cache {at}has {size.tokens:,}",
        "give the server more (--mem-fraction-static, --max-total-tokens), lower engine.max_running, run "
        "large classes one after the other with --class, or add servers: classes whose prefixes don't fit "
        "one cache together are then divided among them",
    )
