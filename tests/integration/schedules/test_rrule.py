"""Recurrence rules as the database checks them."""

from collections.abc import Callable
from typing import Any

import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import parse_rrule
from tests.unit.timetables.test_rrule import BAD

Sql = Callable[..., list[tuple[Any, ...]]]


def test_the_database_says_the_same_of_the_shape_of_a_rule(sql: Sql) -> None:
    """And takes whatever Python takes; what the values are it leaves to it."""
    more = ["FREQ=", "FREQ", "FREQ=DAILY=3", ";FREQ=DAILY", "FREQ=DA\u0131LY", "FREQ=DAILY;;",
            "RRULE:RRULE:FREQ=DAILY", "COUNT=3;FREQ=NO;FREQ=DAILY",
            "FREQ=DAILY;BYHOUR=9.5"]  # fmt: skip
    said = 0
    for text in [text for text, _ in BAD] + more:
        with pytest.raises(InvalidTimetable) as raised:
            parse_rrule(text)
        [(in_database,)] = sql("SELECT pgbeat.rrule_problem(%s)", text)
        if in_database is not None:
            assert f"rrule {text!r}: {in_database}" == str(raised.value)
            said += 1
    assert said == 16
    for text in ("FREQ=DAILY", " freq=daily; count=3; ", "RRULE:FREQ=DAILY",
                 "DTSTART:20250101T090000Z\nRRULE:FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9"):  # fmt: skip
        assert parse_rrule(text)
        assert sql("SELECT pgbeat.rrule_problem(%s)", text) == [(None,)]
