"""`pgbeat errors`: the errors of failed jobs, those alike as one."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgbeat.access.actors import Actor
from pgbeat.cli.operations.load import sparkline
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker
from pgbeat.cli.terminal.options import option, since_option, whole
from pgbeat.cli.terminal.printing import line, relative, utc
from pgbeat.cli.terminal.target import Target
from pgbeat.monitoring.rollups.errors import MOST, USUAL, ErrorPattern, ErrorReport, errors

#: Bars of a sparkline, at most; tasks and schedules that are named.
_WIDTH, _NAMES = 16, 3


@click.command("errors")
@option("--task", "NAME", "Only jobs of this task.")
@since_option("24h")
@option("--limit", whole(1, MOST), "Show that many errors, the most frequent.", default=USUAL)
@as_onlooker
def errors_command(target: Target, /, actor: Actor, **options: Any) -> None:
    """Show why jobs failed: how often, since when, and which tasks and schedules.

    Errors that differ only in their values (numbers, ids, times, quoted text) are one, with * for
    each value.
    """
    redactor = target.redactor(actor)
    with target.listing() as (connection, _):
        result = errors(connection, target.namespace, mask=redactor.error, **options)
    if printing.is_json():
        printing.echo_json(result)
        return
    about = "" if options["task"] is None else f" of {line(options['task'])}"
    if not result.groups:
        click.echo(f"No job{about} failed since {utc(result.since)} UTC.")
        return
    least = "At least " if result.is_lower_bound else ""
    jobs = f"{result.jobs:,} job{'' if result.jobs == 1 else 's'}"
    click.secho(f"{least}{jobs}{about} failed since {utc(result.since)} UTC", bold=True)
    _show(result)
    if result.has_more:
        printing.note(f"there are more than these {options['limit']} errors; --limit shows them.")


def _show(result: ErrorReport) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for group in result.groups:
        table.add_row(f"{group.jobs:,} ×", _told(group, result.until))
    printing.show(table)


def _told(group: ErrorPattern, now: datetime) -> Text:
    """Returns all about a group, on a few lines."""
    bars = sparkline(group.counts, _WIDTH).replace(" ", "·")
    last = relative(group.last_at, now)
    lines = [f"{bars}  since {utc(group.since)}, last {last}"]
    if group.tasks:
        lines.append(_named("task", group.tasks))
    if group.schedules:
        lines.append(_named("schedule", group.schedules, has_more=group.has_more_schedules))
    lines.append(f"last job {str(group.job_id)[:8]}")
    return Text.assemble((line(group.pattern), "red"), *(f"\n{row}" for row in lines))


def _named(noun: str, names: Sequence[str], *, has_more: bool = False) -> str:
    """Returns the first names, and how many more there are."""
    more = len(names) - _NAMES
    rest = f" and {'at least ' if has_more else ''}{more} more" if more > 0 else ""
    nouns = noun if len(names) == 1 else f"{noun}s"
    return f"{nouns} {', '.join(map(line, names[:_NAMES]))}{rest}"
