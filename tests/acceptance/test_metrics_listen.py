"""Beats and workers that serve their metrics themselves: `pgbeat_metrics_listen`."""

from contextlib import suppress
from http.client import HTTPConnection

import psutil
import pytest
from celery import Celery

from pgbeat.config import Settings, postgres_url
from pgbeat.errors import ConfigError
from pgbeat.monitoring.metrics import exporter
from pgbeat.monitoring.metrics.prometheus import DatabaseCollector
from tests.support.databases import broker_url
from tests.support.processes import Process, Processes, free_port, until


@pytest.fixture
def port() -> int:
    return free_port()


def scraped(port: int, path: str = "/metrics") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionRefusedError:
        return 0, ""
    finally:
        connection.close()


def listening(worker: Process) -> list[set[int]]:
    """Returns the ports of each child of a worker; one with a task more is gone."""
    ports = []
    for child in psutil.Process(worker.pid).children():
        with suppress(psutil.NoSuchProcess):
            ports.append({each.laddr.port for each in child.net_connections("tcp")})
    return ports


def test_a_beat_serves_those_of_the_database(processes: Processes, port: int) -> None:
    processes.beat(PGBEAT_METRICS_LISTEN=f"127.0.0.1:{port}")
    until(lambda: "pgbeat_leader 1.0" in scraped(port)[1], 60)
    text = scraped(port)[1]
    assert "pgbeat_schedules{" in text
    assert "process_cpu_seconds_total " in text
    assert "pgbeat_worker_" not in text
    assert scraped(port, "/other")[0] == 404


def test_a_worker_serves_its_own(
    processes: Processes, app: Celery, database: str, port: int
) -> None:
    """From its main process: a child that holds the port would keep it from the next worker."""
    app.conf.broker_url = broker_url(database).replace("sqla+", "pgbeat+")
    env = {"PGBEAT_METRICS_LISTEN": f"127.0.0.1:{port}"}
    start = ("-P", "prefork", "-c", "2", "--max-tasks-per-child", "1")
    worker = processes.worker(*start, **env)
    until(lambda: scraped(port)[0] == 200, 60)
    for _ in range(3):
        app.send_task("tests.add")
    until(lambda: 'pgbeat_worker_tasks_total{task="tests.add"} 3.0' in scraped(port)[1], 60)
    until(lambda: "pgbeat_worker_running 0.0" in scraped(port)[1], 60)
    assert "pgbeat_leader" not in scraped(port)[1]
    until(lambda: len(listening(worker)) == 2, 60)
    assert port not in set().union(*listening(worker))
    second = processes.worker(**env)
    second.says(f"No metrics at 127.0.0.1:{port}: Address already in use", 60)
    second.says(" ready.")


def test_a_database_that_is_away(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, not at each scrape."""
    url = postgres_url("postgresql://nobody@127.0.0.1:1/none")
    server = exporter.serve(f"127.0.0.1:{port}", DatabaseCollector(Settings(url=url), False))
    assert server is not None
    try:
        assert [scraped(port), scraped(port)] == [(503, "")] * 2
    finally:
        server.shutdown()
        server.server_close()
    assert caplog.text.count("Scrapes fail: ") == 1


@pytest.mark.parametrize("listen", ["9464", "host:", "host:x", "[::1:9464"])
def test_a_place_that_is_none(listen: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        Settings.load({"pgbeat_url": "postgresql://db/x", "pgbeat_metrics_listen": listen}, {})
