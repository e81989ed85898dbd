"""Reads errors as programs do: the field and the code of each problem, not the sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgbeat.errors import PgbeatError


def problems(error: PgbeatError) -> list[tuple[str, str]]:
    return [(each.field, each.code) for each in error.problems]


@contextmanager
def raises(kind: type[PgbeatError], *expected: tuple[str, str]) -> Iterator[None]:
    """Expects an error of that class, with these fields and codes and no others."""
    try:
        yield
    except kind as error:
        assert problems(error) == list(expected)
    else:
        pytest.fail(f"nothing is refused as {expected}")
