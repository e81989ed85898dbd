"""Ends the results of jobs that end without a worker, and so answers those waiting.

It happens in the transaction that ends the job, if results are in the same database. If they are
elsewhere, or if errbacks must be called, a worker does it: it gets a message that only revokes the
task (`kept_messages.revocation`).
"""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from billiard.exceptions import WorkerLostError
from celery import Celery, states
from celery._state import _get_active_apps
from celery.app.task import Context
from celery.exceptions import TaskError, TaskRevokedError
from sqlalchemy import Connection, text

from pgbeat.broker.publishing import payloads
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.config import same_database
from pgbeat.database import connections, identity
from pgbeat.jobs.messages import kept_messages
from pgbeat.jobs.states.endings import Ended, Unanswered
from pgbeat.storable import TooDeep

if TYPE_CHECKING:  # beats that end no results don't load them
    from pgbeat.results.answers import Answer
    from pgbeat.results.backend import ResultBackend

logger = logging.getLogger("pgbeat.results")


def give(connection: Connection, publisher: Publisher, ended: Iterable[Ended]) -> None:
    """Ends the results of those jobs that no worker ends."""
    wanted = _unanswered(ended)
    app = publisher.app
    if not wanted or not app.conf.result_backend:
        return
    from pgbeat.results import answers as results

    backend = _backend(connection, app)
    if backend is None:
        left = [unanswered for job, unanswered in wanted if job.state != "failed"]
    else:
        answers = {str(job.id): unanswered for job, unanswered in wanted}
        to_give = [_answer(app, *pair) for pair in wanted]
        left = [answers[answer.task_id] for answer in results.give(backend, connection, to_give)]
    if isinstance(publisher, TransactionPublisher):
        publisher.put(
            connection,
            [kept_messages.revocation(e.message, e.error) for e in left if e.message is not None],
        )


def give_here(connection: Connection, ended: Sequence[Ended]) -> None:
    """Does so by an app of this process, if one has its results in the connection's database."""
    from pgbeat.results import answers as results

    for app in tuple(_get_active_apps()) if ended else ():
        backend = _backend(connection, app) if app.configured else None
        if backend is not None:
            pairs = _unanswered(ended)
            results.give(backend, connection, [_answer(app, *pair) for pair in pairs])
            return


def _unanswered(ended: Iterable[Ended]) -> list[tuple[Ended, Unanswered]]:
    """Returns the jobs that no worker ends, and what is known of them.

    What is nested too deeply is not known.
    """
    pairs = []
    for job in ended:
        if (known := job.unanswered) is not None:
            options = {} if isinstance(known.options, TooDeep) else known.options
            message = None if isinstance(known.message, TooDeep) else known.message
            pairs.append((job, known._replace(options=options, message=message)))
    return pairs


_SUCCEEDED = text(
    """
    SELECT task_id, CAST(extract(epoch FROM clock_timestamp() - date_done) AS float8)
      FROM pgbeat.results WHERE task_id = ANY (:keys) AND status = 'SUCCESS'
    """
)


def succeeded(
    connection: Connection, publisher: Publisher, job_ids: Sequence[str]
) -> dict[str, float]:
    """Returns those of the jobs whose tasks have succeeded, though that is not recorded yet.

    With each is how many seconds ago it has. It is not known of tasks whose results are in another
    database.
    """
    if not job_ids or not publisher.app.conf.result_backend:
        return {}
    backend = _backend(connection, publisher.app)
    if backend is None:
        return {}
    keys = {backend.key(job_id): job_id for job_id in job_ids}
    rows = connection.execute(_SUCCEEDED, {"keys": list(keys)})
    return {keys[key]: seconds for key, seconds in rows}


_OF_JOBS = text(
    """
    SELECT id, task, options, message FROM pgbeat.unfinished_jobs
     WHERE id = ANY (CAST(:ids AS uuid[]))
    """
)
_ENDED = text(
    """
    SELECT id, namespace, state, lane, group_id, retried_by, dispatched_at IS NOT NULL, error
      FROM pgbeat.ended_jobs WHERE id = ANY (CAST(:ids AS uuid[])) AND finished_at >= now()
    """
)


def of_jobs(connection: Connection, job_ids: Collection[str]) -> dict[UUID, Unanswered]:
    """Returns what must be known of jobs whose executions are about to be ended as lost."""
    rows = connection.execute(_OF_JOBS, {"ids": list(job_ids)})
    return {row.id: Unanswered(row.task, "", row.options, row.message, True) for row in rows}


def with_ends(
    connection: Connection, ended: Sequence[Ended], unanswered: Mapping[UUID, Unanswered]
) -> list[Ended]:
    """Returns the jobs that the transaction has ended, with what `give` must know of these."""
    rows = connection.execute(_ENDED, {"ids": list(map(str, unanswered))})
    lost = [
        Ended(*row[:7])._replace(unanswered=unanswered[row.id]._replace(error=row.error or "lost"))
        for row in rows
    ]
    known = {job.id for job in lost}
    return [*lost, *(job for job in ended if job.id not in known)]


def _backend(connection: Connection, app: Celery) -> "ResultBackend | None":
    """Returns the app's result backend if its results are in the connection's database."""
    if str(app.conf.result_backend).replace(":", "+").partition("+")[0] != "pgbeat":
        return None
    from pgbeat.results.backend import ResultBackend

    try:
        backend = app.backend
        if isinstance(backend, ResultBackend) and (
            same_database(connection.engine.url, backend.database)
            or identity.is_one_of(connection, [backend.database])
        ):
            return backend
    except Exception as error:  # another server, which may be away, or a result backend's own
        logger.warning("Results of jobs can't be ended: %s", connections.first_line(error))
    return None


def _answer(app: Celery, job: Ended, end: Unanswered) -> "Answer":
    from pgbeat.results.answers import Answer

    is_failure = job.state == "failed"
    error: Exception = TaskRevokedError(end.error)
    if is_failure:
        error = WorkerLostError(end.error) if end.is_lost else TaskError(end.error)
    payload = None if end.message is None else json.loads(end.message["payload"])
    ignores = end.options.get("ignore_result")
    if payload is not None:
        ignores = payload["headers"].get("ignore_result")
    task = app.tasks.get(end.task)
    if ignores is None:
        ignores = getattr(task, "ignore_result", app.conf.task_ignore_result)
    return Answer(
        task_id=str(job.id),
        error=error,
        state=states.FAILURE if is_failure else states.REVOKED,
        request=None if job.retried_by is not None else _request(app, job, end, payload),
        is_stored=not ignores or bool(getattr(task, "store_errors_even_if_ignored", False)),
    )


def _request(
    app: Celery, job: Ended, end: Unanswered, payload: Mapping[str, Any] | None
) -> Context | None:
    """Returns what a worker would know of the task; `None` if nothing depends on it."""
    known: dict[str, Any] = {"id": str(job.id), "task": end.task, "delivery_info": {}}
    if payload is None:
        known["errbacks"] = end.options.get("link_error")
    else:
        try:
            known |= {**payload["headers"], **payloads.call(app, payload)[2]}
        except Exception:
            logger.exception("The message of job %s can't be decoded", job.id)
    if isinstance(known.get("errbacks"), Mapping):
        known["errbacks"] = [known["errbacks"]]
    has_parts = any(known.get(part) for part in ("chord", "chain", "errbacks"))
    return Context(known) if has_parts else None
