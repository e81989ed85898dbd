"""`pgbeat add` and `update`: define schedules."""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click
from sqlalchemy import Connection

from pgbeat.cli.jobs.job_options import cleared_keys, given_policy, policy_clearing, policy_options
from pgbeat.cli.schedules.switches import next_line
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.asking import changing
from pgbeat.cli.terminal.options import (
    CLEARABLE,
    FLAG,
    MOMENTS,
    SectionedCommand,
    clearing,
    definition,
    in_zone,
    option,
    wrong_values,
)
from pgbeat.cli.terminal.target import Target
from pgbeat.errors import AlreadyExists, ConditionError, NotFound, Problems
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy import templates
from pgbeat.schedules import checked, mistakes, upstreams
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import zone
from pgbeat.views import schedules as views

#: Columns that can only be checked with the app.
_NEED_APP = {"task", "launcher", "args", "kwargs", "options"}


@click.command("add", cls=SectionedCommand, collects=True)
@click.argument("name")
@definition
@policy_options(of_schedule=True)
@option("--disabled", FLAG, "Disable it until `pgbeat enable`.")
@option("--paused", FLAG, "Pause it until `pgbeat resume`.")
@option("--if-not-exists", FLAG, "Leave an existing one as it is.")
@changing
def add_command(
    target: Target, /, name: str, if_not_exists: bool, dry_run: bool, **options: Any
) -> None:
    """Add a schedule: a name, a task or a template, and a timetable.

    With the app (-A), task, launcher and arguments are checked against what it has registered.
    Times without an offset are in the schedule's zone, else the app's.
    """
    job, known = _policy(options)
    values = {key: value for key, value in options.items() if value is not None}
    values |= {"job_policy": job} if job else {}
    values["enabled"] = not values.pop("disabled")
    assumed = _localize(target, values, None, known)
    checks = _Checks(target, values, job, known)
    try:
        with target.unit(dry_run=dry_run) as unit:

            def add(values: dict[str, Any]) -> Schedule:
                row = schedule_control.add(unit, **{"name": name, **values})
                checks.check(unit.connection, row)
                return row

            row = mistakes.attempt(unit.connection, values, add, is_new=True, known=known)
            missing = [*_missing(unit.connection, row, {"after", "job_policy"})]
    except AlreadyExists:
        if not if_not_exists:
            raise
        with target.transaction() as connection:
            row = schedules.get(connection, name, namespace=target.namespace)
        message = f"Schedule {name!r} exists already; it is left as it is."
        printing.result(views.schedule(row), message)
        return
    verb = "Would add" if dry_run else "Added"
    state = {"disabled": ", disabled", "paused": ", paused"}.get(row.state, "")
    message = f"{verb} schedule {name!r}{state}. {next_line(target, row)}".rstrip()
    printing.result(views.schedule(row), message)
    checks.remark(assumed, *missing)


@click.command("update", cls=SectionedCommand, collects=True)
@click.argument("name")
@definition
@policy_options(of_schedule=True)
@clearing
@policy_clearing
@changing
def update_command(target: Target, /, name: str, dry_run: bool, **options: Any) -> None:
    """Change a schedule. A new timetable counts from now on.

    A new timetable (--cron, --every, --at …) replaces the old one. Times without an offset are in
    the schedule's zone, else the app's.
    """
    job, known = _policy(options)
    cleared = cleared_keys(options, job)
    values = _changes(options)
    if not (values or job or cleared or known):
        raise click.UsageError("nothing to change; give at least one option (see --help)")
    checks = _Checks(target, values, job, known)
    with target.unit(dry_run=dry_run) as unit:
        before = schedules.get(unit.connection, name, for_update=True, namespace=unit.namespace)
        assumed = _localize(target, values, before.timezone, known)
        if values.get("labels"):
            values["labels"] = before.labels | values["labels"]
        if job or cleared:
            kept = {key: value for key, value in before.job_policy.items() if key not in cleared}
            values["job_policy"] = kept | job

        def edit(values: dict[str, Any]) -> Schedule:
            row = schedule_control.edit(unit, name, values).after
            checks.check(unit.connection, row)
            return row

        row = mistakes.attempt(unit.connection, values, edit, is_new=False, known=known)
        missing = [*_missing(unit.connection, row, values if job else {*values} - {"job_policy"})]
    # A template may have given it a task.
    changes = [key for key in {**values, "task": None} if getattr(before, key) != getattr(row, key)]
    if not changes:
        message = f"Schedule {name!r} is like that already."
        printing.result(views.schedule(row), message)
        return
    verb = "Would change" if dry_run else "Changed"
    message = f"{verb} schedule {name!r}. {next_line(target, row)}".rstrip()
    printing.result(views.schedule(row), message)
    if not printing.is_json():
        facts = [fact for key in changes for fact in _change(before, row, key)]
        printing.show_facts(None, *facts)
    checks.remark(assumed, *missing)
    if row.source == "code" and checked.CODE_OWNS & set(changes):
        printing.note("it is made by the app's code, and beat sets it back when it starts.")


