"""Makes the statements that claim messages, and reads their results.

Until a vacuum, the index of ready messages keeps dead entries of those already claimed. Therefore
most claims begin where the last one ended, and only some at the queues' start.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from psycopg.pq.abc import PGresult

from pgbeat.broker.transport.consuming import claim_sql
from pgbeat.broker.transport.consuming.lease import lapsed
from pgbeat.broker.transport.consuming.queue_states import QueueStates
from pgbeat.database.prepared import Parameter, Statement, array

#: The share of time for claims from the queues' start, and the seconds after which there is one in
#: any case.
_DEEP_SHARE, _DEEP_LATEST = 0.05, 60.0
#: Priorities that a claim from marks looks for.
_PRIORITIES = range(10)
#: The most queues of a claim from marks.
_MOST_MARKED = 100


class ClaimedMessage(NamedTuple):
    """A claimed message."""

    id: int
    queue: int
    priority: int
    deliveries: int
    redelivered: bool
    payload: bytes
    #: The job that it starts, if any.
    job_id: str | None = None
    #: The server's clock at the claim, in seconds since 1970; `None` without acknowledgement.
    at: float | None = None


class Intake(Protocol):
    """A channel, as claims see it."""

    #: Consumers of each queue (id) with acknowledgements, and without.
    acked: Mapping[int, int]
    taken: Mapping[int, int]
    #: Whether credit may come back without a call.
    polls_credit: bool

    def credit(self) -> int:
        """Returns how many more messages with acknowledgement it takes."""

    def has_plenty(self, credit: int) -> bool:
        """Returns whether it has enough work that a claim for so few may wait a moment."""

    def room(self) -> int:
        """Returns how many more messages without acknowledgement it takes."""

    def receive(self, messages: list[ClaimedMessage], *, acked: bool) -> None:
        """Takes what was claimed for it."""


class Request(NamedTuple):
    """A statement to send, and a function for its result."""

    statement: Statement
    parameters: tuple[Parameter, ...]
    done: Callable[[PGresult], None] = lambda result: None


class Claims:
    """The claims of one consumer."""

    def __init__(self, consumer: int, states: QueueStates, *, is_leased: bool = False) -> None:
        self._consumer, self._states = consumer, states
        #: From the queues' start, and from marks.
        self._deep = claim_sql.CLAIM_LEASED if is_leased else claim_sql.CLAIM
        self._shallow = claim_sql.CLAIM_LEASED_ON if is_leased else claim_sql.CLAIM_ON
        #: By queue and priority, the id from which claims continue.
        self._marks: dict[tuple[int, int], int] = {}
        self._deep_at = 0.0
        #: Queues that may have messages before their marks.
        self._skipped: set[int] = set()
        #: Queues whose next claim begins at their start, whichever channel makes it.
        self._due: set[int] = set()

    @property
    def deep_at(self) -> float | None:
        """When to claim from the queues' start, since there may be messages before the marks."""
        return self._deep_at if self._skipped else None

    def look_everywhere(self, now: float) -> None:
        """Marks all queues claimable; if it is time, the next claim of each begins at its start."""
        self._states.mark_all_claimable()
        if now >= self._deep_at:
            self._due = set(self._states.claimable)
            self._skipped.clear()

    def forget(self) -> None:
        """Forgets where claims ended, since requeued messages may be anywhere."""
        self._marks.clear()

    def one(self, queue: int, acks: bytes) -> tuple[Statement, tuple[Parameter, ...]]:
        """Returns the claim for a queue's next message, whose result `claimed` reads."""
        return self._deep, (array([queue]), b"1", b"%d" % self._consumer, acks)

    def request(
        self, intake: Intake, of: list[int], limit: int, acks: bytes, *, acked: bool
    ) -> Request:
        """Returns a claim for messages of these queues (ids), with acknowledgements.

        A channel gets up to `limit` messages.
        """
        is_due = not self._due.isdisjoint(of)
        is_deep = is_due or not acked or not self._marks or time.monotonic() >= self._deep_at
        # For many queues, marks by queue and priority cost more than they save.
        is_deep = is_deep or len(of) > _MOST_MARKED
        if len(of) > 1:
            random.shuffle(of)  # queues take turns
        statement = self._deep if acked else claim_sql.TAKE
        parameters: tuple[Parameter, ...] = (array(of), b"%d" % limit, b"%d" % self._consumer, acks)
        if not is_deep:
            statement = self._shallow
            marks = self._marks
            levels = sorted({*_PRIORITIES, *(p for q, p in marks if q in of)}, reverse=True)
            starts = [(q, p, marks.get((q, p), 0)) for p in levels for q in of]
            parameters = (
                array([q for q, _, _ in starts]),
                *parameters[1:],
                array([p for _, p, _ in starts]),
                array([low for _, _, low in starts]),
            )

        def done(result: PGresult) -> None:
            messages = claimed(result) if acked else deliveries(result)
            intake.receive(messages, acked=acked)
            is_full = len(messages) == limit
            self._states.claim_done(of, is_full=is_full)
            if acked:
                self._note(messages)
                if is_deep:
                    self._skipped.difference_update(of)
                    self._pause(result, is_due=is_due)
                elif not is_full:
                    self._skipped.update(of)

        self._states.claim_sent(of)
        if acked and is_deep:
            self._due.difference_update(of)
        return Request(statement, parameters, done)

    def _note(self, messages: list[ClaimedMessage]) -> None:
        for delivery in messages:
            key = (delivery.queue, delivery.priority)
            self._marks[key] = max(self._marks.get(key, 0), delivery.id + 1)

    def _pause(self, result: PGresult, *, is_due: bool) -> None:
        """Schedules the next claims from the start by what this one cost."""
        cost, now = float(result.get_value(result.ntuples - 1, 5) or 0), time.monotonic()
        begin = max(self._deep_at, now) if is_due else now  # channels add up
        self._deep_at = min(begin + cost / _DEEP_SHARE, now + _DEEP_LATEST)


def claimed(result: PGresult) -> list[ClaimedMessage]:
    """Returns the rows of a claim. Raises `psycopg.OperationalError` if the consumer is dead."""
    last = result.ntuples - 1
    if result.get_value(last, 3) == b"0":
        raise lapsed()
    return deliveries(result, int(result.get_value(last, 1) or 0) / 1e6)


def deliveries(result: PGresult, at: float | None = None) -> list[ClaimedMessage]:
    """Returns the messages among a statement's rows, in the order of delivery.

    `at` is the server's clock.
    """
    value = result.get_value
    messages = [
        ClaimedMessage(
            int(value(i, 0) or 0),
            int(value(i, 1) or 0),
            int(value(i, 2) or 0),
            int(value(i, 3) or 0),
            value(i, 4) == b"t",
            value(i, 5) or b"",
            None if (job_id := value(i, 6)) is None else job_id.decode(),
            at,
        )
        for i in range(result.ntuples)
        if value(i, 0) is not None
    ]
    messages.sort(key=lambda d: (-d.priority, d.id))
    return messages
