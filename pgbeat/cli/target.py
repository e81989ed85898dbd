"""What commands work on: the app and the database that the command line names."""

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy import Connection, Engine

from pgbeat.access import actors
from pgbeat.access.actors import Actor
from pgbeat.access.audit import Author
from pgbeat.broker.messages import BrokerTables
from pgbeat.broker.own_tables import own_tables
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.cli import TARGET
from pgbeat.cli.failures import BadInput
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections, lock_waits

if TYPE_CHECKING:
    from celery import Celery

#: Hands the `Target` to a command.
pass_target = click.decorators.pass_meta_key(TARGET, doc_description="the app and the database")

#: How long a person waits for a lock on a row, in seconds.
_PATIENCE = 5.0


class Target:
    """The app and the database, each found when first asked for.

    `url` wins over the app's setting. `name` is loaded as Celery loads `-A`; under Celery,
    `celery` is its `CLIContext` instead, and `is_named` says whether its app was named.
    """

    def __init__(
        self,
        url: str | None,
        *,
        name: str | None = None,
        workdir: Path | None = None,
        celery: Any = None,
        is_named: bool = True,
    ) -> None:
        self._url, self._name, self._celery = url, name, celery
        self._is_named = is_named
        self.no_color = bool(getattr(celery, "no_color", False))
        if workdir is not None:
            os.chdir(workdir)

    @cached_property
    def has_app(self) -> bool:
        """Whether an app was given: by -A or `APP`, by a program that starts Celery, or by the
        configuration module or the loader of Celery's default app.

        Which app is Celery's default one says nothing: a Django project's own app makes itself
        that, and so does any that calls `set_default()`.
        """
        if self._celery is None:
            return self._name is not None
        if self._is_named or os.environ.get("CELERY_LOADER"):
            return True
        loader = self._celery.app.loader
        with _silenced():
            return loader.conf is not None and bool(loader.configured)  # known once it is read

    @cached_property
    def app(self) -> "Celery | None":
        """The app, its task modules not imported yet. `None` where none was given."""
        if not self.has_app:
            return None
        if self._celery is not None:
            return self._celery.app
        from celery import Celery
        from celery.app.utils import find_app

        sys.path.insert(0, os.getcwd())
        with _loading(str(self._name)):
            app = find_app(str(self._name))
        if not isinstance(app, Celery):
            raise BadInput(
                f"-A {self._name}: it is {type(app).__name__} and no Celery app; "
                "name the module, or module:attribute"
            )
        return app

    @cached_property
    def registry(self) -> "Celery | None":
        """The app with all its tasks and launchers. `None` where none was given."""
        if self.app is not None:
            with _loading(self._name or self.app.main or "app"):
                self.app.loader.import_default_modules()
                self.app.finalize()
        return self.app

    def require_app(self, why: str) -> "Celery":
        """The app with all its tasks and launchers; a usage error, with the reason, without."""
        if self.registry is None:
            raise BadInput(f"{why}; give it with -A APP")
        return self.registry

    @cached_property
    def settings(self) -> Settings:
        """Settings of the app, or the defaults. Raises `ConfigError`."""
        if self._url is not None:
            postgres_url(self._url)
        elif self.app is None:
            with _silenced():
                conf = self._celery.app.conf if self._celery is not None else {}
                broker = conf.get("broker_url") or conf.get("pgbeat_url")
            if not broker:
                raise BadInput(
                    "which database? Give the app with -A APP, or the database with --url or "
                    "PGBEAT_URL, as postgresql://user:password@host:5432/name"
                )
            return Settings.load(conf)
        environ = dict(os.environ) | ({"PGBEAT_URL": self._url} if self._url else {})
        return Settings.load(self.app.conf if self.app is not None else {}, environ)

    @cached_property
    def timezone(self) -> str:
        """The zone of schedules that name none: the app's, or UTC."""
        app = self.app
        return "UTC" if app is None else str(getattr(app.timezone, "key", None) or app.timezone)

    def broker(self, connection: Connection) -> BrokerTables:
        """The broker's tables, by the names that the app gives them. Raises `NotFound` where they
        are not in this database."""
        return own_tables(
            connection, self.settings.url, None if self.app is None else self.app.conf
        )

    @property
    def user(self) -> Actor:
        """The user of this process, who makes changes."""
        return actors.user(origin="cli")

    @property
    def author(self) -> Author:
        """The author of changes, for the audit log."""
        return Author(self.settings.namespace, self.user.name, "cli")

    @property
    def engine(self) -> Engine:
        """How to connect. Each connection is a session of its own."""
        return connections.engine(self.settings.url, "pgbeat cli")

    @contextmanager
    def transaction(self, *, dry_run: bool = False) -> Iterator[Connection]:
        """A transaction, committed at the end unless it is a `dry_run`."""
        with self.engine.connect() as connection:
            lock_waits.limit_waiting(connection, _PATIENCE)
            yield connection
            if dry_run:
                connection.rollback()
            else:
                connection.commit()

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Opens a connection in autocommit mode, whose waits for locks are limited. Behind a pooler
        only `db.transaction` limits them: the setting would reach other clients."""
        engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connections.configure(connection, {"lock_timeout": f"{_PATIENCE:g}s"})
            yield connection

    @contextmanager
    def work(self, actor: Actor | None = None) -> Iterator[UnitOfWork]:
        """Opens a unit of work for one change after the other, by the user of this process unless
        an actor is given."""
        with self.session() as connection:
            yield UnitOfWork(
                connection, self.settings, actor or self.user, app=lambda: self.registry
            )

    @contextmanager
    def unit(self, actor: Actor | None = None, *, dry_run: bool = False) -> Iterator[UnitOfWork]:
        """Opens a unit of work for one change, which is committed unless it is a `dry_run`."""
        with self.work(actor) as unit, unit.transaction(dry_run=dry_run):
            yield unit


@contextmanager
def _silenced() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turns what importing the app raises into a sentence with the place of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(":")[0].startswith(error.name):
            raise BadInput(
                f"-A {name}: there is no module {error.name!r} in {os.getcwd()} or on Python's path"
            ) from None
        raise _unloadable(name, error) from None
    except Exception as error:
        raise _unloadable(name, error) from None


def _unloadable(name: str, error: Exception) -> BadInput:
    place = ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<")]
    if own:
        place = f" ({own[-1].filename}, line {own[-1].lineno})"
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
        error = SyntaxError(error.msg)
    if isinstance(error, AttributeError) and own and "/celery/" in own[-1].filename:
        return BadInput(f"-A {name}: there is no Celery app in it")
    return BadInput(f"-A {name} can't be loaded: {type(error).__name__}: {error}{place}")
