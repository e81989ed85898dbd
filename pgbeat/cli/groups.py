"""`pgbeat groups`: jobs that were given together, looked at, made and ended."""

import json
import time
from collections.abc import Mapping
from typing import Any, TextIO
from uuid import UUID

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.cli import Noun, job_tail, job_views, printing
from pgbeat.cli.actors import as_admin
from pgbeat.cli.asking import dry_run_option
from pgbeat.cli.failures import FAILED, BadInput
from pgbeat.cli.options import newest_option
from pgbeat.cli.printing import counted, line, styled, when
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.jobs import permissions
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import MODES, ON_FAILURE, Group, MemberCounts
from pgbeat.jobs.model import Job

#: Members that a table shows, at most.
_SHOWN = 50
_STATES = ("running", "completed", "failed", "cancelled")
#: What a file of a group may have.
_KEYS = ("name", "mode", "on_failure", "jobs")
#: The order in which states are counted up.
_ORDER = (
    "completed",
    "skipped",
    "failed",
    "cancelled",
    "running",
    "scheduled",
    "paused",
    "pending",
)


@click.group("groups", cls=Noun)
def groups_command() -> None:
    """Look at groups of jobs, make one, cancel one.

    A group's jobs go all at once, or one after the other. You see and change your own; with --admin
    (or PGBEAT_ADMIN) those of everybody. An ID may be cut down to its first 4 characters or more.
    """


# -- looked at


@groups_command.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only those in it.")
@click.option("--created-by", metavar="WHO", help="Only those of one, such as user:alice.")
@newest_option
@as_admin
@json_option
@pass_target
def list_command(
    target: Target, state: str | None, created_by: str | None, limit: int, actor: Actor,
    as_json: bool,
) -> None:  # fmt: skip
    """List groups, the newest first: your own, or with --admin all."""
    whose = permissions.visible_owner(actor, created_by, "groups")
    with target.transaction() as connection:
        now = connections.now(connection)
        rows = groups.listing(
            connection, target.settings.namespace, state=state, created_by=whose, limit=limit
        )
        progress = groups.progress(connection, [row.id for row in rows])
        others = 0
        if whose != created_by:
            others = groups.count_of_others(
                connection, target.settings.namespace, actor.name, state=state,
                limit=job_views.MANY,
            )  # fmt: skip
    if as_json:
        printing.echo_json([_as_json(row, progress[row.id]) for row in rows])
    elif rows:
        table = printing.table(
            "group", "state", "name", "mode", "done", "age", "", folding={"name", ""},
            numbers={"done"},
        )  # fmt: skip
        for row in rows:
            found = progress[row.id]
            age = printing.span(now - row.created_at, units=1)
            state_now, name = styled(_state(row)), line(row.name or "")
            table.add_row(str(row.id), state_now, name, row.mode, _done(found), age, _counts(found))
        printing.show(table)
        if others:
            click.echo(job_views.hidden("group", others), err=True)
    else:
        of = "" if actor.is_admin else f" of yours ({actor.name}); --admin shows everybody's"
        click.echo(f"There are no groups{of}.")


@groups_command.command("show")
@click.argument("group_id", metavar="ID")
@as_admin
@json_option
@pass_target
def show_command(target: Target, group_id: str, actor: Actor, as_json: bool) -> None:
    """Show all about a group: how far it is, and its jobs in their order."""
    with target.transaction() as connection:
        now = connections.now(connection)
        group = _find(connection, target, actor, group_id)
        members = groups.members(connection, group.id)
        progress = groups.progress(connection, [group.id])[group.id]
    if as_json:
        jobs = [job_views.as_json(job) for job in members]
        printing.echo_json(_as_json(group, progress) | {"jobs": jobs})
        return
    click.secho(f"{group.id}", bold=True)
    cancelled = f"{when(group.cancelled_at, now)}, by {line(group.cancelled_by)}"
    printing.show(
        printing.facts(
            [
                ("name", line(group.name or "")),
                ("state", styled(_state(group))),
                ("done", f"{_done(progress)} ({progress.percent:.0f} %): {_counts(progress)}"),
                ("mode", group.mode),
                ("on failure", group.on_failure.replace("_", " ")),
                ("made", f"{when(group.created_at, now)}, by {line(group.created_by)}"),
                ("cancel", cancelled if group.cancelled_at is not None else None),
                ("ended", when(group.finished_at, now)),
            ]
        )
    )
    click.echo()
    table = printing.table("#", "job", "state", "task", "", folding={"task", ""}, numbers={"#"})
    for job in members[:_SHOWN]:
        table.add_row(
            str(job.group_position), str(job.id), styled(job.state), line(job.task), _remark(job)
        )
    printing.show(table)
    if len(members) > _SHOWN:
        click.echo(f"… and {len(members) - _SHOWN} more; --json has them all")


def _find(connection: Connection, target: Target, actor: Actor, text: str) -> Group:
    group = groups.find(connection, text, namespace=target.settings.namespace)
    permissions.require_group(actor, "show", group)
    return group


def _as_json(group: Group, progress: MemberCounts) -> dict[str, Any]:
    return group._asdict() | {"progress": progress._asdict() | {"percent": progress.percent}}


def _state(group: Group) -> str:
    is_ending = group.state == "running" and group.cancelled_at is not None
    return "running (cancelling)" if is_ending else group.state


def _done(progress: MemberCounts) -> str:
    return f"{progress.done}/{progress.total}"


def _counts(progress: MemberCounts) -> str:
    counts = progress.counts
    return ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts.get(state))


