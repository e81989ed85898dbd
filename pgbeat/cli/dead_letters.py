"""`pgbeat dead`: messages that nobody could handle, and what is to become of them."""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from pgbeat.broker import control, dead_letters, queues
from pgbeat.broker.dead_letters import DeadLetter
from pgbeat.cli import Noun, printing
from pgbeat.cli.asking import asking, dry_run_option, sure
from pgbeat.cli.options import duration, newest_option
from pgbeat.cli.printing import counted, line, span
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dead", cls=Noun)
def dead_command() -> None:
    """Look at dead letters, put them back or drop them.

    A message is dead when it was delivered as often as its queue allows, or was rejected.
    """


_queue = click.option("--queue", metavar="QUEUE", help="Only those of this queue.")


@dead_command.command("list")
@_queue
@newest_option
@json_option
@pass_target
def list_command(target: Target, queue: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, the newest first."""
    with target.transaction() as connection:
        now = connections.now(connection)
        tables = target.broker(connection)
        found = dead_letters.find(connection, tables, queue=queue, limit=limit + 1)
        if not found and queue is not None:
            queues.get(connection, tables, queue)
    rows = found[:limit]
    if as_json:
        printing.echo_json([_json(row) for row in rows])
    elif rows:
        _show(rows, now)
    else:
        click.echo(f"There are no dead letters{_scope(queue)}.")
    if len(found) > limit:
        printing.note(f"there are more than these {limit}; --limit shows them.")


def _json(row: DeadLetter) -> dict[str, Any]:
    names = {"task": row.task, "task_id": row.task_id}
    return {key: value for key, value in (row._asdict() | names).items() if key != "payload"}


#: Columns of the terminal from which what there is to say of one goes on one line.
_WIDE = 150


def _show(rows: list[DeadLetter], now: datetime) -> None:
    wide = printing.is_wide(_WIDE)
    middle = ["task", "task id", "reason"] if wide else ["task, its id, and the reason"]
    columns = ["id", "queue", *middle, "deliveries", "died"]
    folding, numbers = {"queue", *middle}, {"id", "deliveries"}
    table = printing.table(*columns, folding=folding, numbers=numbers)
    for row in rows:
        what = [line(row.task or "unknown"), line(row.task_id or ""), line(row.reason)]
        table.add_row(
            str(row.id),
            line(row.queue),
            *(what if wide else ["\n".join(filter(None, what))]),
            str(row.deliveries),
            f"{span(now - row.died_at, units=1)} ago",
        )
    printing.show(table)


def _selecting(command: F) -> F:
    """Adds what says which dead letters are meant."""
    command = click.option("--all", "everything", is_flag=True, help="All of them.")(command)
    command = _queue(command)
    ids = click.IntRange(1, 2**63 - 1)
    return click.argument("ids", nargs=-1, type=ids, metavar="[ID]...")(command)


@dead_command.command("requeue")
@_selecting
@dry_run_option
@json_option
@pass_target
def requeue_command(
    target: Target,
    ids: tuple[int, ...],
    queue: str | None,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put dead letters back into their queues. Their deliveries count from none again."""
    with target.unit(dry_run=dry_run) as unit:
        tables = target.broker(unit.connection)
        chosen = control.choose(
            unit.connection, tables, ids=ids, queue=queue, everything=everything
        )
        count = control.requeue(unit, tables, chosen)
    names = [name for name in chosen.values() if name]
    homeless = len(chosen) - len(names)
    if as_json:
        printing.echo_json({"requeued": count, "homeless": homeless})
    elif count:
        verb = "Would put back" if dry_run else "Put back"
        click.echo(f"{verb} {_what(names)}.")
    elif not homeless:
        click.echo(f"There are no dead letters{_scope(queue)}.")
    if homeless:
        printing.note(
            f"{counted(homeless, 'dead letter')} can't be put back: the queue was deleted before."
        )


@dead_command.command("drop")
@_selecting
@click.option("--older-than", type=duration, metavar="TIME",
              help="Only those that died longer ago: 7d, '12 hours'.")  # fmt: skip
@asking
@json_option
@pass_target
def drop_command(
    target: Target,
    ids: tuple[int, ...],
    queue: str | None,
    everything: bool,
    older_than: timedelta | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete dead letters for good."""
    with target.transaction() as connection:
        tables = target.broker(connection)
        chosen = control.choose(
            connection, tables, ids=ids, queue=queue, older_than=older_than, everything=everything
        )
    what, count = _what(chosen.values()), 0
    if not chosen:
        click.echo(f"There are no dead letters{_scope(queue, older_than)}.", err=as_json)
    elif sure("drop", "dropped", what, yes=yes, dry_run=dry_run, as_json=as_json):
        with target.unit() as unit:
            count = control.drop(unit, tables, chosen)
        click.echo(f"Dropped {counted(count, 'dead letter')}.", err=as_json)
    if as_json:
        printing.echo_json({"dropped": count})


def _scope(queue: str | None, older_than: timedelta | None = None) -> str:
    of = "" if queue is None else f" of queue {queue!r}"
    return of + ("" if older_than is None else f" older than {span(older_than, units=4)}")


def _what(names: Iterable[str]) -> str:
    """How many of which queues: `3 dead letters (2 of 'a', 1 of 'b')`."""
    counts = Counter(names)
    of = ", ".join(f"{n} of {name!r}" for name, n in counts.most_common())
    if len(counts) == 1:
        of = f"of {next(iter(counts))!r}"
    return f"{counted(counts.total(), 'dead letter')} ({of})"
