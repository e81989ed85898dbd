"""`pgbeat groups`: jobs that were submitted together."""

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

import click

from pgbeat.access.actors import Actor
from pgbeat.cli import Noun
from pgbeat.cli.jobs import job_tail, job_views
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_admin, as_onlooker, find_group
from pgbeat.cli.terminal.asking import dry_run_option
from pgbeat.cli.terminal.failures import FAILED, BadInput
from pgbeat.cli.terminal.options import FLAG, newest_option, option
from pgbeat.cli.terminal.printing import Cell, counted, styled, when, when_and_who
from pgbeat.cli.terminal.target import Target
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import MODES, ON_FAILURE, Group, MemberCounts
from pgbeat.jobs.rows.model import Job, in_full
from pgbeat.views import groups as views

#: Members that a table shows, at most.
_SHOWN = 50
_STATES = ("running", "completed", "failed", "cancelled")
#: The keys of a group's file.
_KEYS = ("name", "mode", "on_failure", "callback", "callback_outcome", "jobs")
#: The states of jobs, in the order in which they are counted.
_ORDER = (
    "completed", "skipped", "failed", "cancelled", "running", "scheduled", "paused", "pending",
)  # fmt: skip


@click.group("groups", cls=Noun)
def groups_command() -> None:
    """Look at groups of jobs, make one, cancel one.

    A group's jobs run all at once, or one after the other. You see all groups and change your own;
    with --admin (or PGBEAT_ADMIN) everybody's. The first 4 characters of an ID are enough.
    """


@groups_command.command("list")
@option("--state", click.Choice(_STATES), "Only groups in this state.")
@option("--created-by", "WHO", "Only groups made by this actor: user:alice.")
@newest_option
@as_onlooker
def list_command(
    target: Target, state: str | None, created_by: str | None, limit: int, actor: Actor
) -> None:
    """List groups, the newest first."""
    with target.listing() as (connection, now):
        rows = groups.listing(
            connection, target.namespace, state=state, created_by=created_by, limit=limit
        )
        progress = groups.progress(connection, [row.id for row in rows])
    printing.show_listing(
        rows,
        json_of=lambda row: views.group(row, progress[row.id]),
        cells_of=lambda row: _cells(row, progress[row.id], now),
        names={"name"},
        folding={""},
        none="There are no groups.",
    )


def _cells(row: Group, progress: MemberCounts, now: datetime) -> dict[str, Cell]:
    return {
        "group": printing.short_id(row.id),
        "state": styled(_state(row)),
        "name": row.name,
        "mode": row.mode,
        "done": _done(progress),
        "age": printing.span(now - row.created_at, units=1),
        "": _counts(progress),
    }


@groups_command.command("show")
@click.argument("group_id", metavar="ID")
@as_onlooker
def show_command(target: Target, group_id: str, actor: Actor) -> None:
    """Show all about a group: its progress, and its jobs in their order."""
    with target.reading() as (connection, now):
        group = find_group(connection, target, actor, group_id)
        members = groups.members(connection, group.id)
        if printing.is_json():
            members = in_full(connection, members)
        members = target.redactor(actor).rows(members)
        progress = groups.progress(connection, [group.id])[group.id]
    if printing.is_json():
        printing.echo_json(views.detail(group, progress, members))
        return
    printing.show_facts(
        str(group.id),
        ("name", group.name),
        ("state", styled(_state(group))),
        ("done", f"{_done(progress)} ({progress.percent:.0f} %): {_counts(progress)}"),
        ("mode", group.mode),
        ("on failure", group.on_failure.replace("_", " ")),
        ("made", when_and_who(group.created_at, group.created_by, now)),
        ("cancel", when_and_who(group.cancelled_at, group.cancelled_by, now)),
        ("ended", when(group.finished_at, now)),
    )
    click.echo()
    rows: list[dict[str, Cell]] = [
        {
            "#": job.group_position,
            "job": printing.short_id(job.id),
            "state": styled(job.state),
            "task": job.task,
            "": _remark(job),
        }
        for job in members[:_SHOWN]
    ]
    printing.show_table(rows, names={"task"}, folding={""})
    if len(members) > _SHOWN:
        click.echo(f"… and {len(members) - _SHOWN} more; --json has them all")


def _state(group: Group) -> str:
    is_ending = group.state == "running" and group.cancelled_at is not None
    return "running (cancelling)" if is_ending else group.state


def _done(progress: MemberCounts) -> str:
    return f"{progress.done}/{progress.total}"


def _counts(progress: MemberCounts) -> str:
    counts = progress.counts
    return ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts.get(state))


def _remark(job: Job) -> str | None:
    if job.retried_by is not None:
        return f"retried: {job.error or ''}"
    if job.error is None and job.is_blocked and not job.has_ended:
        return "after the jobs before it"
    return job.error


