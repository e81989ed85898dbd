"""Results of jobs that end without a worker: whoever waits for one is answered, with the reason."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError, WorkerLostError
from celery.result import AsyncResult

import pgbeat
from pgbeat.broker import discards
from pgbeat.broker.messages import REASON_HEADER
from pgbeat.database import connections
from pgbeat.errors import InvalidTransition
from pgbeat.jobs.rescuing import rescue
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.submitting import submit_group
from pgbeat.jobs.verbs import bulk, control
from pgbeat.jobs.verbs.bulk import Order
from tests.support.jobs import ADMIN, JobControl, opened_app
from tests.support.rows import Sql, make_lane
from tests.support.threads import waiting

POLICIES: dict[str, dict[str, Any]] = {
    "answers.plain": {},
    "answers.in_lane": {"lane": "shut"},
    "answers.approved": {"requires_approval": True},
}
OTHERS = dict.fromkeys(("answers.body", "answers.other", "answers.handles"))


def one_argument(task_id: str) -> None:
    """Takes an id, as errbacks do that are sent as tasks."""


@pytest.fixture
def app(database: str, sql: Sql) -> Iterator[Celery]:
    """An app with tasks that have policies, one of them in a lane without slots."""
    make_lane(sql, "shut", 0)
    results = {"result_backend": f"pgbeat+{database}", "task_ignore_result": False}
    with opened_app(database, POLICIES | OTHERS, **results) as app:
        app.task(one_argument, name="answers.failed", shared=False)
        yield app


def cancel_one(job_control: JobControl, job_id: str) -> None:
    """Cancels it by itself."""
    job_control.do(control.cancel, jobs.get(job_control.connection, job_id), reason="too slow")


def cancel_in_bulk(job_control: JobControl, job_id: str) -> None:
    """Cancels it as one of many."""
    order = Order("cancel", {"reason": "too slow"})
    for _ in bulk.carry_out(
        job_control.unit(),
        order,
        Filter(ids=(jobs.get(job_control.connection, job_id).id,)),
        until=connections.now(job_control.connection) + timedelta(seconds=1),
    ):
        pass


WAYS = list(product(POLICIES, (cancel_one, cancel_in_bulk)))
REASON = f"cancelled by {ADMIN.name}: too slow"


def why(result: "AsyncResult[Any]") -> str:
    """Returns the reason with which the result says that its task was revoked."""
    with pytest.raises(TaskRevokedError) as revoked:
        result.get(timeout=0.2)
    return str(revoked.value)


def of_one(app: Celery) -> tuple[Any, Any]:
    """Sends a chord of one member; the results of both."""
    result = chord([app.tasks["answers.plain"].si(1)], app.tasks["answers.body"].s()).apply_async()
    return result, result.parent.children[0]


def test_what_waits(app: Celery, job_control: JobControl) -> None:
    """In the queue, in a lane, for an approval: calls, members of groups, links of chains."""
    for name, cancel in WAYS:
        task = app.tasks[name]
        calls = [task.apply_async((1,), **o) for o in ({}, {"countdown": 600}, {"expires": 600})]
        calls += group(task.si(1), task.si(2)).apply_async().children
        linked = chain(task.si(1), app.tasks["answers.other"].si()).apply_async()
        assert linked.parent is not None
        for call in [*calls, linked.parent]:
            cancel(job_control, call.id)
            assert why(call) == REASON
        assert why(app.AsyncResult(linked.id)) == REASON  # it will never run


def test_members_of_chords(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """A chord fails in the same transaction, also if the member is a chain."""
    body = app.tasks["answers.body"].s().on_error(app.tasks["answers.failed"].s())
    for name, cancel in WAYS:
        task = app.tasks[name]
        for member in (task.si(1), chain(task.si(1), app.tasks["answers.other"].si())):
            result = chord([member], body.clone()).apply_async()
            [(job_id,)] = sql("SELECT id::text FROM pgbeat.unfinished_jobs")
            cancel(job_control, job_id)
            assert why(app.AsyncResult(job_id)) == REASON
            with pytest.raises(ChordError, match="too slow"):
                app.AsyncResult(result.id).get(timeout=0.2)
    names = sql("SELECT payload::json -> 'headers' ->> 'task' FROM kombu_message")
    assert names == [("answers.failed",)] * 2 * len(WAYS)


def test_a_member_of_a_chord_that_every_worker_called_revoked_before(
    app: Celery, job_control: JobControl
) -> None:
    """Celery's remote control stores that for any task, and knows nothing of its chord."""
    result, member = of_one(app)
    app.backend.mark_as_revoked(member.id, reason="revoked", store_result=True)
    cancel_one(job_control, member.id)
    assert result.state == "FAILURE"


