"""Which tests are of the tier `process`."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import command_line, pgbouncer, tiers
from tests.support.recorded_workers import TrackedWorkers


def by_itself() -> None:
    subprocess.run(["true"])


def by_a_function_inside() -> Callable[[], None]:
    def start() -> None:
        subprocess.run(["true"])

    return start


def by_a_helper() -> None:
    by_itself()


def by_a_class() -> Callable[..., TrackedWorkers]:
    return TrackedWorkers


def by_a_module(folder: Path) -> Iterator[pgbouncer.Pooler]:
    with pgbouncer.pooler("", folder) as pooler:
        yield pooler


def in_this_process() -> None:
    command_line.run(None, "--help")


@pytest.mark.parametrize(
    ("function", "is_found"),
    [
        (by_itself, True),
        (by_a_function_inside, True),
        (by_a_helper, True),
        (by_a_class, True),
        (by_a_module, True),
        (in_this_process, False),
        (str, False),
    ],
)
def test_what_starts_processes_is_found(function: Callable[..., object], is_found: bool) -> None:
    assert tiers.starts_processes(function) is is_found
