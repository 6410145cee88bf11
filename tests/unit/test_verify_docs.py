"""docs/verify.md explains every verdict, every cause and every key."""

from __future__ import annotations

import pytest

from fafo_run.verify.counters import Agreement, Comparison
from fafo_run.verify.live import LiveReport, Probe
from fafo_run.verify.report import VERDICTS, Cause, Finding, Report, Verdict
from fafo_run.verify.saving import Saving, SavingReport
from fafo_run.verify.sums import Completeness, Hits, WarmUps
from tests.helpers import REPO, keys_of, named_in

ROWS = {
    line.split("`")[1]: line
    for line in (REPO / "docs" / "verify.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
}

WHY = (Finding(Cause.LOST, "one"),)
HITS = {"": Hits()}
RUN = Report(
    HITS,
    HITS,
    HITS,
    WarmUps(),
    {"": Comparison()},
    Completeness(0, 0, 0, 0, 0, 0, 0, 0),
    (),
    WHY,
    WHY,
    0,
    0,
    1.0,
)
LIVE = LiveReport((Probe("", 0, "", 1, True, Hits(), 0.0),), WHY, WHY, 1.0)
SAVING = SavingReport({"": Saving()}, {"": Saving()})


@pytest.mark.parametrize(
    ("section", "report"),
    [("## `--json`", RUN), ("## Running servers", LIVE), ("## What the cache saves", SAVING)],
    ids=["run", "live", "saving"],
)
def test_each_key_is_named(section: str, report: Report | LiveReport | SavingReport) -> None:
    assert keys_of(report.as_json()) - {""} <= named_in("verify", section)


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
