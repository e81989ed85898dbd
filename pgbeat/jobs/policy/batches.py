"""Reads how many calls of a task run together, as one call with a list of them.

    @app.task(pgbeat={"batch": 100, "batch_after": "2 s", "batch_by": "kwargs.shop"})

It is an option of the task itself, as its function must take the list.
"""

import hashlib
import json
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from pgbeat.config.task_options import OPTION
from pgbeat.errors import InvalidInput, InvalidJob, Problem
from pgbeat.jobs.policy import policies
from pgbeat.jobs.policy.policies import JobPolicy

#: The keys of a task's policy.
SIZE, AFTER, BY = "batch", "batch_after", "batch_by"
#: What a job's row says of its batch, beside the message that it keeps.
BATCH = "batch"
#: Characters of a key that is kept as it is.
_LONGEST = 200


class Batch(NamedTuple):
    """Says which calls of a task run together."""

    #: The most members of a batch. So many start at once.
    size: int
    #: How long the oldest member waits for others.
    after: timedelta = timedelta(seconds=1)
    #: The argument that all members share, such as `kwargs.shop`; `None`: all calls do.
    by: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns what the header of a message says, by which its job is made."""
        return {"size": self.size, "after": self.after.total_seconds(), "by": self.by}


def is_batch(task: Any) -> bool:
    """Returns whether a task's function takes a list of members."""
    option = getattr(task, OPTION, None)
    return isinstance(option, Mapping) and option.get(SIZE) is not None


def size_of(task: Any) -> int | None:
    """Returns how many calls of a task its function takes; `None` if that can't be read."""
    value = getattr(task, OPTION, {}).get(SIZE)
    return value if isinstance(value, int) else None


def place(batch: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns what a job's row says of its batch: its key, and what `Batch.as_json` said.

    Raises `InvalidJob` if the key is an argument of a call whose arguments are not JSON.
    """
    return {"key": _key(batch["by"], args, kwargs), "size": batch["size"], "after": batch["after"]}


def _key(by: str | None, args: Any, kwargs: Any) -> str:
    """Returns the value that the members share; those without the argument share `null`."""
    if by is None:
        return ""
    if args is None or kwargs is None:
        message = f"{BY}: is {by!r}, and the arguments of the call are not JSON"
        raise InvalidJob.of(BY, "malformed", message)
    where, _, name = by.partition(".")
    if where == "kwargs":
        value = kwargs.get(name)
    else:
        value = args[int(name)] if int(name) < len(args) else None
    key = json.dumps(value, sort_keys=True)
    # It is in an index.
    return key if len(key) <= _LONGEST else hashlib.sha256(key.encode()).hexdigest()


def take(keys: MutableMapping[str, Any]) -> tuple[Batch | None, list[Problem]]:
    """Takes the keys of a batch out of a task's policy, and returns it with what is wrong."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, field, read in ((SIZE, "size", _size), (AFTER, "after", _after), (BY, "by", _by)):
        value = keys.pop(key, None)
        if value is None:
            continue
        try:
            values[field] = read(value)
        except InvalidInput as error:
            problems.append(Problem(key, error.problems[0].code, f"{key}: {error}"))
    if values and "size" not in values and not problems:
        message = f"{SIZE}: says how many run together; {AFTER} and {BY} need it"
        problems.append(Problem(SIZE, "required", message))
    return (None if problems or not values else Batch(**values)), problems


def conflicts(policy: JobPolicy) -> list[Problem]:
    """Returns a problem for each part of a policy that the members of a batch can't have."""
    message = "a member of a batch waits for its batch, and for nothing else"
    return [
        Problem(name, "conflict", f"{name}: {message}")
        for name in ("lane", "requires_approval")
        if getattr(policy, name)
    ]


_size = policies.whole(2, 10_000)
_after = policies.length


def _by(value: Any) -> str:
    where, _, name = value.partition(".") if isinstance(value, str) else ("", "", "")
    is_argument = where == "args" and name.isascii() and name.isdigit() and len(name) < 4
    if not (is_argument or (where == "kwargs" and name)):
        message = f"must be an argument such as 'kwargs.shop' or 'args.0', got {value!r}"
        raise InvalidJob.of("", "malformed", message)
    return str(value)


def refuse_on_glob(keys: Sequence[str]) -> list[Problem]:
    """Returns a problem for each key of a batch among those of a policy for many tasks."""
    message = "belongs on the task itself, whose function must take a list"
    return [
        Problem(key, "conflict", f"{key}: {message}") for key in keys if key in (SIZE, AFTER, BY)
    ]
