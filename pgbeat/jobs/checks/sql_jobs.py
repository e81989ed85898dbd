"""Checks jobs of the task `pgbeat.sql`: a statement, and the role that runs it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pgbeat.config import Settings
from pgbeat.errors import InvalidSchedule, InvalidTimetable
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration

TASK = "pgbeat.sql"


class SqlCall(NamedTuple):
    """What such a job asks for."""

    statement: str
    role: str
    #: How long the statement may take.
    seconds: float


def read(
    settings: Settings, statement: object, role: object = None, timeout: object = None
) -> SqlCall:
    """Returns what the arguments of a job ask for.

    The role may be left out if the settings allow only one. Raises `InvalidSchedule`, also for a
    role that they don't allow.
    """
    if not isinstance(statement, str) or not statement.strip():
        message = f"statement must be a statement in SQL, got {statement!r:.200}"
        raise InvalidSchedule.of("kwargs.statement", "malformed", message)
    return SqlCall(statement, _role(settings, role), _seconds(settings, timeout))


def check_part(settings: Settings, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises `InvalidSchedule` for a role or a timeout that the settings don't allow.

    Takes a part of a job's arguments: what a template has, or what is added to one.
    """
    given = dict(zip(("statement", "role", "timeout"), args, strict=False)) | dict(kwargs)
    role = given.get("role")
    if role is not None or not settings.sql_roles:
        _role(settings, role)
    _seconds(settings, given.get("timeout"))


def _role(settings: Settings, role: object) -> str:
    allowed = settings.sql_roles
    if not allowed:
        message = "SQL jobs are off: pgbeat_sql_roles names no role as which they may run"
        raise InvalidSchedule.of("kwargs.role", "unknown", message)
    if role is None and len(allowed) == 1:
        return allowed[0]
    if role is None:
        message = f"role is required: name one of pgbeat_sql_roles ({', '.join(allowed)})"
        raise InvalidSchedule.of("kwargs.role", "required", message)
    if not isinstance(role, str) or role not in allowed:
        hint = did_you_mean(str(role), allowed)
        message = f"role {role!r:.200} is none of pgbeat_sql_roles ({', '.join(allowed)})"
        raise InvalidSchedule.of(
            "kwargs.role", "unknown", f"{message}; {hint}" if hint else message
        )
    return role


def _seconds(settings: Settings, timeout: object) -> float:
    if timeout is None:
        return settings.sql_timeout
    seconds = _length(timeout)
    if seconds is None:
        message = f"timeout must be seconds, or text such as '10 minutes', got {timeout!r:.200}"
        raise InvalidSchedule.of("kwargs.timeout", "malformed", message)
    if not 0.001 <= seconds <= settings.sql_timeout:
        message = (
            f"timeout must be above 0 and at most {settings.sql_timeout:g} s (pgbeat_sql_timeout), "
            f"got {seconds:g} s"
        )
        raise InvalidSchedule.of("kwargs.timeout", "out_of_range", message)
    return seconds


def _length(timeout: Any) -> float | None:
    """Returns a length of time in seconds; `None` if it is none."""
    if isinstance(timeout, str):
        try:
            return parse_duration(timeout).total_seconds()
        except InvalidTimetable:
            return None
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    return float(timeout) if is_number else None
