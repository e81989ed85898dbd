"""`pgbeat jobs logs`: the last lines that a job's executions logged."""

import click

from pgbeat.access.actors import Actor
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker, find
from pgbeat.cli.terminal.printing import json_option, line
from pgbeat.cli.terminal.target import Target, pass_target
from pgbeat.jobs.running import task_logs
from pgbeat.views import jobs as views


@click.command("logs")
@click.argument("job_id", metavar="ID")
@click.option("--execution", type=click.IntRange(1, 2**31 - 1), metavar="N", help="Only of this.")
@as_onlooker
@json_option
@pass_target
def logs_command(target: Target, job_id: str, execution: int | None, actor: Actor) -> None:
    """Show the last lines that a job's newest 20 executions logged, the oldest first."""
    redactor = target.redactor(actor)
    with target.transaction() as connection:
        job = find(connection, target, actor, job_id)
        found = task_logs.of_job(connection, redactor, job, number=execution)
    found.reverse()
    if printing.is_json():
        printing.echo_json([views.log(each) for each in found])
        return
    if not found:
        click.echo("It has logged nothing that was kept.")
    for each in found:
        click.secho(f"Execution {each.number}, {each.state}", bold=True)
        if each.omitted:
            click.echo(f"… {printing.counted(each.omitted, 'line')} before these")
        for own in each.lines:
            head = f"{printing.utc(own.at)} {line(own.level)} {line(own.logger)}: "
            for row in own.message.splitlines() or [""]:
                click.echo(f"{head}{printing.code(row)}")
                head = "  "
