"""Collects a namespace's metrics for Prometheus from the database, at each scrape.

So any process can show them, and it makes no difference which one is scraped.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from pgbeat.broker import own_tables
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.jobs.running import workers
from pgbeat.monitoring import beats, schedule_health
from pgbeat.monitoring.metrics import counters, gauges
from pgbeat.monitoring.metrics.counters import CounterValue
from pgbeat.version import __version__


class DatabaseCollector(Collector):
    """Reads all metrics at each scrape, on a new connection."""

    def __init__(self, settings: Settings, has_broker: bool) -> None:
        self._settings, self._has_broker = settings, has_broker
        self._engine = connections.engine(
            settings.url, "pgbeat metrics", isolation_level="AUTOCOMMIT"
        )

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, so that registering it needs no database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Returns all metrics."""
        with self._engine.connect() as connection:
            connections.configure(connection, {"jit": "off"})
            return _read(connection, self._settings, self._has_broker)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(
    connection: Connection, settings: Settings, has_broker: bool = False
) -> tuple[bytes, str]:
    """Returns the answer to a scrape, and its content type.

    It brings the counters up to date, which writes a little; the connection must be in autocommit
    mode. Queues are included if the database `has_broker`.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(_read(connection, settings, has_broker)))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _read(connection: Connection, settings: Settings, has_broker: bool) -> list[Metric]:
    """Reads all metrics in transactions, where a pooler's sessions have its settings, too."""
    began = time.perf_counter()
    with connections.transaction(connection):
        counters.count_up(connection)
    with connections.transaction(connection):
        return list(_families(connection, settings, has_broker, began))


def _families(
    connection: Connection, settings: Settings, has_broker: bool, began: float
) -> Iterator[Metric]:
    namespace = settings.namespace
    yield _gauge("pgbeat_info", {(__version__, namespace): 1}, "version", "namespace")
    yield from _beats(connection, settings)
    yield from _schedules(connection, namespace)
    sums = counters.read(connection, namespace)
    yield from _ticks(sums)
    yield from _jobs(connection, namespace, sums)
    yield from _lanes(connection, namespace)
    yield from _webhooks(connection, namespace)
    if has_broker and own_tables.exist(connection):
        yield from _queues(connection)
    yield _plain("pgbeat_scrape_duration_seconds", time.perf_counter() - began)


def _beats(connection: Connection, settings: Settings) -> Iterator[Metric]:
    status = beats.status(connection, settings)
    yield _plain("pgbeat_leader", int(status.leader is not None))
    yield _plain("pgbeat_standbys", len(status.standbys))
    yield _plain("pgbeat_due_schedules", status.backlog.due)
    yield _plain("pgbeat_due_oldest_age_seconds", status.backlog.lag)
    if status.last_tick_at is not None:
        yield _plain("pgbeat_last_tick_timestamp_seconds", status.last_tick_at.timestamp())


def _schedules(connection: Connection, namespace: str) -> Iterator[Metric]:
    states = gauges.schedules(connection, namespace)
    yield _gauge("pgbeat_schedules", {(state,): n for state, n in states.items()}, "state")
    failing = [row for row in schedule_health.failing(connection, namespace) if row.is_enabled]
    yield _plain("pgbeat_schedules_failing", len(failing))
    failed = {(row.name,): row.failures for row in failing[: gauges.NAMED]}
    yield _gauge("pgbeat_schedule_failed_jobs", failed, "schedule")
    launches = gauges.last_launches(connection, namespace)
    moments = {(name,): moment for name, moment in launches.items()}
    yield _gauge("pgbeat_schedule_last_launch_timestamp_seconds", moments, "schedule")


def _ticks(sums: Sequence[CounterValue]) -> Iterator[Metric]:
    decided = {(row.label, row.kind): row.value for row in _of(sums, "ticks")}
    yield _counter("pgbeat_ticks", decided, "schedule", "outcome")
    yield _histogram("pgbeat_tick_lateness_seconds", counters.LATENESS, _of(sums, "lateness"))
    yield _histogram("pgbeat_tick_duration_seconds", counters.TICK, _of(sums, "tick"))
    yield _counter("pgbeat_take_overs", {(): sum(row.value for row in _of(sums, "take_overs"))})


def _jobs(connection: Connection, namespace: str, sums: Sequence[CounterValue]) -> Iterator[Metric]:
    yield _gauge("pgbeat_jobs", gauges.jobs(connection, namespace), "state", "job_source")
    ended: dict[tuple[str, ...], float] = {}
    for row in _of(sums, "executions"):
        state, _, source = row.kind.partition(counters.BY)
        ended[row.label, state, source] = row.value
    yield _counter("pgbeat_executions", ended, "task", "state", "job_source")
    took = _of(sums, "duration")
    yield _histogram("pgbeat_execution_duration_seconds", counters.DURATION, took, "task")
    late = {("start",): 0.0, ("end",): 0.0}
    yield _counter(
        "pgbeat_jobs_late", late | {(row.kind,): row.value for row in _of(sums, "late")}, "deadline"
    )
    yield _plain("pgbeat_workers", workers.living(connection))
    released = _of(counters.read(connection, ""), "stale_claims_released")
    yield _counter("pgbeat_stale_claims_released", {(): sum(row.value for row in released)})


