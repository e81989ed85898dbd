"""`pgbeat jobs cancel`, `pause`, `resume`, `approve`, `retry`, `update`, `move` and `delete`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.cli.jobs import bulk, job_views
from pgbeat.cli.jobs.job_options import some_options, timing
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_admin, find
from pgbeat.cli.terminal.asking import sure
from pgbeat.cli.terminal.failures import FAILED, refusal
from pgbeat.cli.terminal.options import FLAG, SectionedCommand, in_zone, option
from pgbeat.cli.terminal.target import Target
from pgbeat.database import connections
from pgbeat.errors import PgbeatError
from pgbeat.jobs.checks.permissions import BulkVerb
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.timetables import zone
from pgbeat.views import jobs as views


def _apply(
    target: Target,
    actor: Actor,
    ids: tuple[str, ...],
    verb: Any,
    done: Callable[[Job, Job], str],
    options: dict[str, Any],
    selection: dict[str, Any] | None = None,
) -> None:
    """Applies a verb to each job in its own transaction, even if it fails for others.

    Prints a sentence for each, from the job before and after, or the jobs as an array of JSON. The
    jobs are those of the ids, or else of the filter in `selection`.
    """
    if selection is not None and bulk.is_asked(ids, selection):
        bulk.apply(target, actor, verb, options, selection)
        return
    target.require_app("the jobs' messages are in the app's broker")
    from pgbeat.jobs.verbs import changes, control

    act = changes.update if verb == "update" else getattr(control, verb)
    failed, rows, redactor = False, [], target.redactor(actor)
    with target.work(actor) as unit:
        for job_id in ids:
            try:
                before = find(unit.connection, target, actor, job_id, verb)
                with unit.transaction():
                    changed = act(unit, before.id, **options)
            except (PgbeatError, DBAPIError) as error:
                sentence = refusal(error, target)
                if len(ids) == 1 or sentence is None or connections.is_lost(error):
                    raise
                failed = True
                sentence.show()
            else:
                after = jobs.get(unit.connection, changed.id)
                after = redactor.row(after, after.task)
                rows.append(views.job(after))
                if not printing.is_json():
                    click.echo(done(before, after))
    if printing.is_json():
        printing.echo_json(rows)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _where(job: Job) -> str:
    return f"job {job.id}: {job_views.now_is(job)}"


_some_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_priority = click.IntRange(0, 255)


@click.command("cancel", cls=SectionedCommand)
@_some_ids
@option("--reason", "TEXT", "Why, for the record.")
@bulk.filtered()
@as_admin
def cancel_command(
    target: Target, /, ids: tuple[str, ...], reason: str | None, actor: Actor, **selection: Any
) -> None:
    """Cancel jobs. Waiting jobs end now; workers end running jobs. Needs the app."""

    def done(before: Job, after: Job) -> str:
        if after.state == "running":
            return f"Requested the end of job {after.id}, which runs on {after.worker}."
        return f"Cancelled job {after.id}, which was {before.state}."

    _apply(target, actor, ids, "cancel", done, {"reason": reason}, selection)


def _simple(verb: BulkVerb, done: Callable[[Job], str], text: str) -> click.Command:
    """Returns the command of a verb that has no options."""

    @click.command(verb, help=text, cls=SectionedCommand)
    @_some_ids
    @bulk.filtered()
    @as_admin
    def command(target: Target, /, ids: tuple[str, ...], actor: Actor, **selection: Any) -> None:
        _apply(target, actor, ids, verb, lambda _, after: done(after), {}, selection)

    return command


pause_command = _simple(
    "pause",
    lambda job: f"Paused job {job.id}.",
    "Hold jobs that have not begun until they are resumed. Needs the app.",
)
resume_command = _simple(
    "resume", lambda job: f"Resumed {_where(job)}", "Let paused jobs run. Needs the app."
)


@click.command("approve")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@as_admin
def approve_command(target: Target, ids: tuple[str, ...], actor: Actor) -> None:
    """Approve jobs that wait for it. Only for administrators. Needs the app."""
    _apply(target, actor, ids, "approve", lambda _, job: f"Approved {_where(job)}", {})


@click.command("retry", cls=SectionedCommand)
@_some_ids
@option("--priority", "N", "Another priority than before.", type=_priority)
@option("--from-step", "NAME", "Run this step, and later ones, again.")
@bulk.filtered()
@as_admin
def retry_command(
    target: Target,
    /,
    ids: tuple[str, ...],
    priority: int | None,
    from_step: str | None,
    actor: Actor,
    **selection: Any,
) -> None:
    """Retry jobs that failed, were cancelled or skipped, each as a new job. Needs the app.

    With a filter but no --state, those that failed.
    """

    def done(before: Job, after: Job) -> str:
        return f"Retried job {before.id}, which {job_views.HAS[before.state]}: {_where(after)}"

    options = {"job_source": "user_cli", "priority": priority, "from_step": from_step}
    _apply(target, actor, ids, "retry", done, options, selection)


@click.command("update", cls=SectionedCommand)
@_some_ids
@some_options("priority", "max-attempts", "retry-base", "retry-cap")
@timing
@option("--now", FLAG, "As soon as possible.")
@option("--lane", "LANE", "The lane to wait in. Only for administrators.")
@option("--no-lane", FLAG, "No lane. Only for administrators.")
@bulk.filtered(of_lane="--in-lane")
@as_admin
def update_command(
    target: Target, /, ids: tuple[str, ...], actor: Actor, now: bool, no_lane: bool, **options: Any
) -> None:
    """Change waiting jobs: priority, time, retries or lane. Needs the app."""
    selection = bulk.take(options)
    bulk.is_asked(ids, selection)
    values = {name: value for name, value in options.items() if value is not None}
    if sum((now, "run_at" in values, "countdown" in values)) > 1:
        raise click.UsageError("--at, --in and --now exclude each other")
    if no_lane and "lane" in values:
        raise click.UsageError("--lane and --no-lane exclude each other")
    if "run_at" in values:
        values["run_at"] = in_zone(values["run_at"], zone(target.timezone), "--at")
    values |= {"run_at": None} if now else {}
    values |= {"lane": None} if no_lane else {}
    if not values:
        raise click.UsageError("nothing to update; give at least one option (see --help)")
    change = {"values": values}
    _apply(target, actor, ids, "update", lambda _, job: f"Updated {_where(job)}", change, selection)


_PLACES = ["front", "back", "before", "after"]


@click.command("move")
@click.argument("job_id", metavar="ID")
@click.argument("where", metavar="|".join(_PLACES), type=click.Choice(_PLACES))
@click.argument("other", metavar="[OTHER]", required=False)
@option("--priority", "N", "With front or back: its new priority.", type=_priority)
@as_admin
def move_command(
    target: Target, job_id: str, where: Any, other: str | None, priority: int | None, actor: Actor
) -> None:
    """Move a job in its lane's line: to the front or back of its priority, or next to another."""
    from pgbeat.jobs.verbs import control

    with target.unit(actor) as unit:
        job = find(unit.connection, target, actor, job_id, "move")
        anchor = None
        if other is not None:
            # An actor may know the other jobs in the line, whoever made them.
            anchor = find(unit.connection, target, replace(actor, is_admin=True), other).id
        moved, place = control.move(unit, job.id, where, anchor, priority=priority)
    message = f"Moved job {moved.id}: place {place} in lane {moved.lane!r}."
    moved = target.redactor(actor).row(moved, moved.task)
    printing.result(views.job(moved) | {"place": place}, message)


