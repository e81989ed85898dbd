"""Defines an app that any version of pgbeat runs; each of its processes executes one task.

`TESTS_BROKER` is the broker's URL. Its worker is started in a folder of its own, so that the
version of pgbeat is the one that `PYTHONPATH` names.
"""

import os

from celery import Celery

import pgbeat

app = Celery("skew", broker=os.environ["TESTS_BROKER"])
app.conf.update(
    task_ignore_result=True,
    worker_max_tasks_per_child=1,
    pgbeat_loop_interval=1.0,
    broker_connection_retry_on_startup=True,
)


@app.task(name="tests.where", shared=False)
def where() -> str:
    """Returns the folder of the pgbeat that executes it."""
    return os.path.dirname(os.path.dirname(pgbeat.__file__))
