"""`pgbeat webhooks`: URLs to which events are sent."""

from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.text import Text

from pgbeat.cli import Noun
from pgbeat.cli.operations.deliveries import (
    deliveries_command,
    incidents_command,
    redeliver_command,
)
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import asking, changing, remove
from pgbeat.cli.terminal.failures import FAILED
from pgbeat.cli.terminal.options import FLAG, GLOBS, LABELS, F, adding, option
from pgbeat.cli.terminal.printing import counted, line
from pgbeat.cli.terminal.target import Target, on_named, on_target
from pgbeat.views import webhooks as views
from pgbeat.webhooks import control, deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks import outbox as webhook_outbox
from pgbeat.webhooks.formats import FORMATS, is_signed
from pgbeat.webhooks.model import EVENTS, Webhook


@click.group("webhooks", cls=Noun)
def webhooks_command() -> None:
    """Send events to URLs; look at deliveries.

    A webhook is a URL to which events are posted, signed as the Standard Webhooks specification
    says.
    """


webhooks_command.add_command(deliveries_command)
webhooks_command.add_command(redeliver_command)
webhooks_command.add_command(incidents_command)


@webhooks_command.command("list")
@on_target
def list_command(target: Target) -> None:
    """List the webhooks: URL, events, and how many deliveries are pending or failed."""
    with target.transaction() as connection:
        rows = webhooks.listing(connection, namespace=target.namespace)
        counts = deliveries.counts(connection, namespace=target.namespace)
    printing.show_listing(
        rows,
        json_of=lambda row: views.counted(row, counts[row.name]),
        cells_of=lambda row: _cells(row, counts[row.name]),
        names={"webhook"},
        folding={"url", "events"},
        none="There are no webhooks; `pgbeat webhooks add --help` says how to add one.",
    )


def _cells(row: Webhook, count: Mapping[str, int]) -> dict[str, printing.Cell]:
    return {
        "webhook": row.name,
        "state": _state(row),
        "url": row.url,
        "events": ", ".join(row.events),
        "incidents": row.open_incidents,
        "pending": count["pending"],
        "failed": Text(str(count["failed"]), style="red" if count["failed"] else ""),
    }


@webhooks_command.command("show")
@on_named
def show_command(target: Target, name: str) -> None:
    """Show all about a webhook, except its secret."""
    with target.reading() as (connection, now):
        row = webhooks.get(connection, name, namespace=target.namespace)
        count = deliveries.counts(connection, namespace=target.namespace)[name]
        last = deliveries.listing(connection, row.id, limit=1)
    until = row.previous_until
    old = until is not None and until > now
    printing.show_facts(
        row.name,
        ("state", _state(row)),
        ("why", row.disabled_reason),
        ("url", row.url),
        ("events", ", ".join(row.events)),
        ("only of", "; ".join(views.filters(row)) or None),
        ("format", row.format),
        ("failures", "of an incident at growing intervals" if row.per_incident else "each"),
        ("incidents", f"{row.open_incidents} open" if row.open_incidents else None),
        ("secret", row.secret_hint),
        ("old secret", f"signs too, until {printing.when(until, now)}" if old else None),
        ("deliveries", ", ".join(f"{number} {state}" for state, number in count.items())),
        ("last event", printing.when(last[0].created_at, now) if last else None),
        ("created", printing.when_and_who(row.created_at, row.created_by, now)),
        ("changed", printing.when(row.updated_at, now)),
        view=views.counted(row, count),
    )


def _state(row: Webhook) -> Text:
    if not row.enabled:
        return printing.styled("disabled")
    # One that succeeds has all its slots.
    return printing.styled("active" if row.slots > 1 else "failing")


def _read(ctx: click.Context, param: click.Parameter, file: Any) -> str | None:
    return None if file is None else str(file.read()).strip()


def _definition(*, required: bool) -> Callable[[F], F]:
    """Returns a decorator that adds the options that define a webhook."""
    return adding(
        option("--url", "URL", "Where to send events, normally https://.", required=required),
        option(
            "--event",
            "EVENT",
            f"An event to send, or all; may be repeated: {', '.join(EVENTS)}.",
            "events",
            multiple=True,
            required=required,
        ),
        option(
            "--secret-file",
            click.File(),
            "A file with the secret (- is standard input), as whsec_ and base64; "
            "by default a random one is made. For pagerduty and opsgenie, the service's key.",
            "secret",
            callback=_read,
        ),
        option("--label", LABELS, "Only events of what has this label; may be repeated.", "labels"),
        option(
            "--schedule",
            GLOBS,
            "Only events of this schedule, or such as nightly-*; may be repeated.",
            "schedules",
        ),
        option(
            "--task",
            GLOBS,
            "Only events of this task, or such as shop.*; may be repeated.",
            "tasks",
        ),
        option(
            "--per-incident/--each-failure",
            {"default": None},
            "Send failures of a schedule or task at growing intervals, and when it is well again; "
            "or each failure. By default, formats other than standard do the former.",
        ),
    )


