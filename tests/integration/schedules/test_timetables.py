"""Timetables: what the database says of them is what Python says."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.testing.databases import Databases
from pgbeat.timetables import check_cron, parse_rrule, parse_solar
from tests.unit.timetables import test_rrule, test_solar

#: What the database says is wrong with a timetable.
Problem = Callable[[str, str], str | None]


@pytest.fixture(scope="module")
def in_database(pgbeat_databases: Databases) -> Iterator[Problem]:
    """Asks the function `pgbeat.KIND_problem`."""
    with pgbeat_databases.lent() as dsn, psycopg.connect(dsn, autocommit=True) as connection:

        def ask(kind: str, text: str) -> str | None:
            row = connection.execute(f"SELECT pgbeat.{kind}_problem(%s)", [text]).fetchone()
            return row[0] if row else None

        yield ask


def in_python(parse: Callable[[str], Any], kind: str, text: str) -> str | None:
    try:
        parse(text)
    except InvalidTimetable as error:
        return str(error).removeprefix(f"{kind} {text!r}: ")
    return None


cron_problem = partial(in_python, check_cron, "cron")
solar_problem = partial(in_python, parse_solar, "solar")
rrule_problem = partial(in_python, parse_rrule, "rrule")

GOOD = """
    * * * * * | */15 * * * * | 0 2 * * mon-fri | 0 2 * * MON-FRI | 59 23 31 12 7 | 0 0 30 2 *
    1-5 * * * * | 50-10 * * * * | 5-5 * * * * | 1-5/2 * * * * | 5/10 * * * * | */100 * * * *
    * */25 * * * | * * */32 * * | 1,2,3 * * * * | *,5 * * * * | */5,7 * * * * | 0 22-2 * * *
    * * * jan * | * * * jan-mar * | * * * dec-feb * | * * * 1-dec,3 * | * * * feb/3 * | * * * * sun
    * * * * sat-sun | * * * * 5-7 | * * * * 0-7 | * * * * mon,wed,5 | * * * * mon-fri/2
    * * l * * | * * 15,L * * | * * ? * * | * * * * ? | * * ? * ? | * * * * L5 | * * * * l7
    * * * * l05 | * * * * 2#1 | * * * * tue#5 | * * * * tue#1,fri#3 | * * * * L5,2#1
    01 02 03 04 05 | 007 * * * * | */05 * * * * | 00 00 01 01 00 | @hourly | @DAILY | @midnight
    @weekly | @monthly | @yearly | @annually | * * * * * * | * * * * * 5 | * * * * * */10
    0 9 * * 1-5 30 | 0 9 * * * 05 | 0 12 * * * 0-59 | 0 9 31 * * 1 | */5 * * * * 0 | 0 9 * * * 0,30
"""
BAD = """
    60 * * * * | * 24 * * * | * * 0 * * | * * 32 * * | * * * 0 * | * * * 13 * | * * * * 8
    */0 * * * * | 1,,3 * * * * | ,1 * * * * | 1, * * * * | 1- * * * * | -1 * * * * | +1 * * * *
    1.5 * * * * | 1_0 * * * * | 1-5-7 * * * * | */5/2 * * * * | /5 * * * * | 5/ * * * *
    */-5 * * * * | *-5 * * * * | * * * january * | * * * * sunday | ? * * * * | * * ?/2 * *
    * * 1,? * * | * * L-3 * * | * * 1-L * * | * * 15W * * | * * LW * * | * * * * L | * * * * Lfri
    * * * * 5L | H/15 * * * * | * * * * L8 | * * * * 2#6 | * * * * 2#0 | * * * * *#2 | * * * * 1-5#2
    * * * * tue#1,3 | * * * * L5,1 | * * * * *,2#1 | H * * * * | R * * * * | a * * * *
    0 0 12 * * 1 | 0 0 12 * * * | 0 */5 * * * * | */10 * * * * * | 30 0 9 * * 1-5 | 0 15 * * * 1,3/2
    5 0 12 * * 1-5/10 | 0 9 1 * * 0 | 7,8 9 * * * 7
    * * * * | * * * * * 60 | @reboot | @every 5m | @ | @@daily | 1~5 * * * * | 1;2 * * * * | x y
"""


def split(table: str) -> list[str]:
    return [part.strip() for line in table.strip().splitlines() for part in line.split(" | ")]


STRANGE = [
    "0 9 * * 1-5\n0 12 * * 6",
    "\n @daily \r\n\n* * * * * \x0b\n",
    "0 9 * * 1-5\n0 12 * * 8",
    "0 9\n* * *",
    "\n".join(["@daily"] * 21),
    "",
    " ",
    "  0   2 * * *  ",
    "*\t*\t* * *",
    "* * * * *\n",
    " @daily\t",
    "*\u00a0* * * *",
    "* *\u3000* * *",
    "*\x1c* * * *",
    "\u0661 * * * *",
    "\uff11 * * * *",
]


@pytest.mark.parametrize("expression", [*split(GOOD), *split(BAD), *STRANGE])
def test_cron_expressions(in_database: Problem, expression: str) -> None:
    said = in_database("cron", expression)
    assert said == cron_problem(expression)
    assert expression in STRANGE or (said is None) == (expression in split(GOOD))


def test_solar_timetables(in_database: Problem) -> None:
    more = [
        "sunset .5 5",
        "sunset 5. 5",
        "sunset 1e1 5",
        "sunset 90.0001 0",
        "sunset --1 2",
        "sunset 1.1234567890123456 2",
        "sunset\u00a01 2",
    ]
    for text in test_solar.BAD + more:
        said = in_database("solar", text)
        assert said is not None and said == solar_problem(text)
    for text in ("sunset 59.91 10.75", "  Dawn_Civil\t-33.87  +151.21 ", "solar_noon 90 -180"):
        assert in_database("solar", text) is solar_problem(text) is None


def test_the_shape_of_recurrence_rules(in_database: Problem) -> None:
    """The database takes whatever Python takes, and leaves the values to it."""
    more = [
        "FREQ=",
        "FREQ",
        "FREQ=DAILY=3",
        ";FREQ=DAILY",
        "FREQ=DA\u0131LY",
        "FREQ=DAILY;;",
        "RRULE:RRULE:FREQ=DAILY",
        "COUNT=3;FREQ=NO;FREQ=DAILY",
        "FREQ=DAILY;BYHOUR=9.5",
    ]
    found = {text: in_database("rrule", text) for text in test_rrule.BAD + more}
    assert None not in map(rrule_problem, found)
    said = {text: problem for text, problem in found.items() if problem is not None}
    assert len(said) == 16
    assert said == {text: rrule_problem(text) for text in said}
    for text in (
        "FREQ=DAILY",
        " freq=daily; count=3; ",
        "RRULE:FREQ=DAILY",
        "DTSTART:20250101T090000Z\nRRULE:FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9",
    ):
        assert in_database("rrule", text) is rrule_problem(text) is None
