"""A job that waits gets another priority, time, lane, or other retries."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from pgbeat.errors import Forbidden, InvalidJob, InvalidTransition
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.verbs import changes as job_changes
from pgbeat.jobs.verbs import control
from tests.support.command_line import Sql, refused, run_with
from tests.support.jobs import ADMIN, ALICE, BOB, JobControl, messages
from tests.support.rows import make_job, make_lane
from tests.support.web import Web, done

HOUR = timedelta(hours=1)
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001


def update(job_control: JobControl, job: Job, actor: Any = ADMIN, **values: Any) -> Job:
    return job_control.do(job_changes.update, job, actor, values=values)


def priorities(sql: Sql) -> list[Any]:
    """Of the messages, as their table and their properties have it."""
    return [
        (column, json.loads(payload)["properties"]["priority"])
        for column, payload in sql("SELECT priority, payload FROM kombu_message ORDER BY id")
    ]


def test_a_new_priority_is_the_message_s_too(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(priority=2)
    changed = update(job_control, job, ALICE, priority=7)
    assert (changed.state, changed.priority, changed.id) == ("pending", 7, job.id)
    assert messages(sql) == [str(job.id)]
    assert priorities(sql) == [(7, 7)]


def test_a_job_goes_to_another_time_and_comes_back(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make()
    later = update(job_control, job, countdown=HOUR)
    assert later.state == "scheduled"
    assert later.run_at is not None
    assert later.run_at > datetime.now(UTC) + HOUR / 2
    assert messages(sql) == [str(job.id)]
    assert sql("SELECT available_at > now() + interval '30 minutes' FROM kombu_message") == [
        (True,)
    ]
    now = update(job_control, job, run_at=None)
    assert (now.state, now.run_at, messages(sql)) == ("pending", None, [str(job.id)])
    assert sql("SELECT coalesce(available_at > now(), false) FROM kombu_message") == [(False,)]


def test_retries_change_without_touching_the_message(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make()
    before = sql("SELECT id FROM kombu_message")
    changed = update(job_control, job, max_attempts=9, retry_base=timedelta(seconds=5))
    assert (changed.max_attempts, changed.retry_base) == (9, timedelta(seconds=5))
    assert (changed.dispatched_at, sql("SELECT id FROM kombu_message")) == (
        job.dispatched_at,
        before,
    )


def test_a_job_changes_lanes(job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, "a", limit=1)
    make_lane(sql, "b", limit=1)
    first, second = job_control.make(lane="a"), job_control.make(lane="a")
    assert second.dispatched_at is None
    moved = update(job_control, first, lane="b")
    assert (moved.lane, moved.dispatched_at is None) == ("b", False)
    assert job_control.job(second).dispatched_at is not None  # the slot that it left
    out = update(job_control, moved, lane=None)
    assert (out.lane, out.dispatched_at is None) == (None, False)
    assert sorted(messages(sql)) == sorted([str(first.id), str(second.id)])


def test_what_is_held_stays_held(job_control: JobControl, sql: Sql) -> None:
    paused = job_control.do(control.pause, job_control.make())
    held = job_control.make(requires_approval=True)
    for job in (paused, held):
        changed = update(job_control, job, ALICE, priority=3, countdown=HOUR)
        assert (changed.state, changed.priority) == ("paused", 3)
        assert changed.awaits_approval is job.awaits_approval
    assert messages(sql) == []


def test_what_can_not_be_changed(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make()
    for values in (
        {},
        {"task": "x"},
        {"priority": 256},
        {"priority": None},
        {"lane": "nosuch"},
        {"run_at": NAIVE},
        {"run_at": None, "countdown": HOUR},
        {"run_at": datetime.max.replace(tzinfo=UTC)},
        {"countdown": timedelta(days=2_913_000)},
        {"retry_base": HOUR, "retry_cap": timedelta(0)},
        {"requires_approval": False},
    ):
        with pytest.raises(InvalidJob):
            update(job_control, job, **values)
    with pytest.raises(Forbidden, match="update"):
        update(job_control, job, BOB, priority=1)
    with pytest.raises(Forbidden, match="lane"):
        update(job_control, job, ALICE, lane=None)
    job_control.begins(job.id)
    for state in (
        job_control.job(job),
        job_control.job(job_control.do(control.cancel, job_control.make())),
    ):
        with pytest.raises(InvalidTransition):
            update(job_control, state, priority=1)
    taken = job_control.make()
    sql("UPDATE kombu_message SET claimed_by = 1 WHERE job_id = %s", taken.id)
    with pytest.raises(InvalidTransition):
        update(job_control, taken, priority=1)
    assert update(job_control, taken, max_attempts=8).max_attempts == 8


def test_on_the_command_line(app: Celery, job_control: JobControl) -> None:
    job = job_control.make(actor=BOB)
    said = run_with(app, "jobs", "update", str(job.id), "--admin", "--priority", "4", "--in", "1 h")
    assert said.stdout.startswith(f"Updated job {job.id}: ")
    assert (job_control.job(job).priority, job_control.job(job).state) == (4, "scheduled")
    run_with(app, "jobs", "update", str(job.id), "--admin", "--now", "--max-attempts", "2")
    assert (job_control.job(job).state, job_control.job(job).max_attempts) == ("pending", 2)
    assert "nothing to update" in refused(run_with(app, "jobs", "update", str(job.id)), 2)
    assert "can't update job" in refused(
        run_with(app, "jobs", "update", str(job.id), "--priority", "1"), 1
    )


def test_on_its_page(web: Web, sql: Sql) -> None:
    make_lane(sql, "a", limit=0)
    made = done(web.user.post("/jobs", json={"task": "jobs.add", "args": [1]}), 201)
    path = f"/console/jobs/{made['id']}"
    admin = web.browser(web.token("root", "admin"))
    assert 'name="lane"' in admin.get(path).text
    user = web.browser(web.token("alice"))
    assert 'name="lane"' not in user.get(path).text
    form = {"do": "update", "priority": "6", "run_at": "", "max_attempts": "3", "lane": "a"}
    assert user.post(path, data=form).status_code == 303
    assert sql("SELECT priority, lane FROM pgbeat.jobs") == [(6, None)]
    assert admin.post(path, data=form).status_code == 303
    assert sql("SELECT priority, lane FROM pgbeat.jobs") == [(6, "a")]
    answer = user.post(path, data={**form, "priority": "999"})
    assert answer.status_code == 422
    assert 'id="e-priority"' in answer.text
    ended = make_job(sql, "completed")
    assert 'name="max_attempts"' not in user.get(f"/console/jobs/{ended}").text
