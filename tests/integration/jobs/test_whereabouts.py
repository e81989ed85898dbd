"""Whereabouts: where a job is, and why it isn't running, in a word and in a sentence."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.jobs.explaining import explain as whereabouts
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.states import retries
from tests.support.command_line import Sql
from tests.support.rows import make_job, make_lane

AGO = "now() - interval '2 hours 30 s'"


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A session in a transaction."""
    with connections.engine(postgres_url(database), "tests").begin() as connection:
        yield connection


def where(connection: Connection, job: str) -> tuple[str, str]:
    connection.execute(text("COMMIT AND CHAIN"))  # what others wrote, and their time
    row = jobs.get(connection, job)
    found = whereabouts.of_job(connection, row, connections.now(connection))
    return found.cause, found.sentence


def put(sql: Sql, job: str, changes: str) -> None:
    sql(f"UPDATE pgbeat.jobs SET {changes} WHERE id = %s", job)


def test_where_it_is(connection: Connection, sql: Sql) -> None:
    cases: list[tuple[str, str, str, str]] = [
        (
            "pending",
            f"queue = 'slow', dispatched_at = {AGO}",
            "queue",
            "waits in queue 'slow' for a worker, for 2 h",
        ),
        ("pending", f"dispatched_at = {AGO}", "queue", "waits in the broker for a worker, for 2 h"),
        ("pending", "task = task", "outbox", "waits for beat, which sends its message"),
        (
            "pending",
            "is_blocked = true, group_id = '00000000-0000-0000-0000-000000000007'",
            "group",
            "waits for the job before it in group 00000000-0000-0000-0000-000000000007",
        ),
        ("scheduled", "run_at = now() + interval '2 hours 30 s'", "scheduled", "comes in 2 h"),
        ("scheduled", f"run_at = {AGO}", "scheduled", "has been due for 2 h"),
        (
            "scheduled",
            "run_at = now() + interval '2 hours 30 s', retry_of = id, attempt = 2, "
            "max_attempts = 3",
            "retry",
            "is tried again in 2 h, attempt 2 of 3",
        ),
        ("scheduled", "run_at = NULL", "retry", "is retried by Celery for its task"),
        (
            "scheduled",
            f"run_at = {AGO}, started_at = {AGO}, dispatched_at = {AGO}",
            "retry",
            "is retried by Celery for its task; it has been due for 2 h",
        ),
        ("running", f"worker = 'w@h', started_at = {AGO}", "running", "runs on w@h, for 2 h"),
        (
            "running",
            f"worker = 'w@h', cancel_requested_at = {AGO}",
            "cancelling",
            "was cancelled 2 h ago, and still runs on w@h",
        ),
        ("paused", "task = task", "paused", "is paused"),
        ("paused", "awaits_approval = true", "approval", "awaits a person's approval"),
        ("completed", "task = task", "ended", "has completed"),
        ("cancelled", "task = task", "ended", "is cancelled"),
        ("skipped", "task = task", "ended", "was skipped"),
    ]
    for state, changes, cause, sentence in cases:
        job = make_job(sql, state)
        put(sql, job, changes)
        assert where(connection, job) == (cause, sentence)


def test_in_the_line_of_a_lane(connection: Connection, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    make_job(sql, "running", lane="l", dispatched_at="now")
    first, second = make_job(sql, lane="l"), make_job(sql, lane="l")
    full = "the limit of 1 is reached"
    assert where(connection, first) == ("lane", f"waits in lane 'l' at place 1; {full}")
    assert where(connection, second) == ("lane", f"waits in lane 'l' at place 2; {full}")
    put(sql, second, "priority = 1")
    assert where(connection, second)[1].startswith("waits in lane 'l' at place 1;")
    sql("UPDATE pgbeat.lanes SET max_running = 5")  # and nobody has looked at it yet
    assert where(connection, first) == ("lane", "waits in lane 'l' at place 2")
    sql("UPDATE pgbeat.lanes SET paused_at = now()")
    assert where(connection, first) == (
        "lane_paused",
        "waits in lane 'l' at place 2; the lane is paused",
    )
    sql("DELETE FROM pgbeat.lanes")
    assert where(connection, first)[1].endswith("; the lane was removed, and beat dispatches it")


def test_its_own_reason_goes_before_that_of_the_first(connection: Connection, sql: Sql) -> None:
    make_lane(sql, "l", None, policy="tags", options='{"a": 1, "b": 0}')
    make_job(sql, "running", lane="l", tags=["a"], dispatched_at="now")
    first, second = make_job(sql, lane="l", tags=["b"]), make_job(sql, lane="l", tags=["a"])
    said = where(connection, first)[1], where(connection, second)[1]
    assert "'b'" in said[0] and "'a'" not in said[0]
    assert "'a'" in said[1] and "'b'" not in said[1]


def test_a_policy_of_the_apps_code_is_not_asked(connection: Connection, sql: Sql) -> None:
    make_lane(sql, "l", None, policy="TheirOwn")
    assert where(connection, make_job(sql, lane="l")) == (
        "lane",
        "waits in lane 'l' at place 1; its policy 'TheirOwn' is code of the app, which is not "
        "loaded here",
    )


def test_the_last_attempt(connection: Connection, sql: Sql) -> None:
    first = make_job(sql, "failed")
    assert str(getattr(retries.last_attempt(connection, first), "id", None)) == first
    chain = [first]
    for attempt in range(2, 5):
        chain.append(make_job(sql, "failed", retry_of=chain[-1], attempt=attempt))
        sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s", chain[-1], chain[-2])
    connection.execute(text("COMMIT AND CHAIN"))
    for job in chain:
        assert str(getattr(retries.last_attempt(connection, job), "id", None)) == chain[-1]
    # The row that it names may have been pruned, or not be there.
    sql("DELETE FROM pgbeat.jobs WHERE id = %s", chain[-1])
    connection.execute(text("COMMIT AND CHAIN"))
    assert str(getattr(retries.last_attempt(connection, first), "id", None)) == chain[-2]
    sql("DELETE FROM pgbeat.jobs")
    connection.execute(text("COMMIT AND CHAIN"))
    assert retries.last_attempt(connection, first) is None
