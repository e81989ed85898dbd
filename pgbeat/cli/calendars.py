"""`pgbeat calendars`: which times schedules leave out."""

import json
from datetime import UTC, datetime, tzinfo
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgbeat.cli import Noun, printing
from pgbeat.cli.asking import asking, dry_run_option, sure
from pgbeat.cli.calendar_options import clearing, given_definition, rules
from pgbeat.cli.failures import SKIPPED
from pgbeat.cli.printing import line
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.errors import AlreadyExists, InvalidCalendar
from pgbeat.schedules import calendar_control, calendars
from pgbeat.schedules.calendars import Calendar
from pgbeat.timetables import zone


@click.group("calendars", cls=Noun)
def calendars_command() -> None:
    """Look at calendars, change them, ask them.

    A calendar is a named set of dates, weekdays, holidays and hours. Where it excludes a due time
    of a schedule that names it, that is skipped, with the reason.
    """


# -- looked at


@calendars_command.command("list")
@json_option
@pass_target
def list_command(target: Target, as_json: bool) -> None:
    """List the calendars: their rules, and how many schedules name them."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        rows = calendars.listing(connection, namespace=namespace)
        users = calendars.users(connection, namespace=namespace)
    printing.listing(
        rows, as_json=as_json, json_of=lambda row: _json(row, users),
        table_of=lambda: _table(rows, users),
        none="There are no calendars; `pgbeat calendars add --help` says how to add one.",
    )  # fmt: skip


def _table(rows: list[Calendar], users: dict[str, list[str]]) -> Table:
    columns = ("calendar", "rules", "zone", "schedules")
    table = printing.table(*columns, folding={"rules"}, numbers={"schedules"})
    for row in rows:
        used = len(users.get(row.name, ()))
        table.add_row(line(row.name), _rules(row), _zone(row), str(used))
    return table


@calendars_command.command("show")
@click.argument("name")
@json_option
@pass_target
def show_command(target: Target, name: str, as_json: bool) -> None:
    """Show all about a calendar."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        now = connections.now(connection)
        row = calendars.get(connection, name, namespace=namespace)
        users = calendars.users(connection, namespace=namespace)
    if as_json:
        printing.echo_json(_json(row, users))
        return
    click.secho(line(row.name), bold=True)
    printing.show(
        printing.facts(
            [
                ("rules", _rules(row)),
                ("zone", _zone(row)),
                ("definition", json.dumps(row.definition, ensure_ascii=False)),
                ("schedules", printing.named(users.get(name, []))),
                ("created", printing.when(row.created_at, now)),
                ("changed", printing.when(row.updated_at, now)),
            ]
        )
    )


def _json(row: Calendar, users: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "namespace": row.namespace, "name": row.name, "definition": row.definition,
        "created_at": row.created_at, "updated_at": row.updated_at,
        "schedules": users.get(row.name, []),
    }  # fmt: skip


def _rules(row: Calendar) -> Text:
    try:
        return Text(line(row.rules))
    except InvalidCalendar as error:
        return Text(line(error), style="red")


def _zone(row: Calendar) -> str:
    named = row.definition.get("timezone")
    return "the schedule's" if named is None else line(named)


# -- asked


@calendars_command.command("check")
@click.argument("name")
@click.option("--at", metavar="TIME", help="ISO 8601, in the zone if it has no offset; now.")
@click.option("--timezone", metavar="ZONE",
              help="The schedule's zone, for a calendar without one; the app's.")  # fmt: skip
@json_option
@pass_target
def check_command(
    target: Target, name: str, at: str | None, timezone: str | None, as_json: bool
) -> None:
    """Ask whether a calendar excludes a time, and why. If it does, the exit status is 3."""
    with target.transaction() as connection:
        now = connections.now(connection)
        row = calendars.get(connection, name, namespace=target.settings.namespace)
    local = row.rules.zone or zone(timezone or target.timezone)
    moment = now.astimezone(local) if at is None else _moment(at, local)
    reason = row.exclusion(moment, local.key)
    if as_json:
        answer = {
            "calendar": row.name, "utc": moment.astimezone(UTC), "local": moment.isoformat(),
            "timezone": local.key, "excluded": reason is not None, "reason": reason,
        }  # fmt: skip
        printing.echo_json(answer)
    else:
        said = "not excluded." if reason is None else f"excluded: {line(reason)}"
        click.echo(f"{moment:%a %Y-%m-%d %H:%M:%S %Z} is {said}")
    if reason is not None:
        raise click.exceptions.Exit(SKIPPED)


def _moment(text: str, local: tzinfo) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=local) if moment.tzinfo is None else moment).astimezone(local)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time; write for example '2026-12-24T09:00' or '2026-12-24T09:00Z'",
            param_hint="'--at'",
        ) from None


# -- changed


@calendars_command.command("add")
@click.argument("name")
@rules
@click.option("--if-not-exists", is_flag=True, help="Leave it as it is if it is there.")
@dry_run_option
@json_option
@pass_target
def add_command(
    target: Target, /, name: str, if_not_exists: bool, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Add a calendar: a name, and what it excludes."""
    definition = given_definition(given, {})
    if definition is None:
        raise click.UsageError("what is excluded? Give at least one option (see --help)")
    try:
        with target.unit(dry_run=dry_run) as unit:
            row = calendar_control.add(unit, name, definition)
    except AlreadyExists:
        if not if_not_exists:
            raise
        with target.transaction() as connection:
            row = calendars.get(connection, name, namespace=target.settings.namespace)
        said = f"Calendar {name!r} is there already; it is left as it is."
        printing.result(_json_now(target, row), said, as_json=as_json)
        return
    said = f"{'Would add' if dry_run else 'Added'} calendar {name!r}: {row.rules}."
    printing.result(_json_now(target, row), said, as_json=as_json)


@calendars_command.command("update")
@click.argument("name")
@rules
@clearing
@dry_run_option
@json_option
@pass_target
def update_command(
    target: Target, /, name: str, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Change a calendar. What no option names stays; --file replaces all."""
    with target.unit(dry_run=dry_run) as unit:
        before = calendars.get(unit.connection, name, namespace=unit.namespace, for_update=True)
        definition = given_definition(given, before.definition)
        if definition is None:
            raise click.UsageError("nothing to change; give at least one option (see --help)")
        row = before
        if definition != before.definition:
            row = calendar_control.edit(unit, name, definition)
    said = f"Calendar {name!r} is like that already."
    if definition != before.definition:
        said = f"{'Would change' if dry_run else 'Changed'} calendar {name!r}: {row.rules}."
    printing.result(_json_now(target, row), said, as_json=as_json)


def _json_now(target: Target, row: Calendar) -> dict[str, Any]:
    """A calendar that a command wrote, with the schedules that name it."""
    with target.transaction() as connection:
        return _json(row, calendars.users(connection, namespace=row.namespace))


@calendars_command.command("remove")
@click.argument("name")
@asking
@json_option
@pass_target
def remove_command(target: Target, name: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a calendar that no schedule names."""
    with target.unit(dry_run=True) as unit:
        calendar_control.remove(unit, name)
    is_removed = sure(
        "remove", "removed", f"calendar {name!r}", yes=yes, dry_run=dry_run, as_json=as_json
    )
    if is_removed:
        with target.unit() as unit:
            calendar_control.remove(unit, name)
    if is_removed or as_json:
        removed = {"name": name, "removed": is_removed}
        printing.result(removed, f"Removed calendar {name!r}.", as_json=as_json)