def _remark(job: Job) -> str | Text:
    if job.retried_by is not None:
        return f"tried again: {line(job.error or '')}"
    if job.error is not None:
        return line(job.error)
    return "when those before it have ended" if job.blocked_by_group and not job.has_ended else ""


# -- made


@groups_command.command("run")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--name", metavar="NAME", help="What to call it; the file's.")
@click.option("--mode", type=click.Choice(MODES), help="The file's, or parallel.")
@click.option("--on-failure", type=click.Choice(ON_FAILURE), help="The file's, or stop.")
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@as_admin
@dry_run_option
@json_option
@click.pass_context
@pass_target
def run_command(
    target: Target, ctx: click.Context, /, file: TextIO, wait: bool, actor: Actor, dry_run: bool,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Make a group of the jobs in a JSON FILE (- for standard input).

    The file is a list of jobs, or an object with `jobs`, `name`, `mode` (parallel, sequential) and
    `on_failure` (stop, skip_remaining, continue). A job is the name of a task, or an object with
    `task` or `template`, `args`, `kwargs`, `queue`, `options`, `run_at`, `countdown` and what else
    `pgbeat jobs run` has options for. All jobs are made, or none. Needs the app.
    """
    values = _read(file) | {key: value for key, value in given.items() if value is not None}
    members = values.pop("jobs")
    target.require_app("which tasks there are, and their queues, the app knows")
    from pgbeat.jobs import submit_group

    mode, on_failure = values.get("mode", "parallel"), values.get("on_failure", "stop")
    groups.check(mode, on_failure, values.get("name"))
    with target.work(actor) as unit:
        if dry_run:
            drafts = submit_group.prepare_members(unit, members, mode=mode, job_source="user_cli")
            click.echo(f"Would make a {mode} group of {counted(len(drafts), 'job')}.")
            return
        with unit.transaction():
            made = submit_group.submit(unit, members, **values, job_source="user_cli")
        group_id, number = made.group.id, counted(len(made.jobs), "job")
        if not as_json:
            hint = "" if wait else f"; `pgbeat groups show {str(group_id)[:8]}` says how far it is"
            click.echo(f"Made a {made.group.mode} group of {number}: {group_id}{hint}")
        group = _await(unit.connection, made.group) if wait else made.group
        if as_json:
            progress = groups.progress(unit.connection, [group_id])[group_id]
            jobs = [job_views.as_json(job) for job in groups.members(unit.connection, group_id)]
            printing.echo_json(_as_json(group, progress) | {"jobs": jobs})
    if wait:
        if not as_json:
            progress_now = _progress(target, group)
            click.echo(f"It {job_views.HAS[group.state]}: {_counts(progress_now)}.")
        ctx.exit(0 if group.state == "completed" else FAILED)


def _progress(target: Target, group: Group) -> MemberCounts:
    with target.transaction() as connection:
        return groups.progress(connection, [group.id])[group.id]


def _await(connection: Connection, group: Group) -> Group:
    """Looks until it has ended."""
    while group.state == "running":
        time.sleep(job_tail.INTERVAL)
        group = groups.get(connection, group.id)
    return group


def _read(file: TextIO) -> dict[str, Any]:
    """What a file says of a group. Raises `BadInput`."""
    try:
        found = json.load(file)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file.name} is no JSON: {error}") from None
    if isinstance(found, list):
        found = {"jobs": found}
    if not isinstance(found, Mapping) or not isinstance(found.get("jobs"), list):
        raise BadInput(
            f"{file.name} is no group; write a list of jobs, or an object such as "
            '{"mode": "sequential", "jobs": [{"task": "shop.load"}, …]}'
        )
    for key in found:
        if key not in _KEYS:
            raise BadInput(f"{file.name}: a group has no {key!r}; there are {', '.join(_KEYS)}")
    return dict(found)


# -- ended


@groups_command.command("cancel")
@click.argument("group_id", metavar="ID")
@dry_run_option
@as_admin
@json_option
@pass_target
def cancel_command(
    target: Target, group_id: str, dry_run: bool, actor: Actor, as_json: bool
) -> None:
    """End a group. Jobs that wait end now; those that run are ended by their workers. Needs the
    app."""
    with target.transaction() as connection:
        group = _find(connection, target, actor, group_id)
        counts = groups.progress(connection, [group.id])[group.id].counts
    running = counts.get("running", 0)
    waiting = sum(counts.get(state, 0) for state in ("pending", "scheduled", "paused"))
    if dry_run:
        if group.state != "running":
            click.echo(f"Group {group.id} {job_views.HAS[group.state]}.", err=as_json)
        else:
            click.echo(
                f"Would cancel group {group.id}: {counted(waiting, 'job')} that wait, "
                f"{running} that run.",
                err=as_json,
            )
        if as_json:
            printing.echo_json(_now(target, group.id))
        return
    target.require_app("the messages of jobs are the app's broker's")
    from pgbeat.jobs import submit_group

    with target.work(actor) as unit:
        done = submit_group.cancel(unit, group.id)
    if as_json:
        printing.echo_json(_now(target, group.id))
        return
    click.echo(f"Cancelled group {group.id}: {counted(done.ended, 'job')} ended.")
    if done.asked:
        what = "it runs" if done.asked == 1 else "they run"
        number = counted(done.asked, "job")
        click.echo(f"Asked for the end of {number}; until then {what}.")


def _now(target: Target, group_id: UUID) -> dict[str, Any]:
    """A group as it is now."""
    with target.transaction() as connection:
        progress = groups.progress(connection, [group_id])[group_id]
        return _as_json(groups.get(connection, group_id), progress)
