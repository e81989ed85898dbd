"""`pgbeat jobs`: looked at, made, held, ended, tried again."""

from typing import Any

import click

from pgbeat.access.actors import Actor
from pgbeat.cli import Noun, job_tail, job_verbs, job_views, printing
from pgbeat.cli.actors import as_admin, find
from pgbeat.cli.failures import FAILED, SKIPPED
from pgbeat.cli.job_options import as_policy, call_options, policy_options
from pgbeat.cli.options import (
    Command,
    describing,
    duration,
    in_zone,
    label_filter,
    newest_option,
    read_moment,
)
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.database.tables import JOB_STATES
from pgbeat.jobs import executions, permissions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.model import Filter
from pgbeat.monitoring import statistics
from pgbeat.schedules import model as schedules
from pgbeat.timetables import zone

#: The exit status by how a job ended.
ENDS = {"completed": 0, "failed": FAILED, "cancelled": FAILED, "skipped": SKIPPED}


@click.group("jobs", cls=Noun)
def jobs_command() -> None:
    """Look at jobs, make them, hold, end and retry them.

    A job is one unit of launched work. You see and change your own; with --admin (or PGBEAT_ADMIN)
    those of everybody, and the system's. An ID may be cut down to its first 4 characters or more.
    """


# -- looked at


@jobs_command.command("list")
@click.option("--state", type=click.Choice(JOB_STATES), help="Only those in it.")
@click.option("--task", metavar="TASK", help="Only those of a task.")
@click.option("--schedule", metavar="NAME", help="Only those of a schedule.")
@click.option("--template", metavar="NAME", help="Only those made from a template.")
@click.option("--lane", metavar="NAME", help="Only those of a lane.")
@click.option("--group", "group_id", type=click.UUID, metavar="ID", help="Only those of a group.")
@click.option("--created-by", metavar="WHO", help="Only those of one, such as user:alice.")
@click.option("--system", is_flag=True, help="Only those that are the system's.")
@label_filter
@newest_option
@as_admin
@json_option
@pass_target
def list_command(
    target: Target, /, actor: Actor, schedule: str | None, limit: int, as_json: bool, **given: Any
) -> None:
    """List jobs, the newest first: your own, or with --admin all."""
    namespace = target.settings.namespace
    given["is_system_job"] = given.pop("system") or None
    if given["group_id"] is not None:
        given["group_id"] = str(given["group_id"])
    with target.transaction() as connection:
        now = connections.now(connection)
        if schedule is not None:
            row = schedules.get(connection, schedule, namespace=namespace)
            given["schedule_id"] = row.id
        asked = Filter(namespace=namespace, **given)
        which = permissions.visible(actor, asked)
        rows = jobs.listing(connection, which, limit=limit)
        made = executions.artifacts(connection, [row.id for row in rows]) if as_json else {}
        others = 0
        if which != asked:
            others = jobs.count_of_others(connection, asked, actor.name, limit=job_views.MANY)
    if as_json:
        printing.echo_json(
            [job_views.as_json(row) | {"artifacts": made.get(row.id, [])} for row in rows]
        )
    elif rows:
        job_views.show_list(rows, now)
        if others:
            click.echo(job_views.hidden("job", others), err=True)
    else:
        kind = any(value is not None for value in (schedule, *given.values()))
        click.echo(job_views.nothing(is_filtered=kind, others=others, actor=actor))


@jobs_command.command("show")
@click.argument("job_id", metavar="ID")
@as_admin
@json_option
@pass_target
def show_command(target: Target, job_id: str, actor: Actor, as_json: bool) -> None:
    """Show all about a job: where it is, its executions, and what else tried the same."""
    with target.transaction() as connection:
        job = find(connection, target, actor, job_id)
        if as_json:
            printing.echo_json(job_views.whole(connection, job))
        else:
            job_views.show_one(connection, job)


