"""The verbs of `pgbeat jobs` on all jobs that a filter matches."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.cli.jobs import job_views
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import find_group
from pgbeat.cli.terminal.asking import sure
from pgbeat.cli.terminal.failures import FAILED
from pgbeat.cli.terminal.options import FLAG, LABELS, LENGTH, F, adding, headed
from pgbeat.cli.terminal.target import Target
from pgbeat.database import connections
from pgbeat.database.tables import JOB_STATES
from pgbeat.jobs.checks.permissions import BulkVerb
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job
from pgbeat.schedules import model as schedules

#: Parameters of the filter; `--lane` of `update` is the new lane.
_NAMES = (
    "state", "task", "error", "schedule", "template", "of_lane", "queue", "group_id", "created_by",
    "labels", "since", "before",
)  # fmt: skip
_PAST = {
    "retry": "Retried",
    "cancel": "Cancelled",
    "pause": "Paused",
    "resume": "Resumed",
    "update": "Updated",
    "delete": "Deleted",
}


def filtered(*, of_lane: str = "--lane") -> Callable[[F], F]:
    """Returns a decorator that adds the options of a filter, --yes and --dry-run."""
    option = headed("Instead of IDs, all jobs that match")
    return adding(
        option("--state", click.Choice(JOB_STATES), "In this state."),
        option("--task", "TASK", "Of this task, or a glob: 'shop.*'."),
        option("--error", "TEXT", "With this in the error, or a glob: '*503*'."),
        option("--schedule", "NAME", "Of this schedule."),
        option("--template", "NAME", "Made from this template."),
        option(of_lane, "NAME", "In this lane.", "of_lane"),
        option("--queue", "NAME", "For this queue."),
        option("--group", "ID", "Of this group.", "group_id"),
        option("--created-by", "WHO", "Made by this actor, such as user:alice."),
        option("--label", LABELS, "With this label.", "labels"),
        option("--since", LENGTH, "Made in the last 2h, say."),
        option("--before", LENGTH, "Made more than 30d ago, say."),
        option("--yes", FLAG, "Don't ask."),
        option("--dry-run", FLAG, "Say how many match, and which."),
    )


def is_asked(ids: tuple[str, ...], selection: dict[str, Any]) -> bool:
    """Returns whether a filter is given. Raises `UsageError` unless it is either that or ids."""
    has_filter = any(selection[name] for name in _NAMES)
    if ids and has_filter:
        raise click.UsageError("give IDs or a filter, not both")
    if not ids and not has_filter:
        raise click.UsageError("which jobs? Give IDs, or a filter such as --state or --task")
    if ids and selection["dry_run"]:
        raise click.UsageError("--dry-run goes with a filter")
    return has_filter


def take(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `filtered` out of a command's parameters, and returns them."""
    return {name: options.pop(name) for name in (*_NAMES, "yes", "dry_run")}


def apply(
    target: Target, actor: Actor, verb: BulkVerb, options: dict[str, Any], selection: dict[str, Any]
) -> None:
    """Shows the jobs that match, asks, and changes them with progress.

    Exits with 1 if it had to leave some alone.
    """
    target.require_app("the jobs' messages are in the app's broker")
    from pgbeat.jobs.verbs import bulk

    order = bulk.Order(verb, options)
    done = bulk.Progress(None, 0, {}, [], None)
    with target.work(actor) as unit:
        which = _which(target, actor, unit.connection, selection)
        seen = bulk.preview(unit.connection, actor, order, which)
        what = bulk.counted(seen.number)
        if not printing.is_json():
            _show(target.redactor(actor).rows(seen.first), seen)
        if remark := seen.of_others(verb):
            printing.note(f"{remark} (--admin).")
        if seen.number and sure(
            verb, _PAST[verb].lower(), what, yes=selection["yes"], dry_run=selection["dry_run"]
        ):
            with _bar(seen.number) as advance:
                try:
                    for done in bulk.carry_out(unit, order, which, until=seen.at):
                        advance(done.done + sum(done.left.values()))
                except (KeyboardInterrupt, DBAPIError):
                    click.echo(f"\n{_PAST[verb]} {done.done:,} of {what}.", err=True)
                    raise
            if not printing.is_json():
                click.echo(_sentence(verb, done.done, done.left, done.problems))
    if printing.is_json():
        result = done._asdict() | {"verb": verb, "matched": seen.number}
        result["others"] = seen.others
        del result["position"]
        printing.echo_json(result)
    if done.left:
        raise click.exceptions.Exit(FAILED)


def _show(first: list[Job], seen: Any) -> None:
    from pgbeat.jobs.verbs import bulk

    if first:
        job_views.show_list(first, seen.at)
    else:
        click.echo("None of your jobs matches." if seen.others else "No job matches.")
    if seen.number > len(first):
        least = "at least " if seen.number == bulk.MOST else ""
        click.echo(f"… and {least}{seen.number - len(first):,} more.")


def _which(target: Target, actor: Actor, connection: Any, selection: dict[str, Any]) -> Filter:
    """Returns the filter that the options say. Raises `NotFound`."""
    now = connections.now(connection)
    schedule_id = None
    if selection["schedule"] is not None:
        row = schedules.get(connection, selection["schedule"], namespace=target.namespace)
        schedule_id = row.id
    group_id = selection["group_id"]
    if group_id is not None:
        group_id = str(find_group(connection, target, actor, group_id).id)

    def ago(length: timedelta | None) -> Any:
        return None if length is None else now - min(length, timedelta(days=36_500))

    which = Filter(
        target.namespace,
        state=selection["state"],
        task=selection["task"],
        error=selection["error"],
        schedule_id=schedule_id,
        template=selection["template"],
        lane=selection["of_lane"],
        queue=selection["queue"],
        group_id=group_id,
        created_by=selection["created_by"],
        labels=selection["labels"] or None,
        created_from=ago(selection["since"]),
        created_until=ago(selection["before"]),
    )
    return target.visible(replace(actor, is_viewer=True), which)  # the verb takes less


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how many jobs were looked at; yields the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda number: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("jobs", total=total)
        yield lambda number: bar.update(task, completed=number, total=max(total, number))


def _sentence(verb: str, done: int, left: dict[str, int], problems: Sequence[Any]) -> str:
    message = f"{_PAST[verb]} {done:,} job{'' if done == 1 else 's'}."
    if number := sum(left.values()):
        message += f" Left {number:,} alone:"
        message += "".join(f"\n  {problem.message}" for problem in problems)
        message += f"\n  … and {number - len(problems):,} more" * (number > len(problems))
    return message
