"""Ends jobs that were dispatched but have lost their message.

`pgbeat.jobs.rescuing.rescue` has the rule.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pgbeat.broker import message_ends, own_tables
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.database import sql
from pgbeat.database.locks import batches
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.messages import answers, discarded_messages
from pgbeat.jobs.rescuing import rescue_log
from pgbeat.jobs.rescuing.rescue_log import LogMessage, Loss
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.running import executions, workers
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.states import endings
from pgbeat.jobs.states.endings import Ended

Lanes = set[Room]

# Jobs that one round reads.
_PAGE = 500
# Ends of messages that one round reads, and jobs that it gives up for them.
_ENDS_PAGE, _ENDS = 10_000, 500
# Seconds after which a job is given up that has no message, and that no known worker has accepted.
_GONE = 15.0
# States of a dispatched job that has not begun.
_WAITING = ("pending", "scheduled")


class MissingMessages:
    """Finds jobs of a namespace without a message, and remembers them from round to round."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        #: Jobs whose message is missing, and since when (`time.monotonic()`).
        self._suspects: dict[str, float] = {}
        #: The last job that was read in each state.
        self._after = dict.fromkeys(_WAITING, _START)
        #: The last end of a message that was read.
        self._ends_after = 0

    def forget(self) -> None:
        """Forgets what was noticed."""
        self._suspects = {}

    def rescue(
        self, connection: Connection, publisher: TransactionPublisher, dead: Sequence[int]
    ) -> Lanes:
        """Does one round, and returns the lanes that have free slots.

        `dead` are the ids of dead workers. The connection must be in autocommit mode.
        """
        if not own_tables.exist(connection):
            return set()
        lanes = self._end_dead_letters(connection, publisher)
        lanes |= self._end_discarded(connection, publisher)
        page, self._ends_after = message_ends.page(connection, self._ends_after, _ENDS_PAGE)
        if publisher.keeps_claimed:
            lanes |= self._give_up_accepted(connection, publisher, dead, page)
            if workers.number(connection):
                lanes |= self._give_up_unaccepted(connection, publisher)
        message_ends.prune(connection, page)
        return lanes

    def _end_dead_letters(self, connection: Connection, publisher: TransactionPublisher) -> Lanes:
        """Ends jobs whose message is a dead letter: rejected, or delivered too often."""
        rows = connection.execute(_DEAD_LETTERS, {"namespace": self._namespace})
        errors = {str(job): f"its message is a dead letter: {reason}" for job, reason in rows}
        return _end(connection, publisher, errors, of=(*_WAITING, "running"))

    def _end_discarded(self, connection: Connection, publisher: TransactionPublisher) -> Lanes:
        """Ends jobs that could not end in the transaction that purged or expired their message."""
        discarded = discarded_messages.unfinished_jobs(connection, self._namespace)

        def part(some: Sequence[str]) -> Lanes:
            ended = discarded_messages.end_jobs(connection, some)
            return _follow(connection, publisher, ended)

        return set().union(*batches.in_transactions(connection, discarded, part))

    def _give_up_accepted(
        self,
        connection: Connection,
        publisher: TransactionPublisher,
        dead: Sequence[int],
        page: message_ends.EndsPage,
    ) -> Lanes:
        """Gives up jobs whose worker accepted them and died before it recorded that they began.

        Those whose tasks have succeeded all the same are completed; with
        `worker_deduplicate_successful_tasks`, by which Celery doesn't run them again and gives no
        signal, also if the worker lives.
        """
        values = {
            "namespace": self._namespace,
            "dead": list(dead),
            "deduplicates": bool(publisher.app.conf.worker_deduplicate_successful_tasks),
            "ends": _ENDS,
            **page._asdict(),
        }
        rows = connection.execute(_ACCEPTED, values).all()
        workers_gone = {str(row.id): row.name for row in rows if row.is_gone}
        if len(workers_gone) == _ENDS:
            self._ends_after = page.after  # there may be more
        accepted_by = {str(row.id): row.name for row in rows}
        done = answers.succeeded(connection, publisher, list(accepted_by))
        completed = [
            ExecutionRecord(
                str(uuid4()),
                job,
                True,
                state="completed",
                job_state="completed",
                worker=accepted_by[job],
                began=seconds,
                ended=seconds,
            )
            for job, seconds in done.items()
        ]
        lanes = _complete(connection, publisher, completed)
        errors = {
            job: f"lost: the worker {worker} accepted it, and is gone without having begun it"
            if worker
            else "lost: the worker that accepted it is gone without having begun it"
            for job, worker in workers_gone.items()
            if job not in done
        }
        return lanes | _end(connection, publisher, errors, is_loss=True)

    def _give_up_unaccepted(self, connection: Connection, publisher: TransactionPublisher) -> Lanes:
        """Gives up jobs whose message was deleted without a record, by hand or by a program."""
        expired, lost = self._find_unaccepted(connection, publisher)
        errors = dict.fromkeys(expired, discarded_messages.why("expired", None))
        lanes = _end(connection, publisher, errors, to="cancelled")
        error = "lost: its message is gone, and no worker has recorded that it accepted it"
        return lanes | _end(connection, publisher, dict.fromkeys(lost, error), is_loss=True)

    def _find_unaccepted(
        self, connection: Connection, publisher: TransactionPublisher
    ) -> tuple[list[str], list[str]]:
        """Returns the jobs whose message may have expired, and the others."""
        now = time.monotonic()
        suspects: dict[str, float] = {}
        expiring: set[str] = set()
        for state, (at, after) in self._after.items():
            values = {
                "namespace": self._namespace,
                "state": state,
                "at": at,
                "after": after,
                "suspects": list(self._suspects),
                "limit": _PAGE,
            }
            rows = connection.execute(_UNACCEPTED, values).all()
            page = [(row.created_at, row.id) for row in rows if row.in_page]
            self._after[state] = page[-1] if len(page) == _PAGE else _START
            for row in rows:
                job_id = str(row.id)
                if row.is_gone:
                    suspects[job_id] = self._suspects.get(job_id, now)
                    if row.may_expire:
                        expiring.add(job_id)
        self._suspects = suspects
        gone = [job_id for job_id, since in suspects.items() if now - since > _GONE]
        return [j for j in gone if j in expiring], [j for j in gone if j not in expiring]


