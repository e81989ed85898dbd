"""What the trace reads: retries, pauses in the audit log, dependencies, and many executions."""

from typing import Any

import pytest
from sqlalchemy import Connection

from pgbeat.access.redaction import MASK, Redactor
from pgbeat.database import connections
from pgbeat.jobs.explaining import trace_rows
from pgbeat.jobs.explaining.trace import Trace
from pgbeat.jobs.rows import model
from pgbeat.jobs.running import steps
from tests.support.jobs import ADMIN, ALICE
from tests.support.rows import Sql, insert, make_execution, make_job

EVERYTHING = Redactor(ADMIN, {}, {})
START = "2026-11-23T12:00:"


def at(second: int) -> str:
    return f"{START}{second:02}Z"


def made(sql: Sql, state: str, created: int, finished: int | None, **values: object) -> str:
    times = {"dispatched_at": created, "started_at": None, "finished_at": finished} | values
    for name in ("dispatched_at", "started_at", "finished_at"):
        second = times[name]
        times[name] = at(second) if isinstance(second, int) else None
    return make_job(sql, state, **{"created_at": at(created), **times})


def ran(sql: Sql, job_id: str, begin: int, end: int, state: str, number: int = 1) -> None:
    times = {"started_at": at(begin), "finished_at": at(end)}
    make_execution(sql, job_id, state, number=number, worker="w1", **times)


def trace_of(connection: Connection, job_id: str, redactor: Redactor = EVERYTHING) -> Trace:
    job = model.get(connection, job_id)
    known = steps.of_job(connection, redactor, job)
    return trace_rows.of_job(connection, redactor, job, connections.now(connection), known)


def shape(trace: Trace) -> list[tuple[str, int, int | None]]:
    return [
        (each.kind, each.begin.second, None if each.end is None else each.end.second)
        for each in trace.phases
        if not each.is_moment
    ]


def test_a_retry_backs_off_as_its_policy_says(sql: Sql, connection: Connection) -> None:
    """Also when its row has no such time any more; from whichever of the jobs one asks."""
    policy = {"retry_base": "10 seconds", "max_attempts": 2}
    first = made(sql, "failed", 0, 2, started_at=1, **policy)
    second = made(sql, "completed", 2, 15, started_at=14, retry_of=first, attempt=2, **policy)
    sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s RETURNING id", second, first)
    ran(sql, first, 1, 2, "failed")
    ran(sql, second, 14, 15, "completed")
    expected = [
        ("queue", 0, 1),
        ("running", 1, 2),
        ("backoff", 2, 12),
        ("queue", 12, 14),
        ("running", 14, 15),
    ]
    assert shape(trace_of(connection, first)) == shape(trace_of(connection, second)) == expected


def test_pauses_and_due_times_come_from_the_audit_log(sql: Sql, connection: Connection) -> None:
    job_id = made(sql, "completed", 0, 30, started_at=29, lane="gpu", dispatched_at=25)
    ran(sql, job_id, 29, 30, "completed")
    for verb, second, after in (
        ("create", 0, f'{{"run_at": "{at(10)}"}}'),
        ("pause", 4, "{}"),
        ("resume", 6, "{}"),
        ("update", 7, f'{{"run_at": "{at(12)}"}}'),
    ):
        of_job = {"actor": "user:a", "origin": "cli", "kind": "job", "subject": job_id}
        insert(sql, "audit", of_job | {"at": at(second), "verb": verb, "after": after}, "id")
    assert shape(trace_of(connection, job_id)) == [
        ("scheduled", 0, 4),
        ("paused", 4, 6),
        ("scheduled", 6, 12),
        ("lane", 12, 25),
        ("queue", 25, 29),
        ("running", 29, 30),
    ]


def test_it_waits_for_its_parents(sql: Sql, connection: Connection) -> None:
    parent = made(sql, "completed", 0, 8, started_at=1)
    child = made(sql, "completed", 0, 12, started_at=11, lane="gpu", dispatched_at=10)
    sql(
        "INSERT INTO pgbeat.dependencies (job_id, parent_id, outcome)"
        " VALUES (%s, %s, 'completed') RETURNING id",
        child,
        parent,
    )
    ran(sql, child, 11, 12, "completed")
    assert shape(trace_of(connection, child)) == [
        ("blocked", 0, 8),
        ("lane", 8, 10),
        ("queue", 10, 11),
        ("running", 11, 12),
    ]


