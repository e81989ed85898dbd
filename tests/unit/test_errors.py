"""Errors: their tree is the one that the module draws, and Celery can store each of them."""

import pickle
import re
from uuid import UUID

import pytest

from pgbeat import errors
from pgbeat.errors import (
    ConfigError,
    Forbidden,
    InvalidCalendar,
    InvalidJob,
    InvalidTransition,
    PgbeatError,
    Problem,
)


def drawn() -> dict[str, str]:
    """Each error of the drawing, with the one that it hangs from."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = [(-1, "Exception")]
    for line in (errors.__doc__ or "").splitlines():
        branch = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if branch:
            depth, name = len(branch[1]), branch[2]
            path = [(above, parent) for above, parent in path if above < depth]
            parents[name] = path[-1][1]
            path.append((depth, name))
    return parents


def test_the_tree_is_as_it_is_drawn() -> None:
    there_are = {
        name: thing.__base__.__name__
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, PgbeatError) and thing.__base__
    }
    assert drawn() == there_are
    assert there_are["PgbeatError"] == "Exception"


def test_every_error_says_when_it_is_raised() -> None:
    for name in drawn():
        assert getattr(errors, name).__doc__


def every_error() -> list[PgbeatError]:
    plain = [getattr(errors, name)("it is wrong") for name in drawn()]
    return [
        *plain,
        PgbeatError("it is wrong", code="other", field="name", advice="make it right"),
        InvalidJob([Problem("lane", "unknown", "no lane"), Problem("", "odd", "odd")], subject="x"),
        InvalidCalendar([Problem("days", "odd", "a"), Problem("hours", "odd", "b")], subject="x"),
        ConfigError.of("pgbeat_url", "malformed", "no URL", subject="settings"),
        InvalidTransition.of(UUID(int=1), "running", "deleted", "cancel it first"),
        Forbidden("no", field="task", is_for_admins=True),
    ]


@pytest.mark.parametrize("error", every_error(), ids=repr)
def test_an_error_survives_a_result_backend(error: PgbeatError) -> None:
    """Celery pickles what a task raises, or makes it again from its class and its arguments."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert copy.problems == error.problems
    assert str(type(error)(*error.args)) == str(error)
