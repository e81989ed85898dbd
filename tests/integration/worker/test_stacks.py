"""The stack of a running task, as the recorder of its process reads it."""

import threading
from typing import Any

import pytest

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import MASK, Redactor
from pgbeat.errors import InvalidTransition, NoReply
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.running import stacks
from pgbeat.jobs.running.stacks import Stack
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.recorder import Recorder
from pgbeat.worker.recording.stacks import SIZE, StackWatch
from tests.support.processes import until
from tests.support.simulated_workers import FakeWorkers

ADMIN = Redactor(Actor("user:root", is_admin=True), {}, {})


def begin(recorder: Recorder, job_id: str) -> Attempt:
    """Returns an attempt that this thread runs."""
    attempt = Attempt(job_id, "w1", 0, False, None)
    StackWatch("threads").begin(attempt, None, None)
    recorder.record(attempt)
    assert recorder.record_now(attempt, 10)
    return attempt


def ask(fake_workers: FakeWorkers, job_id: str, redactor: Redactor = ADMIN, **more: Any) -> Stack:
    job = jobs.get(fake_workers.connection, job_id)
    return stacks.ask(fake_workers.connection, redactor, job, **more)


def test_the_recorder_answers_while_the_task_runs(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    job_id = fake_workers.job()
    with pytest.raises(InvalidTransition):
        ask(fake_workers, job_id)
    attempt = begin(recorder, job_id)
    stack = ask(fake_workers, job_id)
    assert "in ask\n    return stacks.ask(" in stack.stack
    assert (stack.execution_id.hex, stack.number, stack.reason) == (attempt.id, 1, "asked")
    assert ask(fake_workers, job_id).taken_at > stack.taken_at
    rules = {"*": ["*"]}
    masked = ask(fake_workers, job_id, Redactor(Actor("user:alice"), rules, {}))
    assert masked.stack == MASK
    attempt.end("completed")
    recorder.record(attempt)
    until(lambda: fake_workers.state(job_id) == "completed")
    with pytest.raises(InvalidTransition):
        ask(fake_workers, job_id)
    job = jobs.get(fake_workers.connection, job_id)
    [kept] = stacks.of_job(fake_workers.connection, ADMIN, job, ask_first=True)
    assert kept.number == 1
    stacks.delete(fake_workers.connection, job.id)
    assert stacks.of_job(fake_workers.connection, ADMIN, job) == []


def test_who_runs_nothing_gives_no_answer(fake_workers: FakeWorkers) -> None:
    job_id = fake_workers.job()
    fake_workers.run(job_id, 1)
    with pytest.raises(NoReply):
        ask(fake_workers, job_id, timeout=0.2)


def test_the_innermost_calls_of_a_deep_stack_are_kept(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    job_id, is_over = fake_workers.job(), threading.Event()

    def dig(depth: int) -> None:
        if depth:
            delve(depth - 1)
        else:
            begin(recorder, job_id)
            is_over.wait(60)

    def delve(depth: int) -> None:  # Python shows the same call only a few times
        dig(depth)

    digger = threading.Thread(target=dig, args=(200,))
    digger.start()
    until(lambda: fake_workers.state(job_id) == "running")
    stack = ask(fake_workers, job_id).stack
    is_over.set()
    digger.join()
    assert SIZE / 2 < len(stack) <= SIZE + 10
    assert stack.startswith("  …\n")
    assert "is_over.wait(60)" in stack


def test_a_late_job_and_one_that_must_end(fake_workers: FakeWorkers, recorder: Recorder) -> None:
    job_id = fake_workers.job()
    attempt = begin(recorder, job_id)
    fake_workers.sql(
        "UPDATE pgbeat.jobs SET must_end_by = now(), cancel_requested_at = now(), "
        "cancel_requested_by = 'user:a' WHERE id = %s",
        job_id,
    )
    query = "SELECT reason FROM pgbeat.stacks ORDER BY reason"
    until(lambda: fake_workers.sql(query) == [("cancel",), ("deadline",)])
    assert attempt.cancel_asked


def test_a_schema_without_stacks(fake_workers: FakeWorkers, recorder: Recorder) -> None:
    """That of the version before: jobs are cancelled all the same. They come with `migrate`."""
    fake_workers.sql("ALTER TABLE pgbeat.stacks RENAME TO later")
    job_id = fake_workers.job()
    attempt = begin(recorder, job_id)
    job = jobs.get(fake_workers.connection, job_id)
    assert stacks.of_job(fake_workers.connection, ADMIN, job, ask_first=True) == []
    fake_workers.sql(
        "UPDATE pgbeat.jobs SET cancel_requested_at = now(), cancel_requested_by = 'user:a'"
    )
    until(lambda: attempt.cancel_asked)
    fake_workers.sql("ALTER TABLE pgbeat.later RENAME TO stacks")
    assert "in ask\n" in ask(fake_workers, job_id).stack
