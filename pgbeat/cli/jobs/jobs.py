"""`pgbeat jobs`: look at jobs, make them, control them."""

import json
from collections.abc import Iterator
from typing import Any, TextIO

import click

from pgbeat.access.actors import Actor
from pgbeat.cli import Noun
from pgbeat.cli.jobs import job_logs, job_tail, job_tree, job_verbs, job_views
from pgbeat.cli.jobs.job_options import call_options, given_policy, policy_options, timing
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_admin, as_onlooker, find, find_group
from pgbeat.cli.terminal.failures import FAILED, SKIPPED, BadInput
from pgbeat.cli.terminal.options import (
    FLAG,
    SectionedCommand,
    describing,
    in_zone,
    label_filter,
    newest_option,
    option,
)
from pgbeat.cli.terminal.target import Target
from pgbeat.database.tables import JOB_STATES
from pgbeat.errors import NotFound
from pgbeat.jobs.flow.depends_on import OUTCOMES
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.searching import search
from pgbeat.jobs.searching.query import parse
from pgbeat.monitoring import statistics
from pgbeat.results import lookup
from pgbeat.schedules import model as schedules
from pgbeat.timetables import TICK, zone
from pgbeat.views import jobs as views

#: The exit status by how a job ended.
ENDS = {"completed": 0, "failed": FAILED, "cancelled": FAILED, "skipped": SKIPPED}


@click.group("jobs", cls=Noun)
def jobs_command() -> None:
    """Look at jobs, make them, hold, end and retry them.

    A job is one unit of launched work. You see all jobs and change your own; with --admin (or
    PGBEAT_ADMIN) everybody's and the system's. The first 4 characters of an ID are enough.
    """


@jobs_command.command("list")
@click.argument("query", nargs=-1)
@option("--state", click.Choice(JOB_STATES), "Only jobs in this state.")
@option("--task", "TASK", "Only jobs of this task.")
@option("--schedule", "NAME", "Only jobs of this schedule.")
@option("--template", "NAME", "Only jobs made from this template.")
@option("--lane", "NAME", "Only jobs in this lane.")
@option("--group", "ID", "Only jobs of this group.", "group_id")
@option("--created-by", "WHO", "Only jobs made by this actor, such as user:alice.")
@option("--system", FLAG, "Only the system's jobs.")
@option("--late", FLAG, "Only jobs that missed a deadline.")
@label_filter
@newest_option
@as_onlooker
def list_command(
    target: Target,
    /,
    actor: Actor,
    query: tuple[str, ...],
    schedule: str | None,
    limit: int,
    **filters: Any,
) -> None:
    """List jobs, the newest first: all, or those that a QUERY finds.

    A QUERY is for example: state:failed task:'shop.*' error:503 arg.site=x since:2h
    """
    asked = parse(" ".join(query)).also("schedule", schedule)
    filters["is_system_job"] = filters.pop("system") or None
    filters["late"] = filters["late"] or None
    with target.listing() as (connection, now):
        if filters["group_id"] is not None:
            group = find_group(connection, target, actor, filters["group_id"])
            filters["group_id"] = str(group.id)
        which = asked.filter(target.namespace, now, filters)
        if schedule := asked.get("schedule"):
            row = schedules.get(connection, schedule, namespace=target.namespace)
            which = which._replace(schedule_id=row.id)
        which = target.visible(actor, which)
        page = search.page(connection, which, limit=limit)
        if printing.is_json():
            page = search.in_full(connection, page)
        redactor = target.redactor(actor)
        rows = redactor.rows(page.rows)
        shown = views.listed(connection, rows, redactor) if printing.is_json() else []
    if printing.is_json():
        printing.echo_json(shown)
    elif rows:
        job_views.show_list(rows, now)
    else:
        kind = any(value is not None for value in (schedule or None, *filters.values()))
        click.echo(job_views.nothing(is_filtered=kind or bool(query)))
    if page.is_cut and page.next:
        before = (page.next[0] + TICK).isoformat()  # others may have been created at that time
        printing.note(f"older jobs were not searched; continue with 'before:{before}'")


@jobs_command.command("show")
@click.argument("job_id", metavar="ID")
@as_onlooker
def show_command(target: Target, job_id: str, actor: Actor) -> None:
    """Show all about a job: where it is, its executions, its retries and its result.

    Of a task that is not a job, it shows the result, by the whole id.
    """
    redactor = target.redactor(actor)
    prefix = lookup.prefix_of(target.app.conf if target.app is not None else {})
    with target.reading() as (connection, now):
        try:
            job = find(connection, target, actor, job_id)
        except NotFound:
            result = lookup.find(connection, job_id, prefix=prefix)
            if result is None:
                raise
            result = redactor.row(result, result.task)
            job_views.show_task(result, now)
            return
        job = redactor.row(job, job.task)
        result = redactor.row(lookup.find(connection, str(job.id), prefix=prefix), job.task)
        if printing.is_json():
            printing.echo_json(job_views.whole(connection, job, redactor) | {"result": result})
            return
        job_views.show_one(connection, job, redactor)
        if result is not None:
            click.echo()
            job_views.show_result(result)


