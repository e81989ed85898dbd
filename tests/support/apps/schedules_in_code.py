"""Makes schedules in code, in every way that Celery has for it."""

import itertools
import os
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule, solar
from celery.signals import beat_init

from tests.support.databases import broker_url, sqlalchemy_url

DATABASE = os.environ["TESTS_DATABASE"]
_count = itertools.count(1)

app = Celery("tests", broker=broker_url(DATABASE), backend=f"db+{sqlalchemy_url(DATABASE)}")
app.conf.broker_connection_retry_on_startup = True
app.conf.timezone = "Europe/Oslo"
app.conf.pgbeat_loop_interval = 1
app.conf.task_routes = {"tests.routed": {"queue": "elsewhere"}}
_schedule: dict[str, dict[str, Any]] = {
    "crontab": {"task": "tests.add", "schedule": crontab(minute="*/5", hour="1-3"), "args": (1, 2)},
    "friday 13th": {
        "task": "tests.add",
        "schedule": crontab(minute=0, hour=0, day_of_month=13, day_of_week="fri"),
    },
    "timedelta": {"task": "tests.add", "schedule": timedelta(seconds=1), "kwargs": {"x": 3}},
    "number": {"task": "tests.routed", "schedule": 1.0, "options": {"priority": 4}},
    "schedule": {"task": "tests.elsewhere", "schedule": schedule(1)},
    "relative": {"task": "tests.add", "schedule": timedelta(seconds=1), "relative": True},
    "solar": {"task": "tests.add", "schedule": solar("sunset", 59.91, 10.75)},
    "lazy": {"task": "tests.add", "schedule": 1, "args": (BeatLazyFunc(next, _count),)},
}
if os.environ.get("TESTS_DEPLOY") == "second":
    del _schedule["number"]
    _schedule["timedelta"]["kwargs"] = {"x": 4}
app.conf.beat_schedule = _schedule


@app.task(name="tests.add", shared=False)
def add(x: int = 1, y: int = 2) -> int:
    return x + y


@app.task(name="tests.routed", shared=False)
def routed() -> None:
    """Goes to another queue."""


@app.on_after_configure.connect
def configured(sender: Any, **kwargs: Any) -> None:
    """Celery's documented way to add a periodic task."""
    sender.add_periodic_task(1.0, add.s(5, 6), name="after configure")


@app.on_after_finalize.connect
def finalized(sender: Any, **kwargs: Any) -> None:
    """Adds the other entry."""
    sender.add_periodic_task(crontab(hour=7), add.s(7, 8), name="after finalize")


@beat_init.connect
def started(sender: Any, **kwargs: Any) -> None:
    """Says that the signal came."""
    print("beat_init with", type(sender.scheduler).__name__, flush=True)
