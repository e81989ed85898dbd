"""Checks that pgbeat's adapter for the neutral harness keeps the harness's contract."""

import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.processes import ROOT, until

FOLDER = ROOT / "benchmarks" / "harness" / "pgbeat-bench"
#: What the harness wants in each sample, and what else it sums up.
METRICS = {
    *("claim_p50_ms", "claim_p95_ms", "claim_p99_ms"),
    *("enqueue_rate", "completion_rate", "queue_depth"),
    *("end_to_end_p50_ms", "end_to_end_p95_ms", "end_to_end_p99_ms"),
    *("running_depth", "producer_target_rate"),
}


class Adapter:
    """The adapter as the harness runs it: the environment, lines of stdin, records of stdout."""

    def __init__(self, dsn: str, log: Path, **env: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PGBEAT_")}
        given = {
            "DATABASE_URL": dsn,
            "SCENARIO": "long_horizon",
            "PRODUCER_PACING": "harness",
            "WORKER_COUNT": "3",
            "SAMPLE_EVERY_S": "1",
            "BENCH_INSTANCE_ID": "0",
        }
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "main.py"],
                cwd=FOLDER,
                env={**inherited, **given, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.records: list[dict[str, Any]] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.records.append(json.loads(line))

    def descriptor(self) -> dict[str, Any]:
        """Waits for the first record, after which the harness goes on."""

        def first() -> dict[str, Any] | None:
            assert self.process.poll() is None, self._log.read_text()
            return self.records[0] if self.records else None

        return until(first, 60)

    def enqueue(self, *counts: int) -> None:
        """Asks for jobs, as the harness's pacer does."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"ENQUEUE {count}\n" for count in counts))
        self.process.stdin.flush()

    def total(self, metric: str) -> float:
        """Returns how many jobs the samples of a rate add up to."""
        samples = [r for r in list(self.records) if r.get("metric") == metric]
        return float(sum(r["value"] * r["window_s"] for r in samples))

    def kill(self) -> None:
        """Kills this one process, as the harness does."""
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """Stops it as the harness does, and returns its exit status."""
        self.process.terminate()
        return self._end()

    def _end(self) -> int:
        status = self.process.wait(30)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return status


Start = Callable[..., Adapter]


@pytest.fixture
def start(empty_database: str, tmp_path: Path) -> Iterator[Start]:
    """Starts an adapter on an empty database, as the harness makes it."""
    started: list[Adapter] = []

    def start(**env: str) -> Adapter:
        started.append(Adapter(empty_database, tmp_path / "log", **env))
        return started[-1]

    yield start
    for adapter in started:
        if adapter.process.returncode is None:
            adapter.kill()


def states(dsn: str) -> Counter[str]:
    """Returns how many jobs are in each state."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT state, count(*) FROM pgbeat.jobs GROUP BY 1").fetchall()
    return Counter(dict(rows))


def test_the_adapter_keeps_the_contract(start: Start, empty_database: str) -> None:
    adapter = start()
    descriptor = adapter.descriptor()
    manifest = json.loads((FOLDER / "adapter.json").read_text())
    assert descriptor["kind"] == "descriptor"
    for key in ("system", "event_tables", "event_indexes", "extensions", "db_name"):
        assert descriptor[key] == manifest[key], key
    with psycopg.connect(empty_database) as connection:
        for name in (*manifest["event_tables"], *manifest["event_indexes"]):
            assert connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,), name
    adapter.enqueue(200, 1)  # one by one and in bulk, and more than a batch
    until(lambda: adapter.total("completion_rate") > 200.5, 60, "201 jobs told as completed")
    assert adapter.total("completion_rate") == pytest.approx(201)
    assert adapter.total("enqueue_rate") == pytest.approx(201)
    until(lambda: states(empty_database) == {"completed": 201}, 10)
    with psycopg.connect(empty_database) as connection:
        late = connection.execute("SELECT DISTINCT acks_late, state FROM pgbeat.executions")
        assert late.fetchall() == [(True, "completed")]
    samples = [record for record in list(adapter.records) if record["kind"] == "adapter"]
    assert {sample["metric"] for sample in samples} == METRICS
    assert {(s["system"], s["instance_id"], s["subject_kind"]) for s in samples} == {
        ("pgbeat", 0, "adapter")
    }
    latency = {s["metric"]: s["value"] for s in samples}
    assert 0 < latency["claim_p50_ms"] <= latency["claim_p95_ms"] <= latency["claim_p99_ms"]
    assert latency["end_to_end_p50_ms"] > 1  # the job's work
    assert adapter.stop() == 0


def test_a_killed_adapter_takes_its_workers_with_it(start: Start, empty_database: str) -> None:
    killed = start(JOB_WORK_MS="5000")
    killed.descriptor()
    killed.enqueue(5)  # three run, two wait
    until(lambda: states(empty_database)["running"], 60, "a job that runs")
    family = psutil.Process(killed.process.pid).children(recursive=True)
    killed.kill()
    _, alive = psutil.wait_procs(family, 10)
    assert not alive
    assert states(empty_database)["completed"] < 5
    after = start()
    after.descriptor()
    until(lambda: states(empty_database) == {"completed": 5}, 60)
    assert after.stop() == 0


def test_the_adapter_fills_a_queue_to_the_target(start: Start, empty_database: str) -> None:
    adapter = start(PRODUCER_MODE="depth-target", TARGET_DEPTH="40", JOB_WORK_MS="20")
    adapter.descriptor()
    until(lambda: adapter.total("completion_rate") > 100, 60, "more jobs than the target")
    depths = [r["value"] for r in list(adapter.records) if r.get("metric") == "queue_depth"]
    assert max(depths) <= 40
    assert adapter.stop() == 0


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The adapter's module for what is the same for every system."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("contract")
    del sys.modules["contract"]


def test_percentiles_have_three_significant_figures(contract: Any) -> None:
    histogram = contract.Histogram()
    assert histogram.percentile(50) == 0
    for ms in range(1, 1001):
        histogram.add(ms)
    found = [histogram.percentile(share) for share in (50, 95, 99)]
    assert found == pytest.approx([500, 950, 990], rel=0.001)


def test_a_rate_counts_the_time_that_went_by(contract: Any, tmp_path: Path) -> None:
    control = tmp_path / "rate"
    control.write_text("2000.0")  # as the harness writes it for a phase of high load
    environment = {"PRODUCER_RATE": "10", "PRODUCER_RATE_CONTROL_FILE": str(control)}
    config = contract.Config.of({**environment, "PRODUCER_BATCH_MAX": "50"})
    began = time.monotonic()
    jobs = 0
    for count in contract.batches(config, lambda: 0, Event()):
        assert count <= 50
        jobs += count
        if jobs >= 400:
            break
    assert time.monotonic() - began > 0.199


def test_another_scenario_is_refused(contract: Any) -> None:
    with pytest.raises(ValueError, match="long_horizon"):
        contract.Config.of({"SCENARIO": "worker_only"})
