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

_CURES: Mapping[FailureCode, str] = {
    FailureCode.ROW_INVALID: "mend the prompt, or the rows",
    FailureCode.TOO_LONG: "shorten the prompt or the rows, or lower max_new_tokens",
    FailureCode.TOKEN_OUT_OF_VOCABULARY: "let the engine serve the model that [model] names",
    FailureCode.PROMPT_NOT_CANONICAL: "report an item as `fafo show` prints it",
    FailureCode.ANSWER_INVALID: "mend the server that answers so, or let it serve what [model] names",
    FailureCode.REJECTED: "mend what the engine complains of, mostly a sampling parameter",
    FailureCode.ATTEMPTS_EXHAUSTED: "mend what the engine's own log complains of",
}
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

    def end(self) -> None:
        """Raise `StoppedError` when the run had to end."""
        if self._found is not None:
            raise StoppedError(self._found)

    def _problems(self, snapshot: Snapshot) -> Iterator[Problem]:
        outcomes = snapshot.completed + snapshot.failed
        if self._rule.failed is not None and snapshot.failed > self._rule.failed * outcomes:
            code, most = max(snapshot.failures.items(), key=lambda each: each[1].count)
            yield Problem(
                f"{snapshot.failed} of this run's {outcomes} outcomes are failures, more than "
                f"{self._rule.failed:g} of them; mostly {code} ({most.count}), such as {most.example}",
                file="fafo.toml",
                field="run.stop_when.failed",
                cure=f"{_CURES[FailureCode(code)]}; {_GO_ON}; what failed: `fafo retry --code {code}`",
            )
        if self._rule.empty is not None and snapshot.empty > self._rule.empty * outcomes:
            yield Problem(
                f"{snapshot.empty} of this run's {outcomes} outcomes are empty, more than "
                f"{self._rule.empty:g} of them",
                file="fafo.toml",
                field="run.stop_when.empty",
                cure=f"{_EMPTY}; {_GO_ON}",
            )
