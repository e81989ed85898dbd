"""Makes up an hour of ticks and jobs for the demo's schedules, so that its pages are not empty."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.jobs.rows import new_jobs
from pgbeat.jobs.rows.model import Job

#: How far back it begins.
LENGTH = timedelta(hours=1)
#: The worker of the runs that were made up.
WORKER = "celery@made-up"


class _Habit(NamedTuple):
    """What became of a schedule's ticks: shares of skips and failures, and seconds of a run."""

    task: str
    skips: float = 0.0
    reasons: tuple[str, ...] = ()
    failures: float = 0.0
    error: str = ""
    seconds: tuple[float, float] = (0.05, 0.4)


_HABITS = {
    "take-in": _Habit("tasks.vocabulary.take_in"),
    "category-refresh": _Habit(
        "tasks.vocabulary.refresh_categories", 0.5, ("no llm_generated types",)
    ),
    "vocab-consolidation": _Habit(
        "tasks.vocabulary.consolidate",
        0.75,
        ("inactive ratio 8% < 10%", "inactive ratio 14%, consolidates above 20%"),
        seconds=(2, 6),
    ),
    "epistemic": _Habit(
        "tasks.vocabulary.remeasure",
        0.8,
        ("9 vocabulary changes < 20", "17 vocabulary changes < 20"),
        seconds=(3, 9),
    ),
    "nightly-backup": _Habit("tasks.maintenance.backup", seconds=(8, 25)),
    "prices-dk1": _Habit(
        "tasks.prices.fetch_prices",
        failures=0.12,
        error="PricesUnavailable: DK1: 503 Service Unavailable",
        seconds=(0.2, 2),
    ),
    "prices-no1-when-stale": _Habit(
        "tasks.prices.fetch_prices",
        0.6,
        ("condition_sql is false",),
        0.1,
        "PricesUnavailable: NO1: 503 Service Unavailable",
        (0.2, 2),
    ),
    "warehouse-sync": _Habit("tasks.shop.sync_warehouse", seconds=(28, 75)),
}
#: When the price service was away: minutes ago, from and until.
_OUTAGE = (34, 27)

_SCHEDULES = text(
    "SELECT id, name, every, args, kwargs FROM pgbeat.schedules "
    "WHERE every IS NOT NULL AND name = ANY (:names)"
)
_TICK = text(
    """
    INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, decided_at, outcome, reason, job_id)
    VALUES (:schedule_id, :schedule, :at, :at, :outcome, :reason, :job_id)
    """
)
_RUN = text(
    """
    INSERT INTO pgbeat.executions
           (job_id, schedule_id, number, state, worker, started_at, finished_at, recorded_at,
            duration_ms, error)
    VALUES (:job_id, :schedule_id, 1, :state, :worker, :started_at, :finished_at, :finished_at,
            :milliseconds, :error)
    """
)


def make_up(connection: Connection) -> int:
    """Writes what the schedules would have done before now; returns the number of ticks."""
    chance = Random(17)  # noqa: S311  # the same history each time
    now: datetime = connection.scalar(text("SELECT now()"))
    ticks: list[dict[str, Any]] = []
    for key, name, every, args, kwargs in connection.execute(_SCHEDULES, {"names": list(_HABITS)}):
        schedule = {"schedule_id": key, "schedule": name, "args": args, "kwargs": kwargs}
        ticks += _ticks(chance, now, schedule, every)
    ticks.sort(key=lambda tick: tick["at"])
    connection.execute(_TICK, ticks)
    launched = [tick for tick in ticks if tick["job_id"] is not None]
    new_jobs.insert(connection, [_job(tick) for tick in launched])
    connection.execute(_RUN, launched)
    return len(ticks)


def _ticks(
    chance: Random, now: datetime, schedule: dict[str, Any], every: timedelta
) -> Iterator[dict[str, Any]]:
    """Yields the ticks of a schedule, each with the columns of its job."""
    habit = _HABITS[schedule["schedule"]]
    at, free_at = now - LENGTH, now - LENGTH
    while at + timedelta(seconds=habit.seconds[1]) < now:
        common = schedule | {"at": at, "task": habit.task, "worker": WORKER, "reason": None}
        if habit.reasons and chance.random() < habit.skips:
            reason = chance.choice(habit.reasons)
            yield common | {"outcome": "skipped", "reason": reason, "job_id": None}
        elif at >= free_at:
            begins = at + timedelta(seconds=chance.uniform(0.01, 0.3))
            seconds = chance.uniform(*habit.seconds)
            ends = free_at = begins + timedelta(seconds=seconds)
            is_away = _OUTAGE[1] < (now - at) / timedelta(minutes=1) < _OUTAGE[0]
            has_failed = chance.random() < (1.0 if is_away and habit.failures else habit.failures)
            yield common | {
                "outcome": "launched",
                "job_id": UUID(int=chance.getrandbits(128), version=4),
                "state": "failed" if has_failed else "completed",
                "error": habit.error if has_failed else None,
                "started_at": begins,
                "finished_at": ends,
                "milliseconds": 1000 * seconds,
            }
        at += every


def _job(tick: dict[str, Any]) -> Job:
    return Job(
        id=tick["job_id"],
        namespace="default",
        task=tick["task"],
        job_source="scheduled_task",
        created_by="system:scheduler:GenericLauncher",
        schedule_id=tick["schedule_id"],
        schedule=tick["schedule"],
        trigger="timetable",
        due_at=tick["at"],
        args=tick["args"],
        kwargs=tick["kwargs"],
        queue="celery",
        state=tick["state"],
        is_system_job=True,
        created_at=tick["at"],
        dispatched_at=tick["at"],
        started_at=tick["started_at"],
        finished_at=tick["finished_at"],
        worker=tick["worker"],
        error=tick["error"],
    )
