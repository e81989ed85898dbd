"""`pgbeat tokens`: tokens for the API and the console."""

from datetime import datetime, timedelta
from typing import Any, get_args

import click

from pgbeat.access import tokens
from pgbeat.access.tokens import LIFETIME, Scope, Token
from pgbeat.cli import Noun
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.options import FLAG, duration, option
from pgbeat.cli.terminal.printing import Cell, line, styled, utc
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.database import connections


def _lifetime(text: str) -> timedelta:
    """Reads a length of time; `never` is the longest one."""
    return timedelta.max if text.strip().lower() == "never" else duration(text)


@click.group("tokens", cls=Noun)
def tokens_command() -> None:
    """Make, list and revoke tokens for the API and the console.

    A token lets its user see and control their own jobs. With the scope viewer they see everything
    and change nothing, and with the scope admin they may do everything. Only a hash of it is
    stored.
    """


@tokens_command.command("create")
@option("--for", "NAME", "The user.", "actor", required=True)
@option("--scope", click.Choice(get_args(Scope)), "What they may do.", default="user")
@option(
    "--expires",
    "TIME",
    "How long it is valid: '30 days', '8h', never.",
    default=f"{LIFETIME.days} days",
    type=_lifetime,
)
@option("--note", "TEXT", "What it is for.")
@on_target
def create_command(target: Target, /, expires: timedelta, **options: Any) -> None:
    """Make a token, and print it: this once, on standard output."""
    with target.unit() as unit:
        row, written = tokens.create(
            unit.connection,
            namespace=unit.namespace,
            lifetime=None if expires == timedelta.max else expires,
            created_by=unit.actor.name,
            **options,
        )
        unit.record("create", None, row)
        now = connections.now(unit.connection)
    if not printing.is_json():
        until = "never expires"
        if row.expires_at is not None:
            until = f"is valid until {utc(row.expires_at)} UTC"
        whose = f"token {row.id} of {line(row.actor)} ({row.scope})"
        printing.note(f"{whose} {until}. It isn't shown again:")
    printing.result(_json(row, now) | {"token": written}, written)


@tokens_command.command("list")
@option("--all", FLAG, "Also those that have expired or been revoked.", "show_all")
@on_target
def list_command(target: Target, show_all: bool) -> None:
    """List tokens, the newest first: their users, and when they were used.

    Its JSON has `id`, `actor`, `scope`, `state`, `note`, `created_by`, `created_at`, `expires_at`,
    `revoked_at`, `last_used_at` and `is_session`.
    """
    with target.reading() as (connection, now):
        rows = tokens.listing(connection, namespace=target.namespace)
    others = f" in use; --all shows {printing.counted(len(rows), 'other')}" if rows else ""
    printing.show_listing(
        [row for row in rows if show_all or row.state(now) == "active"],
        json_of=lambda row: _json(row, now),
        cells_of=lambda row: _cells(row, now),
        names={"for"},
        folding={"note"},
        none=f"There are no tokens{others}. `pgbeat tokens create --for NAME` makes one.",
    )


def _cells(row: Token, now: datetime) -> dict[str, Cell]:
    return {
        "token": row.id,
        "for": row.actor,
        "scope": row.scope,
        "state": styled(row.state(now)),
        "expires (UTC)": utc(row.expires_at) or "never",
        "last used (UTC)": utc(row.last_used_at) or "never",
        "note": row.note,
    }


@tokens_command.command("revoke")
@click.argument("token_id", metavar="TOKEN")
@changing
def revoke_command(target: Target, token_id: str, dry_run: bool) -> None:
    """Revoke a token for good. TOKEN is what `list` shows, or the whole token."""
    token_id = token_id.removeprefix(tokens.PREFIX).partition("_")[0]
    with target.unit(dry_run=dry_run) as unit:
        now = connections.now(unit.connection)
        row = tokens.revoke(unit.connection, token_id, namespace=unit.namespace)
        is_new = row.revoked_at == now
        if is_new:
            unit.record("revoke", row, None)
    message = f"Token {row.id} was revoked already, at {utc(row.revoked_at)} UTC."
    if is_new:
        verb = "Would revoke" if dry_run else "Revoked"
        message = f"{verb} token {row.id} of {line(row.actor)} ({row.scope})."
    printing.result(_json(row, now), message)


def _json(row: Token, now: datetime) -> dict[str, Any]:
    return {**row._asdict(), "state": row.state(now)}
