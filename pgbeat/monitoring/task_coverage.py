"""Which tasks of schedules no worker has registered, by what living workers say of themselves."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import NamedTuple

from sqlalchemy import Connection, text


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


_WORKERS = text(
    """
    SELECT name, tasks FROM pgbeat.workers
     WHERE missing_since IS NULL AND coalesce(namespace, :namespace) = :namespace
     ORDER BY name
    """
)
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
            similar = near(task, everything) if is_unknown else None
            uncovered.append(Uncovered(task, number, example, without, is_unknown, similar))
    silent = sum(tasks is None for _, tasks in workers)
    return Coverage(len(workers), silent, uncovered)


def near(task: str, known: Collection[str]) -> str | None:
    """Returns the name among those known that is most like a task's: one that ends the same, as
    after a move to another module, else one that is spelled alike."""
    own = sorted(name for name in known if not name.startswith("celery."))
    last = task.rpartition(".")[2]
    same_end = [name for name in own if name.rpartition(".")[2] == last]
    found = get_close_matches(task, same_end, n=1, cutoff=0) or get_close_matches(task, own, n=1)
    return found[0] if found else None
