"""Chords: the last part to return ends one, in the transaction that counts it."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from celery import states
from celery._state import get_current_worker_task
from celery.app.task import Context
from celery.canvas import _chain, _chord, group, maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult
from celery.utils.functional import _regen
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection

from pgbeat.broker.messages import runs_again
from pgbeat.broker.publishing.in_transaction import in_transaction
from pgbeat.broker.publishing.transaction import InTransaction
from pgbeat.database import connections
from pgbeat.errors import ConfigError
from pgbeat.results import statements
from pgbeat.results.rows import Encoded, bytea, encoded, text
from pgbeat.results.store import is_temporary
from pgbeat.results.values import decompressed

if TYPE_CHECKING:
    from pgbeat.results.backend import ResultBackend

logger = logging.getLogger("pgbeat.results")

#: Position of a part whose place in the header Celery doesn't know.
_UNKNOWN = -1
#: Content type and encoding of JSON.
_JSON = ("application/json", "utf-8")
#: Databases of results whose apps publish elsewhere, as the log has named them.
_warned: set[str] = set()


def prepare(backend: "ResultBackend", header_result_args: Any) -> None:
    """Keeps the structure of a header that is not flat, and restarts a chord that has ended.

    A task that ran before may have sent it then: its members that are jobs would not run again.
    """
    group_id, results = header_result_args[0], header_result_args[1]
    sender = get_current_worker_task()
    if sender is None or not runs_again(sender.request):
        backend.store.run(statements.RESTART_CHORD, backend.key(group_id).encode())
    # A generator makes its members one by one: looking at them here would make them all.
    if not isinstance(results, _regen) and any(isinstance(r, GroupResult) for r in results):
        backend.save_group(group_id, backend.app.GroupResult(*header_result_args))


def return_part(
    backend: "ResultBackend",
    connection: Connection,
    request: Any,
    state: str,
    result: Any,
    *,
    is_durable: bool,
) -> None:
    """Counts what a member returned, once, in a transaction; the last one ends the chord."""
    index, expires = request.group_index, backend.chord_lifetime
    chord, part = backend.key(request.group).encode(), str(request.id).encode()
    row = backend.store.run(
        statements.RETURN_PART,
        chord,
        b"%d" % (_UNKNOWN if index is None else index),
        part,
        state.encode(),
        *backend.encode_value(backend.encode_result(result, state)),
        repr(float(expires)).encode() if expires else None,
        None if is_durable or not _is_acknowledged_late(backend, request) else b"off",
    )
    if not row.ntuples:
        backend.store.run(statements.DROP_LATE_PART, chord, part)
        return
    done, size = text(row, 0, 0), text(row, 0, 1)
    if done == size:
        connection.exec_driver_sql(statements.DURABLY)
        _end(backend, connection, request.group, request.chord)
    elif size is None and done == "1":
        _keep_body(backend, request)


def _is_acknowledged_late(backend: "ResultBackend", request: Any) -> bool:
    """Returns whether the task runs again if a crash of the server loses the commit."""
    task = backend.app.tasks.get(getattr(request, "task", None))
    return task is not None and bool(task.acks_late)


def _keep_body(backend: "ResultBackend", request: Any) -> None:
    """Keeps the body with the first part, in case that `set_size` comes after the last one."""
    serializer = backend.app.conf.task_serializer
    try:
        content_type, encoding, body = dumps(request.chord, serializer=serializer)
    except EncodeError as error:
        logger.warning("Chord %s: its body can't be kept: %s", request.group, error)
        return
    backend.store.run(
        statements.KEEP_BODY,
        backend.key(request.group).encode(),
        bytea(body.encode() if isinstance(body, str) else body),
        content_type.encode(),
        encoding.encode(),
    )


def set_size(
    backend: "ResultBackend", connection: Connection, group_id: str, chord_size: int
) -> None:
    """Stores a chord's number of parts, in a transaction; if all have returned, ends it."""
    key, expires = backend.key(group_id).encode(), backend.chord_lifetime
    row = backend.store.run(
        statements.SET_CHORD_SIZE,
        key,
        b"%d" % chord_size,
        repr(float(expires)).encode() if expires else None,
    )
    if not row.ntuples or int(text(row, 0, 0) or 0) < int(text(row, 0, 1) or 0):
        return
    kept = backend.store.run(statements.KEPT_BODY, key)
    if kept.ntuples:
        body, content_type, encoding = encoded(kept, 0, 0)
        accept = prepare_accept_content(backend.app.conf.accept_content)
        _end(backend, connection, group_id, loads(body, content_type, encoding, accept=accept))


