"""Ends a run of whose outcomes more are failures, or empty, than `run.stop_when` allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, field

from fafo_build.errors import Problem, StoppedError
from fafo_build.project.declaration import StopWhen
from fafo_run.item import FailureCode
from fafo_run.run.state import Snapshot

LEAST = 500
"""Outcomes of this run before there is a judgement: of fewer, a share says little."""

_NEW_WORK = "what changes is new work"
_CURES: Mapping[FailureCode, str] = {
    FailureCode.ROW_INVALID: f"mend the prompt, or the rows: {_NEW_WORK}",
    FailureCode.TOO_LONG: f"shorten the prompt or the rows, or lower max_new_tokens: {_NEW_WORK}",
    FailureCode.TOKEN_OUT_OF_VOCABULARY: "let the engine serve the model that [model] names",
    FailureCode.PROMPT_NOT_CANONICAL: "report an item as `fafo show` prints it",
    FailureCode.ANSWER_INVALID: "mend the server that answers so, or let it serve what [model] names",
    FailureCode.REJECTED: f"mend the engine, or the sampling parameter that it refuses: {_NEW_WORK}",
    FailureCode.ATTEMPTS_EXHAUSTED: "mend what the engine's own log complains of",
}
_MENDED_AT_THE_ENGINE = {
    FailureCode.TOKEN_OUT_OF_VOCABULARY,
    FailureCode.ANSWER_INVALID,
    FailureCode.REJECTED,
    FailureCode.ATTEMPTS_EXHAUSTED,
}
"""Of these the item stays the same when its cause is mended, and a retry is what it takes."""
_EMPTY = "look at some with `fafo show`, and mend the end of the prompt, the stop texts or the model"
_GO_ON = "what waits stays, and the same command goes on"


@define
class Stop:
    """The rule of one run, and why it ended it."""

    _rule: StopWhen
    _found: Problem | None = field(default=None, init=False)

    def reached(self, snapshot: Snapshot) -> bool:
        """Tell whether the run has to end; once it has to, it has to."""
        if self._found is None and snapshot.completed + snapshot.failed >= LEAST:
            self._found = next(self._problems(snapshot), None)
        return self._found is not None

    @property
    def error(self) -> StoppedError | None:
        """Why the run had to end; None when it hadn't."""
        return None if self._found is None else StoppedError(self._found)

    def _problems(self, snapshot: Snapshot) -> Iterator[Problem]:
        outcomes = snapshot.completed + snapshot.failed
        if self._rule.failed is not None and snapshot.failed > self._rule.failed * outcomes:
            code, most = max(snapshot.failures.items(), key=lambda each: each[1].count)
            yield Problem(
                f"{snapshot.failed} of this run's {outcomes} outcomes are failures, more than "
                f"{self._rule.failed:g} of them; mostly {code} ({most.count}), such as {most.example}",
                file="fafo.toml",
                field="run.stop_when.failed",
                cure=_cure(FailureCode(code)),
            )
        if self._rule.empty is not None and snapshot.empty > self._rule.empty * outcomes:
            yield Problem(
                f"{snapshot.empty} of this run's {outcomes} outcomes are empty, more than "
                f"{self._rule.empty:g} of them",
                file="fafo.toml",
                field="run.stop_when.empty",
                cure=f"{_EMPTY}; {_GO_ON}",
            )


def _cure(code: FailureCode) -> str:
    again = f"; `fafo retry --code {code}` puts back what failed" if code in _MENDED_AT_THE_ENGINE else ""
    return f"{_CURES[code]}{again}; {_GO_ON}"
