"""What users of the API and the console may not ask of jobs."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import Forbidden, InvalidInput, InvalidJob, NotFound, NotUnique
from pgbeat.jobs.preparing import likeness
from pgbeat.jobs.preparing.members import NO_POLICY
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.submitting import submit_group, submit_many
from pgbeat.jobs.verbs import changes, control, template_control
from tests.support.command_line import Sql
from tests.support.jobs import ADMIN, JobControl, opened_app
from tests.support.problems import raises
from tests.support.rows import make_lane

MakeJobControl = Callable[[], JobControl]
TASKS = ("jobs.*",)
ALICE, BOB = Actor("user:alice", tasks=TASKS), Actor("user:bob", tasks=TASKS)
ROOT = Actor("user:root", is_admin=True, tasks=TASKS)


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    policy = {"max_attempts": 2, "priority": 4, "unique": True, "tags": ["a"]}
    tasks = {"jobs.policed": policy, "jobs.other": None}
    with opened_app(database, tasks, pgbeat_web_user_jobs=3) as app:
        yield app


@pytest.fixture
def job_control(make_job_control: MakeJobControl, sql: Sql) -> JobControl:
    job_control = make_job_control()
    make_lane(sql, "gpu")
    with job_control.unit().transaction() as unit:
        template_control.put(
            unit,
            "t",
            task="jobs.add",
            args=[1],
            queue="slow",
            options={"expires": 60},
            job_policy={"lane": "gpu", "max_attempts": 2},
        )
    return job_control


def test_a_key_is_one_of_a_task_s(job_control: JobControl, sql: Sql) -> None:
    first = job_control.order(1, actor=ADMIN, unique_key="k")
    other = job_control.order(1, actor=ADMIN, task="jobs.other", unique_key="k")
    assert first.is_new and other.is_new
    assert not job_control.order(2, actor=ADMIN, unique_key="k").is_new
    with job_control.unit().transaction() as unit:
        ids = submit_many.submit(
            unit,
            [{"task": f"jobs.{task}", "args": [1], "unique_key": "k"} for task in ("add", "other")],
            NO_POLICY,
            job_source="user_api",
        )
    assert ids == [str(first.job.id), str(other.job.id)]
    again = "SELECT pgbeat.submit('jobs.%s', '[1]', unique_key => 'k')"
    assert [sql(again % task) for task in ("add", "other")] == [
        [(first.job.id,)],
        [(other.job.id,)],
    ]
    job_control.do(control.cancel, first.job)
    job_control.do(control.cancel, other.job)
    assert job_control.order(1, actor=ADMIN, unique_key="k").is_new
    retried = job_control.do(control.retry, other.job, job_source="user_cli")
    assert retried.unique_key == "k"
    with pytest.raises(NotUnique):
        job_control.do(control.retry, first.job, job_source="user_cli")


@pytest.mark.parametrize(
    "policy", [{"unique_key": "k"}, {"unique": True}, {"unique": True, "unique_for": "36500 days"}]
)
def test_a_user_s_key_is_theirs(job_control: JobControl, policy: dict[str, Any]) -> None:
    hers = job_control.order(1, actor=ALICE, **policy)
    his, mine = (
        job_control.order(1, actor=BOB, **policy),
        job_control.order(1, actor=ROOT, **policy),
    )
    assert len({each.job.id for each in (hers, his, mine)}) == 3
    again = job_control.order(1, actor=ALICE, **policy)
    assert (again.is_new, again.job.id) == (False, hers.job.id)
    assert str(hers.job.unique_key).startswith('"user:alice" ')


def test_hashes_of_arguments_can_t_be_given(job_control: JobControl, sql: Sql) -> None:
    made = job_control.order(1, actor=ADMIN, unique=True).job
    for actor in (ALICE, ADMIN):
        with raises(InvalidJob, ("unique_key", "reserved")):
            job_control.order(2, actor=actor, unique_key=made.unique_key)
    with pytest.raises(Exception, match="must not begin with content:"):
        sql("SELECT pgbeat.submit('t', unique_key => %s)", made.unique_key)


def test_what_a_template_says_is_final(job_control: JobControl) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("lane", {"lane": "gpu"}),
        ("priority", {"priority": 9}),
        ("queue", {"queue": "celery"}),
        ("options", {"options": {"link": []}}),
        ("max_attempts", {"max_attempts": 9}),
        ("unique_key", {"unique_key": "k"}),
        ("tags", {"tags": ["b"]}),
    ]
    for field, given in cases:
        with pytest.raises(Forbidden) as refused:
            job_control.order(7, actor=ALICE, template="t", **given)
        assert refused.value.field == field
        assert job_control.order(7, actor=ROOT, template="t", **given).is_new


def test_a_template_may_say_something_else_than_its_task_s_policy(job_control: JobControl) -> None:
    with job_control.unit().transaction() as unit:
        template_control.put(unit, "more", task="jobs.policed", job_policy={"max_attempts": 5})
    made = job_control.order(7, actor=ALICE, template="more").job
    assert (made.max_attempts, made.priority) == (5, 4)


def test_users_give_a_template_s_jobs_arguments_and_a_time(job_control: JobControl) -> None:
    made = job_control.order(
        7,
        actor=ALICE,
        template="t",
        kwargs={"y": 3},
        countdown=timedelta(minutes=5),
        description="now and then",
        labels={"team": "a"},
    ).job
    assert (made.args, made.kwargs, made.lane, made.queue) == ([7], {"y": 3}, "gpu", "slow")
    assert (made.max_attempts, made.options) == (2, {"expires": 60})
    changed = job_control.do(changes.update, made, ALICE, values={"countdown": timedelta(hours=1)})
    assert changed.run_at is not None and made.run_at is not None
    assert changed.run_at > made.run_at
    for values in ({"priority": 9}, {"max_attempts": 9}, {"retry_base": timedelta(1)}):
        with pytest.raises(Forbidden):
            job_control.do(changes.update, made, ALICE, values=values)
    job_control.do(control.cancel, made)
    with pytest.raises(Forbidden):
        job_control.do(control.retry, made, ALICE, job_source="user_api", priority=9)
    job_control.do(control.retry, made, ALICE, job_source="user_api")


def test_a_user_s_job_like_one_of_a_template_is_made_from_that(job_control: JobControl) -> None:
    job = job_control.make(7, actor=ROOT, template="t", priority=9, max_attempts=9, queue="celery")

    def like(actor: Actor, **given: Any) -> Job:
        with job_control.unit(actor).transaction() as unit:
            redactor = Redactor(actor, {}, {})
            spec = likeness.complete(unit.connection, redactor, actor, job, JobSpec(**given))
            return control.submit(unit, spec, job_source="user_api").job

    hers, mine = like(ALICE), like(ROOT)
    assert (hers.args, hers.priority, hers.max_attempts, hers.queue) == ([7], 0, 2, "slow")
    assert (mine.args, mine.priority, mine.max_attempts, mine.queue) == ([7], 9, 9, "celery")
    with pytest.raises(Forbidden):
        like(ALICE, queue="celery")


def test_what_a_task_s_policy_says_is_final(job_control: JobControl, sql: Sql) -> None:
    sql("UPDATE pgbeat.lanes SET paused_at = now() RETURNING name")
    for field, given in (
        ("max_attempts", {"max_attempts": 3}),
        ("priority", {"options": {"priority": 9}}),
        ("unique_key", {"unique_key": "k"}),
        ("tags", {"tags": ["b"]}),
    ):
        with pytest.raises(Forbidden) as refused:
            job_control.order(1, actor=ALICE, task="jobs.policed", **given)
        assert refused.value.field == field
    made = job_control.order(1, actor=ALICE, task="jobs.policed", max_attempts=2, lane="gpu").job
    assert (made.max_attempts, made.priority, made.lane) == (2, 4, "gpu")
    # The policy's key is the task's: everybody's.
    assert not job_control.order(1, actor=BOB, task="jobs.policed").is_new
    for values in ({"priority": 9}, {"max_attempts": 9}):
        with pytest.raises(Forbidden):
            job_control.do(changes.update, made, ALICE, values=values)
    with pytest.raises(Forbidden):
        job_control.do(
            lambda *args, **more: control.move(*args, **more)[0],
            made,
            ALICE,
            where="front",
            priority=9,
        )
    job_control.do(changes.update, made, ALICE, values={"retry_base": timedelta(seconds=9)})


def test_a_policy_s_priority_is_not_had_from_a_neighbour_or_by_a_link(
    job_control: JobControl, sql: Sql
) -> None:
    sql("UPDATE pgbeat.lanes SET paused_at = now() RETURNING name")

    def before(other: Job) -> Job:
        def move(unit: UnitOfWork, job_id: UUID) -> Job:
            return control.move(unit, job_id, "before", other.id)[0]

        return job_control.do(move, made, ALICE)

    made = job_control.make(1, actor=ALICE, task="jobs.policed", lane="gpu")
    alike = job_control.make(1, actor=ALICE, lane="gpu", priority=4)
    higher = job_control.make(1, actor=ALICE, lane="gpu", priority=9)
    others = job_control.make(1, actor=BOB, lane="gpu", priority=4)
    with pytest.raises(Forbidden) as refused:
        before(higher)
    assert refused.value.field == "priority"
    with pytest.raises(NotFound):
        before(others)
    assert before(alike).priority == 4
    for priority, is_refused in ((9, True), (4, False), (None, False)):
        options = {"priority": priority}
        link = {"task": "jobs.policed", "args": [1], "kwargs": {}, "options": options}
        with pytest.raises(Forbidden) if is_refused else nullcontext():
            job_control.order(1, actor=ALICE, options={"link": link})
        job_control.order(1, actor=ROOT, options={"link": link})


def test_users_send_only_to_queues_that_exist(job_control: JobControl, sql: Sql) -> None:
    link = {"task": "jobs.add", "args": [], "kwargs": {}, "options": {"queue": "nowhere"}}
    for given in (
        {"queue": "nowhere"},
        {"options": {"queue": "nowhere"}},
        {"options": {"link": link}},
    ):
        with raises(InvalidJob, ("queue", "unknown")):
            job_control.order(1, actor=ALICE, **given)
    assert sql("SELECT count(*) FROM kombu_queue WHERE name = 'nowhere'") == [(0,)]
    assert job_control.order(1, actor=ALICE, queue="celery").is_new
    assert job_control.order(1, actor=ROOT, queue="nowhere").is_new
    assert job_control.order(1, actor=ALICE, queue="nowhere").is_new


def test_users_jobs_wait_for_so_long_at_most(job_control: JobControl) -> None:
    with raises(InvalidJob, ("run_at", "out_of_range")):
        job_control.order(1, actor=ALICE, countdown=timedelta(days=31))
    job = job_control.make(1, actor=ALICE, countdown=timedelta(days=29))
    with pytest.raises(InvalidJob):
        job_control.do(changes.update, job, ALICE, values={"countdown": timedelta(days=31)})
    assert job_control.order(1, actor=ROOT, countdown=timedelta(days=31)).is_new
    delayed = {"task": "jobs.add", "args": [], "kwargs": {}, "options": {"countdown": 1e9}}
    with pytest.raises(Forbidden):
        job_control.order(1, actor=ALICE, options={"link": delayed})


def test_users_make_so_many_jobs_at_once_at_most(job_control: JobControl, sql: Sql) -> None:
    order = {"task": "jobs.add", "args": [1]}
    for actor, count in ((ALICE, 4), (ALICE, 3), (ROOT, 4)):
        is_too_many = actor is ALICE and count > 3
        for make in (
            lambda unit, some: submit_many.submit(unit, some, NO_POLICY, job_source="user_api"),
            lambda unit, some: submit_group.submit(unit, some, job_source="user_api"),
        ):
            unit = job_control.unit(actor)
            if not is_too_many:
                with unit.transaction():
                    make(unit, [order] * count)
                continue
            with raises(InvalidInput, ("jobs", "out_of_range")), unit.transaction():
                make(unit, [order] * count)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(14,)]


def test_links_count_as_jobs(job_control: JobControl, sql: Sql) -> None:
    """Whoever ends the job sends a task for each."""
    link: dict[str, Any] = {"task": "jobs.add", "args": [1], "kwargs": {}, "options": {}}
    orders: list[list[dict[str, Any]]] = [
        [{"link": [link] * 3}],
        [{"link": [link], "link_error": [link, link]}],
        [{"link": {**link, "options": {"link": [link, link]}}}],
        [{"link": link}, {"link": link}],
    ]
    for options in orders:
        jobs = [{"task": "jobs.add", "args": [1], "options": each} for each in options]
        for make in (
            lambda unit, some: submit_many.submit(unit, some, NO_POLICY, job_source="user_api"),
            lambda unit, some: submit_group.submit(unit, some, job_source="user_api"),
        ):
            unit = job_control.unit(ALICE)
            with raises(InvalidInput, ("jobs", "out_of_range")), unit.transaction():
                make(unit, jobs)
            with job_control.unit(ROOT).transaction() as unit:
                make(unit, jobs)
    with raises(InvalidJob, ("jobs", "out_of_range")):
        job_control.order(1, actor=ALICE, options={"link": [link] * 3})
    assert job_control.order(1, actor=ALICE, options={"link": [link] * 2}).is_new
