"""Ends results of tasks that no worker ends, in the transaction that ends their jobs."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from sqlalchemy import Connection

from pgbeat.broker.messages import REASON_HEADER
from pgbeat.database import connections
from pgbeat.results import chords, statements
from pgbeat.results.rows import as_json, as_number
from pgbeat.results.store import is_temporary

if TYPE_CHECKING:
    from pgbeat.results.backend import ResultBackend

logger = logging.getLogger("pgbeat.results")


class Answer(NamedTuple):
    """How a task ended."""

    task_id: str
    #: `TaskRevokedError` for `REVOKED`, or another error for `FAILURE`.
    error: Exception
    state: str
    #: What a worker would know of a task on which others depend: a chord, a chain, errbacks.
    request: Context | None = None
    #: Whether it has a result.
    is_stored: bool = True


def mark_as_revoked(
    backend: "ResultBackend",
    task_id: str,
    reason: str = "",
    request: Any = None,
    store_result: bool = True,
    state: str = states.REVOKED,
) -> None:
    """Stores that a task was revoked. Celery's own would leave the rest of its chain pending."""
    error = TaskRevokedError(getattr(request, REASON_HEADER, None) or reason)
    backend.mark_as_failure(
        task_id, error, None, request, store_result, call_errbacks=False, state=state
    )


class _NeedsWorker(Exception):
    """Errbacks must be called, which only a worker may do."""


def give(
    backend: "ResultBackend", connection: Connection, answers: Sequence[Answer]
) -> list[Answer]:
    """Ends the results of tasks that have none yet, with what follows from them.

    That is: their parts of chords, the rest of their chains, the errbacks of those that failed.
    Returns those for which only the result is stored: their errbacks take the error itself, and are
    code of the app, which a worker must call.
    """
    store = backend.store
    left: list[Answer] = []
    is_own = store.joined is None
    with store.transaction(connection) if is_own else nullcontext():
        by_error: dict[tuple[str, str, str], list[Answer]] = {}
        for answer in answers:
            if answer.request is None and answer.is_stored:
                key = answer.state, type(answer.error).__name__, str(answer.error)
                by_error.setdefault(key, []).append(answer)
        for some in by_error.values():
            _store(backend, some)
        parts = [answer for answer in answers if answer.request is not None]
        if parts:
            with chords.published_in(backend, connection):
                left = [part for part in parts if not _end(backend, connection, part, is_own)]
    return left


def _store(backend: "ResultBackend", some: Sequence[Answer]) -> None:
    """Stores the same error for tasks on which nothing depends."""
    error, state = some[0].error, some[0].state
    expires = backend.failure_expires if state == states.FAILURE else backend.expires
    backend.store.run(
        statements.STORE_SAME,
        as_json(backend.key(answer.task_id) for answer in some),
        state.encode(),
        *backend.encode_value(backend.encode_result(error, state)),
        as_number(expires or None),
    )


def _end(backend: "ResultBackend", connection: Connection, answer: Answer, is_own: bool) -> bool:
    """Ends a result, and what follows from it; returns whether that is done.

    `is_own` is whether no worker runs this, so that errbacks can't be called.
    """
    # Celery's remote control makes each worker store that a task was revoked, and nothing else.
    if backend.get_state(answer.task_id) in states.READY_STATES - {states.REVOKED}:
        return True
    try:
        with connections.savepoint(connection):
            backend.mark_as_failure(
                answer.task_id,
                answer.error,
                request=answer.request,
                store_result=answer.is_stored,
                # As Celery does: a task that was revoked has not failed.
                call_errbacks=answer.state == states.FAILURE,
                state=answer.state,
            )
            if is_own and backend.store.take_calls():
                raise _NeedsWorker
        return True
    except Exception as error:
        if is_temporary(error):
            raise  # the caller ends it later
        if not isinstance(error, _NeedsWorker):
            logger.exception("What waits for task %s can't learn that it ended", answer.task_id)
    if answer.is_stored:
        _store(backend, [answer])
    return False
