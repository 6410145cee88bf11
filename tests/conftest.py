"""What all tests share."""

from __future__ import annotations

import os
import signal
import tempfile

import pytest

from tests.helpers import SHARED


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder that the processes of this run of the tests share. Workers find its name in their
    environment.
    """
    # A shell ignores it for what it starts in the background, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        shared = tempfile.TemporaryDirectory(prefix="fafo-tests")
        os.environ[SHARED] = shared.name
        config.add_cleanup(shared.cleanup)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in CI what was skipped there: a suite that skips shows nothing."""
    skipped = terminalreporter.stats.get("skipped", [])
    if os.environ.get("CI") and skipped:
        terminalreporter.section("skipped in CI")
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    # Whether something can be mounted is up to the machine; everything else CI can run.
    if os.environ.get("CI") and exitstatus == 0 and any("mounts" not in of.keywords for of in skipped):
        session.exitstatus = 1
