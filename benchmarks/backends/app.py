"""The Celery app of callers and workers, on the broker and backend that the environment names."""

from typing import Any

from brokers.executions import note, opened
from brokers.spec import Spec
from celery import Celery

spec = Spec.from_environment()

app = Celery("bench", broker=spec.url, set_as_current=True)
app.conf.update(broker_transport_options=spec.options, **spec.settings)

_executions = opened(spec.executions)


@app.task(name="bench.noop")
def noop(*args: Any) -> None:
    """Returns nothing, which is a result like any other."""
    note(_executions, 0.0)


@app.task(name="bench.last")
def last(parts: list[Any]) -> int:
    """The body of a chord: says how many parts there were."""
    note(_executions, 0.0)
    return len(parts)
