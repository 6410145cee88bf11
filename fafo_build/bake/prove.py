"""The proof that an artifact gives the model's own ids: every hole against hostile texts, alone and together.

What it is compared with comes from the chat template and from a tokenizer of its own, never from the spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from attrs import frozen

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.assemble import Assembler, HeadMismatchError, hole_text, reference
from fafo_build.bake.chat import Chat
from fafo_build.bake.layout import Conversation
from fafo_build.bake.probes import PROBES, control_probes
from fafo_build.errors import BakeError
from fafo_build.render.marks import Marked
from fafo_build.tokens.encoder import TextEncoder

_FILLER = "some text"
"""What stands in the other holes while one is probed."""


@frozen
class _Case:
    """One text per open message, in order."""

    texts: tuple[str, ...]
    opted_in: bool
    """Whether control tokens in the texts are meant."""


def prove(artifact: Artifact, encoder: TextEncoder, talk: Conversation, chat: Chat) -> int:
    """Check the artifact against the whole conversation encoded once; return how many prompts were compared.

    Raises `BakeError` that names the class, the message, the probe and the first token that differs.
    """
    _check_bos(artifact, talk, chat)
    judge = chat.judge
    assembler = Assembler(artifact, encoder)
    cases = list(_cases(len(talk.open), judge.control, chat.template_words))
    for case in cases:
        _prove(case, artifact, assembler, judge, talk, chat)
    return len(cases)


def _cases(holes: int, control: Mapping[str, int], words: Iterable[str]) -> Iterator[_Case]:
    special = control_probes(control)
    texts = (*PROBES, *words, *special)
    for text in texts:
        for hole in range(holes):
            yield _Case(tuple(text if at == hole else _FILLER for at in range(holes)), False)
    if holes > 1:
        for first in range(len(texts)):
            yield _Case(tuple(texts[(first + 7 * at) % len(texts)] for at in range(holes)), False)
    for text in special:
        yield _Case((text,) * holes, True)


def _prove(
    case: _Case, artifact: Artifact, assembler: Assembler, judge: TextEncoder, talk: Conversation, chat: Chat
) -> None:
    turns = talk.turns(dict(zip(talk.open, case.texts, strict=True)))
    holes = []
    for hole, probe in zip(artifact.holes, case.texts, strict=True):
        head = talk.traces[hole.message].head
        region = ((len(head), len(head) + len(probe)),) if case.opted_in and probe else ()
        try:
            holes.append(hole_text(hole, Marked(head + probe, region)))
        except HeadMismatchError as error:
            raise _failure(
                case, talk, f"the chat template changes its constant beginning: {error}"
            ) from error
    whole = assembler.whole(holes)
    rendered = chat.render(turns)
    if whole.text != rendered:
        raise _failure(case, talk, "the chat template changes the text: " + _first_text(whole.text, rendered))
    suffix, bounds = assembler.suffix(holes)
    got = [*artifact.prefix, *suffix]
    want = reference(judge, whole)
    if len(judge.controls(rendered)) == _meant(judge, whole) and want != chat.ids(turns):
        raise _failure(case, talk, "the tokenizer encodes it otherwise inside apply_chat_template")
    if got != want:
        at = next(at for at, (a, b) in enumerate(zip_longest(got, want)) if a != b)
        ends = (len(artifact.prefix) + end for _, end in bounds)
        slot = next((slot for slot, end in enumerate(ends) if at <= end), len(bounds) - 1)
        raise _failure(case, talk, _difference(judge, at, got, want), _first_message(artifact, slot))
    _check_slots(case, assembler.slot_texts(holes), [suffix[a:b] for a, b in bounds], judge, talk)


def _check_slots(
    case: _Case,
    texts: Sequence[Marked],
    slots: Sequence[Sequence[int]],
    judge: TextEncoder,
    talk: Conversation,
) -> None:
    control = set(judge.control.values())
    for text, ids in zip(texts, slots, strict=True):
        if not case.opted_in and control.intersection(ids):
            raise _failure(case, talk, "text of the item becomes a control token")
        # Some vocabularies lack bytes, and their tokenizers drop these wherever they are called.
        known = text.text if case.opted_in else judge.decode(judge.plain(text.text))
        if judge.decode(ids) != known:
            raise _failure(case, talk, "decoding doesn't give the text back")


def _meant(judge: TextEncoder, whole: Marked) -> int:
    return sum(
        any(a <= begin and end <= b for a, b in whole.special) for begin, end in judge.controls(whole.text)
    )


def _check_bos(artifact: Artifact, talk: Conversation, chat: Chat) -> None:
    """Exactly one BOS where the model wants one, none inside (a template may open every turn with the same
    token).
    """
    bos = chat.bos_id
    ids = [*artifact.prefix, *(id for span in artifact.spans[1:] for id in span.ids)]
    if bos is not None and ids[:2] == [bos, bos]:
        raise talk.error(
            "the prompt begins with two BOS tokens", cure="take the BOS text out of the first message"
        )
    wanted = chat.judge.one_bos()
    if wanted is None:
        return
    if ids[0] != wanted:
        raise talk.error(
            "the model wants a BOS token and the chat template puts none first",
            cure="begin the chat template with {{ bos_token }}",
        )
    if wanted in ids[1:]:
        raise talk.error("a BOS token stands inside the prompt", cure="take its text out of the messages")


def _first_text(got: str, want: str) -> str:
    at = next(
        (at for at, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want))
    )
    return f"expected {got[at : at + 30]!r}, it shows {want[at : at + 30]!r}"


def _first_message(artifact: Artifact, slot: int) -> int:
    """Return the number of the first message with a hole in a slot."""
    hole = next(part for part in artifact.slots[slot].parts if isinstance(part, int))
    return artifact.holes[hole].message


def _difference(judge: TextEncoder, at: int, got: Sequence[int], want: Sequence[int]) -> str:
    def named(ids: Sequence[int]) -> str:
        return f"{ids[at]} ({judge.decode([ids[at]])!r})" if at < len(ids) else "nothing"

    return f"token {at} is {named(got)}, and {named(want)} when the whole conversation is encoded once"


def _failure(case: _Case, talk: Conversation, why: str, number: int | None = None) -> BakeError:
    """Return the error of a probe in message `number`; if unknown, in the first that isn't the filler."""
    texts = dict(zip(talk.open, case.texts, strict=True))
    if number is None:
        number = next((message for message, text in texts.items() if text != _FILLER), talk.open[0])
    probe = texts[number]
    shown = ascii(probe if len(probe) <= 60 else probe[:60] + "…")
    return talk.error(
        f"can't be baked: with the text {shown} in this message, {why}",
        number,
        "if the chat template looks into the text of messages, use a simpler one: model.chat_template",
    )
