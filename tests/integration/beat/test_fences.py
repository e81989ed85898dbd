"""Fences: what they hold, what they refuse, and what the server is known by."""

import json
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from celery import Celery
from sqlalchemy import Connection, Engine

from pgbeat import submit
from pgbeat.beat.maintenance.leader_maintenance import LeaderMaintenance
from pgbeat.beat.verbs import fences
from pgbeat.broker.transport.consuming import consumers
from pgbeat.database import fence
from pgbeat.errors import AlreadyExists, Fenced
from pgbeat.jobs.rescuing import rescue
from pgbeat.jobs.verbs import control
from pgbeat.monitoring.fences import Held
from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.databases import connected
from tests.support.jobs import JobControl, make_app
from tests.support.rows import make_lane, make_schedule, unit_on
from tests.support.threads import waiting


@pytest.fixture
def app(database: str, sql: Sql) -> Celery:
    """An app with two queues, one of them paused, and three schedules, one of them paused."""
    app = make_app(database)
    for queue in "celery", "mail":
        app.send_task("tests.add", queue=queue)
    sql("UPDATE kombu_queue SET paused_at = now() WHERE name = 'mail'")
    make_schedule(sql, name="a")
    make_schedule(sql, name="b", paused_at="now")
    make_schedule(sql, name="c", namespace="other")
    return app


def paused(sql: Sql) -> tuple[list[str], list[str]]:
    """The paused queues and schedules."""
    queues = sql("SELECT name FROM kombu_queue WHERE paused_at IS NOT NULL ORDER BY name")
    schedules = sql("SELECT name FROM pgbeat.schedules WHERE paused_at IS NOT NULL ORDER BY name")
    return [name for (name,) in queues], [name for (name,) in schedules]


def test_all_is_held_and_released_but_what_was_paused_before(
    app: Celery, database: str, sql: Sql
) -> None:
    for payload in ('{"headers": [1]}', "[" * 2000 + "]" * 2000):  # a producer may write any
        write = "INSERT INTO kombu_message (visible, payload, queue_id) SELECT true, %s, id"
        sql(f"{write} FROM kombu_queue WHERE name = 'celery'", payload)
    raised = run_with(app, "fence", "raise", "--reason", "PITR", "--admin", "--yes", "--json")
    assert json.loads(raised.stdout)["schedules"] == ["default/a", "other/c"]
    assert paused(sql) == (["celery", "mail"], ["a", "b", "c"])
    assert [task["queue"] for task in read(database, "fence", "tasks")] == ["celery"] * 3
    [check] = [c for c in read(database, "doctor")["checks"] if c["check"] == "fence"]
    assert (check["result"], check["advice"][:15]) == ("warn", "`pgbeat fence` ")

    def release(*what: str) -> None:
        assert run(database, "fence", "release", *what, "--admin").exit_code == 0

    release("--schedule", "a")
    assert paused(sql) == (["celery", "mail"], ["b", "c"])
    release("--queue", "celery")
    assert paused(sql) == (["mail"], ["b", "c"])
    release("--schedules")
    assert paused(sql) == (["mail"], ["b"])
    shown = read(database, "fence")["fence"]
    assert (shown["queues"], shown["schedules"]) == ([], [])
    assert shown["released_at"] is not None
    verbs = "SELECT verb FROM pgbeat.audit WHERE kind = 'fence' ORDER BY id"
    assert [verb for (verb,) in sql(verbs)] == ["raise", "release", "release", "release"]
    assert run(database, "fence", "accept", "--admin").exit_code == 0
    assert sql("SELECT verb, kind FROM pgbeat.audit ORDER BY id DESC LIMIT 1") == [
        ("accept", "server")
    ]
    assert run(database, "fence", "raise", "--admin", "--yes").exit_code == 0
    assert read(database, "fence")["fence"]["epoch"] > shown["epoch"]


def held(database: str, *options: str) -> set[str]:
    """The ids of the tasks that the fence holds."""
    return {task["id"] for task in read(database, "fence", "tasks", *options)}


def all_come(sql: Sql, connection: Connection, app: Celery, job_control: JobControl) -> None:
    """Makes all that waits for its time or its lane due, and does what workers and beat do then."""
    sql("UPDATE kombu_message SET available_at = now() WHERE available_at IS NOT NULL")
    sql("UPDATE pgbeat.jobs SET run_at = now() WHERE state = 'scheduled'")
    sql("UPDATE pgbeat.lanes SET max_running = 100")
    consumers.promote(connection)
    maintenance = LeaderMaintenance(app, job_control.settings, job_control.publisher)
    maintenance.step(job_control.connection, is_due=True, is_idle=False)
    maintenance.close(5)


def release(app: Celery, tmp_path: Path, ended: Sequence[str]) -> set[str]:
    """Releases all, and returns the ids of what was dropped."""
    file = tmp_path / "ended"
    file.write_text("\n".join(ended))
    options = ("--all", "--ended", str(file), "--admin", "--json")
    return set(json.loads(run_with(app, "fence", "release", *options).stdout)["dropped"])


def test_what_becomes_due_is_still_held(
    app: Celery,
    database: str,
    sql: Sql,
    connection: Connection,
    job_control: JobControl,
    tmp_path: Path,
) -> None:
    """Its message is new then, or becomes visible."""
    make_lane(sql, "narrow")
    submit("tests.add", app=app, lane="narrow")
    later = [
        app.send_task("tests.add", countdown=3600).id,
        str(submit("tests.add", app=app, countdown=3600).id),
        str(submit("tests.add", app=app, lane="narrow").id),
    ]
    run(database, "fence", "raise", "--admin", "--yes")
    before = held(database)
    assert len(before) == 5 and before > set(later)
    app.send_task("tests.add")
    all_come(sql, connection, app, job_control)
    assert sql("SELECT visible, count(*) FROM kombu_message GROUP BY 1") == [(True, 7)]
    assert held(database) == before
    assert release(app, tmp_path, later) == set(later)
    assert sql("SELECT count(*) FROM kombu_message") == [(4,)]
    assert sql("SELECT DISTINCT state FROM pgbeat.jobs WHERE id = ANY (%s::uuid[])", later) == [
        ("cancelled",)
    ]


