"""Checks that a beat has everything it needs, and advises on what is missing."""

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from pgbeat.broker import own_tables, queues
from pgbeat.broker.queues import QueueSummary
from pgbeat.config import Settings, delays_in_table, spelling
from pgbeat.database import connections, fence
from pgbeat.database.migrations import contents, migrate
from pgbeat.errors import Fenced, SchemaError
from pgbeat.monitoring import beats, fences, schedule_health, worker_usage
from pgbeat.monitoring.checks import (
    open_transactions,
    periods,
    policies,
    server_checks,
    sql_roles,
    task_coverage,
)
from pgbeat.monitoring.checks.server_checks import Check
from pgbeat.monitoring.rollups import tasks
from pgbeat.schedules import model as schedules
from pgbeat.schedules import sync
from pgbeat.webhooks import check_ins

if TYPE_CHECKING:
    from celery import Celery


def checks(settings: Settings, app: "Celery | None") -> Iterator[Check]:
    """Yields all checks, in an order in which each makes sense if those before it passed.

    Raises the driver's error if the database can't be reached.
    """
    engine = connections.engine(settings.url, "pgbeat doctor").execution_options(
        isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        yield server_checks.server(connection, settings)
        yield server_checks.pooler(connection, engine, settings, app)
        yield server_checks.clock(connection)
        yield from server_checks.role(connection)
        missing = server_checks.missing_privileges(connection)
        yield missing
        if missing.result != "fail":
            schema = _schema(connection)
            yield schema
            if schema.result != "fail":
                yield from _contents(connection)
                yield _fence(connection)
                if settings.read_url is not None:
                    yield server_checks.replica(connection, settings)
                yield _apps(connection, settings, app)
                yield from _beat(connection, settings)
                if check := open_transactions.check(connection):
                    yield check
                yield periods.check(connection)
                yield _decisions(connection, settings)
                yield _jobs(connection, settings)
                yield from _stale(connection, settings)
                yield from _workers(connection, settings)
                if check := sql_roles.check(connection, settings.namespace):
                    yield check
                if number := tasks.untracked(connection, settings.namespace):
                    yield _untracked(number, app)
                if failing := check_ins.check(connection, settings.namespace):
                    yield Check("check-ins", *failing)
                if check := policies.check(connection, settings, app):
                    yield check
        is_reader = missing.result == "unknown"
        yield from _broker(connection, settings, app, is_reader=is_reader)


def _untracked(number: int, app: "Celery | None") -> Check:
    message = "1 task ran" if number == 1 else f"{number:,} tasks ran"
    advice = f"{spelling(app, 'track')} = 'all' tracks them"
    return Check("tracking", "ok", f"{message} untracked in the last 24 hours; {advice}")


def _schema(connection: Connection) -> Check:
    newest = migrate.newest()
    try:
        version = migrate.check(connection, reads_schedules=True).version
    except SchemaError as error:
        return Check("schema", "fail", error.message, _advice(error))
    if version < newest:
        detail = f"version {version}, which works, but this pgbeat's is {newest}"
        return Check("schema", "warn", detail, "Run `pgbeat migrate`.")
    if version > newest:
        return Check("schema", "ok", f"version {version}, newer than this pgbeat's {newest}")
    return Check("schema", "ok", f"version {newest}, the newest")


def _advice(error: SchemaError) -> str:
    return f"{error.advice[:1].upper()}{error.advice[1:]}."


def _contents(connection: Connection) -> Iterator[Check]:
    version = migrate.current(connection) or ""
    if version > migrate.newest():
        detail = f"this pgbeat doesn't know what version {version} consists of"
        yield Check("schema contents", "unknown", detail)
    elif lacking := migrate.missing(connection, version):
        yield Check(
            "schema contents",
            "fail",
            f"the schema lacks {contents.listed(lacking)}",
            "Run `pgbeat migrate`, which makes again what loses no rows.",
        )


def _fence(connection: Connection) -> Check:
    try:
        server = fence.read(connection)
        fence.require_original(connection)
    except Fenced as error:
        return Check("fence", "fail", error.message, _advice(error))
    if (held := fences.raised(connection)) is not None:
        return Check(
            "fence",
            "warn",
            held.summary,
            "`pgbeat fence` shows them, and `pgbeat fence release` releases them.",
        )
    if server.system is None:
        return Check("fence", "unknown", "the server doesn't say which one it is")
    return Check("fence", "ok", f"system {server.system}, timeline {server.timeline}")


def _apps(connection: Connection, settings: Settings, app: "Celery | None") -> Check:
    """Looks for schedules that the code of several apps made in one namespace."""
    name = None
    if app is not None:
        from pgbeat.schedules import entries

        name = entries.app_name(app, settings)
    others = sync.other_apps(connection, settings.namespace, app=name)
    if others and (app is not None or len(others) > 1):
        from pgbeat.schedules import code as code_schedules

        problem = code_schedules.described(others, settings.namespace)
        return Check("apps", "warn", problem, code_schedules.ADVICE)
    return Check("apps", "ok", f"no two apps have schedules in namespace '{settings.namespace}'")


def _beat(connection: Connection, settings: Settings) -> Iterator[Check]:
    status = beats.status(connection, settings)
    figures = schedules.count(connection, namespace=settings.namespace)
    leader = status.leader
    if leader is None:
        yield Check(
            "beat",
            "fail" if figures["due"] else "warn",
            f"none runs: no session holds lock {settings.leader_key}",
            "Start one: celery -A APP beat -S pgbeat.Scheduler",
        )
    elif not leader.session.application_name:
        yield Check(
            "beat",
            "unknown",
            f"lock {settings.leader_key} is held by {leader.label}, perhaps a beat",
        )
    elif not leader.is_beat:
        yield Check(
            "beat",
            "fail",
            f"lock {settings.leader_key} is held by {leader.label}, which is no beat",
            "Let beat use another lock: set pgbeat_lock_key.",
        )
    else:
        standbys = len(status.standbys)
        others = {0: "no other stands by", 1: "one stands by"}.get(standbys, f"{standbys} stand by")
        yield Check("beat", "ok", f"{leader.label} leads, {others}")
    yield _lag(status.backlog.lag, figures, settings)


def _lag(late: float, figures: Any, settings: Settings) -> Check:
    total = _schedules(figures["total"])
    if figures["unplanned"]:
        detail = f"{figures['unplanned']} of {total} never planned: when they are due is unknown"
        return Check("lag", "unknown", detail, "A beat plans a new schedule within seconds.")
    if not figures["due"]:
        return Check("lag", "ok", f"nothing is overdue; {total}, {figures['active']} active")
    detail = f"{figures['due']} of {total} due, the oldest for {late:.1f} s"
    if late <= settings.loop_interval:
        return Check("lag", "ok", detail)
    is_usual = late <= beats.patience(settings).total_seconds()
    advice = "`pgbeat explain` says of a schedule why it waits."
    return Check("lag", "warn" if is_usual else "fail", detail, advice)


#: Schedules or tasks that a check names.
_NAMED = 5


def _schedules(number: int) -> str:
    return "1 schedule" if number == 1 else f"{number} schedules"


def _listed(some: Sequence[str], total: int) -> str:
    return "; ".join(some) + (f" and {total - len(some)} more" if total > len(some) else "")


def _line(error: str | None) -> str:
    return (error or "no error was recorded").splitlines()[0][:200]


_UNDECIDED = text(
    """
    SELECT name, retry_count, greatest(max_retries, 1), last_error, count(*) OVER ()
      FROM pgbeat.schedules
     WHERE namespace = :namespace AND paused_at IS NULL AND retry_count > 0
       AND (enabled OR retry_count >= max_retries)
     ORDER BY retry_count DESC, name LIMIT :named
    """
)


def _decisions(connection: Connection, settings: Settings) -> Check:
    """Looks for schedules that could not be launched when they were due last."""
    values = {"namespace": settings.namespace, "named": _NAMED}
    rows = connection.execute(_UNDECIDED, values).all()
    if not rows:
        return Check("decisions", "ok", "no schedule failed to be decided when it was due last")
    some = [
        f"{name} ({failures} of {most} times in a row; last: {_line(error)})"
        for name, failures, most, error, _ in rows
    ]
    total = rows[0][4]
    return Check(
        "decisions",
        "warn",
        f"{_schedules(total)} could not be launched: {_listed(some, total)}",
        "`pgbeat explain NAME` says more; after the last failure a schedule is disabled.",
    )


def _jobs(connection: Connection, settings: Settings) -> Check:
    """Looks for schedules whose newest job failed."""
    failing = [
        row for row in schedule_health.failing(connection, settings.namespace) if row.is_enabled
    ]
    if not failing:
        return Check("jobs", "ok", "no schedule's newest job failed")
    some = [
        f"{row.name} ({row.failures} in a row{', paused' if row.is_paused else ''}; last: "
        f"{_line(row.error)})"
        for row in failing[:_NAMED]
    ]
    return Check(
        "jobs",
        "warn",
        f"the newest jobs of {_schedules(len(failing))} failed: {_listed(some, len(failing))}",
        "`pgbeat explain NAME` and `pgbeat jobs show ID` say more.",
    )


def _stale(connection: Connection, settings: Settings) -> Iterator[Check]:
    if rows := schedule_health.stale(connection, settings.namespace):
        some = [
            f"{row.name} (since {row.stale_since.astimezone(UTC):%F %T} UTC)"
            for row in rows[:_NAMED]
        ]
        detail = f"{_schedules(len(rows))} completed no job in time: {_listed(some, len(rows))}"
        yield Check("freshness", "warn", detail, "`pgbeat explain NAME` says more.")


def _workers(connection: Connection, settings: Settings) -> Iterator[Check]:
    """Looks for workers that died, and for tasks of schedules that the living don't know."""
    workers = worker_usage.listing(connection, settings.namespace, tasks=0)
    living = {worker.name for worker in workers if worker.missing_since is None}
    lost = sorted({worker.name for worker in workers} - living)
    number = "1 worker" if len(living) == 1 else f"{len(living)} workers"
    if lost:
        yield Check(
            "workers",
            "warn" if living else "fail",
            f"{number} alive; died: {_listed(lost[:_NAMED], len(lost))}",
            "Start it again. It is named until an hour after beat or a worker has noticed.",
        )
    elif living:
        yield Check("workers", "ok", f"{number} alive")
    else:
        yield Check(
            "workers",
            "unknown",
            "no worker records executions",
            "Start one. Workers without pgbeat, or whose pgbeat_track is off, can't be seen.",
        )
    yield _tasks(connection, settings)


def _tasks(connection: Connection, settings: Settings) -> Check:
    """Looks for tasks of schedules that workers haven't registered."""
    coverage = task_coverage.coverage(connection, settings.namespace)
    reporting = coverage.workers - coverage.silent
    if not reporting:
        return Check("tasks", "unknown", "no living worker says which tasks it has registered")
    if not coverage.uncovered:
        number = "1 worker has" if reporting == 1 else f"{reporting} workers have"
        detail = f"{number} registered the task of each schedule"
        if coverage.silent:
            return Check("tasks", "unknown", f"{detail}, {coverage.silent} more don't say")
        return Check("tasks", "ok", detail)
    some = []
    for task in coverage.uncovered[:_NAMED]:
        whose = f"schedule {task.example!r}"
        whose += f" and {task.schedules - 1} more" if task.schedules > 1 else ""
        hint = f"; did you mean {task.near!r}?" if task.near else ""
        lacking = ", ".join(task.workers[:3]) + (" …" if len(task.workers) > 3 else "")
        missing = "no worker has" if task.is_unknown and not coverage.silent else f"{lacking} lacks"
        some.append(f"{missing} task {task.task!r} of {whose}{hint}")
    return Check(
        "tasks",
        "warn",
        _listed(some, len(coverage.uncovered)),
        "A worker fails the jobs of a task that it doesn't know: put the name right (`pgbeat "
        "update NAME --task TASK`), or have the workers' app import the task.",
    )


def _broker(
    connection: Connection, settings: Settings, app: "Celery | None", *, is_reader: bool
) -> Iterator[Check]:
    is_here = own_tables.are_expected(settings.url, None if app is None else app.conf)
    if app is not None and not is_here:
        yield _broker_elsewhere(app)
        return
    if is_here and own_tables.exist(connection):
        lacking = own_tables.missing_privileges(connection)
        if lacking and not is_reader:
            yield Check(
                "broker",
                "fail",
                f"the role lacks {', '.join(lacking)}",
                server_checks.grant(connection),
            )
            return
        try:
            yield from _queues(queues.all_queues(connection), app)
        except ProgrammingError as error:
            reason = connections.first_line(error)
            yield Check("broker", "unknown", reason, server_checks.grant(connection))
    elif app is None:
        yield Check("broker", "unknown", "not looked at; give the app with -A APP")
    elif connection.execute(_MAY_CREATE).scalar_one():
        yield Check("broker", "ok", "its tables are made when first used")
    else:
        yield Check(
            "broker",
            "fail",
            "its tables are not there, and the role may not make them",
            "GRANT CREATE on the role's schema, or start a worker once as a role that may.",
        )


def _queues(rows: Sequence[QueueSummary], app: "Celery | None") -> Iterator[Check]:
    """Counts the messages that wait, and looks for queues without consumers."""
    full = ", ".join(f"{row.name} {row.waiting}" for row in rows if row.waiting)
    detail = f"{sum(row.waiting for row in rows)} messages wait" + (f" ({full})" if full else "")
    yield Check("broker", "ok", f"its tables are here; {detail}")
    unserved = [row.name for row in rows if row.is_unserved]
    if app is not None and not delays_in_table(app.conf):
        yield Check("queues", "unknown", "who consumes by the stock transport (sqla+) isn't seen")
    elif unserved:
        yield Check(
            "queues",
            "fail",
            f"messages, but no living consumer: {_listed(unserved[:_NAMED], len(unserved))}",
            f"Start a worker for them: celery -A APP worker -Q {','.join(unserved[:_NAMED])}",
        )
    elif not any(row.consumers for row in rows if not row.is_internal):
        yield Check("queues", "warn", "no worker consumes from any", "Start one.")
    else:
        yield Check("queues", "ok", "each queue with messages has a living consumer")


_MAY_CREATE = text("SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)")


def _broker_elsewhere(app: "Celery") -> Check:
    where = "the broker"
    try:
        with app.connection_for_write() as broker:
            where = broker.as_uri()
            broker.ensure_connection(max_retries=1, interval_start=0, timeout=5)
    except Exception as error:  # any transport's
        return Check(
            "broker",
            "fail",
            f"{where} can't be reached: {str(error) or type(error).__name__}",
            "Start it, or put the app's broker_url right.",
        )
    return Check("broker", "ok", f"{where}, another server: each launch is sent at least once")
