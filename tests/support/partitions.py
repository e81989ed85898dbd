"""Gives the histories of a database partitions, as if beats had led for days."""

import re
from typing import Any

import psycopg

#: The tables of histories, and of what has not ended.
HISTORIES = ("ended_jobs", "ended_executions", "ticks")
_RANGES = """
    DO $$
    DECLARE
        first CONSTANT timestamptz := date_trunc('day', now(), 'UTC') - interval '{days} days';
    BEGIN
        ALTER TABLE pgbeat.{name} DETACH PARTITION pgbeat.{name}_kept;
        ALTER TABLE pgbeat.{name} DETACH PARTITION pgbeat.{name}_to_come;
        EXECUTE format('ALTER TABLE pgbeat.{name} ATTACH PARTITION pgbeat.{name}_kept
            FOR VALUES FROM (MINVALUE) TO (%L)', first);
        EXECUTE format('ALTER TABLE pgbeat.{name} ATTACH PARTITION pgbeat.{name}_to_come
            FOR VALUES FROM (%L) TO (MAXVALUE)', first);
        UPDATE pgbeat.partitions SET ends_at = first WHERE name = '{name}_kept';
        UPDATE pgbeat.partitions SET starts_at = first WHERE name = '{name}_to_come';
        FOR number IN 1..{days} / {step} + {ahead} LOOP
            PERFORM pgbeat.add_partition('{name}', first + number * interval '{step} days');
        END LOOP;
    END $$
"""


def make_partitions(
    connection: "psycopg.Connection[Any]", days: int, step: int = 1, ahead: int = 3
) -> None:
    """Makes partitions of `step` days for histories without rows: of the last days, and ahead."""
    for name in HISTORIES:
        connection.execute(_RANGES.format(name=name, days=days, step=step, ahead=ahead).encode())


def turn_off_autovacuum(connection: "psycopg.Connection[Any]") -> None:
    """Leaves the statistics of all tables of pgbeat as they are."""
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgbeat'::regnamespace AND relkind = 'r'"
    ).fetchall()
    for (name,) in tables:
        connection.execute(f"ALTER TABLE pgbeat.{name} SET (autovacuum_enabled = off)".encode())


def history_of(table: str) -> str:
    """Returns the name without what its partitions add: `jobs` for `ended_jobs_20261122`."""
    return re.sub(r"^(unfinished|ended|running)_|_(kept|to_come|\d{8})(_.*)?$", "", table)