def test_a_retry_of_what_ran_is_held_in_its_place(
    app: Celery,
    database: str,
    sql: Sql,
    connection: Connection,
    job_control: JobControl,
    tmp_path: Path,
) -> None:
    """Beat ends what ran when the copy was made, and makes a job with another id."""
    make_lane(sql, "narrow")
    ran = submit("tests.add", app=app, lane="narrow", max_attempts=2)
    failed = submit("tests.add", app=app, max_attempts=1)
    execution, other = (job_control.begins(job.id) for job in (ran, failed))
    sql("DELETE FROM kombu_message WHERE job_id IS NOT NULL")
    job_control.tells(other, failed.id, "failed")
    run(database, "fence", "raise", "--admin", "--yes")
    why = "the worker {worker} died"
    rescue.end_lost(job_control.connection, job_control.publisher, [UUID(execution)], why)
    job_control.do(control.retry, failed, job_source="user_cli")
    retries = "SELECT id::text, state FROM pgbeat.jobs WHERE retry_of = %s"
    [(retry, _)] = sql(retries, str(ran.id))
    ended = [str(ran.id), str(failed.id)]
    for is_sent in (False, True):
        [task] = [task for task in read(database, "fence", "tasks") if task["is_job"]]
        assert (task["id"], task["retry_of"]) == (retry, ended[0])
        assert (task["message"] is not None) is is_sent
        all_come(sql, connection, app, job_control)
    assert release(app, tmp_path, ended) == {retry}
    assert sql(retries, str(ran.id)) == [(retry, "cancelled")]
    assert [state for _, state in sql(retries, str(failed.id))] == ["pending"]


def test_a_message_that_becomes_due_while_it_is_dropped(
    app: Celery, database: str, sql: Sql, engine: Engine, job_control: JobControl
) -> None:
    """It gets another number."""
    late = app.send_task("tests.add", countdown=3600).id
    run(database, "fence", "raise", "--admin", "--yes")
    sql("UPDATE kombu_message SET available_at = now() WHERE available_at IS NOT NULL")

    def drop() -> list[Held]:
        with job_control.unit().transaction() as unit:
            return fences.drop_ended(unit, [late])

    with engine.connect() as consumer:
        assert consumers.promote(consumer) == 1
        with waiting(sql, drop) as dropped:
            consumer.commit()
    assert [task.id for task in dropped.result()] == [late]
    assert sql("SELECT count(*) FROM kombu_message") == [(2,)]


def test_what_is_refused(app: Celery, database: str, sql: Sql) -> None:
    assert "--admin" in refused(run(database, "fence", "raise", "--yes"), 1)
    assert "no fence is raised" in refused(run(database, "fence", "release", "--all", "--admin"), 1)
    assert read(database, "fence", "raise", "--admin", "--dry-run")["queues"] == ["celery"]
    assert paused(sql) == (["mail"], ["b"])
    run(database, "fence", "raise", "--admin", "--yes")
    assert "is raised already" in refused(run(database, "fence", "raise", "--admin", "--yes"), 1)
    for what in ("--queue", "mail"), ("--schedule", "b"):
        refusal = refused(run(database, "fence", "release", *what, "--admin"), 1)
        assert f"the fence holds no {what[0][2:]}" in refusal
    assert run(database, "fence", "release", "--admin").exit_code == 2


def test_two_raise_it_at_once(app: Celery, database: str, sql: Sql, connection: Connection) -> None:
    """One of them is told that it is raised."""

    def again() -> None:
        unit = unit_on(connection)
        with pytest.raises(AlreadyExists, match="already, epoch 1"), unit.transaction():
            fences.raise_fence(unit)

    with connected(database) as own:
        own.exec_driver_sql("BEGIN")
        fences.raise_fence(unit_on(own))
        with waiting(sql, again):
            own.exec_driver_sql("COMMIT")
    assert paused(sql) == (["celery", "mail"], ["a", "b", "c"])


def test_a_copy_is_known_by_its_server(connection: Connection, sql: Sql) -> None:
    server = fence.read(connection)
    assert server.system is not None and server.timeline == 1
    sql("DELETE FROM pgbeat.servers")  # the migration has noted it
    fence.require_original(connection)  # nothing is noted
    sql("INSERT INTO pgbeat.servers VALUES (1, 1)")
    with pytest.raises(Fenced) as refusal:
        fence.require_original(connection)
    assert "run `pgbeat fence accept`" in refusal.value.advice
    assert fence.note(connection) is None
    fence.require_original(connection)


def test_a_promoted_server_is_told_from_the_one_before(connection: Connection, sql: Sql) -> None:
    server = fence.read(connection)
    sql("DELETE FROM pgbeat.servers")  # the migration has noted it
    sql("INSERT INTO pgbeat.servers VALUES (%s, 0)", server.system)
    assert fence.note(connection) == 0
    assert fence.note(connection) is None


def test_a_schema_without_fences(connection: Connection, sql: Sql, database: str) -> None:
    """As of the version before: there, nothing is known, and all works."""
    sql("DROP TABLE pgbeat.servers, pgbeat.fences")
    fence.require_newest(connection)
    fence.require_original(connection)
    assert fence.note(connection) is None
    assert read(database, "fence")["fence"] is None
    assert "pgbeat migrate" in run(database, "fence", "accept", "--admin").stderr
