"""`pgbeat import`: schedules from another beat's store."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import click

from pgbeat.access import audit
from pgbeat.cli import Noun
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.failures import BadInput
from pgbeat.cli.terminal.options import FLAG, F, adding, option
from pgbeat.cli.terminal.printing import Cell, counted, line, when
from pgbeat.cli.terminal.tables import glued
from pgbeat.cli.terminal.target import Target
from pgbeat.database import connections
from pgbeat.errors import InvalidTimetable
from pgbeat.schedules import entries, sync, writes
from pgbeat.schedules import model as schedules
from pgbeat.schedules.importers import (
    celery_file,
    databases,
    django_celery_beat,
    periodic_tasks,
    plan,
    redbeat,
    rows,
    sqlalchemy_celery_beat,
)
from pgbeat.schedules.importers.imported import Inventory
from pgbeat.schedules.importers.plan import Action, Circumstances, ImportStep
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import zone


@click.group("import", cls=Noun)
def import_command() -> None:
    """Import schedules from another beat's store, with their last runs.

    Nothing is written to that store. Stop the other beat before pgbeat's starts.
    """


def _zone_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        if value is not None:
            zone(value)
    except InvalidTimetable as error:
        raise click.BadParameter(str(error)) from None
    return value


def _importing(metavar: str, default: str) -> Callable[[F], F]:
    """Returns a decorator that adds the options of all these commands."""
    return adding(
        option("--from", metavar, f"Its store; by default {default}.", "source"),
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
        printing.echo_json(_json(name, inventory, steps, dry_run))
    else:
        _show(inventory, steps, circumstances, dry_run)
    for note in inventory.notes:
        printing.note(f"{note}.")
    if any(step.action in _WRITTEN for step in steps) and not dry_run:
        printing.note(
            f"stop {inventory.beat} before pgbeat's beat starts, or both launch these schedules; "
            "import again if it ran meanwhile."
        )


_WRITTEN = {
    Action.ADD: ("Added", "Would add"),
    Action.REPLACE: ("Replaced", "Would replace"),
    Action.CARRY_OVER: ("Carried the last run over to", "Would carry the last run over to"),
}
_LEFT = {Action.CONFLICT: "Left as they are", Action.REFUSE: "Not imported"}


def _show(inventory: Inventory, steps: list[ImportStep], now: Circumstances, dry_run: bool) -> None:
    count = Counter(step.action for step in steps)
    click.echo(f"{counted(len(steps), 'schedule')} of {inventory.beat} in {inventory.place}.")
    for action, verbs in _WRITTEN.items():
        if count[action]:
            click.echo(f"{verbs[dry_run]} {counted(count[action], 'schedule')}:")
            _table([step for step in steps if step.action == action], now)
    for action, words in _LEFT.items():
        if count[action]:
            click.echo(f"{words}:")
            left = [step for step in steps if step.action == action]
            printing.show_facts(None, *((line(step.origin), line(step.reason)) for step in left))
    if not any(count[action] for action in _WRITTEN):
        same = count[Action.NOTHING]
        here = f": {counted(same, 'schedule')} here already" if same else ""
        click.echo(f"Nothing to do{here}.")
    elif count[Action.NOTHING]:
        click.echo(f"{counted(count[Action.NOTHING], 'schedule')} here already.")


def _table(steps: list[ImportStep], now: Circumstances) -> None:
    table: list[dict[str, Cell]] = []
    for step in steps:
        cells: dict[str, Cell] = {
            "schedule": step.name,
            "timetable": glued(line(_timetable(step))),
            "last run": printing.utc(step.values.get("last_run")) or "-",
            "next": _next(step, now),
        }
        changed = [] if step.name == step.origin else [f"its name was {step.origin!r}"]
        remarks = [*changed, *step.remarks]
        table += [cells, *(dict.fromkeys(cells) | {"timetable": remark} for remark in remarks)]
    printing.show_table(table, names={"schedule", "timetable"})


def _timetable(step: ImportStep) -> str:
    values = {**(step.row._asdict() if step.row else {}), **step.values}
    blank: dict[str, Any] = dict.fromkeys(Schedule._fields)
    return printing.timetable(Schedule(**{**blank, **values}))


def _next(step: ImportStep, now: Circumstances) -> str:
    if step.values.get("disabled_reason"):
        return str(step.values["disabled_reason"])
    if "next_run" not in step.values:
        return "-"
    return when(step.values["next_run"], now.now) or "when beat starts"


def _json(
    name: str, inventory: Inventory, steps: list[ImportStep], dry_run: bool
) -> dict[str, Any]:
    return {
        "source": name,
        "from": inventory.place,
        "dry_run": dry_run,
        "schedules": [
            {
                "origin": step.origin,
                "name": step.name,
                "action": step.action.replace(" ", "_"),
                "reason": step.reason,
                "remarks": list(step.remarks),
                "values": {key: value for key, value in step.values.items() if key != "the_id"},
            }
            for step in steps
        ],
    }
