"""Works for hours, and tells whether anything grows: `python benchmarks/soak.py --help`.

A beat, two prefork workers and a publisher of plain tasks and jobs at a steady rate; schedules that
are due each second. Every ten seconds memory, connections, sizes of tables and lateness are noted.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import psutil
from beats.machine import Stolen, description
from beats.processes import ProcessError, wait_until
from beats.report import number
from beats.spec import TASK
from brokers.contenders import Pgbeat
from brokers.executions import Executions
from brokers.processes import Workers
from charts.lines import Chart, picture
from runner import Run

#: Seconds between two samples.
STEP = 10.0
#: Of the rate, the share of jobs that are submitted, and of schedules that are due each second.
JOBS, SCHEDULES = 1 / 15, 1 / 6

_SCHEDULES = """
    INSERT INTO pgbeat.schedules (name, task, every)
    SELECT 'soak-' || n, %s, '1 second' FROM generate_series(1, %s) AS n
"""
#: What each table takes with its periods, and its indexes; and its rows, as Postgres counts them.
_SIZES = r"""
    SELECT regexp_replace(relname, '_(\d+|kept|to_come)$', ''), sum(pg_table_size(relid))::bigint,
           sum(pg_indexes_size(relid))::bigint, sum(n_live_tup)::bigint
      FROM pg_stat_user_tables
     WHERE schemaname = 'pgbeat' OR relname ~ '^kombu_'
     GROUP BY 1
"""
_LATE = """
    SELECT extract(epoch FROM percentile_cont(0.99)
               WITHIN GROUP (ORDER BY decided_at - due_at))::float8 * 1000,
           count(*), coalesce(sum(missed), 0)::bigint, max(decided_at)
      FROM pgbeat.ticks WHERE decided_at > %s
"""
_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND backend_type = 'client backend'
"""
#: Tables that keep what has been, for longer than a soak lasts: they grow with their rows.
HISTORY = {"ticks", "ended_jobs", "ended_executions", "rollups", "error_rollups"}


class Limit(NamedTuple):
    """How much more a figure may be in the second half than in the second quarter."""

    times: float
    plus: float


#: By the first part of a figure's name.
LIMITS = {
    "memory": Limit(1.05, 2.0),
    "connections": Limit(1.0, 2.0),
    "size": Limit(1.25, 1.0),
    "bytes": Limit(1.1, 20.0),
    "p99": Limit(1.5, 20.0),
}


class Soak:
    """Everything that is at work, and what was noted of it."""

    def __init__(self, contender: Pgbeat, crew: Workers, rate: int) -> None:
        self._contender, self._crew, self._rate = contender, crew, rate
        self._executions = Executions(contender.spec.executions)
        self._database = contender.connect()
        self._seen, self._last = 0, self._value("SELECT now()")
        self._processes: dict[str, psutil.Process] = {}
        #: Moments in minutes; figures by name, one for each moment.
        self.minutes: list[float] = []
        self.figures: dict[str, list[float | None]] = {}

    def start(self, seconds: float) -> None:
        """Starts all processes, and waits for the first tasks."""
        spec, crew = self._contender.spec, self._crew
        started = {name: crew.worker(spec, "prefork", 2, name) for name in ("worker 1", "worker 2")}
        beat = ("-A", "brokers.app", "beat", "-S", "pgbeat.Scheduler", "-l", "ERROR", "--pidfile=")
        started["beat"] = crew.celery(spec.within("beat"), *beat)
        schedules = round(self._rate * SCHEDULES)
        sent = self._rate - schedules
        count = round(sent * (seconds + 600))
        each = round(sent / (self._rate * JOBS))
        started["publisher"] = crew.child(spec.within("publisher"), "paced", count, sent, each)
        self._processes = {name: psutil.Process(each.pid) for name, each in started.items()}
        if not wait_until(lambda: self._executions.count() > 100, 60.0):
            raise ProcessError("no task has run within a minute")
        self._database.execute(_SCHEDULES, (TASK, schedules))

    def sample(self, minute: float) -> dict[str, float | None]:
        """Notes all figures of a moment."""
        figures = {**self._memory(), **self._sizes(), **self._lateness()}
        figures["connections"] = self._value(_SESSIONS)
        for name, value in figures.items():
            self.figures.setdefault(name, [None] * len(self.minutes)).append(value)
        self.minutes.append(minute)
        return figures

    def _memory(self) -> dict[str, float | None]:
        """Megabytes that processes have for themselves, with those of their pools."""
        figures: dict[str, float | None] = {}
        for name, process in self._processes.items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise ProcessError(f"the {name} has ended")
            figures[f"memory {name}"] = process.memory_info().rss / 1e6
            if children := process.children():
                figures[f"memory {name}'s pool"] = _resident(children)
        if self._contender.spec.server is not None:
            server = psutil.Process(self._contender.spec.server).children()
            figures["memory server's sessions"] = _private(server)
        return figures

    def _sizes(self) -> dict[str, float | None]:
        """Megabytes of what changes all the time; of history, bytes of a row."""
        figures: dict[str, float | None] = {}
        for table, own, indexes, rows in self._database.execute(_SIZES):
            if table not in HISTORY:
                figures[f"size {table}"] = own / 1e6
                figures[f"size {table}'s indexes"] = indexes / 1e6
            elif rows > 10_000:
                figures[f"bytes a row of {table}"] = own / rows
                figures[f"bytes a row of {table}'s indexes"] = indexes / rows
        return figures

    def _lateness(self) -> dict[str, float | None]:
        row = self._database.execute(_LATE, (self._last,)).fetchone()
        late, ticks, missed, last = row or (None, 0, 0, None)
        self._last = last or self._last
        ran = self._executions.read(self._seen)
        self._seen += len(ran)
        waits = [1000 * (each.at - each.sent) for each in ran if each.sent]
        return {
            "p99 of schedules, ms": late,
            "p99 of tasks in the queue, ms": quantiles(waits, n=100)[98]
            if len(waits) > 1
            else None,
            "rate of ticks": ticks / STEP,
            "rate of tasks": len(ran) / STEP,
            "missed due times": float(missed),
        }

    def _value(self, query: str) -> Any:
        row = self._database.execute(query).fetchone()
        return row[0] if row else None