@webhooks_command.command("add")
@click.argument("name")
@_definition(required=True)
@option(
    "--format",
    click.Choice(FORMATS),
    "What is sent: the event, signed, or a message for people; by default standard.",
    default="standard",
)
@changing
def add_command(target: Target, /, name: str, dry_run: bool, **values: Any) -> None:
    """Add a webhook. Prints a secret that it made once: receivers check signatures by it."""
    with target.unit(dry_run=dry_run) as unit:
        row, secret = control.add(unit, name, **values)
    count = dict.fromkeys(("pending", "delivered", "failed"), 0)
    shown = {"secret": secret} if is_signed(row.format) and not dry_run else {}
    verb = "Would add" if dry_run else "Added"
    sentence = f"{verb} webhook {name!r}: {', '.join(row.events)}."
    printing.result(views.counted(row, count) | shown, sentence)
    if values["secret"] is None and shown and not printing.is_json():
        click.echo(f"Its secret, which is not shown again: {secret}")


_FILTERS: dict[str, Any] = {"labels": {}, "schedules": [], "tasks": []}


@webhooks_command.command("update")
@click.argument("name")
@_definition(required=False)
@option("--new-secret", FLAG, "Replace the secret by a new random one.")
@option("--no-filters", FLAG, "Send events of everything, whatever its label, schedule or task.")
@changing
def update_command(
    target: Target, /, name: str, new_secret: bool, no_filters: bool, dry_run: bool, **values: Any
) -> None:
    """Change a webhook. After a change of the secret, the old one signs too for a day."""
    values["events"] = values["events"] or None
    if no_filters:
        values |= {field: values[field] or empty for field, empty in _FILTERS.items()}
    changes = control.read_changes(**values, renew_secret=new_secret)
    with target.unit(dry_run=dry_run) as unit:
        row = control.edit(unit, name, **changes)
        count = deliveries.counts(unit.connection, namespace=unit.namespace)[name]
    is_new = new_secret and not dry_run
    message = f"{'Would change' if dry_run else 'Changed'} webhook {name!r}."
    shown = views.counted(row, count) | ({"secret": changes["secret"]} if is_new else {})
    printing.result(shown, message)
    if left := control.left_open(row, changes):
        printing.note(f"changed {left}; close its alerts by hand.")
    if is_new and not printing.is_json():
        click.echo(f"Its new secret, which is not shown again: {changes['secret']}")


@webhooks_command.command("remove")
@click.argument("name")
@asking
def remove_command(target: Target, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a webhook with its deliveries. Its receiver is not told of the end of incidents."""
    with target.transaction() as connection:
        row = webhooks.get(connection, name, namespace=target.namespace)
        count = sum(deliveries.counts(connection, namespace=target.namespace)[name].values())
    rest = f" and the log of {counted(count, 'delivery', 'deliveries')}" if count else ""
    if left := control.left_open(row):
        rest += f", {left}"
    more = {"open_incidents": row.open_incidents}
    remove(target, "webhook", name, control.remove, yes=yes, dry_run=dry_run, rest=rest, more=more)


@webhooks_command.command("enable")
@on_named
def enable_command(target: Target, name: str) -> None:
    """Enable a disabled webhook: events from now on are sent to it."""
    with target.unit() as unit:
        row, is_new = control.enable(unit, name)
        count = deliveries.counts(unit.connection, namespace=unit.namespace)[name]
    failed = count["failed"] if is_new else 0
    message = f"Enabled webhook {name!r}." if is_new else f"Webhook {name!r} is enabled already."
    printing.result(views.counted(row, count), message)
    if failed:
        number = counted(failed, "delivery", "deliveries")
        again = f"`pgbeat webhooks redeliver --failed {name}` sends them again"
        printing.note(f"{number} failed; {again}.")


@webhooks_command.command("disable")
@click.argument("name")
@option("--reason", "TEXT", "Why, for the record.")
@on_target
def disable_command(target: Target, name: str, reason: str | None) -> None:
    """Disable a webhook: its pending deliveries fail."""
    with target.unit() as unit:
        counts = deliveries.counts(unit.connection, namespace=unit.namespace)
        row, was_enabled = control.disable(unit, name, reason)
        count = deliveries.counts(unit.connection, namespace=unit.namespace)[name]
    pending = counts[name]["pending"]
    already = f"Webhook {name!r} is disabled already."
    printing.result(
        views.counted(row, count), f"Disabled webhook {name!r}." if was_enabled else already
    )
    if pending:
        printing.note(f"{counted(pending, 'delivery', 'deliveries')} that waited failed.")


@webhooks_command.command("test")
@on_named
def test_command(target: Target, name: str) -> None:
    """Send a `webhook.test` event now. The exit status is 1 if it isn't accepted."""
    with target.unit() as unit:
        webhook, signed_with = control.begin_test(unit, name)
    key, answer = webhook_outbox.send_test(webhook, signed_with, target.settings)
    message = f"Delivered: it answered {answer.status} in {answer.ms:.0f} ms."
    if not answer.is_delivered:
        message = f"Not delivered, after {answer.ms:.0f} ms: {line(answer.error)}."
    printing.result(views.tested(key, answer), message)
    if not webhook.enabled:
        printing.note(f"it is disabled; `pgbeat webhooks enable {name}` enables it.")
    if not answer.is_delivered:
        raise click.exceptions.Exit(FAILED)
