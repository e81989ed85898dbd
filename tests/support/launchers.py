"""Keeps the launchers of a test module apart from those of others, and has one to share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from pgbeat.schedules import launchers
from pgbeat.schedules.launchers import Context, Launcher


@contextmanager
def only_those_of(module: str) -> Iterator[dict[str, type[Launcher]]]:
    """Takes other modules' launchers out of the registry; restores it in the end."""
    before = dict(launchers._registry)
    for name, known in before.items():
        if known.__module__ not in {launchers.__name__, module}:
            del launchers._registry[name]
    yield launchers._registry
    launchers._registry.clear()
    launchers._registry.update(before)


def register(
    name: str,
    condition: Callable[[Context], Any],
    data: Callable[[Context], Any] | None = None,
    task: str | None = "tests.add",
) -> None:
    """Registers a launcher with that condition, and with that preparation if there is one."""
    members: dict[str, Any] = {"task": task}
    members["check_conditions"] = lambda self, ctx: condition(ctx)
    if data is not None:
        members["prepare_job_data"] = lambda self, ctx: data(ctx)
    launchers.launcher(name)(type(name, (Launcher,), members))


class Meddling(Launcher):
    """Its condition is slow enough for somebody to change the row meanwhile, `times` times."""

    task = "tests.add"
    database: str
    times: int
    asked: int

    def check_conditions(self, ctx: Context) -> bool:
        type(self).asked += 1
        if self.asked <= self.times:
            with psycopg.connect(self.database) as other:
                other.execute("UPDATE pgbeat.schedules SET kwargs = '{\"x\": 9}'")
        return True
