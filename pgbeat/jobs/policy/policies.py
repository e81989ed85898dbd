"""Reads job policies, by which schedules, templates and people say how jobs are made."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from pgbeat.errors import InvalidInput, InvalidJob, Problem, Problems
from pgbeat.storable import UNSTORABLE, is_storable, later
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration

_LONGEST = timedelta(days=36_500)
#: The beginning of keys that are made of a job's arguments.
CONTENT = "content:"


class JobPolicy(NamedTuple):
    """Says how jobs are made, queued and retried. `None` leaves it to the template or settings."""

    #: Name of the template that the job is made from.
    template: str | None = None
    #: Name of the lane that the job waits in.
    lane: str | None = None
    #: The highest goes first, in lanes and in queues that have priorities.
    priority: int | None = None
    #: All attempts together; 1 for no retry.
    max_attempts: int | None = None
    #: The n-th retry comes after base × 2^(n-1) …
    retry_base: timedelta | None = None
    #: … but no later than this.
    retry_cap: timedelta | None = None
    #: For the policy of the lane.
    tags: tuple[str, ...] | None = None
    #: How much the job needs of each resource while it runs.
    resources: Mapping[str, float] | None = None
    #: Allows one unfinished job with the same task and arguments.
    unique: bool | None = None
    #: Allows one unfinished job of its task with this key.
    unique_key: str | None = None
    #: Allows no other job with the key within this time of its creation.
    unique_for: timedelta | None = None
    #: The job waits for a person's approval.
    requires_approval: bool | None = None
    #: The job is late if it has not started, or ended, so long after it was due.
    must_start_within: timedelta | None = None
    must_end_within: timedelta | None = None

    def over(self, other: "JobPolicy") -> "JobPolicy":
        """Returns this policy, with fields that are `None` taken from the other."""
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        return other._replace(**fields)

    @property
    def may_have_key(self) -> bool:
        """Returns whether jobs have a unique key."""
        return bool(self.unique_key is not None or self.unique or self.unique_for is not None)

    @property
    def has_deadlines(self) -> bool:
        """Returns whether jobs can be late."""
        return self.must_start_within is not None or self.must_end_within is not None

    def deadlines(self, due_at: datetime) -> tuple[datetime | None, datetime | None]:
        """Returns by when a job that is due then must have started, and ended."""
        start, end = (
            None if span is None else later(due_at, span)
            for span in (self.must_start_within, self.must_end_within)
        )
        return start, end

    def key(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Returns the unique key of a job; `None` if it needs none."""
        if self.unique_key is not None:
            return self.unique_key
        if not self.may_have_key:
            return None
        content = json.dumps([task, list(args), dict(kwargs)], sort_keys=True, default=repr)
        return CONTENT + hashlib.sha256(content.encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object that `parse` reads, without fields that are `None`."""
        return {name: _plain(value) for name, value in self._asdict().items() if value is not None}


#: Seconds, or text such as `15 minutes`.
Length = timedelta | float | str


class CommonOptions(TypedDict, total=False):
    """What every policy may say, in words that `read` reads; `JobPolicy` has what it means."""

    lane: str | None
    priority: int | None
    max_attempts: int | None
    retry_base: Length | None
    retry_cap: Length | None
    tags: Sequence[str] | None
    resources: Mapping[str, float] | None
    unique: bool | None
    unique_key: str | None
    unique_for: Length | None
    requires_approval: bool | None
    must_start_within: Length | None
    must_end_within: Length | None


class PolicyOptions(CommonOptions, total=False):
    """The policy of a job: keywords of `submit`, and a schedule's `job_policy`."""

    template: str | None


def parse(options: Mapping[str, Any], field: str = "") -> JobPolicy:
    """Returns the policy of a JSON object, such as `{"lane": "gpu", "max_attempts": 5}`.

    Lengths of time are seconds, or text such as `15 minutes`. Raises `InvalidJob`, whose fields
    are the keys, below `field`.
    """
    policy, problems = read(options)
    if problems:
        raise InvalidJob([problem.within(field) for problem in problems], subject="job_policy")
    return policy


def read(options: Mapping[str, Any]) -> tuple[JobPolicy, list[Problem]]:
    """Returns a policy of the valid keys, and the problems of the others."""
    values: dict[str, Any] = {}
    problems = Problems()
    for name, value in options.items():
        if name not in _READERS:
            hint = did_you_mean(str(name), _READERS) or f"there are {', '.join(_READERS)}"
            problems.add(str(name), "unknown_field", f"{name!r} is not a key of it; {hint}")
        elif value is not None:
            try:
                values[name] = _READERS[name](value)
            except InvalidInput as error:
                problems.add(name, error.problems[0].code, f"{name}: {error}")
    base, cap = values.get("retry_base"), values.get("retry_cap")
    if base is not None and cap is not None and cap < base:
        problems.add("retry_cap", "out_of_range", "retry_cap: must not be below retry_base")
    return JobPolicy(**values), problems


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        value = value.total_seconds()
        return int(value) if value.is_integer() else value
    return list(value) if isinstance(value, tuple) else value


def stored(value: Any) -> Any:
    """Returns the value for a JSON column; `None` if it is not JSON.

    Raises `InvalidJob` for a character that Postgres can't store.
    """
    if is_storable(value):
        return value
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None
    raise InvalidJob.of("", "unstorable", f"its arguments or options hold {UNSTORABLE}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise InvalidJob.of("", "malformed", f"{value!r} is not a name of 1 to 200 characters")
    if not is_storable(value):
        message = f"{value!r} holds a character that Postgres can't keep"
        raise InvalidJob.of("", "malformed", message)
    return value


def _key(value: Any) -> str:
    key = _text(value)
    if key.startswith(CONTENT):
        message = f"{value!r} begins as the keys do that `unique` makes of arguments"
        raise InvalidJob.of("", "reserved", message)
    return key


def whole(lowest: int, highest: int) -> Any:
    """Returns what reads a whole number, and raises `InvalidJob` for another value."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidJob.of("", "malformed", f"{value!r} is not a whole number")
        if not lowest <= value <= highest:
            message = f"{value} is out of range; it must be {lowest} to {highest}"
            raise InvalidJob.of("", "out_of_range", message)
        return value

    return read


def length(value: Any) -> timedelta:
    """Reads a length of time. Raises `InvalidInput` for another value."""
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, str):
        span = parse_duration(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        span = timedelta(seconds=value) if abs(value) < 1e11 else _LONGEST * 2
    else:
        message = f"must be a length of time, seconds or text like '15 minutes', got {value!r}"
        raise InvalidJob.of("", "malformed", message)
    if not timedelta(0) <= span <= _LONGEST:
        message = f"{value if value is span else repr(value)} is out of range"
        raise InvalidJob.of("", "out_of_range", f"{message}; it must be 0 to 36500 days")
    return span


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidJob.of("", "malformed", f"{value!r} is neither true nor false")
    return value


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidJob.of("", "malformed", f"must be a list of names, got {value!r}")
    return tuple(dict.fromkeys(_text(tag) for tag in value))


def _resources(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not all(
        isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < 1e12
        for amount in value.values()
    ):
        message = f"""must be an object of amounts such as {{"gpu": 1}}, got {value!r}"""
        raise InvalidJob.of("", "malformed", message)
    return {
        _text(name): int(amount) if float(amount).is_integer() else amount
        for name, amount in value.items()
    }


_READERS: dict[str, Any] = {
    "template": _text,
    "lane": _text,
    "priority": whole(0, 255),
    "max_attempts": whole(1, 1000),
    "retry_base": length,
    "retry_cap": length,
    "tags": _tags,
    "resources": _resources,
    "unique": _flag,
    "unique_key": _key,
    "unique_for": length,
    "requires_approval": _flag,
    "must_start_within": length,
    "must_end_within": length,
}
