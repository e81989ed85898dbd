"""A new version is rolled out, or back: tasks that a worker doesn't know wait for one that does."""

import json
import random
import signal
import time
from collections.abc import Callable

import pytest
from celery import Celery, chain, chord
from celery.exceptions import NotRegistered
from celery.result import AsyncResult

from tests.support.apps import deployed
from tests.support.command_line import Sql, run_with
from tests.support.processes import Process, Processes, until


@pytest.fixture
def sender(database: str) -> Celery:
    return deployed.make(database, "both")


def start(processes: Processes, version: str, *arguments: str, **env: str) -> Process:
    return processes.worker(
        *arguments, app="tests.support.apps.deployed", TESTS_VERSION=version, **env
    )


def send(sender: Celery, version: str) -> dict[str, AsyncResult]:
    """Sends what a version's tasks are in, as plain tasks and as jobs."""
    plain, job = (sender.tasks[f"shop.{kind}{version}"] for kind in ("plain", "job"))
    both = sender.tasks["shop.both"]
    return {
        "plain": plain.delay(1),
        "job": job.delay(1),
        "chain": chain(both.s(1), plain.s(), job.s(), both.s()).delay(),
        "chord": chord([plain.s(1), both.s(1), job.s(1)], plain.s()).delay(),
    }


VALUES = {"plain": 2, "job": 2, "chain": 5, "chord": 7}


@pytest.mark.parametrize("pool", ["prefork", pytest.param("solo", marks=pytest.mark.slow)])
def test_tasks_of_another_version(
    processes: Processes, sender: Celery, sql: Sql, pool: str
) -> None:
    """Those of the new one wait until its first worker starts; those of the old one go to it."""
    old = start(processes, "1", "-P", pool, "-c", "2")
    old.says("ready.")
    sent = send(sender, "2")
    old.says("Task 'shop.plain2' is not registered here; it goes back: a worker started")
    until(lambda: sql("SELECT count(*) FROM kombu_message WHERE available_at IS NOT NULL")[0][0])
    assert sql("SELECT count(*) FROM pgbeat.results WHERE status <> 'SUCCESS'") == [(0,)]
    new = start(processes, "2", "-P", pool, "-c", "2")
    assert {name: result.get(timeout=40) for name, result in sent.items()} == VALUES
    sent = send(sender, "1")
    assert {name: result.get(timeout=40) for name, result in sent.items()} == VALUES
    assert "NotRegistered" not in old.output + new.output
    until(lambda: sql("SELECT DISTINCT state FROM pgbeat.jobs") == [("completed",)])
    until(lambda: sql("SELECT count(*) FROM kombu_message") == [(0,)])


def test_a_task_that_nobody_knows(processes: Processes, sender: Celery) -> None:
    """It fails when no worker is so new that others may follow."""
    worker = start(processes, "1", PGBEAT_DEPLOY_WINDOW="3")
    worker.says("ready.")
    odd = [sender.send_task(f"shop.{name}") for name in ("\udce4", "\0")]  # no table can have them
    sent = send(sender, "2")
    worker.says("Task 'shop.plain2' is not registered here; it goes back: a worker started")
    with pytest.raises(NotRegistered):
        sent["plain"].get(timeout=30)
    for result in [*sent.values(), *odd]:
        until(result.failed)


@pytest.mark.slow
def test_pinned_tasks_stay_on_the_version_that_sent_them(
    processes: Processes, database: str
) -> None:
    """Also the retries of a task, and what a chain sends; until a worker of it comes back."""
    senders = {version: deployed.make(database, version) for version in "12"}

    def send(version: str) -> AsyncResult:
        task = senders[version].tasks["shop.pinned"]
        return chain(task.s([]), task.s(), task.s()).delay()

    def states() -> dict[str, str]:
        printed = json.loads(run_with(senders["1"], "versions", "--json").stdout)
        return {row["version"]: row["state"] for row in printed}

    old, _new = begun(processes, "1"), begun(processes, "2")
    sent = {send(version): version for version in "1212"}
    for result, version in sent.items():
        assert result.get(timeout=40) == [version] * 3
    until(lambda: states() == {"v1": "drained", "v2": "drained"})
    old.send_signal(signal.SIGTERM)
    until(lambda: old.poll() is not None)
    result = send("1")
    assert send("2").get(timeout=40) == ["2"] * 3
    until(lambda: states() == {"v1": "abandoned", "v2": "drained"})
    begun(processes, "1")
    assert result.get(timeout=40) == ["1"] * 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rolling_out_and_back_under_load(processes: Processes, sender: Celery, sql: Sql) -> None:
    """Workers are replaced one by one; what is left of a version waits until it comes back."""
    chance, sent = random.Random(1), list[dict[str, AsyncResult]]()  # noqa: S311
    known, fleet = {"1"}, [begun(processes, "1") for _ in range(2)]

    began = time.monotonic()

    def sending(condition: Callable[[], bool]) -> None:
        def send_and_look() -> bool:
            if time.monotonic() >= 0.5 * len(sent) + began:
                sent.append(send(sender, chance.choice(sorted(known))))
            return condition()

        until(send_and_look, 60)

    def roll(old: str, new: str) -> None:
        for place in range(2):
            fresh = start(processes, new, "-P", "prefork", "-c", "2")
            sending(lambda: "ready." in fresh.output)  # noqa: B023
            known.add(new)
            if place == 1:
                known.remove(old)
            fleet[place].send_signal(signal.SIGTERM)
            sending(lambda: fleet[place].poll() is not None)  # noqa: B023
            fleet[place] = fresh

    roll("1", "2")
    roll("2", "1")
    begun(processes, "2")
    for results in sent:
        assert {name: result.get(timeout=60) for name, result in results.items()} == VALUES
    until(lambda: sql("SELECT DISTINCT state FROM pgbeat.jobs") == [("completed",)])


def begun(processes: Processes, version: str) -> Process:
    """Starts a worker and waits until it is ready."""
    worker = start(processes, version, "-P", "prefork", "-c", "2")
    worker.says("ready.")
    return worker
