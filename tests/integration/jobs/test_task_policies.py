"""Policies on tasks: whatever sends such a task makes a job, in the transaction of its message."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from celery import Celery, Task, chain, chord, group
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER
from pgbeat.broker.publishing import template_sender
from pgbeat.config import postgres_url
from pgbeat.errors import ConfigError, InvalidJob, NotUnique
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.verbs import control
from pgbeat.worker.finishing import policy_retries
from tests.support.jobs import JobControl, any_arguments, opened_app
from tests.support.problems import raises
from tests.support.rows import Sql, make_lane, make_schedule
from tests.support.schedulers import Beat


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    """An app on pgbeat's transport, with tasks that have policies."""
    policies = {
        "shop.*": {"tags": ["shop"], "priority": 3},
        "*": {},
        "shop.late": {"lane": "never"},
    }
    tasks: dict[str, dict[str, Any] | None] = {
        "plain.unique": {"unique": True},
        "plain.in_lane": {"lane": "one"},
        "plain.approved": {"requires_approval": True},
        "plain.due": {"must_start_within": 60, "must_end_within": "5 minutes"},
        "shop.own": {"priority": 7, "resources": {"gpu": 1}},
        "plain.nowhere": {"lane": "missing"},
        "shop.by_name": None,
        "other": None,
    }
    url = f"pgbeat+{database}"
    with opened_app(database, tasks, result_backend=url, pgbeat_task_policies=policies) as app:
        yield app


@pytest.fixture
def one(sql: Sql) -> None:
    """A lane with one slot."""
    make_lane(sql, "one")


def jobs_of(sql: Sql, columns: str) -> list[tuple[Any, ...]]:
    """Returns the jobs, oldest first."""
    return sql(f"SELECT {columns} FROM pgbeat.jobs ORDER BY created_at, id")


def payloads(sql: Sql) -> list[dict[str, Any]]:
    """Returns the messages in their order."""
    return [json.loads(text) for (text,) in sql("SELECT payload FROM kombu_message ORDER BY id")]


def test_delay_makes_a_job_and_its_message(app: Celery, sql: Sql) -> None:
    """One row each, which know each other."""
    result = app.tasks["shop.by_name"].delay(1, b=[2.5, "é"])
    [job] = jobs_of(
        sql,
        "id::text, task, args, kwargs, state, queue, tags, priority, dispatched_at = created_at",
    )
    assert job == (
        result.id,
        "shop.by_name",
        [1],
        {"b": [2.5, "é"]},
        "pending",
        "celery",
        ["shop"],
        3,
        True,
    )
    [(job_id, priority)] = sql("SELECT job_id::text, priority FROM kombu_message")
    assert (job_id, priority) == (result.id, 3)


def test_a_task_without_a_policy_is_not_a_job(app: Celery, sql: Sql) -> None:
    """Its message carries none of the headers."""
    app.conf.pgbeat_task_policies = {}
    app.tasks["other"].delay()
    assert jobs_of(sql, "id") == []
    [payload] = payloads(sql)
    assert not {JOB_HEADER, NEW_JOB_HEADER} & payload["headers"].keys()


@pytest.mark.parametrize("name", ["shop.own", "shop.by_name", "shop.unregistered"])
def test_the_first_glob_applies_below_what_the_task_says(app: Celery, sql: Sql, name: str) -> None:
    """Also by name, and for tasks that only workers have registered."""
    app.send_task(name, (1,))
    own = (7, {"gpu": 1}) if name == "shop.own" else (3, {})
    assert jobs_of(sql, "task, priority, resources, tags, lane") == [(name, *own, ["shop"], None)]


def test_the_settings_say_what_a_policy_leaves_out(app: Celery, sql: Sql) -> None:
    """In the row, for a retry by hand, and in the message, for Celery's."""
    app.conf.update(pgbeat_job_retry_base=5, pgbeat_job_retry_cap=7)
    backoff = (timedelta(seconds=5), timedelta(seconds=7))
    for _ in range(2):
        app.tasks["other"].delay()
    assert jobs_of(sql, "retry_base, retry_cap") == [backoff, backoff]
    for payload in payloads(sql):
        policy = payload["headers"][NEW_JOB_HEADER]["policy"]
        assert (policy["retry_base"], policy["retry_cap"]) == (5, 7)


def test_a_class_attribute_is_a_policy(app: Celery, sql: Sql) -> None:
    """As the decorator's option is, which Celery makes one of."""

    class Tagged(Task):
        abstract = True
        pgbeat: ClassVar[dict[str, Any]] = {"tags": ["base"]}

    app.task(any_arguments, name="plain.based", base=Tagged, shared=False).delay()
    assert jobs_of(sql, "tags") == [(["base"],)]


