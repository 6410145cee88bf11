"""One class and its model in, one proven artifact out. Reads the class's files; writes nothing."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attrs import evolve, frozen

from fafo_build.bake.artifact import Artifact, ModelFingerprint
from fafo_build.bake.canonical import sha256
from fafo_build.bake.chat import Chat
from fafo_build.bake.conversation import Conversation
from fafo_build.bake.examples import place_of_example, read_examples
from fafo_build.bake.form import Form, OwnTokenizer
from fafo_build.bake.kwargs import read_kwargs
from fafo_build.bake.layout import lay_out
from fafo_build.bake.plain import Plain
from fafo_build.bake.plan import checked_prompts
from fafo_build.bake.prove import prove
from fafo_build.errors import BakeError, Problem, TemplateError
from fafo_build.project.declaration import Project, PromptClass
from fafo_build.render.comments import without_comments
from fafo_build.render.environment import CONSTANT_NAMES, ITEM_NAMES
from fafo_build.render.sources import Prompts
from fafo_build.render.special_tokens import asks_for_special_tokens, check_special_tokens
from fafo_build.render.trace import Trace, UnrenderableError, trace
from fafo_build.render.used import used_vars, uses_examples
from fafo_build.tokens.encoder import TextEncoder
from fafo_build.tokens.family import why_refused
from fafo_build.tokens.model_files import LoadedModel


@frozen(slots=False)
class ReadyModel:
    """A model that classes can be baked for."""

    loaded: LoadedModel
    own: OwnTokenizer
    date: datetime.date | None
    """Today, for a chat template that asks."""
    encoder: TextEncoder
    fingerprint: ModelFingerprint
    tokenizer_json: bytes
    """Canonical JSON; what goes into build/tokenizers/."""

    @cached_property
    def tokenizer(self) -> str:
        """64 hex digits: the name of that file."""
        return sha256(self.tokenizer_json)


def ready(loaded: LoadedModel, name: str, date: datetime.date | None) -> ReadyModel:
    """Make a loaded model ready for baking; `name` is its name in the project.

    Raises `BakeError` for a tokenizer that can't be baked.
    """
    own = OwnTokenizer(loaded.tokenizer)
    why = why_refused(own.content)
    encoder = TextEncoder(own.json)
    if why is None and (token := encoder.leak()) is not None:
        why = f"the text {token} becomes the token {token} wherever it stands"
    if why is not None:
        field = "model" if name == "default" else f"models.{name}"
        message = f"the tokenizer of {loaded.name} can't be baked: {why}"
        cure = "mend its tokenizer.json, or use another model"
        raise BakeError(Problem(message, field=field, cure=cure))
    return ReadyModel(
        loaded=loaded,
        own=own,
        date=date,
        encoder=encoder,
        fingerprint=ModelFingerprint(loaded.name, loaded.revision, loaded.config_sha256),
        tokenizer_json=own.json,
    )


def compile_class(
    project: Project, declared: PromptClass, model: ReadyModel, prompts: Prompts | None = None
) -> Artifact:
    """Bake one class, and prove it; `prompts` are its prompts if they are read and checked already.

    Raises `TemplateError` for a mistake in its prompts, `BakeError` when the model's chat template or
    tokenizer can't be reproduced for it.
    """
    prompts = prompts or checked_prompts(project, declared)
    _check_variables(declared)
    examples = read_examples(project, declared)
    traces = _traces(project, declared, prompts, examples)
    opened = (name for name, trace in zip(prompts.messages, traces, strict=True) if trace.has_hole)
    names = sorted({inner for name in opened for inner in prompts.reach(name)})
    talk = Conversation(
        name=declared.name,
        file=declared.file,
        roles=tuple(message.role for message in declared.messages),
        traces=traces,
        templates=prompts.messages,
        opts_in=asks_for_special_tokens(prompts, names),
    )
    check_special_tokens(prompts, names, declared.vars, examples, sorted(model.encoder.control))
    form = form_of(project, declared, model)
    layout = lay_out(talk, form, model.encoder)
    artifact = Artifact(
        model=model.fingerprint,
        tokenizer=model.tokenizer,
        vocab_size=model.loaded.vocab_size,
        spans=layout.spans,
        slots=layout.slots,
        holes=layout.holes,
        lead=layout.lead,
        **_rendering(prompts, tuple(names), declared.vars, examples),
    )
    prove(artifact, model.encoder, talk, form)
    return artifact


def form_of(project: Project, declared: PromptClass, model: ReadyModel) -> Form:
    """Return what makes one text of a class's messages.

    Raises `BakeError` when the model has no chat template, or one that asks for what nobody gives.
    """
    if declared.format != "chat":
        return Plain(model.own, declared.name, declared.file, adds=declared.format == "completion")
    kwargs = read_kwargs(project, declared)
    template = model.loaded.chat_template
    if kwargs.get("tools") is not None and model.loaded.tool_template is not None:
        template = model.loaded.tool_template
    if template is None:
        raise BakeError(
            Problem(
                f"{model.loaded.name} has no chat template",
                file=declared.file,
                field=f"class.{declared.name}",
                cure='name one: model.chat_template = "prompts/chat.jinja"; or write format = "raw" or '
                '"completion", and messages without roles',
            )
        )
    return Chat(
        model.own,
        template,
        declared.name,
        declared.file,
        kwargs=kwargs,
        date=model.date,
        prefill=declared.messages[-1].prefill,
    )


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
