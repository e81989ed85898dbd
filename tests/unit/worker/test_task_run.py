"""What stands around the run of a worker's task."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import OperationalError, Reject

from pgbeat.worker.finishing import endings, policy_retries, snoozes, task_run
from pgbeat.worker.finishing.task_run import Step
from tests.support.awaiting import Awaiting


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app with tasks of each kind, whose broker and results are in one database."""
    url = "pgbeat+postgresql://127.0.0.1:1/none"
    app = Celery("steps", broker=url, backend="pgbeat://", set_as_current=False)
    app.conf.pgbeat_url = url
    app.task(double, name="plain", shared=False)
    app.task(double, name="late", shared=False, acks_late=True)
    app.task(double_of, name="bound", shared=False, bind=True)
    app.finalize()
    yield app
    app.close()


def double(x: int) -> int:
    return 2 * x


def double_of(task: Any, x: int) -> tuple[Any, int]:
    return task, 2 * x


def test_the_order_of_the_steps() -> None:
    """A retry by policy is published in the transaction that ends the task, so before that."""
    assert task_run._steps(is_retried=True, is_ending=True) == [
        snoozes.settle,
        policy_retries.settle,
        endings.settle,
    ]
    assert task_run._steps(is_retried=False, is_ending=False) == [snoozes.settle]


def test_each_step_gets_what_the_one_before_it_raised(app: Celery) -> None:
    seen: list[str] = []

    def noting(raises: Exception | None) -> Step:
        def step(task: Any, error: BaseException, ending: Any) -> None:
            seen.append(repr(error))
            if raises is not None:
                raise raises from error

        return step

    task = app.tasks["plain"]
    steps = [noting(None), noting(KeyError("a")), noting(LookupError("b")), noting(None)]
    task_run._replace(task, steps, is_always=None)
    with pytest.raises(LookupError, match="b") as found:
        task.run()
    first, *more = seen
    assert first.startswith("TypeError(") and repr(found.value.__cause__) == "KeyError('a')"
    assert more == [first, "KeyError('a')", "LookupError('b')"]


def test_a_second_worker_in_a_process_replaces_what_the_first_did(app: Celery) -> None:
    app.task(double, name="called", shared=False, base=Awaiting)
    own = app.tasks["called"].__class__
    before = {name: (task.run, task.retry, task.on_replace) for name, task in app.tasks.items()}
    for _ in range(2):
        task_run.set_up(app)
    assert app.tasks["called"].__class__.__base__ is own
    for name, (run, retry, on_replace) in before.items():
        task = app.tasks[name]
        assert task.retry.__wrapped__ == retry
        if name.startswith("celery."):
            assert (task.run, task.on_replace) == (run, on_replace)
        else:
            assert (task.run.__wrapped__, task.on_replace.__wrapped__) == (run, on_replace)


class Unsendable(Task):  # type: ignore[type-arg,unused-ignore]
    """A task whose broker is away."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        raise OperationalError("it is away")


@pytest.mark.parametrize("is_late", [True, False])
def test_a_retry_that_cannot_be_sent(app: Celery, is_late: bool) -> None:
    """A message that was acknowledged can't go back: the task has failed, as Celery stores then."""
    app.task(double, name="unsent", shared=False, base=Unsendable, acks_late=is_late)
    task_run.set_up(app)
    task = app.tasks["unsent"]
    task.push_request(called_directly=False, is_eager=False, args=(1,), kwargs={})
    with pytest.raises(Reject) as rejected:
        task.retry()
    assert rejected.value.requeue is is_late


def test_a_bound_task_may_be_called_as_a_function(app: Celery) -> None:
    task_run.set_up(app)
    assert app.tasks["bound"].run.__func__("another", 2) == ("another", 4)
    assert app.tasks["plain"].run(2) == app.tasks["late"].run(2) == 4
