"""Reads the metrics of a test's database as Prometheus does."""

from collections.abc import Callable
from functools import partial

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection

from pgbeat.config import Settings
from pgbeat.monitoring.metrics import prometheus
from tests.support.rows import Sql, make_schedule

#: Values by name and labels.
Sample = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Scrape = Callable[[], Sample]

#: Adds a schedule of task `t`.
schedule = partial(make_schedule, task="t")


def read(text: bytes) -> Sample:
    """Returns the samples of an answer, which Prometheus must understand."""
    found: Sample = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation and family.type != "unknown", family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def scraped(connection: Connection, settings: Settings) -> Sample:
    return read(prometheus.render(connection, settings, has_broker=True)[0])


def value(found: Sample, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


def tick(
    sql: Sql,
    key: int,
    name: str = "s",
    outcome: str = "skipped",
    late: float = 0,
    trigger: str = "timetable",
) -> None:
    """Adds a tick, so many seconds late; each has another due time."""
    sql(
        """
        INSERT INTO pgbeat.ticks (schedule_id, schedule, trigger, due_at, decided_at, outcome,
                                  reason, error, job_id)
        SELECT %(key)s, %(name)s, %(trigger)s, at, at + %(late)s * interval '1 second',
               %(outcome)s, CASE %(outcome)s WHEN 'skipped' THEN 'no' END,
               CASE %(outcome)s WHEN 'failed' THEN 'no' END,
               CASE %(outcome)s WHEN 'launched' THEN gen_random_uuid() END
          FROM (SELECT now() - interval '1 day' + count(*) * interval '1 second' AS at
                  FROM pgbeat.ticks) AS t
        """,
        {"key": key, "name": name, "outcome": outcome, "late": late, "trigger": trigger},
    )


def ticks(found: Sample) -> dict[str, float]:
    return {
        dict(labels)["schedule"]: number
        for (name, labels), number in found.items()
        if name == "pgbeat_ticks_total"
    }


def run_id(number: int) -> str:
    """Returns the id of an execution."""
    return f"00000000-0000-4000-8000-{number:012}"
