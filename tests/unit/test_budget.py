"""The budget of the default tier of tests."""

from typing import Literal

import pytest

from tests.support.budget import Budget


def report(seconds: float, *markers: str) -> pytest.TestReport:
    keywords: dict[str, Literal[1]] = dict.fromkeys(("tests", *markers), 1)
    where = ("test_a.py", 1, "test_a")
    return pytest.TestReport("test_a", where, keywords, "passed", None, "call", (), seconds)


def test_only_the_default_tier_counts() -> None:
    budget = Budget(10)
    for each in (report(6), report(4), report(5, "process"), report(5, "slow")):
        budget.pytest_runtest_logreport(each)
    assert (budget.spent, budget.is_exceeded) == (10, False)
    budget.pytest_runtest_logreport(report(1))
    assert budget.is_exceeded