def waits_briefly(app: Celery) -> None:
    """Limits how long what the app publishes waits for a lock."""
    app.tasks["other"].delay()
    with app.connection_for_write() as connection:
        working = connection.default_channel.broker
        working.do(lambda raw: raw.execute(text("SET lock_timeout = '200ms'")))


class TestUniqueTasks:
    """One unfinished job with the same task and arguments."""

    def test_a_duplicate_returns_the_result_of_the_first(self, app: Celery, sql: Sql) -> None:
        """And writes nothing."""
        first = app.tasks["plain.unique"].delay(1)
        assert app.tasks["plain.unique"].delay(1).id == first.id
        assert app.tasks["plain.unique"].delay(2).id != first.id
        assert len(payloads(sql)) == len(jobs_of(sql, "id")) == 2

    def test_it_can_be_sent_again_once_it_has_ended(self, app: Celery, sql: Sql) -> None:
        """The key is free then."""
        first = app.tasks["plain.unique"].delay(1)
        sql("UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now()")
        assert app.tasks["plain.unique"].delay(1).id != first.id

    @pytest.mark.parametrize("way", ["id", "link", "group", "chain", "chord"])
    def test_a_task_that_others_wait_for_is_made_in_any_case(
        self, app: Celery, sql: Sql, way: str
    ) -> None:
        """Without the key, if that is taken: its id is known, and must have a result."""
        unique, other = app.tasks["plain.unique"], app.tasks["other"]
        unique.delay(1)
        if way == "id":
            unique.apply_async((1,), task_id=str(uuid4()))
        elif way == "link":
            unique.apply_async((1,), link=other.s())
        elif way == "group":
            group(unique.s(1), unique.s(1)).apply_async()
        elif way == "chain":
            chain(unique.si(1), other.si()).apply_async()
        else:
            chord([unique.s(1)], other.si()).apply_async()
        keys = [key for task, key in jobs_of(sql, "task, unique_key") if task == "plain.unique"]
        assert len(keys) == (3 if way == "group" else 2)
        assert [bool(key) for key in keys] == [True] + [False] * (len(keys) - 1)
        assert len(payloads(sql)) == len(keys)

    @pytest.mark.parametrize("way", ["id", "chain"])
    def test_a_canvas_waits_for_no_key(
        self, app: Celery, sql: Sql, engine: Engine, way: str
    ) -> None:
        """An open transaction that takes it has it, whatever becomes of that."""
        unique, other = app.tasks["plain.unique"], app.tasks["other"]
        waits_briefly(app)
        with Session(engine) as session:
            with pgbeat.in_transaction(session, app):
                first = unique.delay(1)
            if way == "id":
                own = unique.apply_async((1,), task_id=str(uuid4()))
            else:
                own = chain(unique.si(1), other.si()).apply_async().parent
            keyless = "SELECT id::text FROM pgbeat.jobs WHERE unique_key IS NULL AND task = %s"
            assert sql(keyless, "plain.unique") == [(own.id,)]
            session.commit()
        assert unique.delay(1).id == first.id

    def test_the_same_id_twice_is_one_job(self, app: Celery, sql: Sql) -> None:
        """As a link that a redelivered task publishes again; also once the first has ended."""
        own_id = str(uuid4())
        for _ in range(2):
            assert app.tasks["shop.own"].apply_async((1,), task_id=own_id).id == own_id
        sql("DELETE FROM kombu_message")
        sql("UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now()")
        app.tasks["shop.own"].apply_async((1,), task_id=own_id)
        assert len(jobs_of(sql, "id")) == 1
        assert payloads(sql) == []

    def test_an_open_transaction_of_the_same_thread(self, app: Celery, engine: Engine) -> None:
        """The thread doesn't wait for itself, and goes on publishing."""
        waits_briefly(app)
        with Session(engine) as session:
            with pgbeat.in_transaction(session, app):
                first = app.tasks["plain.unique"].delay(1)
            with pytest.raises(NotUnique, match="a transaction that is still open"):
                app.tasks["plain.unique"].delay(1)
            assert app.tasks["plain.unique"].delay(2)
            session.commit()
            assert app.tasks["plain.unique"].delay(1).id == first.id

    def test_a_block_of_asyncio_refuses_a_duplicate(self, app: Celery) -> None:
        """Its messages are written later, when the id can't be replaced any more."""
        first = app.tasks["plain.unique"].delay(1)

        async def send() -> None:
            engine = create_async_engine(postgres_url(app.conf.pgbeat_url))
            try:
                async with engine.connect() as session, pgbeat.in_transaction(session, app):
                    app.tasks["plain.unique"].delay(1)
            finally:
                await engine.dispose()

        with pytest.raises(NotUnique, match=first.id):
            asyncio.run(send())


