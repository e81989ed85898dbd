"""Fences: what they hold, what they refuse, and what the server is known by."""

import json

import pytest
from celery import Celery
from sqlalchemy import Connection

from pgbeat.database import fence
from pgbeat.errors import Fenced
from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.jobs import make_app
from tests.support.rows import make_schedule


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
    raised = run_with(app, "fence", "raise", "--reason", "PITR", "--admin", "--yes", "--json")
    assert json.loads(raised.stdout)["schedules"] == ["default/a", "other/c"]
    assert paused(sql) == (["celery", "mail"], ["a", "b", "c"])
    assert [task["queue"] for task in read(database, "fence", "tasks")] == ["celery"]
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


def test_what_is_refused(app: Celery, database: str, sql: Sql) -> None:
    assert "--admin" in refused(run(database, "fence", "raise", "--yes"), 1)
    assert "no fence is raised" in refused(run(database, "fence", "release", "--all", "--admin"), 1)
    assert run(database, "fence", "raise", "--admin", "--dry-run").exit_code == 0
    assert paused(sql) == (["mail"], ["b"])
    run(database, "fence", "raise", "--admin", "--yes")
    assert "is raised already" in refused(run(database, "fence", "raise", "--admin", "--yes"), 1)
    for what in ("--queue", "mail"), ("--schedule", "b"):
        refusal = refused(run(database, "fence", "release", *what, "--admin"), 1)
        assert f"the fence holds no {what[0][2:]}" in refusal
    assert run(database, "fence", "release", "--admin").exit_code == 2


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
