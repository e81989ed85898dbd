"""The tables in the schema `pgbeat`, for queries.

Their columns are recorded from the migrations, which have the constraints, indexes, partitions and
triggers as well: `python -m tests.support.schema_contents` writes `columns.txt`.
"""

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    REAL,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Identity,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

SCHEMA = "pgbeat"
metadata = MetaData(schema=SCHEMA)

JOB_STATES = (
    "pending",
    "scheduled",
    "running",
    "paused",
    "completed",
    "failed",
    "cancelled",
    "skipped",
)
JOB_SOURCES = ("user_cli", "user_api", "scheduled_task", "system")
EVENTS = (
    "job.run.completed",
    "job.run.failed",
    "job.run.skipped",
    "job.failed",
    "job.late",
    "job.recovered",
    "group.ended",
    "schedule.disabled",
    "schedule.paused",
    "schedule.stale",
    "schedule.recovered",
    "tick.failed",
    "tick.skipped",
)

#: The file has a line for each column: its table, name, type, whether it is in the primary `key`
#: or `required`, and its default or `identity`.
COLUMNS = Path(__file__).with_name("columns.txt")
_TYPES: dict[str, Any] = {
    "bool": Boolean(),
    "bytea": LargeBinary(),
    "float4": REAL(),
    "float8": Double(),
    "int2": SmallInteger(),
    "int4": Integer(),
    "int8": BigInteger(),
    "interval": Interval(),
    "json": JSON(none_as_null=True),
    "jsonb": JSONB(none_as_null=True),
    "numeric": Numeric(),
    "text": Text(),
    "timestamptz": DateTime(timezone=True),
    "uuid": UUID(),
}


def _column(name: str, kind: str, role: str, default: str = "") -> Column[Any]:
    return Column(
        name,
        _TYPES.get(kind) or ARRAY(_TYPES[kind.removeprefix("_")]),
        *[Identity()] * (default == "identity"),
        primary_key=role == "key",
        nullable=role == "-",
        server_default=text(default) if default not in ("", "identity") else None,
    )


_rows = (line.split(" ", 4) for line in COLUMNS.read_text(encoding="utf-8").splitlines())
for _name, _columns in groupby(_rows, itemgetter(0)):
    Table(_name, metadata, *(_column(*row[1:]) for row in _columns))


def _table(name: str) -> Table:
    return metadata.tables[f"{SCHEMA}.{name}"]


schedules = _table("schedules")
ticks = _table("ticks")
calendars = _table("calendars")
jobs = _table("jobs")
executions = _table("executions")
lanes = _table("lanes")
dependencies = _table("dependencies")
groups = _table("groups")
templates = _table("templates")
webhooks = _table("webhooks")
deliveries = _table("deliveries")
#: What fails, of which a webhook is told.
incidents = _table("incidents")
tokens = _table("tokens")
sign_in_links = _table("sign_in_links")
audit = _table("audit")
results = _table("results")
result_groups = _table("result_groups")
chords = _table("chords")
chord_parts = _table("chord_parts")
chord_bodies = _table("chord_bodies")
result_waits = _table("result_waits")
stacks = _table("stacks")
steps = _table("steps")
events = _table("events")
