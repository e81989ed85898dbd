"""Django's tasks as jobs: the backend `pgbeat.integrations.django.task_backend.Backend` of `TASKS`.

Each function of `django.tasks.task` becomes a task of the Celery app, by its path, when its module
is imported. So rows name only registered tasks, and Celery's workers run them. Needs Django 6.0.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any

from celery import shared_task
from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from pgbeat.access import actors
from pgbeat.errors import NotFound
from pgbeat.integrations.django import databases, schema
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import Execution
from pgbeat.jobs.submitting.submit import submit
from pgbeat.jobs.writing import submissions

try:
    from django.tasks import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ModuleNotFoundError as missing:
    raise ImproperlyConfigured(
        "pgbeat.integrations.django.task_backend needs Django 6.0 or newer, which has django.tasks"
    ) from missing

_STATUS = {
    "running": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
    "skipped": TaskResultStatus.FAILED,
}
#: What executions report of the class of their error.
_CLASS = "exception_class"
#: The tasks that are registered with Celery, by path.
_tasks: dict[str, Any] = {}


class Backend(BaseTaskBackend):
    """Enqueues tasks as jobs, in the transaction of `atomic()` if one is open."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Raises `InvalidTask`, or registers the task with Celery."""
        super().validate_task(task)
        if task.module_path not in _tasks:
            _tasks[task.module_path] = task
            shared_task(name=task.module_path, bind=True, typing=False)(_runner(task))

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Makes a job, and returns its result. Raises as `pgbeat.submit`."""
        self.validate_task(task)
        is_default = task.queue_name == DEFAULT_TASK_QUEUE_NAME
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        app = databases.any_app()
        policy = task_policies.of_task(app, task.module_path)
        # Like Django's own backends, it doesn't retry, unless the task's policy says so.
        attempts: dict[str, Any] = {} if policy and policy.max_attempts else {"max_attempts": 1}
        job = submit(
            task.module_path,
            *normalize_json(list(args)),
            kwargs=normalize_json(dict(kwargs)),
            app=app,
            queue=None if is_default else task.queue_name,
            run_at=run_at,
            priority=max(0, int(task.priority)),  # nothing comes after plain jobs
            **attempts,
        )
        result = self._result(task, job, job, [])
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Returns a result, as its last attempt has it. Raises `TaskResultDoesNotExist`."""
        app = databases.any_app()
        with submissions.opened_unit(app, schema.settings(), actors.user(), None) as unit:
            try:
                first = last = jobs.get(unit.connection, result_id, namespace=unit.namespace)
                attempts = executions.of_job(unit.connection, first.id)
                while last.retried_by is not None:
                    last = jobs.get(unit.connection, last.retried_by)
                    attempts += executions.of_job(unit.connection, last.id)
            except NotFound as error:
                raise TaskResultDoesNotExist(result_id) from error
        task = _tasks.get(first.task)
        if task is None:
            raise TaskResultDoesNotExist(f"job {result_id} is not one of Django's tasks")
        attempts.sort(key=lambda attempt: attempt.started_at)
        result = self._result(task, first, last, attempts)
        if result.status == TaskResultStatus.SUCCESSFUL and app.conf.result_backend:
            object.__setattr__(result, "_return_value", app.AsyncResult(str(last.id)).result)
        return result

    def _result(self, task: Any, first: Job, last: Job, attempts: Sequence[Execution]) -> Any:
        return TaskResult(
            task=task,
            id=str(first.id),
            status=_STATUS.get(last.state, TaskResultStatus.READY),
            enqueued_at=first.created_at,
            started_at=attempts[0].started_at if attempts else first.started_at,
            finished_at=last.finished_at,
            last_attempted_at=attempts[-1].started_at if attempts else last.started_at,
            args=first.args or [],
            kwargs=first.kwargs or {},
            backend=self.alias,
            errors=[
                TaskError(
                    exception_class_path=attempt.metadata.get(_CLASS, "builtins.Exception"),
                    traceback=attempt.traceback or attempt.error,
                )
                for attempt in attempts
                if attempt.error
            ],
            worker_ids=[attempt.worker for attempt in attempts if attempt.worker],
        )

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Warns if return values are not kept."""
        app = databases.celery_app()
        if app is None or app.conf.result_backend:
            return []
        return [
            Warning(
                "The Celery app has no result backend: return_value of Django's tasks is None.",
                hint="Set CELERY_RESULT_BACKEND, such as to pgbeat's.",
                id="pgbeat.W005",
            )
        ]


def _runner(task: Any) -> Callable[..., Any]:
    """Returns the function by which Celery's workers run a task of Django's."""
    backend = type(task.get_backend())

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = _running(task, self.request, args, kwargs)
        task_started.send(backend, task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            value = normalize_json(task.call(*context, *args, **kwargs))
        except BaseException as error:
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            from pgbeat.worker.reporting import report

            report(**{_CLASS: path})
            text = "".join(format_exception(error))
            result.errors.append(TaskError(exception_class_path=path, traceback=text))
            _end(result, TaskResultStatus.FAILED)
            raise
        else:
            object.__setattr__(result, "_return_value", value)
            _end(result, TaskResultStatus.SUCCESSFUL)
            return value
        finally:
            task_finished.send(backend, task_result=result)

    return run


def _running(task: Any, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result of a task that begins now, as far as its worker knows it."""
    now = datetime.now(UTC)
    return TaskResult(
        task=task,
        id=request.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=list(args),
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[str(request.hostname)] * (1 + request.retries),
    )


def _end(result: Any, status: Any) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", datetime.now(UTC))