def _resident(processes: Sequence[psutil.Process]) -> float:
    return _total(processes, lambda process: process.memory_info().rss)


def _private(processes: Sequence[psutil.Process]) -> float:
    """Megabytes without what they share: the server's buffers fill up in time."""
    return _total(processes, lambda process: process.memory_full_info().uss)


def _total(processes: Sequence[psutil.Process], size: Callable[[psutil.Process], int]) -> float:
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += size(process)
    return total / 1e6


def verdicts(figures: Mapping[str, Sequence[float | None]]) -> dict[str, str]:
    """Returns why figures are not flat, by name: medians of the second half and quarter."""
    found = {}
    for name, values in figures.items():
        limit = LIMITS.get(name.split()[0])
        quarter = len(values) // 4
        before = [v for v in values[quarter : 2 * quarter] if v is not None]
        after = [v for v in values[2 * quarter :] if v is not None]
        if limit is None or not before or not after:
            continue
        then, now = median(before), median(after)
        if now > then * limit.times + limit.plus:
            found[name] = f"{name}: {number(then)}, then {number(now)}"
    return found


def charts(figures: Mapping[str, Sequence[float | None]], most: int = 6) -> list[Chart]:
    """Returns the panels; of each kind the lines that end highest."""
    kinds = {
        "memory": ("Memory, MB", "of each process, and of all in a pool"),
        "connections": ("Connections", "sessions in the database"),
        "size": ("Sizes, MB", "of tables that change all the time, and of their indexes"),
        "bytes": ("Bytes of a row", "of tables that keep history, and of their indexes"),
        "p99": ("Lateness and latency, ms", "the 99th percentile of each ten seconds"),
        "rate": ("A second", "due times decided, tasks run"),
    }
    found = []
    for kind, (title, note) in kinds.items():
        lines = {name: values for name, values in figures.items() if name.split()[0] == kind}
        order = sorted(lines, key=lambda name: -max(v or 0.0 for v in lines[name]))
        if order:
            shown = {_label(name, kind): lines[name] for name in order[:most]}
            found.append(Chart(title, note, shown))
    return found


def _label(name: str, kind: str) -> str:
    return name.removeprefix(f"{kind} ").removeprefix("a row of ").removeprefix("of ")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--rate", type=int, default=300, help="tasks a second; 300")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="where to draw them")
    return parser.parse_args(arguments)


def main() -> int:
    """Soaks; 1 if something is not flat, 130 after Ctrl-C, with what was noted until then."""
    options, code = parse(sys.argv[1:]), 0
    with Run(options) as run:
        postgres = run.stack.enter_context(run.postgres())
        run.environment = description(["pgbeat", "celery"], postgres.settings)
        crew = run.stack.enter_context(Workers())
        contender = Pgbeat(postgres, run.folder)
        contender.reset()
        contender.spec = replace(contender.spec, settings={"pgbeat_url": contender.url})
        soak = Soak(contender, crew, options.rate)
        stolen = Stolen()
        try:
            soak.start(60 * options.minutes)
            begun = time.monotonic()
            for number_ in range(1, round(60 * options.minutes / STEP) + 1):
                time.sleep(max(0.0, begun + number_ * STEP - time.monotonic()))
                figures = soak.sample((time.monotonic() - begun) / 60)
                if number_ % 6 == 0:
                    run.say(_brief(soak.minutes[-1], figures))
        finally:
            words = verdicts(soak.figures)
            run.results = {"minutes": soak.minutes, "figures": soak.figures, "not_flat": words}
            run.environment["stolen_percent"] = stolen.percent()
            if options.svg and soak.minutes:
                drawn = picture(
                    f"{options.rate} tasks a second",
                    soak.minutes,
                    charts(soak.figures),
                    _footer(run),
                )
                options.svg.write_text(drawn)
        for line in words.values():
            run.say(f"NOT FLAT {line}")
        run.say(f"{len(words)} of {len(soak.figures)} figures are not flat")
        code = 1 if words else 0
    return run.finish() or code


def _brief(minute: float, figures: Mapping[str, float | None]) -> str:
    shown = (
        "rate of tasks",
        "rate of ticks",
        "p99 of schedules, ms",
        "p99 of tasks in the queue, ms",
    )
    words = [
        f"{name} {number(value)}" for name in shown if (value := figures.get(name)) is not None
    ]
    memory = sum(v for name, v in figures.items() if name.startswith("memory") and v is not None)
    return f"{minute:.0f} min: {', '.join(words)}, {memory:.0f} MB in all"


def _footer(run: Run) -> str:
    environment = json.loads(json.dumps(run.environment))
    server = environment["postgres"].get("server_version", "?").split()[0]
    return (
        f"{environment['date'][:10]}, {environment['cpus']} cores, Postgres {server}, Python "
        f"{environment['python']}, {environment['stolen_percent'] or 0:.1f} % of the CPU stolen"
    )


if __name__ == "__main__":
    sys.exit(main())
