"""`pgbeat direct`: run a task in this process, in a lane's next slot."""

from typing import Any

import click

from pgbeat.cli.jobs.job_options import arguments, some_options
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.options import LENGTH, option
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.errors import InvalidJob, NotFound


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
    except (Exception, SystemExit) as error:
        if not direct.raised_by_task(error):
            raise
        message = printing.harmless(f"{task} raised {direct.sentence(error)}")
        raise click.ClickException(message) from None
    if printing.is_json():
        printing.echo_json(direct.plain(result))
    elif result is not None:
        click.echo(printing.harmless(str(result)))
