"""What workers report of themselves, and remote control from the command line."""

import json
from typing import Any

import pytest
from sqlalchemy import text

from pgbeat.monitoring import worker_usage
from pgbeat.monitoring.worker_usage import WorkerUsage
from tests.support.command_line import run_with
from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers


@pytest.mark.slow
def test_a_worker_reports_and_obeys(tracked_workers: TrackedWorkers) -> None:
    process = tracked_workers.start("-c", "2", "-Q", "celery,extra")

    def see() -> WorkerUsage | None:
        with tracked_workers._engine.begin() as connection:
            found = worker_usage.listing(connection, "default")
        return found[0] if found and found[0].reported_at else None

    def run(*command: str) -> Any:
        result = run_with(tracked_workers.app, "workers", *command, "--json")
        assert result.stdout, result.output
        return result.exit_code, json.loads(result.stdout)

    assert until(lambda: see() is not None)
    worker = see()
    assert worker is not None
    name = worker.name
    assert (worker.pool, worker.concurrency) == ("prefork", 2)
    assert worker.queues == ["celery", "extra"]
    assert worker.versions is not None and {*worker.versions} == {"pgbeat", "celery", "python"}
    assert worker.memory_mb is None or worker.memory_mb > 10

    for command, answer in (
        (("grow", name, "2"), "pool will grow"),
        (("shrink", name), "pool will shrink"),
        (("add-consumer", name, "late"), "add consumer late"),
        (("cancel-consumer", name, "extra"), "no longer consuming from extra"),
    ):
        status, said = run(*command)
        assert (status, said) == (0, {"worker": name, "reply": answer})

    def has_changed() -> bool:
        now = see()
        return now is not None and (now.concurrency, now.queues) == (3, ["celery", "late"])

    assert until(has_changed, 30)
    assert run("grow", "w0@test")[1]["error"]["code"] == "not_found"
    assert run("shutdown", name, "--yes")[0] == 0
    process.wait(30)
    with tracked_workers._engine.begin() as connection:
        rows = connection.execute(
            text("SELECT verb, subject, after FROM pgbeat.audit WHERE kind = 'worker' ORDER BY id")
        ).all()
    assert [tuple(row) for row in rows] == [
        ("grow", name, {"n": 2}),
        ("shrink", name, {"n": 1}),
        ("add-consumer", name, {"queue": "late"}),
        ("cancel-consumer", name, {"queue": "extra"}),
        ("shutdown", name, None),
    ]
