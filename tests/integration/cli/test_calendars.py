"""`pgbeat calendars`: show and change calendars, test a time."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support.command_line import Sql, cells, read, refused, run, run_with
from tests.support.rows import make_schedule

OFFICE: dict[str, Any] = {
    "timezone": "Europe/Oslo",
    "holidays": {"country": "NO"},
    "only": {"weekdays": ["mon-fri"], "windows": [{"from": "09:00", "to": "17:00"}]},
}
Calendars = Callable[..., str]


@pytest.fixture
def pgbeat(printed: Calendars) -> Calendars:
    """Returns what runs `pgbeat calendars …` successfully, and returns what it prints."""
    return partial(printed, "calendars")


@pytest.fixture
def definitions(sql: Sql) -> Callable[[], dict[str, Any]]:
    """Returns what reads all definitions by name."""
    return lambda: dict(sql("SELECT name, definition FROM pgbeat.calendars"))


def use(sql: Sql, calendar: str, *names: str, namespace: str = "default") -> None:
    for name in names:
        make_schedule(sql, name, namespace=namespace, calendar=calendar)


def test_add_by_options(pgbeat: Calendars, definitions: Callable[[], Any]) -> None:
    asked = (
        "--timezone Europe/Oslo --dates 2026-12-24,12-31 --holidays NO,DE-BY --market NYSE "
        "--window 22:00-06:00 --only-weekdays mon-fri --only-window 07:00-23:00"
    )
    added = pgbeat("add", "all", *asked.split(), "--window", "mon-thu,sun 12:00-12:30")
    assert added == (
        "Added calendar 'all': only mon–fri at 07:00–23:00; not holidays of NO, holidays of "
        "DE-BY, holidays of NYSE, 2026-12-24, 12-31 every year, 22:00–06:00, mon–thu, sun "
        "12:00–12:30.\n"
    )
    assert definitions()["all"] == {
        "timezone": "Europe/Oslo",
        "dates": ["2026-12-24", "12-31"],
        "holidays": [{"country": "NO"}, {"country": "DE", "subdivision": "BY"}, {"market": "NYSE"}],
        "windows": [
            {"from": "22:00", "to": "06:00"},
            {"from": "12:00", "to": "12:30", "weekdays": ["mon-thu", "sun"]},
        ],
        "only": {"weekdays": ["mon-fri"], "windows": [{"from": "07:00", "to": "23:00"}]},
    }


def test_add_from_a_file_or_standard_input(
    pgbeat: Calendars, definitions: Callable[[], Any], tmp_path: Path
) -> None:
    file = tmp_path / "office.json"
    file.write_text(json.dumps(OFFICE))
    words = "only mon–fri at 09:00–17:00; not holidays of NO"
    assert pgbeat("add", "one", "--file", str(file)) == f"Added calendar 'one': {words}.\n"
    pgbeat("add", "two", "--file", "-", input=json.dumps(OFFICE))
    assert definitions() == {"one": OFFICE, "two": OFFICE}


def test_add_what_is_there(database: str, pgbeat: Calendars) -> None:
    pgbeat("add", "weekend", "--weekdays", "sat,sun")
    again = ["add", "weekend", "--dates", "12-24"]
    assert "'weekend'" in refused(run(database, "calendars", *again), 1)
    assert pgbeat(*again, "--if-not-exists") == (
        "Calendar 'weekend' exists already; it is left as it is.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--help"),
        (["--weekdays", "sax"], "'sax'"),
        (["--window", "22:00"], "'--window'"),
        (["--window", "22-06"], "'06'"),
        (["--holidays", "no"], "'no'"),
        (["--file", "-", "--weekdays", "sat"], "--file"),
        (["--file", "nowhere.json"], "'--file'"),
    ],
)
def test_what_add_refuses(
    database: str, definitions: Callable[[], Any], arguments: list[str], named: str
) -> None:
    result = run(database, "calendars", "add", "c", *arguments, input="{}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr.splitlines()[-1]
    assert definitions() == {}


@pytest.mark.parametrize("text", ["{", '{"dates": [], "dates": []}', "\udcff", "null"])
def test_a_file_that_is_no_definition(database: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    said = refused(run(database, "calendars", "add", "c", "--file", str(file)))
    assert "'--file'" in said and repr(str(file)) in said


def test_update_keeps_what_is_not_named(pgbeat: Calendars, definitions: Callable[[], Any]) -> None:
    pgbeat("add", "c", "--file", "-", input=json.dumps(OFFICE))
    assert pgbeat("update", "c", "--dates", "12-24") == (
        "Changed calendar 'c': only mon–fri at 09:00–17:00; not holidays of NO, 12-24 every year.\n"
    )
    pgbeat("update", "c", "--only-window", "08:00-16:00", "--market", "NYSE")
    pgbeat("update", "c", "--no-timezone", "--weekdays", "wed")
    assert definitions()["c"] == {
        "dates": ["12-24"],
        "weekdays": ["wed"],
        "holidays": {"market": "NYSE"},
        "only": {"weekdays": ["mon-fri"], "windows": [{"from": "08:00", "to": "16:00"}]},
    }
    pgbeat("update", "c", "--no-only", "--no-holidays", "--no-dates")
    assert definitions()["c"] == {"weekdays": ["wed"]}
    assert pgbeat("update", "c", "--no-weekdays") == "Changed calendar 'c': nothing is excluded.\n"


def test_update_from_a_file_replaces_all(pgbeat: Calendars, definitions: Callable[[], Any]) -> None:
    pgbeat("add", "c", "--weekdays", "sat")
    pgbeat("update", "c", "--file", "-", input=json.dumps(OFFICE))
    assert definitions() == {"c": OFFICE}
    assert pgbeat("update", "c", "--file", "-", input=json.dumps(OFFICE)) == (
        "Calendar 'c' is like that already.\n"
    )
    assert pgbeat("update", "c", "--timezone", "Europe/Oslo") == (
        "Calendar 'c' is like that already.\n"
    )


def test_what_update_refuses(
    database: str, pgbeat: Calendars, definitions: Callable[[], Any]
) -> None:
    pgbeat("add", "office", "--weekdays", "sat")
    update = ["calendars", "update", "office"]
    assert "--help" in refused(run(database, *update))
    for options, named in (
        (("--dates", "12-24", "--no-dates"), "--no-dates"),
        (("--only-weekdays", "mon", "--no-only"), "--no-only"),
        (("--file", "-", "--no-dates"), "--file"),
        (("--timezone", "Mars"), "'Mars'"),
    ):
        assert named in refused(run(database, *update, *options, input="{}"))
    assert definitions() == {"office": {"weekdays": ["sat"]}}


def test_list(pgbeat: Calendars, sql: Sql) -> None:
    assert pgbeat("list") == (
        "There are no calendars; `pgbeat calendars add --help` says how to add one.\n"
    )
    pgbeat("add", "office", "--file", "-", input=json.dumps(OFFICE))
    sql("""INSERT INTO pgbeat.calendars (name, definition) VALUES ('bad', '{"x": 1}')""")
    use(sql, "office", "nightly", "hourly")
    keys = "there are timezone, dates, weekdays, holidays, windows, only"
    assert [cells(text) for text in pgbeat("list").splitlines()] == [
        ["calendar", "rules", "zone", "schedules"],
        ["bad", f"calendar 'bad': there is no key 'x'; {keys}", "the schedule's", "0"],
        ["office", "only mon–fri at 09:00–17:00; not holidays of NO", "Europe/Oslo", "2"],
    ]


def test_show(database: str, pgbeat: Calendars, sql: Sql) -> None:
    pgbeat("add", "office", "--weekdays", "sat", "--timezone", "Europe/Oslo")
    sql("UPDATE pgbeat.calendars SET created_at = '2026-01-01 00:00Z'")
    row = read(database, "calendars", "show", "office")
    assert (row["created_at"], row["schedules"]) == ("2026-01-01T00:00:00Z", [])
    assert row["definition"] == {"timezone": "Europe/Oslo", "weekdays": ["sat"]}
    use(sql, "office", *(f"s{n:02}" for n in range(12)))
    name, *facts = pgbeat("show", "office").splitlines()
    found = {cells(text)[0]: cells(text)[1] for text in facts}
    assert name == "office"
    assert list(found) == ["rules", "zone", "definition", "schedules", "created", "changed"]
    assert (found["rules"], found["zone"]) == ("not sat", "Europe/Oslo")
    assert json.loads(found["definition"]) == row["definition"]
    assert found["schedules"].startswith("s00, s01, ")
    assert found["schedules"].endswith(", s09 and 2 more")
    assert found["created"].startswith("2026-01-01 00:00:00 UTC, ")


def test_check_a_time(database: str, pgbeat: Calendars) -> None:
    pgbeat("add", "office", "--file", "-", input=json.dumps(OFFICE))
    for time, said in (
        ("2026-12-28T09:00", "Mon 2026-12-28 09:00:00 CET is not excluded."),
        ("2026-12-28 08:00Z", "Mon 2026-12-28 09:00:00 CET is not excluded."),
        (
            "2026-12-25 10:00",
            "Fri 2026-12-25 10:00:00 CET is excluded: calendar 'office': Christmas Day (NO)",
        ),
        (
            "2026-07-06T17:00",
            "Mon 2026-07-06 17:00:00 CEST is excluded: calendar 'office': outside 09:00–17:00",
        ),
    ):
        result = run(database, "calendars", "check", "office", "--at", time)
        assert (result.stdout, result.stderr) == (f"{said}\n", "")
        assert result.exit_code == (0 if "not excluded" in said else 3)


def test_the_zone_of_a_check(database: str, app: Celery, pgbeat: Calendars) -> None:
    pgbeat("add", "weekend", "--weekdays", "sat,sun")
    check = ["calendars", "check", "weekend", "--at", "2026-07-03T22:30Z"]
    assert run(database, *check).stdout == "Fri 2026-07-03 22:30:00 UTC is not excluded.\n"
    oslo = "Sat 2026-07-04 00:30:00 CEST is excluded: calendar 'weekend': Saturday\n"
    assert run(database, *check, "--timezone", "Europe/Oslo").stdout == oslo
    app.conf.timezone = "Europe/Oslo"
    assert run_with(app, *check).stdout == oslo
    pgbeat("update", "weekend", "--timezone", "UTC")
    assert run_with(app, *check, "--timezone", "Asia/Tokyo").exit_code == 0


def test_what_check_refuses(database: str, pgbeat: Calendars, sql: Sql) -> None:
    pgbeat("add", "c", "--weekdays", "sat")
    for time in ("tomorrow", "2026-13-01", "0001-01-01T00:00+14:00"):
        assert "'--at'" in refused(run(database, "calendars", "check", "c", "--at", time))
    assert "'Mars'" in refused(run(database, "calendars", "check", "c", "--timezone", "Mars"))
    sql("""UPDATE pgbeat.calendars SET definition = '{"x": 1}'""")
    assert "'x'" in refused(run(database, "calendars", "check", "c"))
