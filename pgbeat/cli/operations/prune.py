"""`pgbeat prune`: delete history that is older than the retention."""

import sys
from typing import Any

import click

from pgbeat.beat.verbs import control
from pgbeat.beat.verbs.control import Pruned
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.numbers import RealRange
from pgbeat.cli.terminal.options import option, whole
from pgbeat.cli.terminal.printing import counted
from pgbeat.cli.terminal.target import Target

#: The nouns of tables whose rows are not called like the table.
_NOUNS = {
    "deliveries": ("delivery", "deliveries"),
    "audit": ("change in the audit", "changes in the audit"),
    "dependencies": ("dependency", "dependencies"),
}


@click.command("prune")
@option(
    "--days",
    "DAYS",
    "How long history is kept; by default pgbeat_retention_days.",
    type=RealRange(0, 36_500, min_open=True),
)
@option(
    "--count",
    whole(0, 1_000_000),
    "Keep each schedule's newest N; by default pgbeat_retention_count.",
)
@changing
def prune_command(target: Target, /, dry_run: bool, **kept: Any) -> None:
    """Delete history that is older than the retention.

    That is ticks, jobs with all that belongs to them, groups and deliveries; events, which are kept
    for pgbeat_event_days; and the audit log, for pgbeat_audit_days. Unfinished jobs and groups are
    never deleted. The leading beat does the same all the time, a little at a time. An interruption
    keeps what was deleted so far.

    Its JSON has `dry_run`, `kept` (`days`, `count`, `event_days`, `audit_days`) and `deleted`
    (`ticks`, `jobs`, `executions`, `groups`, `dependencies`, `steps`, `events`, `stacks`,
    `deliveries`, `audit`).
    """
    done = _prune(target, dry_run=dry_run, quiet=printing.is_json(), **kept)
    if printing.is_json():
        printing.echo_json({"dry_run": dry_run, "kept": done.kept, "deleted": done.deleted})
        return
    parts = [_counted(number, table) for table, number in done.deleted.items() if number]
    days, number = done.kept["days"], done.kept["count"]
    if parts:
        click.echo(f"{'Would delete' if dry_run else 'Deleted'} {', '.join(parts)}.")
    elif not days:
        click.echo("There is nothing to delete: pgbeat_retention_days is 0. --days overrides it.")
    else:
        click.echo(
            f"There is nothing to delete: kept are {_counted_days(days)}, and of each schedule the "
            f"newest {number}."
        )


def _prune(target: Target, *, dry_run: bool, quiet: bool, **kept: Any) -> Pruned:
    shows = sys.stderr.isatty() and not quiet
    shown = False

    def progress(scanned: int, deleted: int) -> None:
        nonlocal shown
        if shows:
            verb = "to delete" if dry_run else "deleted"
            click.echo(f"\r{counted(scanned, 'old row')}, {deleted} {verb}", err=True, nl=False)
            shown = True

    with target.work() as unit:
        done = control.prune(unit, dry_run=dry_run, progress=progress, **kept)
    if shown:
        click.echo(err=True)
    return done


def _counted_days(days: float) -> str:
    """Returns a number of days: `30 days`, `1 day`, `0.5 days`."""
    return "1 day" if days == 1 else f"{days:g} days"


def _counted(number: int, table: str) -> str:
    one, several = _NOUNS.get(table, (table.removesuffix("s"), table))
    return f"{number:,} {one if number == 1 else several}"