@click.command("delete", cls=SectionedCommand)
@_some_ids
@bulk.filtered()
@as_admin
def delete_command(target: Target, /, ids: tuple[str, ...], actor: Actor, **selection: Any) -> None:
    """Delete jobs that have ended, with their executions: all of the IDs, or none."""
    yes, dry_run = selection["yes"], selection["dry_run"]
    if bulk.is_asked(ids, selection | {"dry_run": False}):
        bulk.apply(target, actor, "delete", {}, selection)
        return
    from pgbeat.jobs.verbs import control

    with target.unit(actor, dry_run=True) as unit:
        rows = [find(unit.connection, target, actor, job_id, "delete") for job_id in ids]
        for job in rows:
            control.delete(unit, job.id)
    what = f"job {rows[0].id}" if len(rows) == 1 else printing.counted(len(rows), "job")
    is_deleted = sure("delete", "deleted", what, yes=yes, dry_run=dry_run)
    if is_deleted:
        with target.unit(actor) as unit:
            for job in rows:
                control.delete(unit, job.id)
    if is_deleted or printing.is_json():
        deleted = [{"id": job.id, "deleted": is_deleted} for job in rows]
        printing.result(deleted, f"Deleted {what}.")


COMMANDS = (
    cancel_command,
    pause_command,
    resume_command,
    approve_command,
    retry_command,
    update_command,
    move_command,
    delete_command,
)
