"""Checks the policies of an app's tasks."""

from typing import TYPE_CHECKING

from sqlalchemy import Connection

from pgbeat.config import Settings
from pgbeat.database.named_rows import missing
from pgbeat.errors import ConfigError
from pgbeat.jobs.policy import task_policies
from pgbeat.monitoring.checks.server_checks import Check

if TYPE_CHECKING:
    from celery import Celery

#: Tasks that are named at most.
_MOST = 10


def check(connection: Connection, settings: Settings, app: "Celery | None") -> Check | None:
    """Checks the policies of the app's tasks; returns `None` if no task has one."""
    if app is None:
        return None
    app.loader.import_default_modules()
    try:
        known = task_policies.all_of(app)
    except ConfigError as error:
        wrong = "; ".join(f"{problem.field}: {problem.message}" for problem in error.problems)
        advice = "Mend them: such a task can't be sent, and no worker starts."
        return Check("task policies", "fail", wrong, advice)
    if not known:
        return None
    namespace = settings.namespace
    if lanes := task_policies.missing_lanes(connection, known, namespace=namespace):
        detail = "; ".join(
            f"tasks can't be sent ({_names(tasks)}): "
            f"{missing(connection, 'lane', lane, namespace=namespace)}"
            for lane, tasks in lanes.items()
        )
        advice = f"Make it: `pgbeat lanes set {next(iter(lanes))} --limit 1`."
        return Check("task policies", "fail", detail, advice)
    detail = _names(sorted(known))
    if settings.track == "off":
        advice = "Set pgbeat_track to launched: else pgbeat can't see when these jobs end."
        detail = f"{detail}, and workers don't record executions"
        return Check("task policies", "warn", detail, advice)
    return Check("task policies", "ok", detail)


def _names(tasks: list[str]) -> str:
    more = f" and {len(tasks) - _MOST} more" if len(tasks) > _MOST else ""
    return f"{len(tasks)}: {', '.join(tasks[:_MOST])}{more}"
