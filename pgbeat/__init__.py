"""pgbeat: a Celery beat scheduler on Postgres.

Importing the package is cheap and opens no connection: the names below are loaded when first used.
"""

import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgbeat.alias import follow_apps, register_transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from pgbeat import lanes as lanes
    from pgbeat.beat.scheduler import Scheduler as Scheduler
    from pgbeat.beat.signals import condition_finished as condition_finished
    from pgbeat.beat.signals import condition_started as condition_started
    from pgbeat.broker.messages import BrokerTables, Message
    from pgbeat.broker.publishing.in_transaction import in_transaction as in_transaction
    from pgbeat.broker.transport.broker import Working
    from pgbeat.errors import PgbeatError as PgbeatError
    from pgbeat.jobs.direct import run_direct as run_direct
    from pgbeat.jobs.lanes.concurrency import ConcurrencyPolicy as ConcurrencyPolicy
    from pgbeat.jobs.lanes.concurrency import concurrency_policy as concurrency_policy
    from pgbeat.jobs.submit import submit as submit
    from pgbeat.jobs.submit_group import submit_group as submit_group
    from pgbeat.jobs.submit_many import submit_many as submit_many
    from pgbeat.jobs.task_exceptions import Cancelled as Cancelled
    from pgbeat.jobs.task_exceptions import Skip as Skip
    from pgbeat.jobs.task_exceptions import Snooze as Snooze
    from pgbeat.monitoring.collector import metrics_collector as metrics_collector
    from pgbeat.schedules.launchers import Context as Context
    from pgbeat.schedules.launchers import GenericJobLauncher as GenericJobLauncher
    from pgbeat.schedules.launchers import GenericLauncher as GenericLauncher
    from pgbeat.schedules.launchers import JobRequest as JobRequest
    from pgbeat.schedules.launchers import Launcher as Launcher
    from pgbeat.schedules.launchers import launcher as launcher
    from pgbeat.worker.finish import finish as finish
    from pgbeat.worker.reporting import Current as Current
    from pgbeat.worker.reporting import artifacts as artifacts
    from pgbeat.worker.reporting import checkpoint as checkpoint
    from pgbeat.worker.reporting import current as current
    from pgbeat.worker.reporting import is_cancelled as is_cancelled
    from pgbeat.worker.reporting import progress as progress
    from pgbeat.worker.reporting import report as report

__version__ = "0.1.0"

_HOME = {
    "Cancelled": "pgbeat.jobs.task_exceptions",
    "ConcurrencyPolicy": "pgbeat.jobs.lanes.concurrency",
    "Context": "pgbeat.schedules.launchers",
    "Current": "pgbeat.worker.reporting",
    "GenericJobLauncher": "pgbeat.schedules.launchers",
    "GenericLauncher": "pgbeat.schedules.launchers",
    "JobRequest": "pgbeat.schedules.launchers",
    "Launcher": "pgbeat.schedules.launchers",
    "PgbeatError": "pgbeat.errors",
    "Scheduler": "pgbeat.beat.scheduler",
    "Skip": "pgbeat.jobs.task_exceptions",
    "Snooze": "pgbeat.jobs.task_exceptions",
    "artifacts": "pgbeat.worker.reporting",
    "checkpoint": "pgbeat.worker.reporting",
    "concurrency_policy": "pgbeat.jobs.lanes.concurrency",
    "condition_finished": "pgbeat.beat.signals",
    "condition_started": "pgbeat.beat.signals",
    "current": "pgbeat.worker.reporting",
    "finish": "pgbeat.worker.finish",
    "in_transaction": "pgbeat.broker.publishing.in_transaction",
    "is_cancelled": "pgbeat.worker.reporting",
    "launcher": "pgbeat.schedules.launchers",
    "metrics_collector": "pgbeat.monitoring.collector",
    "progress": "pgbeat.worker.reporting",
    "report": "pgbeat.worker.reporting",
    "run_direct": "pgbeat.jobs.direct",
    "submit": "pgbeat.jobs.submit",
    "submit_group": "pgbeat.jobs.submit_group",
    "submit_many": "pgbeat.jobs.submit_many",
}

__all__ = ["__version__", *sorted(_HOME)]


if not TYPE_CHECKING:  # else every name would be known, as `Any`

    def __getattr__(name: str) -> Any:
        if name == "lanes":
            return import_module("pgbeat.lanes")
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'pgbeat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def follow_workers() -> None:
    """Makes this process's workers record executions, and log as the app's settings say.

    Does nothing before Celery's signals are loaded; what is loaded later calls it again: Celery's
    command line and the transport.
    """
    worker_init = getattr(sys.modules.get("celery.signals"), "worker_init", None)
    if worker_init is not None:
        worker_init.connect(_on_worker_init, weak=False, dispatch_uid="pgbeat.worker")
        signals = sys.modules["celery.signals"]
        signals.celeryd_init.connect(_on_celeryd_init, weak=False, dispatch_uid="pgbeat.worker")
        for name in ("after_setup_logger", "after_setup_task_logger"):
            signal = getattr(signals, name)
            signal.connect(_on_logger, weak=False, dispatch_uid="pgbeat.log")
    mask_urls()


