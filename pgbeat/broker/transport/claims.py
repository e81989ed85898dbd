"""Claims: how a process asks for its queues' messages, and what it gets.

The index of what is ready keeps the dead entries of what was taken, until a vacuum. Most claims
begin where the last one ended, therefore; from the queues' start only now and then.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from psycopg.pq.abc import PGresult

from pgbeat.broker.messages import BrokerTables
from pgbeat.broker.transport.lease import lapsed
from pgbeat.broker.transport.queue_states import QueueStates
from pgbeat.database.prepared import Parameter, Statement, array

#: Claims from the queues' start may take this part of the time, while there are more of them than
#: that; the others go on where the last one ended. After so many seconds there is one anyhow.
_DEEP_SHARE, _DEEP_LATEST = 0.05, 10.0
#: Priorities that a claim looks for where it doesn't begin at the start.
_PRIORITIES = range(10)
#: Queues, at most, that a claim looks for so.
_MOST_MARKED = 100


class ClaimedMessage(NamedTuple):
    """A message that was claimed."""

    id: int
    queue: int
    priority: int
    deliveries: int
    redelivered: bool
    payload: bytes


class Intake(Protocol):
    """A channel, as far as claims need it."""

    #: Ids of the queues consumed with acknowledgements, and without; how many consumers each has.
    acked: Mapping[int, int]
    taken: Mapping[int, int]
    #: Whether credit may come back without a word.
    polls_credit: bool

    def credit(self) -> int:
        """Returns how many more messages it takes to be acknowledged."""

    def has_plenty(self, credit: int) -> bool:
        """Returns whether it has so much to work on that a claim for so few may wait a moment."""

    def room(self) -> int:
        """Returns how many more it takes of the others."""

    def receive(self, found: list[ClaimedMessage], *, acked: bool) -> None:
        """Gets what was claimed for it."""


class Request(NamedTuple):
    """A statement to be sent, and what to do with its result."""

    statement: Statement
    parameters: tuple[Parameter, ...]
    done: Callable[[PGresult], None]


class Claims:
    """Those of one consumer."""

    def __init__(
        self,
        tables: BrokerTables,
        consumer: int,
        states: QueueStates,
        *,
        is_leased: bool = False,
    ) -> None:
        self._consumer, self._states = consumer, states
        self._take = tables.take
        #: From the queues' start, and from marks on.
        self._deep = tables.claim_leased if is_leased else tables.claim
        self._shallow = tables.claim_leased_on if is_leased else tables.claim_on
        #: For each queue and priority, where claims go on while those from the start are costly.
        self._marks: dict[tuple[int, int], int] = {}
        self._deep_at = 0.0
        self._is_shallow = False

    @property
    def deep_at(self) -> float | None:
        """When to look from the queues' start, before whose marks there may be something."""
        return self._deep_at if self._is_shallow else None

    def looked(self) -> None:
        """Has all queues claimed from their start next."""
        self._is_shallow = False

    def forget(self) -> None:
        """Forgets where claims ended: requeued messages may be anywhere."""
        self._marks.clear()

    def one(self, queue: int, acks: bytes) -> tuple[Statement, tuple[Parameter, ...]]:
        """Returns the claim for a queue's next message, whose result `claimed` reads."""
        return self._deep, (array([queue]), b"1", b"%d" % self._consumer, acks)

    def request(
        self, intake: Intake, of: list[int], limit: int, acks: bytes, *, acked: bool
    ) -> Request:
        """Returns a claim for so many messages of these queues (ids), for a channel. The
        acknowledgements are sent with it."""
        is_deep = not acked or not self._marks or time.monotonic() >= self._deep_at
        # Marks are for each queue and priority: for many queues those are more than what they save.
        is_deep = is_deep or len(of) > _MOST_MARKED
        if len(of) > 1:
            random.shuffle(of)  # queues take turns
        statement = self._deep if acked else self._take
        parameters: tuple[Parameter, ...] = (
            array(of), b"%d" % limit, b"%d" % self._consumer, acks,
        )  # fmt: skip
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
            found = claimed(result) if acked else deliveries(result)
            intake.receive(found, acked=acked)
            if acked:
                self._note(found, result, is_deep)
            is_full = len(found) == limit
            self._states.claim_done(of, is_full=is_full)
            if not is_full and not is_deep:
                self._is_shallow = True  # before the marks there may be something

        self._states.claim_sent(of)
        return Request(statement, parameters, done)

    def _note(self, found: list[ClaimedMessage], result: PGresult, is_deep: bool) -> None:
        for delivery in found:
            key = (delivery.queue, delivery.priority)
            self._marks[key] = max(self._marks.get(key, 0), delivery.id + 1)
        if is_deep:
            cost = float(result.get_value(result.ntuples - 1, 5) or 0)
            self._deep_at = time.monotonic() + min(cost / _DEEP_SHARE, _DEEP_LATEST)
            self._is_shallow = False


def _check(result: PGresult) -> None:
    """Raises `psycopg.OperationalError` for a claim that found its consumer dead."""
    if result.get_value(result.ntuples - 1, 3) == b"0":
        raise lapsed()


def claimed(result: PGresult) -> list[ClaimedMessage]:
    """Returns the rows of a claim. Raises `psycopg.OperationalError` if the consumer is dead."""
    _check(result)
    return deliveries(result)


def deliveries(result: PGresult) -> list[ClaimedMessage]:
    """Returns the rows of a claim, in the order of delivery."""
    value = result.get_value
    found = [
        ClaimedMessage(
            int(value(i, 0) or 0), int(value(i, 1) or 0), int(value(i, 2) or 0),
            int(value(i, 3) or 0), value(i, 4) == b"t", value(i, 5) or b"",
        )
        for i in range(result.ntuples)
        if value(i, 0) is not None
    ]  # fmt: skip
    found.sort(key=lambda d: (-d.priority, d.id))
    return found
