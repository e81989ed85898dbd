"""The actor of a command on jobs, and the job or group that it names."""

from collections.abc import Callable

import click
from sqlalchemy import Connection

from pgbeat.access.actors import Actor, user
from pgbeat.cli.terminal.options import FLAG, F, adding, option
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.checks.permissions import Verb
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.rows.model import Job


def _admin(text: str, *, is_viewer: bool) -> Callable[[F], F]:
    """Returns `on_target` with `--admin`, which passes the `actor` to the command."""

    def actor(ctx: click.Context, param: click.Parameter, value: bool) -> Actor:
        return user(is_admin=value, is_viewer=is_viewer, origin="cli")

    admin = option("--admin", FLAG, text, "actor", envvar="PGBEAT_ADMIN", callback=actor)
    return adding(admin, on_target)


as_admin = _admin(
    "Act as an administrator, on everybody's jobs and on all schedules.", is_viewer=False
)
#: For a command that only looks: its actor sees all jobs.
as_onlooker = _admin("Also show what `pgbeat_redact` masks.", is_viewer=True)


def find(
    connection: Connection, target: Target, actor: Actor, job_id: str, verb: Verb = "show"
) -> Job:
    """Returns the job with an id, or the beginning of one, if the actor may see it.

    Raises `NotFound` or `Forbidden`, which says that they can't do what the `verb` says.
    """
    return permissions.find(connection, actor, job_id, namespace=target.namespace, verb=verb)


def find_group(connection: Connection, target: Target, actor: Actor, group_id: str) -> Group:
    """Returns the group with an id, or the beginning of one, if the actor may see it.

    Raises `NotFound` or `Forbidden`.
    """
    return permissions.find_group(connection, actor, group_id, namespace=target.namespace)
