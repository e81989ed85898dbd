"""Sentry's check-ins, as they arrive at a real HTTP server from a real beat and a real worker."""

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.command_line import Sql
from tests.support.processes import until
from tests.support.rows import make_lane, make_schedule
from tests.support.transport_workers import TransportWorkers
from tests.support.webhook_receiver import Receiver

APP = """
import os
import sentry_sdk
from celery import Celery, signals
from sentry_sdk.integrations.celery import CeleryIntegration
from pgbeat import Skip

def init(**kwargs):
    sentry_sdk.init(
        os.environ["SENTRY"], default_integrations=False, environment="tests",
        integrations=[CeleryIntegration(
            monitor_beat_tasks=True, exclude_beat_tasks=["left out.*"])],
    )

{setup}
app = Celery("watched", broker=os.environ["TESTS_BROKER"])
app.conf.update(task_ignore_result=True, result_expires=None, timezone="Europe/Berlin",
                pgbeat_loop_interval=1)

@app.task(name="watched.work")
def work():
    return 1

@app.task(name="watched.fail")
def fail():
    raise ValueError("no such thing")

@app.task(name="watched.skip")
def skip():
    raise Skip("nothing to do")

@app.task(name="watched.second", bind=True)
def second(self):
    if self.request.pgbeat_job_attempt is None:
        raise ValueError("the first attempt")
"""
#: How apps set Sentry up: where the module is loaded, or in Celery's signals.
AT_IMPORT, IN_SIGNALS = (
    "init()",
    "signals.beat_init.connect(init)\nsignals.celeryd_init.connect(init)",
)


