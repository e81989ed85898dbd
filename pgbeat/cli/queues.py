"""`pgbeat queues`: the broker's queues, and those who look after them."""

from datetime import datetime

import click
from rich.text import Text

from pgbeat.broker import control, queues
from pgbeat.broker.queues import QueueSummary
from pgbeat.cli import Group, printing
from pgbeat.cli.asking import asking, sure
from pgbeat.cli.printing import counted, line, span
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.config import delays_in_table
from pgbeat.database import connections


@click.group("queues", cls=Group, invoke_without_command=True)
@click.option("--all", "with_internal", is_flag=True,
              help="Those of remote control, events and replies, too.")  # fmt: skip
@json_option
@click.pass_context
@pass_target
def queues_command(target: Target, ctx: click.Context, with_internal: bool, as_json: bool) -> None:
    """Show the queues; pause, resume or purge one.

    Without a command: how many messages wait in each queue, are delayed, claimed by consumers, or
    dead; how many consumers there are; for how long the oldest message has waited.
    """
    if ctx.invoked_subcommand is not None:
        if with_internal or as_json:
            raise click.UsageError(f"--all and --json don't go with {ctx.invoked_subcommand!r}")
        return
    with target.transaction() as connection:
        now = connections.now(connection)
        everything = queues.all_queues(connection, target.broker(connection))
    rows = [row for row in everything if with_internal or not row.is_internal]
    if as_json:
        printing.echo_json([row._asdict() for row in rows])
    elif rows:
        _show(rows, now)
        _remark(target, "consumers and claims on the stock transport (sqla+) are not seen.")
    elif everything:
        click.echo("There are no queues but internal ones, which --all shows.")
    else:
        click.echo(
            "There are no queues yet; `celery -A APP worker` makes those that it consumes from."
        )


def _show(rows: list[QueueSummary], now: datetime) -> None:
    numbers = ["waiting", "delayed", "claimed", "dead", "consumers"]
    columns = ["queue", *numbers, "oldest", "paused"]
    table = printing.table(*columns, folding={"queue"}, numbers=numbers)
    for row in rows:
        table.add_row(
            line(row.name),
            str(row.waiting),
            str(row.delayed),
            str(row.claimed),
            Text(str(row.dead), style="red" if row.dead else ""),
            str(row.consumers),
            "" if row.age is None else span(row.age, units=1),
            Text("" if row.paused_at is None else f"for {span(now - row.paused_at, units=1)}",
                 style=printing.STYLES["paused"]),
        )  # fmt: skip
    printing.show(table)


def _remark(target: Target, about_stock: str) -> None:
    """Says what is otherwise where the app's workers are on kombu's stock transport."""
    if target.app is not None and not delays_in_table(target.app.conf):
        printing.note(about_stock)


@queues_command.command("pause")
@click.argument("name")
@json_option
@pass_target
def pause_command(target: Target, name: str, as_json: bool) -> None:
    """Keep consumers from claiming a queue's messages. What they have claimed goes on."""
    with target.unit() as unit:
        row, is_new = control.pause(unit, target.broker(unit.connection), name)
        now = connections.now(unit.connection)
    said = f"Paused queue {name!r}."
    if not is_new:
        said = f"Queue {name!r} is paused already, since {printing.when(row.paused_at, now)}."
    printing.result(row._asdict(), said, as_json=as_json)
    if row.claimed:
        claimed = counted(row.claimed, "message")
        printing.note(f"the work on {claimed}, claimed before, goes on.")
    _remark(target, "workers on the stock transport (sqla+) go on all the same.")


@queues_command.command("resume")
@click.argument("name")
@json_option
@pass_target
def resume_command(target: Target, name: str, as_json: bool) -> None:
    """Let consumers claim a queue's messages again."""
    with target.unit() as unit:
        row, was_paused = control.resume(unit, target.broker(unit.connection), name)
    said = f"Resumed queue {name!r}." if was_paused else f"Queue {name!r} is not paused."
    printing.result(row._asdict(), said, as_json=as_json)


@queues_command.command("purge")
@click.argument("name")
@asking
@json_option
@pass_target
def purge_command(target: Target, name: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the messages that wait in a queue, delayed ones too. Claimed and dead ones stay."""
    with target.transaction() as connection:
        tables = target.broker(connection)
        row = queues.get(connection, tables, name)
    what, count, is_refused = _to_purge(row), 0, False
    if not what:
        click.echo(f"No message waits in queue {name!r}.", err=as_json)
    elif sure("delete", "deleted", what, yes=yes, dry_run=dry_run, as_json=as_json):
        with target.unit() as unit:
            count = control.purge(unit, tables, name)
        click.echo(f"Deleted {counted(count, 'message')} from queue {name!r}.", err=as_json)
    else:
        is_refused = not dry_run
    if as_json:
        printing.echo_json({"name": name, "deleted": count})
    if is_refused:
        return
    if row.claimed:
        claimed = counted(row.claimed, "message")
        printing.note(f"{claimed} claimed by consumers can't be deleted from here.")


def _to_purge(row: QueueSummary) -> str:
    count = row.waiting + row.delayed
    delayed = f", {row.delayed} of them delayed" if row.delayed else ""
    return f"{counted(count, 'message')} from queue {row.name!r}{delayed}" if count else ""
