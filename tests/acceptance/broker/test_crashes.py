"""Workers, sessions and servers die at any moment: every task runs, and live claims stay."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from kombu.exceptions import OperationalError

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer
from tests.support.processes import Process, until
from tests.support.threads import repeating
from tests.support.transport_workers import Entry, TransportWorkers

#: Seconds from a consumer's death in which its claims must go back: two, and what a machine that
#: does several things at once needs.
RELEASED_WITHIN = 5.0
#: The delivery limit of the poison tests.
LIMIT = {"broker_transport_options": {"polling_interval": 600, "delivery_limit": 3}}


@pytest.fixture
def own_transport_workers(
    own_server: TemporaryServer, tmp_path: Path
) -> Iterator[TransportWorkers]:
    """Workers on a server that the test may stop."""
    migrate.upgrade(postgres_url(own_server.dsn))
    transport_workers = TransportWorkers(own_server.dsn, tmp_path)
    yield transport_workers
    transport_workers.close()


def await_released(
    transport_workers: TransportWorkers, consumer: int, since: float, what: str
) -> None:
    """Waits until the consumer's claims are back, and says how long it took."""
    until(
        lambda: transport_workers.count("claimed_by = %s", consumer) == 0,
        RELEASED_WITHIN - (time.monotonic() - since),
        "the claims go back",
    )
    print(f"released {time.monotonic() - since:.2f} s after the death of {what}")


# -- workers that are killed --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["main", "group"])
def test_a_killed_prefork_workers_claims_run_elsewhere(
    transport_workers: TransportWorkers, victim: str
) -> None:
    """The main process alone, or all; children that were forked while it consumed hold nothing."""
    worker = transport_workers.start("-c", "2", "--max-tasks-per-child", "1")
    transport_workers.await_started([transport_workers.send("note") for _ in range(4)])
    sent = [transport_workers.send("late", "a") for _ in range(8)]
    until(lambda: len(transport_workers.journal(task="late")) == 2)
    until(lambda: transport_workers.claimed() == 8)
    consumer = transport_workers.consumer(worker)
    children = psutil.Process(worker.pid).children(recursive=True)
    other = transport_workers.start("-c", "2")
    died = time.monotonic()
    if victim == "main":
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    else:
        worker.kill_group()
    await_released(transport_workers, consumer, died, f"a prefork worker's {victim}")
    transport_workers.open("a")
    until(lambda: len(transport_workers.journal("ended", "late")) == 8)
    transport_workers.await_empty()
    elsewhere = [
        e
        for e in transport_workers.journal(task="late")
        if e.worker == transport_workers.name(other)
    ]
    assert sorted(e.id for e in elsewhere) == sorted(sent)
    assert {(e.redelivered, e.failed_before) for e in elsewhere} == {(True, 1)}
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.slow
def test_a_solo_worker_killed_in_the_midst_of_a_task(transport_workers: TransportWorkers) -> None:
    sent = [transport_workers.send("late", "a") for _ in range(4)]
    worker = transport_workers.start("-P", "solo")
    until(lambda: len(transport_workers.journal()) == 1 and transport_workers.claimed() == 4)
    consumer = transport_workers.consumer(worker)
    transport_workers.start("-P", "solo")
    worker.kill_group()
    await_released(transport_workers, consumer, time.monotonic(), "a solo worker")
    transport_workers.open("a")
    until(lambda: sorted(e.id for e in transport_workers.journal("ended")) == sorted(sent))
    transport_workers.await_empty()
    assert [e.id for e in transport_workers.journal()].count(sent[0]) == 2
    assert len(transport_workers.journal()) == 5


@pytest.mark.slow
def test_a_solo_worker_killed_in_an_early_acknowledged_task(
    transport_workers: TransportWorkers,
) -> None:
    """It was acknowledged before it started, though it keeps the event loop: it runs once."""
    sent = [transport_workers.send("hold", "a") for _ in range(4)]
    worker = transport_workers.start("-P", "solo")
    until(lambda: len(transport_workers.journal()) == 1)
    consumer = transport_workers.consumer(worker)
    transport_workers.start("-P", "solo")
    worker.kill_group()
    await_released(transport_workers, consumer, time.monotonic(), "a solo worker")
    transport_workers.open("a")
    until(lambda: sorted(e.id for e in transport_workers.journal("ended")) == sorted(sent[1:]))
    transport_workers.await_empty()
    assert sorted(e.id for e in transport_workers.journal()) == sorted(sent)


