"""Workers of every pool on the transport: what they take, when, and what they answer."""

import time
from contextlib import suppress
from typing import Any

import psutil
import pytest
from celery import chain, chord, group
from kombu import Queue

from tests.support.processes import Process, until
from tests.support.threads import repeating
from tests.support.transport_workers import OF_CELERY, POOLS, Entry, TransportWorkers, backend_url

#: A worker takes seconds to start: the other pools are for the slow ones.
MOST_POOLS = [
    pool if pool == "prefork" else pytest.param(pool, marks=pytest.mark.slow) for pool in POOLS
]


def start(
    transport_workers: TransportWorkers, pool: str, concurrency: int = 2, /, **settings: Any
) -> Process:
    return transport_workers.start("-P", pool, "-c", str(concurrency), settings=settings)


def runs(transport_workers: TransportWorkers, task: str) -> list[Entry]:
    """The journal's starts of one task."""
    return [e for e in transport_workers.journal() if e.id == task]


def started(transport_workers: TransportWorkers, tasks: list[str]) -> set[str]:
    return {e.id for e in transport_workers.journal()} & set(tasks)


# -- each pool ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", MOST_POOLS)
def test_tasks_run_now_later_and_again(transport_workers: TransportWorkers, pool: str) -> None:
    """Messages are deleted once done; delayed ones wait in the table, not with the worker."""
    start(transport_workers, pool)
    # More than a worker may prefetch wait for tomorrow.
    for _ in range(20):
        transport_workers.send("note", "later", countdown=86400)
    transport_workers.send("again", 86400)
    tomorrow = "available_at > now() + interval '23 hours' AND claimed_by IS NULL"
    until(lambda: transport_workers.count(tomorrow) == 21)
    transport_workers.await_started([transport_workers.send("note", n) for n in range(50)])
    until(
        lambda: transport_workers.count(OF_CELERY) == 21, what="acknowledged messages are deleted"
    )
    assert transport_workers.count(tomorrow) == 21

    at = time.time()
    soon, again = (
        transport_workers.send("note", countdown=1.5),
        transport_workers.send("again", 1.5),
    )
    [first] = transport_workers.await_started([soon])
    until(lambda: len(runs(transport_workers, again)) == 2)
    before, second = runs(transport_workers, again)
    late = first.at - at - 1.5, second.at - before.at - 1.5
    print(f"{pool}: late by {late[0] * 1000:.0f} ms, the retry by {late[1] * 1000:.0f} ms")
    assert second.retries == 1
    # Not before, and with the seconds that a busy machine may need.
    assert 0 <= late[0] < 3 and 0 <= late[1] < 3
    until(lambda: transport_workers.count(OF_CELERY) == 21)
    assert not any(e.redelivered for e in transport_workers.journal())


@pytest.mark.parametrize("pool", MOST_POOLS)
@pytest.mark.slow
def test_returned_credit_is_used_at_once(transport_workers: TransportWorkers, pool: str) -> None:
    """With room for one message, twenty run one after the other, none waiting for a timer."""
    sent = [transport_workers.send("work") for _ in range(20)]
    start(transport_workers, pool, 1, worker_prefetch_multiplier=1)
    transport_workers.await_started(sent)
    entries = transport_workers.journal()
    assert [e.id for e in entries] == sent
    elapsed = entries[-1].at - entries[0].at
    print(f"{pool}: {elapsed / 19 * 1000:.1f} ms from one start to the next")
    # The loop's shortest timer is half a second.
    assert elapsed < 19 * 0.25
    transport_workers.await_empty()

    held = [transport_workers.send("late", "a") for _ in range(3)]
    transport_workers.await_started(held[:1])
    if pool != "solo":  # whose loop is blocked
        transport_workers.sweep()
    assert (transport_workers.claimed(), transport_workers.waiting()) == (1, 2)
    transport_workers.open("a")
    transport_workers.await_empty()
    assert [e.id for e in transport_workers.journal(task="late")] == held


