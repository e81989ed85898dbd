"""`pgbeat templates`: named tasks, with arguments and a job policy, to make jobs from."""

from typing import Any

import click

from pgbeat.cli import Noun
from pgbeat.cli.jobs.job_options import call_options, given_policy, in_words, policy_options
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import asking, changing, remove
from pgbeat.cli.terminal.options import SectionedCommand, option
from pgbeat.cli.terminal.printing import compact
from pgbeat.cli.terminal.target import Target, on_named, on_target
from pgbeat.jobs.policy import templates
from pgbeat.jobs.verbs import template_control
from pgbeat.views import definitions as views


@click.group("templates", cls=Noun)
def templates_command() -> None:
    """Look at templates, and change them.

    A template is a named task with arguments and a job policy. Schedules (`add --template`) and
    people (`jobs run --template`) make jobs from it. A job keeps what the template said then.
    """


@templates_command.command("list")
@on_target
def list_command(target: Target) -> None:
    """List the templates: their task and policy, and how many schedules name them."""
    with target.transaction() as connection:
        rows = templates.listing(connection, namespace=target.namespace)
        users = templates.users(connection, namespace=target.namespace)
    printing.show_listing(
        rows,
        json_of=lambda row: views.template(row, users),
        cells_of=lambda row: {
            "template": row.name,
            "task": row.task,
            "arguments": f"{compact(row.args)} {compact(row.kwargs)}",
            "jobs": in_words(row.job_policy),
            "schedules": len(users.get(row.name, ())),
        },
        names={"template", "task"},
        folding={"arguments", "jobs"},
        none="There are no templates; `pgbeat templates set NAME --task TASK` makes one.",
    )


@templates_command.command("show")
@on_named
def show_command(target: Target, name: str) -> None:
    """Show all about a template."""
    with target.reading() as (connection, now):
        row = templates.get(connection, name, namespace=target.namespace)
        users = templates.users(connection, namespace=target.namespace)
    printing.show_facts(
        row.name,
        ("about", row.description),
        ("task", row.task),
        ("args", compact(row.args)),
        ("kwargs", compact(row.kwargs)),
        ("options", compact(row.options)),
        ("queue", row.queue),
        ("jobs", in_words(row.job_policy)),
        ("schedules", printing.shortened(users.get(name, [])) or "none"),
        ("made", printing.when_and_who(row.created_at, row.created_by, now)),
        ("changed", printing.when(row.updated_at, now)),
        view=views.template(row, users),
    )


@templates_command.command("set", cls=SectionedCommand)
@click.argument("name")
@option("--task", "TASK", "A task, by its registered name.", required=True)
@call_options
@option("--description", "TEXT", "What it is for.")
@policy_options(template=False)
@changing
def set_command(target: Target, /, name: str, dry_run: bool, **options: Any) -> None:
    """Make a template, or replace the one of that name.

    With the app (-A), the task must be one that it has registered.
    """
    options["job_policy"] = given_policy(options)
    values = {key: value for key, value in options.items() if value is not None}
    with target.unit(dry_run=dry_run) as unit:
        row, before = template_control.put(unit, name, **values)
        users = templates.users(unit.connection, namespace=unit.namespace)
    message = f"Template {name!r} is like that already."
    if before is None or before._replace(updated_at=row.updated_at) != row:
        verbs = ("Would make", "Made") if before is None else ("Would change", "Changed")
        message = f"{verbs[not dry_run]} template {name!r}, of task {row.task!r}."
    printing.result(views.template(row, users), message)
    if not target.has_app:
        printing.note("the task is not checked; with -A APP it would be.")


@templates_command.command("remove")
@click.argument("name")
@asking
def remove_command(target: Target, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a template that no schedule names. Jobs that were made from it continue."""
    remove(target, "template", name, template_control.remove, yes=yes, dry_run=dry_run)
