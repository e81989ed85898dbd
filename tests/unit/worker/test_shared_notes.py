"""What a process notes of its attempts, and what its worker finds when it is gone."""

import logging
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgbeat.worker.recording import shared_notes
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.outbox import Outbox
from pgbeat.worker.recording.shared_notes import SharedNotes

JOB = "6f6c9d4e-5d0f-4a3c-9f0e-0d3c2b1a0f9e"


@pytest.fixture(autouse=True)
def _shares() -> Iterator[None]:
    """Makes this process a worker's main process."""
    shared_notes.share("w1@host")
    yield
    shared_notes.share(None)


def attempt(job_id: str = JOB, **fields: Any) -> Attempt:
    found = Attempt(job_id, "w1@host", 2, True, None)
    vars(found).update(fields)
    return found


def killed(function: Callable[[Outbox], object]) -> int:
    """Has a child call a function with its outbox and die; returns its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            function(Outbox(shared_notes.own()))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def test_what_a_killed_process_noted_is_found_once() -> None:
    begun, ended = attempt(), attempt(is_repeated=True, memory_peak_mb=12.5)
    ended.began -= 1

    def work(outbox: Outbox) -> None:
        outbox.add(begun)
        outbox.add(ended)
        ended.result, ended.error = "3", None
        ended.end("failed", "scheduled")
        ended.ended = ended.began + 0.5
        outbox.add(ended)

    pid = killed(work)
    first, second = shared_notes.take_unrecorded()  # in the order in which they began
    assert (first.id, second.id) == (ended.id, begun.id)
    for found, made in ((first, ended), (second, begun)):
        for name in ("job_id", "worker", "retry_attempt", "acks_late", "began", "is_repeated"):
            assert getattr(found, name) == getattr(made, name)
        assert (found.pid, found.was_tried) == (pid, True)
    assert (first.state, first.job_state, first.result) == ("failed", "scheduled", "3")
    assert (first.duration_ms, first.memory_peak_mb) == (500, 12.5)
    assert (second.state, second.job_state, second.ended) == ("running", "running", None)
    (_, begins), (_, ends) = first.documents(1, os.getpid())
    assert (begins["pid"], ends["job_state"]) == (pid, "scheduled")
    assert shared_notes.take_unrecorded() == []


def test_what_a_process_recorded_is_not_found() -> None:
    def work(outbox: Outbox) -> None:
        for _ in range(3 * shared_notes._SLOTS):
            one = attempt()
            outbox.add(one)
            one.end("completed")
            outbox.add(one)
            outbox.forget_notes([outbox.take()])

    killed(work)
    assert shared_notes.take_unrecorded() == []


def test_a_process_that_lives_keeps_its_notes() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        Outbox(shared_notes.own()).add(attempt())
        os.write(write, b"x")
        signal.pause()
    os.read(read, 1)
    assert shared_notes.take_unrecorded() == []
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(shared_notes.take_unrecorded()) == 1
    os.close(read)
    os.close(write)


def test_a_process_without_room_for_more_goes_on_without() -> None:
    def work(outbox: Outbox) -> None:
        for _ in range(shared_notes._SLOTS + 5):
            one = attempt()
            outbox.add(one)
            one.end("completed")
            outbox.add(one)

    killed(work)
    assert len(shared_notes.take_unrecorded()) == shared_notes._SLOTS


@pytest.mark.parametrize(
    ("result", "error", "noted"),
    [
        ("r" * 200, None, ("r" * 200, None)),
        ("€" * 200, None, (None, None)),
        (None, "e" * 2000, (None, "e" * 64)),
        (None, "\U0001f4a5" * 2000, (None, "\U0001f4a5" * 64)),
    ],
)
def test_long_texts_are_cut(
    result: str | None, error: str | None, noted: tuple[str | None, str | None]
) -> None:
    def work(outbox: Outbox) -> None:
        one = attempt(result=result, error=error)
        outbox.add(one)
        one.end("failed")
        outbox.add(one)

    killed(work)
    [found] = shared_notes.take_unrecorded()
    assert (found.result, found.error, found.state) == (*noted, "failed")


def test_a_childs_child_has_no_notes() -> None:
    def work(outbox: Outbox) -> None:
        outbox.add(attempt())
        if os.fork() == 0:
            assert shared_notes.own() is None
            Outbox(shared_notes.own()).add(attempt())
            os._exit(0)
        os.wait()

    killed(work)
    assert len(shared_notes.take_unrecorded()) == 1


def test_a_process_that_never_began_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = SharedNotes()
    assert not notes.is_left()
    monkeypatch.setattr(shared_notes, "_PATIENCE", 0.0)
    assert notes.is_left()
    assert notes.read("w1@host") == []


def test_without_memory_it_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with caplog.at_level(logging.WARNING):
        killed(lambda outbox: outbox.add(attempt()))
    assert caplog.messages == [
        "What this process has not recorded is lost if it is killed: Cannot allocate memory"
    ]
    assert shared_notes.take_unrecorded() == []
