"""The schema's version: upgrade it, check it, print it."""

import io
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections, privileges, sql
from pgbeat.database.migrations import contents
from pgbeat.database.tables import SCHEMA
from pgbeat.errors import Forbidden, SchemaError

if TYPE_CHECKING:
    from alembic.config import Config

#: The oldest schema that this program can use: the version before its own, so that it may be
#: installed before `pgbeat migrate` runs. (The baseline has none before it.)
OLDEST = "0001"
#: The same of beats, the web side and commands: they read columns of schedules that 0002 added.
OLDEST_OF_SCHEDULES = "0002"
#: Migrations of all processes run one at a time under this lock ("pgbeat" in ASCII).
MIGRATION_LOCK = 0x706762656174

logger = logging.getLogger("pgbeat")
# It would log every step at INFO.
logging.getLogger("alembic").setLevel(logging.WARNING)

#: Seconds to wait for a table that is in use, and seconds after which to give up.
_LOCK_TIMEOUT, _PATIENCE = 2, 60.0
#: SQLSTATEs of a lock timeout and of a deadlock.
_BUSY = {"55P03", "40P01"}
_FOLDER = Path(__file__).parent


def _config(buffer: io.StringIO | None = None) -> "Config":
    # Here, not above: beat checks the version without carrying Alembic about.
    from alembic.config import Config

    config = Config(output_buffer=buffer) if buffer else Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.set_main_option("path_separator", "os")
    return config


def known() -> list[str]:
    """Returns all versions that this code knows, such as `0001`, oldest first."""
    return sorted(path.name[:4] for path in (_FOLDER / "versions").glob("[0-9]*.py"))


def newest() -> str:
    """Returns the version that this code works with."""
    return known()[-1]


class Upgraded(NamedTuple):
    """The versions before (`None`: there was no schema) and after, and what else was done."""

    before: str | None
    after: str
    #: Objects that were made again.
    restored: Sequence[str] = ()
    #: Tables of kombu's SQLAlchemy transport that were renamed: their old names and the new ones.
    renamed: Mapping[str, str] = MappingProxyType({})


class Installed(NamedTuple):
    """The database's schema: its version, and the oldest version whose programs may use it.

    `oldest_program` is `None` if a build before the baseline made the schema.
    """

    version: str
    oldest_program: str | None


def installed(connection: Connection) -> Installed | None:
    """Returns what the database has; `None` where pgbeat's schema is not installed."""
    table = connection.scalar(text("SELECT to_regclass(:name)"), {"name": f"{SCHEMA}.migrations"})
    if table is None:
        return None
    row = connection.execute(_INSTALLED).one_or_none()
    return None if row is None else Installed(*row)


# As JSON, because schemas of builds before the baseline don't have the column.
_INSTALLED = text(
    "SELECT version_num, to_jsonb(m) ->> 'oldest_program' FROM pgbeat.migrations m "
    "ORDER BY version_num DESC LIMIT 1"
)


def current(connection: Connection) -> str | None:
    """Returns the database's version; `None` where pgbeat's schema is not installed."""
    schema = installed(connection)
    return None if schema is None else schema.version


def check(connection: Connection, *, reads_schedules: bool = False) -> Installed:
    """Returns the database's schema if this program can use it.

    It can use its own version, those before it down to `OLDEST` (or `OLDEST_OF_SCHEDULES`), and
    newer ones that admit it. Raises `SchemaError`, which says what to do, on any other and on none.
    """
    oldest = max(OLDEST, OLDEST_OF_SCHEDULES) if reads_schedules else OLDEST
    schema = installed(connection)
    if schema is None:
        raise SchemaError("the database has no pgbeat schema", advice="run `pgbeat migrate`")
    refuse_foreign(schema)
    if schema.version < oldest:
        raise SchemaError(
            f"the database's pgbeat schema is {schema.version}, this pgbeat needs "
            f"{oldest} or newer",
            advice="run `pgbeat migrate`",
        )
    return schema


def refuse_foreign(schema: Installed) -> None:
    """Raises `SchemaError` on a schema that this program can neither use nor upgrade."""
    if schema.oldest_program is None:
        raise SchemaError(
            f"the database's pgbeat schema ({schema.version}) was made by a build before the first "
            "release and can't be upgraded",
            advice="drop the schema pgbeat and the broker's tables (kombu_…), then run `pgbeat "
            "migrate`",
        )
    if schema.oldest_program > newest():
        raise SchemaError(
            f"the database's pgbeat schema is {schema.version}, which admits programs from "
            f"{schema.oldest_program} on, and this pgbeat is {newest()}",
            advice="upgrade pgbeat",
        )


def missing(connection: Connection, version: str) -> list[str]:
    """Returns the objects that a schema of this version should have but lacks, or has otherwise.

    Says nothing of a version that this program doesn't know.
    """
    return contents.missing(connection, contents.expected(_FOLDER / "versions", version))


def warn_if_incomplete(connection: Connection) -> None:
    """Logs an error that names the objects that the schema lacks, if any."""
    version = current(connection)
    if version is not None and (lacking := missing(connection, version)):
        logger.error(
            "The schema lacks %s: run `pgbeat migrate`, which restores what it can",
            contents.listed(lacking),
        )


