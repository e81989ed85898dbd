"""Servers that were left behind, and copies of a database: nobody works on either unasked."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kombu.exceptions import OperationalError
from sqlalchemy import NullPool, create_engine

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.database import fence
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer, in_database
from tests.chaos import app as chaos_app
from tests.support.apps import deployed
from tests.support.command_line import read, run, run_with
from tests.support.databases import statements
from tests.support.failing_servers import cold_copy, promote, promoted_copy, standby
from tests.support.processes import ROOT, Process, Processes, until
from tests.support.rows import make_schedule

APP = "tests.support.apps.deployed"


@pytest.fixture
def primary() -> Iterator[TemporaryServer]:
    server = TemporaryServer()
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE shop")
    migrate.upgrade(postgres_url(shop(server)))
    yield server
    server.remove()


def shop(server: TemporaryServer) -> str:
    return in_database(server.dsn, "shop")


def sql(server: TemporaryServer, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with statements(shop(server)) as run:
        return run(statement, *parameters)


def worker(processes: Processes) -> Process:
    return processes.worker("-P", "prefork", "-c", "2", app=APP, TESTS_VERSION="1")


def beat(processes: Processes) -> Process:
    return processes.beat("--max-interval", "1", app=APP, TESTS_VERSION="1")


@pytest.mark.slow
def test_beats_and_workers_leave_a_server_that_was_left_behind(
    primary: TemporaryServer, tmp_path: Path
) -> None:
    """Both servers of the URL take writes, as after a primary thawed whose standby was promoted.

    The new one can be reached only once they are at work on the old one.
    """
    successor = promoted_copy(primary)
    sockets = [postgres_url(server.dsn).query["host"] for server in (primary, successor)]
    link = primary.log.parent / "new"
    dsn = f"postgresql://postgres@/shop?host={sockets[0]}&host={link}"
    processes = Processes(dsn, tmp_path)
    try:
        old = worker(processes), beat(processes)
        old[0].says("ready.")
        old[1].says("This beat leads")
        link.symlink_to(str(sockets[1]))
        for process in old:
            process.says("the server was left behind: it is on timeline 1", 60)
        until(lambda: old[1].output.count("This beat leads") == 2)
        sender = deployed.make(shop(successor), "1")
        assert sender.tasks["shop.both"].delay(1).get(timeout=60) == 2
        assert sql(primary, "SELECT DISTINCT timeline FROM pgbeat.servers") == [(1,)]
        until(lambda: sql(successor, "SELECT max(timeline) FROM pgbeat.servers") == [(2,)])
        new = beat(processes)  # which is led to the old one first
        new.says("Standing by: beat", 60)
        assert sql(primary, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []
    finally:
        processes.stop_all()
        successor.remove()


@pytest.mark.slow
def test_a_result_is_stored_on_the_newer_server_once_that_is_known(
    primary: TemporaryServer,
) -> None:
    """The results' connection to the old one is still there, and works."""
    successor = promoted_copy(primary)
    sockets = [postgres_url(server.dsn).query["host"] for server in (primary, successor)]
    link = primary.log.parent / "new"
    app = deployed.make(f"postgresql://postgres@/shop?host={sockets[0]}&host={link}", "1")
    try:
        app.backend.store_result("one", 1, "SUCCESS")
        link.symlink_to(str(sockets[1]))
        fence.look_around(postgres_url(shop(successor)))
        app.backend.store_result("two", 2, "SUCCESS")
        stored = "SELECT task_id FROM pgbeat.results"
        assert (sql(primary, stored), sql(successor, stored)) == ([("one",)], [("two",)])
    finally:
        app.close()
        successor.remove()


