"""`pgbeat audit`: who changed what."""

import json
from typing import Any

import click

from pgbeat.access import audit
from pgbeat.cli import printing
from pgbeat.cli.printing import line, utc
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option


@click.command("audit")
@click.option("--kind", metavar="KIND", help="Of what: schedule, job, lane, token …")
@click.option("--subject", metavar="NAME", help="Of which: its name or id.")
@click.option("--actor", metavar="WHO", help="By whom: alice, or user:alice.")
@click.option("--verb", metavar="VERB", help="What was done: create, pause, trigger …")
@click.option("--before", type=click.IntRange(1, 2**63 - 1), metavar="N",
              help="Older than change N.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True,
              help="The newest so many.")  # fmt: skip
@json_option
@pass_target
def audit_command(
    target: Target,
    kind: str | None,
    subject: str | None,
    actor: str | None,
    verb: str | None,
    before: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show who changed what, by API, page or command line; the newest first."""
    who = None if actor is None or ":" in actor else f"user:{actor}"
    with target.transaction() as connection:
        rows = audit.listing(
            connection, namespace=target.settings.namespace, kind=kind, subject=subject,
            actor=who or actor, verb=verb, before=before, limit=limit,
        )  # fmt: skip
    if as_json:
        printing.echo_json([row._asdict() for row in rows])
        return
    if not rows:
        click.echo("Nothing of that was changed, as far as it is noted.")
        return
    table = printing.table(
        "change", "when (UTC)", "who", "by", "what", "how", folding={"who", "what", "how"}
    )
    for row in rows:
        what = f"{row.verb} {row.kind} {row.subject}"
        change = _change(row.before, row.after)
        table.add_row(
            str(row.id), utc(row.at), line(row.actor), row.origin, line(what), line(change)
        )
    printing.show(table)


def _change(before: Any, after: Any) -> str:
    """`key: old → new` of what was changed; what is new, or was, where there is but one."""
    if isinstance(before, dict) and isinstance(after, dict):
        return ", ".join(
            f"{key}: {_value(before.get(key))} → {_value(after.get(key))}"
            for key in {**before, **after}
        )
    known = after if before is None else before
    if isinstance(known, dict):
        return ", ".join(f"{key}: {_value(v)}" for key, v in known.items() if v not in (None, {}))
    return "" if known is None else _value(known)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
