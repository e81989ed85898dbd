"""Runs the statement of a job of the task `pgbeat.sql`.

The statement has a session of its own, whose login (`pgbeat_sql_url`) may do nothing else: whatever
it does to its session, it gets no right of the worker's. So its transaction can't end the job, too.
Instead the job keeps the id of that transaction before it commits. A later run of the job, or a
retry, asks the server what became of it, and runs the statement only if it did not commit. Runs of
a job and its retries wait for each other by a lock that the transaction holds.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self
from uuid import UUID

import psycopg
from celery import Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import Row, text
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings, settings_of
from pgbeat.database import connections, identity, poolers, sql
from pgbeat.errors import ConfigError, Forbidden, InvalidTransition, SqlFailed, SqlTimeout
from pgbeat.jobs.checks import sql_jobs
from pgbeat.jobs.checks.sql_jobs import SqlCall
from pgbeat.jobs.running.task_exceptions import Cancelled
from pgbeat.results.ending import ClaimLost
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.recorder import Recorder
from pgbeat.worker.reporting import PATIENCE, current_attempt

#: Seconds between two looks whether a statement must end, and until its session is ended if it
#: doesn't.
_LOOK, _GRACE = 0.2, 3.0
#: Seconds that a job waits for its row, which others may have locked, and for another run's session
#: after its statement. The message of a run that gives up is delivered again, some twenty times.
_BEGIN, _IDLE = 60.0, 60.0
_TOO_MUCH = sql.load("sql_jobs.sql", "too_much")
_JOB = text(sql.load("sql_jobs.sql", "job"))
_TRANSACTION = (
    "SELECT pg_catalog.pg_current_xact_id(), system_identifier::pg_catalog.text "
    "FROM pg_catalog.pg_control_system()"
)
_STATUS = "SELECT pg_catalog.pg_xact_status(%s)"
_STATUS_OF = text("SELECT pg_xact_status(CAST(:xid AS xid8))")

Session = psycopg.Connection[Any]


def run(app: Celery) -> int:
    """Runs the statement of the running job; returns how many rows it wrote or read.

    Raises:
        Forbidden: The task is no job, or not recorded.
        InvalidSchedule: Its arguments are invalid, or ask for a role that is not allowed.
        SqlFailed: The statement failed, or the session can't be used for it.
        pgbeat.Cancelled: The job was cancelled.
    """
    attempt, recorder = current_attempt()
    if attempt is None or recorder is None:
        message = (
            f"{sql_jobs.TASK} runs the statement of a job's row, and this is no job of a worker "
            "that records executions; make a schedule, or a job by pgbeat.submit"
        )
        raise Forbidden(message, code="not_a_job")
    settings, job = settings_of(app), _Job(attempt, recorder)
    begun = job.begin()
    call = sql_jobs.read(settings, *begun.args or (), **begun.kwargs or {})
    with _opened(settings) as session, _Watch(settings, session, attempt) as watch:
        return _Run(session, job, call, watch).rows(begun.first)


class _Job:
    """The running job's row."""

    def __init__(self, attempt: Attempt, recorder: Recorder) -> None:
        self.attempt, self._recorder = attempt, recorder

    def begin(self) -> Row[Any]:
        """Returns the row, which has the statement, once it says that the job runs."""
        self._write(_BEGIN)
        row = self.read()
        if row.task != sql_jobs.TASK or row.state != "running":
            raise InvalidTransition.of(self.attempt.job_id, row.state, f"run by {sql_jobs.TASK}")
        return row

    def read(self) -> Row[Any]:
        """Returns the row as it is now."""
        row = self._recorder.outbox.query(
            lambda connection: connection.execute(_JOB, {"id": self.attempt.job_id}).one_or_none(),
            PATIENCE,
        )
        if row is None:
            raise Reject("the job's row can't be read", requeue=True)
        return row

    def keep(self, kept: dict[str, Any]) -> None:
        """Keeps what a later run must know, durably, while the job is this run's."""
        self.attempt.checkpoint, self.attempt.has_checkpoint = kept, True
        self._write(PATIENCE)
        row = self.read()
        if row.is_cancelled:
            raise Cancelled("the job is cancelled")
        if row.state != "running" or row.checkpoint != kept:
            raise ClaimLost("its job is another run's by now")

    def outcome(self, xid: str) -> str | None:
        """Returns what became of a transaction, as soon as that is known; `None` if it isn't."""
        status, until = None, time.monotonic() + PATIENCE
        while status in (None, "in progress") and time.monotonic() < until:
            time.sleep(_LOOK)
            status = self._recorder.outbox.query(
                lambda connection: connection.scalar(_STATUS_OF, {"xid": xid}), PATIENCE
            )
        return status

    def _write(self, seconds: float) -> None:
        if not self._recorder.record_now(self.attempt, seconds):
            raise Reject("the job's row can't be written", requeue=True)


