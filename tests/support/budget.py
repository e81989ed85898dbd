"""Fails a run whose default tier takes too long: `pytest --budget SECONDS`, which CI passes.

What counts is the time of the tests that start nothing, summed up over all test processes. So it
does not matter how many processes there are, nor that tests of other tiers run in between.
"""

import pytest


class Budget:
    """The seconds that the default tier may take, and those that it has taken."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.spent = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test, its set-up or its tear-down."""
        if not {"process", "slow"} & set(report.keywords):
            self.spent += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails the run if the budget is exceeded."""
        if self.is_exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Says what the tests have taken."""
        colour = {"red": True} if self.is_exceeded else {}
        terminalreporter.write_line(str(self), **colour)

    @property
    def is_exceeded(self) -> bool:
        """Whether the tests have taken more."""
        return self.spent > self.seconds

    def __str__(self) -> str:
        said = f"The default tier's tests took {self.spent:.0f} s of their {self.seconds:g} s"
        if not self.is_exceeded:
            return f"{said}."
        return f"{said}: make some faster. `pytest --durations=30` names the longest."
