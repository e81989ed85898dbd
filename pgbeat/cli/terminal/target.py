"""The app and the database that a command works on."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy import Connection, Engine

from pgbeat.access import actors
from pgbeat.access.actors import Actor
from pgbeat.access.audit import Author
from pgbeat.access.redaction import Redactor
from pgbeat.broker import own_tables
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.cli import TARGET
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import BadInput
from pgbeat.cli.terminal.options import adding
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.errors import InvalidSchedule
from pgbeat.integrations.django import follow_apps
from pgbeat.jobs.messages import queue_routes
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.searching import search
from pgbeat.monitoring import replica
from pgbeat.monitoring.replica import Replica
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import Timetable

if TYPE_CHECKING:
    from celery import Celery

#: Passes the `Target` to a command.
pass_target = click.decorators.pass_meta_key(TARGET, doc_description="the app and the database")
#: Adds `--json` to a command, and passes it the `Target`.
on_target: Callable[[Any], Any] = adding(printing.json_option, pass_target)
#: The same for a command on the thing of a name.
on_named: Callable[[Any], Any] = adding(click.argument("name"), on_target)

#: What a command's sessions and transactions set: how long they wait for a lock on a row.
_LIMITS = {"lock_timeout": "5s", "jit": "off"}


class Target:
    """The app and the database, each loaded on first use.

    `url` wins over the app's setting. The app is `name`, loaded as Celery loads `-A`; as one of
    Celery's commands, it is the one of its `CLIContext` `celery`, and `is_named` says whether the
    user named it.
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
        """Whether an app was given.

        By -A or `APP`, by a program that starts Celery, or by the configuration module or the
        loader of Celery's default app. Which app is the default one doesn't tell: any becomes it by
        `set_default()`, as Django projects' apps do.
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
        """The app, without its task modules; `None` if none was given."""
        if not self.has_app:
            return None
        if self._celery is not None:
            return self._celery.app
        from celery import Celery
        from celery.app.utils import find_app

        follow_apps()
        sys.path.insert(0, os.getcwd())
        if not self._name:
            raise BadInput("-A is empty; name the app's module, or module:attribute")
        with _loading(self._name):
            app = find_app(self._name)
        if not isinstance(app, Celery):
            raise BadInput(
                f"-A {self._name} is not a Celery app ({type(app).__name__}); "
                "name the module, or module:attribute"
            )
        read_settings(app, self._name)
        return app

    @cached_property
    def registry(self) -> "Celery | None":
        """The app with all its tasks and launchers; `None` if none was given."""
        if self.app is not None:
            with _loading(self._name or self.app.main or "app"):
                self.app.loader.import_default_modules()
                self.app.finalize()
        return self.app

    def require_app(self, why: str) -> "Celery":
        """Returns the app with all its tasks and launchers.

        Raises `BadInput`, which says why it is needed, if none was given.
        """
        if self.registry is None:
            raise BadInput(f"{why}; give it with -A APP")
        return self.registry

    @cached_property
    def settings(self) -> Settings:
        """The settings of the app, or the defaults. Raises `ConfigError`."""
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
        settings = Settings.load(self.app.conf if self.app is not None else {}, environ)
        # The replica is another database's, if the user names one.
        is_named = self._url not in (None, os.environ.get("PGBEAT_URL"))
        return replace(settings, read_url=None) if is_named else settings

    @property
    def namespace(self) -> str:
        """The namespace of the app."""
        return self.settings.namespace

    def note_zone(self, row: Schedule) -> None:
        """Prints a remark if the zone of a schedule is unknown: the app's, which was not given."""
        if row.timezone is None and not self.has_app:
            printing.note(
                "it names no time zone and takes the app's; without -A APP, UTC is assumed."
            )

    @cached_property
    def timezone(self) -> str:
        """The zone of schedules that name none: the app's, or UTC."""
        app = self.app
        return "UTC" if app is None else str(getattr(app.timezone, "key", None) or app.timezone)

    def timetable(self, row: Schedule) -> Timetable:
        """Returns a schedule's timetable.

        Raises `InvalidSchedule` if it is in the code of an app that was not given.
        """
        timetable = row.timetable(self.timezone)
        if timetable is not None:
            return timetable
        app = self.registry
        if app is None:
            raise InvalidSchedule("its timetable is in the app's code; give the app with -A APP")
        from pgbeat.schedules import entries

        return entries.code_timetable(app, row, entries.built_in(app))

    def redactor(self, actor: Actor) -> Redactor:
        """Returns the masks of rows that are shown to the actor.

        For others than administrators, that loads the app's tasks, which may have rules.
        """
        app = None if actor.is_admin else self.registry
        return Redactor(actor, self.settings.redact, {} if app is None else app.tasks)

    def visible(self, actor: Actor, which: Filter) -> Filter:
        """Returns the filter, limited to jobs that the actor may see and search.

        Raises `Forbidden`.
        """
        if which.queue is not None and self.registry is not None:
            which = queue_routes.routed(which, self.registry)
        return search.visible(actor, self.redactor(actor), which)

    def require_broker(self, connection: Connection) -> None:
        """Raises `NotFound` if the broker's tables are not in this database."""
        conf = None if self.app is None else self.app.conf
        own_tables.require_own(connection, self.settings.url, conf)

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
        """The engine, which opens a new session for each connection."""
        return connections.engine(self.settings.url, "pgbeat cli")

    @contextmanager
    def transaction(self, *, dry_run: bool = False) -> Iterator[Connection]:
        """Opens a transaction, which is committed unless it is a `dry_run`."""
        with self.engine.connect() as connection:
            connections.configure_transaction(connection, _LIMITS)
            yield connection
            if dry_run:
                connection.rollback()
            else:
                connection.commit()

    @contextmanager
    def reading(self) -> Iterator[tuple[Connection, datetime]]:
        """Opens a transaction that changes nothing; yields its connection and its time."""
        with self.transaction(dry_run=True) as connection:
            yield connection, connections.now(connection)

    @cached_property
    def replica(self) -> Replica:
        """The replica, or else the primary."""
        return Replica(self.settings.read_url, self.settings.read_lag, "pgbeat cli")

    @contextmanager
    def listing(self) -> Iterator[tuple[Connection, datetime]]:
        """Opens a transaction for rows that may be a moment old: the replica's, if there is one."""
        with self.replica.session(self.session) as connection:
            with connections.transaction(connection):
                connections.configure_transaction(connection, _LIMITS)
                yield connection, connections.now(connection)
            if (lag := replica.behind(connection) or 0) >= 1:
                printing.note(f"this was read from a replica that is {lag:.0f} s behind")

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Opens a connection in autocommit mode that waits for locks for a limited time.

        Behind a pooler only in transactions: the settings would reach other clients.
        """
        engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connections.configure(connection, _LIMITS)
            yield connection

    @contextmanager
    def work(self, actor: Actor | None = None) -> Iterator[UnitOfWork]:
        """Opens a unit of work for several changes, each in its own transaction.

        They are made by the actor, or else by the user of this process. Raises `SchemaError` on a
        schema that doesn't admit this program.
        """
        from pgbeat.database.migrations import migrate

        with self.session() as connection:
            migrate.check(connection, reads_schedules=True)
            yield UnitOfWork(
                connection, self.settings, actor or self.user, app=lambda: self.registry
            )

    @contextmanager
    def unit(self, actor: Actor | None = None, *, dry_run: bool = False) -> Iterator[UnitOfWork]:
        """Opens a unit of work for one change, committed unless it is a `dry_run`."""
        with self.work(actor) as unit, unit.transaction(dry_run=dry_run):
            yield unit


@contextmanager
def _silenced() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turns an error in importing the app into a sentence that says where it happened."""
    try:
        yield
    except ModuleNotFoundError as error:
        module, colon, attribute = name.partition(":")
        if colon and str(error.name).startswith(f"{module}:"):  # Celery tries that as a module, too
            raise BadInput(f"-A {name}: module {module!r} has no {attribute!r}") from None
        if error.name is not None and module.startswith(error.name):
            raise BadInput(
                f"-A {name}: there is no module {error.name!r} in {os.getcwd()} or on Python's path"
            ) from None
        raise _unloadable(name, error) from None
    except Exception as error:
        raise _unloadable(name, error) from None


def read_settings(app: "Celery", name: str) -> None:
    """Reads an app's settings; raises `BadInput` if they can't be read."""
    with _loading(name):
        app.conf.get("broker_url")


def _unloadable(name: str, error: Exception) -> BadInput:
    place = ""
    frames = traceback.extract_tb(error.__traceback__)
    real_frames = [frame for frame in frames if not frame.filename.startswith("<")]
    if real_frames:
        place = f" ({real_frames[-1].filename}, line {real_frames[-1].lineno})"
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
        error = SyntaxError(error.msg)
    if isinstance(error, AttributeError) and real_frames and "/celery/" in real_frames[-1].filename:
        return BadInput(f"-A {name}: there is no Celery app in it")
    return BadInput(f"-A {name} can't be loaded: {type(error).__name__}: {error}{place}")
