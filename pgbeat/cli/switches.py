"""`pgbeat enable`, `disable`, `pause`, `resume` and `remove`."""

import click

from pgbeat.cli import printing
from pgbeat.cli.asking import asking, remove
from pgbeat.cli.printing import json_option, row_json
from pgbeat.cli.target import Target, pass_target
from pgbeat.database import connections
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import model as schedules
from pgbeat.schedules.control import Switched
from pgbeat.schedules.forecast import upcoming
from pgbeat.schedules.model import Schedule


@click.command("enable")
@click.argument("name")
@json_option
@pass_target
def enable_command(target: Target, name: str) -> None:
    """Enable a disabled schedule. It is due at the next time of its timetable."""
    with target.unit() as unit:
        before, row = schedule_control.enable(unit, name)
    said = f"Schedule {name!r} is enabled already."
    if not before.enabled:
        said = f"Enabled schedule {name!r}. {next_line(target, row)}"
    printing.result(row_json(row), said)
    if row.paused_at is not None:
        printing.note(f"it is paused; `pgbeat resume {name}` lets it go on.")


@click.command("disable")
@click.argument("name")
@click.option("--reason", help="Why, for the record.")
@json_option
@pass_target
def disable_command(target: Target, name: str, reason: str | None) -> None:
    """Disable a schedule until it is enabled again. Its jobs go on."""
    with target.unit() as unit:
        row = schedule_control.disable(unit, name, reason).after
    said = f"Disabled schedule {name!r}: {printing.line(row.disabled_reason)}"
    printing.result(row_json(row), said)


_name_or_all = click.argument("name", required=False)


@click.command("pause")
@_name_or_all
@click.option("--all", "everything", is_flag=True, help="All schedules.")
@click.option("--reason", help="Why, for the record.")
@json_option
@pass_target
def pause_command(target: Target, name: str | None, everything: bool, reason: str | None) -> None:
    """Pause a schedule, or all. Due times until it is resumed are not made up for.

    --all doesn't pause schedules that are added later.
    """
    if name is None or everything:
        _require_one(name, everything)
        with target.unit() as unit:
            made = schedule_control.pause_all(unit, reason)
        _say_all("Paused", made)
        return
    with target.unit() as unit:
        before, row = schedule_control.pause(unit, name, reason)
        now = connections.now(unit.connection)
    said = f"Paused schedule {name!r}."
    if before.paused_at is not None:
        said = f"Schedule {name!r} is paused already, since {printing.when(row.paused_at, now)}."
    printing.result(row_json(row), said)
    if not row.enabled:
        printing.note("it is disabled, too.")


@click.command("resume")
@_name_or_all
@click.option("--all", "everything", is_flag=True, help="All that are paused.")
@click.option("--reason", help="With --all: only those that were paused for this reason.")
@json_option
@pass_target
def resume_command(target: Target, name: str | None, everything: bool, reason: str | None) -> None:
    """Resume a paused schedule, or all. It is due at the next time of its timetable."""
    if name is None or everything:
        _require_one(name, everything)
        with target.unit() as unit:
            made = schedule_control.resume_all(unit, reason)
        _say_all("Resumed", made)
        return
    if reason is not None:
        raise click.UsageError("--reason goes with --all")
    with target.unit() as unit:
        before, row = schedule_control.resume(unit, name)
    said = f"Schedule {name!r} is not paused."
    if before.paused_at is not None:
        said = f"Resumed schedule {name!r}. {next_line(target, row)}"
    printing.result(row_json(row), said)
    if not row.enabled:
        printing.note(f"it is disabled; `pgbeat enable {name}` enables it.")


@click.command("remove")
@click.argument("name")
@asking
@json_option
@pass_target
def remove_command(target: Target, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a schedule. Its ticks and jobs stay for as long as history is kept."""
    with target.transaction() as connection:
        row = schedules.get(connection, name, namespace=target.namespace)
    is_removed = remove(target, "schedule", name, schedule_control.remove, yes=yes, dry_run=dry_run)
    if (is_removed or dry_run) and row.source == "code":
        printing.note(
            "it is made by the app's code, and comes back when beat starts; "
            f"`pgbeat disable {name}` lasts."
        )


def _require_one(name: str | None, everything: bool) -> None:
    if (name is not None) == everything:
        raise click.UsageError("which schedule? Give its name, or --all")


def _say_all(verb: str, made: list[Switched]) -> None:
    rows = [row_json(each.after) for each in made]
    printing.result(rows, f"{verb} {printing.counted(len(made), 'schedule')}.")


def next_line(target: Target, row: Schedule) -> str:
    """Returns a sentence that says when a schedule is due next; "" if it can't be due."""
    if not row.enabled or row.paused_at is not None:
        return ""
    with target.transaction() as connection:
        now = connections.now(connection)
    if row.after is not None:
        return f"It comes {printing.timetable(row)}."
    timetable = row.timetable(target.timezone)
    if timetable is None:
        return ""
    first = next(upcoming(row, timetable, now), None)
    if first is None:
        return "It is never due."
    skip = f"; it will be skipped: {first.skip}" if first.skip else ""
    return f"Next: {printing.when(first.at, now) if first.at > now else 'at once'}{skip}."