def _lanes(connection: Connection, namespace: str) -> Iterator[Metric]:
    lanes = gauges.lanes(connection, namespace)
    yield _gauge("pgbeat_lane_slots_used", {(lane.name,): lane.used for lane in lanes}, "lane")
    limits = {(lane.name,): lane.limit for lane in lanes if lane.limit is not None}
    yield _gauge("pgbeat_lane_slots_limit", limits, "lane")
    yield _gauge("pgbeat_lane_waiting", {(lane.name,): lane.waiting for lane in lanes}, "lane")
    yield _gauge("pgbeat_lane_paused", {(lane.name,): lane.is_paused for lane in lanes}, "lane")


def _webhooks(connection: Connection, namespace: str) -> Iterator[Metric]:
    hooks = gauges.webhooks(connection, namespace)
    states = ("pending", "delivered", "failed")
    sent = {(hook.name, state): getattr(hook, state) for hook in hooks for state in states}
    yield _gauge("pgbeat_webhook_deliveries", sent, "webhook", "state")
    enabled = {(hook.name,): hook.is_enabled for hook in hooks}
    yield _gauge("pgbeat_webhook_enabled", enabled, "webhook")


def _queues(connection: Connection) -> Iterator[Metric]:
    queues = gauges.queues(connection)
    states = ("waiting", "delayed", "claimed")
    messages = {(queue.name, state): getattr(queue, state) for queue in queues for state in states}
    yield _gauge("pgbeat_queue_messages", messages, "queue", "state")
    for name, field in (
        ("pgbeat_queue_oldest_age_seconds", "age"),
        ("pgbeat_queue_consumers", "consumers"),
        ("pgbeat_queue_paused", "is_paused"),
        ("pgbeat_dead_letters", "dead"),
    ):
        yield _gauge(name, {(queue.name,): getattr(queue, field) for queue in queues}, "queue")


# ----- prometheus_client's families

_ABOUT = {
    "pgbeat_info": "Which pgbeat this is",
    "pgbeat_scrape_duration_seconds": "How long it took to read all of this",
    "pgbeat_leader": "Whether a beat leads",
    "pgbeat_standbys": "Beats that wait to take over",
    "pgbeat_take_overs": "How often a beat became the leader",
    "pgbeat_due_schedules": "Schedules that are due and not decided yet, up to 10000",
    "pgbeat_due_oldest_age_seconds": "For how long the oldest of them is due",
    "pgbeat_last_tick_timestamp_seconds": "When a schedule was last decided",
    "pgbeat_schedules": "Schedules by state, each counted up to 10000",
    "pgbeat_schedules_failing": "Schedules that are not disabled and whose newest job failed",
    "pgbeat_schedule_failed_jobs": (
        "Jobs that failed in a row, up to 1000, of schedules whose newest job failed"
    ),
    "pgbeat_schedule_last_launch_timestamp_seconds": (
        "When a schedule that is in service last launched"
    ),
    "pgbeat_ticks": "Decisions on due schedules",
    "pgbeat_tick_lateness_seconds": "From a schedule's due time to its decision",
    "pgbeat_tick_duration_seconds": "How long a pass took that decided something",
    "pgbeat_jobs": "Jobs that are kept, the newest 10000 of each state, of ended ones 1000",
    "pgbeat_jobs_late": "Jobs that missed a deadline, by the first that they missed",
    "pgbeat_executions": "Executions that ended, by how",
    "pgbeat_execution_duration_seconds": "How long executions took that completed or failed",
    "pgbeat_workers": "Workers that are alive and record their executions",
    "pgbeat_stale_claims_released": "Executions whose worker died, taken from it",
    "pgbeat_lane_slots_used": "Jobs that have one of the lane's slots",
    "pgbeat_lane_slots_limit": "Slots that the lane has",
    "pgbeat_lane_waiting": "Jobs in the lane's waiting line, up to 10000",
    "pgbeat_lane_paused": "Whether the lane is paused",
    "pgbeat_webhook_deliveries": (
        "Deliveries that are kept, by state, up to 10000, delivered ones up to 1000"
    ),
    "pgbeat_webhook_enabled": "Whether the webhook is enabled",
    "pgbeat_queue_messages": "Messages in the queue, each counted up to 10000",
    "pgbeat_queue_oldest_age_seconds": "How long the oldest message has waited",
    "pgbeat_queue_consumers": "Processes that consume from the queue",
    "pgbeat_queue_paused": "Whether the queue is paused",
    "pgbeat_dead_letters": "Messages that no worker could process, up to 10000 of all queues",
}


_Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _of(sums: Sequence[CounterValue], metric: str) -> list[CounterValue]:
    return [row for row in sums if row.metric == metric]


def _family(kind: _Kind, name: str, samples: Mapping[Any, float], *labels: str) -> Metric:
    family = kind(name, _ABOUT[name], labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


def _plain(name: str, value: float) -> Metric:
    return _gauge(name, {(): value})


def _histogram(
    name: str, bounds: Sequence[float], sums: Sequence[CounterValue], *labels: str
) -> Metric:
    family = HistogramMetricFamily(name, _ABOUT[name], labels=labels)
    by_label: dict[str, dict[str, float]] = {} if labels else {"": {}}
    for row in sums:
        by_label.setdefault(row.label, {})[row.kind] = row.value
    for label, kinds in by_label.items():
        edges = [*(str(float(bound)) for bound in bounds), "+Inf"]
        counts = accumulate(kinds.get(str(number), 0) for number in range(len(edges)))
        family.add_metric(
            [label] if labels else [],
            list(zip(edges, counts, strict=True)),
            kinds.get(counters.SUM, 0.0),
        )
    return family