class _Run:
    """One run of a statement, in an open session."""

    def __init__(self, session: Session, job: _Job, call: SqlCall, watch: "_Watch") -> None:
        self._session, self._job, self._call, self._watch = session, job, call, watch

    def rows(self, first: UUID) -> int:
        """Runs the statement, unless an earlier run has; returns the number of its rows."""
        self._session.execute(connections.BEGIN)
        self._lock(first)
        xid, server = self._ask(_TRANSACTION)
        for kept in self._job.read().kept:
            # No more in progress: that transaction had the lock.
            if kept["server"] == server and self._ask(_STATUS, kept["xid"]) == ("committed",):
                return int(kept["rows"])
        self._limit()
        self._session.execute(SQL("SET LOCAL ROLE {}").format(Identifier(self._call.role)))
        rows = _run_one(self._session, self._call.statement)
        self._check(xid)
        self._job.keep({"xid": xid, "server": server, "rows": rows})
        self._limit()  # of triggers that were deferred, too
        self._commit(xid)
        return rows

    def _lock(self, first: UUID) -> None:
        """Waits for other runs of the job and its retries."""
        wait = Literal(f"{round(self._call.seconds + _IDLE)}s")
        self._session.execute(SQL("SET LOCAL lock_timeout = {}").format(wait))
        key = int.from_bytes(first.bytes[:8], "big", signed=True)
        try:
            self._session.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", [key])
        except psycopg.errors.LockNotAvailable:
            raise Reject("another run of the job has not ended", requeue=True) from None
        self._session.execute("SET LOCAL lock_timeout TO DEFAULT")

    def _limit(self) -> None:
        """Limits what follows, whatever the statement has set."""
        limit = Literal(f"{max(1, round(self._call.seconds * 1000))}ms")
        self._session.execute(SQL("SET LOCAL statement_timeout = {}").format(limit))
        self._watch.until = time.monotonic() + self._call.seconds

    def _check(self, xid: str) -> None:
        """Raises `SqlFailed` if the statement ended its transaction, or changed its role."""
        if self._session.info.transaction_status == TransactionStatus.INTRANS:
            now = self._ask("SELECT pg_catalog.pg_current_xact_id(), current_user")
            if now == (xid, self._call.role):
                return
        raise SqlFailed("the statement must not end its transaction, nor change its role")

    def _commit(self, xid: str) -> None:
        try:
            self._session.execute("COMMIT")
        except (psycopg.Error, SoftTimeLimitExceeded) as error:
            if isinstance(error, psycopg.Error) and not connections.is_lost(error):
                raise
            self._session.close()
            status = self._job.outcome(xid)
            if status == "aborted":
                raise
            if status != "committed":
                raise Reject("it is not known whether it committed", requeue=True) from None

    def _ask(self, query: str, *values: Any) -> tuple[Any, ...]:
        return self._session.execute(query, values or None).fetchone() or ()


