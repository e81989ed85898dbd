"""Flower's tasks from the history: the events that executions were, and which Flower lacks."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection
from tornado.ioloop import IOLoop

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import MASK, Redactor
from pgbeat.integrations.flower_history import TaskEvents, histories
from pgbeat.jobs.running import executions
from tests.support.command_line import Sql
from tests.support.rows import ago, make_execution, make_job

NOBODY = Redactor(Actor("program:tests"), {}, {})


@pytest.fixture
def loop() -> Iterator[IOLoop]:
    loop = IOLoop(make_current=False)
    yield loop
    loop.close(all_fds=True)


@pytest.fixture
def flower(app: Celery, loop: IOLoop) -> TaskEvents:
    """Flower's events, of an app that masks an argument, with room for three tasks."""
    app.conf.pgbeat_redact = {"jobs.pay": ["card"]}
    return TaskEvents(app, io_loop=loop, max_tasks_in_memory=3)


def ran(sql: Sql, state: str, **values: Any) -> str:
    """Makes a job with one execution, which began a minute ago; returns its id."""
    job = make_job(sql, values.pop("job_state", state), **values.pop("job", {}))
    make_execution(sql, job, state, **{"started_at": ago(sql, "1 minute"), **values})
    return job


def read(connection: Connection, redactor: Redactor = NOBODY, limit: int = 100) -> Any:
    return histories(executions.of_all(connection, "default", limit=limit), redactor)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("task-") for event in events]


@pytest.mark.parametrize(
    ("state", "job_state", "end"),
    [
        ("running", "running", []),
        ("completed", "completed", ["succeeded"]),
        ("failed", "failed", ["failed"]),
        ("failed", "scheduled", ["retried"]),
        ("snoozed", "scheduled", ["retried"]),
        ("cancelled", "cancelled", ["revoked"]),
        ("skipped", "skipped", ["revoked"]),
    ],
)
def test_an_execution_is_the_events_that_it_was(
    sql: Sql, connection: Connection, state: str, job_state: str, end: list[str]
) -> None:
    job = ran(
        sql,
        state,
        job_state=job_state,
        job={"args": "[1, [2]]", "kwargs": '{"x": "y"}'},
        duration_ms=1500 if end else None,
        result="7" if state == "completed" else None,
        error="ValueError: no" if state == "failed" else None,
        traceback="Traceback" if state == "failed" else None,
        retry_attempt=2,
    )
    [(task_id, history)] = read(connection).items()
    assert (task_id, kinds(history)) == (job, ["received", "started", *end])
    received, _, *rest = history
    assert (received["name"], received["args"]) == ("jobs.add", "(1, [2])")
    assert (received["kwargs"], received["retries"]) == ("{'x': 'y'}", 2)
    [(began, ended)] = sql("SELECT started_at, finished_at FROM pgbeat.executions")
    assert [event["timestamp"] for event in history[:2]] == [began.timestamp()] * 2
    assert [event["timestamp"] for event in rest] == ([ended.timestamp()] if end else [])
    assert {event["hostname"] for event in history} == {"w"}
    said = {key: rest[0].get(key) for key in ("result", "runtime", "exception")} if end else {}
    if state == "completed":
        assert said == {"result": "7", "runtime": 1.5, "exception": None}
    if state == "failed":
        assert (said["exception"], rest[0]["traceback"]) == ("ValueError: no", "Traceback")


def test_what_was_tried_again_is_a_retry(sql: Sql, connection: Connection) -> None:
    """Also if its worker died, and Celery sent no event."""
    job = make_job(sql, "completed")
    for number, state in enumerate(("failed", "completed"), 1):
        began = ago(sql, f"{9 - number} minutes")
        lost = state == "failed"
        make_execution(sql, job, state, number=number, started_at=began, lost=lost)
    assert kinds(read(connection)[job]) == [
        *("received", "started", "retried"),
        *("received", "started", "succeeded"),
    ]


def test_the_newest_of_the_namespace_are_read(sql: Sql, connection: Connection) -> None:
    jobs = [ran(sql, "completed", started_at=ago(sql, f"{9 - n} minutes")) for n in range(4)]
    ran(sql, "completed", job={"namespace": "other"})
    assert list(read(connection, limit=3)) == jobs[1:]


def test_arguments_that_are_not_json_are_not_shown(sql: Sql, connection: Connection) -> None:
    ran(sql, "running", job={"args": None, "kwargs": None})
    [[received, _]] = read(connection).values()
    assert (received["args"], received["kwargs"]) == (None, None)


