"""Changes the database as one actor, in one transaction, and runs callbacks after its commit."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from pgbeat.access import audit
from pgbeat.access.actors import Actor
from pgbeat.access.audit import Audited, Author, Changed, Row
from pgbeat.broker import own_tables
from pgbeat.config import Settings
from pgbeat.database import connections, privileges
from pgbeat.errors import BrokerUnavailable, CannotPublish, ConfigError

if TYPE_CHECKING:
    from celery import Celery

    from pgbeat.broker.publishing.publisher import Publisher

logger = logging.getLogger("pgbeat.publishing")


class UnitOfWork:
    """A change that commits as a whole, with its messages and its entry in the audit log.

    Verbs such as `pgbeat.jobs.verbs.control.cancel` take an open unit. The command line, the API
    and the console each open it in one place, and only parse and show.

    `connection` is in autocommit mode, or has an open transaction that the caller must commit
    (`is_callers`). `app` is called when first needed, and returns the app that publishes the
    messages of jobs.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        actor: Actor,
        *,
        app: "Callable[[], Celery | None]" = lambda: None,
        is_callers: bool = False,
    ) -> None:
        self.connection, self.settings, self.actor = connection, settings, actor
        self.namespace = settings.namespace
        self.is_callers = is_callers
        self._app = app
        self._publisher: Publisher | None = None
        self._stack = ExitStack()
        self._is_open = self._is_dry_run = False
        self._callbacks: list[Callable[[], object]] = []

    @contextmanager
    def transaction(self, *, dry_run: bool = False) -> Iterator[Self]:
        """Opens the unit, commits at the end unless it is a `dry_run`, and makes the callbacks.

        It can be used again for the next change. A transaction of the caller's stays open. A dry
        run sends nothing to an external broker either.
        """
        self._is_dry_run = dry_run
        try:
            if self.is_callers:
                with ExitStack() as self._stack:
                    yield self
                return
            with suppress(_DryRun), ExitStack() as self._stack:
                with connections.transaction(self.connection):
                    self._is_open = True
                    yield self
                    if dry_run:
                        raise _DryRun
                self._is_open = False
                if self._publisher is not None:
                    self._publisher.clear()
                self._call_back()
        finally:
            self._is_open, self._is_dry_run, self._publisher = False, False, None
            self._callbacks.clear()

    @contextmanager
    def statement(self) -> Iterator[Self]:
        """Opens the unit for one statement, which commits by itself, and makes the callbacks.

        In a transaction of the caller's, the caller commits.
        """
        if self.is_callers:
            with self.transaction():
                yield self
            return
        try:
            with ExitStack() as self._stack:
                yield self
                self._call_back()
        finally:
            self._publisher = None
            self._callbacks.clear()

    @property
    def app(self) -> "Celery | None":
        """The app, if one was given."""
        return self._app()

    def require_app(self) -> "Celery":
        """Returns the app. Raises `CannotPublish` if none was given."""
        app = self._app()
        if app is None:
            raise CannotPublish("an app is needed to publish the messages of jobs; none was given")
        return app

    @property
    def publisher(self) -> "Publisher":
        """The publisher for the messages of jobs. Raises `CannotPublish` without an app.

        Must first be used before rows are locked: it may have to create tables and queues.
        """
        if self._publisher is None:
            from pgbeat.broker.publishing.pool import publishing  # with Celery: not for reading

            opened = self._stack.enter_context(
                publishing(self.require_app(), self.settings, sends=not self._is_dry_run)
            )
            if self.is_callers:
                _require_tables(self.connection, opened)
            elif self._is_open or opened.is_prepared:
                opened.prepare(self.connection)
            else:
                with connections.transaction(self.connection):
                    opened.prepare(self.connection)
            self._publisher = opened
        return self._publisher

    @cached_property
    def submits_as_owner(self) -> bool:
        """Whether the role of the session makes jobs by functions of the schema's owner."""
        return privileges.submits_as_owner(self.connection)

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Adds a function to call after the commit, outside of any transaction.

        If it fails, that is only logged: who got an error would do again what is committed. The
        transaction must also have notified the leading beat, which does the work then.
        """
        self._callbacks.append(callback)

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                message = connections.first_line(error)
                is_known = isinstance(error, BrokerUnavailable | SQLAlchemyError | ConfigError)
                words = "Beat must do what failed after the commit: %s"
                logger.warning(words, message, exc_info=not is_known)
                if self.connection.invalidated:
                    self.connection.rollback()  # what comes next gets a new connection

    def record(self, verb: str, before: Audited | None, after: Audited | None, **more: Any) -> None:
        """Records a row's change, as `audit.record` does."""
        if self.author is not None:
            audit.record(self.connection, self.author, verb, before, after, **more)

    def record_all(self, changes: Iterable[Changed[Row]]) -> None:
        """Records the changes of rows, as `audit.record_all` does."""
        if self.author is not None:
            audit.record_all(self.connection, self.author, changes)

    def record_action(
        self,
        verb: str,
        kind: str,
        subject: str,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Records a change that is not a row's, as `audit.record_action` does."""
        if self.author is None:
            return None
        return audit.record_action(self.connection, self.author, verb, kind, subject, before, after)

    @property
    def author(self) -> Author | None:
        """The author of changes in the audit log; `None` for programs, which are not recorded."""
        if self.actor.origin is None:
            return None
        return Author(self.namespace, self.actor.name, self.actor.origin)


def _require_tables(connection: Connection, publisher: "Publisher") -> None:
    if publisher.transactional and "pgbeat_tables" not in connection.info:
        own_tables.require(connection)
        connection.info["pgbeat_tables"] = True


class _DryRun(Exception):
    """Ends a dry run's transaction."""
