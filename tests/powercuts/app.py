"""The app outside the machine: `python -m tests.powercuts.app THREADS` publishes.

`POWERCUTS` has the settings as JSON.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from celery import Celery

from tests.powercuts.cases import BUILDS, GATE, JOURNALS

_GIVEN: dict[str, Any] = json.loads(os.environ["POWERCUTS"])
if _GIVEN["build"]:
    BUILDS[_GIVEN["build"]].patch()

app = Celery("powercuts", broker=_GIVEN["broker"])
app.conf.update(
    broker_connection_max_retries=None,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=None,
    broker_transport_options=_GIVEN["options"],
    pgbeat_url=_GIVEN["schema"],
    task_acks_late=True,
    task_ignore_result=True,
)


def _opened(name: str) -> int:
    return os.open(Path(_GIVEN["folder"]) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


_acknowledged, _executed = map(_opened, JOURNALS)
_GATE = Path(_GIVEN["folder"]) / GATE


def _work(self: Any) -> None:
    os.write(_executed, f"{self.request.id}\n".encode())


#: Where jobs are recorded, one in so many is a job.
JOB_EACH = 20
plain = job = app.task(name="plain", bind=True)(_work)
if _GIVEN["schema"]:
    job = app.task(name="job", bind=True, pgbeat={"max_attempts": 3})(_work)


def publish() -> None:
    """Publishes while the gate is open, and tries again after an error."""
    count = 0
    while True:
        if not _GATE.exists():
            time.sleep(1)
            continue
        count += 1
        task = plain if count % JOB_EACH else job
        try:
            message = task.apply_async()
        except Exception as error:  # the power was cut: each broker has errors of its own
            print(repr(error), flush=True)
            time.sleep(1)
        else:
            os.write(_acknowledged, f"{message.id}\n".encode())


if __name__ == "__main__":
    with ThreadPoolExecutor(int(sys.argv[1])) as pool:
        for each in [pool.submit(publish) for _ in range(int(sys.argv[1]))]:
            each.result()
