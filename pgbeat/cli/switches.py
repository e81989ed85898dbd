"""`pgbeat enable`, `disable`, `pause`, `resume` and `remove`: schedules in and out of service."""

import click

from pgbeat.cli import printing
from pgbeat.cli.asking import asking, json_option, sure
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
def enable_command(target: Target, name: str, as_json: bool) -> None:
    """Put a disabled schedule back in service; it is due next by its timetable, from now on."""
    with target.unit() as unit:
        before, row = schedule_control.enable(unit, name)
    said = f"Schedule {name!r} is enabled already."
    if not before.enabled:
        said = f"Enabled schedule {name!r}. {next_line(target, row)}"
    printing.result(printing.row_json(row), said, as_json=as_json)
    if row.paused_at is not None:
        printing.note(f"it is paused; `pgbeat resume {name}` lets it go on.")


@click.command("disable")
@click.argument("name")
@click.option("--reason", help="Why, for those who wonder later.")
@json_option
@pass_target
def disable_command(target: Target, name: str, reason: str | None, as_json: bool) -> None:
    """Take a schedule out of service until it is enabled. What was launched goes on."""
    with target.unit() as unit:
        row = schedule_control.disable(unit, name, reason).after
    said = f"Disabled schedule {name!r}: {printing.line(row.disabled_reason)}"
    printing.result(printing.row_json(row), said, as_json=as_json)


_name_or_all = click.argument("name", required=False)


@click.command("pause")
@_name_or_all
@click.option("--all", "everything", is_flag=True, help="All schedules that there are now.")
@click.option("--reason", help="Why, for those who wonder later.")
@json_option
@pass_target
def pause_command(
    target: Target, name: str | None, everything: bool, reason: str | None, as_json: bool
) -> None:
    """Hold a schedule, or all, until it is resumed; what falls due meanwhile is not made up for.

    With --all, schedules that are added later are not paused.
    """
    if name is None or everything:
        _require_one(name, everything)
        with target.unit() as unit:
            made = schedule_control.pause_all(unit, reason)
        _say_all("Paused", made, as_json)
        return
    with target.unit() as unit:
        before, row = schedule_control.pause(unit, name, reason)
        now = connections.now(unit.connection)
    said = f"Paused schedule {name!r}."
    if before.paused_at is not None:
        said = f"Schedule {name!r} is paused already, since {printing.when(row.paused_at, now)}."
    printing.result(printing.row_json(row), said, as_json=as_json)
    if not row.enabled:
        printing.note("it is disabled, too.")


@click.command("resume")
@_name_or_all
@click.option("--all", "everything", is_flag=True, help="All that are paused.")
@click.option("--reason", help="With --all: only those that were paused for this reason.")
@json_option
@pass_target
def resume_command(
    target: Target, name: str | None, everything: bool, reason: str | None, as_json: bool
) -> None:
    """Let a paused schedule, or all, go on; it is due next by its timetable, from now on."""
    if name is None or everything:
        _require_one(name, everything)
        with target.unit() as unit:
            made = schedule_control.resume_all(unit, reason)
        _say_all("Resumed", made, as_json)
        return
    if reason is not None:
        raise click.UsageError("--reason goes with --all")
    with target.unit() as unit:
        before, row = schedule_control.resume(unit, name)
    said = f"Schedule {name!r} is not paused."
    if before.paused_at is not None:
        said = f"Resumed schedule {name!r}. {next_line(target, row)}"
    printing.result(printing.row_json(row), said, as_json=as_json)
    if not row.enabled:
        printing.note(f"it is disabled; `pgbeat enable {name}` puts it back in service.")


@click.command("remove")
@click.argument("name")
@asking
@json_option
@pass_target
def remove_command(target: Target, name: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a schedule. Its ticks and jobs stay until they are as old as they are kept."""
    with target.transaction() as connection:
        row = schedules.get(connection, name, namespace=target.settings.namespace)
    what, is_removed = f"schedule {name!r}", False
    if sure("remove", "removed", what, yes=yes, dry_run=dry_run, as_json=as_json):
        with target.unit() as unit:
            row = schedule_control.remove(unit, name)
        is_removed = True
    if as_json:
        printing.echo_json({"name": name, "removed": is_removed})
    elif is_removed:
        click.echo(f"Removed {what}.")
    if not is_removed and not dry_run:
        return
    if row.source == "code":
        printing.note("it is made by the app's code, and comes back when beat starts; "
                      f"`pgbeat disable {name}` lasts.")  # fmt: skip


def _require_one(name: str | None, everything: bool) -> None:
    if (name is not None) == everything:
        raise click.UsageError("which schedule? Give its name, or --all")


def _say_all(verb: str, made: list[Switched], as_json: bool) -> None:
    rows = [printing.row_json(each.after) for each in made]
    printing.result(rows, f"{verb} {printing.counted(len(made), 'schedule')}.", as_json=as_json)


def next_line(target: Target, row: Schedule) -> str:
    """When a schedule that was just put in service is due, in a sentence."""
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
