"""`pgbeat add` and `update`: what schedules are."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import click
from rich.text import Text
from sqlalchemy import Connection

from pgbeat.cli import printing
from pgbeat.cli.asking import dry_run_option, json_option
from pgbeat.cli.job_options import cleared_keys, given_policy, policy_clearing, policy_options
from pgbeat.cli.options import (
    CLEARABLE,
    CLEARED,
    MOMENTS,
    Command,
    clearing,
    definition,
    in_zone,
)
from pgbeat.cli.switches import next_line
from pgbeat.cli.target import Target, pass_target
from pgbeat.errors import AlreadyExists, ConditionError, NotFound
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs import templates
from pgbeat.jobs.lanes import model as lanes
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import TIMETABLES, Schedule
from pgbeat.timetables import zone

#: What can only be checked with the app.
_NEED_APP = {"task", "launcher", "args", "kwargs", "options"}
#: What the code of the app decides about the schedules that it makes.
_CODE_OWNS = {"task", "timezone", "args", "kwargs", "options", *TIMETABLES}


@click.command("add", cls=Command)
@click.argument("name")
@definition
@policy_options(of_schedule=True)
@click.option("--if-not-exists", is_flag=True, help="Leave it as it is if it is there.")
@dry_run_option
@json_option
@pass_target
def add_command(
    target: Target, /, name: str, if_not_exists: bool, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Add a schedule: a name, a task or a template that has one, and when.

    With the app (-A), task, launcher and arguments are checked against what it has registered.
    Times without an offset are those of the schedule's zone, else the app's.
    """
    settings = target.settings
    values: dict[str, Any] = {
        "max_retries": settings.max_retries,
        "retry_base": timedelta(seconds=settings.retry_base),
        "retry_cap": timedelta(seconds=settings.retry_cap),
    }
    job = given_policy(given)
    values |= {key: value for key, value in given.items() if value is not None}
    values |= {"job_policy": job} if job else {}
    assumed = _place(target, values, None)
    asked = _asked(values, job)
    check = _checker(target, asked)
    condition = _try_condition(target, values)
    try:
        with target.unit(dry_run=dry_run) as unit:
            row = schedule_control.add(unit, name, **values)
            check(_whole(unit.connection, row))
            missing = [*_missing(unit.connection, row, "after")]
            missing += _missing_for_jobs(unit.connection, row)
    except AlreadyExists:
        if not if_not_exists:
            raise
        with target.transaction() as connection:
            row = schedules.get(connection, name, namespace=settings.namespace)
        said = f"Schedule {name!r} is there already; it is left as it is."
        printing.result(printing.row_json(row), said, as_json=as_json)
        return
    verb = "Would add" if dry_run else "Added"
    said = f"{verb} schedule {name!r}. {next_line(target, row)}".rstrip()
    printing.result(printing.row_json(row), said, as_json=as_json)
    _remark(target, asked, condition, assumed, *missing, as_json=as_json)


