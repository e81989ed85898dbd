"""A job of a task keeps the message that Celery made, whatever is done to it while it waits."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from celery import Celery, chain, chord, group

from pgbeat.access.actors import Actor
from pgbeat.broker.payloads import JOB
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.verbs import changes, control
from tests.support.jobs import JobControl, opened_app
from tests.support.rows import Sql, make_lane

LATER = datetime(2040, 1, 1, tzinfo=UTC)
POLICY = {"max_attempts": 3, "retry_base": 60, "priority": 2}


@pytest.fixture
def app(database: str, sql: Sql) -> Iterator[Celery]:
    """An app with tasks that have policies: one that waits in the queue, and one in a lane."""
    make_lane(sql, "one")
    tasks = {"kept.task": POLICY, "kept.in_lane": POLICY | {"lane": "one"}, "kept.other": None}
    results = {"result_backend": f"pgbeat+{database}", "task_ignore_result": False}
    with opened_app(database, tasks, **results) as app:
        yield app


def send(app: Celery, task: Any) -> None:
    """Sends the task in every shape, to be dispatched in an hour, with options of all kinds."""
    other = app.tasks["kept.other"]
    one = task.si(1).set(countdown=3600)
    one.clone().apply_async()
    chain(one.clone(), other.s(), other.s()).apply_async()
    chord([one.clone(), other.si(1)], other.s()).apply_async()
    group(one.clone()).apply_async()
    one.clone().apply_async(link=other.s(), link_error=other.s())
    one.clone().apply_async(
        expires=7200,
        headers={"mine": 1},
        time_limit=9,
        soft_time_limit=8,
        shadow="s",
        ignore_result=True,
        serializer="json",
    )
    one.clone().apply_async(compression="gzip")
    one.clone().apply_async(serializer="yaml")


class Sent(NamedTuple):
    """A message as a worker gets it."""

    headers: dict[str, Any]
    body: str
    priority: int
    available_at: datetime | None
    expires_at: datetime | None

    @property
    def fixed(self) -> tuple[Any, ...]:
        """Returns what must stay whatever is done."""
        own = {"eta", "pgbeat_new_job", "pgbeat_awaited"}
        return self.body, {k: v for k, v in self.headers.items() if k not in own}


def messages(sql: Sql) -> dict[str, Sent]:
    """Returns the messages of the tasks that have a policy, by their ids."""
    found: dict[str, Sent] = {}
    for payload, *columns in sql(
        "SELECT payload, priority, available_at, expires_at FROM kombu_message"
    ):
        read = json.loads(payload)
        if read["headers"]["task"].startswith(("kept.task", "kept.in_lane")):
            found[read["headers"]["id"]] = Sent(read["headers"], read["body"], *columns)
    return found


def pause_and_resume(job_control: JobControl, job_id: str) -> None:
    job = jobs.get(job_control.connection, job_id)
    assert job_control.do(control.pause, job).state == "paused"
    job_control.do(control.resume, job)


def update(job_control: JobControl, job_id: str, **values: Any) -> None:
    job_control.do(changes.update, jobs.get(job_control.connection, job_id), values=values)


def change_all(job_control: JobControl, job_id: str) -> None:
    """Does everything."""
    pause_and_resume(job_control, job_id)
    update(job_control, job_id, priority=7)
    update(job_control, job_id, run_at=LATER)
    pause_and_resume(job_control, job_id)


CHANGES: dict[str, Callable[[JobControl, str], None]] = {
    "pause and resume": pause_and_resume,
    "priority": lambda job_control, job_id: update(job_control, job_id, priority=7),
    "later": lambda job_control, job_id: update(job_control, job_id, run_at=LATER),
    "now": lambda job_control, job_id: update(job_control, job_id, run_at=None),
    "retries": lambda job_control, job_id: update(
        job_control, job_id, max_attempts=9, retry_cap=7200
    ),
    "all": change_all,
}


def test_what_waits_in_the_queue(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """Its time, its priority and its retries change; its canvas and its options stay."""
    changed: dict[str, tuple[str, Sent]] = {}
    for change, make in CHANGES.items():
        send(app, app.tasks["kept.task"])
        new = {job_id: sent for job_id, sent in messages(sql).items() if job_id not in changed}
        assert len(new) == 8
        for job_id in new:
            make(job_control, job_id)
        changed |= {job_id: (change, sent) for job_id, sent in new.items()}
    after = messages(sql)
    for job_id, (change, sent) in changed.items():
        now, job = after[job_id], jobs.get(job_control.connection, job_id)
        assert now.fixed == sent.fixed
        assert now.priority == job.priority == (7 if change in ("priority", "all") else 2)
        eta = sent.available_at
        if change in ("later", "all"):
            eta = LATER
        assert now.available_at == (None if change == "now" else eta)
        assert (now.headers["eta"] is None) == (change == "now")
        assert (now.expires_at is None) == (sent.expires_at is None)
        policy = now.headers["pgbeat_new_job"]["policy"]
        assert policy["max_attempts"] == (9 if change == "retries" else 3)
        assert policy["retry_cap"] == (7200 if change == "retries" else 3600)


def test_what_waits_for_its_lane(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """Told to run now, it does with its slot: not at the time that it was sent for."""
    send(app, app.tasks["kept.in_lane"])
    ids = [str(i) for (i,) in sql("SELECT id FROM pgbeat.unfinished_jobs ORDER BY position")]
    sql("UPDATE pgbeat.lanes SET max_running = NULL")
    for job_id in ids:
        pause_and_resume(job_control, job_id)
        update(job_control, job_id, run_at=None, priority=7)
    found = messages(sql)
    assert len(found) == len(ids) == 8
    for sent in found.values():
        assert (sent.headers["eta"], sent.available_at, sent.priority) == (None, None, 7)


def snoozed(job_control: JobControl, sql: Sql, job_id: str, seconds: float) -> None:
    """Has the job run and snooze, as a worker records it."""
    [(payload,)] = sql("DELETE FROM kombu_message WHERE job_id = %s RETURNING payload", job_id)
    kept = {"queue": "celery", "payload": payload, "priority": 2, "ttl": None}
    kept |= {"exchange": "", "routing_key": ""}
    run = job_control.begins(job_id)
    job_control.tells(run, job_id, "snoozed", "scheduled", runs_in=seconds, message=kept)


@pytest.mark.parametrize("change", ["pause and resume", "priority", "now"])
def test_what_snoozes(app: Celery, sql: Sql, job_control: JobControl, change: str) -> None:
    """It keeps its time, unless it is told to run now."""
    result = chain(app.tasks["kept.task"].si(1), app.tasks["kept.other"].s()).apply_async()
    job_id = str(result.parent.id)
    body = messages(sql)[job_id].body
    snoozed(job_control, sql, job_id, 3600)
    run_at = jobs.get(job_control.connection, job_id).run_at
    assert run_at is not None
    CHANGES[change](job_control, job_id)
    job, sent = jobs.get(job_control.connection, job_id), messages(sql)[job_id]
    assert sent.body == body
    if change == "now":
        assert (job.state, job.run_at, sent.available_at) == ("pending", None, None)
    else:
        assert (job.state, job.run_at, sent.available_at) == ("scheduled", run_at, run_at)


@pytest.mark.parametrize("change", ["pause and resume", "priority", "now"])
def test_what_celery_retries(app: Celery, sql: Sql, job_control: JobControl, change: str) -> None:
    """The same, with the number of its attempt."""
    result = chain(app.tasks["kept.task"].si(1), app.tasks["kept.other"].s()).apply_async()
    job_id = str(result.parent.id)
    sql("DELETE FROM kombu_message")
    run = job_control.begins(job_id)
    retry = app.tasks["kept.task"].si(1).set(task_id=job_id, countdown=3600, retries=1)
    headers = {"pgbeat_job": JOB, "pgbeat_new_job": {"policy": POLICY}}
    retry.apply_async(chain=[app.tasks["kept.other"].s()], headers=headers)
    job_control.tells(run, job_id, "failed", "scheduled", runs_in=3600, error="oops")
    before = messages(sql)[job_id]
    assert before.headers["retries"] == 1
    CHANGES[change](job_control, job_id)
    job, sent = jobs.get(job_control.connection, job_id), messages(sql)[job_id]
    assert sent.fixed == before.fixed
    assert sent.headers["pgbeat_new_job"]["policy"]["max_attempts"] == 3
    if change == "now":
        assert (job.state, job.run_at, sent.available_at) == ("pending", None, None)
        return
    assert job.state == "scheduled" and sent.available_at == job.run_at
    assert sent.available_at - before.available_at < timedelta(seconds=5)  # type: ignore[operator]


def test_a_retry_by_hand_is_sent_with_the_options_of_the_call(
    app: Celery, sql: Sql, job_control: JobControl
) -> None:
    call = app.tasks["kept.task"].si(1).set(time_limit=9, shadow="s", ignore_result=True)
    call.set(expires=7200, headers={"mine": {"a": [1]}}, compression="gzip", priority=5)
    job_id = str(call.apply_async().id)
    before = messages(sql)[job_id]
    for _ in range(2):
        job = job_control.do(control.cancel, jobs.get(job_control.connection, job_id))
        job_id = str(job_control.do(control.retry, job, job_source="user_cli").id)
        again = messages(sql)[job_id]
        for name in ("timelimit", "shadow", "ignore_result", "mine", "compression"):
            assert again.headers[name] == before.headers[name]
        assert (again.body, again.priority) == (before.body, 5)
        assert again.expires_at and before.expires_at
        assert timedelta(0) < again.expires_at - before.expires_at < timedelta(minutes=5)


def test_attempts_are_counted_up_to_the_policy_s(
    app: Celery, sql: Sql, job_control: JobControl
) -> None:
    """Celery's own retries beyond them don't count."""
    job_id = app.tasks["kept.task"].delay(1).id
    assert sql("SELECT attempt, max_attempts, retry_base FROM pgbeat.jobs") == [
        (1, 3, timedelta(minutes=1))
    ]
    for retries in range(5):
        run = job_control.begins(job_id, retry_attempt=retries)
        job_control.tells(run, job_id, "failed", "scheduled", error="e")
        job = jobs.get(job_control.connection, job_id)
        assert (job.attempt, job.max_attempts) == (min(retries + 1, 3), 3)
    job_control.tells(job_control.begins(job_id, retry_attempt=2), job_id, "failed", error="e")
    job = jobs.get(job_control.connection, job_id)
    assert (job.state, job.attempt, job.retried_by) == ("failed", 3, None)


def test_the_audit_log_has_no_messages(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """They hold the task's arguments."""
    job_id = app.tasks["kept.task"].apply_async(("secret",), countdown=3600).id
    admin = Actor("user:root", True, origin="cli")
    job_control.do(control.pause, jobs.get(job_control.connection, job_id), admin)
    job_control.do(control.resume, jobs.get(job_control.connection, job_id), admin)
    rows = sql("SELECT verb, before ? 'message' OR after ? 'message' FROM pgbeat.audit ORDER BY id")
    assert rows == [("pause", False), ("resume", False)]
