"""Decides which statement a consumer sends next. It does not touch the database.

The order: acknowledgements of messages that start jobs, a claim for a channel that has room, the
other acknowledgements, and a request for notifications about empty queues.

Claims from queues that need no acknowledgement, such as a worker's remote control, come first: a
task that is announced together with its revocation must not overtake it. But no two such claims
follow each other while tasks wait, so that a flood of events can't hold those up.
"""

import time
from collections import deque
from collections.abc import Callable

from psycopg.pq.abc import PGresult

from pgbeat.broker.transport.consuming.acks import Acks
from pgbeat.broker.transport.consuming.claims import Claims, Intake, Request
from pgbeat.broker.transport.consuming.queue_states import QueueStates
from pgbeat.database.prepared import Statement, array

#: Seconds for which a busy worker collects acknowledgements and credit before its next claim.
_PATIENCE = 0.003
#: Seconds between two checks of credit that comes back without a call.
_STARVING = 0.02

AWAIT = Statement("await", "SELECT pgbeat.await_queues($1::bigint[])")
LEAVE = Statement("leave", "SELECT pgbeat.leave_queues($1::bigint[])")


class Planner:
    """Chooses statements by queue states, acknowledgements and the channels' credit."""

    def __init__(self, consumer: int, *, batch_size: int, is_leased: bool = False) -> None:
        self.states = QueueStates()
        self.acks = Acks(consumer)
        self.claims = Claims(consumer, self.states, is_leased=is_leased)
        #: Consuming channels, which take turns.
        self.intakes: deque[Intake] = deque()
        self._batch_size = batch_size
        self._announces = not is_leased
        #: Whether the last claim was from queues that need no acknowledgement.
        self._has_taken = False
        #: Whether a channel without credit may get some back without a call.
        self._is_starving = False
        #: Whether a claim is delayed until `_patient_until`.
        self._is_patient = False
        self._patient_until = 0.0

    def next(self, now: float) -> Request | None:
        """Returns the statement to send now, if any."""
        self._is_starving = self._is_patient = False
        if (request := self.acks.accept(now)) is not None:
            return request
        if (request := self._claim(now)) is not None:
            return request
        if not self._is_patient and (request := self.acks.next()) is not None:
            return request
        return self._await() if self._announces else None

    def _claim(self, now: float) -> Request | None:
        """Returns a claim for the next channel that has room, if any."""
        take_first, self._has_taken = not self._has_taken, False
        if take_first and (request := self._in_turn(self._take, now)) is not None:
            return request
        if (request := self._in_turn(self._claim_acked, now)) is not None:
            return request
        return None if take_first else self._in_turn(self._take, now)

    def _in_turn(
        self, claim: Callable[[Intake, float], Request | None], now: float
    ) -> Request | None:
        for intake in list(self.intakes):
            if (request := claim(intake, now)) is not None:
                self.intakes.remove(intake)
                self.intakes.append(intake)
                return request
        return None

    def _claim_acked(self, intake: Intake, now: float) -> Request | None:
        claimable = [queue for queue in self.states.claimable if queue in intake.acked]
        if claimable and (limit := intake.credit()) > 0:
            if now < self._patient_until and intake.has_plenty(limit):
                self._is_patient = True
                return None
            self._patient_until = now + _PATIENCE
            return self._request(intake, claimable, limit, acked=True)
        self._is_starving = self._is_starving or bool(claimable and intake.polls_credit)
        return None

    def _take(self, intake: Intake, now: float) -> Request | None:
        claimable = [queue for queue in self.states.claimable if queue in intake.taken]
        if not claimable or (limit := intake.room()) <= 0:
            return None
        self._has_taken = True
        return self._request(intake, claimable, limit, acked=False)

    def _request(self, intake: Intake, of: list[int], limit: int, *, acked: bool) -> Request:
        limit = min(limit, self._batch_size)
        return self.claims.request(intake, of, limit, self.acks.take_plain(), acked=acked)

    def _await(self) -> Request | None:
        """Returns a request to await empty queues, or to leave those whose claims are all full."""
        if to_leave := self.states.to_leave():
            self.states.left(to_leave)
            return Request(LEAVE, (array(to_leave),))
        if not (to_await := self.states.to_await()):
            return None

        def done(result: PGresult) -> None:
            granted = {int(result.get_value(i, 0) or 0) for i in range(result.ntuples)}
            self.states.awaited(to_await, granted, time.monotonic())

        return Request(AWAIT, (array(to_await),), done)

    def next_times(self, now: float) -> list[float]:
        """Returns the times at which a statement may be due without any event."""
        times = [self.states.retry_at, self.claims.deep_at]
        if self._is_starving:
            times.append(now + _STARVING)
        if self._is_patient:
            times.append(self._patient_until)
        if (accept_in := self.acks.accept_in(now)) is not None:
            times.append(now + accept_in)
        return [at for at in times if at is not None]
