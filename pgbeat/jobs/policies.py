"""Job policies: what a schedule, a template or a person says about the jobs to be made."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from pgbeat.errors import InvalidInput, InvalidJob, Problem, Problems
from pgbeat.storable import UNSTORABLE, is_storable
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration

_LONGEST = timedelta(days=36_500)


class JobPolicy(NamedTuple):
    """How jobs are made, queued and retried. `None`: as the template, or the settings, say."""

    #: Name of the template that it is made from.
    template: str | None = None
    #: Name of the lane that it waits in.
    lane: str | None = None
    #: The highest goes first: in its lane, and in queues that have priorities.
    priority: int | None = None
    #: Attempts in all; 1 for no retry.
    max_attempts: int | None = None
    #: The n-th retry comes after base × 2^(n-1) …
    retry_base: timedelta | None = None
    #: … but no later than this.
    retry_cap: timedelta | None = None
    #: What policies of lanes count by.
    tags: tuple[str, ...] | None = None
    #: What it takes of each resource, while it runs.
    resources: Mapping[str, float] | None = None
    #: One unfinished job with the same task and arguments.
    unique: bool | None = None
    #: One unfinished job with this key.
    unique_key: str | None = None
    #: Nor another within this time of its making.
    unique_for: timedelta | None = None
    #: Waits for a person's approval.
    requires_approval: bool | None = None

    def over(self, other: "JobPolicy") -> "JobPolicy":
        """This one, and what it leaves open as the other says."""
        own = {name: value for name, value in self._asdict().items() if value is not None}
        return other._replace(**own)

    def key(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The key that no other unfinished job may have."""
        if self.unique_key is not None:
            return self.unique_key
        if not self.unique and self.unique_for is None:
            return None
        content = json.dumps([task, list(args), dict(kwargs)], sort_keys=True, default=repr)
        return "content:" + hashlib.sha256(content.encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """What `parse` reads, without what is open: the same for the same policy."""
        return {name: _plain(value) for name, value in self._asdict().items() if value is not None}


def parse(given: Mapping[str, Any], field: str = "") -> JobPolicy:
    """Returns the policy of a JSON object, such as `{"lane": "gpu", "max_attempts": 5}`.

    Lengths of time are seconds, or text such as `15 minutes`. Raises `InvalidJob`, whose fields
    are the keys, beneath `field` where the object stands in one.
    """
    policy, problems = read(given)
    if problems:
        raise InvalidJob([each.within(field) for each in problems], subject="job_policy")
    return policy


def read(given: Mapping[str, Any]) -> tuple[JobPolicy, list[Problem]]:
    """Returns the policy as far as it can be read, and what is wrong with the rest, by key."""
    values: dict[str, Any] = {}
    problems = Problems()
    for name, value in given.items():
        if name not in _READERS:
            hint = did_you_mean(str(name), _READERS) or f"there are {', '.join(_READERS)}"
            problems.add(str(name), "unknown_field", f"{name!r} is no key of it; {hint}")
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
    """The value as a column of JSON holds it, `None` where it is not JSON. Raises `InvalidJob` for
    a character that Postgres doesn't keep."""
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
        raise InvalidJob.of(
            "", "malformed", f"{value!r} holds a character that Postgres can't keep"
        )
    return value


def _whole(lowest: int, highest: int) -> Any:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidJob.of("", "malformed", f"{value!r} is not a whole number")
        if not lowest <= value <= highest:
            raise InvalidJob.of(
                "", "out_of_range", f"{value} is out of range; it is {lowest} to {highest}"
            )
        return value

    return read


def _length(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        length = value
    elif isinstance(value, str):
        length = parse_duration(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length = timedelta(seconds=value) if abs(value) < 1e11 else _LONGEST * 2
    else:
        raise InvalidJob.of(
            "", "malformed", f"{value!r} is no length of time; write seconds or '15 minutes'"
        )
    if not timedelta(0) <= length <= _LONGEST:
        said = value if isinstance(value, timedelta) else repr(value)
        raise InvalidJob.of("", "out_of_range", f"{said} is out of range; it is 0 to 36500 days")
    return length


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidJob.of("", "malformed", f"{value!r} is neither true nor false")
    return value


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidJob.of("", "malformed", f"{value!r} is no list of names")
    return tuple(dict.fromkeys(_text(tag) for tag in value))


def _resources(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not all(
        isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < 1e12
        for amount in value.values()
    ):
        raise InvalidJob.of(
            "", "malformed", f"""{value!r} is no object of amounts, such as {{"gpu": 1}}"""
        )
    return {
        _text(name): int(amount) if float(amount).is_integer() else amount
        for name, amount in value.items()
    }


_READERS: dict[str, Any] = {
    "template": _text,
    "lane": _text,
    "priority": _whole(0, 255),
    "max_attempts": _whole(1, 1000),
    "retry_base": _length,
    "retry_cap": _length,
    "tags": _tags,
    "resources": _resources,
    "unique": _flag,
    "unique_key": _text,
    "unique_for": _length,
    "requires_approval": _flag,
}
