"""DBOS: workflows for a process that runs them, and what enqueues and wakes them."""

from functools import cache
from typing import Any

from dbos import DBOS, DBOSClient, SQLAlchemyDatasource
from servers import sqlalchemy

from durable.common import INSERT, charge, noted, spec, timed

_QUEUE = "bench"
_URL = sqlalchemy(spec.url)
_step = DBOS.step()(charge)


@DBOS.workflow(name="steps")
def steps(count: int) -> None:
    """Has steps that return a value."""
    timed(count, lambda _name: _step())


@DBOS.workflow(name="rows")
def rows(count: int) -> None:
    """Has steps that write a row each, in the step's transaction."""
    timed(count, lambda _name: _datasource().run_tx_step({"name": "write"}, _write))


@cache
def _datasource() -> SQLAlchemyDatasource:
    return SQLAlchemyDatasource.create(_URL)


def _write() -> dict[str, Any]:
    _datasource().sql_session().execute(INSERT)
    return charge()


@DBOS.workflow(name="waits")
def waits(_number: int) -> None:
    """Waits for a message, whose value is when it was sent."""
    noted(0.0)
    noted(DBOS.recv(timeout_seconds=3600))


def work() -> None:
    """Begins to run workflows, in threads."""
    DBOS(config={"name": "bench", "system_database_url": _URL, "log_level": "ERROR"})
    _datasource()
    DBOS.launch()
    DBOS.register_queue(_QUEUE)


@cache
def _client() -> DBOSClient:
    return DBOSClient(system_database_url=_URL)


def start(task: str, number: int) -> None:
    """Enqueues a workflow."""
    options: Any = {"workflow_name": task, "queue_name": _QUEUE}
    if task == "waits":  # messages are addressed by it
        options["workflow_id"] = f"event-{number}"
    _client().enqueue(options, number)


def emit(key: str, value: Any) -> None:
    """Sends a message to a workflow."""
    _client().send(key, value)
