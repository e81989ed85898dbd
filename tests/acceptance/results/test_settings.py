"""Settings of results with real workers, and callers that only read."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group

from tests.acceptance.results.conftest import Client, Workers
from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import shell
from tests.support.rows import Sql

#: A process without a broker and without tasks, which reads results by their ids.
READER = """
import os, sys
from celery import Celery
from celery.result import GroupResult
app = Celery("reader", backend="pgbeat+" + os.environ["TESTS_DATABASE"])
task, later, saved = sys.argv[1:]
result = app.AsyncResult(task)
print(result.state, result.get(timeout=30), app.AsyncResult(later).get(timeout=30))
print(GroupResult.restore(saved, app=app).get(timeout=30))
"""


def test_processes_that_only_read(workers: Workers, client: Client) -> None:
    workers.start("-P", "prefork", "-c", "2")
    done, later = client.add(1, 1).delay(), client.sleep(1).delay()
    several = group(client.add(n, 0) for n in range(3))()
    several.save()
    done.get(timeout=30)
    ids = done.id, later.id, several.id
    reader = shell(sys.executable, "-c", READER, *ids, base=workers.env)
    assert reader.stdout == "SUCCESS 2 1\n[0, 1, 2]\n", reader.stderr


@pytest.mark.slow
def test_apps_with_prefixes_share_a_database(workers: Workers, client: Client, sql: Sql) -> None:
    """Each sees its own results and chords only, though they chose the same ids."""
    other = Client(workers.database)
    other.app.conf.task_default_queue = "other"
    for app, queue, prefix in ((client.app, "celery", "one:"), (other.app, "other", "other:")):
        options = {"result_backend_transport_options": {"global_keyprefix": prefix}}
        app.conf.update(options)
        settings = json.dumps({**options, "task_default_queue": queue})
        workers.start(TESTS_SETTINGS=settings)
    for made, values in ((client, [1, 2]), (other, [3, 4])):
        made.app.set_current()
        body = made.body(task_id="daily")
        members = [made.add(value, 0, task_id=f"m{n}") for n, value in enumerate(values)]
        result = chord(members, body)(task_id="daily")
        assert result.get(timeout=30) == values
    assert client.app.AsyncResult("m0").get(timeout=10) == 1
    assert other.app.AsyncResult("m0").get(timeout=10) == 3
    assert Client(workers.database).app.AsyncResult("m0").state == "PENDING"
    found = sql("SELECT task_id FROM pgbeat.results ORDER BY 1")
    assert [task for (task,) in found if task.startswith(("one:m", "other:m"))] == [
        "one:m0",
        "one:m1",
        "other:m0",
        "other:m1",
    ]


VALUES = [b"\xff\x00\xfe", "NUL \0 and a lone \ud800", {"k\0": [b"\0", "\udcff"]}]


@pytest.mark.parametrize("value", VALUES, ids=["bytes", "text", "both"])
@pytest.mark.slow
def test_values_that_are_not_text(workers: Workers, client: Client, value: Any) -> None:
    workers.start()
    assert client.echo(value).delay().get(timeout=30) == value
    assert chord([client.echo(value)], client.body())().get(timeout=30) == [value]
    failed = client.refuse(value).delay()
    with pytest.raises(ValueError) as raised:
        failed.get(timeout=30)
    assert raised.value.args == (value,)
    assert "ValueError" in failed.traceback


@needs_pgbouncer
def test_a_worker_behind_a_pooler(workers: Workers, client: Client, tmp_path: Path) -> None:
    """It ends chords in one transaction with the broker, which it reaches directly."""
    with pooler(workers.database, tmp_path) as pooled:
        settings = json.dumps({"result_backend": f"pgbeat+{pooled.url}"})
        worker = workers.start("-P", "prefork", "-c", "2", TESTS_SETTINGS=settings)
        for n in range(3):
            members = [client.add(n, k) for k in range(10)]
            assert chord(members, client.body())().get(timeout=30) == [n + k for k in range(10)]
        assert len(workers.journal()) == 3
        assert "does not publish what follows" not in worker.output
