"""Workers and callers whose result database is missing, not migrated, or too old."""

import json
import socket
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from celery import Celery, chord, group

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.errors import SchemaError
from tests.acceptance.results.conftest import APP, Client, Workers

NO_SCHEMA = "the database has no pgbeat schema; run `pgbeat migrate`"


def backend(url: str) -> dict[str, str]:
    """Returns the environment of workers whose results are there."""
    return {"TESTS_SETTINGS": json.dumps({"result_backend": url})}


@pytest.mark.parametrize(
    ("results", "line"),
    [
        ("without a schema", f"pgbeat: {NO_SCHEMA} (results in "),
        ("of 0000", "pgbeat: the database's pgbeat schema is 0000, this pgbeat needs"),
        ("not on Postgres", "pgbeat: "),
    ],
)
def test_a_worker_that_can_not_use_its_results_ends_with_a_plain_line(
    workers: Workers, empty_database: str, results: str, line: str
) -> None:
    if results == "of 0000":
        migrate.upgrade(postgres_url(empty_database))
        with psycopg.connect(empty_database) as connection:
            connection.execute("UPDATE pgbeat.migrations SET version_num = '0000'")
    url = "mysql://h/d" if results == "not on Postgres" else empty_database
    worker = workers.worker(app=APP, **backend(f"pgbeat+{url}"))
    assert worker.wait(60) == 1
    assert worker.output.count(line) == 1
    assert "Traceback" not in worker.output


def test_a_worker_waits_for_the_schema_of_broker_and_results(
    workers: Workers, empty_database: str
) -> None:
    workers.env["TESTS_DATABASE"] = empty_database
    worker = workers.worker("--without-mingle", app=APP)
    worker.says(NO_SCHEMA, 60)
    assert "Traceback" not in worker.output
    migrate.upgrade(postgres_url(empty_database))
    worker.says(" ready.", 60)
    assert Client(empty_database).add(1, 2).delay().get(timeout=30) == 3


def test_a_worker_starts_while_the_server_of_its_results_is_away(workers: Workers) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"pgbeat+postgresql://me:secret@127.0.0.1:{taken.getsockname()[1]}/away"
        worker = workers.start(**backend(url))
    assert worker.poll() is None
    assert "secret" not in worker.output


def test_a_caller_without_the_schema(database: str, empty_database: str) -> None:
    """Whatever it asks of the backend, it learns what to do."""
    app = Celery(
        "caller",
        broker=f"pgbeat+{database}",
        backend=f"pgbeat+{empty_database}",
        set_as_current=False,
    )
    add = app.signature("results.add", args=(1, 1))
    results = app.GroupResult("g", [app.AsyncResult("t1"), app.AsyncResult("t2")])
    with app:
        asks: tuple[Callable[[], Any], ...] = (
            lambda: app.AsyncResult("t1").state,
            lambda: app.AsyncResult("t1").get(timeout=1),
            lambda: results.get(timeout=1),
            lambda: results.save(),
            lambda: chord([add, add], add, app=app).delay(),
            lambda: group([add, add], app=app).delay().get(timeout=1),
        )
        for ask in asks:
            with pytest.raises(SchemaError) as refused:
                ask()
            assert str(refused.value) == NO_SCHEMA
