"""The consuming side of a process: one connection that lives, listens, claims and acknowledges.

Whoever holds the lock may let it do its next step: a worker's event loop, which sends a statement
and goes on until the answer is there, or a thread that waits in `drain_events`. A message is
claimed for a channel, into its buffer, up to its free prefetch; acknowledgements travel with the
next claim.
"""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.broker import consumers
from pgbeat.broker import queues as broker_queues
from pgbeat.broker.transport.acks import Acks
from pgbeat.broker.transport.claims import ClaimedMessage, Claims, Intake, Request, claimed
from pgbeat.broker.transport.lease import Lease
from pgbeat.broker.transport.maintenance import Maintenance
from pgbeat.broker.transport.queue_states import QueueStates, Removed
from pgbeat.broker.transport.settlements import Settlements
from pgbeat.database import channels, connections
from pgbeat.database.prepared import PreparedConnection, Statement, array

if TYPE_CHECKING:
    from pgbeat.broker.transport.broker import Broker

logger = logging.getLogger("pgbeat.transport")

#: Seconds between two looks for new messages where there is nobody to tell of them.
_POLL_POOLED = 0.5
#: A worker that has plenty to do collects acknowledgements, and credit, for so long.
_PATIENCE = 0.003
#: How often credit is looked for that comes back without a word.
_STARVING = 0.02

_AWAIT = Statement("await", "SELECT pgbeat.await_queues($1::bigint[])")
_LEAVE = Statement("leave", "SELECT pgbeat.leave_queues($1::bigint[])")