def test_a_callback_is_neither_run_nor_an_errback(
    app: Celery, sql: Sql, job_control: JobControl
) -> None:
    """As in Celery: what was revoked has not failed."""
    other, failed = app.tasks["answers.other"], app.tasks["answers.failed"]
    result = app.tasks["answers.plain"].apply_async((1,), link=other.si(), link_error=failed.s())
    cancel_one(job_control, result.id)
    assert why(result) == REASON
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


def test_one_that_was_paused(app: Celery, job_control: JobControl) -> None:
    """It keeps what Celery made, and so what depends on it."""
    result, child = of_one(app)
    job_control.do(control.pause, jobs.get(job_control.connection, child.id))
    cancel_one(job_control, child.id)
    with pytest.raises(ChordError):
        app.AsyncResult(result.id).get(timeout=0.2)


def test_it_is_answered_if_and_only_if_the_end_commits(
    app: Celery, job_control: JobControl
) -> None:
    result, child = of_one(app)
    with pytest.raises(ZeroDivisionError), job_control.unit().transaction() as unit:
        control.cancel(unit, child.id)
        raise ZeroDivisionError
    assert (child.state, result.state) == ("PENDING", "PENDING")


def test_no_result_is_stored_where_none_is_wanted(
    app: Celery, sql: Sql, job_control: JobControl
) -> None:
    ignored = app.tasks["answers.plain"].apply_async((1,), ignore_result=True)
    cancel_one(job_control, ignored.id)
    assert sql("SELECT count(*) FROM pgbeat.results") == [(0,)]


def test_members_of_a_group_that_is_cancelled(app: Celery, job_control: JobControl) -> None:
    """Of pgbeat's own: each ends with the reason."""
    made = pgbeat.submit_group([app.tasks["jobs.add"].s(n) for n in range(2)], app=app)
    submit_group.cancel(job_control.unit(), made.group.id)
    assert {why(app.AsyncResult(str(job.id))) for job in made.jobs} == {
        f"its group was cancelled by {ADMIN.name}"
    }


