"""Direct execution: a task here and now, in a lane's next slot."""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_task
from celery.exceptions import Ignore

import pgbeat
from pgbeat.errors import InvalidJob, NoSlot, NotFound, UnknownTask
from pgbeat.jobs.flow.dispatch import dispatch_lane
from pgbeat.jobs.submitting.direct import run_direct
from pgbeat.jobs.verbs import lane_control
from tests.support.databases import end_sessions
from tests.support.lanes import Lanes
from tests.support.problems import raises
from tests.support.processes import Process, until


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def waiting(lane_jobs: Lanes, *results: Future[Any], count: int = 1) -> None:
    """Waits until so many wait for a slot; fails at once if the result of one is there."""
    query = "SELECT count(*) FROM pgbeat.reservations WHERE started_at IS NULL"

    def wait() -> bool:
        for each in results:
            assert not each.done(), f"it waits no more, and returned {each.result()!r}"
        return lane_jobs.sql(query) == [(count,)]

    until(wait, 20, f"{count} wait")


def nobody_reserves(lane_jobs: Lanes) -> bool:
    return lane_jobs.sql("SELECT count(*) FROM pgbeat.reservations") == [(0,)]


def test_the_result_comes_back(lane_jobs: Lanes, app: Celery) -> None:
    lane_jobs.lane(max_running=1)
    assert pgbeat.run_direct("tests.add", (1,), {"y": 5}, lane="l", app=app) == 6
    assert pgbeat.run_direct(app.tasks["tests.add"], lane="l") == 3
    assert nobody_reserves(lane_jobs)
    assert lane_jobs.sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]  # it is none


def test_an_error_comes_as_the_task_raised_it(lane_jobs: Lanes, app: Celery) -> None:
    @app.task(name="tests.divide", shared=False)
    def divide() -> float:
        return 1 / 0

    class Own(Exception):
        """One that can't be pickled."""

    @app.task(name="tests.fail", shared=False)
    def fail() -> None:
        raise Own("really")

    @app.task(name="tests.ignore", shared=False)
    def ignore() -> None:
        raise Ignore()

    @app.task(name="tests.coroutine", shared=False)
    async def coroutine() -> None:
        raise Own("nobody awaits it")

    lane_jobs.lane(max_running=1)
    with pytest.raises(TypeError, match="async def"):
        run_direct(coroutine, lane="l")
    with pytest.raises(Own, match="really"):
        run_direct(fail, lane="l")
    with pytest.raises(Ignore):
        run_direct(ignore, lane="l")
    [job] = lane_jobs.add()
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        run_direct(divide, lane="l")
    assert nobody_reserves(lane_jobs)
    assert lane_jobs.seated() == {job}  # the slot went on to who waits


def test_celerys_own_retries_come_at_once(lane_jobs: Lanes, app: Celery) -> None:
    @app.task(name="tests.again", bind=True, max_retries=2, shared=False)
    def again(self: Any, enough: int) -> int:
        if self.request.retries < enough:
            raise self.retry(countdown=3600, exc=LookupError("not enough"))
        return int(self.request.retries)

    lane_jobs.lane(max_running=1)
    assert run_direct(again, (2,), lane="l") == 2
    with pytest.raises(LookupError, match="not enough"):
        run_direct(again, (3,), lane="l")


def test_a_task_can_run_another_directly(lane_jobs: Lanes, app: Celery) -> None:
    @app.task(name="tests.outer", shared=False)
    def outer() -> list[Any]:
        return [run_direct("tests.add", (2,), lane="other", app=app), current_task.name]

    lane_jobs.lane(max_running=1)
    lane_jobs.lane("other", max_running=1)
    assert run_direct(outer, lane="l") == [4, "tests.outer"]


def test_it_waits_for_what_runs_and_goes_before_what_waits(
    lane_jobs: Lanes, app: Celery, background: ThreadPoolExecutor
) -> None:
    gate = threading.Event()

    @app.task(name="tests.hold", shared=False)
    def hold() -> str:
        assert gate.wait(60)
        return "done"

    lane_jobs.lane(max_running=1)
    first, second = lane_jobs.add(2)
    assert lane_jobs.dispatch() == [first]
    result = background.submit(run_direct, hold, lane="l")
    waiting(lane_jobs, result)
    assert lane_jobs.dispatch() == []  # never preempted
    lane_jobs.end(first)
    assert lane_jobs.dispatch() == []  # its slot is for the direct execution
    assert lane_jobs.seated() == set()
    assert not result.done()
    gate.set()
    assert result.result(60) == "done"
    assert lane_jobs.seated() == {second}


