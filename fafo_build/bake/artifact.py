"""The artifact of a class: spans of token ids, and what is needed to fill the slots between them.

An artifact is all that a run needs of a class's prompts: `prompts/` and `classes/` are not read again. Its
hash covers exactly what decides the ids that reach the engine. No I/O here; `store` reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attrs import asdict, frozen

from fafo_build.bake.canonical import canonical, sha256, tagged, untagged
from fafo_build.render.marks import Trim

FORMAT = 2
"""Version of the artifact's JSON form."""


@frozen
class ModelFingerprint:
    """What a model is, as far as a client of a remote server can know it (architecture.md section 4)."""

    name: str
    """The declared path."""
    revision: str | None
    config_sha256: str
    """64 hex digits; of the model's config.json as canonical JSON."""

    @property
    def digest(self) -> str:
        """64 hex digits over the three."""
        return sha256(canonical(asdict(self)))


@frozen
class Span:
    """Token ids between slots, the same for every item."""

    text: str
    """What the ids stand for, special tokens included."""
    ids: tuple[int, ...]


@frozen
class Hole:
    """A place in one message that depends on the item, from its first item-dependent character on."""

    message: int
    """0-based number of the message."""
    head: str
    """The message's constant beginning: what its template renders before it first looks at the item, as the
    chat template shows it (trimmed as `trim` says)."""
    trim: Trim
    """What the chat template takes away at the ends of the whole content of this message."""
    template: str
    """Name of the message's template in `Artifact.templates`."""
    before: str = ""
    """What the chat template puts right before the trimmed content, and leaves out when nothing is left."""
    after: str = ""
    """The same right after it. With either of the two, `head` is empty."""


@frozen
class Slot:
    """What is encoded as one text between two spans: literal text ('glue') and holes, in order."""

    parts: tuple[str | int, ...]
    """A str is literal text; an int is an index into `Artifact.holes`."""


@frozen(slots=False)
class Artifact:
    """One baked class. `spans` has one more element than `slots`; they alternate, spans first and last."""

    model: ModelFingerprint
    tokenizer: str
    """64 hex digits: sha256 of the tokenizer's JSON in build/tokenizers/."""
    vocab_size: int
    spans: tuple[Span, ...]
    slots: tuple[Slot, ...]
    holes: tuple[Hole, ...]
    lead: int
    """Characters of the first span's text that stand for tokens which the tokenizer itself puts before every
    text. 0 but for completion classes."""
    templates: Mapping[str, str]
    """Name to source, comments removed: the messages with holes, and all that these include."""
    vars: Mapping[str, Any]
    """The class variables that those templates name."""
    examples: tuple[Mapping[str, Any], ...]
    """The few-shot rows, if those templates name them."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """The ids that every item of the class shares."""
        return self.spans[0].ids

    @cached_property
    def hash(self) -> str:
        """64 hex digits over the canonical JSON of all fields and the format version: sha256 of `encoded`."""
        return sha256(self.encoded)

    @cached_property
    def encoded(self) -> bytes:
        """The artifact's file: canonical JSON (docs/baking.md)."""
        return canonical(
            {
                "format": FORMAT,
                "model": asdict(self.model),
                "tokenizer": self.tokenizer,
                "vocab_size": self.vocab_size,
                "spans": [{"text": span.text, "ids": list(span.ids)} for span in self.spans],
                "slots": [list(slot.parts) for slot in self.slots],
                "holes": [asdict(hole) for hole in self.holes],
                "lead": self.lead,
                "templates": dict(self.templates),
                "vars": tagged(self.vars),
                "examples": tagged(self.examples),
            }
        )


def decoded(content: bytes) -> Artifact:
    """Return the artifact of which `encoded` are these bytes.

    Raises `ValueError`, `TypeError`, `KeyError` or `LookupError` when they aren't of this form.
    """
    value = json.loads(content)
    if value["format"] != FORMAT:
        raise ValueError(f"artifact format {value['format']}, this version reads {FORMAT}")
    artifact = Artifact(
        model=ModelFingerprint(**value["model"]),
        tokenizer=value["tokenizer"],
        vocab_size=value["vocab_size"],
        spans=tuple(Span(span["text"], tuple(span["ids"])) for span in value["spans"]),
        slots=tuple(Slot(tuple(parts)) for parts in value["slots"]),
        holes=tuple(Hole(**{**hole, "trim": Trim(**hole["trim"])}) for hole in value["holes"]),
        lead=value["lead"],
        templates=value["templates"],
        vars=untagged(value["vars"]),
        examples=tuple(untagged(value["examples"])),
    )
    # Else the first look at `hash` would encode all of it again: half a second for 300 classes.
    artifact.__dict__["encoded"] = content
    return artifact