def test_one_that_expires(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """It says so, and not that somebody cancelled it."""
    result = app.tasks["answers.plain"].apply_async((1,), expires=60)
    sql("UPDATE kombu_message SET expires_at = now()")
    with connections.transaction(job_control.connection):
        discards.expire(job_control.connection)
    assert why(result).startswith("expired: no worker took its message")


def test_one_that_has_succeeded_is_not_cancelled(app: Celery, job_control: JobControl) -> None:
    """Its record is late, and would otherwise say something else than its result."""
    result = app.tasks["answers.plain"].delay(1)
    app.backend.store_result(result.id, 7, "SUCCESS")
    with pytest.raises(InvalidTransition, match="its task has succeeded"):
        cancel_one(job_control, result.id)
    cancel_in_bulk(job_control, result.id)
    assert result.get(timeout=0.2) == 7
    assert jobs.get(job_control.connection, result.id).state == "pending"


def test_nor_with_its_group(app: Celery, job_control: JobControl) -> None:
    made = pgbeat.submit_group([app.tasks["jobs.add"].s(n) for n in range(2)], app=app)
    app.backend.store_result(str(made.jobs[0].id), 7, "SUCCESS")
    submit_group.cancel(job_control.unit(), made.group.id)
    after = [jobs.get(job_control.connection, job.id).state for job in made.jobs]
    assert after == ["pending", "cancelled"]


def test_what_the_worker_says_later_does_not_replace_the_reason(
    app: Celery, job_control: JobControl
) -> None:
    """One that had the message stores that it was revoked, too."""
    result = app.tasks["answers.plain"].delay(1)
    cancel_one(job_control, result.id)
    app.backend.mark_as_revoked(result.id, "revoked")
    assert why(app.AsyncResult(result.id)) == REASON


@pytest.mark.parametrize("status", ["STARTED", "SUCCESS", "FAILURE"])
def test_a_run_that_begins_as_the_job_is_cancelled_does_not_replace_the_reason(
    status: str, app: Celery, job_control: JobControl
) -> None:
    """A pool that can't terminate it runs it to its end."""
    result = app.tasks["answers.plain"].delay(1)
    cancel_one(job_control, result.id)
    value = {"exc_type": "OSError", "exc_message": ["it broke"]} if status == "FAILURE" else None
    app.backend.store_result(result.id, value, status)
    app.backend.store_result(result.id, 7, "SUCCESS")
    assert why(app.AsyncResult(result.id)) == REASON


def test_a_success_that_waits_for_the_cancel_does_not_replace_it(
    app: Celery, sql: Sql, job_control: JobControl
) -> None:
    """It is stored by a statement that began before the cancel was committed."""
    result = app.tasks["answers.plain"].delay(1)
    with ExitStack() as transaction:
        unit = transaction.enter_context(job_control.unit().transaction())
        control.cancel(unit, result.id, reason="too slow")
        with waiting(sql, lambda: app.backend.store_result(result.id, 7, "SUCCESS")):
            transaction.close()
    assert why(app.AsyncResult(result.id)) == REASON


def test_one_that_succeeds_while_it_is_cancelled(
    app: Celery, database: str, sql: Sql, job_control: JobControl
) -> None:
    """After the cancel has looked whether it has, before it stores that it was revoked."""
    sql(
        """
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NEW; END'
        """
    )
    when = "BEFORE INSERT ON pgbeat.ended_jobs FOR EACH ROW"
    sql(f"CREATE TRIGGER wait {when} EXECUTE FUNCTION wait()")
    member = app.tasks["answers.plain"].si(1)
    summed = chord([member, member.clone()], app.tasks["answers.body"].s()).apply_async()
    first = summed.parent.children[0]
    with psycopg.connect(database, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(77)")
        with waiting(sql, lambda: cancel_in_bulk(job_control, first.id)):
            app.backend.store_result(first.id, 7, "SUCCESS")
            holder.execute("SELECT pg_advisory_unlock(77)")
    assert first.get(timeout=0.2) == 7
    assert jobs.get(job_control.connection, first.id).state == "pending"
    assert sql("SELECT count(*) FROM pgbeat.chord_parts") == [(0,)]


def test_a_task_that_is_no_job_may_run_after_it_was_revoked(app: Celery) -> None:
    """As in Celery."""
    for task_id in (str(uuid4()), "by name"):
        app.backend.mark_as_revoked(task_id, "revoked")
        app.backend.store_result(task_id, 7, "SUCCESS")
        assert app.AsyncResult(task_id).get(timeout=0.2) == 7


def test_a_purge(app: Celery, job_control: JobControl, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result says so; that of a chord's member comes with the next rescue."""
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    plain = app.tasks["answers.plain"].delay(1)
    summed, _ = of_one(app)
    with connections.transaction(job_control.connection):
        assert discards.purge(job_control.connection, "celery") == 2
    assert why(plain) == "its message was purged from queue 'celery'"
    rescue.rescue(job_control.connection, job_control.publisher, job_control.settings)
    with pytest.raises(ChordError, match="was purged"):
        app.AsyncResult(summed.id).get(timeout=0.2)


def test_a_chord_that_is_locked_ends_with_a_later_rescue(
    app: Celery, database: str, sql: Sql, job_control: JobControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does the job: its end would leave the chord without one."""
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    summed, member = of_one(app)
    with connections.transaction(job_control.connection):
        discards.purge(job_control.connection, "celery")
    with psycopg.connect(database) as held:
        held.execute("SELECT FROM pgbeat.chords FOR UPDATE")
        rescue.rescue(job_control.connection, job_control.publisher, job_control.settings)
        assert jobs.get(job_control.connection, member.id).state == "pending"
    rescue.rescue(job_control.connection, job_control.publisher, job_control.settings)
    with pytest.raises(ChordError, match="was purged"):
        app.AsyncResult(summed.id).get(timeout=0.2)


def test_one_that_is_lost(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """Its chord fails, and its errback is sent."""
    task, failed = app.tasks["answers.plain"], app.tasks["answers.failed"]
    member = task.si(1).set(link_error=failed.s())
    result = chord([member], app.tasks["answers.body"].s()).apply_async()
    [child] = result.parent.children
    sql("DELETE FROM kombu_message")
    run = ExecutionRecord(str(uuid4()), child.id, True, worker="w", worker_id=1)
    with connections.transaction(job_control.connection):
        executions.record(job_control.connection, [run])
    rescue.end_lost(job_control.connection, job_control.publisher, [UUID(run.id)], "it died")
    with pytest.raises(WorkerLostError, match="it died"):
        child.get(timeout=0.2)
    with pytest.raises(ChordError):
        app.AsyncResult(result.id).get(timeout=0.2)
    names = sql("SELECT payload::json -> 'headers' ->> 'task' FROM kombu_message")
    assert names == [("answers.failed",)]


def test_one_that_can_t_be_published(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """What waits for a job that failed for it is answered."""
    job = job_control.make(lane="shut")
    sql('UPDATE pgbeat.jobs SET options = \'{"serializer": "nope"}\'')
    sql("UPDATE pgbeat.lanes SET max_running = NULL")
    job_control.do(control.pause, job)
    job_control.do(control.resume, job_control.job(job), actor=ADMIN)
    with pytest.raises(Exception, match="can't be published"):
        app.AsyncResult(str(job.id)).get(timeout=0.2)


def test_errbacks_that_take_the_error_are_left_to_a_worker(
    app: Celery, sql: Sql, job_control: JobControl
) -> None:
    """They are code of the app: no console, no beat calls them. The result is there at once."""
    body = app.tasks["answers.body"].s().on_error(app.tasks["answers.handles"].s())
    result = chord([app.tasks["answers.plain"].si(1)], body).apply_async()
    [child] = result.parent.children
    cancel_one(job_control, child.id)
    assert why(child) == REASON
    assert sql(
        "SELECT payload::json -> 'headers' ->> 'id', payload::json -> 'headers' ->> %s "
        "FROM kombu_message",
        REASON_HEADER,
    ) == [(child.id, REASON)]
    assert app.AsyncResult(result.id).state == "PENDING"


def test_results_elsewhere_are_stored_by_a_worker(
    app: Celery, sql: Sql, job_control: JobControl
) -> None:
    """The message only says that the task is revoked."""
    app.conf.result_backend = "cache+memory://"
    app._local.__dict__.clear()
    result = app.tasks["answers.in_lane"].delay(1)
    cancel_one(job_control, result.id)
    rows = sql(
        "SELECT payload::json -> 'headers' ->> 'id', payload::json -> 'headers' ->> 'expires', "
        "job_id FROM kombu_message"
    )
    assert rows == [(result.id, "2000-01-01T00:00:00+00:00", None)]
