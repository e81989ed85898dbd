"""Reads gauges: how many rows of a kind there are now, each by a short read of an index.

Kinds of which there may be a million are counted up to `MOST`, those that have ended up to `OVER`.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from pgbeat.database import sql
from pgbeat.database.tables import JOB_SOURCES, JOB_STATES
from pgbeat.jobs.rows.model import ENDED

#: Rows of a kind are counted so far.
MOST, OVER = 10_000, 1_000
#: Settings of their transaction. Where most rows are of one kind, those of another are found by an
#: index, too, and not by going through the table until there are `MOST`.
PLANS = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
#: Queues, lanes and webhooks that are looked at: the first by name.
NAMED = 100

_SCHEDULES = text(sql.load("gauges.sql", "schedules"))


def schedules(connection: Connection, namespace: str) -> dict[str, int]:
    """Returns the number of schedules by state.

    The states are `active`, `paused`, `disabled`, and `completed`: disabled for having nothing left
    to do.
    """
    rows = connection.execute(_SCHEDULES, {"namespace": namespace, "most": MOST})
    return {str(state): int(count) for state, count in rows}


_JOBS = text(sql.load("gauges.sql", "jobs"))


def jobs(connection: Connection, namespace: str) -> dict[tuple[str, str], int]:
    """Counts the newest jobs of each state by state and job source.

    Every combination is there, if only with 0.
    """
    most = [OVER if state in ENDED else MOST for state in JOB_STATES]
    values = {"namespace": namespace, "states": list(JOB_STATES), "most": most}
    numbers = {(state, source): 0 for state in JOB_STATES for source in JOB_SOURCES}
    for state, source, count in connection.execute(_JOBS, values):
        if source is not None:
            numbers[state, source] = count
    return numbers


_LAUNCHES = text(
    """
    SELECT s.name, extract(epoch FROM s.last_success)::float8
      FROM (SELECT DISTINCT label FROM pgbeat.counters
             WHERE namespace = :namespace AND metric = 'ticks') AS t
           JOIN pgbeat.schedules s ON s.namespace = :namespace AND s.name = t.label
     WHERE s.enabled AND s.paused_at IS NULL AND s.last_success IS NOT NULL
     ORDER BY s.name LIMIT :named
    """
)


def last_launches(connection: Connection, namespace: str) -> dict[str, float]:
    """Returns when schedules in service last launched, in seconds since 1970.

    Only schedules with counters of their own are there.
    """
    rows = connection.execute(_LAUNCHES, {"namespace": namespace, "named": NAMED})
    return {str(name): float(moment) for name, moment in rows}


_LANES = text(sql.load("gauges.sql", "lanes"))


def lanes(connection: Connection, namespace: str) -> Sequence[Row[Any]]:
    """Reads the slots and the waiting lines of lanes; direct executions count too."""
    values = {"namespace": namespace, "most": MOST, "named": NAMED}
    return connection.execute(_LANES, values).all()


_WEBHOOKS = text(sql.load("gauges.sql", "webhooks"))


def webhooks(connection: Connection, namespace: str) -> Sequence[Row[Any]]:
    """Reads the deliveries of webhooks that are kept, by state."""
    values = {"namespace": namespace, "most": MOST, "over": OVER, "named": NAMED}
    return connection.execute(_WEBHOOKS, values).all()


_QUEUES = text(sql.load("gauges.sql", "queues"))


def queues(connection: Connection) -> Sequence[Row[Any]]:
    """Reads the queues, except those of remote control, events and replies.

    `age` is for how many seconds the oldest message waits, over the priorities; 0 without any.
    """
    values = {"most": MOST, "named": NAMED}
    return connection.execute(_QUEUES, values).all()
