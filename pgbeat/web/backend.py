"""The app, its settings and its connections to the database, which requests share."""

import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from celery import Celery
from fastapi import Depends, Request
from markupsafe import Markup
from sqlalchemy import Connection
from sqlalchemy.pool import QueuePool
from starlette.types import Scope

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.broker import own_tables
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from pgbeat.database.migrations.migrate import Installed
from pgbeat.errors import CannotPublish, InvalidJob, TooMany
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.running import stacks
from pgbeat.monitoring import beats
from pgbeat.monitoring.replica import Replica
from pgbeat.monitoring.runbook import AWAY, Trouble
from pgbeat.web.issuer import Issuer
from pgbeat.web.rates import Rates
from pgbeat.web.recent import Recent

#: How long a statement may take, and wait for a lock; none is compiled. Behind a pooler, that holds
#: only for those in a transaction: the session is others', too.
_LIMITS = {"statement_timeout": "10s", "lock_timeout": "3s", "jit": "off"}
#: Key in a connection's `info`.
_LIMITED = "pgbeat_web_limits"
#: Idle connections, further ones under load, and seconds to wait for one.
_POOL, _OVERFLOW, _POOL_WAIT = 10, 10, 5
#: How many may wait for a task's stack at a time, each with a connection.
_ASKING = 4
#: Seconds for which viewers share the overview, and requests the check of the schema.
_SHARED = 2.0


@dataclass(frozen=True)
class User:
    """A user of the application that the web app is mounted into."""

    #: Such as `alice`; `created_by` and the audit log have it as `user:alice`.
    name: str
    is_admin: bool = False
    #: Whether the user sees everything, and changes nothing. An administrator changes all the same.
    is_viewer: bool = False


#: Returns the user of a request; `None` if it is not signed in.
Authenticate = Callable[[Request], User | Awaitable[User | None] | None]


