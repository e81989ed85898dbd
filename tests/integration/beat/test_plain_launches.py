"""Plain launches are one statement, evaluated a batch ahead: what is written, what is refused."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish
from psycopg.types.json import Jsonb

from pgbeat.beat.scheduler import Scheduler
from pgbeat.database import connections
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.schedulers import HOUR, START, At, add, row, said

#: Columns that say when something was written, or in which order.
TIMES = {
    "created_at",
    "updated_at",
    "dispatched_at",
    "decided_at",
    "position",
    "enqueued_at",
    "timestamp",
    "last_run",
    "last_success",
}


class Watched(Scheduler):
    """Notes the steps of its passes, and does something at one of them, once."""

    def __init__(self, app: Celery) -> None:
        self.steps: list[str] = []
        self.actions: dict[str, Callable[[], Any]] = {}
        super().__init__(app=app)

    def reached(self, step: str) -> None:
        self.steps.append(step)
        self.actions.pop(step, lambda: None)()

    @property
    def is_step_by_step(self) -> bool:
        """Whether something was written step by step since the last call."""
        steps, self.steps = self.steps, []
        return "before commit" in steps


@pytest.fixture
def watched(app: Celery) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(**settings: Any) -> Watched:
        app.conf.update(settings)
        made.append(Watched(app))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def written(sql: Sql) -> dict[str, list[dict[str, Any]]]:
    """All rows of a launch, without their times; payloads without what is random."""
    found = {}
    for table, order in (
        ("pgbeat.ticks", "schedule"),
        ("pgbeat.jobs", "schedule"),
        ("pgbeat.schedules", "name"),
        ("kombu_message", "job_id"),
    ):
        rows = [r[0] for r in sql(f"SELECT to_jsonb(t) FROM {table} t ORDER BY {order}")]
        found[table] = [{k: v for k, v in r.items() if k not in TIMES} for r in rows]
    for message in found["kombu_message"]:
        del message["id"]
        message["expires_at"] = message["expires_at"] is not None
        payload = message["payload"] = json.loads(message["payload"])
        del payload["properties"]["delivery_tag"]
    for tick in found["pgbeat.ticks"]:
        del tick["id"]
    return found


def add_one_of_each(sql: Sql) -> None:
    add(sql, "interval")
    add(sql, 'cron, "quoted" 100 % é', cron="0 * * * *", timezone="Europe/Oslo")
    add(sql, "first", every="1 hour", starts_at=START)  # no due time is before its first
    add(sql, "arguments", args=Jsonb(["50 %s %(id)s ä\n"]), kwargs=Jsonb({"y": [None]}))
    add(sql, "queue", queue="other", options=Jsonb({"priority": 7, "expiration": 60}))
    add(sql, "labels", labels=Jsonb({"team": "a"}))
    add(sql, "late", next_run=START - 3 * HOUR)
    add(sql, "jitter", jitter="10 minutes", next_run=START, due_at=START - HOUR / 10)
    add(sql, "limited", max_runs=3)
    add(sql, "condition", condition_sql="SELECT true")
    sql("UPDATE pgbeat.schedules SET next_run = coalesce(next_run, %s)", START)


def test_it_writes_what_is_written_step_by_step(at: At, sql: Sql) -> None:
    def celery_makes_each(**kwargs: Any) -> None: ...

    add_one_of_each(sql)
    before = sql("SELECT to_jsonb(s) FROM pgbeat.schedules s ORDER BY id")
    outcomes = []
    for receivers in ([], [celery_makes_each]):
        scheduler = at()
        scheduler.run_due()  # creates the queues
        for table in ("pgbeat.ticks", "pgbeat.jobs", "pgbeat.schedules", "kombu_message"):
            sql(f"DELETE FROM {table}")
        for [schedule] in before:
            sql(
                "INSERT INTO pgbeat.schedules SELECT * FROM jsonb_populate_record("
                "NULL::pgbeat.schedules, %s)",
                Jsonb(schedule),
            )
        for receiver in receivers:
            before_task_publish.connect(receiver, weak=False)
        try:
            scheduler.run_due()
        finally:
            for receiver in receivers:
                before_task_publish.disconnect(receiver)
        outcomes.append(written(sql))
        scheduler.close()
    assert len(outcomes[0]["kombu_message"]) == 10
    assert outcomes[0] == outcomes[1]


def test_most_launches_are_plain(watched: Callable[..., Watched], sql: Sql) -> None:
    for number in range(3):
        add(sql, f"s{number}", next_run="now", due_at="now", labels=Jsonb({"number": str(number)}))
    late = START - 30 * HOUR * 24 * 365
    add(sql, "late", next_run=late, due_at=late, starts_at=START - HOUR * 24 * 3650)
    scheduler = watched()
    assert scheduler.run_due() == 4
    assert not scheduler.is_step_by_step
    assert sql("SELECT missed > 0 FROM pgbeat.ticks WHERE note LIKE '%missed%'") == [(True,)]
    add(sql, "policy", next_run="now", overlap="skip")
    assert scheduler.run_due() == 1
    assert scheduler.is_step_by_step


def test_a_row_that_changes_before_it_is_written_is_decided_again(
    watched: Callable[..., Watched], sql: Sql
) -> None:
    for name in "abc":
        add(sql, name, next_run="now")
    scheduler = watched()
    scheduler.actions["after conditions"] = lambda: sql(
        "UPDATE pgbeat.schedules SET kwargs = '{\"x\": 1}' WHERE name = 'b'"
    )
    assert scheduler.run_due() == 3
    assert scheduler.is_step_by_step
    launched = "SELECT schedule, kwargs FROM pgbeat.jobs ORDER BY schedule"
    assert sql(launched) == [("a", {}), ("b", {"x": 1}), ("c", {})]
    assert sql("SELECT count(*) FROM kombu_message") == [(3,)]


def test_a_decided_due_time_is_not_launched_again(
    watched: Callable[..., Watched], sql: Sql
) -> None:
    for name in "ab":
        add(sql, name, next_run="now", due_at="now")
    sql(
        "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, reason) "
        "SELECT id, name, next_run, 'skipped', 'by hand' FROM pgbeat.schedules WHERE name = 'a'"
    )
    scheduler = watched()
    assert scheduler.run_due() == 1
    assert sql("SELECT schedule FROM pgbeat.jobs") == [("b",)]
    assert sql("SELECT count(*) FROM pgbeat.schedules WHERE next_run <= now()") == [(0,)]


def test_a_queue_that_is_missing_is_created(watched: Callable[..., Watched], sql: Sql) -> None:
    add(sql, "a", next_run="now", queue="fresh")
    scheduler = watched()
    assert scheduler.run_due() == 1
    assert scheduler.is_step_by_step
    in_queue = (
        "SELECT count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "WHERE q.name = 'fresh'"
    )
    assert sql(in_queue) == [(1,)]
    sql("UPDATE pgbeat.schedules SET next_run = now(), starts_at = now()")
    assert scheduler.run_due() == 1
    assert not scheduler.is_step_by_step
    assert sql(in_queue) == [(2,)]


def test_a_rollback_ends_no_fast_launches(watched: Callable[..., Watched], sql: Sql) -> None:
    """After psycopg's ROLLBACK the session has no prepared statements."""
    add(sql, "a", next_run="now")
    scheduler = watched()
    for _ in range(8):  # until psycopg has prepared statements of its own
        sql("UPDATE pgbeat.schedules SET next_run = now(), starts_at = now()")
        assert scheduler.run_due() == 1
    assert not scheduler.is_step_by_step
    with suppress(ZeroDivisionError), connections.transaction(scheduler._leader.connect()):
        raise ZeroDivisionError
    for _ in range(2):
        sql("UPDATE pgbeat.schedules SET next_run = now(), starts_at = now()")
        assert scheduler.run_due() == 1
        assert not scheduler.is_step_by_step


