"""`pgbeat prune`: delete what is older than it is kept."""

import sys
from collections import Counter
from dataclasses import replace

import click
from sqlalchemy import Connection

from pgbeat.access import audit
from pgbeat.beat.pruner import TABLES, Note, Pruner
from pgbeat.cli import printing
from pgbeat.cli.asking import dry_run_option
from pgbeat.cli.printing import counted
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.config import Settings

#: A row of each table, in words.
_NOUNS = {
    "deliveries": ("delivery", "deliveries"),
    "audit": ("change in the audit", "changes in the audit"),
}


@click.command("prune")
@click.option("--days", type=click.FloatRange(0, 36_500, min_open=True), metavar="DAYS",
              help="What is younger is kept; pgbeat_retention_days.")  # fmt: skip
@click.option("--count", type=click.IntRange(0, 1_000_000), metavar="N",
              help="The newest of each schedule are kept; pgbeat_retention_count.")  # fmt: skip
@dry_run_option
@json_option
@pass_target
def prune_command(
    target: Target, days: float | None, count: int | None, dry_run: bool, as_json: bool
) -> None:
    """Delete what is older than it is kept: ticks, jobs with their executions, groups, deliveries,
    and the audit, which is kept for pgbeat_audit_days.

    The leading beat does it all the time, a little at a time. What has not ended is never deleted.
    Interrupted, it has deleted what it had got to.
    """
    settings = target.settings
    if days is not None:
        settings = replace(settings, retention_days=days)
    if count is not None:
        settings = replace(settings, retention_count=count)
    gone = _prune(target, settings, dry_run=dry_run, quiet=as_json)
    if as_json:
        deleted = {table: gone[table] for table in TABLES}
        printing.echo_json({"dry_run": dry_run, "kept": _kept(settings), "deleted": deleted})
    elif not settings.retention_days and not gone.total():
        click.echo("Everything is kept: pgbeat_retention_days is 0. --days says otherwise.")
    else:
        parts = [_counted(gone[table], table) for table in TABLES if gone[table]]
        verb = "Would delete" if dry_run else "Deleted"
        kept_for = counted_days(settings.retention_days)
        click.echo(
            f"{verb} {', '.join(parts)}."
            if parts
            else f"There is nothing to delete: kept are {kept_for}, and of each schedule the "
            f"newest {settings.retention_count}."
        )


def _kept(settings: Settings) -> dict[str, float]:
    return {
        "days": settings.retention_days,
        "count": settings.retention_count,
        "audit_days": settings.audit_days,
    }


def _noting(target: Target, settings: Settings) -> Note:
    """Notes the whole as one change, with what was deleted so far."""
    numbers: list[int] = []

    def write(connection: Connection, deleted: Counter[str]) -> None:
        after = {"kept": _kept(settings), "deleted": {t: n for t, n in deleted.items() if n}}
        if numbers:
            audit.amend(connection, numbers[0], after)
        else:
            number = audit.record_action(
                connection, target.author, "prune", "history", "", None, after
            )
            numbers.append(number)

    return write


def counted_days(days: float) -> str:
    """A number of days: `30 days`, `1 day`, `0.5 days`."""
    return "1 day" if days == 1 else f"{days:g} days"


def _counted(number: int, table: str) -> str:
    one, several = _NOUNS.get(table, (table.removesuffix("s"), table))
    return f"{number:,} {one if number == 1 else several}"


def _prune(target: Target, settings: Settings, *, dry_run: bool, quiet: bool) -> Counter[str]:
    note = None if dry_run else _noting(target, settings)
    pruner = Pruner(settings, dry_run=dry_run, note=note)
    shows = sys.stderr.isatty() and not quiet
    looked = 0
    with target.session() as connection:
        while step := pruner.step(connection):
            looked += step
            if shows:
                rows = counted(looked, "old row")
                click.echo(
                    f"\r{rows}, {pruner.deleted.total()} {'to delete' if dry_run else 'deleted'}",
                    err=True,
                    nl=False,
                )
    if shows and looked:
        click.echo(err=True)
    return pruner.deleted
