"""What the API's modules on jobs, groups and lanes do alike: find what the caller may see, and
change it in one transaction with its note."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

import kombu.exceptions
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.database import connections
from pgbeat.errors import ConfigError, Forbidden, InvalidJob, NotFound
from pgbeat.jobs import control, permissions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.control import Lanes
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Actor
from pgbeat.web.backend import Backend

logger = logging.getLogger("pgbeat.web")

T = TypeVar("T")


def seen_job(
    connection: Connection,
    backend: Backend,
    actor: Actor,
    job_id: UUID | str,
    *,
    for_update: bool = False,
) -> Job:
    """The job, if the actor may see it. Raises `NotFound`: to others it isn't there."""
    job = jobs.get(connection, job_id, namespace=backend.namespace, for_update=for_update)
    try:
        permissions.require(actor, "show", job)
    except Forbidden:
        raise NotFound(f"there is no job {job_id}") from None
    return job


def seen_group(connection: Connection, backend: Backend, actor: Actor, group_id: UUID) -> Group:
    """The group, if the actor may see it. Raises `NotFound`: to others it isn't there."""
    group = groups.get(connection, group_id, namespace=backend.namespace)
    try:
        permissions.require_group(actor, "show", group)
    except Forbidden:
        raise NotFound(f"there is no group {group_id}") from None
    return group


@contextmanager
def steering(backend: Backend) -> Iterator[tuple[Connection, Publisher]]:
    """A connection in autocommit mode, and a publisher that is ready."""
    with backend.publishing() as publisher, backend.session() as connection:
        yield connection, publisher


def commit(connection: Connection, publisher: Publisher, what: Callable[[Connection], T]) -> T:
    """Does it in a transaction of its own. Raises `InvalidJob` for what Celery can't publish."""
    try:
        with connections.transaction(connection):
            return what(connection)
    except kombu.exceptions.OperationalError:
        raise
    except (ConfigError, kombu.exceptions.KombuError) as error:
        raise InvalidJob(f"it can't be published: {error}") from None
    finally:
        publisher.clear()


def hand_out(connection: Connection, publisher: Publisher, lanes: Lanes) -> None:
    """Hands out the free slots of lanes, after the commit. What goes wrong is no matter of the
    caller's: beat, which was told too, does it later."""
    try:
        control.allot(connection, publisher, lanes)
    except (DBAPIError, ConfigError) as error:
        logger.warning("Slots are left to beat to hand out: %s", connections.first_line(error))


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
