"""`pgbeat add` and `update`: what schedules are."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat import schedules
from pgbeat.cli import printing
from pgbeat.cli.options import (
    CLEARABLE,
    CLEARED,
    MOMENTS,
    TIMETABLES,
    Command,
    clearing,
    definition,
    in_zone,
)
from pgbeat.cli.switches import dry_run_option, next_line
from pgbeat.cli.target import Target, pass_target
from pgbeat.errors import AlreadyExists, ConditionError, NotFound
from pgbeat.schedules import Schedule
from pgbeat.timetables import zone

#: What can only be checked with the app.
_NEED_APP = {"task", "launcher", "args", "kwargs", "options"}
#: What the code of the app decides about the schedules that it makes.
_CODE_OWNS = {"task", "timezone", "args", "kwargs", "options", *TIMETABLES}


@click.command("add", cls=Command)
@click.argument("name")
@definition
@click.option("--if-not-exists", is_flag=True, help="Leave it as it is if it is there.")
@dry_run_option
@pass_target
def add_command(
    target: Target, /, name: str, if_not_exists: bool, dry_run: bool, **given: Any
) -> None:
    """Add a schedule: a name, a task, and when.

    With the app (-A), task, launcher and arguments are checked against what it has registered.
    Times without an offset are those of the schedule's zone, else the app's.
    """
    settings = target.settings
    values: dict[str, Any] = {
        "max_retries": settings.max_retries,
        "retry_base": timedelta(seconds=settings.retry_base),
        "retry_cap": timedelta(seconds=settings.retry_cap),
    }
    values |= {key: value for key, value in given.items() if value is not None}
    assumed = _place(target, values, None)
    check = _checker(target, values)
    condition = _try_condition(target, values)
    try:
        with target.transaction(dry_run=dry_run) as connection:
            row = schedules.add(
                connection, name, source="cli", namespace=settings.namespace, **values
            )
            check(row)
            missing = _missing(connection, row)
    except AlreadyExists:
        if not if_not_exists:
            raise
        click.echo(f"Schedule {name!r} is there already; it is left as it is.")
        return
    verb = "Would add" if dry_run else "Added"
    click.echo(f"{verb} schedule {name!r}. {next_line(target, row)}".rstrip())
    _remark(target, values, condition, assumed, missing)


@click.command("update", cls=Command)
@click.argument("name")
@definition
@clearing
@dry_run_option
@pass_target
def update_command(target: Target, /, name: str, dry_run: bool, **given: Any) -> None:
    """Change a schedule. A new timetable counts from now on.

    What says when (--cron, --every, --at …) takes the place of what said so before. Times without
    an offset are those of the schedule's zone, else the app's.
    """
    values = {
        key: value
        for key, value in given.items()
        if value is not None and not key.startswith("no_")
    }
    for option, column in CLEARABLE.items():
        if given[f"no_{option.replace('-', '_')}"]:
            if column in values:
                flag = column.replace("_", "-")
                raise click.UsageError(f"--{flag} and --no-{option} exclude each other")
            values[column] = CLEARED.get(column)
    if not values:
        raise click.UsageError("nothing to change; give at least one option (see --help)")
    if not values.keys().isdisjoint(TIMETABLES):
        values = dict.fromkeys(TIMETABLES) | values
    check = _checker(target, values)
    condition = _try_condition(target, values)
    namespace = target.settings.namespace
    with target.transaction(dry_run=dry_run) as connection:
        before = schedules.get(connection, name, for_update=True, namespace=namespace)
        assumed = _place(target, values, before.timezone)
        row = schedules.edit(connection, name, namespace=namespace, **values)
        check(row)
        missing = _missing(connection, row) if "after" in values else ""
    changes = [key for key in values if getattr(before, key) != getattr(row, key)]
    if not changes:
        click.echo(f"Schedule {name!r} is like that already.")
        return
    verb = "Would change" if dry_run else "Changed"
    click.echo(f"{verb} schedule {name!r}. {next_line(target, row)}".rstrip())
    printing.show(printing.facts([(key, _change(before, row, key)) for key in changes]))
    _remark(target, values, condition, assumed, missing)
    if row.source == "code" and _CODE_OWNS & set(changes):
        printing.note("it is made by the app's code, and beat sets it back when it starts.")


def _place(target: Target, values: dict[str, Any], timezone: str | None) -> str:
    """Makes instants of wall times, in the schedule's zone (`timezone` is what it was so far), else
    the app's; a remark where UTC had to be assumed."""
    given = {key: values[key] for key in MOMENTS if values.get(key) is not None}
    if not given:
        return ""
    name = values.get("timezone", timezone)
    local = zone(name or target.timezone)
    values |= {key: in_zone(moment, local, MOMENTS[key]) for key, moment in given.items()}
    if name or target.has_app or all(moment.tzinfo for moment in given.values()):
        return ""
    return "times without an offset are taken for UTC; with -A APP, for the app's zone."


def _missing(connection: Connection, row: Schedule) -> str:
    """That the schedule that it comes after is not there, if so: it may be added later."""
    if row.after is None:
        return ""
    try:
        schedules.get(connection, row.after, namespace=row.namespace)
    except NotFound as error:
        stop = "" if str(error).endswith("?") else "."
        return f"{error}{stop} Until it is there, nothing is launched after it."
    return ""


def _change(before: Schedule, after: Schedule, key: str) -> Text:
    return Text(f"{_value(getattr(before, key))} → {_value(getattr(after, key))}")


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, timedelta):
        return printing.span(value, units=4)
    if isinstance(value, datetime):
        return f"{printing.utc(value)} UTC"
    return printing.line(value if isinstance(value, str) else json.dumps(value))


def _checker(target: Target, values: dict[str, Any]) -> Callable[[Schedule], None]:
    """Refuses a row that the app can't launch. The app is loaded here, before any row is locked."""
    from pgbeat.publisher import check_options
    from pgbeat.registry import check

    app = target.registry if _NEED_APP & set(values) else None
    return lambda row: check_options(row.options) if app is None else check(app, row)


def _try_condition(target: Target, values: dict[str, Any]) -> str:
    """How the condition, if there is a new one, stands. Refuses one that can never hold."""
    from pgbeat.registry import check_condition

    condition = values.get("condition_sql")
    if condition is None or not condition.strip():
        return ""
    try:
        with target.engine.connect() as connection:
            answer = check_condition(connection, condition, target.settings.condition_timeout)
    except ConditionError as error:
        return f"Its condition fails as things are: {error}."
    return "Its condition holds now." if answer is True else f"Its condition says no: {answer}."


def _remark(target: Target, values: dict[str, Any], condition: str, *notes: str) -> None:
    if condition:
        click.echo(condition)
    for note in filter(None, notes):
        printing.note(note)
    if _NEED_APP & set(values) and not target.has_app:
        printing.note("task and launcher are not checked; with -A APP they would be.")