def upgrade(
    url: URL,
    note: Callable[[Connection, Upgraded], None] | None = None,
    rename: Mapping[str, str] = MappingProxyType({}),
) -> Upgraded:
    """Brings the database to the newest version, and makes again what is missing.

    One transaction under an advisory lock: any number may run it at once, and a failure leaves
    nothing behind. If there was something to do, `note` is called in it.
    A newer schema that admits this program stays as it is. `rename` has tables of kombu's
    SQLAlchemy transport, and what they are called here.

    Raises `SchemaError` on a newer one that doesn't, on one of a build before the baseline, on one
    that lost tables or columns, and if other transactions use a table for a minute: meanwhile it
    waits briefly and often, so that programs continue running. Also if a table can't be renamed, or
    if the database's encoding is not UTF8. Raises `Forbidden` if the role may not change the
    schema.
    """
    engine = connections.engine(url, "pgbeat migrate")
    give_up_at = time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                with engine.begin() as connection:
                    return _upgrade(connection, note, rename)
            except DBAPIError as error:
                if privileges.is_denied(error):
                    raise Forbidden(
                        f"the role may not change the schema: {connections.first_line(error)}; run "
                        "`pgbeat migrate` as the schema's owner, or, to make one, as a role that "
                        "has CREATE on the database"
                    ) from error
                if connections.sqlstate(error) not in _BUSY:
                    raise
                if time.monotonic() > give_up_at:
                    raise SchemaError(
                        f"the tables are in use, and no pause of {_LOCK_TIMEOUT} s in which "
                        f"to change them came within {_PATIENCE:g} s: "
                        f"{connections.first_line(error)}; end "
                        "long transactions (pg_stat_activity), then run `pgbeat migrate` again"
                    ) from error
                time.sleep(random.uniform(0.1, 0.5))  # noqa: S311
    finally:
        engine.dispose()


def _upgrade(
    connection: Connection,
    note: Callable[[Connection, Upgraded], None] | None,
    rename: Mapping[str, str],
) -> Upgraded:
    connections.configure_transaction(connection, connections.UNLIMITED)
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    # Running programs queue up behind a lock that this waits for.
    connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'"))
    schema = installed(connection)
    before = None if schema is None else schema.version
    _require_unicode(connection)
    if schema is not None:
        refuse_foreign(schema)
        if schema.version > newest():
            return Upgraded(schema.version, schema.version)
    renamed = {old: new for old, new in rename.items() if _rename(connection, old, new)}
    _run_migrations(connection)
    restored: Sequence[str] = ()
    if schema is not None:
        wanted = contents.expected(_FOLDER / "versions", newest())
        restored = contents.restore(connection, wanted, lambda: _run_migrations(connection))
        restored = [*restored, *_advance_sequences(connection)]
    upgraded = Upgraded(before, newest(), restored, renamed)
    if note is not None and (restored or renamed or before != newest()):
        note(connection, upgraded)
    return upgraded


def _advance_sequences(connection: Connection) -> list[str]:
    """Advances sequences that would give ids again; returns what it did.

    Logical replication copies rows, but no sequences.
    """
    return [
        f"value of sequence {sequence.name}"
        for sequence in connection.execute(_SEQUENCES).all()
        if connection.exec_driver_sql(sequence.command.replace("%", "%%")).first() is not None
    ]


def _require_unicode(connection: Connection) -> None:
    """Raises `SchemaError` on a database that can't keep every text and JSON value."""
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise SchemaError(
            f"the database's encoding is {encoding}, pgbeat needs UTF8",
            advice="make another with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )


def _rename(connection: Connection, old: str, new: str) -> bool:
    """Renames a table of kombu's SQLAlchemy transport; returns false if that was done before."""
    there = connection.execute(_TABLES, {"old": old, "new": new}).one()
    if (there.old is None and there.new is not None) or old == new:
        return False
    if there.old is None:
        raise SchemaError(f"there is no table {old!r} to rename")
    if there.new is not None:
        raise SchemaError(
            f"table {old!r} can't be renamed to {new}: there is a table of that name",
            advice=f"drop {new} if nothing uses it",
        )
    if there.is_adopted:
        raise SchemaError(
            f"table {old!r} was changed by a build of pgbeat before the first release",
            advice="see UPGRADING.md",
        )
    connection.exec_driver_sql(there.command.replace("%", "%%"))
    return True


_TABLES, _SEQUENCES = text(sql.load("rename.sql")), text(sql.load("sequences.sql"))


def _run_migrations(connection: Connection) -> None:
    from alembic import command

    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def script(before: str | None = None) -> str:
    """Returns the SQL that `upgrade` would run on a schema of that version, or without one."""
    from alembic import command

    buffer = io.StringIO()
    config = _config(buffer)
    command.upgrade(config, "head" if before is None else f"{before}:head", sql=True)
    return buffer.getvalue()


class TableLock(NamedTuple):
    """A lock that a migration takes on a table that was there before."""

    table: str
    mode: str
    #: How many rows the server estimates; what rewrites or checks them takes that long.
    rows: int


class Pending(NamedTuple):
    """A migration that has not run."""

    version: str
    about: str
    locks: Sequence[TableLock]


def pending(connection: Connection) -> list[Pending]:
    """Returns the migrations that `upgrade` would run, oldest first."""
    version = current(connection) or ""
    if version >= newest():
        return []  # without loading Alembic
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return [
        Pending(
            script.revision,
            script.doc,
            [
                TableLock(table, mode, connection.scalar(_ROWS, {"table": table}) or 0)
                for table, mode in getattr(script.module, "LOCKS", {}).items()
            ],
        )
        for script in reversed(list(scripts))
        if script.revision > version
    ]


_ROWS = text(
    "SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint "
    "FROM pg_partition_tree(to_regclass(:table)) t JOIN pg_class c ON c.oid = t.relid"
)
