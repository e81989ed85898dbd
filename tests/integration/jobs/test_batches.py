"""Batches: how members are written and wait, which batches start, and what is refused."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain
from sqlalchemy import Connection

import pgbeat
from pgbeat.access.redaction import Redactor
from pgbeat.beat import due as beat_due
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.errors import InvalidJob
from pgbeat.jobs.explaining import explain
from pgbeat.jobs.flow import batch_members, lifecycle
from pgbeat.jobs.flow.batch_members import BatchStarter
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.states import due
from pgbeat.jobs.verbs import changes, control
from pgbeat.worker.finishing import batches, endings
from tests.support.jobs import ALICE, JobControl, opened_app
from tests.support.problems import raises
from tests.support.rows import Sql


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    """An app with tasks that run in batches."""
    tasks = {
        "three": {"batch": 3, "batch_after": "1 hour"},
        "by_shop": {"batch": 3, "batch_after": "1 hour", "batch_by": "kwargs.shop"},
        "by_place": {"batch": 3, "batch_by": "args.1", "priority": 2},
        "single": {},
    }
    with opened_app(database, tasks) as app:
        yield app


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A session in a transaction."""
    with connections.engine(postgres_url(database), "tests").begin() as connection:
        yield connection


def nothing(members: list[pgbeat.Member]) -> None:
    """Does nothing with the members of a batch."""


def started(connection: Connection) -> list[str]:
    """Returns the jobs whose messages are sent now."""
    connection.exec_driver_sql("COMMIT AND CHAIN")
    ids = [str(job.id) for job in BatchStarter("default").start(connection)]
    connection.exec_driver_sql("COMMIT AND CHAIN")
    return ids


def calls(app: Celery, task: str, count: int, **options: Any) -> list[str]:
    """Calls a task so often, and returns the ids."""
    return [app.tasks[task].apply_async(**options).id for _ in range(count)]


def age(sql: Sql, *ids: str) -> None:
    """Makes jobs two hours older."""
    for job in ids:
        sql("UPDATE pgbeat.jobs SET created_at = created_at - interval '2 h' WHERE id = %s", job)


def test_a_member_waits_with_its_message(app: Celery, sql: Sql) -> None:
    """In its row, and in no queue."""
    app.tasks["by_place"].delay(1, {"b": 2, "a": None})
    app.tasks["by_shop"].delay(1)
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
    rows = sql(
        "SELECT state, dispatched_at, priority, message -> 'batch' FROM pgbeat.jobs ORDER BY task"
    )
    assert rows == [
        ("pending", None, 2, {"key": '{"a": null, "b": 2}', "size": 3, "after": 1}),
        ("pending", None, 0, {"key": "null", "size": 3, "after": 3600}),
    ]


def test_full_batches_start(app: Celery, connection: Connection) -> None:
    """One message for each; those that it will take along start no other."""
    ids = calls(app, "three", 7)
    first = started(connection)
    assert len(first) == 2 and set(first) < set(ids)
    assert started(connection) == []
    ids += calls(app, "three", 2)
    assert len(started(connection)) == 1
    own, others = batch_members.take(connection, first[0])
    assert own is not None and str(own.id) == first[0]
    assert len(others) == 2 and not {str(job.id) for job in others} & set(first)


def test_members_share_key_and_queue(app: Celery, connection: Connection) -> None:
    """Otherwise they are in other batches."""
    calls(app, "by_shop", 2, kwargs={"shop": 1})
    calls(app, "by_shop", 1, kwargs={"shop": "1"})
    calls(app, "by_shop", 1, kwargs={"shop": 1}, queue="other")
    assert started(connection) == []
    last = calls(app, "by_shop", 1, kwargs={"shop": 1})
    assert len(started(connection)) == 1
    assert last


def test_a_member_that_has_waited_starts_its_batch(
    app: Celery, connection: Connection, sql: Sql
) -> None:
    """The beat knows when. A higher priority goes first."""
    ids = calls(app, "three", 2)
    assert beat_due.snapshot(connection).has_members
    starter = BatchStarter("default")
    assert starter.start(connection) == []
    assert 3500 < starter.look_at - time.monotonic() <= 3600
    age(sql, ids[0])
    sql("UPDATE pgbeat.jobs SET priority = 1 WHERE id = %s", ids[1])
    assert started(connection) == [ids[1]]
    _, others = batch_members.take(connection, ids[1])
    assert [str(job.id) for job in others] == [ids[0]]


