"""One class and its model in, one proven artifact out. Reads the class's files; writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from fafo_build.bake.artifact import Artifact, ModelFingerprint
from fafo_build.bake.canonical import sha256
from fafo_build.bake.chat import Chat
from fafo_build.bake.examples import place_of_example, read_examples
from fafo_build.bake.layout import Conversation, lay_out
from fafo_build.bake.prove import prove
from fafo_build.errors import BakeError, Problem, TemplateError
from fafo_build.project.declaration import Project, PromptClass
from fafo_build.render.checks import check, used_vars, uses_examples
from fafo_build.render.comments import without_comments
from fafo_build.render.environment import CONSTANT_NAMES, ITEM_NAMES
from fafo_build.render.sources import Prompts, gather
from fafo_build.render.special_tokens import check_special_tokens
from fafo_build.render.trace import Trace, UnrenderableError, trace
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
        traces=_traces(project, declared, prompts, examples),
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


def _traces(
    project: Project,
    declared: PromptClass,
    prompts: Prompts,
    examples: tuple[Mapping[str, Any], ...],
) -> tuple[Trace, ...]:
    """Render every message without an item; problems name the class, and the example that is to blame."""
    try:
        return tuple(
            trace(prompts, number, declared.vars, examples) for number in range(len(declared.messages))
        )
    except UnrenderableError as error:
        message, cure = error.reason, "mend this line of the prompt, or the variable that it uses"
        if error.example is not None:
            message = f"{message} (the example at {place_of_example(project, declared, error.example)})"
            cure = "give the example what the prompt needs, or write {% if … is defined %} in the prompt"
        raise TemplateError(
            evolve(
                problem, message=f"can't be rendered: {message}", field=f"class.{declared.name}", cure=cure
            )
            for problem in error.problems
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
