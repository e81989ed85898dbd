"""Consumes messages over one connection, which listens, claims and acknowledges.

A session takes one step after the other; each is a statement that its planner chose. The thread
that holds the lock takes the step: a worker's event loop, which sends the statement and reads the
answer when it has arrived, or a thread that waits in `drain_events`. Messages are claimed into a
channel's buffer, up to its free prefetch; acknowledgements are sent with the next claim.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import psycopg
from sqlalchemy import Connection, text

from pgbeat.broker import queues as broker_queues
from pgbeat.broker.transport.consuming import claim_sql, consumers, unread
from pgbeat.broker.transport.consuming.claims import ClaimedMessage, Intake, Request, claimed
from pgbeat.broker.transport.consuming.guards import Alone, Guarded
from pgbeat.broker.transport.consuming.lease import Lease
from pgbeat.broker.transport.consuming.maintenance import BrokerMaintenance
from pgbeat.broker.transport.consuming.planner import LEAVE, Planner
from pgbeat.broker.transport.consuming.queue_states import Removed
from pgbeat.broker.transport.consuming.settlements import Settlements
from pgbeat.database import channels, connections, fence
from pgbeat.database.prepared import PreparedConnection, array
from pgbeat.database.watched import WatchedConnection

if TYPE_CHECKING:
    from pgbeat.broker.transport.broker import Broker

logger = logging.getLogger("pgbeat.transport")

#: Seconds between two polls for messages where they can't be announced.
_POLL_POOLED = 0.5


class Session:
    """One consumer. Its claims are released when its connection is gone."""

    def __init__(
        self, broker: "Broker", connection: Connection, lease: float | None = None
    ) -> None:
        self._broker, self._connection = broker, connection
        self._options = broker.options
        self.pid = os.getpid()
        #: By the monotonic clock.
        self.opened_at = time.monotonic()
        #: Held for each step.
        self.lock = threading.RLock()
        #: Duplicates of the socket on which kombu's connections wait.
        self.files: set[int] = set()
        #: The error that ended the session.
        self.lost: BaseException | None = None
        #: Queues that the next step must stop awaiting and listening to.
        self._left: list[Removed] = []
        #: Consumed queues that are `auto_delete`.
        self._fragile: set[int] = set()
        #: The names of consumed queues that were deleted, by their ids.
        self._deleted: dict[int, str] = {}
        self._request: Request | None = None
        self._wakers: set[Callable[[], None]] = set()
        #: Whether messages are announced to this session.
        self._listens = lease is None
        poll = self._options.polling_interval
        self._poll = poll if self._listens else min(poll, _POLL_POOLED)
        if self._listens:
            connections.prepare_session(connection)
            commit = self._options.ack_synchronous_commit or "off"
            connections.configure(connection, {**claim_sql.PLANS, "synchronous_commit": commit})
        fence.require_newest(connection, self._options.connect_args)
        fence.require_original(connection)
        #: The consumer's id.
        self.id = consumers.register(connection, broker.process, lease)
        #: Seconds that its lease lasts; 0 if it lives as long as its connection.
        self.lease = lease or 0.0
        self._lease: Lease | None = None
        if lease is None:
            connection.execute(text(f"LISTEN {channels.BROKER}"))
        else:
            self._lease = Lease(broker, self.id, lease, self._end)
        isolates = lease is not None and not connections.isolate(connection)
        self._raw = cast(WatchedConnection, connections.driver(connection))
        self.prepared = PreparedConnection(self._raw, self._listens, isolates)
        self._plan = Planner(
            self.id, batch_size=self._options.batch_size, is_leased=not self._listens
        )
        self._settlements = Settlements()
        self._maintenance = BrokerMaintenance(connection, broker.options, self.id)
        self._poll_at = time.monotonic() + self._poll
        if self._listens:
            unread.watch(self)

    # ----- queues

    def subscribe(self, intake: Intake, queues: Sequence[int]) -> None:
        """Begins to claim from queues (ids) for a channel."""
        with self.alone():
            heard = [] if self._plan.intakes else [channels.BROKER]
            if intake not in self._plan.intakes:
                self._plan.intakes.append(intake)
            if new := self._plan.states.add(queues):
                self._leave()
                # First, so that no deletion is missed.
                self._listen("LISTEN", [*heard, *map(channels.of_queue, new)])
                self._fragile |= consumers.subscribe(self._connection, self.id, new)
        self.wake()

    def unsubscribe(self, intake: Intake, queues: Sequence[int]) -> None:
        """Stops claiming from queues (ids) for a channel."""
        with self.alone():
            removed = self._plan.states.remove(queues)
            for queue in removed.queues:
                self._deleted.pop(queue, None)
            if removed.queues:
                self._left.append(removed)
                self._unsubscribe([q for q in removed.queues if q not in self._fragile])
                if fragile := [q for q in removed.queues if q in self._fragile]:
                    self._fragile.difference_update(fragile)
                    with connections.transaction(self._connection):
                        self._unsubscribe(fragile)
                        broker_queues.delete_abandoned(self._connection, fragile)
            if not intake.acked and not intake.taken and intake in self._plan.intakes:
                self._plan.intakes.remove(intake)
                if not self._plan.intakes:  # nobody may read for long what it is notified of
                    self._leave(channels.BROKER)

    def _unsubscribe(self, queues: list[int]) -> None:
        if queues:
            consumers.unsubscribe(self._connection, self.id, queues)

    def _leave(self, *others: str) -> None:
        """Stops awaiting and listening to queues that are no longer consumed, and to others."""
        left, self._left = self._left, []
        if awaited := [queue for intake in left for queue in intake.awaited]:
            self.prepared.run(LEAVE, array(awaited))
        queues = [queue for intake in left for queue in intake.queues]
        self._listen("UNLISTEN", [*others, *map(channels.of_queue, queues)])

    def _listen(self, verb: str, names: Sequence[str]) -> None:
        if self._listens and names:
            # One round trip, however many queues.
            commands = [f"{verb} {name}" for name in names]
            connections.driver(self._connection).execute("; ".join(commands).encode())

    def alone(self) -> Alone:
        """Returns a block that holds the lock, with no statement under way."""
        return Alone(self)

    def close(self) -> None:
        """Releases all claims and ends the session."""
        try:
            if self.lost is None:
                with self.alone():
                    self._flush_acks()
                    with connections.transaction(self._connection):
                        consumers.leave(self._connection, self.id)
        except Exception as error:
            logger.debug("Others must release this consumer's claims: %s", error)
        finally:
            with self.lock:  # another thread may read
                if self.lost is None:
                    self.lost = psycopg.OperationalError("the consumer's session was closed")
                connections.close(self._connection)
            if self._lease is not None:
                self._lease.stop()

    def is_alive(self) -> bool:
        """Returns whether the connection is good, as far as known without a round trip."""
        if self.pid != os.getpid():
            return False
        if self.lost is None and self.lock.acquire(blocking=False):
            try:
                if not self.prepared.is_alive():
                    self.fail(psycopg.OperationalError("the server closed the connection"))
                elif self.hear():
                    self.wake()  # the thread that waits for the socket finds nothing there now
            finally:
                self.lock.release()
        return self.lost is None

    def _end(self, error: BaseException) -> None:
        """Ends the session because of an error that another thread found."""
        with self.lock:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Ends the session because of an error. The caller holds the lock."""
        if self.lost is None:
            self.lost, self._request = error, None
            self._broker.abandoned.add(self.id)
            connections.close(self._connection)
            if self._lease is not None:
                self._lease.stop()
        self.wake()

    # ----- messages

    def ack(self, message: int, *, starts_job: bool = False) -> None:
        """Adds an acknowledgement, to send with the next statement."""
        self._plan.acks.add(message, starts_job=starts_job)

    @property
    def has_acks(self) -> bool:
        """Whether acknowledgements can be sent now."""
        return self._plan.acks.is_due

    def flush_acks(self) -> None:
        """Sends the acknowledgements and waits for the answer."""
        if self._plan.acks:
            with self.alone():
                self._flush_acks()

    def send_acks(self) -> None:
        """Sends acknowledgements without waiting, unless a statement is under way."""
        with Guarded(self):
            request = self._plan.acks.next(at_once=True) if self._request is None else None
            if request is not None:
                self._send(request)

    def _flush_acks(self) -> None:
        while (request := self._plan.acks.next(at_once=True)) is not None:
            self.prepared.run(request.statement, *request.parameters)

    def claim_one(self, queue: int) -> ClaimedMessage | None:
        """Claims the queue's next message (`basic_get`)."""
        with self.alone():
            statement, parameters = self._plan.claims.one(queue, self._plan.acks.take_plain())
            messages = claimed(self.prepared.run(statement, *parameters))
        return messages[0] if messages else None

    def requeue(self, messages: Sequence[int], *, counts: bool = True) -> None:
        """Requeues claimed messages. Unless `counts`, the delivery is not counted."""

        def requeue(messages: Sequence[int]) -> list[int]:
            left = consumers.requeue(
                self._connection, self.id, messages, limit=self._options.limit, counts=counts
            )
            self._start_over()
            return left

        if messages:
            with self.alone():
                self._settlements.settle(requeue, messages)
            self.wake()

    def put_back(self, message: int, delay: float) -> None:
        """Requeues a claimed message for so many seconds later. Its delivery is not counted."""

        def put_back(messages: Sequence[int]) -> list[int]:
            return consumers.put_back(self._connection, self.id, messages, delay)

        with self.alone():
            self._settlements.settle(put_back, [message])
        self.wake()

    def reject(self, messages: Sequence[int], reason: str = "rejected") -> None:
        """Moves claimed messages to the dead letters."""

        def reject(messages: Sequence[int]) -> list[int]:
            return consumers.reject(self._connection, self.id, messages, reason)

        if messages:
            with self.alone():
                self._settlements.settle(reject, messages)

    def _start_over(self) -> None:
        """Claims from the start of every queue next; a session is not notified of its requeues."""
        self._plan.claims.forget()
        self._plan.states.mark_all_claimable()

    # ----- steps

    def next_step(self) -> Request | None:
        """Returns what to send now, if anything. The caller holds the lock."""
        now = time.monotonic()
        if self._lease is not None:
            self._lease.check()
        self._settlements.retry(now)
        self._leave()
        self._do_what_is_due(now)
        self.hear()
        if self._deleted:
            raise consumers.deleted(min(self._deleted.values()))
        return self._plan.next(now)

    def _do_what_is_due(self, now: float) -> None:
        self._plan.states.advance(now)
        deep_at = self._plan.claims.deep_at
        if now >= self._poll_at or (deep_at is not None and now >= deep_at):
            self._poll_at = now + self._poll
            self._plan.claims.look_everywhere(now)
        if now >= self._maintenance.next_at:
            changes = self._maintenance.run(now)
            if not self._listens:
                consumers.require_queues(self._connection, self._plan.states.queues)
            if changes.requeued:
                self._start_over()
            elif changes.promoted:
                self._plan.states.mark_all_claimable()

    def until_next(self) -> float:
        """Returns the seconds until something may be due without a notification."""
        if self._deleted:
            return 0.0
        now = time.monotonic()
        times = [self._poll_at, self._maintenance.next_at, *self._plan.next_times(now)]
        if self._settlements.next_at is not None:
            times.append(self._settlements.next_at)
        return max(0.0, min(times) - now)

    def step(self) -> bool:
        """Takes the next step and waits for it to end; returns whether there was one."""
        with self.alone():
            request = self.next_step()
            if request is None:
                return False
            request.done(self.prepared.run(request.statement, *request.parameters))
        return True

    def send_step(self) -> None:
        """Sends the next step unless one is under way; `read` reads its answer."""
        with Guarded(self):
            if self._request is not None:
                if self._raw.is_silent:
                    self._raw.check()
            elif (request := self.next_step()) is not None:
                self._send(request)

    def _send(self, request: Request) -> None:
        self._request = request
        self._raw.expect()
        self.prepared.send(request.statement, *request.parameters)
        self.prepared.flush()

    def read(self) -> None:
        """Reads what the server has sent, and ends the step if its answer is complete."""
        with Guarded(self):
            result = self.prepared.poll()
            if result is not None and self._request is not None:
                request, self._request = self._request, None
                request.done(result)

    def hear(self) -> bool:
        """Handles notifications; returns whether there were any. The caller holds the lock."""
        heard = self.prepared.notifications()
        for channel, payload in heard:
            if channel == channels.BROKER:
                if payload == "bindings":
                    self._broker.bindings_changed()
                else:
                    self._maintenance.hasten()
                continue
            queue = int(channel.rpartition("_")[2])
            if not self._plan.states.mark_claimable(queue):
                continue
            if payload == "again":
                self._plan.claims.forget()
            elif payload.startswith(channels.GONE):
                self._deleted[queue] = payload.removeprefix(channels.GONE)
        return bool(heard)

    def finish(self) -> None:
        """Waits for the step under way to end. The caller holds the lock."""
        if self._request is not None:
            request, self._request = self._request, None
            request.done(self.prepared.finish())

    # ----- waiting

    def add_waker(self, waker: Callable[[], None]) -> None:
        """Adds a function to call when another thread has found something."""
        self._wakers.add(waker)

    def remove_waker(self, waker: Callable[[], None]) -> None:
        """Removes such a function."""
        self._wakers.discard(waker)

    def wake(self) -> None:
        """Wakes the threads of this process that wait for messages."""
        for waker in list(self._wakers):
            waker()

    def wake_others(self) -> None:
        """Wakes the other threads, if any: they find nothing in the socket that this one read."""
        if len(self._wakers) > 1:
            self.wake()
