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
    #: Workers that may get it and don't know it; `is_unknown` where none of all does.
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
    SELECT task, queue, count(*), min(name) FROM pgbeat.schedules
     WHERE namespace = :namespace AND enabled AND paused_at IS NULL AND task IS NOT NULL
     GROUP BY task, queue ORDER BY task, queue
    """
)


def coverage(connection: Connection, namespace: str) -> Coverage:
    """Returns the tasks of the namespace's schedules that workers don't know.

    Of a schedule that names its queue, only those that consume it need to.
    """
    workers = connection.execute(_WORKERS, {"namespace": namespace}).all()
    known = {name: set(tasks) for name, tasks, _ in workers if tasks is not None}
    consumed = {name: queues for name, _, queues in workers}
    silent = sum(tasks is None for _, tasks, _ in workers)
    everything = set().union(*known.values())
    uncovered = []
    for task, queue, number, example in connection.execute(_TASKS, {"namespace": namespace}):
        is_unknown = task not in everything
        without = [
            name
            for name, tasks in known.items()
            if task not in tasks and (queue is None or queue in (consumed[name] or (queue,)))
        ]
        if without or (is_unknown and not silent):
            similar = nearest_task(task, everything) if is_unknown else None
            uncovered.append(Uncovered(task, number, example, without, is_unknown, similar))
    return Coverage(len(workers), silent, uncovered)
