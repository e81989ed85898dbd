"""`pgbeat jobs logs` and `stack`: what a job's executions logged last, and where they were."""

import click

from pgbeat.access.actors import Actor
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker, find
from pgbeat.cli.terminal.options import FLAG, option, whole
from pgbeat.cli.terminal.printing import line
from pgbeat.cli.terminal.target import Target
from pgbeat.jobs.running import stacks, task_logs
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


@click.command("stack")
@click.argument("job_id", metavar="ID")
@option("--kept", FLAG, "Only show what was kept.")
@as_onlooker
def stack_command(target: Target, job_id: str, kept: bool, actor: Actor) -> None:
    """Ask a running job where its task is, and show what is kept, the oldest first.

    Of each execution: the last stack that somebody asked for, and those just before a time limit,
    at a missed deadline, and when it had to end.
    """
    redactor = target.redactor(actor)
    with target.session() as connection:
        job = find(connection, target, actor, job_id)
        rows = stacks.of_job(connection, redactor, job, ask_first=not kept)[::-1]
    if printing.is_json():
        printing.echo_json([views.stack(row) for row in rows])
        return
    if not rows:
        click.echo("No stack of it was kept.")
    for row in rows:
        memory = "" if row.memory_mb is None else f", {row.memory_mb:,.0f} MB"
        head = f"Execution {row.number}, {row.words}, {printing.utc(row.taken_at)}{memory}"
        click.secho(head, bold=True)
        for call in row.stack.splitlines():
            click.echo(printing.code(call))


COMMANDS = (logs_command, stack_command)