@jobs_command.command("stats")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--schedule", metavar="NAME", help="Of a schedule's jobs.")
@as_admin
@json_option
@pass_target
def stats_command(
    target: Target, job_id: str | None, schedule: str | None, actor: Actor, as_json: bool
) -> None:
    """Say how executions came out, and how long they took: of a job with its retries, of a
    schedule, or of all jobs."""
    if job_id is not None and schedule is not None:
        raise click.UsageError("ID and --schedule exclude each other")
    namespace = target.settings.namespace
    with target.transaction() as connection:
        now = connections.now(connection)
        overview = None
        if job_id is not None:
            job = find(connection, target, actor, job_id)
            figures = statistics.of_job(connection, job.id, namespace=namespace)
        elif schedule is not None:
            row = schedules.get(connection, schedule, namespace=namespace)
            figures = statistics.of_schedule(connection, row.id)
        else:
            overview = statistics.of_all(connection, namespace)
            figures = overview.runs
    if as_json:
        found = job_views.figures_json(figures)
        if overview is not None:
            found = {"jobs": overview.jobs, "executions": found, "counters": overview.counters}
        printing.echo_json(found)
        return
    if overview is not None:
        job_views.show_overview(overview)
    job_views.show_figures(figures, now)


@jobs_command.command("tail")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("-n", "--limit", type=click.IntRange(0, 1000), default=10, show_default=True,
              help="Jobs to begin with, where all are followed.")  # fmt: skip
@as_admin
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each change.")
@click.pass_context
@pass_target
def tail_command(
    target: Target, ctx: click.Context, job_id: str | None, limit: int, actor: Actor, as_json: bool
) -> None:
    """Follow a job until it has ended, or your jobs until you press Ctrl-C.

    Of one job, the exit status is 0 if it completed, 1 if it failed or was cancelled, 3 if it was
    skipped. Where a retry follows, that is followed.
    """
    with target.session() as connection:
        if job_id is None:
            which = permissions.visible(actor, Filter(namespace=target.settings.namespace))
            job_tail.follow_all(connection, which, limit=limit, as_json=as_json)
            return
        job = find(connection, target, actor, job_id)
        ctx.exit(ENDS[job_tail.follow(connection, job, as_json=as_json).state])


# -- made


@jobs_command.command("run", cls=Command)
@click.argument("task", metavar="[TASK]", required=False)
@call_options
@click.option("--at", "run_at", type=read_moment, metavar="WHEN", help="Not before.")
@click.option("--in", "countdown", type=duration, metavar="TIME", help="Not before so long.")
@policy_options()
@describing
@click.option("--wait", is_flag=True, help="Follow it until it has ended, as `tail` does.")
@as_admin
@click.option("--dry-run", is_flag=True, help="Check it, and make nothing.")
@json_option
@click.pass_context
@pass_target
def run_command(
    target: Target, ctx: click.Context, /, task: str | None, wait: bool, actor: Actor,
    dry_run: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Make a job of a task, or of a template: queued, executed and kept as those of schedules.

    It is yours. Needs the app.
    """
    policy = as_policy(given)
    app = target.require_app("which tasks there are, and their queues, the app knows")
    from pgbeat.jobs import control, prepare
    from pgbeat.jobs.defaults import JobDefaults

    if given["run_at"] is not None:
        given["run_at"] = in_zone(given["run_at"], zone(target.timezone), "--at")
    given["kwargs"] = given["kwargs"] or {}
    given["options"] = given["options"] or {}
    given["labels"] = given["labels"] or {}
    given["metadata"] = given["metadata"] or {}
    spec = prepare.JobSpec(task, policy=policy, **given)
    with target.work(actor) as unit:
        if dry_run:
            defaults = JobDefaults(unit.connection, target.settings, [policy])
            prepared = prepare.prepare(app, defaults, spec, actor, "user_cli")
            click.echo(f"Would make a job of task {prepared.job.task!r}.")
            return
        with unit.transaction():
            made = control.submit(unit, spec, job_source="user_cli")
        job = jobs.get(unit.connection, made.job.id)
        if as_json and not wait:
            printing.echo_json(job_views.as_json(job) | {"is_new": made.is_new})
            return
        if not as_json:
            click.echo(job_views.made(job, is_new=made.is_new, follows=wait))
        if wait:
            ctx.exit(ENDS[job_tail.follow(unit.connection, job, as_json=as_json).state])


for command in (
    job_verbs.cancel_command, job_verbs.pause_command, job_verbs.resume_command,
    job_verbs.approve_command, job_verbs.retry_command, job_verbs.update_command,
    job_verbs.move_command, job_verbs.delete_command,
):  # fmt: skip
    jobs_command.add_command(command)
