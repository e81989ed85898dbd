"""`pgbeat webhooks`: who is told of what, and whether it got there."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from pgbeat.cli import Noun, printing
from pgbeat.cli.asking import asking, dry_run_option, sure
from pgbeat.cli.deliveries import deliveries_command, redeliver_command
from pgbeat.cli.failures import FAILED
from pgbeat.cli.printing import counted, line
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.webhooks import control, deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks import outbox as webhook_outbox
from pgbeat.webhooks import signing as webhook_signatures
from pgbeat.webhooks.model import EVENTS, Webhook

F = TypeVar("F", bound=Callable[..., Any])


@click.group("webhooks", cls=Noun)
def webhooks_command() -> None:
    """Have others told of what happens; look at deliveries.

    A webhook is a URL to which events are posted, signed as the Standard Webhooks specification
    says.
    """


webhooks_command.add_command(deliveries_command)
webhooks_command.add_command(redeliver_command)


# -- looked at


@webhooks_command.command("list")
@json_option
@pass_target
def list_command(target: Target, as_json: bool) -> None:
    """List the webhooks: URL, events, and how many deliveries are pending or failed."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        rows = webhooks.listing(connection, namespace=namespace)
        counts = deliveries.counts(connection, namespace=namespace)
    printing.listing(
        rows, as_json=as_json, json_of=lambda row: _json(row, counts[row.name]),
        table_of=lambda: _table(rows, counts),
        none="There are no webhooks; `pgbeat webhooks add --help` says how to add one.",
    )  # fmt: skip


def _table(rows: list[Webhook], counts: Mapping[str, Mapping[str, int]]) -> Table:
    columns = ("webhook", "state", "url", "events", "pending", "failed")
    table = printing.table(*columns, folding={"url", "events"}, numbers={"pending", "failed"})
    for row in rows:
        count = counts[row.name]
        table.add_row(
            line(row.name),
            _state(row),
            line(row.url),
            ", ".join(row.events),
            str(count["pending"]),
            Text(str(count["failed"]), style="red" if count["failed"] else ""),
        )
    return table


@webhooks_command.command("show")
@click.argument("name")
@json_option
@pass_target
def show_command(target: Target, name: str, as_json: bool) -> None:
    """Show all about a webhook, but for its secret."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        now = connections.now(connection)
        row = webhooks.get(connection, name, namespace=namespace)
        count = deliveries.counts(connection, namespace=namespace)[name]
        last = deliveries.listing(connection, row.id, limit=1)
    if as_json:
        printing.echo_json(_json(row, count))
        return
    until = row.previous_until
    old = until is not None and until > now
    click.secho(line(row.name), bold=True)
    printing.show(
        printing.facts(
            [
                ("state", _state(row)),
                ("why", line(row.disabled_reason or "")),
                ("url", line(row.url)),
                ("events", ", ".join(row.events)),
                ("secret", row.secret_hint),
                ("old secret", f"signs too, until {printing.when(until, now)}" if old else None),
                ("deliveries", ", ".join(f"{number} {state}" for state, number in count.items())),
                ("last event", printing.when(last[0].created_at, now) if last else None),
                ("created", _by(printing.when(row.created_at, now), row.created_by)),
                ("changed", printing.when(row.updated_at, now)),
            ]
        )
    )


def _by(when: str | None, who: str | None) -> str:
    return f"{when}, by {line(who)}" if who else str(when)


def _state(row: Webhook) -> Text:
    if not row.enabled:
        return printing.styled("disabled")
    # One that succeeds has all its slots.
    return printing.styled("active" if row.slots > 1 else "failing")


def _json(row: Webhook, count: Mapping[str, int]) -> dict[str, Any]:
    values = {name: value for name, value in row._asdict().items() if name != "id"}
    return values | {"deliveries": dict(count)}


# -- changed


def _definition(required: bool) -> Callable[[F], F]:
    """Adds the options that say what a webhook is."""

    def add(command: F) -> F:
        for option in (
            click.option("--secret-file", type=click.File(),
                         help="A file with the secret (- is standard input), as "
                         "whsec_ and base64; else a random one is made."),
            click.option("--event", "events", multiple=True, required=required, metavar="EVENT",
                         help=f"Of which events, more than once: {', '.join(EVENTS)}; or all."),
            click.option("--url", "webhook_url", required=required, metavar="URL",
                         help="Where to, with https:// as a rule."),
        ):  # fmt: skip
            command = option(command)
        return command

    return add


@webhooks_command.command("add")
@click.argument("name")
@_definition(required=True)
@json_option
@dry_run_option
@pass_target
def add_command(
    target: Target,
    name: str,
    webhook_url: str,
    events: tuple[str, ...],
    secret_file: Any,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Add a webhook. Its secret is printed once, now: the receiver needs it to check signatures."""
    with target.unit(dry_run=dry_run) as unit:
        secret = _read(secret_file)
        row, secret = control.add(unit, name, webhook_url, events, secret=secret)
    if dry_run:
        click.echo(f"Would add webhook {name!r}: {', '.join(row.events)}.")
        return
    if as_json:
        count = dict.fromkeys(("pending", "delivered", "failed"), 0)
        printing.echo_json(_json(row, count) | {"secret": secret})
        return
    click.echo(f"Added webhook {name!r}: {', '.join(row.events)}.")
    if secret_file is None:
        click.echo(f"Its secret, which is not shown again: {secret}")


