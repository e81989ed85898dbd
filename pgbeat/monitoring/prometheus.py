"""Collects a namespace's metrics for Prometheus from the database, at each scrape.

So any process can show them, and it makes no difference which one is scraped.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from pgbeat import __version__
from pgbeat.broker.messages import BrokerTables
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.monitoring import beats, counters, gauges, schedule_health
from pgbeat.monitoring.counters import CounterValue


class DatabaseCollector(Collector):
    """Reads all metrics at each scrape, on a connection of its own."""

    def __init__(self, settings: Settings, tables: BrokerTables | None) -> None:
        self._settings, self._tables = settings, tables
        self._engine = connections.engine(
            settings.url, "pgbeat metrics", isolation_level="AUTOCOMMIT"
        )

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, so that registering it needs no database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Returns all metrics."""
        with self._engine.connect() as connection:
            return list(_families(connection, self._settings, self._tables))


class _Read(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(
    connection: Connection, settings: Settings, tables: BrokerTables | None = None
) -> tuple[bytes, str]:
    """Returns the answer to a scrape, and its content type.

    It brings the counters up to date, which writes a little: the connection must be in autocommit
    mode, or the transaction committed. Queues are included if the broker's `tables` are given.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(_families(connection, settings, tables)))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _families(
    connection: Connection, settings: Settings, tables: BrokerTables | None
) -> Iterator[Metric]:
    began = time.perf_counter()
    counters.count_up(connection)
    yield _gauge("pgbeat_info", "Which pgbeat this is", ("version", "namespace"),
                 [((__version__, settings.namespace), 1)])  # fmt: skip
    yield from _beats(connection, settings)
    yield from _schedules(connection, settings.namespace)
    sums = counters.read(connection, settings.namespace)
    yield from _ticks(sums)
    yield from _jobs(connection, settings.namespace, sums)
    yield from _lanes(connection, settings.namespace)
    yield from _webhooks(connection, settings.namespace)
    if tables is not None and tables.exist(connection):
        yield from _queues(connection, tables)
    yield _gauge("pgbeat_scrape_duration_seconds", "How long it took to read all of this", (),
                 [((), time.perf_counter() - began)])  # fmt: skip


def _beats(connection: Connection, settings: Settings) -> Iterator[Metric]:
    status = beats.status(connection, settings)
    last = status.last_tick_at
    yield _plain("pgbeat_leader", "Whether a beat leads", int(status.leader is not None))
    yield _plain("pgbeat_standbys", "Beats that wait to take over", len(status.standbys))
    yield _plain("pgbeat_due_schedules", "Schedules that are due and not decided yet, up to 10000",
                 status.backlog.due)  # fmt: skip
    yield _plain("pgbeat_due_oldest_age_seconds", "For how long the oldest of them is due",
                 status.backlog.lag)  # fmt: skip
    if last is not None:
        yield _plain("pgbeat_last_tick_timestamp_seconds", "When a schedule was last decided",
                     last.timestamp())  # fmt: skip


def _schedules(connection: Connection, namespace: str) -> Iterator[Metric]:
    found = gauges.schedules(connection, namespace)
    yield _gauge("pgbeat_schedules", "Schedules by state, each counted up to 10000", ("state",),
                 [((state,), count) for state, count in found.items()])  # fmt: skip
    failing = [each for each in schedule_health.failing(connection, namespace) if each.is_enabled]
    about = "Schedules that are not disabled and whose newest job failed"
    yield _plain("pgbeat_schedules_failing", about, len(failing))
    yield _gauge("pgbeat_schedule_failed_jobs",
                 "Jobs that failed in a row, up to 1000, of schedules whose newest job failed",
                 ("schedule",), [
                     ((each.name,), each.failures) for each in failing[: gauges.NAMED]
                 ])  # fmt: skip
    yield _gauge("pgbeat_schedule_last_launch_timestamp_seconds",
                 "When a schedule that is in service last launched", ("schedule",),
                 [
                     ((name,), moment)
                     for name, moment in gauges.last_launches(connection, namespace).items()
                 ])  # fmt: skip


def _ticks(sums: Sequence[CounterValue]) -> Iterator[Metric]:
    yield _counter("pgbeat_ticks", "Decisions on due schedules", ("schedule", "outcome"),
                   _of(sums, "ticks"))  # fmt: skip
    yield _histogram("pgbeat_tick_lateness_seconds",
                     "From a schedule's due time to its decision", (),
                     counters.LATENESS, _of(sums, "lateness"))  # fmt: skip
    yield _histogram("pgbeat_tick_duration_seconds",
                     "How long a look took that decided something", (),
                     counters.TICK, _of(sums, "tick"))  # fmt: skip
    taken = sum(each.value for each in _of(sums, "take_overs"))
    made = CounterMetricFamily("pgbeat_take_overs", "How often a beat became the leader")
    made.add_metric([], taken)
    yield made


def _jobs(connection: Connection, namespace: str, sums: Sequence[CounterValue]) -> Iterator[Metric]:
    found = gauges.jobs(connection, namespace)
    yield _gauge("pgbeat_jobs",
                 "Jobs that are kept, the newest 10000 of each state, of ended ones 1000",
                 ("state", "job_source"), found.items())  # fmt: skip
    yield _executions(_of(sums, "executions"))
    yield _histogram("pgbeat_execution_duration_seconds",
                     "How long executions took that completed or failed", ("task",),
                     counters.DURATION, _of(sums, "duration"))  # fmt: skip
    yield _plain("pgbeat_workers", "Workers that live and record their executions",
                 gauges.workers(connection))  # fmt: skip
    made = CounterMetricFamily(
        "pgbeat_stale_claims_released", "Executions whose worker died, taken from it"
    )
    made.add_metric([], gauges.released(connection))
    yield made


def _executions(sums: Sequence[CounterValue]) -> Metric:
    made = CounterMetricFamily(
        "pgbeat_executions", "Executions that ended, by how",
        labels=("task", "state", "job_source"),
    )  # fmt: skip
    for each in sums:
        state, _, source = each.kind.partition(counters.BY)
        made.add_metric((each.label, state, source), each.value)
    return made


def _lanes(connection: Connection, namespace: str) -> Iterator[Metric]:
    found = gauges.lanes(connection, namespace)
    for name, about, values in (
        ("slots_used", "Jobs that have one of the lane's slots", [x.used for x in found]),
        ("slots_limit", "Slots that the lane has", [x.limit for x in found]),
        ("waiting", "Jobs in the lane's waiting line, up to 10000", [x.waiting for x in found]),
        ("paused", "Whether the lane is paused", [int(x.is_paused) for x in found]),
    ):
        yield _gauge(f"pgbeat_lane_{name}", about, ("lane",), [
            ((lane.name,), value)
            for lane, value in zip(found, values, strict=True) if value is not None
        ])  # fmt: skip


def _webhooks(connection: Connection, namespace: str) -> Iterator[Metric]:
    found = gauges.webhooks(connection, namespace)
    yield _gauge("pgbeat_webhook_deliveries",
                 "Deliveries that are kept, by state, up to 10000, delivered ones up to 1000",
                 ("webhook", "state"), [
                     ((hook.name, state), getattr(hook, state))
                     for hook in found for state in ("pending", "delivered", "failed")
                 ])  # fmt: skip
    yield _gauge("pgbeat_webhook_enabled", "Whether the webhook is enabled", ("webhook",),
                 [((hook.name,), int(hook.is_enabled)) for hook in found])  # fmt: skip


def _queues(connection: Connection, tables: BrokerTables) -> Iterator[Metric]:
    found = gauges.queues(connection, tables)
    yield _gauge("pgbeat_queue_messages", "Messages in the queue, each counted up to 10000",
                 ("queue", "state"), [
                     ((queue.name, state), getattr(queue, state))
                     for queue in found for state in ("waiting", "delayed", "claimed")
                 ])  # fmt: skip
    for name, about, values in (
        ("queue_oldest_age_seconds", "How long the oldest message has waited",
         [queue.age for queue in found]),
        ("queue_consumers", "Processes that consume from the queue",
         [queue.consumers for queue in found]),
        ("queue_paused", "Whether the queue is paused", [int(q.is_paused) for q in found]),
        ("dead_letters", "Messages that no worker could process, up to 10000 of all queues",
         [queue.dead for queue in found]),
    ):  # fmt: skip
        yield _gauge(f"pgbeat_{name}", about, ("queue",), [
            ((queue.name,), value) for queue, value in zip(found, values, strict=True)
        ])  # fmt: skip


# ----- prometheus_client's families

Samples = Iterable[tuple[Sequence[str], float]]


def _of(sums: Sequence[CounterValue], metric: str) -> list[CounterValue]:
    return [each for each in sums if each.metric == metric]


def _gauge(name: str, about: str, labels: Sequence[str], samples: Samples) -> Metric:
    made = GaugeMetricFamily(name, about, labels=labels)
    for values, value in samples:
        made.add_metric(values, value)
    return made


def _plain(name: str, about: str, value: float) -> Metric:
    return _gauge(name, about, (), [((), value)])


def _counter(name: str, about: str, labels: Sequence[str], sums: Sequence[CounterValue]) -> Metric:
    made = CounterMetricFamily(name, about, labels=labels)
    for each in sums:
        made.add_metric((each.label, each.kind), each.value)
    return made


def _histogram(
    name: str,
    about: str,
    labels: Sequence[str],
    bounds: Sequence[float],
    sums: Sequence[CounterValue],
) -> Metric:
    made = HistogramMetricFamily(name, about, labels=labels)
    found: dict[str, dict[str, float]] = {} if labels else {"": {}}
    for each in sums:
        found.setdefault(each.label, {})[each.kind] = each.value
    for label, kinds in found.items():
        edges = [*(str(float(bound)) for bound in bounds), "+Inf"]
        counts = accumulate(kinds.get(str(number), 0) for number in range(len(edges)))
        made.add_metric(
            [label] if labels else [],
            list(zip(edges, counts, strict=True)),
            kinds.get(counters.SUM, 0.0),
        )
    return made
