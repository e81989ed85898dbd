"""The Celery app of callers and workers, on the broker and backend that the environment names."""

from functools import cache
from typing import Any

from brokers.executions import note, opened
from brokers.spec import Spec
from celery import Celery, Task
from servers import sqlalchemy
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

import pgbeat
from backends.kills import BODY, die

spec = Spec.from_environment()

app = Celery("bench", broker=spec.url, set_as_current=True)
app.conf.update(broker_transport_options=spec.options, **spec.settings)

_executions = opened(spec.executions)


@app.task(name="bench.noop")
def noop(*args: Any) -> None:
    """Returns nothing, which is a result like any other."""
    note(_executions, 0.0)


@cache
def sessions() -> Any:
    """Makes sessions of the broker's database."""
    engine = create_engine(sqlalchemy(spec.url.removeprefix("pgbeat+")))
    return sessionmaker(engine)


_INSERT = text("INSERT INTO bench_rows (n) VALUES (:n)")


@app.task(name="bench.row")
def row(n: int) -> int:
    """Inserts a row, which commits with the task's end or by itself."""
    note(_executions, 0.0)
    if app.conf.get("pgbeat_finish"):
        with pgbeat.finish(sessions()()) as session:
            session.execute(_INSERT, {"n": n})
    else:
        with sessions().begin() as session:
            session.execute(_INSERT, {"n": n})
    return n


class Body(Task):  # type: ignore[misc,unused-ignore]
    """A body, at whose publishing a worker may kill itself."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Publishes it."""
        if app.conf.get("dies_at") == "before":
            die()
        published = super().apply_async(*args, **kwargs)
        if app.conf.get("dies_at") == "after":
            die()
        return published


@app.task(name="bench.last", base=Body)
def last(parts: list[Any]) -> int:
    """The body of a chord: says how many parts there were."""
    note(_executions, BODY)
    return len(parts)
