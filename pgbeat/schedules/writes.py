"""Writes of schedules: values are checked, and the database's refusals become errors."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, update
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.json_values import unreadable
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.named_rows import missing
from pgbeat.database.tables import schedules
from pgbeat.errors import AlreadyExists, InvalidJob, InvalidSchedule, InvalidTimetable, Problem
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.preparing import placeholders
from pgbeat.names import NAMESPACE
from pgbeat.schedules.model import Schedule, get, is_named
from pgbeat.timetables import check_cron, parse_rrule, parse_solar, zone

#: Columns that a person may set on a schedule.
EDITABLE = frozenset(
    {
        "launcher", "task", "args", "kwargs", "options", "queue", "condition_sql", "cron", "every",
        "once_at", "solar", "rrule", "after", "after_outcome", "after_match", "timezone",
        "starts_at", "ends_at", "max_runs", "jitter", "calendar", "catch_up", "catch_up_limit",
        "grace", "overlap",
        "min_interval", "max_retries", "retry_base", "retry_factor", "retry_cap", "probe_after",
        "owner", "next_run", "job_policy", "pause_after_failures", "check_in_url",
        "description", "labels", "metadata", "fresh_within",
    }
)  # fmt: skip


def defaults(settings: Settings) -> dict[str, Any]:
    """Returns the columns of a new schedule that the settings decide."""
    return {
        "max_retries": settings.max_retries,
        "retry_base": timedelta(seconds=settings.retry_base),
        "retry_cap": timedelta(seconds=settings.retry_cap),
    }


#: Checks of single columns of a timetable, which raise `InvalidTimetable`.
PARSERS: dict[str, Callable[[str], object]] = {
    "cron": check_cron,
    "timezone": zone,
    "solar": parse_solar,
    "rrule": parse_rrule,
}


def add(
    connection: Connection, name: str, *, source: str, namespace: str = NAMESPACE, **values: Any
) -> Schedule:
    """Adds a schedule. `job_policy` is JSON (see `job_policies.parse`).

    Raises `InvalidSchedule` or `AlreadyExists`.
    """
    values = _checked(values)
    row = {"name": name, "namespace": namespace, "source": source, **values}
    _write(connection, name, insert(schedules).values(row), values, namespace)
    return get(connection, name, namespace=namespace)


def edit(
    connection: Connection, name: str, *, namespace: str = NAMESPACE, **values: Any
) -> Schedule:
    """Changes a schedule; a `job_policy` replaces the whole of the former one.

    Raises `InvalidSchedule` or `NotFound`.
    """
    values = _checked(values)
    get(connection, name, namespace=namespace, for_update=True)
    if values:
        statement = update(schedules).where(is_named(name, namespace)).values(**values)
        _write(connection, name, statement, values, namespace)
    return get(connection, name, namespace=namespace)


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values as they are stored. Raises `InvalidSchedule`."""
    unknown = sorted(set(values) - EDITABLE)
    if unknown:
        message = f"a schedule has no {', '.join(unknown)} that can be set"
        raise InvalidSchedule.of(unknown[0], "unknown_field", message)
    placeholders.check(values.get("args"), values.get("kwargs"))
    for field in ("args", "kwargs"):
        if (why := unreadable(values.get(field))) is not None:
            raise InvalidSchedule.of(field, "malformed", f"{field}: {why}")
    if values.get("timezone"):
        zone(values["timezone"])  # suggests one
    policy = values.get("job_policy", ())
    if not isinstance(policy, Mapping | None):
        return dict(values)  # not given, or the database rejects it
    try:
        return {**values, "job_policy": job_policies.parse(policy or {}, "job_policy").as_json()}
    except InvalidJob as error:
        raise InvalidSchedule(error.problems, subject=error.subject) from None


def _write(
    connection: Connection, name: str, statement: Any, values: Mapping[str, Any], namespace: str
) -> None:
    """Executes the statement, then checks fields that the database checks more loosely.

    The database comes first: its sentences are better.
    """
    try:
        with connection.begin_nested():
            connection.execute(statement)
    except DBAPIError as error:
        refused = _invalid(name, error)
        if isinstance(refused, InvalidSchedule):
            refused = _with_nearest(connection, refused, values, namespace)
        raise refused from None
    for field, parse in PARSERS.items():
        if values.get(field) is not None:
            parse(values[field])


def _invalid(name: str, error: DBAPIError) -> AlreadyExists | InvalidSchedule:
    """Returns the database's refusal as an error; raises errors that are not about the data."""
    if not connections.is_refused(error):  # such as a missing table, or a lost connection
        raise error
    diagnosis = error.orig.diag  # type: ignore[union-attr]
    if diagnosis.constraint_name == "schedules_name_key":
        return AlreadyExists(
            f"there is a schedule {name!r} already; change it with `pgbeat update`"
        )
    refused = refusal(error)
    message = refused.sentence
    if connections.sqlstate(error).startswith("22") and diagnosis.message_detail:
        message += f": {diagnosis.message_detail}"
    if refused.schedule is None:
        return InvalidSchedule(message)
    kind = InvalidTimetable if refused.field in PARSERS else InvalidSchedule
    problem = Problem(refused.field, diagnosis.constraint_name or "malformed", message)
    return kind([problem], subject=f'schedule "{refused.schedule}"')


def _with_nearest(
    connection: Connection, error: InvalidSchedule, values: Mapping[str, Any], namespace: str
) -> InvalidSchedule:
    """Returns the error; for a name that nothing has, with the most similar name."""
    field, code, _ = error.problems[0]
    within = {"calendar": values, "job_policy.template": values.get("job_policy")}.get(field)
    noun = field.removeprefix("job_policy.")
    if code != "unknown" or within is None or noun not in within:
        return error
    message = str(missing(connection, noun, within[noun], namespace=namespace))
    return InvalidSchedule.of(field, code, message, subject=error.subject)


class Refusal(NamedTuple):
    """Why the database rejects a row."""

    #: Name of the schedule, and the field at fault; `None` and "" if no pgbeat trigger names them.
    schedule: str | None
    field: str
    sentence: str


def refusal(error: DBAPIError) -> Refusal:
    """Returns the database's message on a schedule, without the schedule's name in front."""
    diagnosis = getattr(error.orig, "diag", None)
    name: str | None = getattr(diagnosis, "datatype_name", None)
    text = str(getattr(diagnosis, "message_primary", None) or error.orig)
    sentence = text.removeprefix(f'schedule "{name}": ')
    return Refusal(name, getattr(diagnosis, "column_name", None) or "", sentence)