@pytest.mark.parametrize("pool", MOST_POOLS)
@pytest.mark.slow
def test_without_prefetch_only_what_runs_is_claimed(
    transport_workers: TransportWorkers, pool: str
) -> None:
    """`worker_disable_prefetch`, for tasks that acknowledge late and early."""
    count = 1 if pool == "solo" else 2
    worker = start(transport_workers, pool, count, worker_disable_prefetch=True)
    assert "disable_prefetch" not in worker.output
    late = [transport_workers.send("late", "a") for _ in range(6)]
    until(lambda: len(started(transport_workers, late)) == count)
    if pool != "solo":
        transport_workers.sweep()
    assert (transport_workers.claimed(), transport_workers.waiting()) == (count, 6 - count)
    transport_workers.open("a")
    transport_workers.await_empty()
    soon = [transport_workers.send("hold", "b") for _ in range(6)]
    until(lambda: len(started(transport_workers, soon)) == count)
    until(
        lambda: len(transport_workers.ids()) == 6 - count, what="what has started is acknowledged"
    )
    if pool != "solo":
        transport_workers.sweep()
    assert (transport_workers.claimed(), transport_workers.waiting()) == (0, 6 - count)
    transport_workers.open("b")
    transport_workers.await_empty()
    transport_workers.await_started(soon)  # what is acknowledged early may not have begun yet
    assert sorted(e.id for e in transport_workers.journal()) == sorted([*late, *soon])


# -- prefetch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "multiplier, claimed", [(4, 8), pytest.param(0, 130, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_prefetch_is_exact(
    transport_workers: TransportWorkers, multiplier: int, claimed: int
) -> None:
    """For two processes, with a limit and without."""
    sent = [transport_workers.send("late", "a") for _ in range(130)]
    start(transport_workers, "prefork", worker_prefetch_multiplier=multiplier)
    until(lambda: len(transport_workers.journal()) == 2 and transport_workers.claimed() >= claimed)
    transport_workers.sweep(2)
    assert (transport_workers.claimed(), transport_workers.waiting()) == (claimed, 130 - claimed)
    # Later messages change nothing.
    more = [transport_workers.send("late", "a") for _ in range(5)]
    transport_workers.sweep()
    assert transport_workers.claimed() == (135 if multiplier == 0 else claimed)
    assert len(transport_workers.journal()) == 2
    transport_workers.open("a")
    transport_workers.await_empty()
    assert sorted(e.id for e in transport_workers.journal()) == sorted([*sent, *more])


@pytest.mark.slow
def test_prefetch_is_reduced_while_tasks_outlast_their_connection(
    transport_workers: TransportWorkers,
) -> None:
    """As `worker_enable_prefetch_count_reduction` says."""
    worker = start(transport_workers, "prefork")
    running = [transport_workers.send("hold", "a") for _ in range(2)]
    transport_workers.await_started(running)
    transport_workers.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE classid = 1885823587"
    )
    worker.says("Temporarily reducing the prefetch count to 4")
    transport_workers.open("a")
    run_some(transport_workers)
    worker.says("restored to the maximum of 8")