def test_it_is_woken_by_whoever_allots(
    lane_jobs: Lanes, app: Celery, background: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.jobs.submitting.direct._POLL", 600.0)
    lane_jobs.lane(max_running=1)
    first, second = lane_jobs.add(2)
    assert lane_jobs.dispatch() == [first]
    result = background.submit(run_direct, "tests.add", lane="l", app=app, timeout=600)
    waiting(lane_jobs, result)
    lane_jobs.end(first)
    # Not by `lane_jobs.dispatch`: it fails if the direct execution dispatches the second meanwhile.
    dispatch_lane(lane_jobs.connection, lane_jobs.publisher, "default", "l")
    assert result.result(60) == 3
    until(lambda: lane_jobs.seated() == {second}, 20)


def test_it_is_woken_when_the_lane_changes(
    lane_jobs: Lanes, app: Celery, background: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.jobs.submitting.direct._POLL", 600.0)
    lane_jobs.lane(max_running=0)
    result = background.submit(run_direct, "tests.add", lane="l", app=app, timeout=600)
    waiting(lane_jobs, result)
    lane_jobs.do(lane_control.save, "l", {"max_running": 1})
    assert result.result(60) == 3


def test_first_come_first_served(
    lane_jobs: Lanes, app: Celery, background: ThreadPoolExecutor
) -> None:
    order: list[int] = []

    @app.task(name="tests.order", shared=False)
    def in_order(number: int) -> None:
        order.append(number)

    lane_jobs.lane(max_running=1)
    [job] = lane_jobs.add()
    lane_jobs.dispatch()
    results: list[Future[Any]] = []
    for number in range(4):
        results.append(background.submit(run_direct, in_order, (number,), lane="l"))
        waiting(lane_jobs, *results, count=number + 1)
    lane_jobs.end(job)
    for result in results:
        result.result(60)
    assert order == [0, 1, 2, 3]


def test_a_timeout_says_who_has_the_slots(
    lane_jobs: Lanes, app: Celery, background: ThreadPoolExecutor
) -> None:
    gate = threading.Event()

    @app.task(name="tests.hold", shared=False)
    def hold() -> None:
        assert gate.wait(60)

    lane_jobs.lane(max_running=2)
    result = background.submit(run_direct, hold, lane="l", created_by="user:you")
    until(
        lambda: lane_jobs.sql("SELECT 1 FROM pgbeat.reservations WHERE started_at IS NOT NULL"), 20
    )
    first, second = lane_jobs.add(2)
    assert lane_jobs.dispatch() == [first]
    lane_jobs.sql(
        "UPDATE pgbeat.jobs SET state = 'running', started_at = now(), worker = 'w@host' "
        "WHERE id = %s",
        first,
    )
    with pytest.raises(NoSlot) as error:
        run_direct("tests.add", lane="l", app=app, timeout=0.2)
    said = str(error.value)
    assert said.startswith(
        "lane 'l' had no free slot within 0.2 s; the limit of 2 is reached; slots are taken by "
    )
    assert "a direct execution of tests.hold by user:you, for " in said
    assert f"job {first} (tests.add, running on w@host, for " in said
    gate.set()
    result.result(60)
    assert nobody_reserves(lane_jobs)
    assert lane_jobs.seated() == {first, second}


def test_a_timeout_says_how_many_came_before(
    lane_jobs: Lanes, app: Celery, background: ThreadPoolExecutor
) -> None:
    lane_jobs.lane(max_running=0)
    first = background.submit(run_direct, "tests.add", lane="l", app=app, timeout=60)
    waiting(lane_jobs, first)
    with pytest.raises(NoSlot, match="1 asked"):
        run_direct("tests.add", lane="l", app=app, timeout=0.1)
    lane_jobs.do(lane_control.save, "l", {"max_running": 1})
    assert first.result(60) == 3


def test_one_that_gave_up_holds_nobody_up(lane_jobs: Lanes, app: Celery) -> None:
    lane_jobs.lane(policy="resources", options='{"gpu": 2}')
    half, _ = lane_jobs.add(2, resources={"gpu": 1})
    lane_jobs.dispatch()
    lane_jobs.end(half)
    with pytest.raises(NoSlot, match="'gpu'"):
        run_direct("tests.add", lane="l", app=app, timeout=0, resources={"gpu": 2})
    [job] = lane_jobs.add(resources={"gpu": 1})
    assert lane_jobs.dispatch() == [job]


def test_a_paused_lane_says_so(lane_jobs: Lanes, app: Celery) -> None:
    lane_jobs.lane(max_running=1)
    lane_jobs.do(lane_control.pause, "l")
    with pytest.raises(NoSlot, match="paused"):
        run_direct("tests.add", lane="l", app=app, timeout=0.1)


def test_a_reservation_that_somebody_deletes_is_an_error(
    lane_jobs: Lanes, app: Celery, background: ThreadPoolExecutor
) -> None:
    lane_jobs.lane(max_running=0)
    result = background.submit(run_direct, "tests.add", lane="l", app=app)
    waiting(lane_jobs, result)
    lane_jobs.sql("DELETE FROM pgbeat.reservations")
    with pytest.raises(NoSlot, match="was deleted"):
        result.result(60)


@pytest.mark.parametrize(
    "given", [{"tags": "heavy"}, {"tags": ["\ud800"]}, {"resources": {"gpu": "one"}}]
)
def test_tags_and_resources_that_are_none(
    lane_jobs: Lanes, app: Celery, given: dict[str, Any]
) -> None:
    lane_jobs.lane()
    [field] = given
    with raises(InvalidJob, (field, "malformed")):
        run_direct("tests.add", (1, 2), lane="l", app=app, **given)
    assert nobody_reserves(lane_jobs)


def test_what_is_not_there_is_an_error(lane_jobs: Lanes, app: Celery) -> None:
    with raises(NotFound, ("lane", "not_found")):
        run_direct("tests.add", lane="l", app=app)
    with raises(UnknownTask, ("task", "unknown")):
        run_direct("tests.ad", lane="l", app=app)


def test_what_becomes_of_the_session_is_no_matter_of_the_tasks(
    lane_jobs: Lanes, app: Celery
) -> None:
    @app.task(name="tests.cut", shared=False)
    def cut() -> str:
        end_sessions(lane_jobs.sql, "pgbeat direct")
        return "done"

    lane_jobs.lane(max_running=1)
    [job] = lane_jobs.add()
    assert run_direct(cut, lane="l") == "done"
    assert nobody_reserves(lane_jobs)
    assert lane_jobs.seated() == {job}


_CALLER = """
import sys, time
from celery import Celery
from pgbeat import run_direct
app = Celery("caller", broker=sys.argv[1])

@app.task(name="tests.sleep", shared=False)
def sleep():
    print("runs", flush=True)
    time.sleep(600)

print("asks", flush=True)
run_direct(sleep, lane="l", timeout=600)
"""


def caller(lane_jobs: Lanes, folder: Path, name: str) -> Process:
    """A process that runs a task directly that doesn't end."""
    command = [sys.executable, "-c", _CALLER, lane_jobs.app.conf.broker_url]
    return Process(command, folder / f"{name}.log", dict(os.environ))


def test_the_slot_of_a_caller_that_dies_comes_back(
    lane_jobs: Lanes, app: Celery, tmp_path: Path
) -> None:
    lane_jobs.lane(max_running=1)
    has_it, waits = caller(lane_jobs, tmp_path, "one"), None
    try:
        has_it.says("runs")
        waits = caller(lane_jobs, tmp_path, "two")
        waiting(lane_jobs)
        waits.kill_group()  # while it waits
        has_it.kill_group()
        assert run_direct("tests.add", lane="l", app=app, timeout=20) == 3
    finally:
        for process in (has_it, waits):
            if process is not None:
                process.kill_group()
                process.wait()
