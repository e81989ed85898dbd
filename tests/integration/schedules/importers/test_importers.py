"""Moving in: what schedules of other beats become, and what is done with them."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.schedules import control, writes
from pgbeat.schedules import model as schedules
from pgbeat.schedules.importers import imported, plan, rows, timetables
from pgbeat.schedules.importers.imported import BY_HAND, Arrival
from pgbeat.schedules.importers.plan import Action, Circumstances, ImportStep
from pgbeat.schedules.importers.timetables import When
from tests.support.rows import unit_on
from tests.unit.schedules.importers.test_importers import arrival, inventory

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TASK = "tests.add"


CRON = When({"cron": "0 * * * *", "timezone": "UTC"})


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A connection; `move` commits."""
    with connections.engine(postgres_url(database), "tests").connect() as connection:
        yield connection


def move(connection: Connection, *found: Arrival, **now: Any) -> list[ImportStep]:
    """Does it, in a transaction of its own."""
    connection.commit()
    there = schedules.named(connection, rows.wanted_names(inventory(*found)), for_update=True)
    clock = connections.now(connection)
    made = plan.plan(inventory(*found), Circumstances(**{"now": clock, "rows": there, **now}))
    came_out = rows.apply(connection, made, namespace="default")
    connection.commit()
    return came_out


def test_a_row_is_made_with_all_that_it_was(connection: Connection) -> None:
    ran = connections.now(connection) - timedelta(minutes=10)
    when = timetables.of_interval(HOUR)
    what = {"args": [1], "kwargs": {"y": 2}, "options": {"priority": 3}, "queue": "slow"}
    [step] = move(connection, arrival("a/b", when, what=what, last_run=ran, run_count=12))
    assert step.action is Action.ADD
    row = schedules.get(connection, "a-b")
    assert (row.task, row.args, row.kwargs, row.options, row.queue) == (
        TASK,
        [1],
        {"y": 2},
        {"priority": 3},
        "slow",
    )
    assert (row.every, row.starts_at, row.last_run, row.next_run) == (HOUR, ran, ran, ran + HOUR)
    assert (row.run_count, row.source, row.enabled) == (12, "import", True)


def test_again_there_is_nothing_to_do(connection: Connection) -> None:
    ran = connections.now(connection)
    found = [
        arrival("a", last_run=ran),
        arrival("b", CRON, last_run=ran, what={"ends_at": ran + DAY, "max_runs": 5}),
        arrival("c", disabled_reason="disabled in Old"),
        arrival("d", When({"once_at": ran}), last_run=ran, disabled_reason="done: it ran"),
        arrival("e", timetables.of_interval(DAY, relative=True, timezone="Asia/Tokyo")),
    ]
    assert {step.action for step in move(connection, *found)} == {Action.ADD}
    assert {step.action for step in move(connection, *found)} == {Action.NOTHING}
    assert {step.action for step in move(connection, *found, overwrite=True)} == {Action.NOTHING}


def test_what_ran_meanwhile_is_carried_over(connection: Connection) -> None:
    ran = connections.now(connection) - 2 * HOUR
    move(connection, arrival("a", last_run=ran, run_count=1), arrival("b", CRON, last_run=ran))
    later = ran + HOUR
    made = move(
        connection, arrival("a", last_run=later, run_count=2), arrival("b", CRON, last_run=later)
    )
    assert {step.action for step in made} == {Action.CARRY_OVER}
    row = schedules.get(connection, "a")
    assert (row.last_run, row.next_run, row.run_count) == (later, later + HOUR, 2)
    assert schedules.get(connection, "b").next_run == full_hour(later)


def full_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0) + HOUR


def test_what_ran_once_and_was_disabled_meanwhile_does_not_run_again(
    connection: Connection,
) -> None:
    once_at = connections.now(connection) + HOUR
    clock = When({"once_at": once_at})
    move(connection, arrival(when=clock, since=imported.before(once_at)))
    [step] = move(connection, arrival(when=clock, disabled_reason="disabled in Old"))
    assert step.action is Action.CARRY_OVER
    row = schedules.get(connection, "s")
    assert (row.enabled, row.disabled_reason) == (False, "disabled in Old")


def test_what_people_enabled_here_is_theirs(connection: Connection) -> None:
    found = arrival(disabled_reason=min(BY_HAND))
    move(connection, found)
    control.enable(unit_on(connection), "s")
    [step] = move(connection, found)
    assert step.action is Action.CONFLICT
    assert step.reason == ("it was imported before and differs in enabled; --overwrite replaces it")


def test_what_is_done_there_and_was_enabled_here_is_left_to_people(connection: Connection) -> None:
    ran = connections.now(connection) - HOUR
    done = arrival(
        when=CRON, last_run=ran, run_count=1, what={"max_runs": 1}, disabled_reason="done: it ran"
    )
    move(connection, done)
    control.enable(unit_on(connection), "s")
    [step] = move(connection, done)
    assert step.action is Action.NOTHING
    assert schedules.get(connection, "s").enabled


def test_an_import_is_replaced_only_if_asked_for(connection: Connection) -> None:
    ran = connections.now(connection)
    move(connection, arrival(last_run=ran, run_count=7))
    changed = arrival(when=CRON, what={"args": [1]}, last_run=ran - DAY, run_count=3)
    [step] = move(connection, changed)
    assert step.action is Action.CONFLICT
    assert "differs in args, cron, every, timezone" in (step.reason or "")
    assert schedules.get(connection, "s").cron is None
    [step] = move(connection, changed, overwrite=True)
    assert step.action is Action.REPLACE
    row = schedules.get(connection, "s")
    assert (row.cron, row.every, row.args, row.starts_at) == ("0 * * * *", None, [1], None)
    # What ran here last counts, not what ran there before.
    assert (row.last_run, row.next_run, row.run_count) == (ran, full_hour(ran), 7)


def test_rows_made_elsewhere_are_left_alone(connection: Connection) -> None:
    writes.add(connection, "s", source="cli", task="tests.note", every=DAY)
    [step] = move(connection, arrival(last_run=connections.now(connection)), overwrite=True)
    assert step.action is Action.CONFLICT
    assert step.reason == "there is a schedule of that name, made elsewhere (source 'cli')"
    assert schedules.get(connection, "s").task == "tests.note"


def test_what_the_database_refuses_is_listed_and_the_rest_moves(connection: Connection) -> None:
    found = [arrival(f"s{number}") for number in range(20)]
    found[7] = arrival("s7", what={"task": "a\nb"})
    found[13] = arrival("s13", what={"task": "x" * 300})
    made = move(connection, *found)
    refused = [step for step in made if step.action is Action.REFUSE]
    assert [step.origin for step in refused] == ["s7", "s13"]
    assert all("is not a task's name" in (step.reason or "") for step in refused)
    assert len(schedules.listing(connection)) == 18


def test_namespaces_are_apart(connection: Connection) -> None:
    writes.add(connection, "s", source="cli", namespace="other", task=TASK, every=DAY)
    [step] = move(connection, arrival())
    assert step.action is Action.ADD
    assert len(schedules.listing(connection, namespace="other")) == 1
