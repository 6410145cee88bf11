"""Holds each class of a view against the engine before the first item is sent, so that a job can't fail at 96
percent for what was knowable at the start.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator, Sequence

from fafo_build.errors import EngineError, Problem
from fafo_build.project.declaration import FORMS, Sampling
from fafo_run.engines.base import Capabilities, Engine, Unavailable
from fafo_run.run.view import ClassView, View

_ANSWER = 60.0
"""Seconds within which an engine has compiled a grammar, or said no."""
_FILES = 256
"""Open files that a run needs besides its connections."""


def check(view: View, capabilities: Capabilities) -> None:
    """Raise `EngineError` with everything about the view that this engine can't serve."""
    problems = [problem for of in view.classes for problem in _problems(of, capabilities)]
    if problems:
        raise EngineError(problems)


async def ask(view: View, engine: Engine) -> None:
    """Raise `EngineError` with every class whose requests the engine would refuse, by its own word.

    Raises `Unavailable` when it doesn't answer, or not soon.
    """
    asked: dict[Sampling, str | None] = {}
    problems = []
    for of in view.classes:
        if of.sampling not in asked:
            try:
                asked[of.sampling] = await asyncio.wait_for(engine.refuses(of.sampling), _ANSWER)
            except TimeoutError as error:
                raise Unavailable(f"no answer to a grammar within {_ANSWER:.0f} s") from error
        why = asked[of.sampling]
        if why is not None:
            form = next((key for key in FORMS if getattr(of.sampling, key)), None)
            problems.append(
                Problem(
                    f"the engine refuses it: {why}",
                    file=of.declared.file,
                    field=f"class.{of.name}.sampling{f'.{form}' if form else ''}",
                    cure="write it in the dialect of the engine (docs/engines.md)",
                )
            )
    if problems:
        raise EngineError(problems)


def context_length(view: View, servers: Sequence[Capabilities]) -> int:
    """Return how long prompt and output may be together, in tokens: the lowest of what model and servers
    take.
    """
    taken = [limits.context_length for limits in servers]
    return min(*taken, *(of.model.locked.context_length for of in view.classes))


def descriptors(connections: int) -> None:
    """See to it that this process may have so many connections; raises its own limit where that is allowed.

    Raises `EngineError` when it isn't.
    """
    wanted = connections + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise EngineError.of(
                f"{connections} requests in flight need {wanted} open files, this process may have {hard}",
                cure=f"raise the limit (ulimit -Hn {wanted}), or lower max_running of the engine",
                file="fafo.toml",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _problems(of: ClassView, capabilities: Capabilities) -> Iterator[Problem]:
    model = of.model.locked
    if capabilities.vocab_size != model.vocab_size:
        yield Problem(
            f"the engine's vocabulary has {capabilities.vocab_size} ids, the model's has {model.vocab_size}",
            file=of.declared.file,
            field=f"class.{of.name}.engine",
            cure="let the engine serve the model of the class, or declare the other one and rebuild",
        )
    for key, cure in capabilities.unable.items():
        if getattr(of.sampling, key):
            yield Problem(
                f"the engine {capabilities.engine} can't obey {key}",
                file=of.declared.file,
                field=f"class.{of.name}.sampling.{key}",
                cure=cure,
            )
    constant = sum(len(span.ids) for span in of.artifact.spans)
    wanted = of.sampling.max_new_tokens
    context = min(model.context_length, capabilities.context_length)
    if constant + wanted > context:
        yield Problem(
            f"{constant} constant prompt tokens and {wanted} new ones are more than the context of {context}",
            file=of.declared.file,
            field=f"class.{of.name}.sampling.max_new_tokens",
            cure="shorten the prompts or ask for fewer tokens",
        )
