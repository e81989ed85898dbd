"""Writes what the newest schema consists of: `python -m tests.support.schema_contents`."""

from pathlib import Path

from sqlalchemy import Connection, text

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.migrations import contents, migrate
from pgbeat.testing.databases import TemporaryServer


def recorded() -> Path:
    """Returns the file of the newest version."""
    (folder,) = (migrate._FOLDER / "versions").glob(f"{migrate.newest()}_*/")
    return folder / contents.FILE


def lines(connection: Connection) -> str:
    """Returns the file's text as a new database would have it."""
    connection.execute(text("SELECT pgbeat.adopt_broker()"))
    found = sorted(contents.read(connection).items())
    return "".join(f"{digest} {name}\n" for name, digest in found)


def main() -> None:
    """Writes the file from a new database on an embedded server."""
    server = TemporaryServer()
    try:
        url = postgres_url(server.dsn)
        migrate.upgrade(url)
        with connections.engine(url, "contents").connect() as connection:
            recorded().write_text(lines(connection), encoding="utf-8")
    finally:
        server.remove()


if __name__ == "__main__":
    main()
