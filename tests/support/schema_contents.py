"""Writes what the newest schema consists of: `python -m tests.support.schema_contents`."""

from pathlib import Path

from sqlalchemy import Connection, text

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.migrations import contents, migrate
from pgbeat.database.tables import COLUMNS
from pgbeat.testing.databases import TemporaryServer

_COLUMNS = text("""
    SELECT concat_ws(' ', c.relname, a.attname, t.typname,
                     CASE WHEN a.attnum = ANY (k.conkey) THEN 'key'
                          WHEN a.attnotnull THEN 'required' ELSE '-' END,
                     CASE WHEN a.attidentity <> '' THEN 'identity'
                          ELSE pg_get_expr(d.adbin, d.adrelid) END)
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_type t ON t.oid = a.atttypid
      LEFT JOIN pg_constraint k ON k.conrelid = c.oid AND k.contype = 'p'
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'pgbeat'::regnamespace AND c.relkind IN ('r', 'p')
       AND NOT c.relispartition AND c.relname <> 'migrations'
     ORDER BY c.relname COLLATE "C", a.attnum
""")


def recorded() -> Path:
    """Returns the file of the newest version's objects."""
    (folder,) = (migrate._FOLDER / "versions").glob(f"{migrate.newest()}_*/")
    return folder / contents.FILE


def lines(connection: Connection) -> str:
    """Returns the text of that file as a new database would have it."""
    connection.execute(text("SELECT pgbeat.adopt_broker()"))
    found = sorted(contents.read(connection).items())
    return "".join(f"{digest} {name}\n" for name, digest in found)


def columns(connection: Connection) -> str:
    """Returns the text of the file of columns as a new database would have it."""
    return "".join(f"{line}\n" for line in connection.scalars(_COLUMNS))


def main() -> None:
    """Writes the files from a new database on an embedded server."""
    server = TemporaryServer()
    try:
        url = postgres_url(server.dsn)
        migrate.upgrade(url)
        with connections.engine(url, "contents").connect() as connection:
            recorded().write_text(lines(connection), encoding="utf-8")
            COLUMNS.write_text(columns(connection), encoding="utf-8")
    finally:
        server.remove()


if __name__ == "__main__":
    main()