@pytest.mark.usefixtures("one")
class TestLanes:
    """A task gets its message with its slot."""

    def test_the_second_waits(self, app: Celery, sql: Sql) -> None:
        """It is in line, without a message."""
        tasks = [app.tasks["plain.in_lane"].delay(n) for n in range(2)]
        [(job_id,)] = sql("SELECT job_id::text FROM kombu_message")
        assert job_id == tasks[0].id
        assert [row[0] for row in jobs_of(sql, "dispatched_at IS NOT NULL")] == [True, False]

    def test_its_message_is_what_celery_made(
        self, app: Celery, sql: Sql, job_control: JobControl
    ) -> None:
        """With its place in the canvas, callbacks, headers and expiry."""
        in_lane, other = app.tasks["plain.in_lane"], app.tasks["other"]
        first = in_lane.delay()
        member = in_lane.s(1, k="v").set(
            headers={"mine": 1}, expires=3600, link=other.s(), time_limit=9, shadow="s"
        )
        result = group([member]).apply_async()
        job_control.do(control.cancel, jobs.get(job_control.connection, first.id))
        [payload] = [p for p in payloads(sql) if p["headers"]["id"] == result.children[0].id]
        headers, embed = payload["headers"], json.loads(b64decode(payload["body"]))[2]
        assert headers["group"] == result.id
        assert (headers["mine"], headers["timelimit"], headers["shadow"]) == (1, [9, None], "s")
        assert headers["expires"] is not None
        assert embed["callbacks"][0]["task"] == "other"
        assert headers["pgbeat_awaited"] == "now"

    def test_in_a_callers_transaction(self, app: Celery, sql: Sql, engine: Engine) -> None:
        """It exists if and only if the caller commits; beat dispatches it then."""
        with Session(engine) as session:
            app.tasks["plain.in_lane"].apply_async(
                (1,), connection=pgbeat.in_transaction(session, app)
            )
            assert jobs_of(sql, "id") == []
            session.rollback()
            with pgbeat.in_transaction(session, app):
                kept = app.tasks["plain.in_lane"].delay(2)
            session.commit()
        assert jobs_of(sql, "id::text, args, dispatched_at") == [(kept.id, [2], None)]

    def test_an_unknown_lane_is_refused(self, app: Celery, sql: Sql) -> None:
        """And nothing is written."""
        with pytest.raises(InvalidJob) as refused:
            app.tasks["plain.nowhere"].delay()
        assert [(p.field, p.code) for p in refused.value.problems] == [("lane", "unknown")]
        assert "task 'plain.nowhere'" in str(refused.value)
        assert "`pgbeat lanes list`" in str(refused.value)
        assert payloads(sql) == []
        assert jobs_of(sql, "id") == []


def test_approval(app: Celery, sql: Sql, job_control: JobControl) -> None:
    """The task waits for a person, and then gets the message that Celery made."""
    result = app.tasks["plain.approved"].apply_async((1,), headers={"mine": 1})
    assert jobs_of(sql, "state, dispatched_at") == [("paused", None)]
    assert payloads(sql) == []
    job_control.do(control.approve, jobs.get(job_control.connection, result.id))
    [payload] = payloads(sql)
    assert (payload["headers"]["id"], payload["headers"]["mine"]) == (result.id, 1)


def test_countdown_and_deadlines(app: Celery, sql: Sql) -> None:
    """The job is scheduled for that time, from which its deadlines count."""
    before = datetime.now(UTC)
    app.tasks["plain.due"].apply_async(countdown=600)
    [(state, run_at, start_by, end_by)] = jobs_of(sql, "state, run_at, must_start_by, must_end_by")
    assert state == "scheduled"
    assert timedelta(seconds=599) < run_at - before < timedelta(seconds=660)
    assert start_by - run_at == timedelta(seconds=60)
    assert end_by - run_at == timedelta(minutes=5)
    assert sql("SELECT visible, available_at FROM kombu_message") == [(False, run_at)]


def test_a_message_differs_only_in_the_headers_of_jobs(app: Celery, sql: Sql) -> None:
    """Options keep their meaning: the same call, with a policy and without."""
    options: dict[str, Any] = {
        "queue": "mail",
        "expires": 60,
        "link_error": app.tasks["other"].s(),
        "ignore_result": True,
        "headers": {"a": 1},
        "soft_time_limit": 5,
        "serializer": "json",
        "delivery_mode": 1,
        "task_id": str(uuid4()),
        "root_id": "r",
        "parent_id": "p",
        "eta": datetime(2030, 1, 1, tzinfo=UTC),
    }
    app.task(any_arguments, name="plain.same", shared=False, pgbeat={}).apply_async((1,), **options)
    sql("UPDATE pgbeat.jobs SET id = gen_random_uuid()")
    app.conf.pgbeat_task_policies = {}
    del app.tasks["plain.same"].__class__.pgbeat
    del app.send_task
    template_sender.equip_apps()
    app.tasks["plain.same"].apply_async((1,), **options)
    made, plain = payloads(sql)
    for payload in (made, plain):
        payload["properties"].pop("delivery_tag")
        payload["properties"].pop("expiration", None)
        payload["headers"].pop("expires")
    assert made["headers"].pop(JOB_HEADER) is True
    made["headers"].pop(NEW_JOB_HEADER)
    assert made == plain


