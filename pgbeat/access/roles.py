"""Gives roles of the database the least rights that their programs need: `pgbeat grant`.

A profile says what a kind of program may do. A role gets just that: what it had otherwise is taken
away, so that a role that had "all tables" can't make itself an administrator by a token.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, text

from pgbeat.access import audit
from pgbeat.access.audit import Author
from pgbeat.database import sql
from pgbeat.database.migrations import migrate
from pgbeat.errors import Forbidden, NotFound, SchemaError
from pgbeat.suggest import did_you_mean

Profile = Literal["beat", "worker", "web", "submit", "readonly", "conditions"]
PROFILES: Sequence[Profile] = get_args(Profile)

_ALL = "SELECT, INSERT, UPDATE, DELETE"
_KEEP = "SELECT, INSERT, UPDATE"
_NONE: Mapping[str, str] = MappingProxyType({})
#: Who signs in, and who changed what: for the web side and the command line only.
_ACCESS = {"tokens": "", "sign_in_links": "", "audit": ""}
#: What only `pgbeat migrate` and functions of the schema change.
_FIXED = {"migrations": "SELECT", "partitions": "SELECT"}
_BROKER = {
    "kombu_queue": _ALL,
    "kombu_message": _ALL,
    "kombu_message_dead": _ALL,
    "kombu_queue_exchange": _ALL,
    "kombu_queue_binding": _ALL,
    "kombu_queue_consumer": _ALL,
    "sequences": "USAGE",
}


class Rights(NamedTuple):
    """What a profile may do, as in GRANT; columns stand in parentheses."""

    #: On each table of the schema but the `others`.
    tables: str
    others: Mapping[str, str] = _NONE
    #: On the broker's tables; `sequences` are their ids'.
    broker: Mapping[str, str] = _NONE
    #: On tables that the owner makes later.
    future: str = ""
    #: Whether it makes jobs by functions instead of rights on their table.
    submits: bool = False


#: What workers write. The triggers on ends of jobs run with their rights.
_WORKER = {
    **_ACCESS,
    "jobs": _KEEP,
    "unfinished_jobs": _ALL,
    "ended_jobs": _KEEP,
    "executions": _KEEP,
    "running_executions": _ALL,
    "ended_executions": _KEEP,
    "message_ends": _ALL,
    "stacks": _KEEP,
    "steps": _KEEP,
    "events": "SELECT, INSERT",
    "workers": _ALL,
    "consumers": _ALL,
    "reservations": _ALL,
    "dependencies": _KEEP,
    "groups": _KEEP,
    "lanes": "SELECT, UPDATE",
    "results": _ALL,
    "result_groups": _ALL,
    "result_waits": _ALL,
    "chords": _ALL,
    "chord_parts": _ALL,
    "chord_bodies": _ALL,
    "counters": _KEEP,
    "untracked_tasks": _KEEP,
    "ticks": "SELECT, INSERT",
    "skip_notices": _KEEP,
    "deliveries": _KEEP,
    "webhooks": "SELECT, UPDATE (enabled, disabled_reason, updated_at)",
    "schedules": "SELECT, UPDATE (next_run, due_at, upstream_ended, paused_at, paused_reason, "
    "stale_at, stale_since, after_done)",
}
_PUBLISHED = "SELECT, INSERT"
#: Without what other messages hold, and without claims.
_MESSAGES = (
    "SELECT (queue_id, visible), "
    "INSERT (visible, payload, priority, available_at, expires_at, queue_id, job_id)"
)

RIGHTS: Mapping[Profile, Rights] = {
    "beat": Rights(_ALL, {**_ACCESS, **_FIXED}, _BROKER, _ALL),
    "worker": Rights("SELECT", _WORKER, _BROKER, _KEEP),
    "web": Rights(_ALL, {**_FIXED, "audit": "SELECT, INSERT, UPDATE (after)"}, _BROKER, _ALL),
    "submit": Rights(
        "",
        {"migrations": "SELECT", "lanes": "SELECT", "templates": "SELECT"},
        {
            "kombu_queue": _PUBLISHED,
            "kombu_message": _MESSAGES,
            "kombu_queue_exchange": _PUBLISHED,
            "kombu_queue_binding": _PUBLISHED,
            "kombu_queue_consumer": "SELECT",
            "sequences": "USAGE",
        },
        submits=True,
    ),
    "readonly": Rights(
        "SELECT",
        {
            **_ACCESS,
            "webhooks": "SELECT (id, namespace, name, events, format, per_incident, labels, "
            "schedules, tasks, enabled, disabled_reason, slots, schedule_id, created_by, "
            "created_at, updated_at)",
        },
        {table: "SELECT" for table in _BROKER if table != "sequences"},
        "SELECT",
    ),
    "conditions": Rights(""),
}


class Granted(NamedTuple):
    """What `grant` did, or would do."""

    statements: list[str]
    #: Whether the role's rights are others now.
    changed: bool
    #: What the role may do beyond its profile, by PUBLIC or another role: `DELETE on pgbeat.jobs`.
    more: list[str]
    #: Whether the broker's tables are there.
    has_broker: bool


def grant(
    connection: Connection, author: Author, role: str, profile: Profile, *, apply: bool = True
) -> Granted:
    """Gives a role the rights of a profile, and takes away all others in pgbeat's schema.

    The broker's tables are those in the connection's search path. Without `apply`, returns the
    statements only. The audit log has it if anything changed.

    Raises `NotFound` if there is no such role, `Forbidden` if its rights can't be limited, or if
    the connection's role doesn't own the tables, and `SchemaError` on a schema before 0002.
    """
    if migrate.check(connection).version < "0002":
        raise SchemaError("roles need version 0002 of the schema", advice="run `pgbeat migrate`")
    values = _values(role, profile)
    has_broker = _require(connection, values, apply=apply)
    before = connection.scalar(_GRANTED, values)
    statements = list(connection.scalars(_STATEMENTS, values))
    if not apply:
        return Granted(statements, False, [], has_broker)
    connection.execute(_ONE_AT_A_TIME, {"key": migrate.MIGRATION_LOCK})
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))
    changed = connection.scalar(_GRANTED, values) != before
    if changed:
        audit.record_action(connection, author, "grant", "role", role, None, {"profile": profile})
    more = [
        f"{right} on {table}" for right, table, lacks in _differing(connection, values) if not lacks
    ]
    return Granted(statements, changed, more, has_broker)


def lacking(connection: Connection, profile: Profile) -> list[tuple[str, str]]:
    """Returns what the session's role lacks of a profile: rights, each with its table."""
    role = connection.scalar(text("SELECT current_user"))
    rows = _differing(connection, _values(str(role), profile))
    return [(right, table) for right, table, lacks in rows if lacks]


