"""Jobs that are like an earlier one."""

from datetime import timedelta
from typing import Any

import pytest

from pgbeat.access.redaction import Redactor
from pgbeat.errors import Forbidden, InvalidJob
from pgbeat.jobs.preparing import likeness
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.rows.model import Job
from tests.support.command_line import Sql
from tests.support.jobs import ADMIN, ALICE, JobControl
from tests.support.problems import raises
from tests.support.rows import insert, make_lane


def like(job_control: JobControl, job: Job, **given: Any) -> JobSpec:
    with job_control.unit().transaction() as unit:
        return likeness.complete(
            unit.connection, Redactor(ADMIN, {}, {}), ADMIN, job, JobSpec(**given)
        )


def test_what_is_taken(job_control: JobControl, sql: Sql) -> None:
    """All that people gave but the time and the unique key."""
    make_lane(sql, "gpu")
    job = job_control.make(
        1,
        kwargs={"y": 2},
        lane="gpu",
        priority=3,
        tags=["big"],
        resources={"gpu": 1},
        max_attempts=5,
        retry_base="2 minutes",
        unique_key="k",
        options={"expires": 60},
        description="for a test",
        labels={"team": "a"},
        countdown=timedelta(hours=1),
    )
    spec = like(job_control, job)
    assert (spec.task, spec.args, spec.kwargs) == ("jobs.add", [1], {"y": 2})
    assert (spec.options, spec.description, spec.labels) == (
        {"expires": 60},
        "for a test",
        {"team": "a"},
    )
    policy = spec.policy
    assert (policy.lane, policy.priority, policy.tags, policy.max_attempts) == (
        "gpu",
        3,
        ("big",),
        5,
    )
    assert policy.retry_base == timedelta(minutes=2)
    assert (spec.run_at, spec.countdown, policy.unique_key) == (None, None, None)


def test_what_is_given_is_stronger(job_control: JobControl) -> None:
    """Keyword arguments are added."""
    job = job_control.job(job_control.order(kwargs={"x": 1, "y": 2}, priority=3).job)
    spec = like(job_control, job, kwargs={"y": 9}, queue="fast")
    assert (spec.kwargs, spec.queue, spec.policy.priority) == ({"x": 1, "y": 9}, "fast", 3)
    assert like(job_control, job, args=[5]).args == [5]


def test_the_template_stays_as_long_as_there_is_one(job_control: JobControl, sql: Sql) -> None:
    """It may be what allows the task."""
    insert(sql, "templates", {"name": "t", "task": "jobs.add", "args": "[1]"})
    job = job_control.make(template="t")
    assert like(job_control, job).policy.template == "t"
    assert like(job_control, job, task="jobs.other").policy.template is None
    sql("DELETE FROM pgbeat.templates RETURNING name")
    assert like(job_control, job).policy.template is None


def test_what_can_not_be_taken(job_control: JobControl) -> None:
    """Arguments that the actor doesn't see, or that were not kept."""
    job = job_control.make(7)
    with job_control.unit().transaction() as unit:
        redactor = Redactor(ALICE, {"jobs.*": ["*"]}, {})
        with pytest.raises(Forbidden) as masked:
            likeness.complete(unit.connection, redactor, ALICE, job, JobSpec())
    assert masked.value.code == "masked"
    with raises(InvalidJob, ("args", "required")):
        like(job_control, job._replace(args=None, kwargs=None))
