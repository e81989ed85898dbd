"""A Celery app for each library: `LIBRARY=batches celery -A tests.applications.library_app worker`.

As a program it is the client, and raises `AssertionError` if the library does not do its work.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, chord
from celery.signals import worker_process_init

from tests.support.processes import until

URL = os.environ["DATABASE"]
app = Celery("libraries", broker=f"pgbeat+{URL}", backend=f"pgbeat+{URL}")
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 4  # a batch of five fits, with two processes
#: A task waits for this file, until the client has looked.
GO, EVENT = Path("go"), Path("event")
Client = Callable[[], None]


def batches() -> Client:
    """Five tasks make a batch; two more are flushed when the interval is over."""
    from celery_batches import Batches

    @app.task(base=Batches, flush_every=5, flush_interval=3, name="sized")
    def sized(requests: list[Any]) -> None:
        for request in requests:
            app.backend.mark_as_done(request.id, len(requests), request)

    def client() -> None:
        for size in (5, 2):
            results = [sized.delay(number) for number in range(size)]
            assert [result.get(timeout=60) for result in results] == [size] * size

    return client


def progress() -> Client:
    """The progress of a task is read while it runs, and after its end."""
    from celery_progress.backend import Progress, ProgressRecorder

    @app.task(bind=True, name="step")
    def step(self: Any) -> str:
        ProgressRecorder(self).set_progress(3, 10, "reading")
        until(GO.exists)
        return "done"

    def client() -> None:
        result = step.delay()
        bar = Progress(result)
        until(lambda: bar.get_info()["state"] == "PROGRESS")
        assert (
            bar.get_info()["progress"].items() >= {"current": 3, "description": "reading"}.items()
        )
        GO.touch()
        assert result.get(timeout=60) == "done"
        assert bar.get_info().items() >= {"complete": True, "result": "done"}.items()

    return client


def django() -> Client:
    """A chord and its results are in Django's tables, its messages in pgbeat's."""
    import django
    from django.conf import settings
    from django.core.management import call_command
    from psycopg.conninfo import conninfo_to_dict

    dsn = conninfo_to_dict(URL)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": dsn["dbname"]}
    names = {"user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    database |= {names[key]: str(dsn[key]) for key in dsn if key in names}
    settings.configure(INSTALLED_APPS=["django_celery_results"], DATABASES={"default": database})
    django.setup()
    app.conf.result_backend = "django-db"

    @app.task(name="square")
    def square(number: int) -> int:
        return number * number

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    def client() -> None:
        from django_celery_results.models import TaskResult

        call_command("migrate")
        assert chord(square.s(n) for n in range(4))(total.s()).get(timeout=60) == 14
        assert [row.status for row in TaskResult.objects.all()] == ["SUCCESS"] * 5

    return client


def otel() -> Client:
    """A task's span is of its sender's trace."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider

    def instrument(**_: Any) -> None:
        trace.set_tracer_provider(TracerProvider())
        CeleryInstrumentor().instrument()

    worker_process_init.connect(instrument, weak=False)

    @app.task(name="traced")
    def traced() -> int:
        return trace.get_current_span().get_span_context().trace_id

    def client() -> None:
        instrument()
        with trace.get_tracer("client").start_as_current_span("request") as span:
            sent = traced.delay()
        assert sent.get(timeout=60) == span.get_span_context().trace_id

    return client


def sentry() -> Client:
    """A task's transaction and the event of its error are of its sender's trace."""
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration

    def keep(event: Any, _: Any) -> None:
        EVENT.write_text(event["contexts"]["trace"]["trace_id"])

    # These return no event, so nothing is sent.
    options: Any = {"before_send": keep, "before_send_transaction": lambda *_: None}
    options["dsn"] = "http://key@127.0.0.1:9/1"
    sentry_sdk.init(integrations=[CeleryIntegration()], traces_sample_rate=1.0, **options)

    @app.task(name="traced")
    def traced() -> None:
        span = sentry_sdk.get_current_span()
        raise ValueError(span.trace_id if span else "no span")

    def client() -> None:
        with sentry_sdk.start_transaction(name="request") as transaction:
            error = traced.delay().get(timeout=60, propagate=False)
        assert str(error) == transaction.trace_id
        until(lambda: EVENT.exists() and EVENT.read_text() == transaction.trace_id)

    return client


def _task_once(**options: Any) -> Any:
    @app.task(name="once", **options)
    def once(number: int) -> int:
        until(GO.exists)
        return number

    return once


def singleton() -> Client:
    """A second `delay()` returns the first one's result; the lock is in Redis."""
    from celery_singleton import Singleton

    app.conf.singleton_backend_url = os.environ["REDIS"]
    return _sent_twice(_task_once(base=Singleton))


def unique() -> Client:
    """The same by pgbeat's unique keys, without Redis."""
    return _sent_twice(_task_once(pgbeat={"unique": True}))


def _sent_twice(once: Any) -> Client:
    def client() -> None:
        first, second, other = once.delay(1), once.delay(1), once.delay(2)
        assert first.id == second.id != other.id
        GO.touch()
        assert [first.get(timeout=60), other.get(timeout=60)] == [1, 2]
        until(lambda: once.delay(1).id != first.id)

    return client


def once() -> Client:
    """A second `delay()` is refused; the lock is in Redis."""
    from celery_once import AlreadyQueued, QueueOnce

    locks = {"url": os.environ["REDIS"], "default_timeout": 600}
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": locks}
    task = _task_once(base=QueueOnce)

    def client() -> None:
        first = task.delay(1)
        try:
            raise AssertionError(f"it is sent twice: {task.delay(1)}")
        except AlreadyQueued:
            GO.touch()
        assert first.get(timeout=60) == 1

    return client


scenarios = (batches, progress, django, otel, sentry, singleton, once, unique)
ask = {scenario.__name__: scenario for scenario in scenarios}[os.environ["LIBRARY"]]()

if __name__ == "__main__":
    ask()