@pytest.mark.slow
def test_a_child_that_outlives_its_worker_keeps_no_claims(
    transport_workers: TransportWorkers,
) -> None:
    """What a task forks has the worker's sockets; it must not live on in its name."""
    worker = transport_workers.start("-P", "solo")
    transport_workers.send("leave_a_child", "child")
    [child] = until(lambda: transport_workers.journal("child"))
    transport_workers.send("late", "a")
    until(
        lambda: (
            len(transport_workers.journal(task="late")) == 1 and transport_workers.claimed() == 1
        )
    )
    consumer = transport_workers.consumer(worker)
    transport_workers.start("-P", "solo")
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    try:
        await_released(
            transport_workers, consumer, time.monotonic(), "a worker whose task left a child"
        )
        assert psutil.pid_exists(child.pid)
    finally:
        transport_workers.open("child", "a")
    transport_workers.await_empty()
    until(lambda: not psutil.pid_exists(child.pid))


# -- workers that seem dead ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_blocked_solo_worker_is_alive(transport_workers: TransportWorkers) -> None:
    """Its only thread is in a task, through several sweeps of another worker's."""
    sent = [transport_workers.send("late", "a") for _ in range(4)]
    transport_workers.start("-P", "solo")
    until(lambda: len(transport_workers.journal()) == 1 and transport_workers.claimed() == 4)
    since = time.monotonic()
    transport_workers.start("-P", "solo")
    transport_workers.sweep(5)
    print(f"blocked for {time.monotonic() - since:.1f} s")
    assert transport_workers.claimed() == 4 and len(transport_workers.journal()) == 1
    transport_workers.open("a")
    transport_workers.await_empty()
    assert [e.id for e in transport_workers.journal("ended")] == sent
    assert {e.failed_before for e in transport_workers.journal()} == {0}


@pytest.mark.slow
def test_a_stopped_worker_is_not_robbed(transport_workers: TransportWorkers) -> None:
    """By SIGSTOP, with all its processes; others take what it has not claimed, and no more."""
    stopped = transport_workers.start("-c", "1")
    sent = [transport_workers.send("late", "a") for _ in range(4)]
    until(lambda: len(transport_workers.journal()) == 1 and transport_workers.claimed() == 4)
    os.killpg(stopped.pid, signal.SIGSTOP)
    try:
        transport_workers.start("-c", "1")
        transport_workers.await_started([transport_workers.send("note") for _ in range(20)])
        transport_workers.sweep(5)
        assert transport_workers.claimed() == 4 and len(transport_workers.journal(task="late")) == 1
    finally:
        os.killpg(stopped.pid, signal.SIGCONT)
    transport_workers.open("a")
    transport_workers.await_empty()
    assert [e.id for e in transport_workers.journal("ended", "late")] == sent
    assert {e.worker for e in transport_workers.journal("ended", "late")} == {
        transport_workers.name(stopped)
    }
    assert {e.failed_before for e in transport_workers.journal()} == {0}


# -- messages that kill -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_task_that_kills_its_child_ends_as_a_dead_letter(
    transport_workers: TransportWorkers,
) -> None:
    """`acks_late` and `reject_on_worker_lost`: the worker lives on."""
    transport_workers.start("-c", "1", settings=LIMIT)
    poison = transport_workers.send("poison_rejected", "self")
    transport_workers.await_empty()
    assert [(e.id, e.failed_before) for e in transport_workers.journal()] == [
        (poison, n) for n in range(3)
    ]
    [(queue, payload, deliveries, reason)] = transport_workers.sql(
        "SELECT queue, payload, deliveries, reason FROM kombu_message_dead"
    )
    assert (queue, deliveries) == ("celery", 3) and poison in payload
    assert reason == "delivered 3 times, the last time rejected"
    transport_workers.await_started([transport_workers.send("note")])


