"""Makes Sentry's `CeleryIntegration(monitor_beat_tasks=True)` work with pgbeat's Scheduler.

Sentry patches the method by which Celery's own beat sends a task. pgbeat's beat sends many tasks in
one transaction and never calls it, so beat's half of the check-ins is made here. The workers' half
is Sentry's: its receivers close the check-in that the message's headers name.

A check-in's id is the id of the schedule's job, and the job keeps the headers among its options. So
a message that is made later, for a lane or a retry, closes the same check-in. Nothing here opens a
connection: Sentry sends from its own thread.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from celery import signals
from celery.exceptions import Ignore

from pgbeat.beat import enqueuer, launched_jobs
from pgbeat.beat.evaluation import Decision
from pgbeat.beat.scheduler import Scheduler
from pgbeat.broker.publishing import publisher
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.jobs.running.task_exceptions import Cancelled
from pgbeat.schedules import entries
from pgbeat.schedules.model import Schedule

logger = logging.getLogger("celery.beat.pgbeat")

#: Headers that Sentry's receivers in workers read.
_SLUG, _ID = "sentry-monitor-slug", "sentry-monitor-check-in-id"
_CONFIG = "sentry-monitor-config"
#: Triggers by which people launch; a monitor expects what the timetable says.
_BY_PEOPLE = ("manual", "backfill")
#: Cron expressions that mean the same to Sentry: five fields without extensions.
_FIELD = (
    r"(?:[\d*,/\-]|sun|mon|tue|wed|thu|fri|sat|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)+"
)
_PLAIN_CRON = re.compile(rf"{_FIELD}(?: {_FIELD}){{4}}", re.IGNORECASE)
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))
_STATUS = {"launched": "in_progress", "skipped": "ok", "failed": "error"}


#: The default time zone of the app whose beat runs here; `None` while nothing is monitored.
_zone: str | None = None


def connect() -> None:
    """Makes this process's beats look for Sentry when they start: apps may set it up that late."""
    signals.beat_init.connect(_watch_beat, weak=False, dispatch_uid=__name__)


def disconnect() -> None:
    """Stops making check-ins in this process."""
    global _zone
    _zone, launched_jobs.more_headers = None, None
    if _decided in enqueuer.observers:
        enqueuer.observers.remove(_decided)
        publisher.observers.remove(_publishing)
    signals.task_postrun.disconnect(_ended, dispatch_uid=__name__)


def _integration() -> Any:
    """Returns the app's `CeleryIntegration` if that monitors beat's tasks, else `None`."""
    if "sentry_sdk.integrations.celery" not in sys.modules:
        return None
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration

    integration = sentry_sdk.get_client().get_integration(CeleryIntegration)
    return integration if integration is not None and integration.monitor_beat_tasks else None


def _watch_beat(sender: Any, **kwargs: Any) -> None:
    global _zone
    if _integration() is None or not isinstance(sender.scheduler, Scheduler):
        return
    disconnect()
    _zone, launched_jobs.more_headers = entries.zone_name(sender.app), _headers
    enqueuer.observers.append(_decided)
    publisher.observers.append(_publishing)


def watch_tasks() -> None:
    """Makes this worker close the check-ins that Sentry leaves open."""
    if _integration() is not None:
        signals.task_postrun.connect(_ended, weak=False, dispatch_uid=__name__)


def _headers(schedule: Schedule, trigger: str, job_id: str) -> Mapping[str, Any]:
    """Returns the headers by which a worker closes the check-in of a schedule's job."""
    config = _monitor(schedule, trigger)
    if config is None:
        return {}
    return {_SLUG: schedule.name, _ID: UUID(job_id).hex, _CONFIG: config}


def _decided(decisions: Sequence[Decision], began: int) -> None:
    """Sends a check-in for each committed launch, and a closed one for each skip or failure.

    A skip is no missed run: the schedule was decided, and there was nothing to do.
    """
    for decision in decisions:
        tick, schedule = decision.tick, decision.schedule
        try:
            config = _monitor(schedule, tick.trigger)
            if config is None:
                continue
            ids: list[str | None] = [UUID(job_id).hex for job_id in tick.job_ids]
            for check_in_id in ids or [None]:  # Sentry makes its own id
                _check_in(schedule.name, check_in_id, _STATUS[tick.outcome], config)
        except Exception:
            logger.exception("A check-in of schedule '%s' is lost", schedule.name)


@contextmanager
def _publishing(message: TaskMessage) -> Iterator[None]:
    """Gives each launched task its own trace, as Sentry does for Celery's beat."""
    import sentry_sdk

    with sentry_sdk.isolation_scope() as scope:
        scope.set_new_propagation_context()
        scope._name = "celery-beat"
        yield


def _monitor(schedule: Schedule, trigger: str) -> dict[str, Any] | None:
    """Returns the monitor's configuration for Sentry; `None` if the launch is not monitored."""
    integration = _integration()
    if integration is None or trigger in _BY_PEOPLE:
        return None
    from sentry_sdk.utils import match_regex_list

    if match_regex_list(schedule.name, integration.exclude_beat_tasks):
        return None
    timetable = _timetable(schedule)
    if timetable is None:
        return None
    config: dict[str, Any] = {"schedule": timetable, "timezone": schedule.timezone or _zone}
    if schedule.jitter:  # Sentry's own margin is a minute
        config["checkin_margin"] = 1 - (-schedule.jitter // timedelta(minutes=1))
    return config


def _timetable(schedule: Schedule) -> dict[str, Any] | None:
    """Returns the timetable as Sentry expresses it; `None` if it can't."""
    if schedule.cron is not None and _PLAIN_CRON.fullmatch(schedule.cron):
        return {"type": "crontab", "value": schedule.cron}
    if schedule.every is not None:
        seconds = schedule.every.total_seconds()
        for unit, length in _UNITS:
            if seconds >= length and seconds % length == 0:
                return {"type": "interval", "value": int(seconds // length), "unit": unit}
    return None


def _check_in(slug: str, check_in_id: str | None, status: str, config: Any) -> None:
    from sentry_sdk.crons import capture_checkin

    capture_checkin(
        monitor_slug=slug, check_in_id=check_in_id, status=status, monitor_config=config
    )


def _ended(task: Any, retval: Any = None, **kwargs: Any) -> None:
    """Closes the check-in of a task that ended by `Skip`, `Cancelled` or `Ignore`.

    Celery sends neither of the signals that Sentry listens to for these.
    """
    slug = getattr(task.request, _SLUG, None)
    error = getattr(retval, "exception", retval)
    if slug is None or not isinstance(error, Ignore):
        return
    status = "error" if isinstance(error, Cancelled) else "ok"
    try:
        _check_in(
            slug, getattr(task.request, _ID, None), status, getattr(task.request, _CONFIG, None)
        )
    except Exception:
        logger.exception("A check-in of schedule '%s' is lost", slug)
