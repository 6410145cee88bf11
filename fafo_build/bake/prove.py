"""The proof that an artifact gives the model's own ids: every hole against hostile texts, alone and together.

What it is compared with comes from the chat template and from a tokenizer of its own, never from the spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from attrs import frozen

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.assemble import Assembler, HeadMismatchError, hole_text
from fafo_build.bake.conversation import Conversation
from fafo_build.bake.form import Form, Turn
from fafo_build.bake.probes import HOSTILE, PROBES, control_probes
from fafo_build.bake.windows import windows
from fafo_build.errors import BakeError
from fafo_build.render.marks import Marked
from fafo_build.tokens.encoder import TextEncoder

_FILLER = "some text"
"""What stands in the other holes while one is probed."""

_TOGETHER = 64
"""Cases of which the conversations are in memory at once."""


@frozen
class _Case:
    """One text per open message, in order."""

    texts: tuple[str, ...]
    opted_in: bool
    """Whether control tokens in the texts are meant."""


def prove(artifact: Artifact, encoder: TextEncoder, talk: Conversation, form: Form) -> int:
    """Check the artifact against the whole conversation encoded once; return how many prompts were compared.

    The text is compared whole for every probe, the ids around each slot too; all ids, for a plain and for a
    hostile probe. Raises `BakeError` that names the class, the message, the probe and the first token that
    differs.
    """
    _check_bos(artifact, talk, form)
    proof = _Proof(artifact, encoder, talk, form)
    holes, control = len(talk.open), _used_control(artifact, form.own.judge)
    proof.check_whole(_Case((_FILLER,) * holes, False))
    cases = list(_cases(holes, control, (*form.words, *_said(talk))))
    if talk.opts_in:
        cases += (_Case((text,) * holes, True) for text in control_probes(control))
    for begin in range(0, len(cases), _TOGETHER):
        proof.check(cases[begin : begin + _TOGETHER])
    # Last, since what differs is plainer to see with a probe of one kind.
    proof.check_whole(_Case((HOSTILE,) * holes, False))
    return len(cases) + 2


def _used_control(artifact: Artifact, judge: TextEncoder) -> list[str]:
    """Return the control tokens that the conversation itself uses, and two others: what text does that looks
    like one of the rest has been shown for the model, see `TextEncoder.leak`.
    """
    used = {number for span in artifact.spans for number in span.ids if number in judge.control_ids}
    found = [token for token, number in judge.control.items() if number in used]
    return found + [token for token in sorted(judge.control) if token not in found][:2]


def _said(talk: Conversation) -> Iterator[str]:
    """Yield the roles and the constant messages: a chat template can compare a content with them."""
    yield from dict.fromkeys(role for role in talk.roles if role)
    yield from (trace.head for trace in talk.traces if trace.head and not trace.has_hole)


def _cases(holes: int, control: Iterable[str], words: Iterable[str]) -> Iterator[_Case]:
    texts = (*PROBES, *words, *control_probes(control))
    for text in texts:
        for hole in range(holes):
            yield _Case(tuple(text if at == hole else _FILLER for at in range(holes)), False)
    if holes > 1:
        for first in range(len(texts)):
            yield _Case(tuple(texts[(first + 7 * at) % len(texts)] for at in range(holes)), False)


class _Proof:
    """The artifact under proof, and what it is compared with."""

    def __init__(self, artifact: Artifact, encoder: TextEncoder, talk: Conversation, form: Form) -> None:
        self._artifact = artifact
        self._assembler = Assembler(artifact, encoder)
        self._talk = talk
        self._form = form
        self._judge = form.own.judge
        self._windows = list(windows(artifact, form.own.judge))
        self._shown = [
            form.own.shown.setdefault((encoder, context, window), set())
            for context, window in zip(self._assembler.contexts, self._windows, strict=True)
        ]
        """Per slot, the fillings with which its ids are right."""

    def check_whole(self, case: _Case) -> None:
        """Compare all ids with those of `apply_chat_template`, after what `check` compares."""
        self.check([case])
        got = [*self._artifact.prefix, *self._assembler.suffix(self._holes(case))[0]]
        want = self._form.ids(self._turns(case))
        if got != want:
            at = _first_difference(got, want)
            _, bounds = self._assembler.suffix(self._holes(case))
            ends = (len(self._artifact.prefix) + end for _, end in bounds)
            slot = next((slot for slot, end in enumerate(ends) if at <= end), len(bounds) - 1)
            raise self._failure(case, f"token {at} is " + _difference(self._judge, at, got, want), slot)

    def check(self, cases: Sequence[_Case]) -> None:
        """Compare the whole text with what the chat template shows, and the ids around each slot."""
        rendered = iter(self._rendered(cases))
        for case in cases:
            holes = self._holes(case)
            whole, shown = self._assembler.whole(holes).text, next(rendered)
            if whole != shown:
                raise self._failure(case, "the chat template changes the text: " + _first_text(whole, shown))
            for number, text in enumerate(self._assembler.slot_texts(holes)):
                if (text, case.opted_in) not in self._shown[number]:
                    self._check_slot(case, number, text)
                    self._shown[number].add((text, case.opted_in))

    def _check_slot(self, case: _Case, number: int, text: Marked) -> None:
        window, slot = self._windows[number], self._assembler.slot_ids(number, text)
        if not case.opted_in and self._judge.count_control(slot):
            raise self._failure(case, "text of the item becomes a control token", number)
        got, want = window.got(slot), window.expected(self._judge, text)
        if got != want:
            at = _first_difference(got, want)
            raise self._failure(case, "a token is " + _difference(self._judge, at, got, want), number)

    def _rendered(self, cases: Sequence[_Case]) -> Iterable[str]:
        try:
            return self._form.render_each([self._turns(case) for case in cases])
        except BakeError:
            # One of them is refused. One by one it is seen which, and whether another is wrong before it.
            return map(self._render, cases)

    def _render(self, case: _Case) -> str:
        try:
            return self._form.render(self._turns(case))
        except BakeError as error:
            raise self._failure(case, error.problems[0].message) from error

    def _turns(self, case: _Case) -> list[Turn]:
        return self._talk.turns(dict(zip(self._talk.open, case.texts, strict=True)))

    def _holes(self, case: _Case) -> list[Marked]:
        holes = []
        for hole, probe in zip(self._artifact.holes, case.texts, strict=True):
            head = self._talk.traces[hole.message].head
            region = ((len(head), len(head) + len(probe)),) if case.opted_in and probe else ()
            try:
                holes.append(hole_text(hole, Marked(head + probe, region)))
            except HeadMismatchError as error:
                why = f"the chat template changes its constant beginning: {error}"
                raise self._failure(case, why) from error
        return holes

    def _failure(self, case: _Case, why: str, slot: int | None = None) -> BakeError:
        """Return the error of a probe in the first message of a slot; if unknown, in the first that isn't the
        filler.
        """
        texts = dict(zip(self._talk.open, case.texts, strict=True))
        if slot is not None:
            part = next(part for part in self._artifact.slots[slot].parts if isinstance(part, int))
            number = self._artifact.holes[part].message
        else:
            number = next((message for message, text in texts.items() if text != _FILLER), self._talk.open[0])
        probe = texts[number]
        shown = ascii(probe if len(probe) <= 60 else probe[:60] + "…")
        cure = (
            "put constant text around the item, so that the message can't look like this, or use a simpler "
            "chat template: model.chat_template"
        )
        if slot is not None and self._judge.late:
            cure = (
                f"the tokenizer looks for {self._judge.late[0]} in what normalizing makes of a text: if the "
                "model wasn't trained so, set normalized to false for it in tokenizer.json"
            )
        return self._talk.error(f"can't be baked: with the text {shown} in this message, {why}", number, cure)


def _check_bos(artifact: Artifact, talk: Conversation, form: Form) -> None:
    """Exactly one BOS where the model wants one, none inside (a template may open every turn with the same
    token).
    """
    bos = form.own.bos_id
    ids = [*artifact.prefix, *(id for span in artifact.spans[1:] for id in span.ids)]
    if bos is not None and ids[:2] == [bos, bos]:
        raise talk.error(
            "the prompt begins with two BOS tokens", cure="take the BOS text out of the first message"
        )
    wanted = form.wanted_bos
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


def _first_difference(got: Sequence[int], want: Sequence[int]) -> int:
    return next(at for at, (a, b) in enumerate(zip_longest(got, want)) if a != b)


def _difference(judge: TextEncoder, at: int, got: Sequence[int], want: Sequence[int]) -> str:
    def named(ids: Sequence[int]) -> str:
        return f"{ids[at]} ({judge.decode([ids[at]])!r})" if at < len(ids) else "nothing"

    return f"{named(got)}, and {named(want)} when the whole conversation is encoded once"