@pytest.mark.slow
def test_a_block_publishes_nothing_on_a_server_that_is_not_its_transactions(
    primary: TemporaryServer,
) -> None:
    """The transaction is on the old server, the broker's connection on the new one by then."""
    app = deployed.make(shop(primary), "1")
    app.tasks["shop.both"].delay(0)
    app.close()
    successor = promoted_copy(primary)
    sockets = [postgres_url(server.dsn).query["host"] for server in (primary, successor)]
    link = primary.log.parent / "new"
    app = deployed.make(f"postgresql://postgres@/shop?host={sockets[0]}&host={link}", "1")
    messages = "SELECT count(*) FROM kombu_message"
    try:
        app.tasks["shop.both"].delay(1)
        with create_engine(postgres_url(shop(primary)), poolclass=NullPool).connect() as connection:
            with (
                pytest.raises(OperationalError, match="another server has taken over"),
                pgbeat.in_transaction(connection, app=app),
            ):
                link.symlink_to(str(sockets[1]))
                fence.look_around(postgres_url(shop(successor)))
                with suppress(psycopg.OperationalError):  # it was led to the old one again
                    app.tasks["shop.both"].delay(2)
                app.tasks["shop.both"].delay(3)
            connection.rollback()
        assert (sql(primary, messages), sql(successor, messages)) == ([(2,)], [(1,)])
    finally:
        app.close()
        successor.remove()


@pytest.fixture
def copy(primary: TemporaryServer) -> Iterator[TemporaryServer]:
    """A server that gets a dump of the shop's database."""
    server = TemporaryServer()
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE shop")
    yield server
    server.remove()


