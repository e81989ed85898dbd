"""`pgbeat direct`: run a task in this process, in a lane's next slot."""

from typing import Any

import click
from sqlalchemy.exc import DBAPIError

from pgbeat.cli.jobs.job_options import arguments, some_options
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import FAILED
from pgbeat.cli.terminal.options import LENGTH, option
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.database import connections
from pgbeat.errors import InvalidJob, NotFound, PgbeatError


@click.command("direct")
@click.argument("task")
@option("--lane", "NAME", "The lane whose next slot to take.", required=True)
@arguments
@option("--timeout", LENGTH, "How long to wait for the slot.", default="60 seconds")
@some_options("tag", "resource")
@on_target
def direct_command(target: Target, /, task: str, **options: Any) -> None:
    """Run a task here and now, in a lane's next slot, and print its result.

    It goes before all waiting jobs, and interrupts none. It is not a job: it has no history and no
    retry. Exits with 1 if there was no slot in time, or the task failed. Needs the app.
    """
    target.require_app("the task is in the app's code")
    from pgbeat.jobs.submitting import direct

    with target.unit() as unit:
        lane, tags, resources = options["lane"], options["tags"], dict(options["resources"])
        try:
            execution = direct.request(unit, task, lane=lane, tags=tags, resources=resources)
        except NotFound as error:
            raise InvalidJob.of("lane", "unknown", str(error)) from None
    try:
        timeout = options["timeout"].total_seconds()
        result = execution.run(options["args"] or [], options["kwargs"] or {}, timeout=timeout)
    except (PgbeatError, click.ClickException):
        raise
    except Exception as error:
        if isinstance(error, DBAPIError) and connections.is_lost(error):
            raise
        message = printing.harmless(f"{task} raised {type(error).__name__}: {error}")
        click.echo(f"Error: {message}", err=True)
        raise click.exceptions.Exit(FAILED) from None
    if printing.is_json():
        try:
            printing.echo_json(result)
        except TypeError:
            printing.echo_json(repr(result))
    elif result is not None:
        click.echo(printing.harmless(str(result)))
