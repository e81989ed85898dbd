"""Keeps the launchers of a test module apart from those of others."""

from collections.abc import Iterator
from contextlib import contextmanager

from pgbeat.schedules import launchers
from pgbeat.schedules.launchers import Launcher


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
