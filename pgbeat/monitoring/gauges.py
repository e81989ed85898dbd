"""Reads gauges: how many rows of a kind there are now, each by a short read of an index.

Kinds of which there may be a million are counted up to `MOST`, those that have ended up to `OVER`.
"""

from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.tables import JOB_SOURCES, JOB_STATES
from pgbeat.jobs.model import ENDED

#: Rows of a kind are counted so far.
MOST, OVER = 10_000, 1_000
#: Queues, lanes and webhooks that are looked at: the first by name.
NAMED = 100

_SCHEDULES = text(
    """
    SELECT 'active', (SELECT count(*) FROM (
               SELECT FROM pgbeat.schedules WHERE namespace = :namespace AND enabled
                  AND paused_at IS NULL LIMIT :most) AS a)
     UNION ALL
    SELECT 'paused', (SELECT count(*) FROM (
               SELECT FROM pgbeat.schedules WHERE namespace = :namespace AND enabled
                  AND paused_at IS NOT NULL LIMIT :most) AS p)
     UNION ALL
    SELECT k.state, count(d.state) FROM (VALUES ('disabled'), ('completed')) AS k (state)
      LEFT JOIN (
           SELECT CASE WHEN completed_at IS NOT NULL THEN 'completed'
                       ELSE 'disabled' END AS state
             FROM pgbeat.schedules WHERE namespace = :namespace AND NOT enabled LIMIT :most) AS d
        ON d.state = k.state
     GROUP BY 1
    """
)


def schedules(connection: Connection, namespace: str) -> dict[str, int]:
    """Returns the number of schedules by state.

    The states are `active`, `paused`, `disabled`, and `completed`: disabled for having nothing left
    to do.
    """
    rows = connection.execute(_SCHEDULES, {"namespace": namespace, "most": MOST})
    return {str(state): int(count) for state, count in rows}


_JOBS = text(
    """
    SELECT s.state, found.job_source, count(found.job_source)
      FROM unnest(CAST(:states AS text[]), CAST(:most AS integer[])) AS s (state, most)
           LEFT JOIN LATERAL (
               SELECT j.job_source FROM pgbeat.jobs j
                WHERE j.namespace = :namespace AND j.state = s.state
                ORDER BY j.created_at DESC, j.id DESC LIMIT s.most) AS found ON true
     GROUP BY 1, 2
    """
)


def jobs(connection: Connection, namespace: str) -> dict[tuple[str, str], int]:
    """Counts the newest jobs of each state by state and job source.

    Every combination is there, if only with 0.
    """
    most = [OVER if state in ENDED else MOST for state in JOB_STATES]
    values = {"namespace": namespace, "states": list(JOB_STATES), "most": most}
    found = {(state, source): 0 for state in JOB_STATES for source in JOB_SOURCES}
    for state, source, count in connection.execute(_JOBS, values):
        if source is not None:
            found[state, source] = count
    return found


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


_RELEASED = text(
    "SELECT value FROM pgbeat.counters WHERE namespace = '' AND metric = 'stale_claims_released' "
    "AND label = '' AND kind = ''"
)


def released(connection: Connection) -> int:
    """Counts the executions that were rescued since the database was made."""
    return int(connection.execute(_RELEASED).scalar_one_or_none() or 0)


class LaneGauges(NamedTuple):
    """The slots and the waiting line of a lane."""

    name: str
    #: Jobs that run at once; `None`: no limit, or a policy's.
    limit: int | None
    used: int
    waiting: int
    is_paused: bool


_LANES = text(
    """
    SELECT l.name, l.max_running,
           (SELECT count(*) FROM (
               SELECT FROM pgbeat.jobs j
                WHERE j.namespace = l.namespace AND j.lane = l.name AND j.dispatched_at IS NOT NULL
                  AND j.state IN ('pending', 'scheduled', 'running') LIMIT :most) AS u)
           + (SELECT count(*) FROM pgbeat.reservations r
               WHERE r.namespace = l.namespace AND r.lane = l.name AND r.started_at IS NOT NULL),
           (SELECT count(*) FROM (
               SELECT FROM pgbeat.jobs j
                WHERE j.namespace = l.namespace AND j.lane = l.name AND j.dispatched_at IS NULL
                  AND j.state = 'pending' AND NOT j.is_blocked LIMIT :most) AS w)
           + (SELECT count(*) FROM pgbeat.reservations r
               WHERE r.namespace = l.namespace AND r.lane = l.name AND r.started_at IS NULL),
           l.paused_at IS NOT NULL
      FROM (SELECT * FROM pgbeat.lanes WHERE namespace = :namespace
             ORDER BY name LIMIT :named) AS l
    """
)


def lanes(connection: Connection, namespace: str) -> list[LaneGauges]:
    """Reads the lanes; direct executions count too."""
    values = {"namespace": namespace, "most": MOST, "named": NAMED}
    return [LaneGauges(*row) for row in connection.execute(_LANES, values)]


class WebhookGauges(NamedTuple):
    """The deliveries of a webhook that are kept, by state."""

    name: str
    is_enabled: bool
    pending: int
    delivered: int
    failed: int


_WEBHOOKS = text(
    """
    SELECT w.name, w.enabled, p.pending, least(t.total - p.pending - p.failed, :over), p.failed
      FROM (SELECT * FROM pgbeat.webhooks
             WHERE namespace = :namespace AND schedule_id IS NULL
             ORDER BY name LIMIT :named) AS w
           CROSS JOIN LATERAL (
               SELECT (SELECT count(*) FROM (
                          SELECT FROM pgbeat.deliveries
                           WHERE webhook_id = w.id AND state = 'pending' LIMIT :most) AS d
                      ) AS pending,
                      (SELECT count(*) FROM (
                          SELECT FROM pgbeat.deliveries
                           WHERE webhook_id = w.id AND state = 'failed' LIMIT :most) AS d
                      ) AS failed OFFSET 0) AS p  -- counted once, however often it is named
           CROSS JOIN LATERAL (
               SELECT count(*) AS total FROM (
                   SELECT FROM pgbeat.deliveries WHERE webhook_id = w.id
                    LIMIT :over + p.pending + p.failed) AS d) AS t
    """
)


def webhooks(connection: Connection, namespace: str) -> list[WebhookGauges]:
    """Reads the webhooks."""
    values = {"namespace": namespace, "most": MOST, "over": OVER, "named": NAMED}
    return [WebhookGauges(*row) for row in connection.execute(_WEBHOOKS, values)]


class QueueGauges(NamedTuple):
    """The messages and consumers of a queue."""

    name: str
    waiting: int
    delayed: int
    claimed: int
    dead: int
    consumers: int
    #: Seconds for which the oldest message waits, over the priorities; 0 without any.
    age: float
    is_paused: bool


_QUEUES = text(sql.load("gauges.sql", "queues"))


def queues(connection: Connection) -> list[QueueGauges]:
    """Reads the queues, except those of remote control, events and replies."""
    values = {"most": MOST, "named": NAMED}
    return [QueueGauges(*row) for row in connection.execute(_QUEUES, values)]