def test_batches_are_evaluated_ahead_and_launched_once(
    watched: Callable[..., Watched], sql: Sql
) -> None:
    """A row of the batch after the one that is written changes meanwhile."""
    for number in range(25):
        condition = "SELECT true" if number % 5 == 4 else None
        add(sql, f"s{number:02}", next_run="now", condition_sql=condition)
    sql("UPDATE pgbeat.schedules SET next_run = next_run + id * interval '1 us'")
    scheduler = watched(pgbeat_batch_size=10)
    scheduler.actions["after commit"] = lambda: sql(
        "UPDATE pgbeat.schedules SET kwargs = '{\"x\": 1}' WHERE name = 's15'"
    )
    until(lambda: scheduler.run_due() == 0)
    launched = "SELECT schedule, kwargs FROM pgbeat.jobs ORDER BY schedule"
    assert sql(launched) == [
        (f"s{number:02}", {"x": 1} if number == 15 else {}) for number in range(25)
    ]
    assert sql("SELECT count(DISTINCT job_id), count(*) FROM kombu_message") == [(25, 25)]


def test_what_was_evaluated_ahead_long_ago_is_evaluated_anew(at: At, app: Celery, sql: Sql) -> None:
    app.conf.pgbeat_batch_size = 2
    for number in range(4):
        add(sql, f"s{number}", next_run=START)
    scheduler = at()
    scheduler.tick()
    assert said(scheduler.ticks) == [("launched", 0)] * 2
    scheduler.advance(timedelta(hours=2))
    del scheduler.ticks[:]
    scheduler.run_due()
    assert sorted(said(scheduler.ticks)) == [("launched", 1)] * 2 + [("launched", 2)] * 2
    assert row(sql, "next_run", "s3") == (START + 3 * HOUR,)
