"""Finds the jobs and groups that the caller may see, and checks the JSON of bodies."""

import json
import logging
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.errors import Forbidden, NotFound
from pgbeat.jobs import model as jobs
from pgbeat.jobs import permissions
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.model import Job
from pgbeat.web.backend import Backend

logger = logging.getLogger("pgbeat.web")

T = TypeVar("T")


def seen_job(connection: Connection, backend: Backend, actor: Actor, job_id: UUID | str) -> Job:
    """Returns the job, if the actor may see it. Raises `NotFound`: to others it isn't there."""
    job = jobs.get(connection, job_id, namespace=backend.namespace)
    try:
        permissions.require(actor, "show", job)
    except Forbidden:
        raise NotFound(f"there is no job {job_id}") from None
    return job


def seen_group(connection: Connection, backend: Backend, actor: Actor, group_id: UUID) -> Group:
    """Returns the group, if the actor may see it. Raises `NotFound`: to others it isn't there."""
    group = groups.get(connection, group_id, namespace=backend.namespace)
    try:
        permissions.require_group(actor, "show", group)
    except Forbidden:
        raise NotFound(f"there is no group {group_id}") from None
    return group


def plain(value: T) -> T:
    """The value, if it is JSON: Python reads NaN and infinities too. Raises `ValueError`."""
    if is_deep(value):
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("NaN and infinities are not JSON") from None
    return value


#: So deep may JSON be nested that is taken and shown.
_DEEPEST = 100


def is_deep(value: Any) -> bool:
    """Whether JSON is nested more deeply than can be shown."""
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def set_fields(body: Any, *names: str) -> dict[str, Any]:
    """Of a body, those of the fields that it has a value for."""
    given: dict[str, Any] = {}
    for name in names:
        value = getattr(body, name)
        if name in body.model_fields_set and value is not None:
            given[name] = value
    return given
