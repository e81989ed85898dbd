"""`pgbeat jobs cancel`, `pause`, `resume`, `approve`, `retry`, `move` and `delete`."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy import Connection

from pgbeat import jobs
from pgbeat.cli import job_views, printing
from pgbeat.cli.actors import as_admin, find
from pgbeat.cli.failures import FAILED
from pgbeat.cli.target import Target, pass_target
from pgbeat.errors import PgbeatError
from pgbeat.jobs import Job
from pgbeat.permissions import Actor

if TYPE_CHECKING:
    from pgbeat.control import Change
    from pgbeat.publisher import Publisher


def _each(
    target: Target,
    actor: Actor,
    ids: tuple[str, ...],
    verb: "Callable[[Publisher, Job, Connection], Change]",
    done: Callable[[Job, Job], str],
) -> None:
    """Does it with each job, in a transaction of its own; what can't be done is said at the end of
    its turn, and doesn't keep from the others."""
    app = target.require_app("the messages of jobs are the app's broker's")
    from pgbeat import control, submissions

    failed = False
    with target.session() as connection, submissions.publishing(app, target.settings) as publisher:
        for job_id in ids:
            try:
                before = find(connection, target, actor, job_id)
                change = control.act(connection, publisher, partial(verb, publisher, before))
            except PgbeatError as error:
                if len(ids) == 1:
                    raise
                failed = True
                click.echo(f"Error: {error}", err=True)
            else:
                click.echo(done(before, jobs.get(connection, change.job.id)))
    if failed:
        raise click.exceptions.Exit(FAILED)


_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@click.command("cancel")
@_ids
@click.option("--reason", help="Why, for those who wonder later.")
@as_admin
@pass_target
def cancel_command(target: Target, ids: tuple[str, ...], reason: str | None, actor: Actor) -> None:
    """End jobs. What waits ends now; what runs is ended by its worker. Needs the app."""

    def verb(publisher: "Publisher", job: Job, connection: Connection) -> "Change":
        from pgbeat import control

        return control.cancel(connection, publisher, actor, job.id, reason=reason)

    def done(before: Job, after: Job) -> str:
        if after.state == "running":
            return f"Asked for the end of job {after.id}, which runs on {after.worker}."
        return f"Cancelled job {after.id}, which was {before.state}."

    _each(target, actor, ids, verb, done)


@click.command("pause")
@_ids
@as_admin
@pass_target
def pause_command(target: Target, ids: tuple[str, ...], actor: Actor) -> None:
    """Hold jobs that have not begun until they are resumed. Needs the app."""

    def verb(publisher: "Publisher", job: Job, connection: Connection) -> "Change":
        from pgbeat import control

        return control.pause(connection, publisher, actor, job.id)

    _each(target, actor, ids, verb, lambda _, after: f"Paused job {after.id}.")


@click.command("resume")
@_ids
@as_admin
@pass_target
def resume_command(target: Target, ids: tuple[str, ...], actor: Actor) -> None:
    """Let paused jobs go on. Needs the app."""

    def verb(publisher: "Publisher", job: Job, connection: Connection) -> "Change":
        from pgbeat import control

        return control.resume(connection, publisher, actor, job.id)

    _each(target, actor, ids, verb, lambda _, job: f"Resumed job {job.id}: {job_views.now_is(job)}")


@click.command("approve")
@_ids
@as_admin
@pass_target
def approve_command(target: Target, ids: tuple[str, ...], actor: Actor) -> None:
    """Let jobs go on that wait for approval: an administrator's. Needs the app."""

    def verb(publisher: "Publisher", job: Job, connection: Connection) -> "Change":
        from pgbeat import control

        return control.approve(connection, publisher, actor, job.id)

    _each(
        target, actor, ids, verb, lambda _, job: f"Approved job {job.id}: {job_views.now_is(job)}"
    )


@click.command("retry")
@_ids
@click.option("--priority", type=click.IntRange(0, 255), metavar="N",
              help="The new one's; as it was.")  # fmt: skip
@as_admin
@pass_target
def retry_command(target: Target, ids: tuple[str, ...], priority: int | None, actor: Actor) -> None:
    """Try again what jobs did that failed, were cancelled or skipped: a new job of each, with all
    its attempts before it. Needs the app."""

    def verb(publisher: "Publisher", job: Job, connection: Connection) -> "Change":
        from pgbeat import control

        return control.retry(
            connection, publisher, actor, job.id, job_source="user_cli", priority=priority
        )

    _each(
        target, actor, ids, verb,
        lambda before, after: f"Retried job {before.id}, which {job_views.HAS[before.state]}: job "
        f"{after.id}: {job_views.now_is(after)}",
    )  # fmt: skip


@click.command("move")
@click.argument("job_id", metavar="ID")
@click.argument("where", metavar="front|back|before|after",
                type=click.Choice(["front", "back", "before", "after"]))  # fmt: skip
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("--priority", type=click.IntRange(0, 255), metavar="N",
              help="Its new priority: the front and the back are those of it.")  # fmt: skip
@as_admin
@pass_target
def move_command(
    target: Target, job_id: str, where: Any, other: str | None, priority: int | None, actor: Actor
) -> None:
    """Move a job in its lane's line: to the front or back of its priority, or next to another."""
    beside = where in ("before", "after")
    if beside != (other is not None):
        raise click.UsageError(f"{where} which job?" if beside else f"{where} takes no other job")
    if beside and priority is not None:
        raise click.UsageError("next to another job, it takes on that one's priority")
    from pgbeat import control, lines

    with target.transaction() as connection:
        job = find(connection, target, actor, job_id)
        anchor = None
        if other is not None:
            # Whose the others in the line are is no secret to who stands in it.
            anchor = find(connection, target, Actor(actor.name, is_admin=True), other).id
        moved = control.move(connection, actor, job.id, where, anchor, priority=priority)
        place = lines.place(connection, moved) + 1
    click.echo(f"Moved job {moved.id}: place {place} in lane {moved.lane!r}.")


@click.command("delete")
@_ids
@click.option("--yes", is_flag=True, help="Don't ask.")
@as_admin
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@pass_target
def delete_command(
    target: Target, ids: tuple[str, ...], yes: bool, actor: Actor, dry_run: bool
) -> None:
    """Delete jobs that have ended, with their executions: all, or none."""
    from pgbeat import control

    with target.transaction(dry_run=True) as connection:
        found = [find(connection, target, actor, job_id) for job_id in ids]
        for job in found:
            control.delete(connection, actor, job.id)
    what = f"job {found[0].id}" if len(found) == 1 else printing.counted(len(found), "job")
    if dry_run:
        click.echo(f"Would delete {what}.")
    elif yes or click.confirm(f"Delete {what}?"):
        with target.transaction() as connection:
            for job in found:
                control.delete(connection, actor, job.id)
        click.echo(f"Deleted {what}.")
    else:
        click.echo("Nothing is deleted.")