@pytest.mark.slow
def test_delayed_tasks_are_no_load(transport_workers: TransportWorkers) -> None:
    """A hundred thousand with an ETA in an hour: not in a worker's memory, there after it."""
    worker = start(transport_workers, "prefork", 1)
    run_some(transport_workers)
    before = memory(worker)
    transport_workers.send("note", "delayed", countdown=3600)
    transport_workers.sql(
        "INSERT INTO kombu_message (visible, payload, priority, available_at, queue_id) "
        "SELECT m.visible, replace(m.payload, m.payload::json -> 'headers' ->> 'id', "
        "gen_random_uuid()::text), m.priority, m.available_at, m.queue_id "
        "FROM kombu_message m, generate_series(1, 99999) WHERE m.available_at IS NOT NULL"
    )
    transport_workers.sweep(3)
    run_some(transport_workers)
    after = memory(worker)
    delayed = "NOT visible AND claimed_by IS NULL AND available_at > now()"
    assert transport_workers.count(delayed) == 100_000
    worker.terminate()
    assert worker.wait(30) == 0, worker.output
    another = start(transport_workers, "prefork", 1)
    run_some(transport_workers)
    restarted = memory(another)
    print(f"RSS {before / 1e6:.1f}, with them {after / 1e6:.1f}, anew {restarted / 1e6:.1f} MB")
    assert transport_workers.count(delayed) == 100_000
    # A task in a worker's memory has some two kilobytes.
    assert max(after, restarted) - before < 10e6
    transport_workers.sql(
        "UPDATE kombu_message SET available_at = now(), payload = "
        "replace(payload, payload::json -> 'headers' ->> 'eta', '2020-01-01T00:00:00+00:00') "
        "WHERE id IN (SELECT id FROM kombu_message WHERE available_at IS NOT NULL LIMIT 10)"
    )
    until(lambda: sum(e.value == "delayed" for e in transport_workers.journal()) == 10)
    until(lambda: transport_workers.count(OF_CELERY) == 99_990)


def run_some(transport_workers: TransportWorkers) -> None:
    """Some tasks, until they are done."""
    transport_workers.await_started([transport_workers.send("note") for _ in range(200)])
    until(lambda: transport_workers.count("available_at IS NULL") == 0)


def memory(worker: Process) -> int:
    """What the worker's main process has resident, in bytes."""
    return int(psutil.Process(worker.pid).memory_info().rss)


# -- remote control -----------------------------------------------------------------------------


@pytest.mark.slow
def test_inspect_and_control(transport_workers: TransportWorkers) -> None:
    name = transport_workers.name(start(transport_workers, "prefork"))
    control, inspect = remote(transport_workers, name)
    assert inspect.ping() == {name: {"ok": "pong"}}

    sent = [transport_workers.send("hold", "a") for _ in range(4)]
    until(lambda: len(started(transport_workers, sent)) == 2)
    assert {r["id"] for r in inspect.active()[name]} == started(transport_workers, sent)
    reserved = until(lambda: len(r := inspect.reserved()[name]) == 2 and r)
    assert {r["id"] for r in reserved} == set(sent) - started(transport_workers, sent)
    assert inspect.scheduled() == {name: []}
    stats = inspect.stats()[name]
    assert stats["pool"]["max-concurrency"] == 2 and stats["prefetch_count"] == 8
    assert stats["broker"]["transport"] == "pgbeat"
    assert [q["name"] for q in inspect.active_queues()[name]] == ["celery"]

    [answer] = control.pool_grow(1, reply=True, destination=[name], timeout=10)
    assert "ok" in answer[name]
    until(
        lambda: len(started(transport_workers, sent)) == 3, what="a third process runs a third task"
    )
    assert len(inspect.stats()[name]["pool"]["processes"]) == 3
    transport_workers.open("a")
    transport_workers.await_empty()
    [answer] = control.pool_shrink(1, reply=True, destination=[name], timeout=10)
    assert "ok" in answer[name]

    [answer] = control.rate_limit(
        "transport.add", "100/m", reply=True, destination=[name], timeout=10
    )
    assert answer == {name: {"ok": "new rate limit set successfully"}}
    assert "transport.add [rate_limit=100/m]" in inspect.registered("rate_limit")[name]

    [answer] = control.add_consumer("extra", reply=True, destination=[name], timeout=10)
    assert "ok" in answer[name]
    transport_workers.await_started([transport_workers.send("note", queue="extra")])
    [answer] = control.cancel_consumer("extra", reply=True, destination=[name], timeout=10)
    assert "ok" in answer[name]
    waits = transport_workers.send("note", queue="extra")
    transport_workers.await_started([transport_workers.send("note") for _ in range(20)])
    assert not runs(transport_workers, waits) and transport_workers.count("visible") == 1
    control.add_consumer("extra", reply=True, destination=[name], timeout=10)
    transport_workers.await_started([waits])
    transport_workers.await_empty()


