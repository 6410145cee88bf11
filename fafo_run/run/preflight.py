"""Holds each class of a view against the engine before the first item is sent, so that a job can't fail at 96
percent for what was knowable at the start.
"""

from __future__ import annotations

from collections.abc import Iterator

from fafo_build.errors import EngineError, Problem
from fafo_run.engines.base import Capabilities
from fafo_run.run.view import ClassView, View


def check(view: View, capabilities: Capabilities) -> None:
    """Raise `EngineError` with everything about the view that this engine can't serve."""
    problems = [problem for of in view.classes for problem in _problems(of, capabilities)]
    if problems:
        raise EngineError(problems)


def context_length(view: View, capabilities: Capabilities) -> int:
    """Return how long prompt and output may be together, in tokens: the lower of what model and engine
    take.
    """
    return min(capabilities.context_length, *(of.model.locked.context_length for of in view.classes))


def _problems(of: ClassView, capabilities: Capabilities) -> Iterator[Problem]:
    model = of.model.locked
    if capabilities.vocab_size != model.vocab_size:
        yield Problem(
            f"the engine's vocabulary has {capabilities.vocab_size} ids, the model's has {model.vocab_size}",
            file=of.declared.file,
            field=f"class.{of.name}.engine",
            cure="let the engine serve the model of the class, or declare the other one and rebuild",
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