class Session:
    """One consumer, in the database's eyes. Its claims go back when its connection is gone."""

    def __init__(
        self, broker: "Broker", connection: Connection, lease: float | None = None
    ) -> None:
        self._broker, self._connection = broker, connection
        self._tables, self._options = broker.tables, broker.options
        self.pid = os.getpid()
        #: By the monotonic clock.
        self.opened_at = time.monotonic()
        #: Held for each step.
        self.lock = threading.RLock()
        #: Duplicates of the socket that connections of kombu's wait on.
        self.files: set[int] = set()
        #: The error that ended it.
        self.lost: BaseException | None = None
        self._intakes: deque[Intake] = deque()
        self._states = QueueStates()
        #: Queues to be left and not listened to any more, before the next step.
        self._left: list[Removed] = []
        #: Queues among those consumed that go with their last consumer.
        self._fragile: set[int] = set()
        self._request: Request | None = None
        self._is_starving = False
        self._is_patient = False
        self._patient_until = 0.0
        self._wakers: set[Callable[[], None]] = set()
        #: Whether a claim, or anything else, is announced to this session.
        self._listens = lease is None
        self._poll = self._options.polling_interval if self._listens else min(
            _POLL_POOLED, self._options.polling_interval
        )  # fmt: skip
        name = f"{socket.gethostname()}:{os.getpid()}"
        if self._listens:
            connections.prepare_session(connection)
            # By the indexes, whatever the statistics of an empty table say; and a crash of the
            # server may bring back what was acknowledged just before, but loses nothing.
            connections.configure(
                connection,
                {"plan_cache_mode": "force_generic_plan", "synchronous_commit": "off"},
            )
        #: The consumer's id; claims are under it.
        self.id = consumers.register(connection, broker.tables, name, lease)
        #: Seconds that its lease lasts; 0 where it lives as long as its connection.
        self.lease = lease or 0.0
        self._lease: Lease | None = None
        if lease is None:
            connection.execute(text(f"LISTEN {channels.BROKER}"))
        else:
            self._lease = Lease(broker, self.id, lease, self._end)
        isolates = lease is not None and not connections.isolate(connection)
        self.prepared = PreparedConnection(
            connections.driver(connection), prepares=self._listens, isolates=isolates
        )
        self._acks = Acks(broker.tables, self.id)
        self._claims = Claims(broker.tables, self.id, self._states, is_leased=lease is not None)
        self._settlements = Settlements()
        self._maintenance = Maintenance(connection, broker.tables, broker.options, self.id)
        self._poll_at = time.monotonic() + self._poll

    # ----- who consumes what

    def subscribe(self, intake: Intake, queues: Sequence[int]) -> None:
        """The channel consumes the queues (ids) from now on."""
        with self.alone():
            if intake not in self._intakes:
                self._intakes.append(intake)
            if new := self._states.add(queues):
                self._fragile |= consumers.subscribe(self._connection, self._tables, self.id, new)
                self._leave()
                self._listen("LISTEN", new)
        self.wake()

    def unsubscribe(self, intake: Intake, queues: Sequence[int]) -> None:
        """The channel consumes them no more."""
        with self.alone():
            left = self._states.remove(queues)
            if left.queues:
                self._left.append(left)
                self._unsubscribe([q for q in left.queues if q not in self._fragile])
                if fragile := [q for q in left.queues if q in self._fragile]:
                    self._fragile.difference_update(fragile)
                    with connections.transaction(self._connection):
                        self._unsubscribe(fragile)
                        broker_queues.delete_abandoned(self._connection, self._tables, fragile)
            if not intake.acked and not intake.taken and intake in self._intakes:
                self._intakes.remove(intake)

    def _unsubscribe(self, queues: list[int]) -> None:
        if queues:
            consumers.unsubscribe(self._connection, self._tables, self.id, queues)

    def _leave(self) -> None:
        """Waits and listens no more for queues that are not consumed any more."""
        left, self._left = self._left, []
        if awaited := [queue for each in left for queue in each.awaited]:
            self.prepared.run(_LEAVE, array(awaited))
        if left:
            self._listen("UNLISTEN", [queue for each in left for queue in each.queues])

    def _listen(self, verb: str, queues: Sequence[int]) -> None:
        if self._listens:
            # One statement with many commands: a round trip, however many queues.
            commands = [f"{verb} {channels.of_queue(queue)}" for queue in queues]
            connections.driver(self._connection).execute("; ".join(commands).encode())

    def alone(self) -> "_Alone":
        """The connection for something else: what was sent is finished first."""
        return _Alone(self)

    def close(self) -> None:
        """Gives everything back and ends the session."""
        try:
            if self.lost is None:
                with self.alone():
                    self._flush_acks()
                    with connections.transaction(self._connection):
                        consumers.leave(self._connection, self._tables, self.id)
        except Exception as error:
            logger.debug("The server gives back what this consumer had: %s", error)
        finally:
            if self.lost is None:
                self.lost = psycopg.OperationalError("the consumer's session was closed")
            connections.close(self._connection)
            if self._lease is not None:
                self._lease.stop(give_up=False)

    def is_alive(self) -> bool:
        """Whether it is, as far as can be told at once: nobody may have looked for long."""
        if self.pid != os.getpid():
            return False
        if self.lost is None and self.lock.acquire(blocking=False):
            try:
                if not self.prepared.is_alive():
                    self._fail(psycopg.OperationalError("the server closed the connection"))
                elif self.hear():
                    self.wake()  # a thread that waits for the socket finds nothing there any more
            finally:
                self.lock.release()
        return self.lost is None

    def _end(self, error: BaseException) -> None:
        """Ends the session for an error that another thread has found."""
        with self.lock:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.lost is None:
            self.lost, self._request = error, None
            connections.close(self._connection)
            if self._lease is not None:
                self._lease.stop(give_up=True)
        for waker in list(self._wakers):
            waker()

    # ----- messages

    def ack(self, message: int, *, starts_job: bool = False) -> None:
        """Acknowledges a message with the next statement."""
        self._acks.add(message, starts_job=starts_job)

    @property
    def has_acks(self) -> bool:
        """Whether acknowledgements can be sent now."""
        return self._acks.is_due

    def flush_acks(self) -> None:
        """Sends them now."""
        if self._acks:
            with self.alone():
                self._flush_acks()

    def send_acks(self) -> None:
        """Sends them, unless something is under way, and doesn't wait for the answer."""
        with _Guarded(self):
            if self._request is None and (request := self._acks.next(at_once=True)) is not None:
                self._send(request)

    def _flush_acks(self) -> None:
        while (request := self._acks.next(at_once=True)) is not None:
            self.prepared.run(request.statement, *request.parameters)

    def claim_one(self, queue: int) -> ClaimedMessage | None:
        """Claims the queue's next message (`basic_get`)."""
        with self.alone():
            statement, parameters = self._claims.one(queue, self._acks.take_plain())
            found = claimed(self.prepared.run(statement, *parameters))
        return found[0] if found else None

    def requeue(self, messages: Sequence[int], *, counts: bool = True) -> None:
        """Gives claimed messages back."""

        def requeue(messages: Sequence[int]) -> list[int]:
            left = consumers.requeue(
                self._connection, self._tables, self.id, messages,
                limit=self._options.limit, counts=counts,
            )  # fmt: skip
            self._look_again()
            return left

        if messages:
            with self.alone():
                self._settlements.settle(requeue, messages)
            self.wake()

    def reject(self, messages: Sequence[int], reason: str = "rejected") -> None:
        """Gives claimed messages up."""

        def reject(messages: Sequence[int]) -> list[int]:
            return consumers.reject(self._connection, self._tables, self.id, messages, reason)

        if messages:
            with self.alone():
                self._settlements.settle(reject, messages)

    def _look_again(self) -> None:
        """Messages came back: they may be anywhere. Its own announcements don't reach a session."""
        self._claims.forget()
        self._states.mark_all_claimable()

    # ----- steps

    def next_step(self) -> Request | None:
        """What to send now, if anything. The lock is held."""
        now = time.monotonic()
        self._is_starving = self._is_patient = False
        if self._lease is not None:
            self._lease.check()
        self._settlements.retry(now)
        self._leave()
        self._look_at_clock(now)
        self.hear()
        if (request := self._acks.accept(now)) is not None:
            return request
        for _ in range(len(self._intakes)):
            intake = self._intakes[0]
            self._intakes.rotate(-1)
            request = self._claim(intake, now)
            if request is not None:
                return request
        if not self._is_patient and (request := self._acks.next()) is not None:
            return request
        if self._listens:
            return self._await(now)
        return None

    def _claim(self, intake: Intake, now: float) -> Request | None:
        claimable = [queue for queue in self._states.claimable if queue in intake.acked]
        if claimable and (limit := intake.credit()) > 0:
            if now < self._patient_until and intake.has_plenty(limit):
                self._is_patient = True
                return None
            self._patient_until = now + _PATIENCE
            return self._request_for(intake, claimable, limit, acked=True)
        self._is_starving = self._is_starving or bool(claimable and intake.polls_credit)
        claimable = [queue for queue in self._states.claimable if queue in intake.taken]
        if claimable and (limit := intake.room()) > 0:
            return self._request_for(intake, claimable, limit, acked=False)
        return None

    def _request_for(self, intake: Intake, of: list[int], limit: int, *, acked: bool) -> Request:
        limit = min(limit, self._options.batch_size)
        return self._claims.request(intake, of, limit, self._acks.take_plain(), acked=acked)

    def _await(self, now: float) -> Request | None:
        """Asks to be told of new messages, or not to be as long as there are plenty."""
        if plenty := self._states.to_leave():
            self._states.left(plenty)
            return Request(_LEAVE, (array(plenty),), lambda result: None)
        wanted = self._states.to_await()
        if not wanted:
            return None

        def done(result: PGresult) -> None:
            granted = {int(result.get_value(i, 0) or 0) for i in range(result.ntuples)}
            self._states.awaited(wanted, granted, time.monotonic())

        return Request(_AWAIT, (array(wanted),), done)

    def _look_at_clock(self, now: float) -> None:
        self._states.advance(now)
        deep_at = self._claims.deep_at
        if now >= self._poll_at or (deep_at is not None and now >= deep_at):
            self._poll_at = now + self._poll
            self._claims.looked()
            self._states.mark_all_claimable()
        if now >= self._maintenance.next_at:
            changes = self._maintenance.run(now)
            if changes.requeued:
                self._look_again()
            elif changes.promoted:
                self._states.mark_all_claimable()

    def until_next(self) -> float:
        """Seconds until there may be something to do that nobody tells of."""
        times = [self._poll_at, self._maintenance.next_at]
        if (retry_at := self._states.retry_at) is not None:
            times.append(retry_at)
        if (deep_at := self._claims.deep_at) is not None:
            times.append(deep_at)
        if self._settlements.next_at is not None:
            times.append(self._settlements.next_at)
        if self._is_starving:
            times.append(time.monotonic() + _STARVING)
        if self._is_patient:
            times.append(self._patient_until)
        if (accept_in := self._acks.accept_in(time.monotonic())) is not None:
            times.append(time.monotonic() + accept_in)
        return max(0.0, min(times) - time.monotonic())

    def step(self) -> bool:
        """Takes the next step and waits for its end; whether there was one."""
        with self.alone():
            request = self.next_step()
            if request is None:
                return False
            request.done(self.prepared.run(request.statement, *request.parameters))
        return True

    def send_step(self) -> None:
        """Sends the next step, if none is under way; `read` gets its end."""
        with _Guarded(self):
            if self._request is None and (request := self.next_step()) is not None:
                self._send(request)

    def _send(self, request: Request) -> None:
        self._request = request
        self.prepared.send(request.statement, *request.parameters)
        self.prepared.flush()

    def read(self) -> None:
        """Reads what has come from the server."""
        with _Guarded(self):
            result = self.prepared.poll()
            if result is not None and self._request is not None:
                request, self._request = self._request, None
                request.done(result)

    def hear(self) -> bool:
        """Takes note of the notifications that came with answers; whether there were any. The lock
        is held."""
        heard = self.prepared.notifications()
        for channel, payload in heard:
            if channel == channels.BROKER:
                if payload == "bindings":
                    self._broker.bindings_changed()
                else:
                    self._maintenance.next_at = 0.0
                continue
            is_consumed = self._states.mark_claimable(int(channel.rpartition("_")[2]))
            if is_consumed and payload == "again":
                self._claims.forget()
        return bool(heard)

    def finish(self) -> None:
        """Waits for the end of what was sent. The lock is held."""
        if self._request is not None:
            request, self._request = self._request, None
            request.done(self.prepared.finish())

    # ----- waiting

    def add_waker(self, waker: Callable[[], None]) -> None:
        """To be called when another thread has found something."""
        self._wakers.add(waker)

    def remove_waker(self, waker: Callable[[], None]) -> None:
        """No more."""
        self._wakers.discard(waker)

    def wake(self) -> None:
        """Wakes whoever waits for messages in this process."""
        for waker in list(self._wakers):
            waker()


class _Guarded:
    """The lock; any error ends the session, which may have missed an answer or an acknowledgement.

    Raises `psycopg.OperationalError` for all that the database refused, so that kombu connects
    anew.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def __enter__(self) -> None:
        if self.session.pid != os.getpid():
            raise psycopg.OperationalError("the consumer's session is the parent process's")
        self.session.lock.acquire()
        if self.session.lost is not None:
            self.session.lock.release()
            raise psycopg.OperationalError(
                f"the consumer's session is lost: {connections.first_line(self.session.lost)}"
            )

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                self.session.hear()
                return
            self.session._fail(error)
        finally:
            self.session.lock.release()
        if isinstance(error, psycopg.Error | DBAPIError) and not isinstance(
            error, connections.LOST
        ):
            raise psycopg.OperationalError(
                f"the consumer's session ended after an error: {connections.first_line(error)}"
            ) from error


class _Alone(_Guarded):
    """The same, with nothing under way."""

    def __enter__(self) -> None:
        super().__enter__()
        try:
            self.session.finish()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
