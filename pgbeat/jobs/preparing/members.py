"""Reads lists of jobs as programs and people describe them: members of a group, and others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from celery import Celery

from pgbeat.errors import InvalidInput, InvalidJob, PgbeatError, Problems
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.preparing import times
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.suggest import did_you_mean

# The keys of a member that are not of its job policy.
_KEYS = frozenset(JobSpec._fields) - {"policy"}
#: The policy of each member that has none.
NO_POLICY = job_policies.JobPolicy()


def spec(member: Any, common: job_policies.JobPolicy = NO_POLICY) -> JobSpec:
    """Returns the job that a task or its name, a signature or a mapping describes.

    What the member's policy doesn't say, the `common` one says; without its own policy, the
    member has that very object. Raises `InvalidJob`.
    """
    if not isinstance(member, Mapping):
        return JobSpec(task=str(getattr(member, "name", member)), policy=common)
    if "subtask_type" in member:
        return _of_signature(member, common)
    policy = {key: value for key, value in member.items() if key not in _KEYS}
    known = (*sorted(_KEYS), *job_policies.JobPolicy._fields)
    problems = Problems()
    for key in [name for name in policy if name not in known]:
        del policy[key]
        hint = did_you_mean(str(key), known) or f"there are {', '.join(known)}"
        problems.add(str(key), "unknown_field", f"a job has no {key!r}; {hint}")
    values = {key: member[key] for key in _KEYS & member.keys() if member[key] is not None}
    if "task" in values:
        values["task"] = str(getattr(values["task"], "name", values["task"]))
    if isinstance(values.get("run_at"), str):
        values["run_at"] = _parse_time(values["run_at"])
    values["countdown"] = times.parse_countdown(values.get("countdown"))
    if problems:
        problems += job_policies.read(policy)[1]
        raise InvalidJob(problems)
    both = job_policies.parse(policy).over(common) if policy else common
    return JobSpec(policy=both, **values)


def _of_signature(member: Mapping[str, Any], policy: job_policies.JobPolicy) -> JobSpec:
    if member["subtask_type"] is not None:
        raise InvalidJob.of(
            "jobs",
            "malformed",
            f"a {member['subtask_type']} can't be a job; a task's signature can",
        )
    options = dict(member["options"])
    run_at, countdown = options.pop("eta", None), options.pop("countdown", None)
    return JobSpec(
        member["task"],
        member["args"],
        member["kwargs"],
        policy,
        options=options,
        run_at=run_at,
        countdown=times.parse_countdown(countdown),
    )


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidJob.of(
            "run_at",
            "malformed",
            f"run_at must be a time such as '2026-12-24T09:00Z', got {text!r}",
        ) from None


@contextmanager
def named(field: str) -> Iterator[None]:
    """Adds the name of a job that stands beside the list to the errors that the block raises."""
    with _located(lambda: (field, field)):
        yield


@contextmanager
def _located(place: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Adds where a job stands, in words and as a field, to the errors that the block raises."""
    try:
        yield
    except InvalidInput as error:
        place_text, field = place()
        head = f"{place_text}: {error.subject and error.subject + ': '}"
        problems = [problem._replace(message=head + problem.message) for problem in error.problems]
        raise type(error)([problem.within(field) for problem in problems]) from None
    except PgbeatError as error:
        place_text, error.field = place()
        error.args = (f"{place_text}: {error}",)
        raise


class Position:
    """Which job of a list is being read."""

    number = 0


@contextmanager
def numbered(noun: str = "member") -> Iterator[Position]:
    """Adds the job's position to the errors that the block raises.

    with numbered() as at:
        for at.number, member in enumerate(members):
    """
    at = Position()
    with _located(lambda: (f"{noun} {at.number}", f"jobs[{at.number}]")):
        yield at


def app_of(members: Sequence[Any]) -> Celery | None:
    """Returns the app of the first task or signature among them that has one."""
    for member in members:
        task = member.get("task") if type(member) is dict else member
        app = getattr(task, "app", None)
        if app is not None:
            return app
    return None