def test_only_the_newest_executions(
    sql: Sql, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of what lies before them."""
    monkeypatch.setattr(trace_rows, "MOST", 2)
    first = made(sql, "failed", 0, 2, started_at=1)
    second = made(sql, "completed", 2, 20, started_at=3, retry_of=first)
    ran(sql, first, 1, 2, "failed")
    for number in (1, 2, 3):
        state = "completed" if number == 3 else "snoozed"
        ran(sql, second, 5 * number, 5 * number + 1, state, number)
    found = trace_of(connection, second)
    assert not found.is_whole
    assert shape(found)[:3] == [("running", 10, 11), ("snoozed", 11, 15), ("running", 15, 16)]


def stepped(sql: Sql, root: str, kind: str, name: str, *times: int | None, **values: Any) -> None:
    """Records a step by the seconds at which it began, would be over, and was."""
    row: dict[str, Any] = {"root_id": root, "job_id": root, "namespace": "default", "n": 1}
    for column, second in zip(("began_at", "until", "finished_at"), times, strict=True):
        row[column] = None if second is None else at(second)
    insert(sql, "steps", {**row, "kind": kind, "name": name, **values}, "id")


@pytest.fixture
def an_order(sql: Sql) -> str:
    """A job that paid, waited for an event, slept and was tried again, its steps out of order."""
    first = made(sql, "failed", 0, 22, started_at=1, dispatched_at=20)
    second = made(sql, "completed", 22, 30, started_at=23, retry_of=first, attempt=2)
    sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s RETURNING id", second, first)
    ran(sql, first, 1, 4, "snoozed")
    ran(sql, first, 11, 12, "snoozed", 2)
    ran(sql, first, 21, 22, "failed", 3)
    ran(sql, second, 23, 30, "completed")
    sql(
        """UPDATE pgbeat.executions SET metadata = '{"steps_out_of_order": "paid/7 came early"}'
            WHERE job_id = %s RETURNING id""",
        second,
    )
    json = {"content_type": "application/json", "content_encoding": "utf-8"}
    stepped(sql, first, "step", "charge", 2, None, 3, value=b"[1]", **json)
    stepped(sql, first, "wait", "paid/7", 4, 59, 10, event='{"card": 12}')
    stepped(sql, first, "sleep", "sleep", 12, 20, 21)
    stepped(sql, first, "step", "mail", 25, None, 26, value=b"null", **json)
    return second


def test_steps_sleeps_and_waits(sql: Sql, connection: Connection, an_order: str) -> None:
    found = trace_of(connection, an_order)
    assert shape(found) == [
        ("queue", 0, 1),
        ("running", 1, 4),
        ("step", 2, 3),
        ("wait", 4, 10),
        ("queue", 10, 11),
        ("running", 11, 12),
        ("sleep", 12, 20),
        ("queue", 20, 21),
        ("running", 21, 22),
        ("backoff", 22, 23),
        ("running", 23, 30),
        ("step", 25, 26),
    ]
    told = [(each.words, each.brief_value, each.note) for each in found.phases]
    assert ("step charge", "[1]", None) in told
    assert ("waiting for event paid/7", '{"card": 12}', None) in told
    assert ("sleeping", "", None) in told
    assert ("running on w1", "", "paid/7 came early") in told


def test_steps_are_masked(sql: Sql, connection: Connection, an_order: str) -> None:
    """Values by their names, and keys of events as other texts."""
    redactor = Redactor(ALICE, {"*": ("card",)}, {})
    told = {
        (each.where, each.brief_value, each.note)
        for each in trace_of(connection, an_order, redactor).phases
        if each.kind in ("wait", "step", "running")
    }
    assert (MASK, f'{{"card": "{MASK}"}}', None) in told
    assert ("charge", f'"{MASK}"', None) in told
    assert ("w1", "", MASK) in told
    assert "paid/7" not in str(told)
