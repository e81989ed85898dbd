"""Renews the planner's statistics of tables that have outgrown them.

After a vacuum that found a table empty, but couldn't cut off its pages, the planner expects one row
however much is written then. Any index whose condition fits looks as good as the right one, and
statements that should read a few rows read all that wait. Autovacuum would put that right a minute
later, or more if its workers are busy.
"""

import time

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections
from pgbeat.database.locks import lock_waits

#: So many rows may be read for nothing; and so many times as many as the statistics know of.
_FEW, _TIMES = 1_000, 10
#: Seconds between two analyses of a table: in one with millions of dead rows, whose statistics each
#: vacuum spoils again, it takes a third of one.
_PAUSE = 60.0

# A table that was never vacuumed, which has no pages here, is estimated by its size.
_OUTGROWN = text(
    """
    SELECT c.oid, c.relname FROM pg_class c
     WHERE (c.relnamespace = 'pgbeat'::regnamespace OR c.oid = to_regclass('kombu_message'))
       AND c.relkind = 'r' AND c.relpages > 0
       AND pg_stat_get_live_tuples(c.oid) > greatest(:few, :times * c.reltuples)
     ORDER BY c.reltuples
    """
)
_ANALYZE = text("SELECT pgbeat.analyze_table(:id)")


class PlannerStatistics:
    """Renews the statistics of tables, each at most once a minute."""

    def __init__(self) -> None:
        #: By table, when it was analyzed last (`time.monotonic()`).
        self._renewed_at: dict[int, float] = {}

    def renew(self, connection: Connection) -> list[str]:
        """Analyzes the tables that have outgrown their statistics, in a transaction each.

        `connection` is in autocommit mode. Returns the names of the tables. One that is being
        vacuumed or altered is left out: a vacuum counts its rows, too.
        """
        renewed, now = [], time.monotonic()
        for id, name in connection.execute(_OUTGROWN, {"few": _FEW, "times": _TIMES}).all():
            if now - self._renewed_at.get(id, -_PAUSE) < _PAUSE:
                continue
            try:
                with connections.transaction(connection):
                    lock_waits.briefly(connection)
                    connection.execute(_ANALYZE, {"id": id})
            except DBAPIError as error:
                if not lock_waits.is_lock_timeout(error):
                    raise
            else:
                self._renewed_at[id] = now
                renewed.append(name)
        return renewed
