"""Backs up the example's data."""

import gzip
import json
import os
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, Text, cast, func, select, text

from tasks import app
from tasks.store import begin, metadata


@app.task
def backup(directory: str | None = None, keep: int = 7) -> dict[str, Any]:
    """Writes all rows of the example's tables, as of one moment, as JSON lines into a gzip file.

    The file appears in `directory` (`$PGBEAT_BACKUPS`, or `./backups`) when it is complete; the
    newest `keep` files are kept. A line is `{"table": …, "row": …}`. Returns the path and each
    table's number of rows.
    """
    folder = Path(directory or os.environ.get("PGBEAT_BACKUPS") or "backups").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with begin(snapshot=True) as connection:
        moment = connection.execute(select(func.timezone("UTC", func.now()))).scalar_one()
        path = folder / f"example-{moment:%Y%m%dT%H%M%S.%fZ}.jsonl.gz"
        half = folder / f".{path.name}"
        with half.open("wb") as file:
            with gzip.open(file, "wt", encoding="utf-8") as out:
                rows = {table: _dump(connection, table, out) for table in _tables()}
            os.fsync(file.fileno())
    half.replace(path)
    stay = sorted(folder.glob("example-*.jsonl.gz"))[-max(keep, 1) :]
    # Older ones, and unfinished files of killed workers.
    old = [
        path
        for path in folder.glob("*example-*.jsonl.gz")
        if path.name.removeprefix(".") < stay[0].name
    ]
    for stale in old:
        stale.unlink(missing_ok=True)
    return {"path": str(path), "rows": rows, "removed": len(old)}


def _tables() -> list[str]:
    return [table.name for table in metadata.sorted_tables]


def _dump(connection: Connection, table: str, out: TextIO) -> int:
    """Writes a table's rows, streamed, and returns their number."""
    # The database makes the JSON, because it writes numbers and times exactly.
    query = select(cast(func.row_to_json(text("t")), Text)).select_from(text(f"example.{table} t"))
    count = 0
    for row in connection.execution_options(yield_per=1000).scalars(query):
        out.write(f'{{"table": {json.dumps(table)}, "row": {row}}}\n')
        count += 1
    return count
