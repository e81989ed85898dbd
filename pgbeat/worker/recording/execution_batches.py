"""Turns attempts into statements that write them, and the statements' rows into ended jobs."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.pq.abc import PGresult
from sqlalchemy import Connection

from pgbeat.broker import messages
from pgbeat.database.prepared import Statement, StatementRunner
from pgbeat.jobs.running import executions
from pgbeat.jobs.states import endings
from pgbeat.jobs.states.endings import Ended, Unanswered
from pgbeat.worker.recording.attempts import Attempt

Document = dict[str, Any]
Shape = Callable[[Document], Document]

_encode = json.JSONEncoder(default=str).encode
_by_job = itemgetter("job_id")


class WrittenAttempts(NamedTuple):
    """The result of writing attempts."""

    #: Ended jobs, for `lifecycle.follow`.
    ended: list[Ended]
    #: Ids of jobs that a completed attempt does not end: they have ended before, or are paused.
    unmoved: set[UUID]


def write(
    connection: Connection,
    prepared: StatementRunner,
    batch: Sequence[Attempt],
    worker_id: int,
    shape: Shape = dict,
) -> WrittenAttempts:
    """Writes attempts into the open transaction."""
    # An attempt that ends from now on is written again: what is checked here is what is written.
    drawn, drawn_at = [attempt.documents(worker_id, os.getpid()) for attempt in batch], monotonic()
    ends = [(attempt, documents[-1][1]) for attempt, documents in zip(batch, drawn, strict=True)]
    claims = {
        attempt.job_id: attempt.consumer
        for attempt, end in ends
        if end["job_state"] == "failed" and attempt.consumer is not None
    }
    # These ends don't count if a later execution has begun. A statement that waits for the job's
    # row would not see that one, since its snapshot is older, so they need the lock before. So do
    # those that end only if they were asked to, and those that may be written already, by a
    # transaction that is about to commit.
    undecided = {a.job_id for a, end in ends if end["job_state"] in executions.UNDECIDED}
    doubtful = {
        attempt.job_id
        for attempt, end in ends
        if (attempt.was_tried and not attempt.is_known)
        or (attempt.is_known and end["job_state"] not in ("running", "completed"))
    }
    asked = endings.lock_undecided(connection, undecided | doubtful | claims.keys())
    # A run that lost its claim does not fail its job: the message is delivered again.
    passed_on = messages.passed_on(connection, claims)
    for attempt, end in ends:
        if end["job_state"] == "failed" and attempt.job_id in passed_on:
            attempt.job_state = end["job_state"] = "pending"
            undecided.add(attempt.job_id)
    # What fails has a result.
    unanswered = {job: job_result for job, job_result in asked.items() if str(job) in undecided}
    written = WrittenAttempts([], set())
    for statement, parameter in _statements(drawn, shape, monotonic() - drawn_at):
        for job in _jobs(prepared.run(statement, parameter), unanswered):
            if isinstance(job, UUID):
                written.unmoved.add(job)
            else:
                written.ended.append(job)
    return written


def _statements(
    drawn: Iterable[Sequence[tuple[bool, Document]]], shape: Shape, seconds: float
) -> list[tuple[Statement, bytes]]:
    """Returns the statements that write documents, in order, each with its parameter.

    Executions that are known come before new ones, since they began before those. `seconds` ago the
    documents were made, whose times count back from now.
    """
    new: list[Document] = []
    known: list[Document] = []
    uncertain: list[Document] = []
    for documents in drawn:
        for is_new, document in documents:
            for time in _TIMES & document.keys():
                document[time] += seconds
            part = known if not is_new else uncertain if len(documents) == 2 else new
            part.append(shape(document))
    return [*_split(True, uncertain), *_split(False, known), *_split(True, new)]


_TIMES = frozenset(("began", "ended"))


def _split(is_new: bool, documents: list[Document]) -> Iterator[tuple[Statement, bytes]]:
    """Yields statements that have each job once, in the order in which all lock the jobs."""
    statement = executions.BEGIN if is_new else executions.GO_ON
    todo = sorted(documents, key=_by_job)
    while todo:
        batch: list[Document] = []
        rest: list[Document] = []
        last = None
        for document in todo:
            (rest if document["job_id"] == last else batch).append(document)
            last = document["job_id"]
        yield statement, _encode(batch).encode()
        todo = rest


def _jobs(result: PGresult, unanswered: Mapping[UUID, Unanswered]) -> Iterator[Ended | UUID]:
    """Yields the jobs that a statement ended and that something waits for, and ids of unmoved."""
    for row in range(result.ntuples):
        columns = (result.get_value(row, column) for column in range(8))
        job, namespace, state, lane, group, retry, is_dispatched, has_dependents = (
            None if value is None else value.decode() for value in columns
        )
        if namespace is None:
            yield UUID(job)
            continue
        job_id = UUID(job)
        yield Ended(
            job_id,
            str(namespace),
            str(state),
            lane,
            UUID(group) if group else None,
            UUID(retry) if retry else None,
            is_dispatched == "t",
            has_dependents == "t",
            unanswered.get(job_id),
        )