def test_masks_are_those_of_the_console(sql: Sql, connection: Connection, app: Celery) -> None:
    @app.task(name="jobs.pay", shared=False)
    def pay(amount: int, card: str) -> None: ...

    rules = {"jobs.pay": ("card",), "jobs.secret": ("*",)}
    redactor = Redactor(Actor("program:tests"), rules, app.tasks)
    paid = {"task": "jobs.pay", "args": '[7, "4111"]', "kwargs": '{"card": "4112"}'}
    job = ran(sql, "completed", job=paid, result="'4111'")
    secret = ran(sql, "failed", job={"task": "jobs.secret"}, error="KeyError: x", traceback="x")
    found = read(connection, redactor)
    received, _, end = found[job]
    assert (received["args"], received["kwargs"]) == (f"(7, '{MASK}')", f"{{'card': '{MASK}'}}")
    assert end["result"] == MASK
    received, _, end = found[secret]
    assert received["args"] == f"('{MASK}',)"
    assert (end["exception"], end["traceback"]) == (f"KeyError: {MASK}", MASK)


def live(kind: str, uuid: str, at: float, **fields: Any) -> dict[str, Any]:
    common = {"hostname": "w", "clock": 7, "local_received": at, "utcoffset": 0, "pid": 1}
    return {"type": f"task-{kind}", "uuid": uuid, "timestamp": at, **common, **fields}


def counts(flower: TaskEvents) -> dict[str, int]:
    return {kind: n for of in flower.state.counter.values() for kind, n in of.items()}


def test_only_what_flower_lacks_is_added(
    sql: Sql, connection: Connection, flower: TaskEvents
) -> None:
    seen, begun, new = (ran(sql, "completed", result="9") for _ in range(3))
    [(began,)] = sql("SELECT started_at FROM pgbeat.executions LIMIT 1")
    at = began.timestamp()
    for event in (
        live("received", seen, at - 5, name="jobs.add", args="(3,)", kwargs="{}"),
        live("started", seen, at - 0.1),
        live("succeeded", seen, at + 59.5, result="9", runtime=1.0),
        live("started", begun, at),
    ):
        flower._see(event)
    known, told = flower.state.tasks[seen].as_dict(), counts(flower)
    for _ in range(2):
        for task_id, history in read(connection).items():
            flower._remember(task_id, history)
    assert flower.state.tasks[seen].as_dict() == known
    assert counts(flower) == told == {"task-received": 1, "task-started": 2, "task-succeeded": 1}
    tasks = {key: flower.state.tasks[key] for key in (seen, begun, new)}
    assert {task.state for task in tasks.values()} == {"SUCCESS"}
    assert {task.name for task in tasks.values()} == {"jobs.add"}


def test_an_old_retry_does_not_undo_what_came_after_it(
    sql: Sql, connection: Connection, flower: TaskEvents
) -> None:
    job = ran(sql, "failed", job_state="scheduled")
    history = read(connection)[job]
    flower._see(live("started", job, history[-1]["timestamp"] + 9))
    flower._remember(job, history)
    assert flower.state.tasks[job].state == "STARTED"


def test_there_are_never_more_tasks_than_flower_keeps(
    sql: Sql, connection: Connection, flower: TaskEvents
) -> None:
    old = [str(uuid4()) for _ in range(2)]
    for task_id in old:
        flower._see(live("received", task_id, 1.0, name="jobs.old", args="()", kwargs="{}"))
    new = [ran(sql, "completed", started_at=ago(sql, f"{9 - n} minutes")) for n in range(3)]
    for task_id, history in read(connection).items():
        flower._remember(task_id, history)
    assert list(flower.state.tasks) == new
    page = flower.state.search_engine.search(flower.state.tasks)
    assert sorted(page.task_ids) == sorted(new)
    assert set(flower.state.search_engine.documents) == set(new)
    assert not flower.state.workers["w"].alive  # what it did once is no sign of life


def test_what_comes_live_is_masked_as_well(flower: TaskEvents) -> None:
    task_id, unknown = str(uuid4()), str(uuid4())
    flower._see(live("received", task_id, 1.0, name="jobs.pay", args="(1, '4111')", kwargs="{}"))
    flower._see(live("succeeded", task_id, 2.0, result="'4111'", runtime=1.0))
    flower._see(live("failed", unknown, 2.0, exception="ValueError('4111')", traceback="4111"))
    assert "4111" not in str([task.as_dict() for task in flower.state.tasks.values()])
    assert flower.state.tasks[unknown].exception == f"ValueError: {MASK}"


def test_a_flower_without_pgbeat_s_settings_starts(
    loop: IOLoop, caplog: pytest.LogCaptureFixture
) -> None:
    other = Celery("other", broker="memory://", set_as_current=False)
    flower = TaskEvents(other, io_loop=loop, max_tasks_in_memory=3)
    flower._see(live("received", str(uuid4()), 1.0, name="a", args="(1,)", kwargs="{}"))
    assert [task.args for task in flower.state.tasks.values()] == ["(1,)"]
    assert "pgbeat_url" in caplog.text