@pytest.mark.slow
def test_a_task_that_kills_its_worker_ends_as_a_dead_letter(
    transport_workers: TransportWorkers,
) -> None:
    """Each worker dies of it, until it has had its number of deliveries; then they live."""
    poison = transport_workers.send("poison", "parent")
    for n in range(3):
        worker = transport_workers.begin("-c", "1", settings=LIMIT)
        until(lambda n=n: len(transport_workers.journal()) == n + 1)  # type: ignore[misc]
        assert worker.wait(20) == -signal.SIGKILL
    transport_workers.start("-c", "1", settings=LIMIT)
    until(lambda: transport_workers.sql("SELECT 1 FROM kombu_message_dead"))
    assert transport_workers.is_empty()
    assert [(e.id, e.failed_before) for e in transport_workers.journal()] == [
        (poison, n) for n in range(3)
    ]
    [(deliveries, reason)] = transport_workers.sql(
        "SELECT deliveries, reason FROM kombu_message_dead"
    )
    assert (deliveries, reason) == (3, "delivered 3 times, the last time to a consumer that died")
    transport_workers.await_started([transport_workers.send("note")])


# -- databases that go away ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "sign", [pytest.param(signal.SIGINT, id="fast"), pytest.param(signal.SIGQUIT, id="immediate")]
)
def test_the_server_goes_away_and_comes_back(
    own_server: TemporaryServer, own_transport_workers: TransportWorkers, sign: signal.Signals
) -> None:
    """Workers of three loops wait for it, calmly, and go on with what they had."""
    transport_workers = own_transport_workers
    # A green pool that is full blocks Celery's loop, on any broker.
    pools = {"prefork": "1", "threads": "1", "gevent": "4"}
    workers = [
        transport_workers.begin("-P", pool, "-c", c, "-Q", pool) for pool, c in pools.items()
    ]
    transport_workers.await_ready(*workers)
    # Each runs one task at least, and has another; none is acknowledged.
    held = [transport_workers.send("late", "a", queue=pool) for pool in pools for _ in range(2)]
    until(
        lambda: (
            len(transport_workers.journal()) == 4
            and transport_workers.count("claimed_by IS NOT NULL") == 6
        )
    )
    # Those may run twice; and the other one of the threads pool, which has it in hands already.
    twice = {*(e.id for e in transport_workers.journal()), *held[2:4]}
    own_server.stop(sign)
    before = {w.pid: len(w.output.splitlines()) for w in workers}
    cpu = {w.pid: cpu_seconds(w) for w in workers}
    since = time.monotonic()
    try:
        for worker in workers:
            until(lambda w=worker: attempts(w) >= 2, 60, "two attempts to connect")  # type: ignore[misc]
        away = time.monotonic() - since
        for worker in workers:
            lines = len(worker.output.splitlines()) - before[worker.pid]
            spent = cpu_seconds(worker) - cpu[worker.pid]
            print(f"{away:.1f} s: {attempts(worker)} attempts, {lines} lines, {spent:.2f} s of CPU")
            assert attempts(worker) <= 2 + away
            assert spent < 0.2 * away + 1
    finally:
        own_server.start()
    transport_workers.open("a")
    until(
        lambda: {e.id for e in transport_workers.journal("ended")} == set(held), 60, "all have run"
    )
    until(lambda: transport_workers.count("true") == 0)
    transport_workers.await_started([transport_workers.send("note", queue=pool) for pool in pools])
    # Nothing is left of the old sessions, and none was opened twice.
    for worker in workers:
        assert 1 <= len(connections(transport_workers, worker)) <= 2
        worker.terminate()
    for worker in workers:
        assert worker.wait(30) == 0, worker.output
    runs = Counter(e.id for e in transport_workers.journal(task="late"))
    assert {i for i, n in runs.items() if n > 1} <= twice
    assert max(runs.values()) <= 2


