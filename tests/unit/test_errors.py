"""Errors: the tree that the module draws is the tree that there is."""

import re

from pgbeat import errors
from pgbeat.errors import PgbeatError


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
