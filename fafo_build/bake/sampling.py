"""What an engine is asked for besides the prompt: made of a class's `[sampling]`, checked, and hashed.

The hash is part of every identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import asdict, evolve, fields

from fafo_build.bake.canonical import canonical, sha256
from fafo_build.bake.json_schema import problems_of, read_schema
from fafo_build.errors import BakeError, Problem
from fafo_build.project.declaration import Project, PromptClass, Sampling

_ALWAYS = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p")
"""Part of every hash. What came later is part where it isn't the default: so no older identity changed."""


def for_engine(project: Project, declared: PromptClass) -> Sampling:
    """Return what engines get: the declared parameters, and in `json_schema` the schema in place of its file.

    Raises `BakeError` when the schema's file can't be read, or isn't a JSON object.
    """
    if declared.sampling.json_schema is None:
        return declared.sampling
    return evolve(declared.sampling, json_schema=read_schema(project, declared).compact)


def check_sampling(project: Project, declared: PromptClass, vocab_size: int) -> None:
    """Raise `BakeError` with everything that no engine could do; `vocab_size` is the model's.

    What the keys say by themselves was checked as the project was loaded.
    """
    problems = list(_strangers(declared, vocab_size))
    if declared.sampling.json_schema is not None:
        try:
            problems.extend(problems_of(read_schema(project, declared)))
        except BakeError as error:
            problems.extend(error.problems)
    if problems:
        raise BakeError(problems)


def parameters(sampling: Sampling) -> dict[str, Any]:
    """Return what reaches an engine, as plain values: the oldest parameters, and those of the others that are
    set. `samples` isn't among them: each sample is an item of its own.
    """
    defaults = {field.name: field.default for field in fields(Sampling)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(sampling).items()
        if name != "samples" and (name in _ALWAYS or value != defaults[name])
    }


def sampling_hash(sampling: Sampling) -> str:
    """Return 64 hex digits over what `for_engine` returns. What may end an output has no order."""
    return sha256(canonical({name: _written(value) for name, value in parameters(sampling).items()}))


def _written(value: Any) -> Any:
    if isinstance(value, list):
        return sorted(value)
    # As text, so that no number's way of being written decides: 1.0 is "1.0" on every machine.
    return repr(value) if isinstance(value, float) else value


def _strangers(declared: PromptClass, vocab_size: int) -> Iterator[Problem]:
    for number, token in enumerate(declared.sampling.stop_token_ids, 1):
        if token >= vocab_size:
            yield Problem(
                f"the model's ids end at {vocab_size - 1}, and {token} is beyond",
                file=declared.file,
                field=f"class.{declared.name}.sampling.stop_token_ids[{number}]",
                cure="name an id that the model can say, or take it out",
            )
