"""Durations: how people write them, and what is refused."""

from datetime import timedelta

import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("0.5", 0.5), (".5", 0.5), ("0", 0), ("15 minutes", 900), ("1h30m", 5400),
        ("1 hour, 30 mins", 5400), ("1.5 h", 5400), (" 2 DAYS ", 172_800), ("1w", 604_800),
        ("1 sec", 1), ("2 hrs 3 s", 7203),
    ],
)  # fmt: skip
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1:30", "1h30", "1e9", "5 parsecs", "2 weeks ago", "1 month", "2y",
             "9" * 30, "9" * 400, "1..5"],
)  # fmt: skip
def test_no_length_of_time(text: str) -> None:
    with pytest.raises(InvalidTimetable, match="write seconds, or for example"):
        parse_duration(text)
