"""Finds tasks of schedules that no worker has registered, by the reports of living workers."""

from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.running.workers import ALIVE
from pgbeat.suggest import nearest_task


class Uncovered(NamedTuple):
    """A task of enabled schedules that some or all workers don't know."""

    task: str
    #: Schedules that launch it: how many, and the first by name.
    schedules: int
    example: str
    #: Workers that don't know it; `is_unknown` where none of them does.
    workers: list[str]
    is_unknown: bool
    #: The nearest name that they know.
    near: str | None


class Coverage(NamedTuple):
    """What workers and schedules say."""

    #: Living workers of the namespace, and those of them that don't say which tasks they know.
    workers: int
    silent: int
    uncovered: list[Uncovered]


_WORKERS = text(sql.load("task_coverage.sql", "workers", alive=ALIVE))
_TASKS = text(
    """
    SELECT task, count(*), min(name) FROM pgbeat.schedules
     WHERE namespace = :namespace AND enabled AND paused_at IS NULL AND task IS NOT NULL
     GROUP BY task ORDER BY task
    """
)


def coverage(connection: Connection, namespace: str) -> Coverage:
    """Returns the tasks of the namespace's schedules that workers don't know."""
    workers = connection.execute(_WORKERS, {"namespace": namespace}).all()
    known = {name: set(tasks) for name, tasks in workers if tasks is not None}
    everything = set().union(*known.values())
    uncovered = []
    for task, number, example in connection.execute(_TASKS, {"namespace": namespace}):
        without = [name for name, tasks in known.items() if task not in tasks]
        if without:
            is_unknown = task not in everything
            similar = nearest_task(task, everything) if is_unknown else None
            uncovered.append(Uncovered(task, number, example, without, is_unknown, similar))
    silent = sum(tasks is None for _, tasks in workers)
    return Coverage(len(workers), silent, uncovered)
