"""Collects a namespace's metrics for Prometheus from the database, at each scrape.

So any process can show them, and it makes no difference which one is scraped.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from pgbeat.broker import own_tables
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.jobs.running import workers
from pgbeat.monitoring import beats, schedule_health
from pgbeat.monitoring.metrics import counters, gauges
from pgbeat.monitoring.metrics.counters import CounterValue
from pgbeat.monitoring.metrics.families import family, histogram, single
from pgbeat.monitoring.replica import Replica
from pgbeat.version import __version__


class DatabaseCollector(Collector):
    """Reads all metrics at each scrape, on a new connection."""

    def __init__(self, settings: Settings, has_broker: bool) -> None:
        self._settings, self._has_broker = settings, has_broker
        self._engine = connections.engine(
            settings.url, "pgbeat metrics", isolation_level="AUTOCOMMIT"
        )
        self._replica = Replica(settings.read_url, settings.read_lag, "pgbeat metrics")

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, so that registering it needs no database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Returns all metrics."""
        with self._engine.connect() as connection:
            connections.configure(connection, {"jit": "off"})
            return _read(connection, self._settings, self._has_broker, self._replica)


_NONE = Replica(None, 0, "")


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(
    connection: Connection,
    settings: Settings,
    has_broker: bool = False,
    replica: Replica | None = None,
) -> tuple[bytes, str]:
    """Returns the answer to a scrape, and its content type.

    It brings the counters up to date, which writes a little; the connection must be in autocommit
    mode. Queues are included if the database `has_broker`. Rows are read from the replica.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(_read(connection, settings, has_broker, replica or _NONE)))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _read(
    connection: Connection, settings: Settings, has_broker: bool, replica: Replica
) -> list[Metric]:
    """Reads all metrics in transactions, where a pooler's sessions have its settings, too."""
    began = time.perf_counter()
    with connections.transaction(connection):
        counters.count_up(connection)
    with connections.transaction(connection):  # a replica knows no sessions
        metrics = [*_beats(connection, settings)]
        metrics.append(single("pgbeat_workers", workers.living(connection)))
        if has_broker and own_tables.exist(connection):
            connections.configure_transaction(connection, gauges.PLANS)
            metrics += _queues(connection)
    with replica.session(lambda: nullcontext(connection)) as rows, connections.transaction(rows):
        connections.configure_transaction(rows, gauges.PLANS)
        metrics += _families(rows, settings.namespace)
    if replica.lag is not None:
        metrics.append(single("pgbeat_read_lag_seconds", replica.lag))
    metrics.append(single("pgbeat_scrape_duration_seconds", time.perf_counter() - began))
    return metrics


def _families(connection: Connection, namespace: str) -> Iterator[Metric]:
    yield family("pgbeat_info", {(__version__, namespace): 1})
    yield from _schedules(connection, namespace)
    sums = counters.read(connection, namespace)
    yield from _ticks(sums)
    yield from _jobs(connection, namespace, sums)
    yield from _lanes(connection, namespace)
    yield from _webhooks(connection, namespace)


def _beats(connection: Connection, settings: Settings) -> Iterator[Metric]:
    status = beats.status(connection, settings)
    yield single("pgbeat_leader", int(status.leader is not None))
    yield single("pgbeat_standbys", len(status.standbys))
    yield single("pgbeat_due_schedules", status.backlog.due)
    yield single("pgbeat_due_oldest_age_seconds", status.backlog.lag)
    if status.last_tick_at is not None:
        yield single("pgbeat_last_tick_timestamp_seconds", status.last_tick_at.timestamp())


def _schedules(connection: Connection, namespace: str) -> Iterator[Metric]:
    states = gauges.schedules(connection, namespace)
    yield family("pgbeat_schedules", {(state,): n for state, n in states.items()})
    failing = [row for row in schedule_health.failing(connection, namespace) if row.is_enabled]
    yield single("pgbeat_schedules_failing", len(failing))
    yield single("pgbeat_schedules_stale", len(schedule_health.stale(connection, namespace)))
    failed = {(row.name,): row.failures for row in failing[: gauges.NAMED]}
    yield family("pgbeat_schedule_failed_jobs", failed)
    launches = gauges.last_launches(connection, namespace)
    moments = {(name,): moment for name, moment in launches.items()}
    yield family("pgbeat_schedule_last_launch_timestamp_seconds", moments)


def _ticks(sums: Sequence[CounterValue]) -> Iterator[Metric]:
    decided = {(row.label, row.kind): row.value for row in _of(sums, "ticks")}
    yield family("pgbeat_ticks", decided)
    yield histogram("pgbeat_tick_lateness_seconds", counters.LATENESS, _of(sums, "lateness"))
    yield histogram("pgbeat_tick_duration_seconds", counters.TICK, _of(sums, "tick"))
    yield family("pgbeat_take_overs", {(): sum(row.value for row in _of(sums, "take_overs"))})


def _jobs(connection: Connection, namespace: str, sums: Sequence[CounterValue]) -> Iterator[Metric]:
    yield family("pgbeat_jobs", gauges.jobs(connection, namespace))
    ended: dict[tuple[str, ...], float] = {}
    for row in _of(sums, "executions"):
        state, _, source = row.kind.partition(counters.BY)
        ended[row.label, state, source] = row.value
    yield family("pgbeat_executions", ended)
    took = _of(sums, "duration")
    yield histogram("pgbeat_execution_duration_seconds", counters.DURATION, took)
    late = {("start",): 0.0, ("end",): 0.0}
    yield family("pgbeat_jobs_late", late | {(row.kind,): row.value for row in _of(sums, "late")})
    released = _of(counters.read(connection, ""), "stale_claims_released")
    yield family("pgbeat_stale_claims_released", {(): sum(row.value for row in released)})


def _lanes(connection: Connection, namespace: str) -> Iterator[Metric]:
    lanes = gauges.lanes(connection, namespace)
    yield family("pgbeat_lane_slots_used", {(lane.name,): lane.used for lane in lanes})
    limits = {(lane.name,): lane.limit for lane in lanes if lane.limit is not None}
    yield family("pgbeat_lane_slots_limit", limits)
    yield family("pgbeat_lane_waiting", {(lane.name,): lane.waiting for lane in lanes})
    yield family("pgbeat_lane_paused", {(lane.name,): lane.is_paused for lane in lanes})


def _webhooks(connection: Connection, namespace: str) -> Iterator[Metric]:
    hooks = gauges.webhooks(connection, namespace)
    states = ("pending", "delivered", "failed")
    sent = {(hook.name, state): getattr(hook, state) for hook in hooks for state in states}
    yield family("pgbeat_webhook_deliveries", sent)
    enabled = {(hook.name,): hook.is_enabled for hook in hooks}
    yield family("pgbeat_webhook_enabled", enabled)


def _queues(connection: Connection) -> Iterator[Metric]:
    queues = gauges.queues(connection)
    states = ("waiting", "delayed", "claimed")
    messages = {(queue.name, state): getattr(queue, state) for queue in queues for state in states}
    yield family("pgbeat_queue_messages", messages)
    for name, field in (
        ("pgbeat_queue_oldest_age_seconds", "age"),
        ("pgbeat_queue_consumers", "consumers"),
        ("pgbeat_queue_paused", "is_paused"),
        ("pgbeat_dead_letters", "dead"),
    ):
        yield family(name, {(queue.name,): getattr(queue, field) for queue in queues})


def _of(sums: Sequence[CounterValue], metric: str) -> list[CounterValue]:
    return [row for row in sums if row.metric == metric]
