"""pgbeat: a Celery beat scheduler on Postgres.

Importing the package is cheap and opens no connection: the names below are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgbeat.version import __version__ as __version__
from pgbeat.wiring import connect

if TYPE_CHECKING:
    from pgbeat import lanes as lanes
    from pgbeat.beat.scheduler import Scheduler as Scheduler
    from pgbeat.beat.signals import condition_finished as condition_finished
    from pgbeat.beat.signals import condition_started as condition_started
    from pgbeat.broker.publishing.in_transaction import in_transaction as in_transaction
    from pgbeat.errors import PgbeatError as PgbeatError
    from pgbeat.errors import TimedOut as TimedOut
    from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy as ConcurrencyPolicy
    from pgbeat.jobs.lanes.concurrency import concurrency_policy as concurrency_policy
    from pgbeat.jobs.policy.task_policies import TaskPolicy as TaskPolicy
    from pgbeat.jobs.running.task_exceptions import Cancelled as Cancelled
    from pgbeat.jobs.running.task_exceptions import Failed as Failed
    from pgbeat.jobs.running.task_exceptions import Skip as Skip
    from pgbeat.jobs.running.task_exceptions import Snooze as Snooze
    from pgbeat.jobs.submitting.direct import run_direct as run_direct
    from pgbeat.jobs.submitting.submit import submit as submit
    from pgbeat.jobs.submitting.submit_group import submit_group as submit_group
    from pgbeat.jobs.submitting.submit_many import submit_many as submit_many
    from pgbeat.jobs.verbs.callbacks import callback_url as callback_url
    from pgbeat.jobs.verbs.events import emit as emit
    from pgbeat.jobs.verbs.stacks import stack as stack
    from pgbeat.monitoring.metrics.collector import metrics_collector as metrics_collector
    from pgbeat.schedules.launchers import Context as Context
    from pgbeat.schedules.launchers import GenericJobLauncher as GenericJobLauncher
    from pgbeat.schedules.launchers import GenericLauncher as GenericLauncher
    from pgbeat.schedules.launchers import JobRequest as JobRequest
    from pgbeat.schedules.launchers import Launcher as Launcher
    from pgbeat.schedules.launchers import launcher as launcher
    from pgbeat.worker.finishing.batches import Member as Member
    from pgbeat.worker.finishing.finish import finish as finish
    from pgbeat.worker.reporting import Current as Current
    from pgbeat.worker.reporting import artifacts as artifacts
    from pgbeat.worker.reporting import checkpoint as checkpoint
    from pgbeat.worker.reporting import current as current
    from pgbeat.worker.reporting import is_cancelled as is_cancelled
    from pgbeat.worker.reporting import progress as progress
    from pgbeat.worker.reporting import report as report
    from pgbeat.worker.steps import sleep as sleep
    from pgbeat.worker.steps import step as step
    from pgbeat.worker.steps import wait_for as wait_for

#: Where the public names are, by module.
_HOMES = {
    "beat.scheduler": "Scheduler",
    "beat.signals": "condition_finished condition_started",
    "broker.publishing.in_transaction": "in_transaction",
    "errors": "PgbeatError TimedOut",
    "jobs.lanes.concurrency": "ConcurrencyPolicy concurrency_policy",
    "jobs.policy.task_policies": "TaskPolicy",
    "jobs.running.task_exceptions": "Cancelled Failed Skip Snooze",
    "jobs.submitting.direct": "run_direct",
    "jobs.submitting.submit": "submit",
    "jobs.submitting.submit_group": "submit_group",
    "jobs.submitting.submit_many": "submit_many",
    "jobs.verbs.callbacks": "callback_url",
    "jobs.verbs.events": "emit",
    "jobs.verbs.stacks": "stack",
    "monitoring.metrics.collector": "metrics_collector",
    "schedules.launchers": "Context GenericJobLauncher GenericLauncher JobRequest Launcher "
    "launcher",
    "worker.finishing.batches": "Member",
    "worker.finishing.finish": "finish",
    "worker.reporting": "Current artifacts checkpoint current is_cancelled progress report",
    "worker.steps": "sleep step wait_for",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME)]


if not TYPE_CHECKING:  # else every name would be known, as `Any`

    def __getattr__(name: str) -> Any:
        if name == "lanes":
            return import_module("pgbeat.lanes")
        if name in _HOME:
            return getattr(import_module(f"pgbeat.{_HOME[name]}"), name)
        raise AttributeError(f"module 'pgbeat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


connect()