@jobs_command.command("stats")
@click.argument("job_id", metavar="[ID]", required=False)
@option("--schedule", "NAME", "All jobs of this schedule.")
@as_onlooker
def stats_command(target: Target, job_id: str | None, schedule: str | None, actor: Actor) -> None:
    """Show outcomes and durations of executions.

    Those of a job with its retries, of a schedule, or of all jobs.
    """
    if job_id is not None and schedule is not None:
        raise click.UsageError("ID and --schedule exclude each other")
    namespace = target.namespace
    with target.listing() as (connection, now):
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
    if printing.is_json():
        view = views.figures(figures)
        if overview is not None:
            view = {"jobs": overview.jobs, "executions": view, "counters": overview.counters}
        printing.echo_json(view)
        return
    if overview is not None:
        job_views.show_overview(overview)
    job_views.show_figures(figures, now)


@jobs_command.command("tail")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(0, 1000),
    default=10,
    help="Without ID: how many jobs to begin with.",
)
@as_onlooker
def tail_command(target: Target, job_id: str | None, limit: int, actor: Actor) -> None:
    """Follow a job and its retries until the last has ended, or all jobs until you press Ctrl-C.

    For one job, the exit status is 0 if it completed, 1 if it failed or was cancelled, 3 if it was
    skipped. With --json, each change is one line, with `at`, `id`, `task`, `state`, `attempt`,
    `execution` (its number), `worker`, `progress`, `error` and `retried_by`.
    """
    with target.session() as connection:
        if job_id is None:
            which = Filter(namespace=target.namespace)
            job_tail.follow_all(connection, which, target.redactor(actor), limit=limit)
            return
        job = find(connection, target, actor, job_id)
        last = job_tail.follow(connection, job, target.redactor(actor))
        raise click.exceptions.Exit(ENDS[last.state])


@jobs_command.command("run", cls=SectionedCommand)
@click.argument("task", metavar="[TASK]", required=False)
@call_options
@option("--like", "ID", "Take all that is not given, such as the lane, from this job.")
@timing
@option("--depends-on", "ID", "Wait for this job to end; may be repeated.", multiple=True)
@option(
    "--depends-on-outcome",
    click.Choice(OUTCOMES),
    "How these jobs must end; finished: completed or failed.",
    default="completed",
)
@policy_options()
@describing
@option("--wait", FLAG, "Follow it until it has ended, as `tail` does.")
@option("--dry-run", FLAG, "Check it, and make nothing.")
@as_admin
def run_command(
    target: Target,
    /,
    task: str | None,
    like: str | None,
    wait: bool,
    actor: Actor,
    dry_run: bool,
    **options: Any,
) -> None:
    """Make a job of a task, from a template or like another job. It is yours. Needs the app.

    With --like, --kwargs and --options are added to those of the job. With --wait, its JSON is that
    of `pgbeat jobs tail`.
    """
    policy = job_policies.parse(given_policy(options))
    target.require_app("the app knows the tasks and their queues")
    from pgbeat.jobs.preparing import likeness, prepare
    from pgbeat.jobs.verbs import control

    if options["run_at"] is not None:
        options["run_at"] = in_zone(options["run_at"], zone(target.timezone), "--at")
    for name in ("kwargs", "options", "labels", "metadata"):
        options[name] = options[name] or {}
    spec = prepare.JobSpec(task, policy=policy, **options)
    with target.work(actor) as unit:
        parents = [find(unit.connection, target, actor, key).id for key in spec.depends_on]
        spec = spec._replace(depends_on=parents)
        if like is not None:
            other = find(unit.connection, target, actor, like)
            spec = likeness.complete(unit.connection, target.redactor(actor), actor, other, spec)
        with unit.transaction(dry_run=dry_run):
            row, is_new = control.submit(unit, spec, job_source="user_cli")
        redactor, follows = target.redactor(actor), wait and not dry_run
        job = redactor.row(row if dry_run else jobs.get(unit.connection, row.id), row.task)
        message = job_views.made(job, is_new=is_new, follows=wait)
        if dry_run and is_new:
            message = f"Would make a job of task {job.task!r}."
        if not (follows and printing.is_json()):
            printing.result(views.job(job) | {"is_new": is_new}, message)
        if follows:
            raise click.exceptions.Exit(ENDS[job_tail.follow(unit.connection, job, redactor).state])


@jobs_command.command("run-many")
@click.argument("file", type=click.File(encoding="utf-8"))
@option("--dry-run", FLAG, "Check them, and make nothing.")
@as_admin
def run_many_command(target: Target, file: TextIO, actor: Actor, dry_run: bool) -> None:
    """Make the jobs in a FILE (- for standard input), all or none. They are yours.

    Each line is a job in JSON: the name of a task, or an object with `task` or `template`, `args`,
    `kwargs`, `queue`, `options`, `run_at`, `countdown` and the other options of `pgbeat jobs run`.
    Needs the app.
    """
    target.require_app("the app knows the tasks and their queues")
    from pgbeat.jobs.submitting import submit_many

    with target.work(actor) as unit, unit.transaction(dry_run=dry_run):
        ids = submit_many.submit(unit, _lines(file), JobPolicy(), job_source="user_cli")
    verb = "Would make" if dry_run else "Made"
    view = {"dry_run": dry_run, "jobs": [] if dry_run else ids}
    printing.result(view, f"{verb} {printing.counted(len(ids), 'job')}.")


def _lines(file: TextIO) -> Iterator[Any]:
    """Yields the JSON values of a file's lines."""
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"{file.name}:{number} is not JSON: {error}") from None


for command in (job_tree.tree_command, *job_logs.COMMANDS, *job_verbs.COMMANDS):
    jobs_command.add_command(command)
