"""Selects jobs by what their rows hold."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Text, and_, cast, false, literal, or_
from sqlalchemy.dialects.postgresql import JSONB

from pgbeat.database.tables import jobs
from pgbeat.jobs.rows import ids
from pgbeat.names import NAMESPACE
from pgbeat.storable import storable_json


class Filter(NamedTuple):
    """Selects jobs by all fields that are not `None`."""

    namespace: str = NAMESPACE
    state: str | None = None
    #: A name, or a glob such as `shop.*`.
    task: str | None = None
    schedule_id: int | None = None
    lane: str | None = None
    group_id: str | None = None
    template: str | None = None
    created_by: str | None = None
    is_system_job: bool | None = None
    job_source: str | None = None
    #: Whether it missed a deadline.
    late: bool | None = None
    #: The job must have all of them.
    labels: Mapping[str, str] | None = None
    #: When it was created: not before the first time, and before the second.
    created_from: datetime | None = None
    created_until: datetime | None = None
    #: The queue that a job names; if it names none, the task decides by one of the next two.
    queue: str | None = None
    routed_here: Sequence[str] | None = None
    routed_elsewhere: Sequence[str] | None = None
    #: A glob of the error, in upper or lower case; without `*` and `?`, a part of it.
    error: str | None = None
    #: In one of these states.
    states: Sequence[str] | None = None
    #: Whether a retry took its place.
    is_retried: bool | None = None
    ids: Sequence[UUID] | None = None
    #: It must have all of these tags.
    tags: Sequence[str] | None = None
    #: A name with dots, or a place and such names, of an argument, and its value as text.
    arguments: Sequence[tuple[str, str]] | None = None
    #: Each is a part of the task's name, or the beginning of the id.
    words: Sequence[str] | None = None
    #: Globs of tasks that are left out.
    not_tasks: Sequence[str] | None = None

    def clauses(self) -> list[ColumnElement[bool]]:
        """Returns the conditions in SQL."""
        return self.indexed() + self.unindexed(jobs.c)

    def indexed(self) -> list[ColumnElement[bool]]:
        """Returns the conditions for which there are indexes, or which take little beside one."""
        columns = [(name, value) for name, value in self._asdict().items() if name not in _OTHERS]
        conditions = [jobs.c[name] == value for name, value in columns if value is not None]
        if self.task is not None and not is_glob(self.task):
            conditions.append(jobs.c.task == self.task)
        if self.states is not None:
            conditions.append(jobs.c.state.in_(self.states))
        if self.ids is not None:
            conditions.append(jobs.c.id.in_(self.ids))
        if self.is_retried is not None:
            is_last = jobs.c.retried_by.is_(None)
            conditions.append(~is_last if self.is_retried else is_last)
        if self.late is not None:
            is_late = jobs.c.late_at.is_not(None)
            conditions.append(is_late if self.late else ~is_late)
        if self.created_from is not None:
            conditions.append(jobs.c.created_at >= self.created_from)
        if self.created_until is not None:
            conditions.append(jobs.c.created_at < self.created_until)
        if self.labels:  # the second condition makes Postgres use the index
            conditions += [jobs.c.labels.contains(dict(self.labels)), jobs.c.labels != {}]
        return conditions

    def unindexed(self, columns: Any) -> list[ColumnElement[bool]]:
        """Returns the others, of a table's or a subquery's columns."""
        conditions: list[ColumnElement[bool]] = []
        if self.task is not None and is_glob(self.task):
            conditions.append(columns.task.like(like(self.task)))
        if self.error is not None:
            glob = self.error if is_glob(self.error) else f"*{self.error}*"
            conditions.append(columns.error.ilike(like(glob)))
        if self.queue is not None:
            conditions.append(self._is_in_queue(columns))
        if self.tags:
            conditions.append(columns.tags.contains(list(self.tags)))
        conditions += [_argument(columns, *argument) for argument in self.arguments or ()]
        conditions += [_word(columns, word) for word in self.words or ()]
        conditions += [columns.task.not_ilike(like(task)) for task in self.not_tasks or ()]
        return conditions

    def _is_in_queue(self, columns: Any) -> ColumnElement[bool]:
        if self.routed_here is not None:
            is_routed = columns.task.in_(self.routed_here)
        elif self.routed_elsewhere is not None:
            is_routed = columns.task.not_in(self.routed_elsewhere)
        else:
            is_routed = false()
        return or_(columns.queue == self.queue, and_(columns.queue.is_(None), is_routed))


#: Fields of a filter that are no columns to compare.
_OTHERS = {
    "task", "late", "labels", "created_from", "created_until", "error", "states", "is_retried",
    "ids", "queue", "routed_here", "routed_elsewhere", "tags", "arguments", "words", "not_tasks",
}  # fmt: skip
_GLOB = frozenset("*?")
_TO_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


def is_glob(text: str) -> bool:
    """Returns whether a text is a glob rather than a name."""
    return not _GLOB.isdisjoint(text)


def like(glob: str) -> str:
    """Returns a glob as a pattern of LIKE."""
    return glob.translate(_TO_LIKE)


def _argument(columns: Any, path: str, value: str) -> ColumnElement[bool]:
    """Returns the condition that an argument has this value: as text, or as JSON such as `5`."""
    values: list[Any] = [value]
    with suppress(ValueError, RecursionError):
        read = json.loads(value, parse_constant=str)
        if not isinstance(read, str) and storable_json(read):
            values.append(read)
    first, *inner = path.split(".")
    is_place = first.isdecimal() and len(first) < 9
    where = columns.args[int(first)] if is_place else columns.kwargs
    names = inner if is_place else [first, *inner]
    conditions = []
    for wanted in values:
        for name in reversed(names):
            wanted = {name: wanted}
        conditions.append(where.contains(cast(literal(json.dumps(wanted), Text), JSONB)))
    return or_(*conditions)


def _word(columns: Any, word: str) -> ColumnElement[bool]:
    is_named: ColumnElement[bool] = columns.task.ilike(like(f"*{word}*"))
    between = ids.between(word)
    return is_named if between is None else or_(is_named, columns.id.between(*between))
