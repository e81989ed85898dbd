"""The app outside the machine: `python -m tests.powercuts.app` publishes.

`POWERCUTS` has the settings as JSON.
"""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import create_engine

import pgbeat
from pgbeat.config import postgres_url
from tests.powercuts.cases import BUILDS, GATE, JOURNALS

_GIVEN: dict[str, Any] = json.loads(os.environ["POWERCUTS"])
if _GIVEN["build"]:
    BUILDS[_GIVEN["build"]].patch()

app = Celery("powercuts", broker=_GIVEN["broker"])
app.conf.update(
    broker_connection_max_retries=None,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=_GIVEN["threads"],
    broker_transport_options=_GIVEN["options"],
    pgbeat_url=_GIVEN["schema"],
    task_acks_late=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=32,
)


def _opened(name: str) -> int:
    return os.open(Path(_GIVEN["folder"]) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


_acknowledged, _executed = map(_opened, JOURNALS)
_GATE = Path(_GIVEN["folder"]) / GATE


def _work(self: Any) -> None:
    os.write(_executed, f"{self.request.id}\n".encode())


plain = job = app.task(name="plain", bind=True)(_work)
if _GIVEN["schema"]:
    job = app.task(name="job", bind=True, pgbeat={"max_attempts": 3})(_work)
    _engine = create_engine(postgres_url(_GIVEN["schema"]))

#: Where jobs are recorded, one in so many is a job.
_JOB_EACH = 20
#: Messages of a transaction, for publishers that publish several at once.
_BATCH = 20

_numbers = count()


def _one() -> list[str]:
    task = plain if next(_numbers) % _JOB_EACH else job
    return [task.apply_async().id]


def _transaction() -> list[str]:
    with _engine.begin() as connection, pgbeat.in_transaction(connection, app):
        return [plain.apply_async().id for _ in range(_BATCH)]


def _jobs() -> list[str]:
    return pgbeat.submit_many([job.s()] * _BATCH, app=app)


def _publish(some: Callable[[], list[str]]) -> None:
    """Publishes while the gate is open, and tries again after an error."""
    while True:
        if not _GATE.exists():
            time.sleep(1)
            continue
        try:
            ids = some()
        except Exception as error:  # the power was cut: each broker has errors of its own
            print(repr(error), flush=True)
            time.sleep(1)
        else:
            os.write(_acknowledged, "".join(f"{id}\n" for id in ids).encode())


def main() -> None:
    """Publishes one by one in many threads and, in pgbeat's transactions, many at once in two."""
    kinds = [_one] * _GIVEN["threads"]
    if _GIVEN["schema"]:
        kinds += [_transaction, _jobs]
    with ThreadPoolExecutor(len(kinds)) as pool:
        for each in [pool.submit(_publish, kind) for kind in kinds]:
            each.result()


if __name__ == "__main__":
    main()
