"""What the arguments of a job of `pgbeat.sql` ask for."""

from typing import Any

import pytest
from sqlalchemy.engine import make_url

from pgbeat.config import Settings
from pgbeat.errors import InvalidSchedule
from pgbeat.jobs.checks import sql_jobs

URL = make_url("postgresql://")
OFF, ONE, TWO = (Settings(URL, sql_roles=roles) for roles in ((), ("a",), ("a", "b")))


@pytest.mark.parametrize(
    ("settings", "more", "role", "seconds"),
    [
        (ONE, {}, "a", 300.0),
        (TWO, {"role": "b", "timeout": "90 s"}, "b", 90.0),
        (TWO, {"role": "b", "timeout": 0.5}, "b", 0.5),
    ],
)
def test_what_is_asked_for(
    settings: Settings, more: dict[str, Any], role: str, seconds: float
) -> None:
    assert sql_jobs.read(settings, "SELECT 1", **more) == ("SELECT 1", role, seconds)


@pytest.mark.parametrize(
    ("settings", "statement", "more", "field", "code"),
    [
        (OFF, "SELECT 1", {"role": "a"}, "role", "unknown"),
        (ONE, "SELECT 1", {"role": "A"}, "role", "unknown"),
        (ONE, "SELECT 1", {"role": ["a"]}, "role", "unknown"),
        (TWO, "SELECT 1", {}, "role", "required"),
        (ONE, ["SELECT 1"], {}, "statement", "malformed"),
        (ONE, "SELECT 1", {"timeout": True}, "timeout", "malformed"),
        (ONE, "SELECT 1", {"timeout": 0}, "timeout", "out_of_range"),
        (ONE, "SELECT 1", {"timeout": float("nan")}, "timeout", "out_of_range"),
    ],
)
def test_what_is_refused(
    settings: Settings, statement: Any, more: dict[str, Any], field: str, code: str
) -> None:
    with pytest.raises(InvalidSchedule) as error:
        sql_jobs.read(settings, statement, **more)
    [problem] = error.value.problems
    assert (problem.field, problem.code) == (f"kwargs.{field}", code)
