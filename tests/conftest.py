"""Rules for the whole suite: what may be skipped, and what a test may leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parent / "allowed_skips.txt"


def allowed_skips() -> dict[str, str]:
    """Node id prefix to reason; a skip in CI that no line allows fails the run."""
    lines = [line.strip() for line in ALLOWED.read_text().splitlines()]
    pairs = [line.partition(" # ") for line in lines if line and not line.startswith("#")]
    return {prefix.strip(): reason for prefix, _, reason in pairs if reason}


class SkipGuard:
    """Turns unlisted skips into a failure of the run where CI is set."""

    def __init__(self) -> None:
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report.skipped, report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report.skipped, report.nodeid)

    def _note(self, skipped: bool, nodeid: str) -> None:
        if skipped and not any(nodeid.startswith(prefix) for prefix in allowed_skips()):
            self.unlisted.append(nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unlisted:
            terminalreporter.section("skipped without leave")
            for nodeid in self.unlisted:
                terminalreporter.line(f"{nodeid}: list it in tests/allowed_skips.txt with its reason, or run it")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI"):
        config.pluginmanager.register(SkipGuard(), "pagemill-skip-guard")
