"""What requests work with: the app, its settings, and connections to the database."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

from celery import Celery
from fastapi import Depends, Request
from sqlalchemy import Connection
from sqlalchemy.pool import QueuePool

from pgbeat.access.actors import Actor
from pgbeat.broker.messages import BrokerTables
from pgbeat.broker.own_tables import own_tables
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import ConfigError, InvalidJob
from pgbeat.web.issuer import Issuer

#: What a request may take of the database's time, and wait for others' locks, in milliseconds.
_PATIENCE, _WAIT = 10_000, 3_000
#: Connections that are kept, those that may come on top of them, and seconds to wait for one.
_KEPT, _MORE, _QUEUE = 5, 15, 5


class Backend:
    """One for a process. Its methods may be called by any thread. Raises `ConfigError`."""

    def __init__(
        self, celery: Celery, settings: Settings | None = None, *, demo: bool = False
    ) -> None:
        self.settings = settings or Settings.load(celery.conf)
        #: Whose JWTs are accepted.
        has_issuer = self.settings.web_jwt_key or self.settings.web_jwt_jwks
        self.issuer = Issuer(self.settings) if has_issuer else None
        celery.loader.import_default_modules()
        celery.finalize()
        self.celery = celery
        self.namespace = self.settings.namespace
        #: Whether anybody on this machine may do everything.
        self.is_demo = demo
        limits = f"-c statement_timeout={_PATIENCE} -c lock_timeout={_WAIT}"
        given = self.settings.url.query.get("options", "")
        self._engine = connections.engine(
            self.settings.url.difference_update_query(["options"]),
            "pgbeat web",
            connect_args={"options": f"{limits} {given if isinstance(given, str) else ''}".strip()},
            poolclass=QueuePool,
            pool_size=_KEPT,
            max_overflow=_MORE,
            pool_timeout=_QUEUE,
        )
        # Mounted into another app, nobody tells that it is over.
        weakref.finalize(self, self._engine.dispose)

    @property
    def timezone(self) -> str:
        """The zone of schedules that name none."""
        zone = self.celery.timezone
        return str(getattr(zone, "key", None) or zone)

    @property
    def schedule_defaults(self) -> dict[str, Any]:
        """What a new schedule has, unless it says otherwise."""
        s = self.settings
        return {
            "max_retries": s.max_retries,
            "retry_base": timedelta(seconds=s.retry_base),
            "retry_cap": timedelta(seconds=s.retry_cap),
        }

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back when the block raises."""
        with self._engine.begin() as connection:
            yield connection

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """A connection in autocommit mode."""
        with self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def work(self, actor: Actor) -> Iterator[UnitOfWork]:
        """Opens a unit of work for one change after the other.

        Raises `InvalidJob` for what Celery can't publish.
        """
        with self.session() as connection:
            unit = UnitOfWork(connection, self.settings, actor, app=lambda: self.celery)
            try:
                yield unit
            except ConfigError as error:
                raise InvalidJob(f"it can't be published: {error}") from None

    @contextmanager
    def unit(self, actor: Actor) -> Iterator[UnitOfWork]:
        """Opens a unit of work for one change, committed at the end. Raises as `work`."""
        with self.work(actor) as unit, unit.transaction():
            yield unit

    def tables(self, connection: Connection) -> BrokerTables:
        """The broker's tables. Raises `NotFound` where the broker is elsewhere."""
        return own_tables(connection, self.settings.url, self.celery.conf)

    def dispose(self) -> None:
        """Closes the connections."""
        self._engine.dispose()


def _backend(request: Request) -> Backend:
    found: Backend = request.app.state.pgbeat
    return found


#: The backend, as an endpoint's parameter.
TheBackend = Annotated[Backend, Depends(_backend)]
