"""Solar timetables as the database checks them."""

from collections.abc import Callable
from typing import Any

import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import parse_solar
from tests.unit.timetables.test_solar import BAD

Sql = Callable[..., list[tuple[Any, ...]]]


def test_the_database_says_the_same_of_a_solar_timetable(sql: Sql) -> None:
    more = ["sunset .5 5", "sunset 5. 5", "sunset 1e1 5", "sunset 90.0001 0", "sunset --1 2",
            "sunset 1.1234567890123456 2", "sunset\u00a01 2"]  # fmt: skip
    for text in [text for text, _ in BAD] + more:
        with pytest.raises(InvalidTimetable) as raised:
            parse_solar(text)
        [(in_database,)] = sql("SELECT pgbeat.solar_problem(%s)", text)
        assert f"solar {text!r}: {in_database}" == str(raised.value)
    for text in ("sunset 59.91 10.75", "  Dawn_Civil\t-33.87  +151.21 ", "solar_noon 90 -180"):
        assert parse_solar(text)
        assert sql("SELECT pgbeat.solar_problem(%s)", text) == [(None,)]
