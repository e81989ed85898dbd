"""`pgbeat pause|resume|enable|disable --all`."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import Celery

from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.rows import make_schedule


@contextmanager
def unchanged(sql: Sql) -> Iterator[None]:
    query = "SELECT name, enabled, paused_at, disabled_reason FROM pgbeat.schedules ORDER BY name"
    before = sql(query)
    yield
    assert sql(query) == before


@pytest.mark.parametrize(
    ("verb", "past", "names"),
    [
        ("pause", "paused", ["broken", "on"]),
        ("resume", "resumed", ["held", "over"]),
        ("enable", "enabled", ["broken"]),
        ("disable", "disabled", ["held", "on"]),
    ],
)
def test_all_schedules_need_an_administrator_who_is_sure(
    database: str, sql: Sql, verb: str, past: str, names: list[str]
) -> None:
    for name in ("on", "held", "broken", "over"):
        make_schedule(sql, name)
    sql("UPDATE pgbeat.schedules SET paused_at = now() WHERE name IN ('held', 'over')")
    sql("UPDATE pgbeat.schedules SET enabled = false WHERE name = 'broken'")
    sql(
        "UPDATE pgbeat.schedules SET enabled = false, paused_at = now(), completed_at = now() "
        "WHERE name = 'over'"
    )
    what = f"{len(names)} schedule{'s' * (len(names) > 1)}"
    with unchanged(sql):
        said = refused(run(database, verb, "--all", "--yes"), 1)
        assert said == f"can't {verb} all schedules: that is for administrators (--admin)"
        asked = run(database, verb, "--all", "--admin", input="n\n")
        assert asked.stdout == (f"{verb.capitalize()} {what}? [y/N]: n\nNothing is {past}.\n")
        tried = run(database, verb, "--all", "--admin", "--dry-run")
        assert tried.stdout == f"Would {verb} {what}.\n"
        shown = read(database, verb, "--all", "--admin", "--dry-run")
        assert [row["name"] for row in shown] == names
        for wrong in ((), ("on", "--all"), ("on", "--dry-run")):
            assert run(database, verb, *wrong).exit_code == 2
    done = run(database, verb, "--all", "--admin", "--yes")
    assert done.stdout == f"{past.capitalize()} {what}.\n"
    again = run(database, verb, "--all", "--admin")
    assert again.stdout == f"{past.capitalize()} 0 schedules.\n"


def test_a_reason_selects(database: str, sql: Sql) -> None:
    for name in ("a", "b"):
        make_schedule(sql, name)
        run(database, "disable", name, "--reason", f"because of {name}")
    enabled = read(database, "enable", "--all", "--reason", "because of b", "--yes", "--admin")
    assert [row["name"] for row in enabled] == ["b"]
    assert "goes with --all" in refused(run(database, "enable", "a", "--reason", "x"))


def test_a_worker_is_looked_for_before_it_asks(app: Celery) -> None:
    said = refused(run_with(app, "workers", "shutdown", "celery@nowhere"), 1)
    assert (
        said
        == "there is no living worker 'celery@nowhere'; `pgbeat workers` shows all living workers"
    )
