"""The Celery app of publishers and workers, on the broker that the environment names."""

import os
import time
from importlib import import_module

from beats.spec import TASK
from celery import Celery

from brokers.executions import note, opened
from brokers.spec import Spec

spec = Spec.from_environment()
if spec.transport:
    import_module(spec.transport)

app = Celery("bench", broker=spec.url, set_as_current=True)
app.conf.update(task_ignore_result=True, broker_transport_options=spec.options, **spec.settings)

_executions = opened(spec.executions)
#: A file: no task ends before it is there.
_GATE = spec.settings.get("gate")


@app.task(name=TASK, ignore_result=True)
def noop(sent: float = 0.0) -> None:
    """The task of every message: notes that it ran."""
    note(_executions, sent)
    while _GATE and not os.path.exists(_GATE):
        time.sleep(0.05)