def remote(transport_workers: TransportWorkers, *names: str) -> tuple[Any, Any]:
    """Returns control and inspect of these workers, which return when all have answered."""
    control = transport_workers.app.control
    return control, control.inspect(destination=names, timeout=15)


@pytest.mark.slow
def test_revoked_tasks_end(transport_workers: TransportWorkers) -> None:
    """What runs is terminated; what was not started never is."""
    worker = start(transport_workers, "prefork", 1)
    name = transport_workers.name(worker)
    control, inspect = remote(transport_workers, name)
    for task in ("hold", "late"):
        running, reserved, last = (
            transport_workers.send(task, "a"),
            transport_workers.send("note"),
            transport_workers.send("note"),
        )
        transport_workers.await_started([running])
        until(lambda r={reserved, last}: {t["id"] for t in inspect.reserved()[name]} == r)  # type: ignore[misc]
        control.revoke(reserved)
        control.revoke(running, terminate=True, signal="SIGKILL")
        transport_workers.await_started([last])
        transport_workers.await_empty()
        assert not runs(transport_workers, reserved)
        worker.says(f"Discarding revoked task: transport.note[{reserved}]")
    assert not transport_workers.journal("ended")
    assert transport_workers.sql("SELECT count(*) FROM kombu_message_dead") == [(0,)]


@pytest.mark.slow
def test_a_session_is_cut_after_a_process_died_and_before_it_is_reaped(
    transport_workers: TransportWorkers,
) -> None:
    """Celery has dropped the process's file, but not the process."""
    (transport_workers.folder / "unreaped.py").write_text(UNREAPED)
    worker = transport_workers.start(
        "-P", "prefork", "-c", "1", app="unreaped", PYTHONPATH=str(transport_workers.folder)
    )
    transport_workers.await_started([transport_workers.send("note")])
    transport_workers.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE classid = 1885823587"
    )
    worker.says("Trying to re-establish the connection")
    transport_workers.await_started([transport_workers.send("note")])


#: An app whose worker, while it stops consuming, does what it does when a process's file closes.
UNREAPED = """
from celery import bootsteps
from tests.support.apps.journal import app

class Drop(bootsteps.StartStopStep):
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def stop(self, c):
        for process in c.pool._pool._pool:
            c.pool._pool._untrack_child_process(process, c.hub)

app.steps["consumer"].add(Drop)
"""


def test_a_queue_is_deleted_under_its_worker(transport_workers: TransportWorkers) -> None:
    """It consumes the one that comes in its place, too."""
    start(transport_workers, "prefork", 1)
    transport_workers.await_started([transport_workers.send("note")])
    with transport_workers.app.connection_for_write() as connection:
        Queue("celery")(connection.channel()).delete()
    transport_workers.await_started([transport_workers.send("note")])


def test_an_idle_solo_worker_answers_at_once(transport_workers: TransportWorkers) -> None:
    name = transport_workers.name(start(transport_workers, "solo", 1))
    _, inspect = remote(transport_workers, name)
    begin = time.monotonic()
    for _ in range(10):
        assert inspect.ping() == {name: {"ok": "pong"}}
    elapsed = time.monotonic() - begin
    print(f"{elapsed / 10 * 1000:.0f} ms a ping")
    assert elapsed < 10 * 0.4  # the loop's timer is half a second


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_other_pools_answer(transport_workers: TransportWorkers, pool: str) -> None:
    """Also while they run tasks; green ones hear by a connection of their own."""
    name = transport_workers.name(start(transport_workers, pool, 4))
    _, inspect = remote(transport_workers, name)
    held = [transport_workers.send("hold", "a") for _ in range(2)]
    transport_workers.await_started(held)
    for _ in range(3):
        assert inspect.ping() == {name: {"ok": "pong"}}
    assert {r["id"] for r in inspect.active()[name]} == set(held)
    transport_workers.open("a")
    transport_workers.await_empty()


