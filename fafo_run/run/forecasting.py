"""Makes the forecast of a run, before one is started: from the view, the results so far, and what servers say
of their caches. Writes nothing, sends no work.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve, frozen

from fafo_build.bake.tree import prefix_trees
from fafo_run.engines.launch_run import at_hand
from fafo_run.engines.radix import RadixCache
from fafo_run.engines.sglang_cache import ServerCache, ask_all, declared
from fafo_run.engines.sglang_info import WAITING
from fafo_run.log.format import HEADER_SIZE
from fafo_run.run import placement
from fafo_run.run.forecast import DiskNeed, Forecast, Warning, lanes
from fafo_run.run.left import Left, look
from fafo_run.run.plan import RunPlan
from fafo_run.run.rehearsal import Rehearsal, rehearse
from fafo_run.run.simulated_server import CacheSize

_RUNNING = 256
"""Requests that a server computes at once, where nobody says."""
_GIVEN = "as given"
"""Stands for the URL of a server whose cache was given and not asked for."""


@frozen
class Given:
    """What a person says of servers that aren't up."""

    cache_tokens: int | None = None
    page_size: int | None = None


def forecast(plan: RunPlan, folder: Path, *, sample: int | None, given: Given) -> Forecast:
    """Return the forecast of a run in `folder`, with about `sample` items encoded; None: all of them.

    Raises `SourceError` as the run would, and `StoreError` when its store can't be read.
    """
    view, spec = plan.view, plan.engine
    servers = tuple(_servers(plan, given))
    known = [server for server in servers if server.tokens]
    page_size = given.page_size or max((server.page_size for server in known), default=1)
    left = look(view, folder, sample=sample, page_size=page_size, server=spec.urls[0] if spec.urls else "")
    off = [server for server in servers if not server.radix]
    rehearsal = None
    if known and not off and any(each.sample for each in left.classes):
        rehearsal = _rehearse(plan, left, servers, known, page_size)
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
        cache_off=bool(off),
        warnings=(),
    )
    return evolve(found, warnings=tuple(_warnings(found, plan)))


def _asked(plan: RunPlan) -> float:
    return plan.view.project.verify.min_hit_rate


def _servers(plan: RunPlan, given: Given) -> list[ServerCache]:
    spec = at_hand(plan.engine, plan.view.project.runs_dir)
    if given.cache_tokens is not None:
        each = ServerCache(_GIVEN, tokens=given.cache_tokens, page_size=given.page_size or 1)
        return [each] * max(1, len(spec.urls), spec.launch.replicas if spec.launch else 0)
    if spec.kind != "sglang":
        return []
    return declared(spec.launch) if spec.launch is not None else ask_all(spec)


def _rehearse(
    plan: RunPlan,
    left: Left,
    servers: Sequence[ServerCache],
    known: Sequence[ServerCache],
    page_size: int,
) -> Rehearsal:
    """Play one cache's share: all classes in equal parts, or, where their prefixes don't fit one cache
    together, the classes of the one that prefers most.
    """
    size = _size(plan, known, page_size)
    names = [f"{server.url}#{rank}" for server in servers for rank in range(server.ranks)]
    if len(set(names)) < len(names):
        names = [str(number) for number in range(len(names))]
    prefixes = {each.of.artifact.hash: each.of.artifact.prefix for each in left.classes if each.left}
    together = RadixCache()
    for ids in prefixes.values():
        together.insert(ids)
    lengths = {name: len(ids) for name, ids in prefixes.items()}
    extra = max(each.of.sampling.max_new_tokens for each in left.classes)
    seats = [placement.Seat(name, size.tokens, size.running * extra) for name in names]
    own = placement.shares(seats, lengths, together.size)
    if not own:
        return rehearse(left.classes, size, caches=len(names), min_hit_rate=_asked(plan))
    most = max(own.values(), key=lambda artifacts: sum(lengths[name] for name in artifacts))
    mine = [each for each in left.classes if each.of.artifact.hash in most]
    return rehearse(mine, size, min_hit_rate=_asked(plan))


def _size(plan: RunPlan, servers: Sequence[ServerCache], page_size: int) -> CacheSize:
    """Return the size of the smallest cache: what doesn't fit there is what goes wrong."""
    least = min(servers, key=lambda server: server.tokens or 0)
    running, most = least.running or _RUNNING, plan.engine.max_running
    room = running + WAITING
    size = CacheSize(
        tokens=least.tokens or 0,
        page_size=page_size,
        running=running,
        in_flight=room if most is None else max(1, min(most // least.ranks, room)),
    )
    return evolve(size, batch_tokens=least.batch_tokens) if least.batch_tokens else size


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


def _warnings(found: Forecast, plan: RunPlan) -> Iterator[Warning]:
    disk = found.disk
    if not disk.fits:
        yield Warning(
            "error" if disk.queue + disk.expected > disk.free else "warning",
            f"the disk has {disk.free:,} bytes free, and the run may need {disk.needed:,}",
            "make room, put `project.runs` on a larger disk, or lower max_new_tokens or run.queue.high",
        )
    for server in dict.fromkeys(found.servers):
        if server.trouble:
            yield Warning(
                "warning",
                f"{server.url}: {server.trouble}",
                "start it (`fafo engine up`, where fafo launches it), or say --cache-tokens and --page-size",
            )
    if found.cache_off:
        yield Warning(
            "warning",
            "a server runs with --disable-radix-cache: nothing will come from its cache",
            "start it without that flag",
        )
    elif found.below and found.rehearsal is not None:
        yield _below(found, found.rehearsal)
    unsendable = sum(each.sums.unsendable for each in found.left.classes)
    if unsendable:
        yield Warning(
            "warning",
            f"{unsendable} of {found.left.encoded} encoded items can't be sent, and will be failures",
            "run them with `fafo run --limit`, and see `fafo failures`",
        )


def _below(found: Forecast, played: Rehearsal) -> Warning:
    needs, size = played.needs, played.size
    who = ", ".join(played.below[:3]) + (
        f" and {len(played.below) - 3} more" if len(played.below) > 3 else ""
    )
    return Warning(
        "warning",
        f"predicted {played.ratio:.3f} of the ceiling, {found.min_hit_rate:g} asked for ({who}): "
        f"{needs.prefixes} prefixes in flight at once need {needs.prefix_tokens:,} tokens, running requests "
        f"up to {needs.running_tokens:,} more, and the cache has {size.tokens:,}",
        "give the server more (--mem-fraction-static, --max-total-tokens), lower engine.max_running, run "
        "large classes one after the other with --class, or add servers: classes whose prefixes don't fit "
        "one cache together are then divided among them",
    )
