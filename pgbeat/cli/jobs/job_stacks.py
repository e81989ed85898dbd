"""`pgbeat jobs stack`: what a job is doing, and what it did when it was out of time."""

import click

from pgbeat.access.actors import Actor
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.actors import as_onlooker, find
from pgbeat.cli.terminal.options import FLAG, option
from pgbeat.cli.terminal.target import Target
from pgbeat.jobs.running import stacks
from pgbeat.views import jobs as views


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
        rows = stacks.of_job(connection, redactor, job, ask_first=not kept)
    rows.reverse()
    if printing.is_json():
        printing.echo_json([views.stack(row) for row in rows])
        return
    if not rows:
        click.echo("No stack of it was kept.")
    for row in rows:
        memory = "" if row.memory_mb is None else f", {row.memory_mb:,.0f} MB"
        head = f"Execution {row.number}, {row.words}"
        click.secho(f"{head}, {printing.utc(row.taken_at)}{memory}", bold=True)
        for line in row.stack.splitlines():
            click.echo(printing.code(line))
