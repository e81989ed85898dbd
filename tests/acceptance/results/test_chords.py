"""Groups and chords with real workers: each chord's body runs once, whoever is killed."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import chain, chord, group

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer
from tests.acceptance.results.conftest import Client, Workers
from tests.support import roles
from tests.support.apps.results import STEPS
from tests.support.databases import end_sessions
from tests.support.processes import until
from tests.support.rows import Sql


def test_what_celery_composes(workers: Workers, client: Client) -> None:
    workers.start("-P", "prefork", "-c", "2")
    add, body = client.add, client.body
    assert add(1, 2).delay().get(timeout=30) == 3
    assert group(add(n, n) for n in range(5))().get(timeout=30) == [0, 2, 4, 6, 8]
    assert chord([add(n, n) for n in range(5)], body())().get(timeout=30) == [0, 2, 4, 6, 8]
    # Members without results of their own, one that tries again, generators, and one alone.
    assert chord([client.ignored(1), client.retried(2)], body())().get(timeout=30) == [1, 2]
    assert chord((add(n, 1) for n in range(3)), body())().get(timeout=30) == [1, 2, 3]
    assert chord([add(1, 1)], body())().get(timeout=30) == [2]
    # Chains into chords and out of them, chords in chords, groups at the end of a header's chain.
    tree = chain(add(1, 1), group(add(1), add(2)), body(), group(body(), body()))
    assert tree().get(timeout=30) == [[3, 4], [3, 4]]
    inner = chord([add(1, 1), add(2, 2)], body())
    assert chord([inner, add(5, 5)], body())().get(timeout=30) == [[2, 4], 10]
    nested = chord([chain(add(1, 1), group(add(1), add(2))), add(3, 3)], body())
    assert nested().get(timeout=30) == [[3, 4], 6]


@pytest.mark.parametrize("kind", ["chain", "chord"])
def test_what_follows_a_task_waits_for_a_connection(
    kind: str, workers: Workers, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def canvas() -> Any:
        if kind == "chain":
            return chain(client.add(1, 1), client.add(2))()
        return chord([client.add(1, 1), client.add(2, 2)], client.body())()

    monkeypatch.setattr(roles, "ARE_USED", True)  # no limit holds for a superuser
    worker = workers.start("-P", "prefork", "-c", "1", TESTS_SETTINGS='{"task_acks_late": false}')
    expected = canvas().get(timeout=30)
    # The process that runs tasks loses its connection, and there is no other one for a while.
    (child,) = psutil.Process(worker.pid).children()
    assert end_sessions(workers.sql, f"pgbeat transport %:{child.pid}")
    left = "FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE 'worker_%%'"
    ((role, count),) = workers.sql(f"SELECT usename, count(*) {left} GROUP BY usename")
    workers.sql(f"ALTER ROLE {role} CONNECTION LIMIT {count}")
    sent = canvas()
    worker.says("trying again", 30)
    workers.sql(f"ALTER ROLE {role} CONNECTION LIMIT -1")
    assert sent.get(timeout=30) == expected


def test_a_frozen_chord_that_is_applied_twice(workers: Workers, client: Client) -> None:
    workers.start("-P", "prefork", "-c", "2")
    signature = chord([client.add(1, 1), client.add(2, 2)], client.body())
    signature.freeze()
    for _ in range(2):
        assert signature().get(timeout=30) == [2, 4]


@pytest.mark.parametrize("is_generated", [False, True], ids=["list", "generator"])
def test_members_that_end_before_the_size_is_known(
    workers: Workers, client: Client, sql: Sql, monkeypatch: Any, is_generated: bool
) -> None:
    workers.start("-P", "prefork", "-c", "2")
    backend, told = client.app.backend, []
    with monkeypatch.context() as patched:
        patched.setattr(backend, "set_chord_size", lambda *size: told.append(size))
        members = (client.add(n, n) for n in range(5))
        result = chord(members if is_generated else list(members), client.body())()
    assert [size for _, size in told] == [5]
    until(lambda: sql("SELECT 1 FROM pgbeat.chords WHERE done = 5"))
    assert not result.ready()
    backend.set_chord_size(*told[0])
    assert result.get(timeout=30) == [0, 2, 4, 6, 8]
    assert workers.journal() == [f"{result.id} [0, 2, 4, 6, 8]"]


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_each_step(
    workers: Workers, client: Client, sql: Sql, step: str
) -> None:
    """Twenty times; another worker goes on, and each body is published once."""
    for n in range(1, 21):
        (workers.folder / "armed").touch()
        victim = workers.start(TESTS_DIE_AT=step)
        result = chord([client.add(n, k) for k in range(3)], client.body())()
        assert until(victim.poll, 30) == -signal.SIGKILL
        survivor = workers.start()
        assert result.get(timeout=60) == [n, n + 1, n + 2]
        os.kill(survivor.pid, signal.SIGTERM)
        survivor.wait(30)
        assert len(workers.journal()) == n
    assert sql("SELECT count(*), bool_and(ended) FROM pgbeat.chords") == [(20, True)]
    assert sql("SELECT count(*) FROM pgbeat.chord_parts") == [(0,)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_server_is_shut_down_at_once(own_server: TemporaryServer, tmp_path: Path) -> None:
    """Five times, during twenty chords; what was not on its disk is done again."""
    migrate.upgrade(postgres_url(own_server.dsn))
    workers, client = Workers(own_server.dsn, tmp_path), Client(own_server.dsn)
    client.app.set_current()
    try:
        workers.start("-P", "prefork", "-c", "2")
        results = []
        for n in range(20):
            header = [client.add(n, k) for k in range(3)]
            results.append(chord(header, client.body())())
            if n % 4 == 3:
                own_server.stop(signal.SIGQUIT)
                own_server.start()
        for n, result in enumerate(results):
            assert result.get(timeout=60) == [n, n + 1, n + 2]
        bodies = [line.split()[0] for line in workers.journal()]
        assert len(bodies) == len(set(bodies))
    finally:
        workers.stop_all()
        client.app.close()
