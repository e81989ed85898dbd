"""`pgbeat fence`: hold what a restored database would do again, and release it."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from pgbeat.access.actors import Actor
from pgbeat.beat.verbs import fences as verbs
from pgbeat.cli import CommandGroup
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_admin
from pgbeat.cli.terminal.asking import dry_run_option, sure, yes_option
from pgbeat.cli.terminal.options import FLAG, MOMENT, option
from pgbeat.cli.terminal.printing import Cell, utc
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.database import fence
from pgbeat.errors import NotFound
from pgbeat.monitoring import fences
from pgbeat.monitoring.fences import Held
from pgbeat.views import fences as views

_ended_option = option(
    "--ended",
    click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    "Ids of tasks that ended before the restore, one a line; - for standard input.",
)


@click.group("fence", cls=CommandGroup, invoke_without_command=True)
@click.pass_context
@on_target
def fence_command(target: Target, ctx: click.Context) -> None:
    """Show what is held after a restore; hold it, or release it.

    A restored database would run again what had run after the moment that it shows.
    """
    if ctx.invoked_subcommand is not None:
        return
    with target.reading() as (connection, _):
        server, last = fence.read(connection), fences.newest(connection)
    if printing.is_json():
        printing.echo_json(views.fence(server, last))
        return
    click.echo(f"Server: system {server.system or 'unknown'}, timeline {server.timeline}.")
    if last is None or last.released_at is not None:
        before = "" if last is None else f" The last one was released {utc(last.released_at)} UTC."
        click.echo(f"No fence is raised.{before}")
        return
    reason = "" if last.reason is None else f": {last.reason}"
    click.echo(f"Fence {last.epoch}, raised {utc(last.raised_at)} UTC by {last.raised_by}{reason}.")
    click.echo(f"Queues held: {', '.join(last.queues) or 'none'}.")
    click.echo(f"Schedules held: {', '.join(last.schedules) or 'none'}.")


@fence_command.command("raise")
@option("--reason", "TEXT", "Why, for the record.")
@option("--restored-to", MOMENT, "The moment that the restored database shows.")
@yes_option
@dry_run_option
@as_admin
def raise_command(
    target: Target,
    actor: Actor,
    reason: str | None,
    restored_to: datetime | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Hold all queues and schedules of the database, in all namespaces. Needs --admin.

    What runs goes on to its end.
    """
    what = "all queues and schedules of the database"
    with target.unit(actor, dry_run=True) as unit:  # errors come before the question
        held = verbs.raise_fence(unit, reason=reason, restored_to=restored_to)
    if sure("hold", "held", what, yes=yes, dry_run=dry_run):
        with target.unit(actor) as unit:
            held = verbs.raise_fence(unit, reason=reason, restored_to=restored_to)
        printing.result(held._asdict(), f"Raised: {held.summary}.")
    elif dry_run and printing.is_json():
        printing.echo_json(held._asdict())


@fence_command.command("tasks")
@_ended_option
@on_target
def tasks_command(target: Target, ended: Path | None) -> None:
    """Show the tasks that the fence holds, which may have run before the restore.

    With --ended only those in a file, such as the ids in a log: they would run twice.
    """
    known = None if ended is None else _ids(ended)
    with target.reading() as (connection, _):
        held = fences.require_raised(connection)
        rows = [
            row
            for row in fences.held_tasks(connection, held)
            if known is None or row.is_among(known)
        ]
    printing.show_listing(rows, cells_of=_cells, names={"id"}, none="No task is held.")


@fence_command.command("release")
@option("--all", FLAG, "All that is held.", "everything")
@option("--queue", "NAME", "A queue; may be repeated.", "queues", multiple=True)
@option("--schedule", "NAME", "A schedule; may be repeated.", "schedules", multiple=True)
@option("--queues", FLAG, "All queues.", "all_queues")
@option("--schedules", FLAG, "All schedules, of all namespaces.", "all_schedules")
@_ended_option
@as_admin
def release_command(
    target: Target,
    actor: Actor,
    everything: bool,
    queues: Sequence[str],
    schedules: Sequence[str],
    all_queues: bool,
    all_schedules: bool,
    ended: Path | None,
) -> None:
    """Release what the fence holds, all or part. Needs --admin.

    With --ended, first drops the tasks in a file: jobs are cancelled, messages deleted. A schedule
    is due at the next time of its timetable. Its JSON has `dropped` (ids) and `left`, the fence.
    """
    if not (everything or queues or schedules or all_queues or all_schedules or ended):
        raise click.UsageError("say what: --all, --queues, --schedules, --queue or --schedule")
    with target.unit(actor) as unit:
        dropped = [] if ended is None else verbs.drop_ended(unit, _ids(ended))
        left = verbs.release(
            unit,
            of_queues=None if everything or all_queues else queues,
            of_schedules=None if everything or all_schedules else schedules,
        )
    shown: dict[str, Any] = {"dropped": [task.id for task in dropped], "left": left._asdict()}
    said = f"Dropped {printing.counted(len(dropped), 'task')}. " if dropped else ""
    is_over = left.released_at is not None
    printing.result(shown, f"{said}All is released." if is_over else f"{said}Still {left.summary}.")


@fence_command.command("accept")
@as_admin
def accept_command(target: Target, actor: Actor) -> None:
    """Say that the database was moved to its server, with all that it had done. Needs --admin.

    As after a major upgrade of Postgres. Nothing is held.
    """
    with target.unit(actor) as unit:
        server = verbs.accept(unit)
    printing.result(server._asdict(), f"Accepted the server: system {server.system}.")


def _ids(path: Path) -> set[str]:
    """Reads ids, one a line."""
    text = sys.stdin.read() if str(path) == "-" else path.read_text()
    ids = {line.strip() for line in text.splitlines()} - {""}
    if not ids:
        raise NotFound(f"there are no ids in {path}")
    return ids


def _cells(row: Held) -> dict[str, Cell]:
    return {
        "id": row.id,
        "task": row.task,
        "state": row.state,
        "queue": row.queue,
        "sent (UTC)": utc(row.created_at),
        "retry of": row.retry_of,
    }
