"""`pgbeat webhooks deliveries` and `redeliver`: what was told to whom, and once more."""

from datetime import datetime
from typing import Any
from uuid import UUID

import click

from pgbeat.cli import printing
from pgbeat.cli.asking import dry_run_option
from pgbeat.cli.options import newest_option
from pgbeat.cli.printing import line, styled
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.webhooks import control, deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.deliveries import Delivery

_STATES = ("pending", "delivered", "failed")


@click.command("deliveries")
@click.argument("name")
@click.option("--state", type=click.Choice(_STATES), help="Only those.")
@newest_option
@json_option
@pass_target
def deliveries_command(
    target: Target, name: str, state: str | None, limit: int, as_json: bool
) -> None:
    """Show a webhook's deliveries, newest first: each with its attempts."""
    with target.transaction() as connection:
        now = connections.now(connection)
        webhook = webhooks.get(connection, name, namespace=target.settings.namespace)
        found = deliveries.listing(connection, webhook.id, state=state, limit=limit + 1)
    rows = found[:limit]
    if as_json:
        printing.echo_json([_json(row) for row in rows])
    elif rows:
        _show(rows, now)
    else:
        which = f"{state} deliveries" if state else "deliveries"
        click.echo(f"There are no {which} of webhook {name!r}.")
    if len(found) > limit:
        printing.note(f"there are more than these {limit}; --limit shows them.")


def _json(row: Delivery) -> dict[str, Any]:
    log = [{**entry, "at": datetime.fromisoformat(entry["at"])} for entry in row.log]
    return {name: value for name, value in row._asdict().items() if name != "webhook_id"} | {
        "log": log
    }


def _show(rows: list[Delivery], now: datetime) -> None:
    table = printing.table("id", "when (UTC)", "event", "state", "attempts", folding={"attempts"})
    for row in rows:
        next_at = None if row.next_at is None or row.sent_at else row.next_at
        again = f"next {printing.relative(next_at, now)}" if next_at and next_at > now else None
        told = [_entry(entry) for entry in row.log]
        table.add_row(
            str(row.id),
            printing.utc(row.created_at),
            line(row.event),
            styled(row.state),
            "\n".join([*told, *filter(None, [again])]) or "none yet",
        )
    printing.show(table)


def _entry(entry: dict[str, Any]) -> str:
    """A line for an entry of the log."""
    at = datetime.fromisoformat(entry["at"])
    if "redelivered_by" in entry:
        what = f"asked for again by {line(entry['redelivered_by'])}"
    elif "error" in entry:
        what = line(entry["error"])
    elif "status" in entry:
        what = f"{entry['status']}"
    else:
        what = "begun; no more is known"
    took = f", {entry['ms']:.0f} ms" if "ms" in entry else ""
    return f"{printing.utc(at)[11:]} {what}{took}"


@click.command("redeliver")
@click.argument("ids", nargs=-1, type=click.UUID, metavar="[ID]...")
@click.option("--failed", "failed_of", metavar="NAME", help="All of this webhook's that failed.")
@dry_run_option
@json_option
@pass_target
def redeliver_command(
    target: Target, ids: tuple[UUID, ...], failed_of: str | None, dry_run: bool, as_json: bool
) -> None:
    """Deliver again, by the leading beat, what failed or was lost at the receiver's end.

    It goes with the id that it had, and has as many attempts as the first time.
    """
    if bool(ids) == (failed_of is not None):
        raise click.UsageError("which deliveries? Give their ids, or --failed NAME")
    with target.unit(dry_run=dry_run) as unit:
        if failed_of is not None:
            count = control.redeliver_failed(unit, failed_of)
        else:
            count = control.redeliver(unit, ids)
    what = "1 delivery is" if count == 1 else f"{count} deliveries are"
    said = f"No delivery of webhook {failed_of!r} failed."
    if count:
        said = f"{what} {'to be ' if dry_run else ''}tried again."
    printing.result({"redelivered": count}, said, as_json=as_json)