def test_a_member_for_later_waits_for_its_time_first(
    app: Celery, connection: Connection, sql: Sql
) -> None:
    """Then it joins those that wait."""
    [later] = calls(app, "three", 1, countdown=600)
    calls(app, "three", 2)
    assert started(connection) == []
    sql("UPDATE pgbeat.jobs SET run_at = now() WHERE id = %s", later)
    connection.exec_driver_sql("COMMIT AND CHAIN")
    [job] = due.take(connection, "default")
    assert (job.state, job.dispatched_at) == ("pending", None)
    assert len(started(connection)) == 1


def test_a_look_reads_a_page(
    app: Celery, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have their turn, and no batch is cut where a page ends."""
    monkeypatch.setattr(batch_members, "PAGE", 7)
    for shop in range(5):
        calls(app, "by_shop", 2, kwargs={"shop": shop})
    full = {ids[0] for shop in "xyz" if (ids := calls(app, "by_shop", 6, kwargs={"shop": shop}))}
    starter = BatchStarter("default")
    looks, found = 0, set[str]()
    while not looks or starter.look_at - time.monotonic() < 60:
        found |= {str(job.id) for job in starter.start(connection)}
        connection.exec_driver_sql("COMMIT AND CHAIN")
        looks += 1
    assert full <= found and len(found) == 6 and looks > 3
    assert starter.start(connection) == []


def test_the_size_is_the_smaller_one(app: Celery, connection: Connection) -> None:
    """That of the task that sent it, or of the one that runs it."""
    calls(app, "three", 3)
    [first] = started(connection)
    _, others = batch_members.take(connection, first, most=2)
    assert len(others) == 1


def test_keys_of_any_length(app: Celery, connection: Connection) -> None:
    """What is too long for an index is hashed; what is not JSON can't be a key."""
    for ending in ("a", "a", "b", "a"):
        shop = "".join(map(str, range(3000))) + ending
        calls(app, "by_shop", 1, kwargs={"shop": shop})
    assert len(started(connection)) == 1
    with raises(InvalidJob, ("batch_by", "malformed")):
        app.tasks["by_shop"].apply_async(kwargs={"shop": {1}}, serializer="pickle")


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_member_that_was_paused_waits_again(
    app: Celery, connection: Connection, job_control: JobControl, is_sent: bool
) -> None:
    """For its batch, as it did before."""
    ids = calls(app, "three", 3 if is_sent else 2)
    if is_sent:
        [job] = started(connection)
        lifecycle.publish(connection, job_control.publisher, [jobs.get(connection, job)])
        connection.exec_driver_sql("COMMIT AND CHAIN")
        ids = [job]
    before = jobs.get(connection, ids[0])
    assert job_control.do(control.pause, before).state == "paused"
    resumed = job_control.do(control.resume, before)
    assert (resumed.state, resumed.dispatched_at) == ("pending", None)
    assert (resumed.message or {})["batch"] == (before.message or {})["batch"]
    assert len(started(connection)) == int(is_sent)


def test_a_member_gets_no_lane(app: Celery, job_control: JobControl) -> None:
    """It would wait for two things."""
    [job] = calls(app, "three", 1)
    with raises(InvalidJob, ("lane", "conflict")):
        job_control.do(changes.update, jobs.get(job_control.connection, job), values={"lane": "a"})


def test_tasks_of_classes(app: Celery, sql: Sql) -> None:
    """They take any arguments, too."""

    class Summing(app.Task):
        name = "summing"
        pgbeat = {"batch": 3}  # noqa: RUF012

        def run(self, members: Any) -> list[int]:
            return [sum(member.args) for member in members]

    task = app.register_task(Summing())
    assert task.apply((1, 2)).get() == 3
    task.delay(1, 2, shop=3)
    assert sql("SELECT message #>> '{batch,size}' FROM pgbeat.jobs") == [("3",)]
    batches.set_up(task)
    with raises(InvalidJob, ("replace", "conflict")):
        task.on_replace(None)


def test_where_a_member_is(app: Celery, connection: Connection) -> None:
    """It says how full its batch is, also of a job that is masked or brief."""
    ids = calls(app, "three", 2)
    job, [brief] = jobs.get(connection, ids[0]), jobs.find_brief(connection, ids[:1])
    masked = Redactor(ALICE, {"three": ["card"]}, app.tasks).row(job, job.task)
    for row in (job, brief, masked):
        where = explain.of_job(connection, row, connections.now(connection))
        assert where.cause == "batch"
        assert where.sentence.startswith(
            "waits for its batch, which has 2 of 3 members, and starts in "
        )


def test_where_a_masked_part_of_a_canvas_is(app: Celery, connection: Connection) -> None:
    """It has its message in its row, too."""
    single = app.tasks["single"]
    job = jobs.get(connection, chain(single.s(), single.s()).apply_async().parent.id)
    assert job.message
    masked = Redactor(ALICE, {"single": ["card"]}, app.tasks).row(job, job.task)
    assert explain.of_job(connection, masked, connections.now(connection)).cause == "queue"


def test_calls_without_a_worker(app: Celery) -> None:
    """A direct call gets the list from its caller; an eager one is a batch of one."""

    def double(members: list[pgbeat.Member]) -> list[int]:
        return [member.args[0] * 2 for member in members]

    task = app.task(double, name="double", shared=False, pgbeat={"batch": 5})
    assert task([pgbeat.Member("1", (1,), {}), pgbeat.Member("2", (2,), {})]) == [2, 4]
    assert task.apply((4,)).get() == 8


def test_what_is_refused(app: Celery) -> None:
    """With the key that is wrong."""

    def refused(policy: dict[str, Any]) -> list[tuple[str, str]]:
        app.task(nothing, name=f"bad.{policy}", shared=False, pgbeat=policy)
        with pytest.raises(InvalidJob) as raised:
            task_policies.of_task(app, f"bad.{policy}")
        return [(problem.field, problem.code) for problem in raised.value.problems]

    assert refused({"batch": 1}) == [("batch", "out_of_range")]
    assert refused({"batch": "many"}) == [("batch", "malformed")]
    assert refused({"batch_after": 3}) == [("batch", "required")]
    assert refused({"batch": 3, "batch_by": "shop"}) == [("batch_by", "malformed")]
    assert refused({"batch": 3, "batch_after": "soon"})[0][0] == "batch_after"
    assert refused({"batch": 3, "lane": "a", "requires_approval": True}) == [
        ("lane", "conflict"),
        ("requires_approval", "conflict"),
    ]
    app.conf.pgbeat_task_policies = {"globbed": {"batch": 3}}
    app.task(nothing, name="globbed", shared=False)
    with raises(InvalidJob, ("batch", "conflict")):
        task_policies.of_task(app, "globbed")
    options: dict[str, Any] = {"autoretry_for": (ValueError,), "pgbeat": {"batch": 3}}
    with raises(InvalidJob, ("autoretry_for", "conflict")):
        app.task(nothing, name="retries", shared=False, **options)


def test_workers_that_cannot_run_batches_do_not_start(database: str) -> None:
    """Without records, or results elsewhere, the members could not end together."""
    tasks = {"three": {"batch": 3}}
    url = f"pgbeat+{database}"
    with opened_app(database, tasks, result_backend=url) as app:
        assert endings.tasks(app)["three"] is True
        app.conf.pgbeat_track = "off"
        with pytest.raises(SystemExit, match=r"'three'.*pgbeat_track"):
            endings.tasks(app)
    with (
        opened_app(database, tasks, result_backend="cache+memory://") as app,
        pytest.raises(SystemExit, match=r"'three'.*result backend"),
    ):
        endings.tasks(app)


def test_what_failed_is_said_by_place() -> None:
    """With exceptions."""
    with pytest.raises(TypeError):
        pgbeat.Failed({"1": ValueError()})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        pgbeat.Failed({1: "no"})  # type: ignore[dict-item]
