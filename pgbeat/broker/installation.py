"""Installs pgbeat in a database: its schema, and the broker's tables and queues."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection

from pgbeat.access import audit
from pgbeat.access.audit import Author
from pgbeat.broker.publishing.publisher import prepare_broker
from pgbeat.config import Settings, is_own_broker
from pgbeat.database.migrations import migrate as schema

if TYPE_CHECKING:
    from celery import Celery


class Migrated(NamedTuple):
    """The schema before and after a migration."""

    #: The schema's version; `None` if there was no schema.
    before: str | None
    after: str
    #: Objects of the schema that were missing and were made again.
    restored: Sequence[str]
    #: Tables of kombu's SQLAlchemy transport that were renamed: their old names and the new ones.
    renamed: Mapping[str, str]
    #: Whether the broker is in this database: its tables and the app's queues exist then.
    has_broker: bool


def migrate(
    settings: Settings,
    author: Author,
    app: "Celery | None" = None,
    rename: Mapping[str, str] = MappingProxyType({}),
) -> Migrated:
    """Brings the schema to the newest version, and creates what the app's broker needs.

    It takes no unit of work: the migration runs under an advisory lock, in a transaction that is
    repeated while tables are in use, on its own connection. The audit log has it if it changed
    anything. `rename` is that of `schema.upgrade`. Raises `SchemaError` on a schema that can't be
    upgraded, and `ConfigError` if the app names the broker's tables otherwise.
    """

    def record(connection: Connection, done: schema.Upgraded) -> None:
        more = {"restored": done.restored, "renamed": done.renamed}
        after = {"version": done.after} | {key: value for key, value in more.items() if value}
        versions = {"version": done.before}, after
        audit.record_action(connection, author, "migrate", "schema", "pgbeat", *versions)

    if app is not None:
        is_own_broker(app.conf, settings.url)  # before anything is changed
    done = schema.upgrade(settings.url, record, rename)
    return Migrated(*done, app is not None and prepare_broker(app, settings))
