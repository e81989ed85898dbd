"""Finds schedules and templates of `pgbeat.sql` whose role no living worker allows."""

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.checks.sql_jobs import TASK
from pgbeat.jobs.running.workers import ALIVE
from pgbeat.monitoring.checks.server_checks import Check

#: How many are named.
_NAMED = 5
_ALLOWED = text(sql.load("sql_roles.sql", "allowed", alive=ALIVE))
_USED = text(sql.load("sql_roles.sql", "used"))


def check(connection: Connection, namespace: str) -> Check | None:
    """Checks the roles; returns `None` if nothing runs statements, or no worker lives.

    Without a role, a job has the only one that its worker allows.
    """
    used = connection.execute(_USED, {"namespace": namespace, "task": TASK}).all()
    workers = connection.execute(_ALLOWED, {"namespace": namespace}).all() if used else ()
    if not workers:
        return None
    if any(worker.is_silent for worker in workers):
        return Check("SQL roles", "unknown", "a worker has not reported yet")
    allowed = [(worker.roles or "").split(", ") for worker in workers if worker.roles]
    wrong = [
        f"{noun} {name!r} " + ("names no role" if role is None else f"names role {role!r}")
        for noun, name, role in used
        if not any(len(roles) == 1 if role is None else role in roles for roles in allowed)
    ]
    if not wrong:
        return Check("SQL roles", "ok", f"workers allow the roles of {len(used)} statements")
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    roles = ", ".join(sorted(set().union(*allowed))) or "none"
    return Check(
        "SQL roles",
        "warn",
        f"{'; '.join(wrong[:_NAMED])}{more}; living workers allow {roles}",
        "Their jobs fail: name a role of pgbeat_sql_roles, or have the workers allow it there.",
    )
