"""`pgbeat queues`: the broker's queues, and their consumers."""

from datetime import datetime

import click
from rich.text import Text

from pgbeat.broker import control, queues
from pgbeat.broker.queues import QueueSummary
from pgbeat.cli import CommandGroup
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import asking, sure
from pgbeat.cli.terminal.options import FLAG, option
from pgbeat.cli.terminal.printing import Cell, counted, span
from pgbeat.cli.terminal.target import Target, on_named, on_target
from pgbeat.config import delays_in_table
from pgbeat.database import connections
from pgbeat.views import broker as views


@click.group("queues", cls=CommandGroup, invoke_without_command=True)
@option("--all", FLAG, "Also those of remote control, events and replies.", "with_internal")
@click.pass_context
@on_target
def queues_command(target: Target, ctx: click.Context, with_internal: bool) -> None:
    """Show the queues; pause, resume or purge one.

    Without a command: how many messages wait in each queue, are delayed, claimed by consumers, or
    dead; how many consumers there are; for how long the oldest message has waited.
    """
    if ctx.invoked_subcommand is not None:
        if with_internal or printing.is_json():
            raise click.UsageError(f"--all and --json don't go with {ctx.invoked_subcommand!r}")
        return
    with target.reading() as (connection, now):
        target.require_broker(connection)
        everything = queues.all_queues(connection)
    rows = [row for row in everything if with_internal or not row.is_internal]
    printing.show_listing(
        rows,
        json_of=views.queue,
        cells_of=lambda row: _cells(row, now),
        names={"queue"},
        none="There are only internal queues, which --all shows."
        if everything
        else "There are no queues yet; `celery -A APP worker` makes those that it consumes from.",
    )
    if rows and not printing.is_json():
        _remark(target, "consumers and claims on the stock transport (sqla+) are not seen.")


def _cells(row: QueueSummary, now: datetime) -> dict[str, Cell]:
    paused = "" if row.paused_at is None else f"for {span(now - row.paused_at, units=1)}"
    return {
        "queue": row.name,
        "waiting": row.waiting,
        "delayed": row.delayed,
        "claimed": row.claimed,
        "dead": Text(str(row.dead), style="red" if row.dead else ""),
        "consumers": row.consumers,
        "oldest": None if row.age is None else span(row.age, units=1),
        "paused": Text(paused, style=printing.STYLES["paused"]),
    }


def _remark(target: Target, about_stock: str) -> None:
    """Prints a remark if the app's workers use kombu's stock transport."""
    if target.app is not None and not delays_in_table(target.app.conf):
        printing.note(about_stock)


@queues_command.command("pause")
@on_named
def pause_command(target: Target, name: str) -> None:
    """Keep consumers from claiming a queue's messages. Claimed messages are finished."""
    with target.unit() as unit:
        target.require_broker(unit.connection)
        row, is_new = control.pause(unit, name)
        now = connections.now(unit.connection)
    already = f"Queue {name!r} is paused already, since {printing.when(row.paused_at, now)}."
    printing.result(views.queue(row), f"Paused queue {name!r}." if is_new else already)
    if row.claimed:
        printing.note(f"consumers finish the {counted(row.claimed, 'message')} that they claimed.")
    _remark(target, "workers on the stock transport (sqla+) don't pause.")


@queues_command.command("resume")
@on_named
def resume_command(target: Target, name: str) -> None:
    """Let consumers claim a queue's messages again."""
    with target.unit() as unit:
        target.require_broker(unit.connection)
        row, was_paused = control.resume(unit, name)
    message = f"Resumed queue {name!r}." if was_paused else f"Queue {name!r} is not paused."
    printing.result(views.queue(row), message)


@queues_command.command("purge")
@click.argument("name")
@asking
def purge_command(target: Target, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a queue's waiting and delayed messages. Claimed and dead ones stay."""
    with target.transaction() as connection:
        target.require_broker(connection)
        row = queues.get(connection, name)
    what, count, is_refused, as_json = _to_purge(row), 0, False, printing.is_json()
    if not what:
        click.echo(f"No message waits in queue {name!r}.", err=as_json)
    elif sure("delete", "deleted", what, yes=yes, dry_run=dry_run):
        total = row.waiting + row.delayed

        def tell(deleted: int) -> None:
            if deleted < total:
                printing.note(f"{deleted} of {counted(total, 'message')} deleted")

        with target.work() as unit:
            count = control.purge(unit, name, tell)
        click.echo(f"Deleted {counted(count, 'message')} from queue {name!r}.", err=as_json)
    else:
        is_refused = not dry_run
    if as_json:
        printing.echo_json({"name": name, "deleted": count})
    if is_refused:
        return
    if row.claimed:
        claimed = counted(row.claimed, "message")
        printing.note(f"{claimed} claimed by consumers can't be deleted.")


def _to_purge(row: QueueSummary) -> str:
    count = row.waiting + row.delayed
    delayed = f", {row.delayed} of them delayed" if row.delayed else ""
    return f"{counted(count, 'message')} from queue {row.name!r}{delayed}" if count else ""
