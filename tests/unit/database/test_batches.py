"""Writing what is not locked, wherever it stands among what is."""

from collections.abc import Sequence
from types import SimpleNamespace

import psycopg
import pytest

from pgbeat.database.locks import batches
from pgbeat.database.locks.batches import each_unlocked


class Table:
    """Rows, some of which are locked; what is written together fails together."""

    def __init__(self, locked: set[str]) -> None:
        self.locked, self.written, self.tries = locked, list[str](), 0

    def write(self, items: Sequence[str]) -> int:
        """One transaction."""
        self.tries += 1
        if self.locked & {item[0] for item in items}:
            raise psycopg.errors.LockNotAvailable
        self.written += items
        return len(items)


def test_what_is_not_locked_is_written() -> None:
    table = Table({"c", "f"})
    results, left = each_unlocked("abcdefgh", table.write)
    assert sorted(table.written) == list("abdegh")
    assert (sum(results), sorted(left)) == (6, ["c", "f"])


def test_nothing_locked_is_one_transaction() -> None:
    table = Table(set())
    assert each_unlocked("abc", table.write) == ([3], [])
    assert each_unlocked("", table.write) == ([], [])
    assert table.tries == 1


def test_items_of_one_key_stay_together_and_in_order() -> None:
    table = Table({"b"})
    items = ["a1", "b1", "a2", "b2", "c1"]
    _, left = each_unlocked(items, table.write, key=lambda item: item[0])
    assert left == ["b1", "b2"]
    assert [item for item in table.written if item[0] == "a"] == ["a1", "a2"]


def test_without_time_the_rest_is_left_before_what_is_locked() -> None:
    table = Table({"a"})
    assert each_unlocked("abcd", table.write, budget=0.0) == ([], list("abcd"))
    assert table.tries == 0


def test_all_are_written_in_the_end_though_each_part_has_a_locked_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In time for fifteen parts that fail, few become small enough."""
    left = [chr(ord("A") + number) for number in range(64)]
    table = Table(set(left[::2]))
    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=lambda: float(table.tries)))
    for _ in range(20):
        _, left = each_unlocked(left, table.write, budget=15)
    assert sorted(left) == sorted(table.locked)


def test_other_errors_are_raised() -> None:
    def write(items: Sequence[str]) -> None:
        raise psycopg.errors.UndefinedTable

    with pytest.raises(psycopg.errors.UndefinedTable):
        each_unlocked("ab", write)
