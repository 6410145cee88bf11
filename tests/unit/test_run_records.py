"""What the outcomes of a run become."""

from __future__ import annotations

import pytest

from fafo_run.item import Claim, Failure, FailureCode
from fafo_run.run.records import Lost, exhausted
from tests.log_nouns import FAKE, item

INVALID, NONE = FailureCode.ANSWER_INVALID, FailureCode.ATTEMPTS_EXHAUSTED
SILENT, BAD = Lost("nobody is there"), Lost("token 9 of 8", INVALID)


@pytest.mark.parametrize(
    ("history", "code", "message"),
    [
        ([BAD, BAD], INVALID, "no valid answer after 2 attempts: token 9 of 8 (2 times)"),
        ([SILENT, BAD], NONE, "no answer after 2 attempts: nobody is there, then token 9 of 8"),
        # Nobody knows any more how that of the earlier run ended.
        ([BAD], NONE, "no answer after 2 attempts: 1 in an earlier run; token 9 of 8"),
    ],
)  # fmt: skip
def test_what_an_item_fails_as_whose_attempts_are_used_up(
    history: list[Lost], code: FailureCode, message: str
) -> None:
    failed = exhausted(Claim(bytes(16), 1, 1, 1, item(1)), FAKE, history, 2)
    assert isinstance(failed.outcome, Failure)
    assert (failed.outcome.code, failed.outcome.message) == (code, message)
