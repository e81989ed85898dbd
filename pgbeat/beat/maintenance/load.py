"""Keeps the rollups of the load while this beat leads."""

import time
from datetime import timedelta

from sqlalchemy import Connection

from pgbeat.config import Settings
from pgbeat.jobs.messages.queue_routes import Route
from pgbeat.monitoring.rollups import load_rollups
from pgbeat.monitoring.rollups.load_rollups import MINUTE

#: Seconds that a transaction should take at most while the beat catches up, and the longest span
#: that one counts.
_AIM, _LONGEST = 0.2, timedelta(hours=4)


def keep(connection: Connection, settings: Settings, route: Route) -> None:
    """Counts the ends since the last time, samples the depth, and deletes old rollups.

    It catches up in transactions of a fraction of a second: the span that one counts grows and
    shrinks with the time that the last one took.
    """
    load_rollups.sample_depth(connection, settings.namespace, route)
    span, has_more = MINUTE, True
    while has_more:
        began = time.monotonic()
        has_more = load_rollups.advance(connection, settings.namespace, route, span)
        took = time.monotonic() - began
        if took > _AIM:
            span = max(MINUTE, span // 2 // MINUTE * MINUTE)
        elif took < _AIM / 4:
            span = min(_LONGEST, span * 2)
    load_rollups.prune(connection, settings.namespace)