def _differing(connection: Connection, values: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    return [(str(p), str(t), bool(lacks)) for p, t, lacks in connection.execute(_DIFFERING, values)]


def _values(role: str, profile: Profile) -> dict[str, Any]:
    rights = RIGHTS[profile]
    return {
        "role": role,
        "tables": rights.tables,
        "others": json.dumps(dict(rights.others)),
        "broker": json.dumps(dict(rights.broker)),
        "future": rights.future,
        "submits": rights.submits,
    }


def _require(connection: Connection, values: Mapping[str, Any], *, apply: bool) -> bool:
    """Requires a role that can be limited; returns whether the broker's tables are there."""
    name = values["role"]
    role = connection.execute(_ROLE, values).one_or_none()
    if role is None:
        hint = did_you_mean(name, connection.scalars(_ROLES))
        advice = f"{hint and hint + ' '}CREATE ROLE makes one"
        raise NotFound(f"there is no role {name!r}", field="role", advice=advice)
    if role.rolsuper:
        raise Forbidden(f"role {name!r} is a superuser, who may do everything", field="role")
    if role.owned_by:
        raise Forbidden(
            f"role {name!r} is, or is a member of, the owner of tables ({role.owned_by}), who may "
            "do everything with them",
            field="role",
        )
    if apply and role.owned_by_others:
        raise Forbidden(f"only the tables' owner may grant rights on them: {role.owned_by_others}")
    return bool(role.has_broker)


_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(:key)")
_ROLES = text("SELECT rolname FROM pg_roles WHERE rolname NOT LIKE 'pg\\_%' ORDER BY 1 LIMIT 1000")
_ROLE = text(sql.load("roles.sql", "role"))
_STATEMENTS = text(sql.load("roles.sql", "statements"))
_GRANTED = text(sql.load("roles.sql", "granted"))
_DIFFERING = text(sql.load("roles.sql", "differing"))
