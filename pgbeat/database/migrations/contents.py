"""Lists the objects of a schema, and finds and restores missing ones."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.errors import SchemaError

#: In a version's folder: the objects of its schema, each with a digest of its definition.
FILE = "contents.txt"
_READ = text(sql.load("contents.sql"))
_DEFINITIONS = text(sql.load("definitions.sql"))
#: Has definitions written alike until the end of the transaction or savepoint: the server writes
#: times in the session's zone, and leaves out schemas that the search path has.
_PLAINLY = text(sql.load("plainly.sql"))
_IN_TRANSACTION, _IN_SAVEPOINT = ("BEGIN", "ROLLBACK"), ("SAVEPOINT c", "ROLLBACK TO SAVEPOINT c")
#: An object may need those of earlier kinds: it is made after them.
_ORDER = ("function", "view", "constraint", "index", "trigger")
#: Objects that a message names; it counts the others.
_NAMED = 3


def read(connection: Connection) -> dict[str, str]:
    """Returns each object of the schema and of the broker's tables, with a digest of it."""
    is_open = connections.driver(connection).info.transaction_status == TransactionStatus.INTRANS
    begin, undo = _IN_SAVEPOINT if is_open else _IN_TRANSACTION
    connection.exec_driver_sql(begin)
    connection.execute(_PLAINLY)
    rows = connection.execute(_READ).all()
    connection.exec_driver_sql(undo)
    return {name: hashlib.sha256(definition.encode()).hexdigest()[:12] for name, definition in rows}


def expected(versions: Path, version: str) -> dict[str, str]:
    """Returns what a version's schema consists of; nothing if this program doesn't know it."""
    for path in versions.glob(f"{version}_*/{FILE}"):
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, _, name in (line.partition(" ") for line in lines)}
    return {}


def missing(connection: Connection, wanted: dict[str, str]) -> list[str]:
    """Returns the wanted objects that are absent or defined otherwise.

    Objects that no version has are an operator's own. The broker's tables count once they exist.
    """
    present = read(connection)
    has_broker = "table kombu_message" in present
    return [
        name
        for name, digest in wanted.items()
        if present.get(name) != digest and (has_broker or not _is_of_broker(name))
    ]


def restore(connection: Connection, wanted: dict[str, str], build: Callable[[], None]) -> list[str]:
    """Makes missing objects again, if that loses no rows; returns what it made.

    `build` makes the whole schema from nothing: it shows the definitions, in a savepoint
    that is rolled back. Raises `SchemaError` if tables, columns or the like are still missing.
    """
    lost = missing(connection, wanted)
    if not lost:
        return []
    _refuse([name for name in lost if _has_rows(name, wanted)])
    definitions = _definitions(connection, build)
    for kind in _ORDER:
        for name in lost:
            if name.startswith(f"{kind} "):
                for statement in definitions.get(name, ()):
                    connection.exec_driver_sql(statement.replace("%", "%%"))
    if any(_is_of_broker(name) for name in lost):
        connection.execute(text("SELECT pgbeat.adopt_broker()"))
    _refuse(missing(connection, wanted))
    return lost


def _refuse(lost: Sequence[str]) -> None:
    if lost:
        raise SchemaError(
            f"the schema lacks {listed(lost)}, which can't be made again without losing rows",
            advice="restore a backup, or drop the schema pgbeat with all its rows and run "
            "`pgbeat migrate`",
        )


def _has_rows(name: str, wanted: dict[str, str]) -> bool:
    """Returns whether an object is a table of pgbeat's own, or a column of one."""
    kind, _, path = name.partition(" ")
    is_of_view = f"view {path.rpartition('.')[0]}" in wanted
    return not _is_of_broker(name) and (kind == "table" or (kind == "column" and not is_of_view))


def listed(names: Sequence[str]) -> str:
    """Returns objects as a phrase: the first few, and how many more."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_of_broker(name: str) -> bool:
    return name.partition(" ")[2].startswith("kombu_")


def _definitions(connection: Connection, build: Callable[[], None]) -> dict[str, list[str]]:
    """Returns the statements that make each object, read from a newly built schema."""
    savepoint = connection.begin_nested()
    try:
        connection.execute(text("ALTER SCHEMA pgbeat RENAME TO pgbeat_present"))
        build()
        connection.execute(_PLAINLY)
        return {row.object: row.statements for row in connection.execute(_DEFINITIONS)}
    finally:
        savepoint.rollback()
