"""`pgbeat health`: whether a process of this host is alive, or can do its work; for probes."""

import json
import sys
from functools import partial
from typing import Any

import click

from pgbeat.cli import AS_JSON, LATE_TARGET
from pgbeat.cli.terminal.numbers import RealRange
from pgbeat.processes import probe


@click.command("health")
@click.argument("role", type=click.Choice(probe.ROLES))
@click.option("--live", "check", flag_value="live", default=True, help="Is it alive? (default)")
@click.option("--ready", "check", flag_value="ready", help="Can it work? Asks the database.")
@click.option(
    "--within",
    type=RealRange(min=1),
    default=probe.STALE,
    metavar="SECONDS",
    help="How long ago the last sign of life may be.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=probe.PORT, help="Of `pgbeat web`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def health_command(
    ctx: click.Context, role: str, check: str, within: float, port: int, as_json: bool
) -> None:
    """Say whether this host's beat, worker or web side is alive; exit with 1 if not.

    --live asks the process itself: a database that is away is no reason to restart it. --ready asks
    the database whether the process is known there: a beat that leads or stands by, a worker that
    records. Run it as the user of the process, with the same PGBEAT_HEALTH_DIR.
    """
    ctx.meta[AS_JSON] = sys.stdout if as_json else None
    result = probe.ask(role, check, partial(_connect, ctx), within, port)
    if as_json:
        click.echo(json.dumps({"role": role, "check": check, **result._asdict()}))
    else:
        click.echo(result.detail, err=not result.ok)
    ctx.exit(0 if result.ok else 1)


def _connect(ctx: click.Context) -> Any:
    """Connects, with the app only if no URL was given."""
    url = ctx.parent.params.get("url") if ctx.parent else None
    if url and probe.is_plain(url):
        return probe.open_plain(url)
    from pgbeat.database.watched import WatchedConnection

    target = ctx.meta[LATE_TARGET]()
    # The engine makes of a URL what the driver takes.
    engine = target.engine
    arguments, parameters = engine.dialect.create_connect_args(engine.url)
    return WatchedConnection.open(*arguments, **parameters)
