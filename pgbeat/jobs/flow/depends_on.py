"""Reads what a new job depends on, as programs and people say it.

A parent is a job, or anything with its `id`, or that id. In a group, it may be another member: its
position, counted from 0, or its `key`.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any
from uuid import UUID

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import InvalidJob
from pgbeat.jobs.checks.permissions import require, sees
from pgbeat.jobs.flow.dependencies import MOST
from pgbeat.jobs.preparing import members as members_of
from pgbeat.jobs.preparing import prepare
from pgbeat.jobs.preparing.prepare import JobSpec, PreparedJob
from pgbeat.jobs.rows import model as jobs

#: How parents must end for a job to run.
OUTCOMES = ("completed", "finished")


def existing(unit: UnitOfWork, spec: JobSpec) -> list[str]:
    """Returns the ids of the existing jobs on which a job depends, each once.

    Raises `InvalidJob` if one doesn't exist (for users, those of others don't), and `Forbidden` if
    the actor may not see it.
    """
    if spec.key is not None:
        raise InvalidJob.of("key", "conflict", "only members of a group have keys")
    return _require(unit, [_job_id(parent) for parent in _listed(spec)])


def of_members(unit: UnitOfWork, specs: Sequence[JobSpec], ids: Sequence[str]) -> list[list[str]]:
    """Returns the ids of the jobs on which each member of a new group depends, each once.

    `ids` are those of the members. Raises as `existing`, and `InvalidJob` if two members have the
    same key, or if members wait for each other.
    """
    keys: dict[str, int] = {}
    with members_of.numbered() as at:
        for at.number, spec in enumerate(specs):
            if spec.key is not None:
                _check_key(spec.key, keys)
                keys[spec.key] = at.number
    waits: list[list[str]] = []
    inner: dict[int, list[int]] = {}
    with members_of.numbered() as at:
        for at.number, spec in enumerate(specs):
            parents = [_member(parent, keys, len(specs)) for parent in _listed(spec)]
            inner[at.number] = [parent for parent in parents if isinstance(parent, int)]
            outer = _require(unit, [parent for parent in parents if isinstance(parent, str)])
            waits.append([*dict.fromkeys(ids[number] for number in inner[at.number]), *outer])
    try:
        TopologicalSorter(inner).prepare()
    except CycleError as error:
        path = " → ".join(f"member {number}" for number in reversed(error.args[1]))
        raise InvalidJob.of("jobs", "cycle", f"members wait for each other: {path}") from None
    return waits


def blocked(prepared: PreparedJob, spec: JobSpec, parents: Sequence[str]) -> PreparedJob:
    """Returns a job that waits for its parents, which are job ids. Raises `InvalidJob`."""
    if not parents:
        return prepared
    if len(parents) > MOST:
        message = f"a job depends on at most {MOST:,} others, and this one on {len(parents):,}"
        raise InvalidJob.of("depends_on", "out_of_range", message)
    prepared = prepare.blocked(prepared, unfinished_parents=len(parents))
    return prepared._replace(parents=tuple(parents), needs=spec.depends_on_outcome)


def _listed(spec: JobSpec) -> Iterable[Any]:
    """Returns what a job's specification names as its parents. Raises `InvalidJob`."""
    parents, outcome = spec.depends_on, spec.depends_on_outcome
    if hasattr(parents, "id"):  # a single job, which is a tuple, too
        parents = [parents]
    if isinstance(parents, str | bytes | Mapping) or not isinstance(parents, Iterable):
        message = f"depends_on must be a list of jobs or their ids, got {parents!r}"
        raise InvalidJob.of("depends_on", "malformed", message)
    if outcome not in OUTCOMES:
        listed = " or ".join(map(repr, OUTCOMES))
        message = f"depends_on_outcome must be {listed}, got {outcome!r}"
        raise InvalidJob.of("depends_on_outcome", "unknown", message)
    return parents


def _job_id(parent: Any) -> str:
    job_id = getattr(parent, "id", parent)
    try:
        return str(UUID(str(job_id)))
    except ValueError:
        message = f"depends_on must name jobs or their ids, got {parent!r}"
        raise InvalidJob.of("depends_on", "malformed", message) from None


def _require(unit: UnitOfWork, parents: Sequence[str]) -> list[str]:
    wanted = list(dict.fromkeys(parents))
    if wanted and unit.submits_as_owner:
        rows = jobs.find(unit.connection, wanted, as_owner=True)
    else:
        rows = jobs.find_brief(unit.connection, wanted)
    by_id = {str(job.id): job for job in rows}
    for parent in wanted:
        job = by_id.get(parent)
        is_hidden = job is not None and unit.actor.is_restricted and not sees(unit.actor, job)
        if job is None or is_hidden or job.namespace != unit.namespace:
            raise InvalidJob.of("depends_on", "unknown", f"depends_on: there is no job {parent}")
        require(unit.actor, "show", job)
    return wanted


def _check_key(key: Any, taken: Mapping[str, int]) -> None:
    if not isinstance(key, str) or not key or key.isdecimal():
        message = f"a member's key must be text, and not a number, got {key!r}"
        raise InvalidJob.of("key", "malformed", message)
    if key in taken:
        raise InvalidJob.of("key", "conflict", f"member {taken[key]} has the key {key!r}, too")


def _member(parent: Any, keys: Mapping[str, int], count: int) -> int | str:
    """Returns the position of a member, or the id of another job."""
    if isinstance(parent, str) and parent in keys:
        return keys[parent]
    if isinstance(parent, int) and not isinstance(parent, bool):
        if not 0 <= parent < count:
            message = f"depends_on: there is no member {parent}; they are counted from 0"
            raise InvalidJob.of("depends_on", "unknown", message)
        return parent
    try:
        return _job_id(parent)
    except InvalidJob:
        message = f"depends_on: {parent!r} is no member's key, and no job's id"
        raise InvalidJob.of("depends_on", "unknown", message) from None
