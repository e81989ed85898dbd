"""`pgbeat cursor`: the JSON that a launcher keeps from one tick to the next."""

import json
from typing import Any

import click

from pgbeat.cli import Noun
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.target import Target, on_named
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import model as schedules


@click.group("cursor", cls=Noun)
def cursor_command() -> None:
    """Look at a launcher's cursor, set it, clear it.

    The cursor is JSON that a launcher keeps from one tick to the next.
    """


@cursor_command.command("show")
@on_named
def show_command(target: Target, name: str) -> None:
    """Show a schedule's cursor."""
    with target.transaction() as connection:
        row = schedules.get(connection, name, namespace=target.namespace)
    message = "none" if row.cursor is None else printing.json_line(row.cursor)
    printing.result({"name": name, "cursor": row.cursor}, message)


def _read(ctx: click.Context, param: click.Parameter, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is not JSON: {error}") from None


@cursor_command.command("set")
@click.argument("name")
@click.argument("value", metavar="JSON", callback=_read)
@changing
def set_command(target: Target, name: str, value: Any, dry_run: bool) -> None:
    """Set a schedule's cursor, from which its launcher continues."""
    _set(target, name, value, dry_run=dry_run)


@cursor_command.command("clear")
@click.argument("name")
@changing
def clear_command(target: Target, name: str, dry_run: bool) -> None:
    """Clear a schedule's cursor: its launcher starts over."""
    _set(target, name, None, dry_run=dry_run)


def _set(target: Target, name: str, value: Any, *, dry_run: bool) -> None:
    with target.unit(dry_run=dry_run) as unit:
        kept = schedule_control.set_cursor(unit, name, value)
    verb = "Would set" if dry_run else "Set"
    message = f"{verb} the cursor of schedule {name!r} to {printing.json_line(value)}."
    if value is None:
        message = f"{'Would clear' if dry_run else 'Cleared'} the cursor of schedule {name!r}."
    printing.result({"name": name, "cursor": kept}, message)
