"""What is killed, whenever it is killed: every due time has one tick and one message."""

import json
import re
import signal
import uuid
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer
from tests.support import killed_beats
from tests.support.databases import statements
from tests.support.processes import Process, Processes, until
from tests.support.rows import Sql, make_schedule
from tests.support.schedulers import Beat

LEADER = """
    SELECT l.pid FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objid = 1050
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def message_ids(sql: Sql) -> list[str]:
    return [json.loads(row[0])["headers"]["id"] for row in sql("SELECT payload FROM kombu_message")]


def assert_launched_once(sql: Sql) -> None:
    """Ticks, jobs and messages are the same set, each once."""
    launched = [str(row[0]) for row in sql("SELECT job_id FROM pgbeat.ticks ORDER BY 1")]
    assert len(set(launched)) == len(launched)
    assert sorted(message_ids(sql)) == launched
    assert [str(row[0]) for row in sql("SELECT id FROM pgbeat.jobs ORDER BY 1")] == launched


@pytest.mark.slow
@pytest.mark.parametrize("step", killed_beats.STEPS)
def test_killed_at_each_step(processes: Processes, beat: Beat, sql: Sql, step: str) -> None:
    """Twenty times each: the leader dies by SIGKILL at the step, another beat takes over.

    Those with a policy are written step by step, the others in one statement.
    """
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, next_run, condition_sql, job_policy) "
        "SELECT 's' || i, 'tests.add', '1 hour', now() + interval '1 hour', "
        "CASE WHEN i % 3 = 0 THEN 'SELECT true' END, "
        "CASE WHEN i % 2 = 0 THEN '{\"priority\": 1}' ELSE '{}' END::jsonb "
        "FROM generate_series(1, 9) i"
    )
    with killed_beats.opened(processes.env, step) as kill_one:
        for n in range(1, 21):
            killed_beats.take_over(sql, kill_one, beat)
            assert sql("SELECT count(*), count(DISTINCT due_at) FROM pgbeat.ticks") == [(9 * n, n)]
            assert sql("SELECT DISTINCT outcome FROM pgbeat.ticks") == [("launched",)]
        assert_launched_once(sql)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["after messages", "before commit", "after commit"])
def test_several_jobs_killed_at_each_step(
    processes: Processes, beat: Beat, sql: Sql, step: str
) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, next_run, launcher) "
        "SELECT 's' || i, 'tests.add', '1 hour', now() + interval '1 hour', 'Three' "
        "FROM generate_series(1, 3) i"
    )
    with killed_beats.opened(processes.env, step) as kill_one:
        for n in range(1, 6):
            killed_beats.take_over(sql, kill_one, beat)
            assert sql("SELECT count(*), count(DISTINCT due_at) FROM pgbeat.ticks") == [(3 * n, n)]
    launched = "SELECT unnest(job_id || more_job_ids) FROM pgbeat.ticks"
    ids = sorted(str(row[0]) for row in sql(launched))
    assert len(ids) == len(set(ids)) == 45
    assert sorted(message_ids(sql)) == ids
    assert sorted(str(row[0]) for row in sql("SELECT id FROM pgbeat.jobs")) == ids


@pytest.mark.slow
def test_four_beats_launch_once(processes: Processes, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every) "
        "SELECT 's' || i, 'tests.add', '1 second' FROM generate_series(1, 20) i"
    )
    beats = [processes.beat() for _ in range(4)]
    for process in beats:
        process.says("beat: Starting...")
    enough = "SELECT count(DISTINCT due_at) >= %s FROM pgbeat.ticks"
    until(lambda: sql(enough, 5)[0][0], 45)
    for process in beats:
        process.send_signal(signal.SIGTERM)
    for process in beats:
        assert process.wait(20) == 0, process.output
    assert sum("This beat leads" in process.output for process in beats) >= 1
    assert_launched_once(sql)


def leading(beats: Iterable[Process]) -> Process | None:
    return next((beat for beat in beats if "This beat leads" in beat.output), None)


def test_the_standby_takes_over_when_the_leader_is_killed(processes: Processes, sql: Sql) -> None:
    make_schedule(sql, every="1 second")
    beats = {processes.beat() for _ in range(3)}
    for n in range(3):
        leader = until(partial(leading, beats))
        until(lambda n=n: sql("SELECT count(*) > %s FROM pgbeat.ticks", n * 3)[0][0])  # type: ignore[misc]
        [(before,)] = sql(LEADER)
        leader.kill_group()
        beats.discard(leader)
        if beats:
            until(lambda p=before: [r for r in sql(LEADER) if r[0] != p])  # type: ignore[misc]
    assert_launched_once(sql)


@pytest.mark.slow
def test_a_frozen_leader_is_replaced_and_fenced(processes: Processes, sql: Sql) -> None:
    """Stopped by SIGSTOP it loses its session after its silence; awake again it stands by."""
    make_schedule(sql, every="1 second")
    leader = processes.beat()
    leader.says("This beat leads")
    standby = processes.beat()
    standby.says("beat: Starting...")
    leader.send_signal(signal.SIGSTOP)
    standby.says("This beat leads", 60)
    leader.send_signal(signal.SIGCONT)
    leader.says("Lost the database")
    leader.says("The database is back")
    assert leader.output.count("This beat leads") == 1
    for beat in (standby, leader):
        beat.kill_group()  # nothing more is launched while the tables are compared
    assert_launched_once(sql)


@pytest.mark.slow
def test_backends_terminated_at_random(processes: Processes, sql: Sql) -> None:
    """The server cuts beat's connections again and again; nothing is lost, nothing twice."""
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, condition_sql) "
        "SELECT 's' || i, 'tests.add', '300 milliseconds', "
        "CASE WHEN i % 2 = 0 THEN 'SELECT true' END FROM generate_series(1, 10) i"
    )
    process = processes.beat()
    for n in range(10):
        until(lambda n=n: sql("SELECT count(*) > %s FROM pgbeat.ticks", n * 12)[0][0])  # type: ignore[misc]
        sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'pgbeat %' AND datname = current_database()"
        )
    until(lambda: sql("SELECT count(*) > 130 FROM pgbeat.ticks")[0][0])
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0, process.output
    assert sql("SELECT DISTINCT outcome FROM pgbeat.ticks") == [("launched",)]
    assert_launched_once(sql)
    assert "Lost the database" in process.output and "The database is back" in process.output
    assert "Traceback" not in process.output


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_the_database_restarts(
    own_server: TemporaryServer, tmp_path: Path, sign: signal.Signals
) -> None:
    """Two beats wait for it, calmly, and go on; what was committed is there, once."""
    migrate.upgrade(postgres_url(own_server.dsn))
    processes = Processes(own_server.dsn, tmp_path)

    def sql(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with statements(own_server.dsn) as run:
            return run(statement, *parameters)

    def count() -> int:
        return int(sql("SELECT count(*) FROM pgbeat.ticks")[0][0])

    try:
        sql(
            "INSERT INTO pgbeat.schedules (name, task, every) "
            "SELECT 's' || i, 'tests.add', '200 milliseconds' FROM generate_series(1, 10) i"
        )
        beats = [processes.beat(), processes.beat()]
        for n in range(1, 3):
            until(lambda n=n: count() > n * 100)  # type: ignore[misc]
            own_server.stop(sign)
            own_server.start()
        before = count()
        until(lambda: count() > before + 50)
        for process in beats:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0, process.output
            assert process.output.count("Lost the database") <= 2
            assert "Traceback" not in process.output
        assert sql("SELECT DISTINCT outcome FROM pgbeat.ticks") == [("launched",)]
        assert_launched_once(sql)
    finally:
        processes.stop_all()


@pytest.mark.parametrize(
    ("change", "undo", "why"),
    [
        (
            "UPDATE pgbeat.servers SET system_identifier = system_identifier + 1",
            "UPDATE pgbeat.servers SET system_identifier = system_identifier - 1",
            "the database is a copy, or was moved",
        ),
        (
            "ALTER SCHEMA pgbeat RENAME TO gone",
            "ALTER SCHEMA gone RENAME TO pgbeat",
            "the database has no pgbeat schema",
        ),
    ],
    ids=["copy", "no schema"],
)
def test_a_database_that_comes_back_unfit_is_waited_for(
    processes: Processes, sql: Sql, change: str, undo: str, why: str
) -> None:
    """As after a restore, or while one is under way."""
    beat = processes.beat()
    beat.says("This beat leads")
    sql(change)
    sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    beat.says(f"The database can't be used, trying again: {why}")
    sql(undo)
    until(lambda: beat.output.count("This beat leads") == 2)
    assert beat.output.count(why) == 1


def test_why_a_database_stays_away_is_said(processes: Processes, sql: Sql) -> None:
    """Not only how the sessions ended: a role was changed, and nobody gets in."""
    role = f"rotated_{uuid.uuid4().hex[:8]}"
    sql(f"CREATE ROLE {role} SUPERUSER LOGIN")
    url = postgres_url(processes.database).set(drivername="postgresql", username=role)
    processes.env |= {"TESTS_DATABASE": url.render_as_string(hide_password=False)}
    try:
        beat = processes.beat()
        beat.says("This beat leads", 90)
        sql(f"ALTER ROLE {role} NOLOGIN")
        sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", role)
        beat.says("Lost the database")
        refused = re.compile(r"is still away, trying again: .*not permitted to log in")
        until(lambda: len(refused.findall(beat.output)) == 1)
        sql(f"ALTER ROLE {role} LOGIN")
        until(lambda: beat.output.count("This beat leads") == 2)
    finally:
        processes.stop_all()
        sql(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.slow
def test_a_beat_that_starts_before_its_database(
    tmp_path: Path, own_server: TemporaryServer
) -> None:
    """It waits for the server, says so once, and begins when it is there."""
    migrate.upgrade(postgres_url(own_server.dsn))
    processes = Processes(own_server.dsn, tmp_path)
    try:
        own_server.stop()
        beat = processes.beat()
        beat.says("Lost the database, trying again until it is back")
        own_server.start()
        beat.says("This beat leads")
        assert beat.output.count("Lost the database") == 1
        beat.says("The database is back after")
    finally:
        processes.stop_all()
