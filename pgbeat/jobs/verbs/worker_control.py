"""Controls workers for people: shuts them down, and changes their pools and queues.

Celery's remote control does the work, so it needs the app and a broker with remote control. Each
command is in the audit log, whether or not the worker answers.
"""

from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, text

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import sql
from pgbeat.database.named_rows import not_found
from pgbeat.errors import InvalidInput, NoReply, WorkerRefused
from pgbeat.jobs.running.workers import ALIVE

Verb = Literal["shutdown", "grow", "shrink", "add-consumer", "cancel-consumer"]
VERBS: tuple[Verb, ...] = get_args(Verb)
#: Seconds in which a worker must answer.
TIMEOUT = 5.0
_COMMANDS = {
    "grow": "pool_grow",
    "shrink": "pool_shrink",
    "add-consumer": "add_consumer",
    "cancel-consumer": "cancel_consumer",
}
_MOST = 1000
_NAMES = text(sql.load("worker_control.sql", "names", alive=ALIVE))


class WorkerCommand(NamedTuple):
    """A command to a worker."""

    verb: Verb
    #: By how many processes or threads `grow` and `shrink` change the pool.
    by: int = 1
    #: The queue of `add-consumer` and `cancel-consumer`.
    queue: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of Celery's command. Raises `InvalidInput`."""
        if self.verb in ("grow", "shrink"):
            if not 1 <= self.by <= _MOST:
                raise InvalidInput.of("by", "out_of_range", f"by: must be 1 to {_MOST:,}")
            return {"n": self.by}
        if self.verb in ("add-consumer", "cancel-consumer"):
            if not self.queue or len(self.queue) > 200:
                raise InvalidInput.of("queue", "required", "queue: name a queue")
            return {"queue": self.queue}
        return {}


def names(connection: Connection, namespace: str) -> list[str]:
    """Returns the names of living workers."""
    return sorted(connection.scalars(_NAMES, {"namespace": namespace}))


def require(connection: Connection, namespace: str, name: str) -> None:
    """Raises `NotFound` for a worker that is unknown or dead."""
    known = names(connection, namespace)
    if name not in known:
        raise not_found("living worker", name, known)


def send(unit: UnitOfWork, name: str, order: WorkerCommand, *, timeout: float = TIMEOUT) -> str:
    """Sends an order to a worker, and returns its answer; `shutdown` has none.

    `unit` is not open. Raises `NotFound` for a worker that is unknown or dead, `InvalidInput`,
    `CannotPublish` without an app, `BrokerUnavailable`, `NoReply`, and `WorkerRefused` with the
    worker's reason.
    """
    from pgbeat.broker.publishing.publisher import reaching_broker  # with Celery: not for reading

    arguments = order.arguments
    app = unit.require_app()
    with unit.transaction():
        require(unit.connection, unit.namespace, name)
        after = {**arguments} if arguments else None
        unit.record_action(order.verb, "worker", name, None, after)
    with reaching_broker():
        if order.verb == "shutdown":
            app.control.shutdown(destination=[name])
            return ""
        replies = app.control.broadcast(
            _COMMANDS[order.verb],
            arguments=arguments,
            destination=[name],
            reply=True,
            timeout=timeout,
            limit=1,
        )
    answer = next((reply[name] for reply in replies or () if name in reply), None)
    if answer is None:
        raise NoReply(
            f"worker {name!r} has not answered within {timeout:g} seconds; it may still do so"
        )
    if "error" in answer:
        raise WorkerRefused(f"worker {name!r} can't {order.verb}: {answer['error']}")
    return str(answer.get("ok", ""))
