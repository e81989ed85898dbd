"""`pgbeat dead`: messages that no consumer could handle; put them back or drop them."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import click
from rich.text import Text

from pgbeat.broker import control, dead_letters, queues
from pgbeat.broker.dead_letters import DeadLetter
from pgbeat.cli import Noun
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import asking, changing, sure
from pgbeat.cli.terminal.failures import FAILED
from pgbeat.cli.terminal.options import FLAG, LENGTH, adding, newest_option, option
from pgbeat.cli.terminal.printing import Cell, counted, line, span
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.views import broker as views


@click.group("dead", cls=Noun)
def dead_command() -> None:
    """Look at dead letters, put them back or drop them.

    A message is dead when it was delivered as often as its queue allows, or was rejected.
    """


_queue = option("--queue", "QUEUE", "Only those of this queue.")


@dead_command.command("list")
@_queue
@newest_option
@on_target
def list_command(target: Target, queue: str | None, limit: int) -> None:
    """List dead letters, the newest first."""
    with target.reading() as (connection, now):
        target.require_broker(connection)
        rows = dead_letters.find(connection, queue=queue, limit=limit + 1)
        if not rows and queue is not None:
            queues.get(connection, queue)
    # Narrow terminals have one column for what describes a message.
    is_wide = printing.is_wide(150)
    printing.show_listing(
        rows,
        json_of=views.dead_letter,
        cells_of=lambda row: _cells(row, now, is_wide=is_wide),
        names={"queue", _NARROW, *_WIDE[:2]},
        folding=_WIDE[2:],
        none=f"There are no dead letters{_scope(queue)}.",
        limit=limit,
    )


_WIDE, _NARROW = ["task", "task id", "reason"], "task, its id, and the reason"


def _cells(row: DeadLetter, now: datetime, *, is_wide: bool) -> dict[str, Cell]:
    about = [line(row.task or "unknown"), line(row.task_id or ""), line(row.reason)]
    middle: dict[str, Cell] = {_NARROW: Text("\n".join(filter(None, about)))}
    return {
        "id": row.id,
        "queue": row.queue,
        **(dict(zip(_WIDE, about, strict=True)) if is_wide else middle),
        "deliveries": row.deliveries,
        "died": f"{span(now - row.died_at, units=1)} ago",
    }


#: Adds the options that select dead letters.
_selecting = adding(
    click.argument("ids", nargs=-1, type=click.IntRange(1, 2**63 - 1), metavar="[ID]..."),
    _queue,
    option("--all", FLAG, "All of them.", "everything"),
)


@dead_command.command("requeue")
@_selecting
@changing
def requeue_command(target: Target, /, dry_run: bool, **which: Any) -> None:
    """Put dead letters back into their queues. Their deliveries count from zero again.

    Its JSON has `requeued` and `homeless`: how many have no queue any more. Exits with 1 if it had
    to leave those.
    """
    with target.unit(dry_run=dry_run) as unit:
        target.require_broker(unit.connection)
        chosen = control.choose(unit.connection, **which)
        count = control.requeue(unit, chosen)
    with_queue = [name for name in chosen.values() if name]
    homeless = len(chosen) - len(with_queue)
    if printing.is_json():
        printing.echo_json({"requeued": count, "homeless": homeless})
    elif count:
        verb = "Would put back" if dry_run else "Put back"
        click.echo(f"{verb} {_what(with_queue)}.")
    elif not homeless:
        click.echo(f"There are no dead letters{_scope(which['queue'])}.")
    if homeless:
        printing.note(
            f"{counted(homeless, 'dead letter')} can't be put back: the queue no longer exists."
        )
        raise click.exceptions.Exit(FAILED)


@dead_command.command("drop")
@_selecting
@option("--older-than", LENGTH, "Only those that died longer ago: 7d, '12 hours'.")
@asking
def drop_command(target: Target, /, yes: bool, dry_run: bool, **which: Any) -> None:
    """Delete dead letters for good. Its JSON has `dropped`: how many."""
    with target.transaction() as connection:
        target.require_broker(connection)
        chosen = control.choose(connection, **which)
    what, count, as_json = _what(chosen.values()), 0, printing.is_json()
    if not chosen:
        scope = _scope(which["queue"], which["older_than"])
        click.echo(f"There are no dead letters{scope}.", err=as_json)
    elif sure("drop", "dropped", what, yes=yes, dry_run=dry_run):
        with target.unit() as unit:
            count = control.drop(unit, chosen)
        click.echo(f"Dropped {counted(count, 'dead letter')}.", err=as_json)
    if as_json:
        printing.echo_json({"dropped": count})


def _scope(queue: str | None, older_than: timedelta | None = None) -> str:
    of = "" if queue is None else f" of queue {queue!r}"
    return of + ("" if older_than is None else f" older than {span(older_than, units=4)}")


def _what(names: Iterable[str]) -> str:
    """Returns how many there are in which queues: `3 dead letters (2 of 'a', 1 of 'b')`."""
    counts = Counter(names)
    of = ", ".join(f"{n} of {name!r}" for name, n in counts.most_common())
    if len(counts) == 1:
        of = f"of {next(iter(counts))!r}"
    return f"{counted(counts.total(), 'dead letter')} ({of})"
