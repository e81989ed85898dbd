"""Results of real workers: pools, workers that are lost, servers that restart, poolers."""

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer
from tests.acceptance.results.conftest import Client, Workers
from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import shell, until
from tests.support.threads import together
from tests.support.transport_workers import POOLS

#: A caller in a process of its own; `%s` is what it does before everything else.
CALLER = """
{first}
import os
from celery import Celery, chord, group
url = "pgbeat+" + os.environ["TESTS_DATABASE"]
app = Celery("caller", broker=url, backend=url)
add = lambda x, y: app.signature("results.add", args=(x, y))
assert add(1, 2).delay().get(timeout=30) == 3
assert group(add(n, n) for n in range(20))().get(timeout=30) == [2 * n for n in range(20)]
body = app.signature("results.body")
assert chord([add(n, 0) for n in range(5)], body)().get(timeout=30) == list(range(5))
print("all came")
"""


@pytest.mark.parametrize("pool", POOLS)
def test_every_pool_stores_results(workers: Workers, client: Client, pool: str) -> None:
    worker = workers.start("-P", pool, "-c", "2")
    assert client.add(1, 2).delay().get(timeout=30) == 3
    assert group(client.add(n, n) for n in range(10))().get(timeout=30) == list(range(0, 20, 2))
    members = [client.add(n, n) for n in range(5)]
    assert chord(members, client.body())().get(timeout=30) == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match="it fails"):
        client.fail().delay().get(timeout=30)
    retried = client.retried(2).delay()
    assert retried.get(timeout=30) == 2
    assert (retried.name, retried.args, retried.kwargs) == ("results.retried", [2], {})
    assert (retried.retries, retried.queue) == (2, "celery")
    assert str(retried.worker) in worker.command


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("", id="threads"),
        pytest.param(
            "from gevent import monkey; monkey.patch_all()", id="gevent", marks=pytest.mark.slow
        ),
        pytest.param(
            "import eventlet; eventlet.monkey_patch()", id="eventlet", marks=pytest.mark.slow
        ),
    ],
)
def test_every_kind_of_caller_waits(workers: Workers, first: str) -> None:
    workers.start("-P", "prefork", "-c", "2")
    code = CALLER.format(first=first)
    caller = shell(sys.executable, "-W", "ignore", "-c", code, base=workers.env)
    assert caller.stdout == "all came\n", caller.stderr


def test_a_caller_that_forks(workers: Workers, client: Client) -> None:
    """A child waits by a connection of its own, and the parent's goes on."""
    workers.start("-P", "solo")
    assert client.add(1, 1).delay().get(timeout=30) == 2
    child = os.fork()
    if child == 0:
        try:
            client.app._after_fork()
            os._exit(0 if client.add(2, 2).delay().get(timeout=30) == 4 else 1)
        finally:
            os._exit(2)
    assert client.add(3, 3).delay().get(timeout=30) == 6
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_threads_wait(workers: Workers, client: Client) -> None:
    workers.start("-P", "prefork", "-c", "2")

    def wait(n: int) -> list[int]:
        return [client.add(n, k).delay().get(timeout=60) for k in range(20)]

    found = together([partial(wait, n) for n in range(5)])
    assert found == [[n + k for k in range(20)] for n in range(5)]


@pytest.mark.slow
def test_the_server_restarts_while_someone_waits(
    own_server: TemporaryServer, tmp_path: Path
) -> None:
    migrate.upgrade(postgres_url(own_server.dsn))
    workers, client = Workers(own_server.dsn, tmp_path), Client(own_server.dsn)
    try:
        workers.start("-P", "prefork", "-c", "1")
        assert client.add(1, 1).delay().get(timeout=30) == 2
        result = client.sleep(5).delay()
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append(result.get(timeout=60)), daemon=True)
        thread.start()
        until(lambda: result.id in workers.started[0].output)
        own_server.stop(signal.SIGQUIT)
        own_server.start()
        thread.join(60)
        assert found == [5]
    finally:
        workers.stop_all()
        client.app.close()


@needs_pgbouncer
def test_behind_a_pooler(workers: Workers, database: str, tmp_path: Path, caplog: Any) -> None:
    """Whoever waits looks for the results, and the log says so."""
    workers.start("-P", "prefork", "-c", "1")
    with pooler(database, tmp_path) as pooled:
        client = Client(pooled.url)
        client.app.conf.broker_url = f"pgbeat+{database}"
        assert client.add(1, 1).delay().get(timeout=30) == 2
        assert group(client.add(n, n) for n in range(10))().get(timeout=30)[-1] == 18
        assert "A transaction-mode pooler stands before the results" in caplog.text
        client.app.close()