def attempts(worker: Process) -> int:
    """How often the worker said that it could not connect."""
    return worker.output.count("Cannot connect to")


def cpu_seconds(worker: Process) -> float:
    """What the worker's main process has used."""
    times = psutil.Process(worker.pid).cpu_times()
    return float(times.user + times.system)


def connections(transport_workers: TransportWorkers, worker: Process) -> list[int]:
    """The worker's sessions, as the server sees them."""
    rows = transport_workers.sql(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s",
        f"pgbeat transport %:{worker.pid}",
    )
    return [int(pid) for (pid,) in rows]


@pytest.mark.slow
def test_publishing_while_the_server_restarts(
    own_server: TemporaryServer, own_transport_workers: TransportWorkers
) -> None:
    """With a retry policy every message arrives; without one, the caller gets an error."""
    transport_workers = own_transport_workers
    policy = {"max_retries": None, "interval_start": 0.05, "interval_step": 0, "interval_max": 0.05}
    sent = [transport_workers.send("note")]

    def await_more() -> None:
        enough = len(sent) + 50
        until(lambda: len(sent) > enough)

    with repeating(
        lambda: sent.append(transport_workers.send("note", retry=True, retry_policy=policy))
    ):
        for sign in (signal.SIGINT, signal.SIGQUIT, signal.SIGINT):
            await_more()
            own_server.stop(sign)
            own_server.start()
        await_more()
    stored = Counter(transport_workers.ids())
    print(f"{len(sent)} published, {stored.total() - len(stored)} of them twice")
    assert set(stored) >= set(sent)
    # Twice only what was committed when the connection broke: one a restart.
    assert stored.total() - len(sent) <= 3
    own_server.stop()
    try:
        for _ in range(2):
            with pytest.raises(
                (OperationalError, *transport_workers.app.connection().connection_errors)
            ):
                transport_workers.send("note", retry=False)
    finally:
        own_server.start()
    last = transport_workers.send("note", retry=False)
    assert sorted(transport_workers.ids()) == sorted([*stored.elements(), last])


# -- sessions that are cut ----------------------------------------------------------------------


@pytest.mark.slow
def test_sessions_are_terminated_at_random(transport_workers: TransportWorkers) -> None:
    """The server cuts the workers' connections while they run tasks; all run."""
    workers = [
        transport_workers.begin("-P", "prefork", "-c", "2"),
        transport_workers.begin("-P", "solo"),
    ]
    transport_workers.await_ready(*workers)
    history = History(transport_workers)
    for _ in range(6):
        history.send(50)
        history.terminate(random.choice(workers))  # noqa: S311
    history.await_all()
    assert all(worker.poll() is None for worker in workers)
    history.check()


# -- several workers ----------------------------------------------------------------------------


@pytest.mark.slow
def test_three_workers_compete_without_duplicates(transport_workers: TransportWorkers) -> None:
    workers = [
        transport_workers.begin("-P", "prefork", "-c", "2"),
        transport_workers.begin("-P", "threads", "-c", "2"),
        transport_workers.begin("-P", "solo"),
    ]
    transport_workers.await_ready(*workers)
    sent = [transport_workers.send("work" if n % 2 else "note") for n in range(600)]
    transport_workers.await_started(sent, 60)
    transport_workers.await_empty()
    entries = transport_workers.journal()
    assert sorted(e.id for e in entries) == sorted(sent)
    assert {e.worker for e in entries} == {transport_workers.name(worker) for worker in workers}
    assert not any(e.redelivered for e in entries)


# -- all of it at once --------------------------------------------------------------------------


@dataclass
class Disruption:
    """Something that was done to workers, between two times."""

    what: str
    workers: set[str]
    begin: float
    end: float


#: How long before a disruption a task may have ended without its acknowledgement being on disk:
#: those are sent with the next statement and committed asynchronously.
_UNSAVED = 1.0
#: How long a worker may go on with what it was given, until it notices that its session is cut.
_UNNOTICED = 1.0


