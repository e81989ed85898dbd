"""`pgbeat enable`, `disable`, `pause`, `resume` and `remove`."""

from collections.abc import Callable
from typing import Any

import click

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_admin
from pgbeat.cli.terminal.asking import asking, dry_run_option, remove, sure, yes_option
from pgbeat.cli.terminal.options import FLAG, F, adding, option
from pgbeat.cli.terminal.target import Target
from pgbeat.database import connections
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import model as schedules
from pgbeat.schedules.control import Switched
from pgbeat.schedules.forecast import upcoming
from pgbeat.schedules.model import Schedule
from pgbeat.views.schedules import schedule


def _switch(whole: str, reason: str) -> Callable[[F], F]:
    """Returns a decorator that adds a name or `--all`, with their options, for `_or_all`."""
    return adding(
        click.argument("name", required=False),
        option("--all", FLAG, f"{whole}; needs --admin.", "everything"),
        option("--reason", "TEXT", reason),
        yes_option,
        dry_run_option,
        as_admin,
    )


def _or_all(
    target: Target,
    verb: str,
    change: Callable[..., list[Switched]],
    name: str | None,
    reason: str | None,
    options: Any,
) -> str | None:
    """Returns the name, or else changes all schedules, if the user is sure, and returns `None`.

    Tries it in a dry run first, for errors and the number.
    """
    everything, actor, yes, dry_run = map(options.pop, ("everything", "actor", "yes", "dry_run"))
    if (name is not None) == everything:
        raise click.UsageError("which schedule? Give its name, or --all")
    if not everything:
        if dry_run:
            raise click.UsageError("--dry-run goes with --all")
        return name
    past = f"{verb.removesuffix('e')}ed"
    with target.unit(actor, dry_run=True) as unit:
        switched = change(unit, reason)
    what = printing.counted(len(switched), "schedule")
    if not switched or sure(verb, past, what, yes=yes, dry_run=dry_run):
        with target.unit(actor) as unit:
            switched = change(unit, reason)
        what = printing.counted(len(switched), "schedule")
        printing.result([schedule(row.after) for row in switched], f"{past.capitalize()} {what}.")
    elif printing.is_json():
        printing.echo_json([schedule(row.after) for row in switched] if dry_run else [])
    return None


@click.command("enable")
@_switch("All that are disabled", "With --all: only those that were disabled for this reason.")
def enable_command(target: Target, name: str | None, reason: str | None, **options: Any) -> None:
    """Enable a disabled schedule, or all. It is due at the next time of its timetable.

    --all enables none that is completed.
    """
    name = _or_all(target, "enable", schedule_control.enable_all, name, reason, options)
    if name is None:
        return
    if reason is not None:
        raise click.UsageError("--reason goes with --all")
    with target.unit() as unit:
        before, row = schedule_control.enable(unit, name)
    message = f"Schedule {name!r} is enabled already."
    if not before.enabled:
        message = f"Enabled schedule {name!r}. {next_line(target, row)}"
    printing.result(schedule(row), message)
    if row.paused_at is not None:
        printing.note(f"it is paused; `pgbeat resume {name}` lets it launch.")


@click.command("disable")
@_switch("All that are enabled", "Why, for the record.")
def disable_command(target: Target, name: str | None, reason: str | None, **options: Any) -> None:
    """Disable a schedule, or all, until it is enabled again. Its jobs continue."""
    name = _or_all(target, "disable", schedule_control.disable_all, name, reason, options)
    if name is None:
        return
    with target.unit() as unit:
        row = schedule_control.disable(unit, name, reason).after
    message = f"Disabled schedule {name!r}: {printing.line(row.disabled_reason)}"
    printing.result(schedule(row), message)


@click.command("pause")
@_switch("All that aren't paused", "Why, for the record.")
def pause_command(target: Target, name: str | None, reason: str | None, **options: Any) -> None:
    """Pause a schedule, or all. Due times until it is resumed are not made up for.

    --all doesn't pause schedules that are added later.
    """
    name = _or_all(target, "pause", schedule_control.pause_all, name, reason, options)
    if name is None:
        return
    with target.unit() as unit:
        before, row = schedule_control.pause(unit, name, reason)
        now = connections.now(unit.connection)
    message = f"Paused schedule {name!r}."
    if before.paused_at is not None:
        message = f"Schedule {name!r} is paused already, since {printing.when(row.paused_at, now)}."
    printing.result(schedule(row), message)
    if not row.enabled:
        printing.note("it is disabled, too.")


@click.command("resume")
@_switch("All that are paused", "With --all: only those that were paused for this reason.")
def resume_command(target: Target, name: str | None, reason: str | None, **options: Any) -> None:
    """Resume a paused schedule, or all. It is due at the next time of its timetable."""
    name = _or_all(target, "resume", schedule_control.resume_all, name, reason, options)
    if name is None:
        return
    if reason is not None:
        raise click.UsageError("--reason goes with --all")
    with target.unit() as unit:
        before, row = schedule_control.resume(unit, name)
    message = f"Schedule {name!r} is not paused."
    if before.paused_at is not None:
        message = f"Resumed schedule {name!r}. {next_line(target, row)}"
    printing.result(schedule(row), message)
    if not row.enabled:
        printing.note(f"it is disabled; `pgbeat enable {name}` enables it.")


@click.command("remove")
@click.argument("name")
@asking
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


def next_line(target: Target, row: Schedule) -> str:
    """Returns a sentence that says when a schedule is due next; "" if it can't be due."""
    if not row.enabled or row.paused_at is not None:
        return ""
    if row.after is not None:
        return f"It comes {printing.timetable(row)}."
    timetable = row.timetable(target.timezone)
    if timetable is None:
        return ""
    with target.reading() as (_, now):
        first = next(upcoming(row, timetable, now), None)
    if first is None:
        return "It is never due."
    skip = f"; it will be skipped: {first.skip}" if first.skip else ""
    return f"Next: {printing.when(first.at, now) if first.at > now else 'at once'}{skip}."
