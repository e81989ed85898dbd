"""`pgbeat templates`: named tasks, with arguments and a policy, that jobs are made from."""

from datetime import datetime
from typing import Any

import click
from rich.table import Table

from pgbeat.cli import Noun, printing
from pgbeat.cli.asking import asking, dry_run_option, sure
from pgbeat.cli.job_options import call_options, given_policy, in_words, policy_options
from pgbeat.cli.options import Command
from pgbeat.cli.printing import compact, line
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.jobs import template_control, templates
from pgbeat.jobs.templates import Template


@click.group("templates", cls=Noun)
def templates_command() -> None:
    """Look at templates, and change them.

    A template is a named task with arguments and a job policy. Schedules (`add --template`) and
    people (`jobs run --template`) make jobs from it; a job keeps what the template said then.
    """


@templates_command.command("list")
@json_option
@pass_target
def list_command(target: Target, as_json: bool) -> None:
    """List the templates: their task and policy, and how many schedules name them."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        rows = templates.listing(connection, namespace=namespace)
        users = templates.users(connection, namespace=namespace)
    printing.listing(
        rows, as_json=as_json, json_of=lambda row: _json(row, users),
        table_of=lambda: _table(rows, users),
        none="There are no templates; `pgbeat templates set NAME --task TASK` makes one.",
    )  # fmt: skip


def _table(rows: list[Template], users: dict[str, list[str]]) -> Table:
    folding = {"task", "arguments", "jobs"}
    columns = ("template", "task", "arguments", "jobs", "schedules")
    table = printing.table(*columns, folding=folding, numbers={"schedules"})
    for row in rows:
        given = " ".join(filter(None, (compact(row.args), compact(row.kwargs))))
        used = str(len(users.get(row.name, ())))
        table.add_row(line(row.name), line(row.task), line(given), in_words(row.job_policy), used)
    return table


@templates_command.command("show")
@click.argument("name")
@json_option
@pass_target
def show_command(target: Target, name: str, as_json: bool) -> None:
    """Show all about a template."""
    namespace = target.settings.namespace
    with target.transaction() as connection:
        now = connections.now(connection)
        row = templates.get(connection, name, namespace=namespace)
        users = templates.users(connection, namespace=namespace)
    if as_json:
        printing.echo_json(_json(row, users))
        return
    click.secho(line(row.name), bold=True)
    printing.show(printing.facts(_facts(row, users.get(name, []), now)))


def _facts(row: Template, users: list[str], now: datetime) -> list[Any]:
    by = "" if row.created_by is None else f", by {line(row.created_by)}"
    return [
        ("about", None if row.description is None else line(row.description)),
        ("task", line(row.task)),
        ("args", line(compact(row.args))),
        ("kwargs", line(compact(row.kwargs))),
        ("options", line(compact(row.options))),
        ("queue", None if row.queue is None else line(row.queue)),
        ("jobs", in_words(row.job_policy)),
        ("schedules", printing.named(users)),
        ("made", f"{printing.when(row.created_at, now)}{by}"),
        ("changed", printing.when(row.updated_at, now)),
    ]


def _json(row: Template, users: dict[str, list[str]]) -> dict[str, Any]:
    return row._asdict() | {"schedules": users.get(row.name, [])}


@templates_command.command("set", cls=Command)
@click.argument("name")
@click.option("--task", metavar="TASK", required=True, help="A task, by its registered name.")
@call_options
@click.option("--description", metavar="TEXT", help="What it is for.")
@policy_options(template=False)
@dry_run_option
@json_option
@pass_target
def set_command(target: Target, /, name: str, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Make a template, or have the one of that name be just this.

    With the app (-A), the task is looked for among those that it has registered.
    """
    job = given_policy(given)
    values = {key: value for key, value in given.items() if value is not None} | {"job_policy": job}
    with target.unit(dry_run=dry_run) as unit:
        row, before = template_control.put(unit, name, **values)
        users = templates.users(unit.connection, namespace=unit.namespace)
    said = f"Template {name!r} is like that already."
    if before is None or _content(before) != _content(row):
        verbs = ("Would make", "Made") if before is None else ("Would change", "Changed")
        said = f"{verbs[not dry_run]} template {name!r}, of task {row.task!r}."
    printing.result(_json(row, users), said, as_json=as_json)
    if not target.has_app:
        printing.note("the task is not checked; with -A APP it would be.")


def _content(row: Template) -> list[Any]:
    return [row.description, row.task, row.args, row.kwargs, row.options, row.queue, row.job_policy]


@templates_command.command("remove")
@click.argument("name")
@asking
@json_option
@pass_target
def remove_command(target: Target, name: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a template that no schedule names. Jobs that were made from it go on."""
    with target.unit(dry_run=True) as unit:
        template_control.remove(unit, name)
    is_removed = sure(
        "remove", "removed", f"template {name!r}", yes=yes, dry_run=dry_run, as_json=as_json
    )
    if is_removed:
        with target.unit() as unit:
            template_control.remove(unit, name)
    if is_removed or as_json:
        removed = {"name": name, "removed": is_removed}
        printing.result(removed, f"Removed template {name!r}.", as_json=as_json)
