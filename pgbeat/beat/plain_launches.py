"""Launches plain schedules in one statement, and lets beat work while the server executes it.

Most launches are plain: they send what the row says at its due time, by no policy that needs the
database. The enqueuer writes all others step by step, and also a batch that the statement refuses.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import NamedTuple

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat import launched_jobs
from pgbeat.beat.advancer import Advancer
from pgbeat.beat.due import RunState
from pgbeat.beat.evaluation import Decision, Evaluation, Launch
from pgbeat.broker import messages
from pgbeat.broker.messages import Message
from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.config import Settings
from pgbeat.database import connections, sql
from pgbeat.database.prepared import PreparedConnection, Statement
from pgbeat.jobs.messages import headers
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.preparing.placeholders import Facts
from pgbeat.jobs.rows import new_jobs
from pgbeat.schedules.ticks import Tick

logger = logging.getLogger("celery.beat.pgbeat")

_LAUNCH = Statement(
    "launch", sql.load("plain_launches.sql", insert=messages.INSERT, jobs=new_jobs.OF_SCHEDULES)
)
#: The headers of a message that differ from launch to launch.
_VARYING = (headers.SCHEDULE, headers.DUE_AT, headers.INTERVAL_START)
#: The most envelopes that are kept.
_MOST = 1000


class _PlainLaunch(NamedTuple):
    decision: Decision
    state: RunState
    facts: Facts
    envelope: Message
    payload: str
    evaluation: Evaluation


class PlainLaunches:
    """Launches plain schedules of one app. Not for several threads."""

    def __init__(
        self, app: Celery, settings: Settings, publisher: TransactionPublisher, advancer: Advancer
    ) -> None:
        self._app, self._settings = app, settings
        self._publisher, self._advancer = publisher, advancer
        #: The messages of rows, with gaps, by what they have in common.
        self._envelopes: dict[tuple[object, ...], Message] = {}
        self._session: PreparedConnection | None = None
        self._sent: list[_PlainLaunch] = []
        #: By the identity of the evaluation, which the launch keeps alive.
        self._ready: dict[int, _PlainLaunch] = {}

    def prepare(self, evaluations: Iterable[Evaluation], now: datetime) -> None:
        """Prepares what the next `send` may be given, as far as envelopes are known."""
        launches = (self._prepare(evaluation, now, learn=False) for evaluation in evaluations)
        self._ready = {id(launch.evaluation): launch for launch in launches if launch is not None}

    def send(
        self, connection: Connection, evaluations: Iterable[Evaluation], now: datetime
    ) -> list[Evaluation]:
        """Sends the plain launches among these to the server; returns the other evaluations.

        The connection must not be used before `receive`.
        """
        if not self._publisher.has_envelopes:
            return list(evaluations)
        launches: list[_PlainLaunch] = []
        others: list[Evaluation] = []
        ready, self._ready = self._ready, {}
        for evaluation in evaluations:
            launch = ready.get(id(evaluation)) or self._prepare(evaluation, now)
            if launch is None:
                others.append(evaluation)
            else:
                launches.append(launch)
        if launches:
            raw = connections.driver(connection)
            if self._session is None or self._session.connection is not raw:
                # Where psycopg prepares nothing, the session may be others' too.
                is_own = raw.prepare_threshold is not None
                self._session = PreparedConnection(raw, is_own, listens=False)
            self._session.send(_LAUNCH, *self._parameters(launches, now))
            self._session.flush()
            self._sent = launches
        return others

    def receive(self) -> tuple[list[Decision], list[Evaluation]]:
        """Waits until the server has written what was sent.

        Returns the decisions, or the evaluations if the server refused. Raises the driver's error
        if the connection is lost.
        """
        sent, self._sent = self._sent, []
        if self._session is None or not sent:
            return [], []
        try:
            self._session.finish()
        except Exception as error:
            if connections.is_lost(error):
                raise
            logger.debug("Launches are written step by step: %s", connections.first_line(error))
            return [], [launch.evaluation for launch in sent]
        return [launch.decision for launch in sent], []

    def _prepare(
        self, evaluation: Evaluation, now: datetime, *, learn: bool = True
    ) -> _PlainLaunch | None:
        """Returns the launch, or `None` if it is not plain, or has no envelope."""
        try:
            return self._plain_launch(evaluation, now, learn=learn)
        except Exception:
            return None  # writing it step by step raises again, and makes a failure of it

    def _plain_launch(
        self, evaluation: Evaluation, now: datetime, *, learn: bool
    ) -> _PlainLaunch | None:
        row, result = evaluation.schedule, evaluation.result
        if (
            not isinstance(result, Launch)
            or evaluation.trigger != "timetable"
            or evaluation.created_by is not None
            or row.overlap != "allow"
            or row.job_policy
            or not (row.is_plain or row.is_sql_only)
            or row.has_placeholders
        ):
            return None
        facts = result.facts
        if facts.last_due is not None:
            return None
        envelope = self._envelope(evaluation, facts, learn=learn)
        if envelope is None:
            return None
        tick = Tick(
            row.id,
            row.name,
            "timetable",
            evaluation.due_at,
            "launched",
            job_id=facts.job_id,
            missed=evaluation.missed,
            note=evaluation.note,
        )
        decision, state = self._advancer.after(evaluation, tick, now)
        if state is None or state.next_run is None or state.cursor or decision.disabled_reason:
            return None
        payload = _payload(envelope, facts)
        return _PlainLaunch(decision, state, facts, envelope, payload, evaluation)

    def _envelope(self, evaluation: Evaluation, facts: Facts, *, learn: bool) -> Message | None:
        """Returns the row's message with gaps, or `None` if Celery must make each.

        Without `learn`, no message is made that might have to be made again. Raises whatever is
        wrong with the row.
        """
        row = evaluation.schedule
        says = (row.args, row.kwargs, row.options)
        call = repr(says) if any(says) else ""
        key = (row.task, row.queue, row.source == "code", call, facts.interval_start is None)
        envelope = self._envelopes.get(key)
        if envelope is None and learn:
            if task_policies.of_task(self._app, str(row.task)) is not None:
                return None
            (prepared,) = launched_jobs.build_all(self._app, self._settings, evaluation, None)
            envelope = self._publisher.envelope(prepared.message, _VARYING)
            if envelope is None or envelope.queue is None:
                return None
            if len(self._envelopes) >= _MOST:
                self._envelopes.clear()
            self._envelopes[key] = envelope
        return envelope

    def _parameters(self, sent: Sequence[_PlainLaunch], now: datetime) -> list[bytes]:
        settings = self._settings
        rows = [launch.evaluation.schedule for launch in sent]
        routes: dict[tuple[object, ...], int] = {}
        numbers = [
            routes.setdefault((e.queue, e.priority, e.ttl), len(routes) + 1)
            for e in (launch.envelope for launch in sent)
        ]
        queues, priorities, lives = zip(*routes, strict=True)
        ticks = [launch.decision.tick for launch in sent]
        return [
            _array(row.id for row in rows),
            _array(row.version for row in rows),
            _array(launch.facts.job_id for launch in sent),
            _times(tick.due_at for tick in ticks),
            _times(launch.facts.interval_start for launch in sent),
            _times(launch.state.next_run for launch in sent),
            _times(launch.state.due_at for launch in sent),
            _array(tick.missed for tick in ticks),
            _lines(tick.note or "" for tick in ticks),
            _array(numbers),
            _lines(launch.payload for launch in sent),
            _lines(queues),
            _array(priorities),
            _array("NULL" if life is None else life for life in lives),
            now.isoformat().encode(),
            str(settings.job_max_attempts).encode(),
            str(settings.job_retry_base).encode(),
            str(settings.job_retry_cap).encode(),
        ]


def _payload(envelope: Message, facts: Facts) -> str:
    start = facts.interval_start
    return envelope.payload % {
        "id": facts.job_id,
        headers.SCHEDULE: quoted(facts.schedule or ""),
        headers.DUE_AT: f'"{headers.isoformat(facts.due_at)}"',
        headers.INTERVAL_START: start and f'"{headers.isoformat(start)}"',
    }


def _array(values: Iterable[object]) -> bytes:
    """Returns values whose text needs no quotes as a Postgres array."""
    return b"{%s}" % ",".join(map(str, values)).encode()


def _times(moments: Iterable[datetime | None]) -> bytes:
    return _array("NULL" if moment is None else moment.isoformat() for moment in moments)


def _lines(texts: Iterable[str]) -> bytes:
    """Returns texts that have no newline, as JSON and names of queues have none, a line each."""
    return "\n".join(texts).encode()
