"""`pgbeat events`: what has happened, for which jobs may wait by `pgbeat.wait_for`."""

import time
from datetime import timedelta
from typing import Any

import click

from pgbeat.access.actors import Actor
from pgbeat.cli import Noun
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.options import JSON, LENGTH, newest_option, option
from pgbeat.cli.terminal.printing import cut, json_line
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.jobs.verbs import callbacks, events


@click.group("events", cls=Noun)
def events_command() -> None:
    """Look at the events that jobs wait for; emit one, or let others.

    A task waits for an event by `pgbeat.wait_for(KEY)`. A key has one event.
    """


@events_command.command("emit")
@click.argument("key")
@option("--value", JSON, "What those who wait get; by default null.")
@changing
def emit_command(target: Target, /, key: str, value: Any, dry_run: bool) -> None:
    """Emit an event: jobs that wait for it continue.

    If there is one of that key already, it stays as it is.
    """
    with target.unit(dry_run=dry_run) as unit:
        is_new = events.store(unit, key, value)
        event = events.get(unit.connection, target.redactor(target.user), unit.namespace, key)
    message = f"There is an event {key!r} already; it stays."
    if is_new:
        message = f"{'Would emit' if dry_run else 'Emitted'} event {key!r}."
    printing.result(event._asdict() | {"is_new": is_new}, message)


@events_command.command("url")
@click.argument("key")
@option("--expires", LENGTH, "For how long it is valid; by default 7 days at most.")
@on_target
def url_command(target: Target, key: str, expires: timedelta | None) -> None:
    """Print a URL by which a third party may emit an event, without a token.

    It POSTs there the event's value as JSON. Needs pgbeat_web_url and pgbeat_callback_key. Its JSON
    has `key`, `url` and `expires_at`.
    """
    url, end = callbacks.signed(target.settings, key, expires, now=time.time())
    printing.result({"key": key, "url": url, "expires_at": end}, url)


@events_command.command("list")
@option("--prefix", "TEXT", "Only those whose keys begin so.")
@newest_option
@as_onlooker
def list_command(target: Target, prefix: str | None, limit: int, actor: Actor) -> None:
    """List events, the newest first."""
    with target.listing() as (connection, _):
        rows = events.page(
            connection, target.redactor(actor), target.namespace, prefix=prefix, limit=limit + 1
        )
    printing.show_listing(
        rows,
        cells_of=lambda row: {
            "event": row.key,
            "when (UTC)": printing.utc(row.emitted_at),
            "by": row.emitted_by,
            "value": cut(json_line(row.value)),
        },
        names={"event", "by"},
        folding={"value"},
        none="There are no such events.",
        limit=limit,
    )
