"""One class explained: what its conversation is made of, where the prefix ends and why, and what would make
it longer. Values only; it reads no file and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.explanation import Advice, Boundary, Explanation, Part, Subject
from fafo_build.bake.fragments import fragments
from fafo_build.bake.opened import Opened, count, joined, opened
from fafo_build.render.sources import Prompts
from fafo_build.render.trace import trace
from fafo_build.tokens.encoder import Place

_LEAST = 8
"""Tokens below which nothing is worth moving."""


def explain(subject: Subject, others: Mapping[str, Artifact]) -> Explanation:
    """Explain a class; `others` are the artifacts of other classes, of any model.

    Raises `TemplateError` when its prompts can't be rendered.
    """
    artifact = subject.artifact
    # A chat template may show messages in another order than the class has them.
    order = [part for slot in artifact.slots for part in slot.parts if isinstance(part, int)]
    holes = {number: opened(subject, number) for number in order}
    parts = tuple(joined(list(_parts(subject, holes)), subject.encoder))
    first, *after = (holes[number] for number in order)
    advice = [
        *_of_message(subject, first),
        *_of_later_messages(subject, first, after),
        *_shared(subject, others),
    ]
    return Explanation(
        parts=parts,
        boundary=_boundary(subject, parts[1]),
        advice=tuple(sorted(advice, key=lambda found: -found.tokens)),
    )


def _parts(subject: Subject, holes: Mapping[int, Opened]) -> Iterator[Part]:
    artifact = subject.artifact
    first, *others = artifact.spans
    yield Part("prefix", first.text, len(first.ids), None)
    for slot, span in zip(artifact.slots, others, strict=True):
        for part in slot.parts:
            if isinstance(part, str):
                yield Part("glue", part, count(subject.encoder, part), None)
            else:
                yield from holes[part].parts
        yield Part("tail" if span is artifact.spans[-1] else "span", span.text, len(span.ids), None)


def _boundary(subject: Subject, second: Part) -> Boundary:
    """Say where the prefix ends; `second` is the part after it."""
    encoder, last = subject.encoder, subject.artifact.prefix[-1]
    has_glue = second.kind == "glue"
    return Boundary(
        reason="special token" if last in encoder.control.values() else "piece",
        last=encoder.decode([last]),
        glue=second.text if has_glue else "",
        glue_tokens=(second.tokens or 0) if has_glue else 0,
    )


def _of_message(subject: Subject, first: Opened) -> Iterator[Advice]:
    """Yield what stands beside the first hole in its own message: only this hole ends the prefix."""
    late = [part for part in first.parts if part.kind == "late"]
    tokens = sum(part.tokens or 0 for part in late)
    message = first.hole.message
    if tokens >= _LEAST:
        text = " … ".join(part.text.strip() for part in late if part.text.strip())
        yield Advice("text", tokens, text, message, first.begins)
    for block in first.blocks:
        inside = count(subject.encoder, block.inside)
        if inside >= _LEAST:
            yield Advice("block", inside, block.inside.strip(), message, block.source)


def _of_later_messages(subject: Subject, first: Opened, after: Sequence[Opened]) -> Iterator[Advice]:
    """Yield the constant messages between the first hole and the next, with the beginning of the message that
    holds the next.
    """
    messages = subject.declared.messages
    end = after[0].hole.message + 1 if after else len(messages)
    shown = _after_first_hole(subject.artifact)
    found: dict[int, str] = {}
    for number in range(first.hole.message + 1, end):
        if messages[number].prefill:
            continue  # the beginning of the answer: nothing can come after it
        head = trace(subject.prompts, number, subject.declared.vars, subject.examples).head.strip()
        # What the chat template leaves out, or shows before the hole, is no loss.
        if head and head in shown:
            found[number] = head
    tokens = sum(len(subject.encoder.constant(text, Place.AFTER)) for text in found.values())
    if tokens >= _LEAST:
        text = " … ".join(found.values())
        yield Advice("message", tokens, text, first.hole.message, first.begins, messages=tuple(found))


def _after_first_hole(artifact: Artifact) -> str:
    """Return the constant text after the first hole, with a character that stands nowhere for the others."""
    pieces: list[str] = []
    for slot, span in zip(artifact.slots, artifact.spans[1:], strict=True):
        pieces += (part if isinstance(part, str) else "\uffff" for part in slot.parts)
        pieces.append(span.text)
    return "".join(pieces).partition("\uffff")[2]


def _shared(subject: Subject, others: Mapping[str, Artifact]) -> Iterator[Advice]:
    """Yield what the prefix has in common with those of other classes, but not from the first token on."""
    artifact = subject.artifact
    prefixes = {
        name: other.prefix for name, other in others.items() if other.model.digest == artifact.model.digest
    }
    for found in fragments(artifact.prefix, prefixes):
        text = subject.encoder.decode(artifact.prefix[found.begin : found.end])
        yield Advice(
            "fragment",
            found.end - found.begin,
            text.strip(),
            None,
            "",
            classes=found.classes,
            prompts=_prompts_in(subject.prompts, text),
        )


def _prompts_in(prompts: Prompts, text: str) -> tuple[str, ...]:
    """Return the prompt files that stand word for word in a fragment."""
    sources = {parsed.template.file: parsed.template.source.strip() for parsed in prompts.templates.values()}
    return tuple(file for file in prompts.files if sources.get(file) and sources[file] in text)
