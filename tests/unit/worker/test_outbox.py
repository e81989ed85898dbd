"""What a process has to record, from any thread, until its recorder writes it."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
from sqlalchemy import Connection

from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.jobs.running.task_exceptions import Suspended
from pgbeat.worker.recording import outbox as outboxes
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.outbox import Outbox
from pgbeat.worker.task_logs import TaskLog
from tests.support.processes import until

REPORT = JobReport("j", "cancelled", "revoked", "cancelled", lost=False, began=False)


def attempt(job_id: str = "j") -> Attempt:
    return Attempt(job_id, "w1", 0, False, None)


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_an_attempt_is_queued_once_however_often_it_changes() -> None:
    outbox, one = Outbox(), attempt()
    outbox.add(one)
    one.end("completed")
    outbox.add(one)
    assert list(outbox.attempts) == [one]
    assert outbox.take() is one
    assert outbox.is_empty
    outbox.push(one)  # it changed again
    assert not outbox.is_empty


def test_others_may_queue_attempts_while_the_recorder_looks() -> None:
    """A task's thread may run at any moment: here while one attempt is looked at."""
    outbox = Outbox()

    class Looked(Attempt):
        @property
        def changes(self) -> int:
            in_thread(lambda: outbox.add(attempt("other"))).join()
            return 0

        @changes.setter
        def changes(self, value: int) -> None:
            """Is not told."""

    outbox.add(Looked("looked", "w1", 0, False, None))
    assert not outbox.is_awaited()
    assert len(outbox.attempts) == 2


def test_what_runs_is_known_until_it_ends() -> None:
    outbox, one = Outbox(), attempt()
    outbox.add(one)
    assert outbox.has_running
    assert outbox.running_since(one.began + 1) == [one]
    assert outbox.running_since(one.began) == []
    one.end("failed")
    outbox.add(one)
    assert not outbox.has_running


def test_what_has_ended_is_kept_without_the_error_that_suspended_it() -> None:
    outbox, one = Outbox(), attempt()
    one.suspended = Suspended(1, {"step": 1, "key": None})
    error = weakref.ref(one.suspended)
    one.end("snoozed", "scheduled")
    outbox.note_ends([one])
    gc.collect()
    assert error() is None
    outbox.push_again()
    assert list(outbox.attempts) == [one]


def test_progress_is_queued_when_asked_for_unless_the_attempt_ended() -> None:
    outbox, runs, ended = Outbox(), attempt(), attempt()
    for each in (runs, ended):
        outbox.add_progress(each)
        outbox.add_progress(each)
    ended.end("completed")
    assert outbox.has_running
    assert not outbox.attempts
    outbox.push_progress()
    assert list(outbox.attempts) == [runs]
    outbox.take()
    assert outbox.is_empty


def test_what_could_not_be_written_goes_first_again() -> None:
    outbox, first, second, third = Outbox(), attempt(), attempt(), attempt()
    for each in (first, second, third):
        outbox.push(each)
    taken = [outbox.take(), outbox.take()]
    outbox.push(second)  # it changed meanwhile, and keeps its new place
    outbox.put_back(taken)
    assert list(outbox.attempts) == [first, third, second]


def test_the_oldest_are_dropped_once_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outboxes, "KEPT", 2)
    outbox, many = Outbox(), [attempt() for _ in range(5)]
    with caplog.at_level(logging.WARNING):
        for each in many:
            outbox.push(each)
    assert list(outbox.attempts) == many[3:]
    assert [each.is_queued for each in many] == [False, False, False, True, True]
    assert len(caplog.records) == 1


def test_only_some_keep_what_their_tasks_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "WITH_LOGS", 2)
    outbox, many = Outbox(), [attempt() for _ in range(4)]
    for each in many:
        outbox.add(each)
        each.log = TaskLog(10)
    many[0].end("completed")
    outbox.add(many[0])
    outbox.take()
    outbox.take()
    many[1].end("completed")
    outbox.add(many[1])
    assert [each.log is None for each in many] == [True, False, False, False]


def test_the_first_attempt_wakes_a_recorder_that_sleeps() -> None:
    outbox = Outbox()
    sleeper = in_thread(lambda: outbox.sleep(60, is_idle=True))
    until(lambda: outbox._is_idle)
    outbox.push(attempt())
    sleeper.join(30)
    assert not sleeper.is_alive()


def test_an_attempt_that_came_just_before_keeps_it_awake() -> None:
    outbox = Outbox()
    outbox.push(attempt())
    outbox.sleep(60, is_idle=True)  # returns at once


def test_a_report_and_a_query_are_urgent() -> None:
    outbox = Outbox()
    outbox.reports_at = 5.0
    outbox.add_report(REPORT)
    assert outbox.is_urgent
    assert outbox.reports_at == 0.0
    outbox.sleep(60, is_idle=False)  # returns at once
    assert not outbox.is_empty


def test_a_query_returns_what_the_recorder_finds() -> None:
    outbox, connection = Outbox(), cast(Connection, object())
    found: list[Any] = []
    asker = in_thread(lambda: found.append(outbox.query(lambda on: (on, 1), 30)))
    outbox.sleep(30, is_idle=False)
    outbox.queries.popleft()(connection)
    asker.join(30)
    assert found == [(connection, 1)]
    assert outbox.query(lambda on: on, 0) is None


def test_a_task_waits_until_its_change_is_written() -> None:
    outbox, one = Outbox(), attempt()
    one.changes = 1
    outbox.push(one)
    assert outbox.is_awaited()
    assert not outbox.wait_for(one, 1, 0)
    waiter = in_thread(lambda: outbox.wait_for(one, 1, 30))
    one.written = 1
    outbox.release([one])
    waiter.join(30)
    assert not waiter.is_alive()
    assert not outbox.is_awaited()


def test_an_attempt_is_withdrawn_when_it_is_not_being_written() -> None:
    outbox, one = Outbox(), attempt()
    outbox.add(one)
    assert outbox.claim([outbox.take()]) == [one]
    waiter = in_thread(lambda: outbox.withdraw(one))
    waiter.join(0.05)
    assert waiter.is_alive()
    outbox.release([one])
    waiter.join(30)
    assert not waiter.is_alive()
    outbox.push(one)
    assert outbox.claim([outbox.take()]) == []
    outbox.add(one)  # it ended otherwise
    assert outbox.claim([outbox.take()]) == [one]


def test_a_closed_outbox_sleeps_no_more() -> None:
    outbox = Outbox()
    outbox.close()
    for _ in range(2):
        outbox.sleep(60, is_idle=False)  # returns at once
