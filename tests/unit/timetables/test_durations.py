"""Durations: how people write them, what is refused, and how they are shown."""

from datetime import timedelta

import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import parse_duration, span
from tests.support.problems import raises


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        (".5", 0.5),
        ("0", 0),
        ("1h30m", 5400),
        ("1 hour, 30 mins", 5400),
        ("1.5 h", 5400),
        (" 2 DAYS ", 172_800),
        ("1 sec", 1),
        ("2 hrs 3 s", 7203),
        ("500ms", 0.5),
        ("1 s 500 milliseconds", 1.5),
    ],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "soon", "-1", "1:30", "1h30", "1 hour 5", "1e9", "5 parsecs", "2 weeks ago",
             "1 month", "2y", "9" * 30, "9" * 400, "999999999999 days", "1..5"],
)  # fmt: skip
def test_no_length_of_time(text: str) -> None:
    with raises(InvalidTimetable, ("", "malformed")):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "units", "said"),
    [
        (0, 2, "0 s"),
        (0.0002, 2, "0 s"),
        (0.038, 3, "0.038 s"),
        (0.4, 2, "0.4 s"),
        (9.96, 2, "10 s"),
        (-75, 2, "1 min 15 s"),
        (86_400 + 60, 2, "1 d"),
        (3700, 1, "1 h"),
    ],
)
def test_a_length_is_shown(seconds: float, units: int, said: str) -> None:
    assert span(timedelta(seconds=seconds), units) == said
