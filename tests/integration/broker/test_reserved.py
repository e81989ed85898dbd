"""Publish options that would make a message another job's, in rows and jobs."""

from typing import Any

import pytest
from celery import Celery

import pgbeat
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.errors import InvalidJob, InvalidSchedule
from pgbeat.jobs.verbs import template_control
from pgbeat.schedules import writes
from tests.support.command_line import Sql
from tests.support.jobs import JobControl, messages
from tests.support.jobs import app as app
from tests.support.problems import raises

#: What kombu takes for a value that it has written, of a kind that it doesn't know.
UNREADABLE = {"__type__": "nope", "__value__": 1}
OTHER = "7f0c0000-0000-4000-8000-000000000001"


def signature(**options: Any) -> dict[str, Any]:
    return {"task": "jobs.add", "args": [1], "kwargs": {}, "options": options}


def test_renamed_internals_are_found_by_the_configuration(app: Celery) -> None:
    app.conf.update(event_exchange="ev", event_queue_prefix="evq", result_exchange="res")
    for name in ("ev", "evq.1", "res"):
        check_options({"queue": name})
        with pytest.raises(InvalidSchedule, match="serves Celery"):
            check_options({"queue": name}, app.conf)


@pytest.mark.parametrize(
    "options",
    [{"headers": {"id": OTHER}}, {"link": signature(task_id=OTHER, headers={"pgbeat_job": True})}],
    ids=repr,
)
def test_a_job_with_such_options_is_not_made(
    app: Celery, job_control: JobControl, sql: Sql, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSchedule):
        job_control.make(options=options)
    with pytest.raises(InvalidSchedule):
        pgbeat.submit("jobs.add", 1, app=app, options=options)
    with pytest.raises(InvalidSchedule, match="member 0"):
        pgbeat.submit_group([{"task": "jobs.add", "args": [1], "options": options}], app=app)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]


def test_a_row_that_got_such_options_fails_instead_of_going_out(
    job_control: JobControl, sql: Sql
) -> None:
    """Rows are data: SQL by hand, or a version before, may have written them."""
    victim = job_control.make()
    held = job_control.make(requires_approval=True)
    sql(
        "UPDATE pgbeat.jobs SET options = jsonb_build_object('headers', "
        "jsonb_build_object('id', %s::text)) WHERE id = %s",
        str(victim.id),
        held.id,
    )
    from pgbeat.jobs.verbs import control

    done = job_control.do(control.approve, held)
    assert (done.state, messages(sql)) == ("failed", [str(victim.id)])
    assert "only Celery or pgbeat may set" in str(done.error)


@pytest.mark.parametrize(
    ("args", "kwargs", "field"), [([UNREADABLE], {}, "args"), ([], UNREADABLE, "kwargs")]
)
def test_arguments_that_no_worker_can_read_are_refused(
    app: Celery, job_control: JobControl, args: list[Any], kwargs: dict[str, Any], field: str
) -> None:
    called: dict[str, Any] = {"args": args, "kwargs": kwargs}
    with raises(InvalidJob, (field, "malformed")):
        pgbeat.submit("jobs.add", *args, kwargs=kwargs, app=app)
    with raises(InvalidJob, (f"jobs[0].{field}", "malformed")):
        pgbeat.submit_many([{"task": "jobs.add", **called}], app=app)
    with job_control.unit().transaction() as unit:
        with raises(InvalidJob, (field, "malformed")):
            template_control.put(unit, "t", task="jobs.add", **called)
        with raises(InvalidSchedule, (field, "malformed")):
            writes.add(unit.connection, "s", source="api", task="jobs.add", every="1m", **called)
