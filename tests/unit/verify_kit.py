"""Hand-made evidence of servers, and what a run had from them, for tests of `fafo verify`."""

from __future__ import annotations

from typing import Any

from fafo_run.engines.base import Counters
from fafo_run.item import Ids
from fafo_run.run.evidence import AnyEvent, Ended, Missed, Returned, Started, Sums, Warmed
from fafo_run.verify.counters import compare
from fafo_run.verify.known import Known
from fafo_run.verify.lives import lives_of
from fafo_run.verify.sums import Hits, Misses, Pair

URL = "http://10.0.0.7:30000"
OTHER = "http://10.0.0.8:30000"
EXAM: Ids = tuple(range(100))
CHILD: Ids = (*range(60), *range(200, 240))
"""60 ids like EXAM, then others."""
PREFIXES = {"a" * 64: EXAM, "b" * 64: CHILD}
ARTIFACTS = {"exam": "a" * 64, "child": "b" * 64}
NOTHING = Counters(0, 0, 0)


def event(kind: type[AnyEvent], at: float = 0.0, server: str = URL, session: str = "s", **said: Any) -> Any:
    return kind(at=at, session=session, server=server, **said)


def started(at: float = 0.0, server: str = URL, session: str = "s", **said: Any) -> Started:
    given = {"version": "0.5.23", "model": "m", "page_size": 1, "prefix_cache": True, "running": 8} | said
    found: Started = event(Started, at, server, session, **given)
    return found


def warmed(at: float, name: str = "exam", why: str = "first", **said: Any) -> Warmed:
    server = said.pop("server", URL)
    given = {"rank": 0, "prompt_tokens": 100, "cached_tokens": 0} | said
    found: Warmed = event(Warmed, at, server, artifact=ARTIFACTS[name], why=why, **given)
    return found


def missed(at: float, name: str = "exam") -> Missed:
    found: Missed = event(Missed, at, URL, artifact=ARTIFACTS[name], rank=0, cached_tokens=0, ceiling=100)
    return found


def returned(at: float, *, restarted: bool, counters: Counters | None = None, session: str = "s") -> Returned:
    found: Returned = event(Returned, at, URL, session, after=5.0, restarted=restarted, counters=counters)
    return found


def ended(at: float, sums: Sums | None = None, counters: Counters | None = None, **said: Any) -> Ended:
    server, session = said.pop("server", URL), said.pop("session", "s")
    found: Ended = event(Ended, at, server, session, sums=sums or Sums(), counters=counters)
    return found


def known(
    events: list[AnyEvent],
    misses: dict[Pair, Misses] | None = None,
    *,
    hits: dict[Pair, Hits] | None = None,
    stale: frozenset[str] = frozenset(),
) -> Known:
    """Return what is known of a run of 100 items of `exam` at `URL`, 120 tokens each."""
    lives = lives_of(events)
    return Known(
        hits=hits or {("exam", URL): Hits(100, 12_000, 0, 10_000, 0)},
        misses=misses or {},
        lives=lives,
        prefixes=PREFIXES,
        artifacts=ARTIFACTS,
        outputs={"exam": 10, "child": 10},
        counters=compare(lives),
        stale=stale,
    )