class WebBackend:
    """Serves one process; its methods are thread-safe. Raises `ConfigError`."""

    def __init__(
        self,
        celery: Celery,
        settings: Settings | None = None,
        *,
        demo: bool = False,
        authenticate: Authenticate | None = None,
    ) -> None:
        self.settings = settings or Settings.load(celery.conf)
        has_issuer = self.settings.web_jwt_key or self.settings.web_jwt_jwks
        self.issuer = Issuer(self.settings) if has_issuer else None
        celery.loader.import_default_modules()
        celery.finalize()
        self.celery = celery
        self.namespace = self.settings.namespace
        #: What the overview's viewers share; the key says of what it depends.
        self.recent = Recent[Markup](_SHARED)
        self._schema = Recent[Installed](_SHARED)
        #: Whether everyone on this machine is an administrator.
        self.is_demo = demo
        #: How many changes each user makes.
        self.rates = Rates(self.settings.web_user_rate)
        self._asking = threading.BoundedSemaphore(_ASKING)
        #: The host application's function that identifies users.
        self.authenticate = authenticate
        pool: dict[str, Any] = {
            "poolclass": QueuePool,
            "pool_size": _POOL,
            "max_overflow": _OVERFLOW,
            "pool_timeout": _POOL_WAIT,
        }
        self._engine = connections.engine(self.settings.url, "pgbeat web", **pool)
        #: Where lists are read.
        self.replica = Replica(self.settings.read_url, self.settings.read_lag, "pgbeat web", **pool)
        # An app that this one is mounted into doesn't run its lifespan.
        weakref.finalize(self, self._engine.dispose)
        weakref.finalize(self, self.replica.dispose)

    @property
    def timezone(self) -> str:
        """The time zone of schedules without one."""
        zone = self.celery.timezone
        return str(getattr(zone, "key", None) or zone)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Opens a transaction, which is committed at the end of the block."""
        with self.session() as connection, connections.transaction(connection):
            yield connection

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Opens a connection in autocommit mode.

        Raises `SchemaError` on a schema that doesn't admit this program.
        """
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            _limit(connection)
            self._schema.get(None, lambda: migrate.check(connection, reads_schedules=True))
            try:
                yield connection
            except Exception as error:
                if connections.is_lost(error):  # or read-only, as the default was at its start
                    connection.invalidate()
                raise

    @contextmanager
    def asking(self) -> Iterator[Connection]:
        """Opens a connection to ask tasks for their stacks. Raises `TooMany` if many do."""
        if not self._asking.acquire(blocking=False):
            message = f"{_ASKING} others are asking for stacks"
            raise TooMany(message, seconds=stacks.TIMEOUT, advice="try again in a moment")
        try:
            with self.session() as connection:
                yield connection
        finally:
            self._asking.release()

    @contextmanager
    def listing(self) -> Iterator[Connection]:
        """Opens a transaction for rows that may be a moment old: the replica's, if there is one."""
        with self.replica.session(self.session) as connection:
            _limit(connection)
            with connections.transaction(connection):
                yield connection

    def beats(self) -> beats.Status:
        """Returns the state of the beats, of whose sessions only the primary knows.

        Its troubles have the replica's, too.
        """
        with self.transaction() as connection:
            status = beats.status(connection, self.settings)
        trouble = self.replica.trouble
        of_replica = [Trouble(trouble, AWAY)] if trouble else []
        return status._replace(troubles=status.troubles + of_replica)

    @contextmanager
    def work(self, actor: Actor) -> Iterator[UnitOfWork]:
        """Opens a unit of work for several changes.

        Raises `Forbidden` if the actor may change nothing, and `InvalidJob` if it can't publish.
        """
        permissions.require_change(actor, "change anything")
        with self.session() as connection:
            unit = UnitOfWork(connection, self.settings, actor, app=lambda: self.celery)
            try:
                yield unit
            except CannotPublish as error:
                raise InvalidJob(f"it can't be published: {error}") from None

    @contextmanager
    def unit(self, actor: Actor) -> Iterator[UnitOfWork]:
        """Opens a unit of work for one change, which is committed at the end of the block."""
        with self.work(actor) as unit, unit.transaction():
            yield unit

    def redactor(self, actor: Actor) -> Redactor:
        """Returns what masks rows that are shown to the actor."""
        return Redactor(actor, self.settings.redact, self.celery.tasks)

    def require_broker(self, connection: Connection) -> None:
        """Raises `NotFound` if the broker is elsewhere."""
        own_tables.require_own(connection, self.settings.url, self.celery.conf)

    def dispose(self) -> None:
        """Closes the connections."""
        self._engine.dispose()
        self.replica.dispose()


def _limit(connection: Connection) -> None:
    if _LIMITED not in connection.info:
        connections.configure(connection, _LIMITS)
        connection.info[_LIMITED] = True


def root(request: Request) -> str:
    """Returns the path at which the web app is mounted, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def cookie_options(request: Request) -> dict[str, Any]:
    """Returns how cookies are set: for this app alone, and not for scripts."""
    return {
        "path": root(request) or "/",
        "secure": request.url.scheme == "https" or _is_behind_tls(request),
        "httponly": True,
        "samesite": "strict",
    }


def _is_behind_tls(request: Request) -> bool:
    """Returns whether `web_url` says so of the request's host, whose proxy may not be trusted."""
    backend: WebBackend = request.app.state.pgbeat
    url = urlsplit(backend.settings.web_url.lower())
    return url.scheme == "https" and url.netloc == request.url.netloc.lower().removesuffix(":443")


def path_below_root(scope: Scope) -> str:
    """Returns the path of a request as it is without a mount."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


async def _backend(request: Request) -> WebBackend:
    backend: WebBackend = request.app.state.pgbeat
    return backend


#: The backend, as an endpoint's parameter.
TheBackend = Annotated[WebBackend, Depends(_backend)]