class _Watch:
    """Ends a session's statement when its job must end, or when it doesn't keep its time limit.

    It is cancelled, and if it catches that, its session is terminated.
    """

    def __init__(self, settings: Settings, session: Session, attempt: Attempt) -> None:
        self._settings, self._session, self._attempt = settings, session, attempt
        #: When the statement should have ended (`time.monotonic()`).
        self.until = math.inf
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="pgbeat sql", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._over.set()
        if isinstance(error, psycopg.Error):
            raise self._worded(error) from None

    def _worded(self, error: psycopg.Error) -> Exception:
        if self._attempt.cancel_asked:
            return Cancelled("the job is cancelled")
        state = connections.sqlstate(error)
        if state in ("57014", "57P01", "") and time.monotonic() >= self.until:
            return SqlTimeout("the statement took too long", advice="see its timeout")
        return SqlFailed(f"the statement failed ({state}): {connections.first_line(error)}")

    def _watch(self) -> None:
        asked = math.inf
        while not self._over.wait(_LOOK):
            now = time.monotonic()
            if self._attempt.cancel_asked:
                asked = min(asked, now)
            with suppress(Exception):  # tried again
                if now >= min(asked, self.until) + _GRACE:
                    self._terminate()
                elif now >= asked:
                    self._session.cancel_safe(timeout=_GRACE)

    def _terminate(self) -> None:
        known = getattr(self._session, "session", None)
        if known is not None and self._settings.sql_url is not None:  # else it has a pooler
            engine = connections.engine(self._settings.sql_url, "pgbeat sql")
            with engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": known[0]})


def _run_one(session: Session, statement: str) -> int:
    """Runs a statement, of which the server accepts only one; returns the number of its rows.

    The rows are read one by one, and dropped.
    """
    pgconn = session.pgconn
    pgconn.send_query_params(statement.encode(session.info.encoding), None)
    pgconn.set_single_row_mode()
    session.wait(generators.send(pgconn))
    rows = 0
    while (result := session.wait(generators.fetch(pgconn))) is not None:
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            rows = result.command_tuples or 0
        elif result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        elif result.status != ExecStatus.SINGLE_TUPLE:
            raise SqlFailed("it must be one statement, and no COPY that the client sends or gets")
    return rows


@contextmanager
def _opened(settings: Settings) -> Iterator[Session]:
    """Opens the session, of a login that may do no more than it must."""
    if settings.sql_url is None:  # the settings are checked
        raise ConfigError.of("pgbeat_sql_url", "required", "pgbeat_sql_url: it is not set")
    engine = connections.engine(settings.sql_url, "pgbeat sql", isolation_level="AUTOCOMMIT")
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise SqlFailed(f"no session by pgbeat_sql_url: {connections.first_line(error)}") from None
    try:
        if not identity.is_one_of(connection, [settings.url]):
            message = "pgbeat_sql_url: it leads to another database than pgbeat_url"
            raise ConfigError.of("pgbeat_sql_url", "conflict", message)
        if not poolers.keeps_session(connection, engine):
            message = (
                "pgbeat_sql_url: a transaction-mode pooler answers there, and would give others "
                "the session as a statement leaves it; it must be the server's own DSN"
            )
            raise ConfigError.of("pgbeat_sql_url", "conflict", message)
        connections.prepare_session(connection)
        session = connections.driver(connection)
        found = session.execute(_TOO_MUCH, [list(settings.sql_roles)]).fetchone()
        if found is not None:
            message = (
                f"pgbeat_sql_url: its login may act as {found[0]!r}, which may do more than the "
                "roles of pgbeat_sql_roles; it must be a member of these and of no other, and none "
                "may change pgbeat's tables, replicate, make roles or reach the server's files"
            )
            raise ConfigError.of("pgbeat_sql_url", "conflict", message)
        yield session
    finally:
        connections.close(connection)