def _end(backend: "ResultBackend", connection: Connection, group_id: str, chord: Any) -> None:
    """Publishes the body with the members' values, or stores its failure."""
    parts = backend.store.run(statements.END_CHORD, backend.key(group_id).encode())
    body = maybe_signature(chord, app=backend.app)
    with published_in(backend, connection):
        try:
            values = _values(backend, group_id, parts)
        except ChordError as error:
            _fail(backend, connection, group_id, body, error)
            return
        try:
            with connections.savepoint(connection):
                body.delay(values)
        except Exception as error:
            if is_temporary(error):
                raise  # the transaction is repeated
            _fail(backend, connection, group_id, body, _caused(f"Callback error: {error!r}", error))


def _fail(
    backend: "ResultBackend", connection: Connection, group_id: str, body: Any, error: ChordError
) -> None:
    """Stores a chord body's failure and reports it to the enclosing chord."""
    logger.error("Chord %s: %s", group_id, error)
    last = list(_last_tasks(body))
    if rest := body.options.get("chain"):
        body.options["chain"] = with_results(rest, backend.app)
    backend.chord_error_from_stack(body, error)
    for task in last:
        options = task.options
        # Celery fails the body's own id; that of a chain or a chord is no task's.
        task_id = options.get("task_id")
        if task_id and backend.get_state(task_id) not in states.READY_STATES:
            backend.mark_as_failure(task_id, error)
        if options.get("chord") and options.get("group_id"):
            request = Context(
                id=task_id,
                task=task.task,
                group=options["group_id"],
                group_index=options.get("group_index"),
                chord=options["chord"],
            )
            return_part(backend, connection, request, states.FAILURE, error, is_durable=True)


def with_results(links: Any, app: Any) -> list[Any]:
    """Returns the links of a chain, for a group or chord the tasks whose results are its own.

    When a task fails, Celery fails each link after it by the link's id.
    """
    return [task for link in links for task in _last_tasks(maybe_signature(link, app=app))]


def _last_tasks(signature: Any) -> Iterator[Any]:
    """Yields the tasks whose results are the signature's."""
    if rest := signature.options.get("chain"):
        yield from _last_tasks(maybe_signature(rest[0], app=signature.app))
    elif isinstance(signature, group):
        for task in signature.tasks:
            yield from _last_tasks(task)
    elif isinstance(signature, _chain):
        yield from _last_tasks(signature.tasks[-1])
    elif isinstance(signature, _chord):
        yield from _last_tasks(signature.body)
    else:
        yield signature


def _caused(message: str, cause: Any) -> ChordError:
    error = ChordError(message)
    error.__cause__ = cause if isinstance(cause, BaseException) else None
    return error


def _values(backend: "ResultBackend", group_id: str, parts: PGresult) -> list[Any]:
    """Returns the members' values in the header's order and structure.

    Raises `ChordError` if a member has failed.
    """
    values, by_task = [], {}
    decoded = _decoded(backend, [encoded(parts, row, 2) for row in range(parts.ntuples)])
    for row, value in enumerate(decoded):
        task_id, status = text(parts, row, 0), text(parts, row, 1)
        if status in states.EXCEPTION_STATES:
            value = backend.exception_to_python(value)
        if status in states.PROPAGATE_STATES:
            raise _caused(f"Dependency {task_id} raised {value!r}", value)
        values.append(value)
        by_task[task_id] = value
    header = backend.restore_group(group_id, cache=False)
    return values if header is None else _structured(header, by_task)


def _decoded(backend: "ResultBackend", values: list[Encoded]) -> list[Any]:
    """Returns the values; JSON is decoded as one array, since most of the time goes per call."""
    kinds = {value[1:] for value in values if value.body is not None}
    if kinds != {_JSON} or any(value.body is None for value in values):
        return [backend.decode_value(value) for value in values]
    bodies = b",".join(decompressed(value.body or b"") for value in values)
    array: list[Any] = backend.decode_value(Encoded(b"[%s]" % bodies, *_JSON))
    return array


def _structured(result: Any, by_task: dict[str | None, Any]) -> Any:
    if isinstance(result, GroupResult):
        return [_structured(member, by_task) for member in result.results]
    if result.id in by_task:
        return by_task[result.id]
    timeout = result.app.conf.result_chord_join_timeout
    return result.get(timeout=timeout, disable_sync_subtasks=False)


def published_in(
    backend: "ResultBackend", connection: Connection
) -> AbstractContextManager[InTransaction | None]:
    """Returns a block whose messages join the transaction.

    If the broker is in another database they are published at once, and the log says so once.
    """
    try:
        block = in_transaction(connection, backend.app)
        if block.delays:
            return block
        problem: object = "the broker is on kombu's own transport"
    except ConfigError as error:
        problem = error
    where = backend.as_uri()
    if where not in _warned:
        _warned.add(where)
        logger.warning(
            "The transaction that ends a chord or a chain does not publish what follows, which may "
            "run twice if a worker is killed just then: %s",
            problem,
        )
    return nullcontext()
