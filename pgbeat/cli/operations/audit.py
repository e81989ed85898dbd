"""`pgbeat audit`: who changed what."""

from typing import Any

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.access import audit, audit_words
from pgbeat.access.actors import user
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import find, find_group
from pgbeat.cli.terminal.options import option, whole
from pgbeat.cli.terminal.printing import line, utc
from pgbeat.cli.terminal.tables import glued
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.errors import NotFound

#: Longer values may be broken.
_SHORT = 40


@click.command("audit")
@option("--kind", "KIND", "Only this kind: schedule, job, lane, token …")
@option(
    "--subject",
    "NAME",
    "Only the one with this name or id; with --kind job or group, the first 4 characters of "
    "it are enough.",
)
@option("--actor", "WHO", "Only changes by this actor: alice, or user:alice.")
@option("--verb", "VERB", "Only this verb: create, pause, trigger …")
@option("--before", whole(1, 2**63 - 1), "Older than change N.")
@option("--limit", click.IntRange(1, 10_000), "How many, the newest first.", default=20)
@on_target
def audit_command(target: Target, /, actor: str | None, **filters: Any) -> None:
    """Show who changed what, by API, console or command line; the newest first."""
    if actor is not None and ":" not in actor:
        actor = f"user:{actor}"
    with target.listing() as (connection, _):
        filters["subject"] = _subject(connection, target, filters["kind"], filters["subject"])
        rows = audit.listing(connection, namespace=target.namespace, actor=actor, **filters)
    printing.show_listing(
        rows,
        cells_of=lambda row: {
            "change": row.id,
            "when (UTC)": utc(row.at),
            "who": row.actor,
            "by": row.origin,
            "what": f"{row.verb} {row.kind} {row.subject}",
            "how": _change(row.before, row.after),
        },
        names={"who", "what"},
        folding={"how"},
        none="No such change is recorded.",
    )


def _subject(
    connection: Connection, target: Target, kind: str | None, subject: str | None
) -> str | None:
    """Returns the whole id of a job or a group that begins so, or else the subject as it is."""
    if subject is None or kind not in ("job", "group"):
        return subject
    actor = user(is_viewer=True)
    try:
        if kind == "job":
            return str(find(connection, target, actor, subject).id)
        return str(find_group(connection, target, actor, subject).id)
    except NotFound as error:
        if error.code == "ambiguous_id":
            raise
        return subject  # it may be deleted


def _change(before: Any, after: Any) -> Text:
    """Returns `key: old → new` for each changed column; the values of a new or deleted row."""
    parts = []
    for change in audit_words.changes(before, after):
        values = (change.before, change.after)
        shown = " → ".join(_glued(value) for value in values if value is not None)
        parts.append(f"{line(change.column)}: {shown}")
    return Text(", ".join(parts))


def _glued(value: str) -> str:
    """Returns a value that stays on one line if it is as short as a cron."""
    value = line(value)
    return glued(value).plain if len(value) <= _SHORT else value
