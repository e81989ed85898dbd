"""`pgbeat workers`: the workers, and Celery's remote control of them."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from pgbeat.cli import CommandGroup
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import asking, sure
from pgbeat.cli.terminal.options import F
from pgbeat.cli.terminal.printing import Cell, span
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.jobs.verbs import worker_control
from pgbeat.jobs.verbs.worker_control import Verb, WorkerCommand
from pgbeat.monitoring import app_versions, worker_usage
from pgbeat.monitoring.worker_usage import WorkerUsage
from pgbeat.views import broker as views


@click.group("workers", cls=CommandGroup, invoke_without_command=True)
@click.pass_context
@on_target
def workers_command(target: Target, ctx: click.Context) -> None:
    """Show the workers; shut one down, or change its pool or queues.

    Without a command: how many executions each runs, its queues, CPU and memory. Only workers
    that track executions are known. The JSON of orders has `worker` and `reply`.
    """
    if ctx.invoked_subcommand is not None:
        if printing.is_json():
            raise click.UsageError(f"--json doesn't go with {ctx.invoked_subcommand!r}")
        return
    with target.reading() as (connection, now):
        rows = worker_usage.listing(connection, target.namespace)
    printing.show_listing(
        rows,
        json_of=views.worker,
        cells_of=lambda row: _cells(row, now),
        names={"worker"},
        folding={"queues"},
        none="There are no workers that track; `celery -A APP worker` starts one.",
    )


def _cells(row: WorkerUsage, now: datetime) -> dict[str, Cell]:
    if row.missing_since is None:
        state = printing.styled("running") if row.running else "idle"
    else:
        state = printing.styled("lost")
    return {
        "worker": row.name,
        "state": state,
        "runs": row.running,
        "of": row.concurrency,
        "pool": row.pool,
        "queues": ", ".join(row.queues) if row.queues else None,
        "cpu": None if row.cpu is None else f"{row.cpu:.0%}",
        "memory": None if row.memory_mb is None else f"{row.memory_mb:,.0f} MB",
        "up for": span(now - row.started_at, units=1),
    }


@click.command("versions")
@on_target
def versions_command(target: Target) -> None:
    """Show which versions of the app run, and what waits for each.

    These are the values of pgbeat_version. Nothing runs on a drained one, and no job is pinned to
    it. Of an abandoned one no worker lives, though jobs wait for it.
    """
    with target.reading() as (connection, now):
        rows = app_versions.listing(connection, target.namespace)
    printing.show_listing(
        rows,
        json_of=views.app_version,
        cells_of=lambda row: {
            "version": row.version,
            "state": printing.styled(row.state),
            "workers": row.workers,
            "running": row.running,
            "waiting": row.waiting,
            "oldest": _ago(row.oldest_at, now),
            "first started": _ago(row.started_at, now),
        },
        names={"version"},
        none="No worker reports a version; set pgbeat_version, or GIT_SHA in its environment.",
    )


def _ago(at: datetime | None, now: datetime) -> str | None:
    return None if at is None else span(now - at, units=1)


def _send(target: Target, name: str, order: WorkerCommand) -> None:
    with target.work() as unit:
        reply = worker_control.send(unit, name, order)
    if reply:
        printing.result({"worker": name, "reply": reply}, f"{name} answers: {reply}.")
    else:
        printing.result({"worker": name, "reply": None}, f"Told {name} to shut down.")


@workers_command.command("shutdown")
@click.argument("name")
@asking
def shutdown_command(target: Target, name: str, yes: bool, dry_run: bool) -> None:
    """Shut a worker down: it ends its tasks, and takes no new ones. Needs the app."""
    target.require_app("workers are reached through the app's broker")
    with target.transaction() as connection:
        worker_control.require(connection, target.namespace, name)
    if sure("shut down", "shut down", f"worker {name!r}", yes=yes, dry_run=dry_run):
        _send(target, name, WorkerCommand("shutdown"))
    elif dry_run and printing.is_json():
        printing.echo_json({"worker": name, "reply": None})


def _add(verb: Verb, argument: Callable[[F], F], text: str) -> None:
    """Adds the command of an order that takes an argument."""

    @workers_command.command(verb, help=text)
    @click.argument("name")
    @argument
    @on_target
    def command(target: Target, name: str, **values: Any) -> None:
        _send(target, name, WorkerCommand(verb, **values))


_by = click.argument("by", type=click.IntRange(1, 1000), default=1)
_queue = click.argument("queue")
_add("grow", _by, "Let a worker run more at once: by 1, or BY. Needs the app.")
_add("shrink", _by, "Let a worker run less at once: by 1, or BY. Needs the app.")
_for_now = "until it ends. Needs the app."
_add("add-consumer", _queue, f"Let a worker consume from a QUEUE, too, {_for_now}")
_add("cancel-consumer", _queue, f"Let a worker consume no longer from a QUEUE, {_for_now}")
