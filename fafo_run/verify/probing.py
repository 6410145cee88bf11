"""What the two commands that ask running servers share: engines that are started, and prompts to send.

Nothing here is recorded: no queue and no results are touched.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice

from attrs import evolve, frozen

from fafo_run.engines.base import Answer, Capabilities, Engine, Prefix, Rejected, Request, Unavailable
from fafo_run.engines.launch_run import with_up
from fafo_run.engines.open import open_engines
from fafo_run.engines.sglang_wire import GREEDY_ONE
from fafo_run.item import Ids
from fafo_run.run.making import Maker
from fafo_run.run.plan import RunPlan
from fafo_run.run.view import ClassView, View, items

FRESH = 16
"""How many ids of a made-up suffix: so many that no server has seen them in this order."""
_LOOKED_AT = 1000
"""Items of which one with a prompt is looked for, or more."""


class UnansweredError(Exception):
    """A request was refused, or its answer lost; `unavailable` is what it was lost by."""

    def __init__(self, message: str, unavailable: Unavailable | None = None) -> None:
        super().__init__(message)
        self.unavailable = unavailable


@frozen
class Prompt:
    """One item's prompt, as a run would send it."""

    identity: bytes
    suffix: Ids
    seed: int


@asynccontextmanager
async def opened(plan: RunPlan) -> AsyncIterator[list[Engine]]:
    """Give the engines of a plan, one per server, not started yet, and stop them all.

    Of an engine that fafo launches those are meant that `fafo engine up` has started: nothing is started
    here. Raises `EngineError` for servers that can't be meant, and when none is up.
    """
    facts = plan.facts
    engines = open_engines(
        with_up(plan.engine, plan.view.project.runs_dir),
        plan.model,
        root=plan.view.project.root,
        vocab_size=facts.vocab_size,
        context_length=facts.context_length,
        eos_ids=facts.eos_ids,
    )
    try:
        yield engines
    finally:
        for engine in engines:
            await engine.stop()


def prompts(view: View, of: ClassView, count: int) -> list[Prompt]:
    """Return the prompts of the first items of a class that have one. Raises `SourceError`."""
    alone = evolve(view, classes=(of,))
    return list(islice(_prompts(alone), count))


def _prompts(view: View) -> Iterator[Prompt]:
    maker, seen = Maker(view), set[bytes]()
    for item in islice(items(view), _LOOKED_AT):
        made = maker.make(item)
        if made.failure is None and made.identity not in seen:
            seen.add(made.identity)
            yield Prompt(made.identity, made.suffix.ids, made.seed)


def made_up(of: ClassView, like: Ids) -> Ids:
    """Return a suffix that no server has seen, of ids that prompts of the class have."""
    known = of.artifact.prefix + like or (0,)
    return tuple(random.SystemRandom().choices(known, k=FRESH))


def one_token(of: ClassView, suffix: Ids, *, namespace: str = "") -> Request:
    """Return the request that has a prompt of the class computed, and next to nothing else."""
    return request(of, Prompt(bytes(16), suffix, 0), namespace=namespace, whole=False)


def request(of: ClassView, prompt: Prompt, *, namespace: str = "", whole: bool = True) -> Request:
    """Return what a run would send for a prompt, or with `whole` False for one token of its answer."""
    return Request(
        prompt.identity,
        1,
        Prefix(of.artifact.hash, of.artifact.prefix),
        prompt.suffix,
        of.sampling if whole else GREEDY_ONE,
        prompt.seed,
        namespace,
    )


async def answer(engine: Engine, limits: Capabilities, asked: Request, rank: int = 0) -> Answer:
    """Send one request to a rank and return its answer. Raises `UnansweredError`."""
    try:
        (found,) = await engine.generate([asked], rank)
    except Unavailable as error:
        raise UnansweredError(str(error), error) from error
    if isinstance(found, Rejected):
        where = f"{limits.server}: " if limits.server else ""
        raise UnansweredError(f"{where}refused: {found.message}")
    return found
