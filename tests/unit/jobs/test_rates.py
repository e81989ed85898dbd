"""Rates of lanes: how people write them, and what is refused."""

from datetime import timedelta

import pytest

from pgbeat.errors import InvalidJob
from pgbeat.jobs.lanes import model as lanes


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("10/minute", (10, timedelta(minutes=1))),
        ("3 per second", (3, timedelta(seconds=1))),
        ("100/15 minutes", (100, timedelta(minutes=15))),
        ("5 a day", (5, timedelta(days=1))),
        ("1/1h30m", (1, timedelta(minutes=90))),
    ],
)
def test_rates_as_people_write_them(written: str, read: tuple[int, timedelta]) -> None:
    assert lanes.parse_rate(written) == read


@pytest.mark.parametrize("written", ["", "10", "ten/minute", "10/month", "0/minute", "5/400 days"])
def test_rates_that_are_none(written: str) -> None:
    with pytest.raises(InvalidJob, match=r"rate|range"):
        lanes.parse_rate(written)
