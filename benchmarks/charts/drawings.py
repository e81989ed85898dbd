"""The charts: which figures of which parts are beside each other."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from beats.report import figure, number

from charts.svg import Bar, Panel, picture

MORE, LESS = "a longer bar is better", "a shorter bar is better"


#: What contenders are called in pictures, by benchmark.
LABELS = {
    "beat": {"PersistentScheduler": "Celery's own"},
    "transport": {
        "sqla": "kombu's SQLAlchemy",
        "pgmq": "kombu's PGMQ",
        "redis": "Redis",
        "rabbitmq": "RabbitMQ",
    },
    "results": {
        "pgbeat_late": "pgbeat, acks_late",
        "pgbeat_finish": "pgbeat, finish",
        "redis": "Redis, pgbeat's broker",
        "redis_only": "Redis alone",
        "db": "Celery's SQLAlchemy",
        "pgmq": "the same, kombu's PGMQ",
        "rpc": "RabbitMQ, rpc",
    },
}


class Compared(NamedTuple):
    """A panel of contenders beside each other, from the last case of a measure."""

    title: str
    note: str
    part: str
    key: str
    #: A regular expression for the title of the case; the last one that fits.
    case: str = ""

    def panel(self, document: Mapping[str, Any]) -> Panel | None:
        """Returns the panel; `None` if its part was not run."""
        cases = document.get(self.part, {}).get("results", {}).get(self.part.partition(".")[2], {})
        found = [by_name for title, by_name in cases.items() if re.search(self.case, title)]
        if not found:
            return None
        bars = []
        for name, figures in found[-1].items():
            value = figure(figures, self.key)
            label = LABELS[self.part.partition(".")[0]].get(name, name)
            is_own = name.startswith("pgbeat")
            if isinstance(value, str):
                bars.append(Bar(label, None, "" if value == "-" else value, is_own))
            else:
                bars.append(Bar(label, value, number(value), is_own))
        return Panel(self.title, self.note, [bar for bar in bars if bar.text])


class Alone(NamedTuple):
    """A panel of pgbeat's own cases."""

    title: str
    note: str
    part: str
    key: str
    #: Names of the bars, by case.
    cases: Mapping[str, str]

    def panel(self, document: Mapping[str, Any]) -> Panel | None:
        """Returns the panel; `None` if its part was not run."""
        results = document.get(self.part, {}).get("results", {})
        bars = []
        for case, name in self.cases.items():
            found = results.get(case, [])
            rounds = found if isinstance(found, list) else [found]
            values = [each[self.key] for each in rounds if self.key in each]
            if values:
                bars.append(Bar(name, median(values), number(median(values)), True))
        return Panel(self.title, self.note, bars) if bars else None


CHARTS: dict[str, tuple[str, Sequence[Compared | Alone]]] = {
    "schedulers": (
        "Schedulers",
        [
            Compared("Launches a second", f"all are due at once; {MORE}", "beat.launch", "per_s",
                     "schedules$"),
            Compared("From a change of a schedule to its message, ms",
                     f"median; {LESS}", "beat.change", "median_ms"),
            Compared("1,000 schedules every second: how late, ms",
                     f"median; {LESS}", "beat.late", "p50_ms"),
            Compared("Nothing of 100,000 is due: a pass, ms", LESS, "beat.idle", "idle_ms",
                     "^100 000"),
            Compared("CPU of beat for a launch, µs", LESS, "beat.launch", "beat_us",
                     "schedules$"),
        ],
    ),
    "brokers": (
        "Brokers",
        [
            Compared("No-ops a second, a prefork worker with two processes",
                     MORE, "transport.drain", "per_s", "prefork"),
            Compared("No-ops a second, four solo workers", MORE, "transport.compete", "per_s"),
            Compared("Published a second, one by one", MORE, "transport.publish", "per_s"),
            Compared("Published a second, on disk when the call returns",
                     MORE, "transport.publish", "stored.per_s"),
            Compared("From apply_async to the task's start, ms", f"95th percentile; {LESS}",
                     "transport.latency", "p95_ms"),
            Compared("CPU of the worker for a task, µs", LESS, "transport.drain", "worker_us",
                     "prefork"),
            Compared("CPU of the server for a task, µs", LESS, "transport.drain", "server_us",
                     "prefork"),
        ],
    ),
    "results": (
        "Result backends",
        [
            Compared("delay().get(), ms", f"median; {LESS}", "results.latency", "p50_ms"),
            Compared("No-ops with results a second", MORE, "results.drain", "per_s"),
            Compared("A group until get() returns, s", LESS, "results.group", "median_s"),
            Compared("A chord until its result is there, s", LESS, "results.chord", "median_s"),
            Compared("One process waits for many results, s", LESS, "results.waits", "seconds"),
        ],
    ),
    "jobs": (
        "Jobs and webhooks",
        [
            Alone("Submitted a second, one process", MORE, "jobs", "per_s", {
                "apply_async": "apply_async: no job",
                "pgbeat.submit, a transaction each": "submit, one by one",
                "pgbeat.submit, all in one transaction": "submit, one transaction",
            }),
            Alone("No-ops of jobs a second, by the limit of their lane", MORE, "jobs", "per_s", {
                "lane, without a limit": "no limit", "lane, limit 100": "100",
                "lane, limit 2": "2", "lane, limit 1": "1",
            }),
            Alone("Webhook deliveries a second", MORE, "webhooks", "per_s", {
                "32 receivers that answer at once": "32 that answer at once",
                "32 receivers that answer in 20 ms": "32 that take 20 ms",
                "1 receiver that answers in 20 ms": "1 that takes 20 ms",
            }),
        ],
    ),
}  # fmt: skip


def draw(document: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """Draws every chart that there are figures for, and yields the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (heading, specs) in CHARTS.items():
        panels = [panel for spec in specs if (panel := spec.panel(document)) is not None]
        if panels:
            parts = {spec.part for spec in specs} & document.keys()
            path = folder / f"{name}.svg"
            path.write_text(picture(heading, panels, _footer([document[part] for part in parts])))
            yield path


def _footer(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures depend on, and how far they can be trusted."""
    newest = max((part["environment"] for part in parts), key=lambda each: str(each["date"]))
    packages = newest["packages"]
    server = newest["postgres"].get("server_version", "?").split()[0]
    lines = [
        f"{str(newest['date'])[:10]}, {newest['cpus']} cores, Postgres {server}, "
        f"Python {newest['python']}, Celery {packages.get('celery', '?')}"
    ]
    if any(part["quick"] for part in parts):
        lines.append("Small sizes: a trial run, not the figures of record.")
    if not all(part["quiet"] for part in parts):
        lines.append("The machine did other things meanwhile.")
    return lines
