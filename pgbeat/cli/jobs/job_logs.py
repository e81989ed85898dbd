"""`pgbeat jobs logs`: the last lines that a job's executions logged."""

import click

from pgbeat.access.actors import Actor
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker, find
from pgbeat.cli.terminal.options import option, whole
from pgbeat.cli.terminal.printing import line
from pgbeat.cli.terminal.target import Target
from pgbeat.jobs.running import task_logs
from pgbeat.views import jobs as views


@click.command("logs")
@click.argument("job_id", metavar="ID")
@option("--execution", whole(1, 2**31 - 1), "Only of this.")
@as_onlooker
def logs_command(target: Target, job_id: str, execution: int | None, actor: Actor) -> None:
    """Show the last lines that a job's newest 20 executions logged, the oldest first."""
    redactor = target.redactor(actor)
    with target.transaction() as connection:
        job = find(connection, target, actor, job_id)
        logs = task_logs.of_job(connection, redactor, job, number=execution)
    logs.reverse()
    if printing.is_json():
        printing.echo_json([views.log(log) for log in logs])
        return
    if not logs:
        click.echo("It has logged nothing that was kept.")
    for log in logs:
        click.secho(f"Execution {log.number}, {log.state}", bold=True)
        if log.omitted:
            click.echo(f"… {printing.counted(log.omitted, 'line')} before these")
        for entry in log.lines:
            head = f"{printing.utc(entry.at)} {line(entry.level)} {line(entry.logger)}: "
            for row in entry.message.splitlines() or [""]:
                click.echo(f"{head}{printing.code(row)}")
                head = "  "
