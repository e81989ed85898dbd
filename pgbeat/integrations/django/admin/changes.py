"""Changes rows for users of the admin site, by the functions that the command line uses too."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from celery import Celery
from django.contrib import messages
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.errors import CannotPublish, InvalidJob, PgbeatError, Problems
from pgbeat.integrations.django import databases, schema
from pgbeat.integrations.django.models import ADMINISTER
from pgbeat.jobs.checks.user_limits import require_call
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import mistakes
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.registry import check, condition_mistakes

#: Errors that are shown to the user.
SHOWN = (PgbeatError, DBAPIError)
#: How long a change waits for a lock.
_PATIENCE = "3s"
#: The most failures that are shown one by one.
_MOST = 5


def actor(user: Any) -> Actor:
    """Returns a user of Django's as the actor of changes, with an administrator's rights."""
    tasks = schema.settings().web_tasks
    return Actor(f"user:{user.get_username()}", is_admin=True, tasks=tasks, origin="page")


def mask(request: Any, row: Any) -> None:
    """Masks the arguments, results and errors of a row, unless the user administers the console.

    A tick says no task.
    """
    user = request.user
    asking = Actor(f"user:{user.get_username()}", is_admin=user.has_perm(ADMINISTER))
    app = databases.celery_app()
    redactor = Redactor(asking, schema.settings().redact, {} if app is None else app.tasks)
    for name, value in redactor.columns(vars(row), getattr(row, "task", None)).items():
        setattr(row, name, value)


@contextmanager
def work(request: Any) -> Iterator[UnitOfWork]:
    """Opens a unit of work for several changes by the request's user.

    It has its own connection: a change is committed though the request may fail later.
    """
    settings = schema.settings()
    engine = connections.engine(settings.url, "pgbeat admin")
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connections.configure(connection, {"lock_timeout": _PATIENCE})
        unit = UnitOfWork(connection, settings, actor(request.user), app=_loaded_app)
        try:
            yield unit
        except CannotPublish as error:
            raise InvalidJob(f"it can't be published: {error}") from None


def _loaded_app() -> Celery | None:
    """Returns the project's Celery app with all its tasks and launchers."""
    app = databases.celery_app()
    if app is not None:
        app.loader.import_default_modules()
        app.finalize()
    return app


def save_schedule(
    request: Any, name: str, values: Mapping[str, Any], *, is_new: bool, dry_run: bool
) -> Schedule:
    """Adds or changes a schedule, once its task, launcher, arguments and condition are checked.

    Returns the row. With `dry_run`, only checks. Raises `PgbeatError`.
    """
    with work(request) as unit:
        app = unit.require_app()
        problems = Problems()
        with problems.within():
            require_call(unit.actor, values.get("task"), values.get("options") or {})
        problems += condition_mistakes(unit.settings, values.get("condition_sql"))

        def change(values: dict[str, Any]) -> Schedule:
            if is_new:
                row = schedule_control.add(unit, **{"name": name, **values})
            else:
                row = schedule_control.edit(unit, name, values).after
            check(app, row)
            return row

        with unit.transaction(dry_run=dry_run):
            return mistakes.attempt(unit.connection, values, change, is_new=is_new, known=problems)


def act(
    request: Any,
    rows: Iterable[Any],
    past: str,
    verb: Callable[[UnitOfWork, Any], object],
    *,
    is_whole: bool = True,
) -> None:
    """Applies an action's verb to each row, and shows what was done and what was refused.

    Each row is changed in its own transaction, which the verb opens itself unless it `is_whole`.
    """
    done, refused = [], []
    try:
        with work(request) as unit:
            for row in rows:
                try:
                    with unit.transaction() if is_whole else nullcontext():
                        verb(unit, row)
                    done.append(str(row))
                except PgbeatError as error:
                    refused.append(str(error))
    except SHOWN as error:
        refused.append(connections.first_line(error))
    if done:
        named = ", ".join(done[:_MOST]) + (f" and {len(done) - _MOST} more" if done[_MOST:] else "")
        messages.success(request, f"{past}: {named}.")
    for message in refused[:_MOST]:
        messages.error(request, message)
    if refused[_MOST:]:
        messages.error(request, f"{len(refused) - _MOST} more were refused.")
