"""`pgbeat calendars`: which times schedules skip."""

from datetime import datetime
from typing import Any

import click
from rich.text import Text

from pgbeat.cli import Noun
from pgbeat.cli.schedules.calendar_options import clearing, given_definition, rules
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import asking, changing, remove
from pgbeat.cli.terminal.failures import SKIPPED
from pgbeat.cli.terminal.options import FLAG, in_zone, option, read_moment
from pgbeat.cli.terminal.printing import line
from pgbeat.cli.terminal.target import Target, on_named, on_target
from pgbeat.errors import AlreadyExists, InvalidCalendar
from pgbeat.schedules.calendars import control as calendar_control
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.timetables import zone
from pgbeat.views import definitions as views


@click.group("calendars", cls=Noun)
def calendars_command() -> None:
    """Look at calendars, change them, test a time.

    A calendar is a named set of dates, weekdays, holidays and hours. A schedule that names it skips
    the due times that it excludes, with the reason.
    """


@calendars_command.command("list")
@on_target
def list_command(target: Target) -> None:
    """List the calendars: their rules, and how many schedules name them."""
    with target.transaction() as connection:
        rows = calendars.listing(connection, namespace=target.namespace)
        users = calendars.users(connection, namespace=target.namespace)
    printing.show_listing(
        rows,
        json_of=lambda row: views.calendar(row, users),
        cells_of=lambda row: {
            "calendar": row.name,
            "rules": _rules(row),
            "zone": _zone(row),
            "schedules": len(users.get(row.name, ())),
        },
        names={"calendar"},
        folding={"rules"},
        none="There are no calendars; `pgbeat calendars add --help` says how to add one.",
    )


@calendars_command.command("show")
@on_named
def show_command(target: Target, name: str) -> None:
    """Show all about a calendar."""
    with target.reading() as (connection, now):
        row = calendars.get(connection, name, namespace=target.namespace)
        users = calendars.users(connection, namespace=target.namespace)
    printing.show_facts(
        row.name,
        ("rules", _rules(row)),
        ("zone", _zone(row)),
        ("definition", printing.json_line(row.definition)),
        ("schedules", printing.shortened(users.get(name, [])) or "none"),
        ("created", printing.when(row.created_at, now)),
        ("changed", printing.when(row.updated_at, now)),
        view=views.calendar(row, users),
    )


def _rules(row: Calendar) -> Text:
    try:
        return Text(line(row.rules))
    except InvalidCalendar as error:
        return Text(line(error), style="red")


def _zone(row: Calendar) -> str:
    return str(row.definition.get("timezone") or "the schedule's")


@calendars_command.command("check")
@click.argument("name")
@option(
    "--at", "TIME", "The time, in the zone if it has no offset; by default now.", type=read_moment
)
@option(
    "--timezone", "ZONE", "The schedule's zone, for a calendar without one; by default the app's."
)
@on_target
def check_command(target: Target, name: str, at: datetime | None, timezone: str | None) -> None:
    """Say whether a calendar excludes a time, and why. If it does, the exit status is 3."""
    with target.reading() as (connection, now):
        row = calendars.get(connection, name, namespace=target.namespace)
    local = row.rules.zone or zone(timezone or target.timezone)
    moment = (now if at is None else in_zone(at, local, "--at")).astimezone(local)
    answer = views.calendar_check(row, moment, local.key)
    reason = answer["reason"]
    verdict = "not excluded." if reason is None else f"excluded: {line(reason)}"
    printing.result(answer, f"{moment:%a %Y-%m-%d %H:%M:%S %Z} is {verdict}")
    if reason is not None:
        raise click.exceptions.Exit(SKIPPED)


@calendars_command.command("add")
@click.argument("name")
@rules
@option("--if-not-exists", FLAG, "Leave an existing one as it is.")
@changing
def add_command(
    target: Target, /, name: str, if_not_exists: bool, dry_run: bool, **options: Any
) -> None:
    """Add a calendar: a name, and what it excludes."""
    definition = given_definition(options, {})
    if definition is None:
        raise click.UsageError("what does it exclude? Give at least one option (see --help)")
    try:
        with target.unit(dry_run=dry_run) as unit:
            row = calendar_control.add(unit, name, definition)
        message = f"{'Would add' if dry_run else 'Added'} calendar {name!r}: {row.rules}."
    except AlreadyExists:
        if not if_not_exists:
            raise
        with target.transaction() as connection:
            row = calendars.get(connection, name, namespace=target.namespace)
        message = f"Calendar {name!r} exists already; it is left as it is."
    printing.result(_json_now(target, row), message)


@calendars_command.command("update")
@click.argument("name")
@rules
@clearing
@changing
def update_command(target: Target, /, name: str, dry_run: bool, **options: Any) -> None:
    """Change a calendar. Other rules stay; --file replaces all."""
    with target.unit(dry_run=dry_run) as unit:
        row = calendars.get(unit.connection, name, namespace=unit.namespace, for_update=True)
        definition = given_definition(options, row.definition)
        if definition is None:
            raise click.UsageError("nothing to change; give at least one option (see --help)")
        message = f"Calendar {name!r} is like that already."
        if definition != row.definition:
            row = calendar_control.edit(unit, name, definition)
            message = f"{'Would change' if dry_run else 'Changed'} calendar {name!r}: {row.rules}."
    printing.result(_json_now(target, row), message)


def _json_now(target: Target, row: Calendar) -> dict[str, Any]:
    """Returns a calendar that a command wrote, with the schedules that name it."""
    with target.transaction() as connection:
        return views.calendar(row, calendars.users(connection, namespace=row.namespace))


@calendars_command.command("remove")
@click.argument("name")
@asking
def remove_command(target: Target, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a calendar that no schedule names."""
    remove(target, "calendar", name, calendar_control.remove, yes=yes, dry_run=dry_run)
