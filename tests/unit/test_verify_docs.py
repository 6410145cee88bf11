"""docs/verify.md explains every verdict and every cause."""

from __future__ import annotations

import pytest

from fafo_run.verify.counters import Agreement
from fafo_run.verify.report import VERDICTS, Cause, Verdict
from tests.helpers import REPO

ROWS = {
    line.split("`")[1]: line
    for line in (REPO / "docs" / "verify.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
}


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_each_cause_is_explained(cause: Cause) -> None:
    _, _, verdict, meaning, _ = ROWS[cause.value].split("|")
    assert verdict.strip() == (VERDICTS[cause].value if cause in VERDICTS else "explains")
    assert len(meaning.split()) > 5


@pytest.mark.parametrize("verdict", Verdict, ids=lambda verdict: verdict.value)
def test_each_verdict_is_explained_with_its_exit_code(verdict: Verdict) -> None:
    assert ROWS[verdict.value].split("|")[2].strip() == str(int(verdict.exit_code))


@pytest.mark.parametrize("agreement", Agreement, ids=lambda agreement: agreement.value)
def test_each_agreement_is_explained(agreement: Agreement) -> None:
    assert agreement.value in ROWS
