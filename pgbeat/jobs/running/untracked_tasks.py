"""Counts the tasks that ran without being tracked (`pgbeat_track`), by hour and name.

Workers add what they received since they last did.
"""

import json
from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, text

#: Names that a worker counts between two reports; the rest is counted under `OTHERS`.
MOST, OTHERS = 500, ""

# In the order of their names, so that workers don't wait for each other in a circle.
_ADD = text(
    """
    INSERT INTO pgbeat.untracked_tasks AS u (namespace, at, task, number)
    SELECT :namespace, date_trunc('hour', now(), 'UTC'), key, CAST(value AS bigint)
      FROM json_each_text(CAST(:numbers AS json)) ORDER BY key
    ON CONFLICT (namespace, at, task) DO UPDATE SET number = u.number + excluded.number
    """
)


def add(connection: Connection, namespace: str, numbers: Mapping[str, int]) -> None:
    """Adds numbers of tasks by name to the present hour."""
    if numbers:
        values = {"namespace": namespace, "numbers": json.dumps(dict(numbers))}
        connection.execute(_ADD, values)


class Tally:
    """The tasks that a worker's main process has received untracked, since the last `take`."""

    def __init__(self) -> None:
        self._numbers = Counter[str]()

    def count(self, task: str) -> None:
        """Counts a task."""
        numbers = self._numbers
        numbers[task if task in numbers or len(numbers) < MOST else OTHERS] += 1

    def take(self) -> Counter[str]:
        """Returns the numbers, and resets them."""
        numbers, self._numbers = self._numbers, Counter[str]()
        return numbers
