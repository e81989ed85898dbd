"""Ties the packages together, and pgbeat to kombu and Celery.

A package imports only those below it. What it needs of one above comes from here: as a port that
this module fills, or by a signal that it connects. `import pgbeat` calls `connect`. All else that
this module imports is heavy, so a function imports it when it is called.
"""

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pgbeat.broker import ports

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def connect() -> None:
    """Fills the ports; connects with kombu and Celery, now or when they are imported."""
    ports.job_writer, ports.equip_apps = job_writer, equip_apps
    _once_imported("kombu.transport", _follow_kombu)
    _once_imported("celery.app.base", _follow_celery)
    _once_imported("celery.apps.beat", _follow_beat_programs)
    _once_imported("pgbeat.beat.signals", _follow_beats)
    _once_imported("flower.command", _follow_flower)


def _once_imported(name: str, act: Callable[[Any], None]) -> None:
    """Calls `act` with a module: now, or as soon as it has been imported."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        sys.meta_path.insert(0, _Follower(name, act))
    else:
        act(module)


class _Follower:
    """Finds a module as usual, and acts once it has been executed."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, *args: Any) -> "ModuleSpec | None":
        """Returns the module's spec; no other module's."""
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, *args) for finder in others)), None)
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            execute = loader.exec_module

            def execute_and_follow(module: Any) -> None:
                execute(module)
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
                self._act(module)

            loader.exec_module = execute_and_follow
        return spec


# ----- kombu and Celery


def _follow_kombu(transport: Any) -> None:
    """Registers `pgbeat+postgresql://`, without loading the transport."""
    # kombu looks up the part before the plus, but after a failover the whole scheme.
    for scheme in ("", "+postgresql", "+postgres", "+postgresql+psycopg"):
        transport.TRANSPORT_ALIASES[f"pgbeat{scheme}"] = "pgbeat.broker.transport:Transport"


#: What each of Celery's apps calls as it is made.
_FIXUP = "pgbeat.wiring:equip"


def _follow_celery(apps: Any) -> None:
    """Equips the apps that are made from now on, and follows this process's workers."""
    from celery import _state, signals

    apps.Celery.builtin_fixups.add(_FIXUP)
    _state.connect_on_app_finalize(_add_sql_task)
    signals.celeryd_init.connect(_on_celeryd_init, weak=False, dispatch_uid="pgbeat.worker")
    signals.worker_init.connect(_on_worker_init, weak=False, dispatch_uid="pgbeat.worker")
    signals.celeryd_after_setup.connect(_on_worker_start, weak=False, dispatch_uid="pgbeat.log")
    signals.beat_init.connect(_on_beat_start, weak=False, dispatch_uid="pgbeat.log")
    signals.worker_ready.connect(_on_worker_ready, weak=False, dispatch_uid="pgbeat.metrics")
    signals.beat_init.connect(_on_beat_ready, weak=False, dispatch_uid="pgbeat.metrics")
    for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
        signal.connect(_on_logger, weak=False, dispatch_uid="pgbeat.log")
    _mask_urls()


def _mask_urls() -> None:
    """Makes Celery mask the settings that are pgbeat's URLs, as it masks `broker_url`.

    It shows an app's settings in `celery report`, `inspect conf` and `inspect report`, and Flower
    shows them in a tab. Celery 5.5 masks neither `broker_read_url` nor `broker_write_url`.
    """
    import re

    from celery.app import utils

    known = utils.HIDDEN_SETTINGS
    utils.HIDDEN_SETTINGS = re.compile(f"{known.pattern}|{_URLS}", known.flags)


_URLS = "PGBEAT_(CONDITION_|READ_|SQL_)?URL|DIRECT_URL|BROKER_READ_URL|BROKER_WRITE_URL"


def equip(app: Any) -> None:
    """Makes an app look at its broker when it sends its first task, and not before.

    Its tasks that run in batches take a list, and are called like others.
    """
    from pgbeat.broker.publishing.first_send import FirstSend

    app.send_task = FirstSend(app, _send_by_templates)
    app._task_from_fun = _registering(app._task_from_fun)
    app.register_task = _registering(app.register_task)


