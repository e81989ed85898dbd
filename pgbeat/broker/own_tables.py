"""The broker's tables, which are those of kombu's SQLAlchemy transport: makes and finds them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from pgbeat.config import is_own_broker, place
from pgbeat.errors import NotFound, SchemaError

#: What publishing needs. The last two are sequences.
_NEEDS = {
    "kombu_queue": "SELECT, INSERT",
    "kombu_message": "SELECT, INSERT",
    "kombu_queue_exchange": "SELECT, INSERT",
    "kombu_queue_binding": "SELECT, INSERT",
    "queue_id_sequence": "USAGE",
    "message_id_sequence": "USAGE",
}
_ADOPTED = text(
    "SELECT EXISTS (SELECT FROM pg_attribute "
    "WHERE attrelid = to_regclass('kombu_message') AND attname = 'claimed_by')"
)
_ADOPT = text("SELECT pgbeat.adopt_broker()")
_MAY_USE_TABLE = text("SELECT has_table_privilege(:name, :privilege)")
_MAY_USE_SEQUENCE = text("SELECT has_sequence_privilege(:name, :privilege)")


def exist(connection: Connection) -> bool:
    """Returns whether pgbeat's form of the tables is in the connection's search path."""
    return bool(connection.scalar(_ADOPTED))


def require(connection: Connection) -> None:
    """Raises `SchemaError` if the database of a caller's transaction has no such tables."""
    if not exist(connection):
        raise SchemaError(
            "the transaction's database has no broker tables; run `pgbeat migrate` there, "
            "or use a session of the broker's database"
        )


def adopt(connection: Connection) -> None:
    """Creates the tables, or adopts those of kombu's SQLAlchemy transport, once."""
    if not exist(connection):
        connection.execute(_ADOPT)


def missing_privileges(connection: Connection) -> list[str]:
    """Returns what the role lacks for publishing, such as `INSERT on kombu_message`."""
    return [
        f"{privilege} on {name}"
        for name, privileges in _NEEDS.items()
        for privilege in privileges.split(", ")
        if not connection.scalar(
            _MAY_USE_SEQUENCE if privilege == "USAGE" else _MAY_USE_TABLE,
            {"name": name, "privilege": privilege},
        )
    ]


def are_expected(url: URL, conf: Mapping[str, Any] | None) -> bool:
    """Returns whether the app's broker is the database of that URL; so it may be without an app.

    The tables may not exist yet.
    """
    return conf is None or is_own_broker(conf, url)


def require_own(connection: Connection, url: URL, conf: Mapping[str, Any] | None) -> None:
    """Raises `NotFound` if the app's broker is elsewhere, or its tables don't exist."""
    if not are_expected(url, conf):
        raise NotFound(f"the app's broker is not database {place(url)}: its queues are not here")
    if exist(connection):
        return
    hint = " yet; `pgbeat -A APP migrate` creates them"
    if conf is None:
        hint = (
            ": the broker is elsewhere, or it was never used (`pgbeat -A APP migrate` creates them)"
        )
    raise NotFound(f"the broker's tables are not in database {place(url)}{hint}")