def _complete(
    connection: Connection, publisher: TransactionPublisher, completed: Sequence[ExecutionRecord]
) -> Lanes:
    """Records executions of jobs that have completed; returns the lanes that have free slots."""
    records = {record.job_id: record for record in completed}

    def part(some: Sequence[str]) -> Lanes:
        batch = [records[job_id] for job_id in sorted(jobs.try_lock(connection, some))]
        return _follow(connection, publisher, executions.record(connection, batch))

    return set().union(*batches.in_transactions(connection, list(records), part))


def _end(
    connection: Connection,
    publisher: TransactionPublisher,
    errors: dict[str, str],
    to: Literal["cancelled", "failed"] = "failed",
    *,
    of: Sequence[str] = _WAITING,
    is_loss: bool = False,
) -> Lanes:
    """Ends jobs, each with its error, and returns the lanes that have free slots."""

    def part(some: Sequence[str]) -> tuple[Lanes, list[LogMessage]]:
        ended: list[Ended] = []
        for error in sorted({errors[job_id] for job_id in some}):
            batch = [job_id for job_id in some if errors[job_id] == error]
            ended += endings.end(connection, batch, to, error, of=of)
        if is_loss:
            workers.count(connection, workers.RELEASED, len(ended))
        lanes = _follow(connection, publisher, ended)
        losses = [Loss(job.id) for job in ended if to == "failed"]
        return lanes, rescue_log.describe(connection, losses)

    freed: Lanes = set()
    for lanes, lines in batches.in_transactions(connection, list(errors), part):
        rescue_log.log(lines)
        freed |= lanes
    return freed


def _follow(connection: Connection, publisher: Publisher, ended: Sequence[Ended]) -> Lanes:
    try:
        return lifecycle.follow(connection, publisher, ended)
    except BaseException:
        publisher.clear()
        raise


_START = (datetime(1, 1, 2, tzinfo=UTC), UUID(int=0))
_DEAD_LETTERS = text(sql.load("missing_messages.sql", "dead_letters"))
_ACCEPTED = text(sql.load("missing_messages.sql", "accepted"))
_UNACCEPTED = text(sql.load("missing_messages.sql", "unaccepted"))
