"""Finds histories whose periods the leading beat could not add or drop in time."""

from datetime import timedelta

from sqlalchemy import Connection, text

from pgbeat.monitoring.checks.server_checks import Check

#: How late a period may be before it is worth a warning.
_LATE = timedelta(days=1)

_LONGEST = text(
    """
    SELECT CASE WHEN bool_or(retention_days = 0) THEN 0 ELSE max(retention_days) END
      FROM pgbeat.namespaces
    """
)


def longest_retention(connection: Connection) -> timedelta | None:
    """Returns the longest retention that beats have noted; `None` if history is kept for ever."""
    days = connection.scalar(_LONGEST)
    return timedelta(days=days) if days else None


# Periods that should have begun: their rows go to the partition of future rows.
_MISSING = text(
    """
    SELECT format('rows since %s go to pgbeat.%s', (starts_at AT TIME ZONE 'UTC')::date, name)
      FROM pgbeat.partitions
     WHERE ends_at IS NULL AND starts_at < clock_timestamp() - :late
     ORDER BY starts_at, name
    """
)
# Periods that no namespace keeps, from the oldest.
_OVERDUE = text(
    """
    SELECT format('pgbeat.%s is %s days older than the retention', min(name),
                  floor(extract(epoch FROM clock_timestamp() - :longest - min(ends_at)) / 86400))
      FROM pgbeat.partitions
     WHERE NOT is_kept AND ends_at < clock_timestamp() - :longest - :late
     GROUP BY history ORDER BY min(ends_at), history
    """
)


def check(connection: Connection) -> Check:
    """Looks for periods that are missing now, or were to be dropped more than a day ago."""
    longest = longest_retention(connection)
    problems = list(connection.scalars(_MISSING, {"late": _LATE}))
    if longest is not None:
        problems += connection.scalars(_OVERDUE, {"late": _LATE, "longest": longest})
    if not problems:
        return Check("history", "ok", "periods are added ahead and dropped once they are old")
    return Check(
        "history",
        "warn",
        "; ".join(problems),
        "The leading beat adds and drops periods, and needs the tables for a moment: see that one "
        "leads and that no transaction that has read jobs stays open; its log says what failed, "
        "and at level debug what it waits for.",
    )