def _registering(register: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(register)
    def register_and_prepare(*args: Any, **options: Any) -> Any:
        task = register(*args, **options)
        option = getattr(task, "pgbeat", None)
        if isinstance(option, dict) and option.get("batch"):
            from pgbeat.worker.finishing import batches

            task.typing = False
            batches.prepare(task)
        return task

    return register_and_prepare


def _send_by_templates(app: Any) -> None:
    from pgbeat.broker.publishing import template_sender

    template_sender.equip(app)


# ----- workers


def _add_sql_task(app: Any) -> None:
    app.task(_run_sql, name="pgbeat.sql", bind=True, acks_late=True, shared=False)


def _run_sql(
    self: Any, statement: str, role: str | None = None, timeout: float | str | None = None
) -> int:
    """Runs a statement as a role of the database; returns the number of its rows."""
    from pgbeat.worker import sql_jobs

    return sql_jobs.run(self.app)


def _on_celeryd_init(instance: Any, **kwargs: Any) -> None:
    from pgbeat.worker.start_checks import require_broker

    require_broker(instance.app)
    if _is_json(instance.app):
        from celery.apps import worker

        from pgbeat import log

        log.begin_in_json(instance)
        write = getattr(worker, "_original_os_write", os.write)  # not eventlet's; Celery 5.7
        worker.safe_say = partial(log.say, write)


def _on_worker_init(sender: Any, **kwargs: Any) -> None:
    from pgbeat.worker import liveness, signals
    from pgbeat.worker.finishing import task_run

    task_run.set_up(sender.app)
    try:
        liveness.show(sender.app)
        signals.set_up(sender)
        if "sentry_sdk.integrations.celery" in sys.modules:
            from pgbeat.integrations import sentry

            sentry.watch_tasks()
    except Exception:  # Celery would ignore it silently
        import logging

        logging.getLogger("pgbeat").exception("This worker can't record executions")


# ----- logs in JSON


def _is_json(app: Any) -> bool:
    return bool(_setting(app, "log_format") == "json")


def _setting(app: Any, name: str) -> Any:
    """Returns a setting of pgbeat's, if it was given: without, an app is asked for no others."""
    if not any(str(key).lower() == f"pgbeat_{name}" for key in app.conf) and (
        f"PGBEAT_{name.upper()}" not in os.environ
    ):
        return None
    from pgbeat.config import Settings
    from pgbeat.errors import ConfigError

    try:
        return getattr(Settings.load(app.conf), name)
    except ConfigError:
        return None  # reported by what needs the settings


def _on_logger(logger: Any, **kwargs: Any) -> None:
    from celery import current_app

    if _is_json(current_app):
        from pgbeat.log import use_json

        use_json(current_app, logger)


def _on_worker_start(sender: Any, instance: Any, **kwargs: Any) -> None:
    if _is_json(instance.app):
        from pgbeat import log

        log.worker_starts(sender, instance)


def _on_beat_start(sender: Any, **kwargs: Any) -> None:
    if _is_json(sender.app):
        from pgbeat import log

        log.starts("Beat starts", sender.app)


def _follow_beat_programs(programs: Any) -> None:
    run = programs.Beat.run

    @wraps(run)
    def run_in_json(self: Any) -> None:
        if _is_json(self.app):
            from pgbeat import log

            log.begin_in_json(self)
        run(self)

    programs.Beat.run = run_in_json


# ----- metrics


def _on_worker_ready(sender: Any, **kwargs: Any) -> None:
    """Serves a worker's own figures, from its main process alone."""
    if listen := _metrics_listen(sender.app):
        from celery.worker import state

        from pgbeat.config import Settings
        from pgbeat.monitoring.metrics import exporter

        counted = state.total_count, state.active_requests, state.reserved_requests
        namespace = Settings.load(sender.app.conf).namespace
        exporter.serve(listen, exporter.WorkerFigures(*counted, namespace))


def _on_beat_ready(sender: Any, **kwargs: Any) -> None:
    """Serves the database's metrics from a beat, whether it leads or stands by."""
    if listen := _metrics_listen(sender.app):
        from pgbeat.monitoring.metrics import collector, exporter

        exporter.serve(listen, collector.metrics_collector(sender.app))


def _metrics_listen(app: Any) -> str:
    listen = _setting(app, "metrics_listen")
    if listen and not find_spec("prometheus_client"):
        import logging

        logging.getLogger("pgbeat.metrics").warning(
            "pgbeat_metrics_listen needs prometheus_client: pip install 'pgbeat[metrics]'"
        )
        return ""
    return listen or ""


# ----- beats


def _follow_beats(signals: Any) -> None:
    signals.evaluator_made.connect(connect_integrations, weak=False, dispatch_uid=__name__)


def connect_integrations(**kwargs: Any) -> None:
    """Connects the integrations that need no setting, as Celery does with its fixups."""
    from pgbeat.integrations import sentry
    from pgbeat.integrations.django import launchers

    launchers.connect()
    sentry.connect()


# ----- Flower


def _follow_flower(commands: Any) -> None:
    """Equips Flower when its command starts: Celery imports it for each of its own commands."""
    run = commands.flower.callback

    @wraps(run)
    def run_with_history(*args: Any, **kwargs: Any) -> Any:
        from pgbeat import flower  # noqa: F401

        return run(*args, **kwargs)

    commands.flower.callback = run_with_history


# ----- what the broker needs


def job_writer() -> ports.JobWriter:
    """Returns the jobs' side of the broker's port."""
    from pgbeat.jobs.writing import task_jobs

    return task_jobs


def equip_apps() -> None:
    """Makes Celery's apps send plain tasks by templates, if Celery is what publishes here."""
    if "celery.app.base" in sys.modules:
        from pgbeat.broker.publishing import template_sender

        template_sender.equip_apps()
