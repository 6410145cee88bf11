"""One class and its model in, one proven artifact out. Reads the class's files; writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from fafo_build.bake.artifact import Artifact, ModelFingerprint
from fafo_build.bake.canonical import sha256
from fafo_build.bake.chat import Chat
from fafo_build.bake.layout import Conversation, lay_out
from fafo_build.bake.prove import prove
from fafo_build.errors import BakeError, Problem
from fafo_build.project.declaration import Project, PromptClass
from fafo_build.render.checks import check, used_vars, uses_examples
from fafo_build.render.comments import without_comments
from fafo_build.render.environment import CONSTANT_NAMES, ITEM_NAMES
from fafo_build.render.sources import Prompts, gather, normalised
from fafo_build.render.special_tokens import check_special_tokens
from fafo_build.render.trace import trace
from fafo_build.tokens.encoder import TextEncoder
from fafo_build.tokens.family import why_unproven
from fafo_build.tokens.model_files import LoadedModel


@frozen
class ReadyModel:
    """A model that classes can be baked for."""

    loaded: LoadedModel
    chat: Chat
    encoder: TextEncoder
    fingerprint: ModelFingerprint
    tokenizer_json: bytes
    """Canonical JSON; what goes into build/tokenizers/."""

    @property
    def tokenizer(self) -> str:
        """64 hex digits: the name of that file."""
        return sha256(self.tokenizer_json)


def ready(loaded: LoadedModel, name: str, date: Any) -> ReadyModel:
    """Make a loaded model ready for baking; `name` is its name in the project.

    Raises `BakeError` for a tokenizer that isn't byte-level BPE, or a chat template that needs `model.date`.
    """
    content = json.loads(loaded.tokenizer.backend_tokenizer.to_str())
    why = why_unproven(content)
    if why is not None:
        field = "model" if name == "default" else f"models.{name}"
        raise BakeError(
            Problem(
                f"the tokenizer of {loaded.name} isn't byte-level BPE, and others are not proven yet: {why}",
                field=field,
                cure="use a model with a byte-level BPE tokenizer (SmolLM2, Llama 3, GPT-2)",
            )
        )
    chat = Chat(loaded.tokenizer, loaded.chat_template, name, date)
    return ReadyModel(
        loaded=loaded,
        chat=chat,
        encoder=TextEncoder(chat.tokenizer_json),
        fingerprint=ModelFingerprint(loaded.name, loaded.revision, loaded.config_sha256),
        tokenizer_json=chat.tokenizer_json,
    )


def compile_class(project: Project, declared: PromptClass, model: ReadyModel) -> Artifact:
    """Bake one class, and prove it.

    Raises `TemplateError` for a mistake in its prompts, `BakeError` when the model's chat template or
    tokenizer can't be reproduced for it.
    """
    prompts = gather(project, declared)
    _check_variables(declared)
    check(prompts, declared.vars)
    examples = read_examples(project, declared)
    talk = Conversation(
        name=declared.name,
        file=declared.file,
        roles=tuple(message.role for message in declared.messages),
        traces=tuple(
            trace(prompts, number, declared.vars, examples) for number in range(len(declared.messages))
        ),
        templates=prompts.messages,
    )
    names = sorted({name for number in talk.open for name in prompts.reach(talk.templates[number])})
    check_special_tokens(prompts, names, declared.vars, examples, sorted(model.encoder.control))
    layout = lay_out(talk, model.chat, model.encoder)
    artifact = Artifact(
        model=model.fingerprint,
        tokenizer=model.tokenizer,
        vocab_size=model.loaded.vocab_size,
        spans=layout.spans,
        slots=layout.slots,
        holes=layout.holes,
        **_rendering(prompts, tuple(names), declared.vars, examples),
    )
    prove(artifact, model.encoder, talk, model.chat)
    return artifact


def read_examples(project: Project, declared: PromptClass) -> tuple[Mapping[str, Any], ...]:
    """Return the few-shot rows of a class, none if it declares none.

    Raises `BakeError` when the file isn't there, or with every line of it that isn't a JSON object.
    """
    if declared.examples is None:
        return ()
    file = declared.examples.path
    rows: list[Mapping[str, Any]] = []
    problems: list[Problem] = []
    for number, line in enumerate(_examples_text(project.root / file, declared, file).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            # Half a surrogate pair can be written in JSON, and is no text.
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except (ValueError, RecursionError) as error:
            problems.append(Problem(f"not JSON: {error}", file, number, source_line=line[:200]))
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(Problem("an example must be a JSON object", file, number, source_line=line[:200]))
    if problems:
        raise BakeError(problems)
    return tuple(rows)


def _examples_text(path: Path, declared: PromptClass, file: str) -> str:
    try:
        return normalised(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise BakeError(
            Problem(
                f'the examples "{file}" can\'t be read: {why}',
                file=declared.file,
                field=f"class.{declared.name}.examples.path",
                cure="name a JSONL file in the project",
            )
        ) from error


def _check_variables(declared: PromptClass) -> None:
    taken = [name for name in declared.vars if name in (*ITEM_NAMES, *CONSTANT_NAMES)]
    if taken:
        raise BakeError(
            Problem(
                f"'{name}' already means something in a prompt",
                file=declared.file,
                field=f"class.{declared.name}.vars.{name}",
                cure="give the variable another name",
            )
            for name in taken
        )


def _rendering(
    prompts: Prompts,
    names: tuple[str, ...],
    variables: Mapping[str, Any],
    examples: tuple[Mapping[str, Any], ...],
) -> dict[str, Any]:
    """Return the templates `names`, and the variables and examples that a run needs to render them."""
    return {
        "templates": {name: without_comments(prompts.templates[name].template.source) for name in names},
        "vars": used_vars(prompts, names, variables),
        "examples": examples if uses_examples(prompts, names) else (),
    }