@dataclass
class History:
    """What was done to workers, and what they did."""

    transport_workers: TransportWorkers
    sent: list[str] = field(default_factory=list)
    disruptions: list[Disruption] = field(default_factory=list)

    def send(self, tasks: int) -> None:
        """More tasks; some of them have run afterwards, the workers are busy with the others."""
        enough = self.progress() + tasks // 4
        self.sent += [self.transport_workers.send("work", 0.02) for _ in range(tasks)]
        until(lambda: self.progress() >= enough, 60, "some tasks end")

    def progress(self) -> int:
        """Tasks that have ended."""
        return len({e.id for e in self.transport_workers.journal("ended")})

    def await_all(self, seconds: float = 60.0) -> None:
        """Waits until all have ended and are acknowledged."""
        until(lambda: self.progress() == len(self.sent), seconds, f"{len(self.sent)} tasks end")
        self.transport_workers.await_empty(seconds)

    def kill(self, *workers: Process) -> None:
        """SIGKILL to all processes of these workers, which were alive."""
        for worker in workers:
            begin = time.time()
            assert worker.poll() is None, worker.output
            worker.kill_group()
            self._note("kill", [worker], begin)

    def terminate(self, worker: Process) -> None:
        """Has the server end one of the worker's sessions, or both."""
        begin = time.time()
        pids = until(
            lambda: connections(self.transport_workers, worker), what="the worker is connected"
        )
        for pid in random.sample(pids, random.randint(1, len(pids))):  # noqa: S311
            self.transport_workers.sql("SELECT pg_terminate_backend(%s, 5000)", pid)
        self._note("terminate", [worker], begin)

    def restart(self, server: TemporaryServer, workers: list[Process]) -> None:
        """The server crashes, and recovers."""
        begin = time.time()
        server.stop(signal.SIGQUIT)
        server.start()
        self._note("restart", workers, begin)

    def _note(self, what: str, workers: list[Process], begin: float) -> None:
        names = {self.transport_workers.name(worker) for worker in workers}
        self.disruptions.append(Disruption(what, names, begin, time.time()))

    def check(self) -> None:
        """Each task has run, more than once only where it was under way at a disruption."""
        runs: dict[str, list[Entry]] = {}
        ends = {(e.id, e.pid, e.worker): e.at for e in self.transport_workers.journal("ended")}
        for entry in self.transport_workers.journal():
            runs.setdefault(entry.id, []).append(entry)
        assert set(runs) == set(self.sent)
        again = {task: entries for task, entries in runs.items() if len(entries) > 1}
        done = Counter(disruption.what for disruption in self.disruptions)
        print(f"{len(self.sent)} tasks, {len(again)} of them ran again; {dict(done)}")
        for entries in again.values():
            for run in entries[:-1]:
                end = ends.get((run.id, run.pid, run.worker), float("inf"))
                assert any(
                    run.worker in d.workers
                    and run.at <= d.end + (0 if d.what == "kill" else _UNNOTICED)
                    and end >= d.begin - _UNSAVED
                    for d in self.disruptions
                ), f"ran again though nothing happened: {entries}, {self.disruptions}"


@pytest.mark.slow
def test_nothing_is_lost(
    own_server: TemporaryServer, own_transport_workers: TransportWorkers
) -> None:
    """In each round a worker is killed, or both, or their server crashes; and sessions are cut."""
    transport_workers, rounds = own_transport_workers, 6
    workers = [transport_workers.begin("-c", "2"), transport_workers.begin("-c", "2")]
    transport_workers.await_ready(*workers)
    history = History(transport_workers)
    for n in range(rounds):
        history.send(100)
        if n == rounds // 2:
            history.restart(own_server, workers)
            continue
        victims, workers = (workers, []) if n % 3 == 2 else (workers[:1], workers[1:])
        history.kill(*victims)
        for survivor in workers:
            history.terminate(survivor)
        begun = [transport_workers.begin("-c", "2") for _ in victims]
        transport_workers.await_ready(*begun)
        workers += begun
    history.await_all()
    assert all(worker.poll() is None for worker in workers)
    history.check()
    assert transport_workers.sql("SELECT count(*) FROM kombu_message_dead") == [(0,)]
