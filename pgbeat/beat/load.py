"""Keeps the rollups of the load while this beat leads."""

import time
from datetime import timedelta

from celery import Celery
from sqlalchemy import Connection

from pgbeat.config import Settings
from pgbeat.monitoring import rollups
from pgbeat.monitoring.rollups import MINUTE, Route

#: Seconds that a transaction should take at most while the beat catches up, and the longest span
#: that one counts.
_AIM, _LONGEST = 0.2, timedelta(hours=4)


def route_of(app: Celery) -> Route:
    """Returns the function that says where the app's messages of a task go by default."""
    known: dict[str, str | None] = {}

    def route(task: str) -> str | None:
        if task not in known:
            try:
                known[task] = app.amqp.router.route({}, task)["queue"].name
            except Exception:  # a router of the app's own raised
                known[task] = None
        return known[task]

    return route


def keep(connection: Connection, settings: Settings, route: Route) -> None:
    """Counts all that has ended since the last time, samples the depth, deletes what is old.

    It catches up in transactions of a fraction of a second: the span that one counts grows and
    shrinks with the time that the last one took.
    """
    rollups.sample_depth(connection, settings.namespace, route)
    span, has_more = MINUTE, True
    while has_more:
        began = time.monotonic()
        has_more = rollups.advance(connection, settings.namespace, route, span)
        took = time.monotonic() - began
        if took > _AIM:
            span = max(MINUTE, span // 2 // MINUTE * MINUTE)
        elif took < _AIM / 4:
            span = min(_LONGEST, span * 2)
    rollups.prune(connection, settings.namespace)
