"""Who acts, and on which job: for commands on jobs."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from sqlalchemy import Connection

from pgbeat.access.actors import Actor, user
from pgbeat.cli.target import Target
from pgbeat.jobs import permissions
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Verb

F = TypeVar("F", bound=Callable[..., Any])


def as_admin(command: F) -> F:
    """Adds `--admin`; the command gets the `actor`."""

    def made(ctx: click.Context, param: click.Parameter, value: bool) -> Actor:
        return user(is_admin=value, origin="cli")

    return click.option(
        "--admin", "actor", is_flag=True, envvar="PGBEAT_ADMIN", callback=made,
        help="Act as an administrator, on the jobs of everybody.",
    )(command)  # fmt: skip


def find(
    connection: Connection, target: Target, actor: Actor, job_id: str, verb: Verb = "show"
) -> Job:
    """Returns the job of an id, or of the beginning of one, to do `verb` with it. Raises `NotFound`
    or `Forbidden`."""
    namespace = target.settings.namespace
    return permissions.find(connection, actor, job_id, namespace=namespace, verb=verb)