def restore(primary: TemporaryServer, copy: TemporaryServer) -> None:
    """Dumps the database, and restores it on the other server."""
    programs = primary.programs
    dumped = subprocess.run(
        [programs / "pg_dump", shop(primary)], check=True, capture_output=True
    ).stdout
    subprocess.run(
        [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", shop(copy)],
        check=True,
        input=dumped,
        capture_output=True,
    )


@pytest.mark.slow
def test_a_restored_database_does_nothing_twice(
    primary: TemporaryServer, copy: TemporaryServer, tmp_path: Path
) -> None:
    """Nobody leads or consumes there until a person says what it is; then tasks are released."""
    app = deployed.make(shop(primary), "1")
    both, job = app.tasks["shop.both"], app.tasks["shop.job1"]
    plain = [both.delay(n).id for n in range(2)]
    jobs = [job.delay(n).id for n in range(2)]
    later = [both.apply_async((2,), countdown=2).id, str(pgbeat.submit(job, 2, countdown=2).id)]
    make_schedule(lambda *each: sql(primary, *each), due="0", task="shop.both")
    restore(primary, copy)

    url, restored = shop(copy), deployed.make(shop(copy), "1")
    assert "copy" in next(
        c["detail"] for c in read(url, "doctor")["checks"] if c["check"] == "fence"
    )
    processes = Processes(url, tmp_path)
    try:
        late = worker(processes)
        late.says("the database is a copy, or was moved", 60)
        led = beat(processes)
        assert led.wait(60) == 1
        assert "run `pgbeat fence raise`" in led.output

        assert run(url, "fence", "raise", "--admin", "--yes").exit_code == 0
        late.says("ready.", 60)
        beat(processes).says("This beat leads", 60)
        come = "SELECT count(*) FROM kombu_message WHERE visible"
        until(lambda: sql(copy, come) == [(6,)])
        assert {task["id"] for task in read(url, "fence", "tasks")} == {*plain, *jobs, *later}
        shown = read(url, "fence")["fence"]
        assert (shown["queues"], len(shown["schedules"])) == (["celery"], 1)
        assert sql(copy, "SELECT count(*) FROM pgbeat.executions") == [(0,)]

        ended, gone = tmp_path / "ended", {plain[0], jobs[0], *later}
        ended.write_text("\n".join([*gone, "something else"]))
        twice = read(url, "fence", "tasks", "--ended", str(ended))
        assert {task["id"] for task in twice} == gone
        released = run_with(
            restored, "fence", "release", "--queues", "--ended", str(ended), "--admin", "--json"
        )
        assert set(json.loads(released.stdout)["dropped"]) == gone
        assert restored.AsyncResult(plain[1]).get(timeout=30) == 2
        assert restored.AsyncResult(jobs[1]).get(timeout=30) == 2
        assert restored.AsyncResult(jobs[0]).state == "REVOKED"
        assert restored.AsyncResult(plain[0]).state == "PENDING"
        assert sql(copy, "SELECT count(*) FROM pgbeat.ticks") == [(0,)]

        assert run(url, "fence", "release", "--all", "--admin").exit_code == 0
        assert read(url, "fence")["fence"]["released_at"] is not None
        assert sql(copy, "SELECT DISTINCT paused_at FROM pgbeat.schedules") == [(None,)]
    finally:
        processes.stop_all()
        app.close()
        restored.close()


@pytest.mark.slow
def test_a_restore_to_a_point_in_time(primary: TemporaryServer, tmp_path: Path) -> None:
    """The runbook, step by step: the server has the same system identifier, and a new timeline."""
    archive = primary.log.parent / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    with psycopg.connect(primary.dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET archive_mode = on")
        admin.execute(f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f'")
    restored, data = cold_copy(primary, "recovery.signal")
    primary.start()
    app = deployed.make(shop(primary), "1")
    sent = [app.tasks["shop.both"].delay(n) for n in range(2)]
    [(moment,)] = sql(primary, "SELECT clock_timestamp()::text")
    processes = Processes(shop(primary), tmp_path)
    worker(processes).says("ready.", 60)
    assert [result.get(timeout=30) for result in sent] == [1, 2]
    processes.stop_all()
    with psycopg.connect(primary.dsn, autocommit=True) as admin:
        admin.execute("SELECT pg_switch_wal()")
    until(lambda: sql(primary, "SELECT archived_count > 0 FROM pg_stat_archiver") == [(True,)])
    primary.stop()

    settings = f"""
        restore_command = 'cp {archive}/%f %p'
        recovery_target_time = '{moment}'
        recovery_target_action = promote
    """
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(settings.replace("        ", ""))
    restored.start()
    try:
        url = shop(restored)
        until(lambda: sql(restored, "SELECT pg_is_in_recovery()") == [(False,)])
        assert run(url, "fence", "raise", "--admin", "--yes").exit_code == 0
        marks = tmp_path / "ended"
        marks.write_text("".join(f"{result.id}\n" for result in sent))
        processes = Processes(url, tmp_path)
        worker(processes).says("ready.", 60)
        beat(processes).says("This beat leads", 60)
        twice = {task["id"] for task in read(url, "fence", "tasks", "--ended", str(marks))}
        assert twice == {result.id for result in sent}
        release = ("release", "--all", "--ended", str(marks), "--admin")
        assert "Dropped 2 tasks. All is released." in run(url, "fence", *release).stdout
        new = deployed.make(url, "1")
        assert new.tasks["shop.both"].delay(7).get(timeout=30) == 8
        assert sql(restored, "SELECT count(*) FROM pgbeat.results") == [(1,)]
    finally:
        processes.stop_all()
        restored.remove()
        primary.start()


@pytest.mark.slow
def test_an_asynchronous_replica_is_promoted(primary: TemporaryServer, tmp_path: Path) -> None:
    """The runbook, step by step: what the replica did not get is found on the old primary."""
    app = deployed.make(shop(primary), "both")
    plain, job = app.tasks["shop.both"], app.tasks["shop.job1"]
    with standby(primary) as (replica, network), ExitStack() as stack:
        ended = [plain.delay(1).id, job.delay(1).id]
        kept = plain.delay(2)
        until(lambda: sql(replica, "SELECT count(*) FROM kombu_message") == [(3,)])
        network.cut()
        sql(primary, "DELETE FROM kombu_message WHERE payload LIKE %s", f"%{kept.id}%")
        processes = Processes(shop(primary), tmp_path)
        stack.callback(processes.stop_all)
        worker(processes).says("ready.", 60)
        for task in ended:
            assert app.AsyncResult(task).get(timeout=30) == 2
        processes.stop_all()
        lost = [plain.delay(3).id, job.delay(4).id]

        began = time.monotonic()
        primary.stop()
        [(moment,)] = sql(replica, "SELECT pg_last_xact_replay_timestamp()::text")
        promote(replica)
        url = shop(replica)
        raised = run(url, "fence", "raise", "--admin", "--yes", "--restored-to", moment)
        assert raised.exit_code == 0, raised.output
        processes = Processes(url, tmp_path)
        stack.callback(processes.stop_all)
        worker(processes).says("ready.", 60)
        beat(processes).says("This beat leads", 60)
        new = deployed.make(url, "1")
        later = new.tasks["shop.both"].delay(5)
        primary.start()
        env = {"PATH": f"{primary.programs}:{os.environ['PATH']}"}
        command = [str(ROOT / "deploy/lost-tasks.sh"), shop(primary), url, "1 hour"]
        subprocess.run(command, check=True, cwd=tmp_path, env=env)
        assert set((tmp_path / "ended").read_text().split()) == set(ended)
        release = ("release", "--all", "--ended", str(tmp_path / "ended"), "--admin")
        assert "Dropped 2 tasks. All is released." in run_with(new, "fence", *release).stdout
        made = run_with(new, "jobs", "run-many", str(tmp_path / "lost"), "--admin")
        assert "Made 2 jobs." in made.stdout, made.output
        sent = dict(sql(replica, "SELECT metadata->>'lost', id::text FROM pgbeat.jobs"))
        assert {new.AsyncResult(sent[task]).get(timeout=30) for task in lost} == {4, 5}
        print(f"the steps took {time.monotonic() - began:.0f} s")
        assert new.AsyncResult(kept.id).get(timeout=30) == 3
        assert later.get(timeout=30) == 6


@pytest.mark.slow
def test_what_a_replica_did_not_get_is_recorded_again(
    primary: TemporaryServer, tmp_path: Path
) -> None:
    """Otherwise the job would run for as long as its worker lives."""
    with standby(primary) as (replica, network), ExitStack() as stack:
        sockets = [postgres_url(server.dsn).query["host"] for server in (primary, replica)]
        url = f"postgresql://postgres@/shop?host={sockets[0]}&host={sockets[1]}"
        processes = Processes(url, tmp_path)
        stack.callback(processes.stop_all)
        env = {
            "CHAOS_DATABASE": url,
            "CHAOS_BROKER": f"pgbeat+{url}",
            "CHAOS_FOLDER": str(tmp_path),
        }
        for pool in ("threads", "prefork"):
            name = ("-P", pool, "-c", "1", "-Q", pool)
            processes.worker(*name, app="tests.chaos.app", **env).says("ready.", 60)
        chaos_app.app.conf.update(broker_url=f"pgbeat+{url}", pgbeat_url=url)
        for queue in ("threads", "prefork"):
            pgbeat.submit("chaos.work", kwargs={"seconds": 6}, queue=queue, app=chaos_app.app)
        until(lambda: sql(replica, "SELECT count(*) FROM pgbeat.running_executions") == [(2,)])
        network.cut()
        done = "SELECT count(*) FROM pgbeat.jobs WHERE state = 'completed'"
        until(lambda: sql(primary, done) == [(2,)])
        assert sql(replica, done) == [(0,)]
        primary.stop()
        promote(replica)
        # A process notices when it writes next.
        until(lambda: sql(replica, done) == [(1,)])
        pgbeat.submit("chaos.work", queue="prefork", app=chaos_app.app)
        until(lambda: sql(replica, done) == [(3,)])
        assert sql(replica, "SELECT count(*) FROM pgbeat.executions") == [(3,)]
        primary.start()


@pytest.mark.slow
def test_a_database_that_was_moved_is_accepted(
    primary: TemporaryServer, copy: TemporaryServer, tmp_path: Path
) -> None:
    app = deployed.make(shop(primary), "1")
    sent = app.tasks["shop.both"].delay(1).id
    app.close()
    restore(primary, copy)
    processes = Processes(shop(copy), tmp_path)
    try:
        late = worker(processes)
        late.says("the database is a copy, or was moved", 60)
        assert run(shop(copy), "fence", "accept", "--admin").exit_code == 0
        late.says("ready.", 60)
        moved = deployed.make(shop(copy), "1")
        assert moved.AsyncResult(sent).get(timeout=30) == 2
        moved.close()
    finally:
        processes.stop_all()
