"""Explains a hit rate that is below, from the evidence of the run's servers. Pure.

Each explanation names a class, a server and the numbers it rests on. What can't be explained says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from fafo_run.run.evidence import NAME
from fafo_run.verify.counters import Agreement, Comparison
from fafo_run.verify.known import Known
from fafo_run.verify.lives import Life
from fafo_run.verify.pages import none_filled
from fafo_run.verify.report import Cause, Finding
from fafo_run.verify.room import room_of
from fafo_run.verify.sums import Misses, Pair

Rule = Callable[[Known, Pair, Misses, Sequence[Life]], Iterator[Finding]]


def explain(name: str, known: Known) -> Iterator[Finding]:
    """Yield why a class is below its ceiling, for each server where it is."""
    for pair, misses in sorted(known.misses.items()):
        if pair[0] == name:
            own = known.at(pair[1])
            off = list(_radix_off(known, pair, misses, own))
            # Of a cache that was never on, nothing else is to be said.
            rules = () if off and all(map(is_off, own)) else _RULES
            found = off + [finding for rule in rules for finding in rule(known, pair, misses, own)]
            yield from found or [_unexplained(pair, misses, own)]


def no_ceiling(known: Known) -> Iterator[Finding]:
    """Yield why nothing could have come from any cache: pages that no prefix fills, caches that are off."""
    for server in sorted({server for _, server in known.hits}):
        own = known.at(server)
        if off := [life for life in own if is_off(life)]:
            yield Finding(Cause.RADIX_OFF, f"{server} was started without its prefix cache")
        page = max((life.page_size for life in own), default=1)
        if page > 1 and len(off) < len(own):
            longest = max(map(len, known.prefixes.values()), default=0)
            yield none_filled(server, page, longest)


def is_off(life: Life) -> bool:
    """Return whether a server was started without its prefix cache."""
    return life.started is not None and not life.started.prefix_cache


def _radix_off(known: Known, pair: Pair, misses: Misses, own: Sequence[Life]) -> Iterator[Finding]:
    off = [life for life in own if is_off(life)]
    if off:
        of = "" if len(off) == len(own) else f" in {len(off)} of {len(own)} of its lives"
        yield Finding(
            Cause.RADIX_OFF,
            f"{_lack(pair, misses)}: it was started without its prefix cache{of}; "
            "start it without --disable-radix-cache",
        )


def _cold_restart(known: Known, pair: Pair, misses: Misses, own: Sequence[Life]) -> Iterator[Finding]:
    colds = [life.cold for life in own if life.cold is not None]
    unseen = known.counters.get(pair[1], Comparison()).unseen
    if misses.restart:
        at = f", first at {_clock(colds[0].at)}" if colds else ""
        yield Finding(
            Cause.COLD_RESTART,
            f"{_lack(pair, misses)}, {misses.restart} of them because it came back with an empty cache "
            f"({_times(len(colds) + unseen)}{at})",
        )
    elif unseen and not misses.evicted:
        yield Finding(
            Cause.COLD_RESTART,
            f"{_lack(pair, misses)}: it began to count from 0, so it was started anew, unseen",
        )


def _evicted(known: Known, pair: Pair, misses: Misses, own: Sequence[Life]) -> Iterator[Finding]:
    room = room_of(known, pair[1])
    dropped = [life.evicted_tokens for life in own if life.evicted_tokens is not None]
    nothing = bool(dropped) and not sum(dropped)
    again = sum(event.why == "evicted" for life in own for event in life.warmed)
    said = [room.told] if room else []
    said += [f"it dropped {sum(dropped) or 'no'} tokens to make room"] if dropped else []
    said += [f"prefixes were warmed again {_times(again)}"] if again else []
    if misses.evicted:
        lack = f"{_lack(pair, misses)}, {misses.evicted} of them because its cache had lost the prefix"
        if room is not None and not room.small and nothing:
            said.append("somebody emptied it (/flush_cache)")
            yield Finding(Cause.FLUSHED, "; ".join((lack, *said)))
        else:
            yield Finding(Cause.EVICTED, "; ".join((lack, *said)))
        return
    # Where no item ever finds its prefix, it isn't warmed again: that would be as futile. Then only sizes and
    # counters tell.
    rest = misses.tokens - misses.restart
    small = room is not None and room.small and not nothing
    if rest and not misses.whole_pages and (small or sum(dropped) >= rest):
        lack = f"{_lack(pair, misses)}: its cache {'is too small' if small else 'had lost the prefix'}"
        yield Finding(Cause.EVICTED, "; ".join((lack, *said)))


def _page_size(known: Known, pair: Pair, misses: Misses, own: Sequence[Life]) -> Iterator[Finding]:
    if page := misses.whole_pages:
        yield Finding(
            Cause.PAGE_SIZE,
            f"{_lack(pair, misses)}, none more than {misses.longest}, and each found whole pages of {page}: "
            "its cache has larger pages than it says",
        )


def _another_tenant(known: Known, pair: Pair, misses: Misses, own: Sequence[Life]) -> Iterator[Finding]:
    found = known.counters.get(pair[1])
    if found is not None and found.agreement is Agreement.MORE:
        yield Finding(Cause.ANOTHER_TENANT, f"{pair[0]}: {difference(pair[1], found)}")


def _drift(known: Known, pair: Pair, misses: Misses, own: Sequence[Life]) -> Iterator[Finding]:
    models = sorted({life.started.model for life in own if life.started is not None})
    if len(models) > 1:
        yield Finding(
            Cause.DRIFT, f"{_lack(pair, misses)}: it served {' and '.join(models)} in the course of the run"
        )
    elif pair[0] in known.stale:
        yield Finding(
            Cause.DRIFT, f"{_lack(pair, misses)}: build/ isn't what prompts, class and tokenizer give now"
        )


_RULES: tuple[Rule, ...] = (_cold_restart, _evicted, _page_size, _another_tenant, _drift)


def _unexplained(pair: Pair, misses: Misses, own: Sequence[Life]) -> Finding:
    why = "what is known of it explains nothing" if own else f"the run's {NAME} has nothing of it"
    return Finding(Cause.NOT_EXPLAINED, f"{_lack(pair, misses)}: {why}")


def difference(server: str, found: Comparison) -> str:
    """Say that a server counted more than the run had from it."""
    return (
        f"{server} counted {found.server_prompt_tokens} prompt tokens ({found.server_cached_tokens} cached) "
        f"in {found.server_requests} requests, the run had {found.run.prompt_tokens} "
        f"({found.run.cached_tokens}) in {found.run.requests} from it"
        + (f", and lost {found.run.lost}" if found.run.lost else "")
    )


def _lack(pair: Pair, misses: Misses) -> str:
    return f"{pair[0]}: {misses.items} items lack {misses.tokens} tokens at {pair[1]}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