def test_eager_tasks_are_celerys(app: Celery, sql: Sql) -> None:
    """They run in the process, as ever."""
    app.conf.task_always_eager = True
    app.tasks["plain.nowhere"].delay().get()
    app.tasks["plain.nowhere"].apply()
    assert jobs_of(sql, "id") == []


def test_an_id_must_be_one_of_a_job(app: Celery, sql: Sql) -> None:
    """A UUID; nothing is sent otherwise."""
    with pytest.raises(InvalidJob) as refused:
        app.tasks["shop.own"].apply_async(task_id="mine")
    assert refused.value.problems[0].field == "task_id"
    assert payloads(sql) == []


def test_submit_uses_the_policy_of_the_task(app: Celery, sql: Sql) -> None:
    """What is given to it is stronger."""
    make_lane(sql, "one")
    make_lane(sql, "two")
    assert pgbeat.submit(app.tasks["plain.in_lane"], 1).lane == "one"
    assert pgbeat.submit("plain.in_lane", 1, app=app, lane="two").lane == "two"
    made = pgbeat.submit_many([app.tasks["shop.own"].s(n) for n in range(2)], app=app)
    assert len(made) == 2
    assert jobs_of(sql, "priority")[-2:] == [(7,), (7,)]


@pytest.mark.usefixtures("one")
class TestSchedules:
    """What beat launches is sent by the policy too."""

    @pytest.mark.parametrize("policy", [{}, {"lane": "two"}])
    def test_its_job_policy_is_stronger(self, sql: Sql, beat: Beat, policy: dict[str, str]) -> None:
        """As what is given to `submit`."""
        make_lane(sql, "two")
        make_schedule(sql, due="-1 second", task="plain.in_lane", job_policy=policy)
        beat().run_due()
        assert jobs_of(sql, "lane") == [(policy.get("lane", "one"),)]

    def test_beats_refuse_wrong_policies(self, app: Celery, beat: Beat) -> None:
        """With a line for each mistake."""
        app.task(any_arguments, name="wrong", shared=False, pgbeat={"priority": "high"})
        with pytest.raises(SystemExit, match="priority"):
            beat()


class TestMistakes:
    """Found at the start, all at once."""

    def test_a_worker_warns_of_missing_lanes(
        self, app: Celery, sql: Sql, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With the tasks, and what makes the lane. Without a database, it starts all the same."""
        make_lane(sql, "never")
        policy_retries.tasks(app)
        said = [each for each in caplog.messages if "can't be sent" in each]
        assert ["missing" in each for each in said].count(True) == 1, said
        assert all("never" not in each for each in said)
        [missing] = [each for each in said if "missing" in each]
        assert "'plain.nowhere'" in missing
        assert "`pgbeat lanes list`" in missing
        app.conf.broker_url = app.conf.pgbeat_url = "pgbeat+postgresql://127.0.0.1:1/no"
        policy_retries.tasks(app)

    def test_all_are_reported(self, app: Celery) -> None:
        """With the task, the field and what is wrong."""
        wrong: dict[str, Any] = {
            "wrong.a": {"lanes": "gpu", "max_attempts": 0},
            "wrong.b": ["gpu"],
            "wrong.c": {"template": "t"},
        }
        for name, policy in wrong.items():
            app.task(any_arguments, name=name, shared=False, pgbeat=policy)
        with raises(
            ConfigError,
            ("task 'wrong.a'.lanes", "unknown_field"),
            ("task 'wrong.a'.max_attempts", "out_of_range"),
            ("task 'wrong.b'.pgbeat", "malformed"),
            ("task 'wrong.c'.template", "conflict"),
        ):
            task_policies.all_of(app)
        with pytest.raises(InvalidJob):
            app.tasks["wrong.a"].delay()

    def test_the_broker_must_be_in_pgbeats_database(self, app: Celery) -> None:
        """Otherwise there is no transaction that has both."""
        app.conf.pgbeat_url = "postgresql://elsewhere/other"
        with pytest.raises(ConfigError) as found:
            task_policies.all_of(app)
        assert "broker_url" in {p.field for p in found.value.problems}
