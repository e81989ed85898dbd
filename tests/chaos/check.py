"""Checks what a run has left: `python -m tests.chaos.check FOLDER`.

It needs the run's folder only: it restores the database on a server of its own, and compares it,
the journal and the list of faults with what was promised.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from celery import Celery

from pgbeat.testing.databases import TemporaryServer
from tests.chaos import promises
from tests.chaos.record import Record
from tests.support.databases import rows_of


@contextmanager
def restored(folder: Path) -> Iterator[Record]:
    """The record of a run, with its database, until the block ends.

    Raises `FileNotFoundError` if the run did not come to its end.
    """
    if not (folder / "dump.sql").exists():
        raise FileNotFoundError(f"{folder} has no dump.sql: the run must have come to its end")
    server = TemporaryServer()
    try:
        psql = (server.programs / "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", server.dsn)
        subprocess.run([*psql, "-f", folder / "dump.sql"], check=True, stdout=subprocess.DEVNULL)
        app = Celery("check", backend=f"pgbeat+{server.dsn}")
        with psycopg.connect(server.dsn, autocommit=True) as connection:

            def sql(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
                return rows_of(connection.execute(statement, parameters or None))

            yield Record(folder, sql, app)
    finally:
        server.remove()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints each promise and what breaks it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.check", description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        with restored(parser.parse_args(arguments).folder) as record:
            print(record.counts())
            found = promises.check(record)
    except FileNotFoundError as error:
        parser.error(str(error))
    for name, rows in found.items():
        print(f"{len(rows):6}  {name}")
        for row in rows:
            print(f"        {row}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