@groups_command.command("run")
@click.argument("file", type=click.File(encoding="utf-8"))
@option("--name", "NAME", "Its name; by default the file's.")
@option("--mode", click.Choice(MODES), "By default the file's, or parallel.")
@option("--on-failure", click.Choice(ON_FAILURE), "By default the file's, or stop.")
@option("--wait", FLAG, "Wait until it has ended.")
@dry_run_option
@as_admin
def run_command(
    target: Target, /, file: TextIO, wait: bool, actor: Actor, dry_run: bool, **options: Any
) -> None:
    """Make a group of the jobs in a JSON FILE (- for standard input).

    The file is a list of jobs, or an object with `jobs`, `name`, `mode` (parallel, sequential),
    `on_failure` (stop, skip_remaining, continue), `callback`, a job to run at the end, and
    `callback_outcome` (completed, failed, finished). A job is the name of a task, or an object with
    `task` or `template`, `args`, `kwargs`, `queue`, `options`, `run_at`, `countdown`, `key`,
    `depends_on` (keys, positions or ids) and the other options of `pgbeat jobs run`. All jobs are
    made, or none. Needs the app. With --dry-run, its JSON has `dry_run`, `mode` and `jobs` (how
    many).
    """
    values = _read(file) | {key: value for key, value in options.items() if value is not None}
    members = values.pop("jobs")
    target.require_app("the app knows the tasks and their queues")
    from pgbeat.jobs.submitting import submit_group

    with target.work(actor) as unit:
        with unit.transaction(dry_run=dry_run):
            submitted = submit_group.submit(unit, members, **values, job_source="user_cli")
        group, number = submitted.group, counted(len(submitted.jobs), "job")
        if dry_run:
            also = "" if submitted.callback is None else " and its callback"
            view = {"dry_run": True, "mode": group.mode, "jobs": len(submitted.jobs)}
            printing.result(view, f"Would make a {group.mode} group of {number}{also}.")
            return
        if not printing.is_json():
            hint = "" if wait else f"; `pgbeat groups show {str(group.id)[:8]}` shows its progress"
            click.echo(f"Made a {group.mode} group of {number}: {group.id}{hint}")
        while wait and group.state == "running":
            time.sleep(job_tail.INTERVAL)
            group = groups.get(unit.connection, group.id)
        progress = groups.progress(unit.connection, [group.id])[group.id]
        if printing.is_json():
            rows = in_full(unit.connection, groups.members(unit.connection, group.id))
            shown = target.redactor(actor).rows(rows)
            printing.echo_json(views.detail(group, progress, shown))
        elif wait:
            click.echo(f"It {job_views.HAS[group.state]}: {_counts(progress)}.")
    if wait:
        raise click.exceptions.Exit(0 if group.state == "completed" else FAILED)


def _read(file: TextIO) -> dict[str, Any]:
    """Reads the file of a group."""
    try:
        content = json.load(file)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file.name} is not JSON: {error}") from None
    if isinstance(content, list):
        content = {"jobs": content}
    if not isinstance(content, Mapping) or not isinstance(content.get("jobs"), list):
        raise BadInput(
            f"{file.name} is not a group; write a list of jobs, or an object such as "
            '{"mode": "sequential", "jobs": [{"task": "shop.load"}, …]}'
        )
    for key in content:
        if key not in _KEYS:
            raise BadInput(f"{file.name}: a group has no {key!r}; its keys are {', '.join(_KEYS)}")
    return dict(content)


@groups_command.command("cancel")
@click.argument("group_id", metavar="ID")
@dry_run_option
@as_admin
def cancel_command(target: Target, group_id: str, dry_run: bool, actor: Actor) -> None:
    """Cancel a group. Waiting jobs end now; workers end running jobs. Needs the app."""
    with target.transaction() as connection:
        group = find_group(connection, target, actor, group_id)
        groups.require_running(group)
        counts = groups.progress(connection, [group.id])[group.id].counts
    if dry_run:
        waiting = sum(counts.get(state, 0) for state in ("pending", "scheduled", "paused"))
        message = f"Would cancel group {group.id}: {counted(waiting, 'job')} that wait, "
        message += f"{counts.get('running', 0)} that run."
        click.echo(message, err=printing.is_json())
    else:
        target.require_app("the jobs' messages are in the app's broker")
        from pgbeat.jobs.submitting import submit_group

        with target.work(actor) as unit:
            done = submit_group.cancel(unit, group.id)
        message = f"Cancelled group {group.id}: {counted(done.ended, 'job')} ended."
        if done.asked:
            message += f"\nRequested the end of {counted(done.asked, 'running job')}."
        if not printing.is_json():
            click.echo(message)
    if printing.is_json():
        with target.transaction() as connection:
            progress = groups.progress(connection, [group.id])[group.id]
            printing.echo_json(views.group(groups.get(connection, group.id), progress))