@pytest.mark.slow
def test_workers_know_each_other(transport_workers: TransportWorkers) -> None:
    """Mingle shares revoked tasks with a new worker; gossip reports workers that come and go."""
    first = transport_workers.start("-c", "1", "-l", "DEBUG")
    control, inspect = remote(transport_workers, transport_workers.name(first))
    control.revoke("never-to-run")
    until(lambda: inspect.revoked() == {transport_workers.name(first): ["never-to-run"]})
    second = transport_workers.start("--with-mingle", "-c", "1", "-l", "DEBUG")
    second.says("mingle: sync with 1 nodes")
    _, inspect = remote(transport_workers, transport_workers.name(second))
    assert inspect.revoked() == {transport_workers.name(second): ["never-to-run"]}
    first.says(f"{transport_workers.name(second)} joined the party")
    second.says(f"{transport_workers.name(first)} joined the party")
    second.terminate()
    assert second.wait(30) == 0
    first.says(f"{transport_workers.name(second)} left")


@pytest.mark.slow
def test_events_reach_a_receiver(transport_workers: TransportWorkers) -> None:
    """`celery events`, Flower: in a thread of its own, its queue gone with its connection."""
    heard: dict[str, list[dict[str, Any]]] = {}

    def hear(event: dict[str, Any]) -> None:
        heard.setdefault(event["type"], []).append(event)

    def listen() -> None:
        with suppress(TimeoutError):
            receiver.capture(limit=None, timeout=0.5, wakeup=True)

    def queues() -> int:
        [(count,)] = transport_workers.sql(
            "SELECT count(*) FROM kombu_queue WHERE name LIKE 'celeryev.%'"
        )
        return int(count)

    with transport_workers.app.connection_for_read() as connection:
        receiver = transport_workers.app.events.Receiver(connection, handlers={"*": hear})
        with repeating(listen):
            until(lambda: queues() == 1)
            worker = transport_workers.start("-E", "-c", "1")
            sent = [transport_workers.send("note") for _ in range(50)]
            until(lambda: len(heard.get("task-succeeded", ())) == 50)
            for kind in ("task-received", "task-started", "task-succeeded"):
                assert sorted(e["uuid"] for e in heard[kind]) == sorted(sent)
            until(lambda: "worker-online" in heard and "worker-heartbeat" in heard)
            worker.terminate()
            until(lambda: "worker-offline" in heard)
    assert worker.wait(30) == 0
    until(lambda: queues() == 0, what="queues are deleted with the receiver")


# -- canvas -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_chains_groups_and_chords(transport_workers: TransportWorkers) -> None:
    """With Celery's own result backend on the same database."""
    settings: dict[str, Any] = {
        "result_backend": backend_url(transport_workers.database),
        "task_ignore_result": False,
    }
    transport_workers.app.conf.update(settings)
    transport_workers.app.backend.ResultSession().close()  # makes the backend's tables
    start(transport_workers, "prefork", **settings)

    def add(*args: int) -> Any:
        return transport_workers.app.signature("transport.add", args=args)

    total = transport_workers.app.signature("transport.total")
    results = [
        (chain(add(1, 2), add(3), add(4)).apply_async(), 10),
        (group(add(n, n) for n in range(20)).apply_async(), [2 * n for n in range(20)]),
        (chord([add(n, 1) for n in range(10)], total).apply_async(), 55),
        (chain(add(1, 1), group(add(1), add(2)), total).apply_async(), 7),
    ]
    for result, expected in results:
        assert result.get(timeout=30) == expected
    transport_workers.await_empty()
