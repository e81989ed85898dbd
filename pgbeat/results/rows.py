"""A stored result as the statements give it."""

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from psycopg.pq import Escaping
from psycopg.pq.abc import PGresult

from pgbeat import storable

#: The parts of a task's meta-data that have their own columns.
COLUMNS = {
    "status",
    "result",
    "traceback",
    "children",
    "date_done",
    "group_id",
    "parent_id",
    "name",
    "worker",
    "queue",
    "retries",
}


class Encoded(NamedTuple):
    """A value as its serializer wrote it, and what read it: kombu's names of content types."""

    body: bytes | None
    content_type: str
    content_encoding: str


class StoredResult(NamedTuple):
    """One row of `pgbeat.results`."""

    task_id: str
    status: str
    encoded: Encoded
    traceback: str | None
    #: As `AsyncResult.as_tuple` gives them.
    children: list[object] | None
    group_id: str | None
    parent_id: str | None
    #: In UTC, as ISO 8601.
    date_done: str | None
    #: These four, and args, kwargs and stamps in `request`, where results are extended.
    task: str | None
    worker: str | None
    queue: str | None
    retries: int | None
    request: bytes | None

    def as_meta(self, prefix: str, decoded: Callable[[Encoded], Any]) -> dict[str, Any]:
        """Returns what Celery knows of a task; `prefix` is that of the tables' ids."""
        meta = {
            "task_id": self.task_id.removeprefix(prefix),
            "status": self.status,
            "result": decoded(self.encoded),
            "traceback": self.traceback,
            "children": self.children,
            "date_done": self.date_done,
        }
        if self.group_id is not None:
            meta["group_id"] = self.group_id
        if self.parent_id is not None:
            meta["parent_id"] = self.parent_id
        if self.request is not None:
            meta |= {
                "name": self.task,
                "worker": self.worker,
                "queue": self.queue,
                "retries": self.retries,
                **decoded(self.encoded._replace(body=self.request)),
            }
        return meta


def stored_results(rows: PGresult) -> list[StoredResult]:
    """Returns the rows of `statements.READ` and its like."""
    return [_stored(rows, row) for row in range(rows.ntuples)]


def _stored(rows: PGresult, row: int) -> StoredResult:
    get = rows.get_value
    children = get(row, 6)
    retries = get(row, 13)
    return StoredResult(
        task_id=text(rows, row, 0) or "",
        status=text(rows, row, 1) or "",
        encoded=encoded(rows, row, 2),
        traceback=text(rows, row, 5),
        children=None if children is None else json.loads(children),
        group_id=text(rows, row, 7),
        parent_id=text(rows, row, 8),
        date_done=text(rows, row, 9),
        task=text(rows, row, 10),
        worker=text(rows, row, 11),
        queue=text(rows, row, 12),
        retries=None if retries is None else int(retries),
        request=raw(rows, row, 14),
    )


def encoded(rows: PGresult, row: int, column: int) -> Encoded:
    """Returns the value whose body, content type and encoding begin at that column."""
    kind, encoding = text(rows, row, column + 1), text(rows, row, column + 2)
    return Encoded(raw(rows, row, column), kind or "", encoding or "")


def text(rows: PGresult, row: int, column: int) -> str | None:
    """Returns a text; `None` for NULL."""
    value = rows.get_value(row, column)
    return None if value is None else value.decode()


def raw(rows: PGresult, row: int, column: int) -> bytes | None:
    """Returns the bytes of a bytea, as whatever `bytea_output` it comes; `None` for NULL."""
    value = rows.get_value(row, column)
    return None if value is None else _unescape(value)


_unescape = Escaping().unescape_bytea


def bytea(value: bytes | None) -> bytes | None:
    """Returns bytes as a bytea parameter."""
    return None if value is None else b"\\x" + value.hex().encode("ascii")


def as_json(value: Iterable[Any]) -> bytes:
    """Returns a JSON array as a parameter."""
    return json.dumps(list(value), default=str).encode()


def as_text(value: Any) -> bytes | None:
    """Returns text as a parameter, without what the database can't store."""
    return None if value is None else storable.escaped(str(value)).encode()


def as_number(value: float | None) -> bytes | None:
    """Returns a number as a parameter."""
    return None if value is None else repr(float(value)).encode()