@webhooks_command.command("update")
@click.argument("name")
@_definition(required=False)
@click.option("--new-secret", is_flag=True, help="Make another one, at random.")
@dry_run_option
@json_option
@pass_target
def update_command(
    target: Target,
    name: str,
    webhook_url: str | None,
    events: tuple[str, ...],
    secret_file: Any,
    new_secret: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change a webhook. What no option names stays; with another secret, the old one signs too for
    a day."""
    if new_secret and secret_file is not None:
        raise click.UsageError("--new-secret and --secret-file exclude each other")
    if webhook_url is None and not events and not new_secret and secret_file is None:
        raise click.UsageError("nothing to change; give at least one option (see --help)")
    secret = webhook_signatures.new_secret() if new_secret else _read(secret_file)
    with target.unit(dry_run=dry_run) as unit:
        row = control.edit(unit, name, url=webhook_url, events=events or None, secret=secret)
        count = deliveries.counts(unit.connection, namespace=unit.namespace)[name]
    is_new = new_secret and not dry_run
    said = f"{'Would change' if dry_run else 'Changed'} webhook {name!r}."
    shown = _json(row, count) | ({"secret": secret} if is_new else {})
    printing.result(shown, said, as_json=as_json)
    if is_new and not as_json:
        click.echo(f"Its new secret, which is not shown again: {secret}")


def _read(secret_file: Any) -> str | None:
    return None if secret_file is None else str(secret_file.read()).strip()


@webhooks_command.command("remove")
@click.argument("name")
@asking
@json_option
@pass_target
def remove_command(target: Target, name: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a webhook with its deliveries."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        webhooks.get(connection, name, namespace=namespace)
        count = sum(deliveries.counts(connection, namespace=namespace)[name].values())
    what = f"webhook {name!r}" + (f" and the log of {counted_deliveries(count)}" if count else "")
    is_removed = sure("remove", "removed", what, yes=yes, dry_run=dry_run, as_json=as_json)
    if is_removed:
        with target.unit() as unit:
            control.remove(unit, name)
    if is_removed or as_json:
        removed = {"name": name, "removed": is_removed}
        printing.result(removed, f"Removed {what}.", as_json=as_json)


def counted_deliveries(count: int) -> str:
    """How many: `1 delivery`, `2 deliveries`."""
    return counted(count, "delivery") if count == 1 else f"{count} deliveries"


@webhooks_command.command("enable")
@click.argument("name")
@json_option
@pass_target
def enable_command(target: Target, name: str, as_json: bool) -> None:
    """Put a disabled webhook back in service: it is told of what happens from now on."""
    with target.unit() as unit:
        row, is_new = control.enable(unit, name)
        count = deliveries.counts(unit.connection, namespace=unit.namespace)[name]
    failed = count["failed"] if is_new else 0
    said = f"Enabled webhook {name!r}." if is_new else f"Webhook {name!r} is enabled already."
    printing.result(_json(row, count), said, as_json=as_json)
    if failed:
        printing.note(f"{counted_deliveries(failed)} failed; `pgbeat webhooks redeliver --failed "
                      f"{name}` has them delivered.")  # fmt: skip


@webhooks_command.command("disable")
@click.argument("name")
@click.option("--reason", help="Why, for those who wonder later.")
@json_option
@pass_target
def disable_command(target: Target, name: str, reason: str | None, as_json: bool) -> None:
    """Take a webhook out of service: what was to be delivered fails."""
    with target.unit() as unit:
        counts = deliveries.counts(unit.connection, namespace=unit.namespace)
        row, was_enabled = control.disable(unit, name, reason)
        count = deliveries.counts(unit.connection, namespace=unit.namespace)[name]
    pending = counts[name]["pending"]
    said = f"Webhook {name!r} is disabled already."
    if was_enabled:
        said = f"Disabled webhook {name!r}."
    printing.result(_json(row, count), said, as_json=as_json)
    if pending:
        printing.note(f"{counted_deliveries(pending)} that waited failed.")


# -- tried


@webhooks_command.command("test")
@click.argument("name")
@json_option
@pass_target
def test_command(target: Target, name: str, as_json: bool) -> None:
    """Send a signed `webhook.test` event from here, at once. Exit status 1 if it isn't taken."""
    with target.unit() as unit:
        webhook, signed_with = control.begin_test(unit, name)
    key, answer = webhook_outbox.send_test(webhook, signed_with, target.settings)
    if as_json:
        printing.echo_json({"id": key, **answer._asdict(), "delivered": answer.is_delivered})
    elif answer.is_delivered:
        click.echo(f"Delivered: it answered {answer.status} in {answer.ms:.0f} ms.")
    else:
        click.echo(f"Not delivered, after {answer.ms:.0f} ms: {line(answer.error)}.")
    if not webhook.enabled:
        printing.note(f"it is disabled; `pgbeat webhooks enable {name}` puts it back in service.")
    if not answer.is_delivered:
        raise click.exceptions.Exit(FAILED)
