"""`pgbeat webhooks deliveries`, `redeliver` and `incidents`: what was sent, and what fails."""

from datetime import datetime
from typing import Any

import click
from rich.text import Text

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.options import newest_option, option
from pgbeat.cli.terminal.printing import Cell, line, styled
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.views import webhooks as views
from pgbeat.webhooks import control, deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.deliveries import Delivery
from pgbeat.webhooks.incidents import model as incidents
from pgbeat.webhooks.incidents.model import Incident

_STATES = ("pending", "delivered", "failed")


@click.command("deliveries")
@click.argument("name")
@option("--state", click.Choice(_STATES), "Only deliveries in this state.")
@newest_option
@on_target
def deliveries_command(target: Target, name: str, state: str | None, limit: int) -> None:
    """Show a webhook's deliveries, newest first, each with its attempts."""
    with target.reading() as (connection, now):
        webhook = webhooks.get(connection, name, namespace=target.namespace)
        rows = deliveries.listing(connection, webhook.id, state=state, limit=limit + 1)
    which = f"{state} deliveries" if state else "deliveries"
    printing.show_listing(
        rows,
        json_of=views.delivery,
        cells_of=lambda row: _cells(row, now),
        folding={"attempts"},
        none=f"There are no {which} of webhook {name!r}.",
        limit=limit,
    )


def _cells(row: Delivery, now: datetime) -> dict[str, Cell]:
    lines = [_entry(entry) for entry in row.log]
    if row.next_at is not None and row.sent_at is None and row.next_at > now:
        lines.append(f"next {printing.relative(row.next_at, now)}")
    return {
        "id": row.id,
        "when (UTC)": printing.utc(row.created_at),
        "event": row.event,
        "state": styled(row.state),
        "attempts": Text("\n".join(lines) or "none yet"),
    }


def _entry(entry: dict[str, Any]) -> str:
    """Returns a line for an entry of the log."""
    at = datetime.fromisoformat(entry["at"])
    if "redelivered_by" in entry:
        what = f"requested again by {line(entry['redelivered_by'])}"
    elif "error" in entry:
        what = line(entry["error"])
    elif "status" in entry:
        what = f"{entry['status']}"
    else:
        what = "started; its outcome is unknown"
    took = f", {entry['ms']:.0f} ms" if "ms" in entry else ""
    return f"{printing.utc(at)[11:]} {what}{took}"


@click.command("redeliver")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@option("--failed", "NAME", "All failed ones of this webhook.", "failed_of")
@changing
def redeliver_command(
    target: Target, ids: tuple[str, ...], failed_of: str | None, dry_run: bool
) -> None:
    """Have the leading beat send deliveries again that failed, or that the receiver lost.

    They keep their ids, and have as many attempts as the first time. The first 4 characters of an
    ID are enough. Its JSON has `redelivered`: how many.
    """
    if bool(ids) == (failed_of is not None):
        raise click.UsageError("which deliveries? Give their ids, or --failed NAME")
    with target.unit(dry_run=dry_run) as unit:
        if failed_of is not None:
            count = control.redeliver_failed(unit, failed_of)
        else:
            selected = [
                deliveries.find(unit.connection, key, namespace=unit.namespace) for key in ids
            ]
            count = control.redeliver(unit, selected)
    what = "1 delivery is" if count == 1 else f"{count} deliveries are"
    message = f"No delivery of webhook {failed_of!r} failed."
    if count:
        message = f"{what} {'to be ' if dry_run else ''}tried again."
    printing.result({"redelivered": count}, message)


@click.command("incidents")
@click.argument("name")
@option("--limit", click.IntRange(1, 100_000), "How many, the oldest first.", default=20)
@on_target
def incidents_command(target: Target, name: str, limit: int) -> None:
    """Show what fails at present of which a webhook was told, the oldest first."""
    with target.reading() as (connection, now):
        webhook = webhooks.get(connection, name, namespace=target.namespace)
        rows = incidents.listing(connection, webhook.id, limit=limit + 1)
    printing.show_listing(
        rows,
        json_of=views.incident,
        cells_of=lambda row: _incident(row, now),
        none=f"Nothing fails of which webhook {name!r} was told.",
        limit=limit,
    )


def _incident(row: Incident, now: datetime) -> dict[str, Cell]:
    return {
        "what": f"{row.kind} {line(row.name)}",
        "since": printing.when(row.began_at, now),
        "failures": row.failures,
        "sent": row.alerts,
        "last": printing.when(row.failed_at, now),
    }
