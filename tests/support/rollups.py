"""Rollups of ended jobs, counted as the beat that leads counts them, and what is read from them."""

from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection

from pgbeat.beat.maintenance import load as keeper
from pgbeat.config import Settings
from pgbeat.monitoring.rollups import errors, load
from tests.support.rows import Sql


def route(task: str) -> str | None:
    """Returns the queue of a task that this app knows."""
    return None if task == "elsewhere" else "celery"


class Rollups:
    def __init__(self, connection: Connection, settings: Settings, sql: Sql) -> None:
        self.connection, self.settings, self.sql = connection, settings, sql
        self.load = partial(load.load, connection)
        self.errors = partial(errors.errors, connection)

    @property
    def minute(self) -> datetime:
        [(moment,)] = self.sql("SELECT date_trunc('minute', now())")
        found: datetime = moment
        return found.astimezone(UTC)

    def keep(self, connection: Connection | None = None) -> None:
        """Counts what has ended."""
        keeper.keep(connection or self.connection, self.settings, route)
