"""`pgbeat direct`: a task in this process, in a lane's next slot."""

from typing import Any

import click
from sqlalchemy.exc import DBAPIError

from pgbeat.cli import printing
from pgbeat.cli.failures import FAILED
from pgbeat.cli.job_options import amount
from pgbeat.cli.options import duration, json_array, json_object
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.errors import PgbeatError


@click.command("direct")
@click.argument("task")
@click.option("--lane", metavar="NAME", required=True, help="Whose next slot it takes.")
@click.option("--args", type=json_array, default="[]", metavar="JSON",
              help="Its positional arguments, an array.")  # fmt: skip
@click.option("--kwargs", type=json_object, default="{}", metavar="JSON",
              help="Its keyword arguments, an object.")  # fmt: skip
@click.option("--timeout", type=duration, default="60", metavar="TIME", show_default="60 seconds",
              help="How long to wait for the slot.")  # fmt: skip
@click.option("--tag", "tags", multiple=True, metavar="TAG",
              help="What the lane may count by; several times.")  # fmt: skip
@click.option("--resource", "resources", type=amount, multiple=True, metavar="NAME[=AMOUNT]",
              help="What it takes of it; several times.")  # fmt: skip
@json_option
@click.pass_context
@pass_target
def direct_command(
    target: Target, ctx: click.Context, /, task: str, as_json: bool, **given: Any
) -> None:
    """Run a task here and now, before all that waits in a lane, and print its result.

    It waits for a slot, preempts nobody, and is no job: no history, no retry. Exits with 1 if there
    was no slot in time, or the task failed. Needs the app.
    """
    target.require_app("the task is the app's")
    from pgbeat.jobs import direct

    with target.unit() as unit:
        execution = direct.request(
            unit, task, lane=given["lane"], tags=given["tags"], resources=dict(given["resources"])
        )
    try:
        result = execution.run(
            given["args"], given["kwargs"], timeout=given["timeout"].total_seconds()
        )
    except (PgbeatError, click.ClickException):
        raise
    except Exception as error:
        if isinstance(error, DBAPIError) and connections.is_lost(error):
            raise
        click.echo(f"Error: {task} raised {type(error).__name__}: {error}", err=True)
        ctx.exit(FAILED)
    if as_json:
        try:
            printing.echo_json(result)
        except TypeError:
            printing.echo_json(repr(result))
    elif result is not None:
        click.echo(str(result))