class Sentry:
    """Check-ins that a receiver got, in order."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.dsn = f"http://key@127.0.0.1:{receiver.port}/1"

    @property
    def check_ins(self) -> list[dict[str, Any]]:
        found = []
        for request in list(self._receiver.received):
            body = request.body
            if request.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            lines = body.split(b"\n")[1:]
            found += [
                json.loads(item)
                for head, item in zip(lines[::2], lines[1::2], strict=False)
                if json.loads(head)["type"] == "check_in"
            ]
        return found

    def statuses(self) -> dict[str, set[str]]:
        """Returns the statuses of each monitor."""
        found = defaultdict(set)
        for each in self.check_ins:
            found[each["monitor_slug"]].add(each["status"])
        return dict(found)


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    receiver = Receiver()
    yield Sentry(receiver)
    receiver.close()


@pytest.fixture
def transport_workers(
    transport_workers: TransportWorkers, tmp_path: Path, sentry: Sentry
) -> TransportWorkers:
    transport_workers.env |= {"PYTHONPATH": f"{tmp_path}", "SENTRY": sentry.dsn}
    return transport_workers


def add(sql: Sql, name: str, task: str = "watched.work", **columns: Any) -> None:
    """Adds a schedule that is due now, when its row is added."""
    make_schedule(sql, name, task=task, next_run="now", **columns)


@pytest.mark.parametrize("setup", [AT_IMPORT, IN_SIGNALS], ids=["import", "signals"])
@pytest.mark.slow
def test_a_worker_closes_the_check_in_that_beat_opened(
    setup: str, transport_workers: TransportWorkers, sentry: Sentry, sql: Sql
) -> None:
    (transport_workers.folder / "watched_app.py").write_text(APP.format(setup=setup))
    add(sql, "hourly")
    add(sql, "fails", "watched.fail", job_policy='{"max_attempts": 1}')
    add(sql, "skips", "watched.skip")
    add(sql, "left out 1")
    transport_workers.beat("--schedule", str(transport_workers.folder / "s"), app="watched_app")
    transport_workers.worker("--without-mingle", app="watched_app")
    until(lambda: len(sentry.statuses()) == 3 and all(map(len2, sentry.statuses().values())))
    assert sentry.statuses() == {
        "hourly": {"in_progress", "ok"},
        "fails": {"in_progress", "error"},
        "skips": {"in_progress", "ok"},
    }
    jobs: dict[str, UUID] = dict(sql("SELECT schedule, id FROM pgbeat.jobs"))
    assert set(jobs) == {"hourly", "fails", "skips", "left out 1"}
    for each in sentry.check_ins:
        assert UUID(each["check_in_id"]) == jobs[each["monitor_slug"]]
        assert each["monitor_config"] == {
            "schedule": {"type": "interval", "value": 1, "unit": "hour"},
            "timezone": "Europe/Berlin",
        }


def len2(found: set[str]) -> bool:
    return len(found) == 2


@pytest.mark.slow
def test_jobs_of_lanes_and_retries_close_the_same_check_in(
    transport_workers: TransportWorkers, sentry: Sentry, sql: Sql
) -> None:
    (transport_workers.folder / "watched_app.py").write_text(APP.format(setup=AT_IMPORT))
    make_lane(sql, "narrow")
    add(sql, "in a lane", job_policy='{"lane": "narrow"}')
    add(sql, "retried", "watched.second", job_policy='{"max_attempts": 2, "retry_base": 0}')
    transport_workers.beat("--schedule", str(transport_workers.folder / "s"), app="watched_app")
    transport_workers.worker("--without-mingle", app="watched_app")
    until(lambda: "ok" in sentry.statuses().get("in a lane", ()))
    until(lambda: "ok" in sentry.statuses().get("retried", ()))
    assert sentry.statuses()["retried"] == {"in_progress", "error", "ok"}
    assert len({each["check_in_id"] for each in sentry.check_ins}) == 2


def test_monitors_know_what_sentry_can_express(
    transport_workers: TransportWorkers, sentry: Sentry, sql: Sql
) -> None:
    (transport_workers.folder / "watched_app.py").write_text(APP.format(setup=AT_IMPORT))
    zone = "America/New_York"
    add(sql, "cron", cron="*/5 1-3 * * mon", timezone=zone, jitter="90 seconds")
    sql(f"UPDATE pgbeat.schedules SET next_run = '2026-01-05 01:00 {zone}'")  # a Monday
    add(sql, "days", every="2 days")
    add(sql, "no condition", condition_sql="SELECT false")
    add(sql, "broken", condition_sql="SELECT 1 / 0")
    add(sql, "too short", every="30 seconds")
    add(sql, "last day", cron="0 9 L * *")
    add(sql, "by rule", rrule="FREQ=DAILY")
    transport_workers.beat("--schedule", str(transport_workers.folder / "s"), app="watched_app")
    until(lambda: len(sentry.statuses()) == 4)
    until(lambda: sql("SELECT count(*) FROM pgbeat.ticks")[0][0] >= 7)
    assert sentry.statuses() == {
        "cron": {"in_progress"},
        "days": {"in_progress"},
        "no condition": {"ok"},
        "broken": {"error"},
    }
    configs = {each["monitor_slug"]: each["monitor_config"] for each in sentry.check_ins}
    assert configs["cron"] == {
        "schedule": {"type": "crontab", "value": "*/5 1-3 * * mon"},
        "timezone": zone,
        "checkin_margin": 3,
    }
    assert configs["days"]["schedule"] == {"type": "interval", "value": 2, "unit": "day"}


@pytest.mark.slow
def test_a_launch_by_hand_is_no_check_in(
    transport_workers: TransportWorkers, sentry: Sentry, sql: Sql
) -> None:
    (transport_workers.folder / "watched_app.py").write_text(APP.format(setup=AT_IMPORT))
    add(sql, "hourly")
    sql("UPDATE pgbeat.schedules SET next_run = now() + interval '1 hour'")
    command = [sys.executable, "-m", "celery", "-A", "watched_app", "pgbeat", "trigger", "hourly"]
    assert transport_workers.run(*command).wait(60) == 0
    transport_workers.worker("--without-mingle", app="watched_app")
    until(lambda: sql("SELECT count(*) FROM pgbeat.jobs WHERE state = 'completed'") == [(1,)])
    assert sentry.check_ins == []


@pytest.mark.slow
def test_a_receiver_that_hangs_delays_no_launch(
    sentry: Sentry, transport_workers: TransportWorkers, sql: Sql
) -> None:
    (transport_workers.folder / "watched_app.py").write_text(APP.format(setup=AT_IMPORT))
    receiver = sentry._receiver
    receiver.by_path["/api/1/envelope/"] = receiver.hang
    for number in range(150):  # more than Sentry keeps in its queue
        add(sql, f"s {number}")
    transport_workers.beat("--schedule", str(transport_workers.folder / "s"), app="watched_app")
    until(lambda: sql("SELECT count(*) FROM pgbeat.jobs") == [(150,)], 20)
    until(lambda: receiver.received)
    assert len(receiver.received) == 1 and not receiver.released.is_set()


def test_without_it_nothing_is_loaded() -> None:
    code = (
        "import sys, pgbeat.beat.scheduler, pgbeat.worker, pgbeat.wiring; "
        "pgbeat.wiring.connect_integrations(); "
        "sys.exit(any(name.startswith('sentry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
