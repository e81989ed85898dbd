"""`pgbeat tokens`: who may use the API, and as what."""

from datetime import datetime, timedelta
from typing import Any

import click

from pgbeat.access import tokens
from pgbeat.access.tokens import LIFETIME, Scope, Token
from pgbeat.cli import Noun, printing
from pgbeat.cli.asking import dry_run_option
from pgbeat.cli.options import duration
from pgbeat.cli.printing import line, styled, utc
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections


def _lifetime(text: str) -> timedelta:
    """A length of time; `never` is the longest there is."""
    return timedelta.max if text.strip().lower() == "never" else duration(text)


@click.group("tokens", cls=Noun)
def tokens_command() -> None:
    """Make tokens for the API and the console, list them, put them out of use.

    A token speaks for somebody: a user sees and steers their own jobs, an admin everything. Only a
    hash of it is kept.
    """


@tokens_command.command("create")
@click.option("--for", "actor", metavar="NAME", required=True, help="Whom it speaks for.")
@click.option("--scope", type=click.Choice(["user", "admin"]), default="user", show_default=True,
              help="What they may do.")  # fmt: skip
@click.option("--expires", type=_lifetime, metavar="TIME", default=f"{LIFETIME.days} days",
              show_default=True, help="For how long: '30 days', '8h', never.")  # fmt: skip
@click.option("--note", help="What it is for.")
@json_option
@pass_target
def create_command(
    target: Target,
    actor: str,
    scope: Scope,
    expires: timedelta,
    note: str | None,
    as_json: bool,
) -> None:
    """Make a token. It is printed once and can't be had again; remarks are on standard error."""
    with target.unit() as unit:
        row, written = tokens.create(
            unit.connection, namespace=unit.namespace, actor=actor, scope=scope,
            lifetime=None if expires == timedelta.max else expires, note=note,
            created_by=unit.actor.name,
        )  # fmt: skip
        unit.record("create", None, row)
        now = connections.now(unit.connection)
    if as_json:
        printing.echo_json({**_json(row, now), "token": written})
        return
    until = (
        "never expires" if row.expires_at is None else f"is good until {utc(row.expires_at)} UTC"
    )
    printing.note(f"token {row.id} speaks for {line(row.actor)} ({row.scope}) and {until}. "
                  "It isn't shown again:")  # fmt: skip
    click.echo(written)


@tokens_command.command("list")
@click.option("--all", "show_all", is_flag=True, help="Those out of use, too.")
@json_option
@pass_target
def list_command(target: Target, show_all: bool, as_json: bool) -> None:
    """List tokens, the newest first: whom they speak for, and when they were used."""
    with target.transaction() as connection:
        now = connections.now(connection)
        rows = tokens.listing(connection, namespace=target.settings.namespace)
    shown = [row for row in rows if show_all or row.state(now) == "active"]
    if as_json:
        printing.echo_json([_json(row, now) for row in shown])
        return
    if not shown:
        others = f" in use; --all shows {printing.counted(len(rows), 'other')}" if rows else ""
        click.echo(f"There are no tokens{others}. `pgbeat tokens create --for NAME` makes one.")
        return
    table = printing.table(
        "token", "for", "scope", "state", "expires (UTC)", "last used (UTC)", "note",
        folding={"for", "note"},
    )  # fmt: skip
    for row in shown:
        table.add_row(
            row.id, line(row.actor), row.scope, styled(row.state(now)),
            utc(row.expires_at) or "never", utc(row.last_used_at) or "never", line(row.note or ""),
        )  # fmt: skip
    printing.show(table)


@tokens_command.command("revoke")
@click.argument("token_id", metavar="TOKEN")
@dry_run_option
@json_option
@pass_target
def revoke_command(target: Target, token_id: str, dry_run: bool, as_json: bool) -> None:
    """Put a token out of use, for good, from now on. TOKEN is what `list` shows."""
    token_id = token_id.removeprefix(tokens.PREFIX).partition("_")[0]  # of the whole text, too
    with target.unit(dry_run=dry_run) as unit:
        now = connections.now(unit.connection)
        row = tokens.revoke(unit.connection, token_id, namespace=unit.namespace)
        is_new = row.revoked_at == now
        if is_new:
            unit.record("revoke", row, None)
    said = f"Token {row.id} was revoked already, at {utc(row.revoked_at)} UTC."
    if is_new:
        verb = "Would revoke" if dry_run else "Revoked"
        said = f"{verb} token {row.id} of {line(row.actor)} ({row.scope})."
    printing.result(_json(row, now), said, as_json=as_json)


def _json(row: Token, now: datetime) -> dict[str, Any]:
    return {**row._asdict(), "state": row.state(now)}