@click.command("update", cls=Command)
@click.argument("name")
@definition
@policy_options(of_schedule=True)
@clearing
@policy_clearing
@dry_run_option
@json_option
@pass_target
def update_command(
    target: Target, /, name: str, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Change a schedule. A new timetable counts from now on.

    What says when (--cron, --every, --at …) takes the place of what said so before. Times without
    an offset are those of the schedule's zone, else the app's.
    """
    job = given_policy(given)
    cleared = cleared_keys(given, job)
    values = {
        key: value
        for key, value in given.items()
        if value is not None and not key.startswith("no_")
    }
    for option, column in CLEARABLE.items():
        if given[f"no_{option.replace('-', '_')}"]:
            if column in values:
                flag = column.replace("_", "-")
                raise click.UsageError(f"--{flag} and --no-{option} exclude each other")
            values[column] = CLEARED.get(column)
    if not (values or job or cleared):
        raise click.UsageError("nothing to change; give at least one option (see --help)")
    if not values.keys().isdisjoint(TIMETABLES):
        values = dict.fromkeys(TIMETABLES) | values
    asked = _asked(values, job)
    check = _checker(target, asked)
    condition = _try_condition(target, values)
    with target.unit(dry_run=dry_run) as unit:
        connection = unit.connection
        before = schedules.get(connection, name, for_update=True, namespace=unit.namespace)
        assumed = _place(target, values, before.timezone)
        if values.get("labels"):
            values["labels"] = before.labels | values["labels"]
        if job or cleared:
            kept = {key: value for key, value in before.job_policy.items() if key not in cleared}
            values["job_policy"] = kept | job
        row = schedule_control.edit(unit, name, values).after
        check(_whole(connection, row))
        missing = [*_missing(connection, row, *values)]
        missing += _missing_for_jobs(connection, row) if job else []
    # A template may have given it a task.
    changes = [key for key in [*values, "task"] if getattr(before, key) != getattr(row, key)]
    changes = list(dict.fromkeys(changes))
    said = f"Schedule {name!r} is like that already."
    if changes:
        verb = "Would change" if dry_run else "Changed"
        said = f"{verb} schedule {name!r}. {next_line(target, row)}".rstrip()
    printing.result(printing.row_json(row), said, as_json=as_json)
    if not changes:
        return
    if not as_json:
        facts = [fact for key in changes for fact in _change(before, row, key)]
        printing.show(printing.facts(facts))
    _remark(target, asked, condition, assumed, *missing, as_json=as_json)
    if row.source == "code" and _CODE_OWNS & set(changes):
        printing.note("it is made by the app's code, and beat sets it back when it starts.")


def _place(target: Target, values: dict[str, Any], timezone: str | None) -> str:
    """Makes instants of wall times, in the schedule's zone (`timezone` is what it was so far), else
    the app's; a remark where UTC had to be assumed."""
    given = {key: values[key] for key in MOMENTS if values.get(key) is not None}
    if not given:
        return ""
    name = values.get("timezone", timezone)
    local = zone(name or target.timezone)
    values |= {key: in_zone(moment, local, MOMENTS[key]) for key, moment in given.items()}
    if name or target.has_app or all(moment.tzinfo for moment in given.values()):
        return ""
    return "times without an offset are taken for UTC; with -A APP, for the app's zone."


def _missing(connection: Connection, row: Schedule, *keys: str) -> Iterator[str]:
    """That the schedule that it comes after is not there, if so: it may be added later."""
    if row.after is None or "after" not in keys:
        return
    try:
        schedules.get(connection, row.after, namespace=row.namespace)
    except NotFound as error:
        yield f"until it is there, nothing is launched after it: {error}"


def _missing_for_jobs(connection: Connection, row: Schedule) -> Iterator[str]:
    """That its lane or its template is not there."""
    lookups: dict[str, Callable[[str], object]] = {
        "lane": lambda name: lanes.get(connection, row.namespace, name),
        "template": lambda name: templates.get(connection, name, namespace=row.namespace),
    }
    for key, look_up in lookups.items():
        if row.job_policy.get(key) is None:
            continue
        try:
            look_up(row.job_policy[key])
        except NotFound as error:
            yield f"until it is there, its ticks fail: {error}"


def _whole(connection: Connection, row: Schedule) -> Schedule:
    """The row with what its template adds; as it is where there is none."""
    from pgbeat.schedules.registry import completed

    named = row.job_policy.get("template")
    found = templates.load(connection, [named] if named else [], namespace=row.namespace)
    return completed(row, found[named]) if named in found else row


def _asked(values: Mapping[str, Any], job: Mapping[str, Any]) -> set[str]:
    """Columns given that only the app can judge; a template stands for its task."""
    return {key for key in _NEED_APP if key in values} | ({"task"} if "template" in job else set())


def _change(before: Schedule, after: Schedule, key: str) -> Iterator[tuple[str, Text]]:
    """Facts: what was another value before."""
    if key != "job_policy":
        yield key, Text(f"{_value(getattr(before, key))} → {_value(getattr(after, key))}")
        return
    old, new = (job_policies.read(row.job_policy)[0]._asdict() for row in (before, after))
    for name, value in new.items():
        if value != old[name]:
            yield f"job {name}", Text(f"{_value(old[name])} → {_value(value)}")


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, timedelta):
        return printing.span(value, units=4)
    if isinstance(value, datetime):
        return f"{printing.utc(value)} UTC"
    return printing.line(value if isinstance(value, str) else json.dumps(value))


def _checker(target: Target, asked: set[str]) -> Callable[[Schedule], None]:
    """Refuses a row that the app can't launch. The app is loaded here, before any row is locked."""
    from pgbeat.broker.publishing.publisher import check_options
    from pgbeat.schedules.registry import check

    app = target.registry if asked else None
    return lambda row: check_options(row.options) if app is None else check(app, row)


def _try_condition(target: Target, values: dict[str, Any]) -> str:
    """How the condition, if there is a new one, stands. Refuses one that can never hold."""
    from pgbeat.schedules.registry import check_condition

    condition = values.get("condition_sql")
    if condition is None or not condition.strip():
        return ""
    try:
        with target.engine.connect() as connection:
            answer = check_condition(connection, condition, target.settings.condition_timeout)
    except ConditionError as error:
        return f"Its condition fails as things are: {error}."
    return "Its condition holds now." if answer is True else f"Its condition says no: {answer}."


def _remark(target: Target, asked: set[str], condition: str, *notes: str, as_json: bool) -> None:
    if condition:
        click.echo(condition, err=as_json)
    for note in filter(None, notes):
        printing.note(note)
    if asked and not target.has_app:
        printing.note("task and launcher are not checked; with -A APP they would be.")
