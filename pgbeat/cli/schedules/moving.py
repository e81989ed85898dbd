"""`pgbeat import`: schedules from another scheduler's store."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from pgbeat.access import audit
from pgbeat.cli import Noun
from pgbeat.cli.schedules import import_views
from pgbeat.cli.schedules.files import text_of
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.failures import BadInput
from pgbeat.cli.terminal.options import FLAG, F, adding, option
from pgbeat.cli.terminal.target import Target
from pgbeat.database import connections
from pgbeat.errors import InvalidTimetable
from pgbeat.schedules import entries, sync, writes
from pgbeat.schedules import model as schedules
from pgbeat.schedules.files import plain_documents
from pgbeat.schedules.importers import (
    apscheduler,
    celery_file,
    crontab,
    databases,
    django_celery_beat,
    kubernetes,
    periodic_tasks,
    pg_cron,
    plan,
    redbeat,
    rows,
    sqlalchemy_celery_beat,
)
from pgbeat.schedules.importers.imported import Inventory
from pgbeat.schedules.importers.plan import Circumstances
from pgbeat.timetables import zone


@click.group("import", cls=Noun)
def import_command() -> None:
    """Import schedules from another scheduler's store, with their last runs.

    Nothing is written to that store. Stop the other scheduler before pgbeat's beat starts.
    """


def _zone_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        if value is not None:
            zone(value)
    except InvalidTimetable as error:
        raise click.BadParameter(str(error)) from None
    return value


def _importing(metavar: str, default: str) -> Callable[[F], F]:
    """Returns a decorator that adds the options of a store, which may have a default."""
    return _reading(option("--from", metavar, f"Its store; by default {default}.", "source"))


def _reading(source: Callable[[F], F]) -> Callable[[F], F]:
    """Returns a decorator that adds the options of all these commands after that of the store."""
    return adding(
        source,
        option(
            "--timezone",
            "ZONE",
            "The zone of times and crontabs that the store keeps without one.",
            callback=_zone_name,
        ),
        option("--overwrite", FLAG, "Replace rows of an earlier import."),
        changing,
    )


def _from_tables(default: str) -> Callable[[F], F]:
    """Returns a decorator that adds the options of a store in SQL tables."""
    schema = option("--schema", "NAME", "The schema that its tables are in.")
    return adding(_importing("URL", default), schema)


_file = click.Path(exists=True, dir_okay=False, allow_dash=True)
#: Adds the options of a file that must be named.
_from_file = _reading(
    option(
        "--from", _file, "The file; - is standard input.", "source", metavar="FILE", required=True
    )
)
_task = option("--task", "NAME", "The task that gets what each schedule runs.", required=True)


@import_command.command("celery")
@_importing("FILE", f"the app's beat_schedule_filename, {celery_file.DEFAULT}")
def celery_command(
    target: Target, /, source: str | None, timezone: str | None, **how: bool
) -> None:
    """Celery's own: the file of its PersistentScheduler.

    With the app (-A), only the last runs of its entries are imported: pgbeat's beat adds the
    entries themselves when it starts. Without the app, each entry of the file becomes a row.

    The file is a pickle. It is read without loading any code that it names.
    """
    conf = target.app.conf if target.app is not None else {}
    path = source or str(conf.get("beat_schedule_filename") or celery_file.DEFAULT)
    contents = celery_file.read(path)
    inventory = celery_file.inventory(
        path, contents, timezone=timezone, from_code=target.app is not None
    )
    if target.app is None and inventory.arrivals:
        inventory.notes.append(
            "entries of the app's code become rows, and pgbeat's beat ignores those of the code; "
            "with -A APP only their last runs are imported"
        )
    _import(target, "celery", inventory, **how)


@import_command.command("django-celery-beat")
@_from_tables("pgbeat's own database")
def django_command(target: Target, /, source: str | None, schema: str | None, **how: Any) -> None:
    """django-celery-beat: its tables in any database that SQLAlchemy can open."""
    url = source or target.settings.url
    tasks = django_celery_beat.read(url, schema)
    _import_tables(target, django_celery_beat.BEAT, url, tasks, **how)


@import_command.command("redbeat")
@_importing("URL", "the app's redbeat_redis_url, or its broker if that is Redis")
@option(
    "--prefix",
    "TEXT",
    f"How its keys begin; by default the app's redbeat_key_prefix, {redbeat.PREFIX}.",
)
def redbeat_command(
    target: Target, /, source: str | None, prefix: str | None, timezone: str | None, **how: bool
) -> None:
    """RedBeat: its keys in Redis. Needs the package redis.

    Its crontabs are in the app's time zone: give the app with -A, or --timezone.
    """
    conf = target.app.conf if target.app is not None else {}
    url = source or _redbeats(conf, "redis_url") or str(conf.get("broker_url") or "")
    if url.partition("://")[0] not in redbeat.SCHEMES:
        raise BadInput(
            "which Redis? Give it with --from, as redis://:password@host:6379/0, or the app with "
            "-A APP"
        )
    prefix = prefix or _redbeats(conf, "key_prefix") or redbeat.PREFIX
    contents = redbeat.read(url, prefix)
    app_zone = target.timezone if target.app is not None else None
    inventory = redbeat.inventory(redbeat.place(url), contents, timezone=timezone or app_zone)
    _import(target, "redbeat", inventory, **how)


def _redbeats(conf: Mapping[str, Any], name: str) -> str:
    """Returns a setting of RedBeat, whose name may be in capitals."""
    name = f"redbeat_{name}"
    return str(conf.get(name) or conf.get(name.upper()) or "")


@import_command.command("sqlalchemy-celery-beat")
@_from_tables("the app's beat_dburi, else pgbeat's own database")
def sqlalchemy_command(
    target: Target, /, source: str | None, schema: str | None, **how: Any
) -> None:
    """sqlalchemy-celery-beat: its tables in any database that SQLAlchemy can open."""
    conf = target.app.conf if target.app is not None else {}
    url = source or conf.get("beat_dburi") or target.settings.url
    tasks = sqlalchemy_celery_beat.read(url, schema or conf.get("beat_schema"))
    _import_tables(target, sqlalchemy_celery_beat.BEAT, url, tasks, **how)


@import_command.command("crontab")
@_from_file
@_task
@option("--system", FLAG, "Lines name users, as in /etc/crontab and /etc/cron.d.")
def crontab_command(
    target: Target, /, source: str, task: str, timezone: str | None, system: bool, **how: bool
) -> None:
    """Lines of a crontab. The task gets the command as its only argument.

    A line CRON_TZ=ZONE sets the zone of those below it; the others need --timezone.
    """
    label, text, _ = text_of(source)
    is_system = system or crontab.is_system(source)
    inventory = crontab.inventory(label, text, task=task, timezone=timezone, system=is_system)
    _import(target, "crontab", inventory, **how)


@import_command.command("pg-cron")
@_importing("URL", "pgbeat's own database")
@_task
def pg_cron_command(
    target: Target, /, source: str | None, task: str, timezone: str | None, **how: bool
) -> None:
    """pg_cron: its tables in Postgres.

    The task gets the command as its argument, and the keywords database and username.
    """
    url = source or target.settings.url
    contents, place = pg_cron.read(url), databases.place(url)
    inventory = pg_cron.inventory(place, contents, task=task, timezone=timezone)
    _import(target, "pg-cron", inventory, **how)


@import_command.command("kubernetes")
@_from_file
@_task
def kubernetes_command(
    target: Target, /, source: str, task: str, timezone: str | None, **how: bool
) -> None:
    """Kubernetes' CronJobs: manifests, or the output of `kubectl get cronjobs -o yaml`.

    The task gets the keywords image, command and args of the container.
    """
    label, text, is_json = text_of(source)
    documents = plain_documents(text, label, is_json=is_json)
    inventory = kubernetes.inventory(label, documents, task=task, timezone=timezone)
    _import(target, "kubernetes", inventory, **how)


def _renamed(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    """Reads the tasks of functions from `FUNC=TASK` pairs."""
    tasks = {}
    for pair in pairs:
        function, _, task = pair.partition("=")
        if ":" not in function or not task:
            example = "shop.jobs:backup=shop.tasks.backup"
            raise click.BadParameter(f"{pair!r} is not FUNC=TASK, such as {example}")
        tasks[function] = task
    return tasks


@import_command.command("apscheduler")
@_from_tables("pgbeat's own database")
@option("--table", "NAME", "Its table.", default=apscheduler.TABLE, show_default=True)
@option(
    "--rename",
    "FUNC=TASK",
    "The task of a function; by default module.function. May be given several times.",
    "tasks",
    multiple=True,
    callback=_renamed,
)
def apscheduler_command(
    target: Target,
    /,
    source: str | None,
    schema: str | None,
    table: str,
    tasks: dict[str, str],
    timezone: str | None,
    **how: bool,
) -> None:
    """APScheduler 3: the table of its SQLAlchemyJobStore.

    Its pickles are read without loading any code that they name.
    """
    url = source or target.settings.url
    jobs = apscheduler.read(url, schema, table)
    inventory = apscheduler.inventory(databases.place(url), jobs, tasks=tasks, timezone=timezone)
    _import(target, "apscheduler", inventory, **how)


def _import_tables(
    target: Target, beat: str, url: Any, tasks: Any, *, timezone: str | None, **how: bool
) -> None:
    place = databases.place(url)
    inventory = periodic_tasks.inventory(beat, place, tasks, timezone=timezone or "UTC")
    _import(target, beat, inventory, **how)


def _import(
    target: Target, name: str, inventory: Inventory, *, dry_run: bool, overwrite: bool
) -> None:
    settings, app, namespace = target.settings, target.registry, target.namespace
    wanted = [] if app is None else entries.from_app(app, entries.built_in(app))
    defaults = writes.defaults(settings)
    with target.unit(dry_run=dry_run) as unit:
        connection = unit.connection
        code = frozenset(entry.name for entry in wanted)
        candidates = rows.wanted_names(inventory)
        of_code: set[str] = set()
        if code & candidates:
            known = schedules.listing(connection, namespace=namespace)
            of_code = {*code, *(row.name for row in known if row.source == "code")}
        touched = candidates | of_code
        before = schedules.named(connection, touched, namespace=namespace, for_update=True)
        fresh: list[str] = []
        if of_code:  # as beat makes them when it starts
            name_of_app = None if app is None else entries.app_name(app, settings)
            fresh = sync.apply(connection, wanted, namespace, app=name_of_app, **defaults).added
        circumstances = Circumstances(
            now=connections.now(connection),
            timezone=target.timezone,
            rows=schedules.named(connection, candidates, namespace=namespace, for_update=True),
            code=None if app is None else code,
            fresh=frozenset(fresh),
            tasks=None if app is None else frozenset(app.tasks),
            code_timetable=None if app is None else target.timetable,
            overwrite=overwrite,
        )
        steps = plan.plan(inventory, circumstances)
        steps = rows.apply(connection, steps, namespace=namespace, **defaults)
        after = schedules.named(connection, touched, namespace=namespace)
        unit.record_all(audit.compared(before, after))
    if printing.is_json():
        printing.echo_json(import_views.as_json(name, inventory, steps, dry_run))
    else:
        import_views.show(inventory, steps, circumstances, dry_run)
    for note in inventory.notes:
        printing.note(f"{note}.")
    if any(step.action in import_views.WRITTEN for step in steps) and not dry_run:
        keeps_times = any(arrival.last_run or arrival.since for arrival in inventory.arrivals)
        again = "; import again if it ran meanwhile" * keeps_times
        stop = inventory.stop or f"stop {inventory.beat}"
        printing.note(f"{stop} before pgbeat's beat starts, or both launch these schedules{again}.")