def mask_urls() -> None:
    """Makes Celery mask the settings that are pgbeat's URLs, as it masks `broker_url`.

    It shows an app's settings in `celery report`, `inspect conf` and `inspect report`, and Flower
    shows them in a tab. Celery 5.5 masks neither `broker_read_url` nor `broker_write_url`. Like
    `follow_workers`, this does nothing before Celery is loaded.
    """
    utils: Any = sys.modules.get("celery.app.utils")
    if utils is not None and _URLS not in utils.HIDDEN_SETTINGS.pattern:
        known = utils.HIDDEN_SETTINGS
        utils.HIDDEN_SETTINGS = re.compile(f"{known.pattern}|{_URLS}", known.flags)


_URLS = "PGBEAT_(CONDITION_)?URL|DIRECT_URL|BROKER_READ_URL|BROKER_WRITE_URL"


def follow_projects() -> None:
    """Has Celery apps that are made from now on use the database of their Django project.

    Those that exist when Django is set up get it by `pgbeat.integrations.django.apps`.
    """
    celery_app = import_module("celery.app.base")
    celery_app.Celery.builtin_fixups.add("pgbeat.integrations.django:fixup")


def connect_integrations() -> None:
    """Connects the integrations that need no setting, as Celery does with its fixups.

    Beat calls it: it lies below the integrations and can't import them.
    """
    for name in ("django.launchers", "sentry"):
        import_module(f"pgbeat.integrations.{name}").connect()


def equip_apps() -> None:
    """Has Celery's apps send plain tasks by templates, if Celery is what publishes here.

    The transport calls it: it lies below Celery and can't import it.
    """
    if "celery.app.base" in sys.modules:
        mask_urls()
        import_module("pgbeat.broker.publishing.template_sender").equip_apps()


def end_discarded_jobs(connection: "Connection") -> None:
    """Ends jobs without lane and group whose messages the open transaction has discarded.

    The broker calls it: it lies below the jobs and can't import them.
    """
    import_module("pgbeat.jobs.discarded_messages").end_own_jobs(connection)


def has_task_policy(app: Any, name: str) -> bool:
    """Returns whether sending a task makes a job.

    `broker.publishing` calls it, and `send_as_job`: it lies below the jobs.
    """
    own = getattr(known_task(app, name), "pgbeat", None)
    if (
        own is None
        and not app.conf.get("pgbeat_task_policies")
        and ("PGBEAT_TASK_POLICIES" not in os.environ)
    ):
        return False
    return import_module("pgbeat.jobs.task_policies").of_task(app, name) is not None


def known_task(app: Any, name: str) -> Any:
    """Returns the task that an app has registered; `None` if it has none of that name.

    An app that its program must finalize is not finalized for it.
    """
    return (app.tasks if app.finalized or app.autofinalize else app._tasks).get(name)


def send_as_job(app: Any, sender: Any, name: str, args: Any, kwargs: Any, options: Any) -> Any:
    """Sends a task that has a policy, and returns its result."""
    send = import_module("pgbeat.jobs.task_jobs").send
    return send(app, sender, name, args, kwargs, options)


def write_jobs(
    connection: "Connection", batch: "Sequence[Message]", *, is_own: bool = False
) -> "list[Message]":
    """Writes the jobs that messages make, and returns the messages to write now.

    The broker calls it, as `end_discarded_jobs`. `is_own` is whether the transaction is pgbeat's.
    """
    found: list[Message] = import_module("pgbeat.jobs.task_jobs").write(
        connection, batch, is_own=is_own
    )
    return found


def write_job(working: "Working", tables: "BrokerTables", message: "Message") -> bool:
    """Writes a message with the job that it makes; returns false if `write_jobs` must do it.

    The broker calls it, as `write_jobs`, with its connection in autocommit mode.
    """
    return bool(import_module("pgbeat.jobs.task_jobs").write_at_once(working, tables, message))


def _on_celeryd_init(instance: Any, **kwargs: Any) -> None:
    import_module("pgbeat.worker.signals").require_broker(instance.app)


def _on_worker_init(sender: Any, **kwargs: Any) -> None:
    import_module("pgbeat.worker.snoozes").set_up(sender.app)
    import_module("pgbeat.worker.policy_retries").set_up(sender.app)
    import_module("pgbeat.worker.replacements").set_up(sender.app)
    import_module("pgbeat.worker.endings").set_up(sender.app)
    try:
        import_module("pgbeat.worker.signals").set_up(sender)
        if "sentry_sdk.integrations.celery" in sys.modules:
            import_module("pgbeat.integrations.sentry").watch_tasks()
    except Exception:  # Celery would ignore it silently
        import logging

        logging.getLogger("pgbeat").exception("This worker can't record executions")


def _on_logger(logger: Any, **kwargs: Any) -> None:
    current_app = sys.modules["celery"].current_app
    if any(str(key).lower() == "pgbeat_log_format" for key in current_app.conf) or (
        "PGBEAT_LOG_FORMAT" in os.environ
    ):
        import_module("pgbeat.log").use_json(current_app, logger)


register_transport()
follow_apps()
follow_workers()
