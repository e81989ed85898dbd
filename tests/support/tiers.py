"""Tells which tests start other processes or servers: the tier `process`."""

import inspect
import subprocess
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from pgbeat.testing import embedded
from pgbeat.testing.databases import TemporaryServer

#: The server of the run, which every tier needs.
_OF_THE_RUN = {"pgbeat_server"}


def mark(items: list[pytest.Item]) -> None:
    """Marks the tests that start processes, by themselves or by a fixture or a helper.

    Slow ones are a tier by themselves.
    """
    quick = [item for item in items if not item.get_closest_marker("slow")]
    for item in quick:
        if isinstance(item, pytest.Function) and any(map(starts_processes, _functions(item))):
            item.add_marker("process")


def _functions(item: pytest.Function) -> Iterator[Any]:
    """Yields the test's function and those of its fixtures, of a name's the nearest."""
    yield inspect.unwrap(item.function)
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        if name not in _OF_THE_RUN:
            yield definitions[-1].func


@cache
def starts_processes(start: Any) -> bool:
    """Returns whether a function of the tests names what starts processes, or another that does."""
    seen: set[Any] = set()
    left = [start]
    while left:
        found = left.pop()
        if found is subprocess or found is TemporaryServer or found is embedded.server:
            return True
        if found not in seen and (getattr(found, "__module__", None) or "").startswith("tests."):
            seen.add(found)
            left += _named_by(found)
    return False


def _named_by(found: Any) -> Iterator[Any]:
    """Yields what a function or the methods of a class name, as far as it can be hashed."""
    if inspect.isclass(found):
        yield from found.__bases__
        yield from (each for each in vars(found).values() if isinstance(each, FunctionType))
    elif isinstance(found := inspect.unwrap(found), FunctionType):
        for name in _names(found.__code__):
            value = found.__globals__.get(name)
            if isinstance(value, FunctionType | type) or value is subprocess:
                yield value
            elif isinstance(value, ModuleType):
                members = (vars(value).get(each) for each in _names(found.__code__))
                yield from (each for each in members if isinstance(each, FunctionType | type))


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names in a function and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
