"""Tells, on the worker, how launched jobs fare. `import pgbeat.worker` in the app turns it on.

Only tasks that beat launched are followed, at a cost of two small updates each. A failure to
write them never fails a task.
"""

import logging
import threading
import time
from typing import Any

import psycopg
from celery import signals
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat import db, jobs
from pgbeat.config import Settings
from pgbeat.errors import PgbeatError

logger = logging.getLogger("celery.worker.pgbeat")

#: Celery's states as a job's.
_STATES = {
    "SUCCESS": "completed",
    "FAILURE": "failed",
    "RETRY": "scheduled",
    "IGNORED": "completed",
}
#: Seconds for which a database that was away is not asked again.
_PATIENCE = 5.0


class _Session(threading.local):
    """One connection a thread, in autocommit mode, opened when first needed."""

    connection: Connection | None = None
    away_until: float = 0.0
    complained: bool = False

    def open(self, app: Any) -> Connection:
        if self.connection is None:
            settings = Settings.load(app.conf)
            engine = db.engine(settings.url, "pgbeat worker")
            self.connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        return self.connection

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


_session = _Session()


def _write(app: Any, what: Any, *args: Any) -> None:
    """Writes through this thread's connection; what goes wrong is logged once, and let be."""
    if time.monotonic() < _session.away_until:
        return
    try:
        try:
            what(_session.open(app), *args)
        except (DBAPIError, psycopg.Error) as error:
            _session.drop()
            if not db.is_lost(error):
                raise
            what(_session.open(app), *args)  # the connection had died while it lay idle
        _session.complained = False
    except (DBAPIError, psycopg.Error, PgbeatError) as error:
        _session.drop()
        _session.away_until = time.monotonic() + _PATIENCE
        if not _session.complained:
            _session.complained = True
            logger.warning("Can't write how jobs fare: %s", error)


def _launched(request: Any) -> bool:
    return bool(getattr(request, "celery_beat_task", False))


@signals.worker_process_init.connect
def _forked(**kwargs: Any) -> None:
    # The parent's socket is not ours to use, nor to close.
    _session.connection = None


@signals.task_prerun.connect
def _started(task_id: str, task: Any, **kwargs: Any) -> None:
    if _launched(task.request):
        _write(task.app, jobs.start, task_id, str(task.request.hostname or ""))


@signals.task_postrun.connect
def _finished(task_id: str, task: Any, retval: Any = None, state: str = "", **kwargs: Any) -> None:
    if _launched(task.request):
        error = None
        if state == "FAILURE":
            error = f"{type(retval).__name__}: {retval}".rstrip(": ").replace("\0", "\\0")[:2000]
        _write(task.app, jobs.finish, task_id, _STATES.get(state, "failed"), error)


@signals.task_failure.connect
def _lost(task_id: str, sender: Any, exception: Any = None, **kwargs: Any) -> None:
    """A process that died is reported by its parent; no postrun comes for it."""
    if type(exception).__name__ in {"WorkerLostError", "TimeLimitExceeded", "Terminated"}:
        _write(
            sender.app, jobs.finish, task_id, "failed", f"{type(exception).__name__}: {exception}"
        )


@signals.task_revoked.connect
def _revoked(request: Any, sender: Any, **kwargs: Any) -> None:
    _write(sender.app, jobs.finish, str(request.id), "cancelled", "revoked")
