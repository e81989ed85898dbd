"""Checks the server that a beat connects to: its version, clock, pooler, and the role's rights."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from pgbeat.access import roles
from pgbeat.access.roles import Profile
from pgbeat.config import Settings, direct_url, place
from pgbeat.database import connections, fence, poolers, sql
from pgbeat.errors import ConfigError
from pgbeat.monitoring.replica import Replica, behind

if TYPE_CHECKING:
    from celery import Celery

#: The oldest Postgres whose settings for lost clients a beat relies on (idle_session_timeout).
_OLDEST = 14
#: Seconds by which clocks may differ without a warning.
_SKEW = 2.0


class Check(NamedTuple):
    """What was checked, the result, and what to do about it.

    `unknown`: it could not be judged. It is never `ok` then.
    """

    check: str
    result: Literal["ok", "warn", "fail", "unknown"]
    detail: str
    advice: str = ""


def server(connection: Connection, settings: Settings) -> Check:
    """Looks for a Postgres that is too old, is read-only, or fires no triggers."""
    version, number, replication_role = connection.execute(_VERSION).one()
    detail = f"PostgreSQL {version}, database {place(settings.url)}"
    if int(number) // 10_000 < _OLDEST:
        return Check("server", "fail", detail, f"pgbeat needs PostgreSQL {_OLDEST} or newer.")
    if connections.is_read_only(connection):
        advice = "It is a standby, or default_transaction_read_only is on: give the primary's URL."
        return Check("server", "fail", f"{detail}, is read-only", advice)
    if replication_role == "replica":
        advice = "RESET session_replication_role for the role, the database and the server."
        return Check("server", "fail", f"{detail}, fires no triggers", advice)
    return Check("server", "ok", detail)


_VERSION = text(
    "SELECT split_part(current_setting('server_version'), ' ', 1), "
    "current_setting('server_version_num'), current_setting('session_replication_role')"
)


def pooler(
    connection: Connection, engine: Engine, settings: Settings, app: "Celery | None"
) -> Check:
    """Looks for a pooler in transaction mode that beat can't pass by."""
    with engine.connect() as other:
        if not poolers.is_shared(connection, other):
            return Check("connection", "ok", "each connection keeps its own session")
    detail = "a pooler hands each transaction another session"
    try:
        direct = direct_url(app.conf, settings.url) if app is not None else None
        if direct is not None:
            with poolers.connect(
                settings.url, "pgbeat doctor", direct_url=direct, purpose="Beat needs"
            ):
                return Check("connection", "ok", f"{detail}; beat uses direct_url")
    except (ConfigError, DBAPIError) as error:
        return Check("connection", "fail", detail, f"{connections.first_line(error)}.")
    return Check(
        "connection",
        "fail",
        detail,
        "Beat needs session locks and LISTEN: point pgbeat_url at the server itself, or at a pool "
        "in session mode, or set the transport option direct_url.",
    )


def replica(connection: Connection, settings: Settings) -> Check:
    """Looks how far behind the replica is, and whether it is this server's."""
    server = Replica(settings.read_url, settings.read_lag, "pgbeat doctor")
    with server.session(lambda: nullcontext(connection)) as read:
        lag = behind(read)
        is_ours = fence.read(connection).system == fence.read(read).system
    detail = f"database {place(settings.read_url or settings.url)}"
    if not is_ours:
        advice = "Put pgbeat_read_url right: it must lead to a standby."
        return Check("replica", "fail", f"{detail}, which is no standby of this server", advice)
    if lag is None:
        return Check("replica", "warn", f"{detail}: {server.trouble}", "Lists work all the same.")
    return Check("replica", "ok", f"{detail}, {lag:.1f} s behind")


def clock(connection: Connection) -> Check:
    """Compares the server's clock with this machine's."""
    before = time.time()
    server = connection.execute(_EPOCH).scalar_one()
    after = time.time()
    ahead = float(server) - (before + after) / 2
    slack = _SKEW + (after - before) / 2
    detail = f"the server's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    if abs(ahead) > slack:
        return Check(
            "clock",
            "warn",
            detail,
            "What is due is decided by the server's clock, but expires, eta and countdown by the "
            "clock of beat's machine: set both by NTP.",
        )
    return Check("clock", "ok", detail)


_EPOCH = text("SELECT extract(epoch FROM clock_timestamp())")


def role(connection: Connection) -> Iterator[Check]:
    """Looks for a superuser."""
    role, is_superuser = connection.execute(_ROLE).one()
    if is_superuser:
        yield Check(
            "role",
            "warn",
            f"{role} is a superuser",
            "SQL conditions run as it, read-only, but a superuser reads files and ends sessions: "
            "give beat its own role.",
        )
    else:
        yield Check("role", "ok", f"{role} is an ordinary role")


_ROLE = text("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user")


def missing_privileges(connection: Connection) -> Check:
    """Looks for privileges that beat needs and the role lacks.

    The result is `unknown` for a role that is not beat's: it may read everything and write nothing,
    or has what a worker needs. Rows that it can't see are as good as missing.
    """
    if hidden := connection.scalars(_HIDDEN).all():
        detail = f"row-level security hides the rows of {', '.join(hidden)} from the role"
        advice = "As the owner: ALTER TABLE … DISABLE ROW LEVEL SECURITY, or CREATE POLICY."
        return Check("permissions", "fail", detail, advice)
    row = connection.execute(_MAY).one_or_none()
    may_use, may_write = row or (True, True)  # without a schema, that is said by the next check
    lacking: dict[str, list[str]] = {} if may_use else {"schema pgbeat": ["USAGE"]}
    lacking |= _lacking(connection, "beat")
    if not lacking:
        return Check("permissions", "ok", "the role may do on pgbeat's tables what beat does")
    other = None
    if not may_write and not _lacking(connection, "readonly"):
        other = "may only read"
    elif not _lacking(connection, "worker"):
        other = "has what a worker needs"
    if may_use and other is not None:
        return Check(
            "permissions",
            "unknown",
            f"the role {other}; whether beat's own role may write can't be seen from here",
        )
    missing = [f"{', '.join(rights)} on {table}" for table, rights in lacking.items()]
    return Check("permissions", "fail", f"the role lacks {', '.join(missing)}", grant(connection))


def _lacking(connection: Connection, profile: Profile) -> dict[str, list[str]]:
    """Returns what the role lacks on tables of the schema; the broker's are checked elsewhere."""
    lacking: dict[str, list[str]] = {}
    for right, table in roles.lacking(connection, profile):
        if table.startswith("pgbeat."):
            lacking.setdefault(table, []).append(right)
    return lacking


def grant(connection: Connection) -> str:
    """Returns the advice that gives a beat's role what it needs."""
    role = connection.scalar(text("SELECT quote_ident(current_user)"))
    return f"As the owner: pgbeat grant --role {role} --profile beat --apply"


_MAY = text(sql.load("server_checks.sql", "may"))
_HIDDEN = text(sql.load("server_checks.sql", "hidden"))
