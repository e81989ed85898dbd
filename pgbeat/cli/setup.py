"""`pgbeat migrate` and `demo`."""

import click
from sqlalchemy import Connection

from pgbeat.broker import installation
from pgbeat.cli import printing
from pgbeat.cli.failures import FAILED
from pgbeat.cli.printing import json_option
from pgbeat.cli.target import Target, pass_target
from pgbeat.database import migrate
from pgbeat.errors import SchemaError


@click.command("migrate")
@click.option(
    "--check", is_flag=True, help="Only check whether it is the newest; exits with 1 if not."
)
@click.option("--sql", is_flag=True, help="Print the SQL for an empty database instead.")
@json_option
@click.pass_context
@pass_target
def migrate_command(target: Target, ctx: click.Context, check: bool, sql: bool) -> None:
    """Bring the database's schema to the newest version. Several may run at once.

    With the app, if its broker is the same database, this makes the broker's tables and queues too:
    kombu's transport doesn't expect two first users.
    """
    if sql:
        click.echo(migrate.script().strip())
        return
    newest = migrate.newest()
    if check:
        with target.transaction() as connection:
            _check(ctx, connection)
        return

    before, after, has_broker = installation.migrate(
        target.settings, target.author, target.registry
    )
    if printing.is_json():
        printing.echo_json({"before": before, "current": after, "newest": newest})
    elif before == after:
        click.echo(f"The schema is at {after} already, {_place(after)}.")
    elif before is None:
        click.echo(f"The schema is installed, at version {after}.")
    else:
        click.echo(f"The schema went from version {before} to {after}.")
    if has_broker and not printing.is_json():
        click.echo("The broker's tables and queues are there.")


def _check(ctx: click.Context, connection: Connection) -> None:
    """Prints whether the schema is the newest, or newer but usable; exits with 1 if not."""
    newest = migrate.newest()
    try:
        migrate.check(connection)
        usable = True
    except SchemaError:
        usable = False
        if not printing.is_json():
            raise
    found = migrate.installed(connection)
    current = found.version if found else None
    is_done = usable and current is not None and current >= newest
    if printing.is_json():
        minimum = found.oldest_program if found else None
        printing.echo_json(
            {"current": current, "newest": newest, "minimum": minimum, "usable": usable}
        )
    elif current is not None and is_done:
        click.echo(f"The schema is at {current}, {_place(current)}.")
    else:
        click.echo(f"The schema is at {current}, which works; `pgbeat migrate` makes it {newest}.")
    if not is_done:
        ctx.exit(FAILED)


def _place(version: str) -> str:
    newest = migrate.newest()
    if version == newest:
        return "the newest version"
    return f"newer than the {newest} of this pgbeat, which may use it"


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after this time.")
@click.pass_context
def demo_command(ctx: click.Context, seconds: float | None) -> None:
    """Show pgbeat at work: its own Postgres, a worker, two beats, and the ticks as they come.

    Ctrl-C ends it. With --seconds it exits with 0 only if it saw launched, skipped and failed
    ticks and a completed job. Needs the extra pgbeat[embedded].
    """
    from pgbeat import demo

    ctx.exit(demo.run(seconds))
