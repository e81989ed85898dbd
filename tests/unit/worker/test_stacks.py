"""When stacks are taken, and of which calls."""

from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context

from pgbeat.worker.recording import stacks
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.stacks import StackWatch


def work() -> None:
    """Does nothing."""


def attempt_of(watch: StackWatch, timelimit: Any = None, **limits: float) -> Attempt:
    """Returns an attempt at a task with these limits, which has begun at 0."""
    app = Celery("stacks", set_as_current=False)
    attempt = Attempt("j", "w", 0, False, None)
    attempt.began = 0.0
    watch.begin(
        attempt, app.task(work, name="t", shared=False, **limits), Context(timelimit=timelimit)
    )
    return attempt


@pytest.mark.parametrize(
    ("pool", "of_message", "of_task", "soft", "hard"),
    [
        ("prefork", None, {}, 7, 9),
        ("prefork", None, {"soft_time_limit": 5}, 5, 9),
        ("prefork", (4, 3), {"soft_time_limit": 5}, 3, 4),
        ("prefork", (None, 3), {"time_limit": 6}, 3, 6),
        ("threads", (4, 3), {"soft_time_limit": 5}, None, None),
        ("gevent", (4, 3), {}, None, None),
    ],
)
def test_stacks_are_due_before_the_limits_that_a_pool_enforces(
    pool: str, of_message: Any, of_task: dict[str, float], soft: int | None, hard: int | None
) -> None:
    attempt = attempt_of(StackWatch(pool, 9, 7), of_message, **of_task)
    for reason, limit in (("soft_time_limit", soft), ("time_limit", hard)):
        times = [n / 4 for n in range(48) if reason in set(stacks.due(attempt, n / 4))]
        assert times[:1] == ([] if limit is None else [limit - 0.5])


def test_a_task_is_read_once_for_each_reason_unless_somebody_asks() -> None:
    attempt = attempt_of(StackWatch("prefork", None, None))
    for reason, count in (("deadline", 1), ("time_limit", 1), ("asked", 2)):
        rows = [stacks.take(attempt, reason), stacks.take(attempt, reason)]  # type: ignore[arg-type]
        assert len([row for row in rows if row is not None]) == count
    attempt.end("completed")
    assert stacks.take(attempt, "asked") is None


def test_what_ends_a_task_from_outside_says_where_it_was() -> None:
    attempt = attempt_of(StackWatch("prefork", None, None))
    with pytest.raises(SystemExit) as caught:
        raise SystemExit
    row = stacks.take_from(attempt, caught.value)
    assert row is not None
    assert row["reason"] == "terminated"
    assert "    raise SystemExit\n" in row["stack"]
    stacks.take(attempt, "time_limit")
    assert stacks.take_from(attempt, caught.value) is None
