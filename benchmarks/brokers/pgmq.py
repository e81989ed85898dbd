"""Celery's own pairing on Postgres: how PGMQ is installed, and how kombu's transport is set up."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

#: To find out whether it is there: kombu has it since 5.7, and its extra `pgmq` the client.
MODULES = ("kombu.transport.pgmq", "pgmq")
#: All is in `options`.
URL = "pgmq://"
#: The transport's options of workers alone, the fastest that were found. With notifications, each
#: process that connects makes the queue's trigger anew: publishers that connect at once deadlock.
WORKERS: dict[str, Any] = {
    "use_notify": True,
    "wait_time_seconds": 0,
    "notify_throttle_interval_ms": 0,
}


def install(url: str) -> None:
    """Makes PGMQ's schema in a new database: the SQL that its client brings, no extension."""
    from pgmq import install_pgmq_from_sql

    with psycopg.connect(url) as connection:
        install_pgmq_from_sql(conn=connection)


def version() -> str:
    """The version of that SQL."""
    from pgmq import get_embedded_sql_version

    return str(get_embedded_sql_version())


def options(url: str) -> dict[str, Any]:
    """The transport's options, of publishers and workers."""
    place = {"port": "5432", "password": "postgres"} | conninfo_to_dict(url)  # it needs each
    return {"conn_string": make_conninfo(**place), "init_extension": False}
