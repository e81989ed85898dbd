"""The metrics: what each one means, its labels, and its samples as prometheus_client has them.

The page of metrics in the documentation lists `FAMILIES`.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pgbeat.monitoring.metrics import counters
from pgbeat.monitoring.metrics.counters import CounterValue


class Family(NamedTuple):
    """A metric's kind, its help text and the names of its labels."""

    kind: Literal["gauge", "counter", "histogram"]
    about: str
    labels: tuple[str, ...] = ()


#: By name; that of a counter is shown with `_total`.
FAMILIES = {
    "pgbeat_info": Family("gauge", "The version of pgbeat", ("version", "namespace")),
    "pgbeat_scrape_duration_seconds": Family("gauge", "How long the scrape took"),
    "pgbeat_read_lag_seconds": Family(
        "gauge", "How far the replica of pgbeat_read_url is behind; +Inf if it can't be read"
    ),
    "pgbeat_leader": Family("gauge", "1 while a beat leads"),
    "pgbeat_standbys": Family("gauge", "Beats that wait to take over"),
    "pgbeat_take_overs": Family("counter", "How often a beat became the leader"),
    "pgbeat_due_schedules": Family(
        "gauge", "Schedules that are due and not decided yet, up to 10,000"
    ),
    "pgbeat_due_oldest_age_seconds": Family("gauge", "How long the oldest of them has been due"),
    "pgbeat_last_tick_timestamp_seconds": Family("gauge", "When a schedule was last decided"),
    "pgbeat_schedules": Family(
        "gauge",
        "Schedules: active, paused, disabled or completed (nothing left to do); up to 10,000 each",
        ("state",),
    ),
    "pgbeat_schedules_failing": Family(
        "gauge", "Schedules that are not disabled and whose newest job failed"
    ),
    "pgbeat_schedules_stale": Family(
        "gauge",
        "Schedules in service of which no job completed within `fresh_within`, up to 10,000",
    ),
    "pgbeat_schedule_failed_jobs": Family(
        "gauge",
        "Jobs that failed in a row, up to 1,000, of the 100 failing schedules with the most",
        ("schedule",),
    ),
    "pgbeat_schedule_last_launch_timestamp_seconds": Family(
        "gauge", "When a schedule that is in service last launched", ("schedule",)
    ),
    "pgbeat_ticks": Family(
        "counter", "Decisions: launched, skipped or failed", ("schedule", "outcome")
    ),
    "pgbeat_tick_lateness_seconds": Family(
        "histogram", "From the due time to the decision, where the timetable triggered it"
    ),
    "pgbeat_tick_duration_seconds": Family(
        "histogram", "How long a pass took that decided something"
    ),
    "pgbeat_jobs": Family(
        "gauge",
        "Jobs that are kept: up to 10,000 of each state, 1,000 of ended ones",
        ("state", "job_source"),
    ),
    "pgbeat_jobs_late": Family(
        "counter",
        "Jobs that missed a deadline, by the first that they missed: start or end",
        ("deadline",),
    ),
    "pgbeat_executions": Family(
        "counter",
        "Executions that ended: completed, failed, cancelled, skipped, snoozed or lost (the "
        "worker died)",
        ("task", "state", "job_source"),
    ),
    "pgbeat_execution_duration_seconds": Family(
        "histogram", "How long executions took that completed or failed", ("task",)
    ),
    "pgbeat_workers": Family("gauge", "Workers that are alive and record executions"),
    "pgbeat_stale_claims_released": Family("counter", "Executions taken from workers that died"),
    "pgbeat_lane_slots_used": Family("gauge", "Slots of the lane that are taken", ("lane",)),
    "pgbeat_lane_slots_limit": Family("gauge", "Slots that the lane has", ("lane",)),
    "pgbeat_lane_waiting": Family("gauge", "Jobs in the lane's line, up to 10,000", ("lane",)),
    "pgbeat_lane_paused": Family("gauge", "1 while the lane is paused", ("lane",)),
    "pgbeat_webhook_deliveries": Family(
        "gauge",
        "Deliveries that are kept: pending, delivered (up to 1,000) or failed",
        ("webhook", "state"),
    ),
    "pgbeat_webhook_enabled": Family("gauge", "1 while the webhook is enabled", ("webhook",)),
    "pgbeat_queue_messages": Family(
        "gauge",
        "Messages: waiting, delayed (available later) or claimed (by a worker); up to 10,000 each",
        ("queue", "state"),
    ),
    "pgbeat_queue_oldest_age_seconds": Family(
        "gauge", "How long the oldest waiting message has been there", ("queue",)
    ),
    "pgbeat_queue_consumers": Family(
        "gauge", "Processes that consume the queue by pgbeat's transport", ("queue",)
    ),
    "pgbeat_queue_paused": Family("gauge", "1 while the queue is paused", ("queue",)),
    "pgbeat_dead_letters": Family(
        "gauge", "Dead letters of the queue, up to 10,000 of all queues", ("queue",)
    ),
}

#: Those of a worker that serves metrics itself.
OF_WORKERS = {
    "pgbeat_worker_tasks": Family("counter", "Tasks that this worker received", ("task",)),
    "pgbeat_worker_running": Family("gauge", "Tasks that it runs"),
    "pgbeat_worker_reserved": Family("gauge", "Tasks that it has fetched and that wait in it"),
}

_Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]
_KINDS: dict[str, _Kind] = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


def family(name: str, samples: Mapping[Any, float]) -> Metric:
    """Returns a gauge or counter with its samples, by the values of its labels."""
    kind, about, labels = FAMILIES.get(name) or OF_WORKERS[name]
    metric = _KINDS[kind](name, about, labels=labels)
    for values, value in samples.items():
        metric.add_metric(values, value)
    return metric


def single(name: str, value: float) -> Metric:
    """Returns a gauge or counter without labels."""
    return family(name, {(): value})


def histogram(name: str, bounds: Sequence[float], sums: Sequence[CounterValue]) -> Metric:
    """Returns a histogram of what the counters have in each bucket."""
    _, about, labels = FAMILIES[name]
    metric = HistogramMetricFamily(name, about, labels=labels)
    by_label: dict[str, dict[str, float]] = {} if labels else {"": {}}
    for row in sums:
        by_label.setdefault(row.label, {})[row.kind] = row.value
    for label, kinds in by_label.items():
        edges = [*(str(float(bound)) for bound in bounds), "+Inf"]
        counts = accumulate(kinds.get(str(number), 0) for number in range(len(edges)))
        metric.add_metric(
            [label] if labels else [],
            list(zip(edges, counts, strict=True)),
            kinds.get(counters.SUM, 0.0),
        )
    return metric