def _policy(options: dict[str, Any]) -> tuple[dict[str, Any], Problems]:
    """Takes the policy's options out of the parameters; returns it, and the mistakes in values."""
    known = Problems()
    for name, message in wrong_values().items():
        is_job = name.startswith("job_")
        known.add(f"job_policy.{name[4:]}" if is_job else name, "malformed", message)
    with known.within("job_policy"):
        return given_policy(options), known
    return {}, known


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns that the options of `update` set or clear."""
    values = {
        key: value
        for key, value in options.items()
        if value is not None and not key.startswith("no_")
    }
    for name, column in CLEARABLE.items():
        if options[f"no_{name.replace('-', '_')}"]:
            if column in values:
                flag = column.replace("_", "-")
                raise click.UsageError(f"--{flag} and --no-{name} exclude each other")
            values[column] = None
    return checked.read_changes(values)[0]


def _localize(target: Target, values: dict[str, Any], timezone: str | None, known: Problems) -> str:
    """Converts wall times to UTC; returns a remark if it had to assume their zone.

    They are in the schedule's zone (`timezone` is its old one), or else in the app's. Adds mistakes
    to those that are known.
    """
    moments = {key: values[key] for key in MOMENTS if values.get(key) is not None}
    name = values.get("timezone", timezone)
    local = ZoneInfo("UTC")
    if moments:
        with known.within():
            local = zone(name or target.timezone)
    for key, moment in moments.items():
        try:
            values[key] = in_zone(moment, local, MOMENTS[key])
        except click.BadParameter as error:
            known.add(key, "malformed", error.format_message())
    if name or target.has_app or all(moment.tzinfo for moment in moments.values()):
        return ""
    return "times without an offset are taken as UTC; with -A APP, they are in the app's zone."


def _missing(connection: Connection, row: Schedule, columns: Collection[str]) -> Iterator[str]:
    """Yields remarks on missing things that these columns name: they may be added later."""
    for name in upstreams(row.after) if "after" in columns else ():
        try:
            schedules.get(connection, name, namespace=row.namespace)
        except NotFound as error:
            yield f"until it is added, nothing is launched after it: {error}"
    lookups: dict[str, Callable[[str], object]] = {
        "lane": lambda name: lanes.get(connection, name, namespace=row.namespace),
        "template": lambda name: templates.get(connection, name, namespace=row.namespace),
    }
    for key, look_up in lookups.items():
        if "job_policy" in columns and row.job_policy.get(key) is not None:
            try:
                look_up(row.job_policy[key])
            except NotFound as error:
                yield f"until it is added, the schedule's ticks fail: {error}"


class _Checks:
    """Checks of a new or changed row that need the app, or the condition's result."""

    def __init__(
        self, target: Target, values: Mapping[str, Any], job: Mapping[str, Any], known: Problems
    ) -> None:
        """Loads the app and tries the condition, before any row is locked: adds its mistakes."""
        self._target = target
        # A template stands for its task.
        self._needs_app = "template" in job or not _NEED_APP.isdisjoint(values)
        self._app = target.registry if self._needs_app else None
        self._condition = ""
        with known.within():
            self._condition = _try_condition(target, values.get("condition_sql"))

    def check(self, connection: Connection, row: Schedule) -> None:
        """Raises an error if the app can't launch the row."""
        from pgbeat.broker.publishing.publisher import check_options
        from pgbeat.schedules.registry import check, completed

        named = row.job_policy.get("template")
        by_name = templates.load(connection, [named] if named else [], namespace=row.namespace)
        whole = completed(row, by_name[named]) if named in by_name else row
        if self._app is None:
            check_options(whole.options)
        else:
            check(self._app, whole)

    def remark(self, *notes: str) -> None:
        """Prints the condition's result, notes, and the checks that were left out."""
        if self._condition:
            click.echo(self._condition, err=printing.is_json())
        for note in filter(None, notes):
            printing.note(note)
        if self._needs_app and not self._target.has_app:
            printing.note("task and launcher are not checked; with -A APP they would be.")


def _try_condition(target: Target, condition: str | None) -> str:
    """Returns a sentence on a condition's result. Raises an error for one that can never hold."""
    if condition is None or not condition.strip():
        return ""
    from pgbeat.schedules.registry import check_condition

    try:
        answer = check_condition(target.settings, condition)
    except ConditionError as error:
        return f"Its condition fails as things are: {error}."
    return "Its condition holds now." if answer is True else f"Its condition says no: {answer}."


def _change(before: Schedule, after: Schedule, key: str) -> Iterator[tuple[str, str]]:
    """Yields each changed field, and its values before and after."""
    if key != "job_policy":
        yield key, f"{_value(getattr(before, key))} → {_value(getattr(after, key))}"
        return
    old, new = (job_policies.read(row.job_policy)[0]._asdict() for row in (before, after))
    for name, value in new.items():
        if value != old[name]:
            yield f"job {name}", f"{_value(old[name])} → {_value(value)}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, timedelta):
        return printing.span(value, units=4)
    if isinstance(value, datetime):
        return f"{printing.utc(value)} UTC"
    return printing.literal(value)
