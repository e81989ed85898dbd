"""The fixtures for pytest-celery, with a fake Docker engine in front of the tests' Postgres."""

import os
import re
import select
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from psycopg.conninfo import conninfo_to_dict
from pytest_celery import CeleryBackendCluster, CeleryBrokerCluster, CeleryTestSetup
from pytest_docker_tools.wrappers import container as wrapper
from sqlalchemy.engine import make_url

from pgbeat.results.backend import ResultBackend
from pgbeat.testing.pytest_celery import *  # noqa: F403 - a plugin's fixtures, as pytest wants them
from pgbeat.testing.pytest_celery import PostgresContainer, PostgresTestBackend, PostgresTestBroker
from tests.acceptance.smoke.worker import current_app_kept
from tests.support.processes import ROOT, shell

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


class Port(ThreadingTCPServer):
    """Forwards a port of the host to the tests' Postgres."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, dsn: str) -> None:
        super().__init__(("127.0.0.1", 0), Relay)
        self.dsn = dsn
        self.number: int = self.server_address[1]
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Relay(BaseRequestHandler):
    """Carries bytes between a client and Postgres."""

    server: Port

    def handle(self) -> None:
        with self.upstream() as postgres:
            sides = {self.request: postgres, postgres: self.request}
            while True:
                for side in select.select(list(sides), [], [])[0]:
                    data = side.recv(65536)
                    if not data:
                        return
                    sides[side].sendall(data)

    def upstream(self) -> socket.socket:
        place = conninfo_to_dict(self.server.dsn)
        host, port = str(place.get("host") or "localhost"), int(place.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        postgres = socket.socket(socket.AF_UNIX)
        postgres.connect(f"{host}/.s.PGSQL.{port}")
        return postgres


class Container:
    """A fake container: for Postgres, a port to the real one; for a worker, its log."""

    def __init__(self, options: dict[str, Any], dsn: str) -> None:
        self.options, self.dsn = options, dsn
        self.id = uuid.uuid4().hex
        self.name = f"container-{self.id[:12]}"
        self.status = "created"
        self.attrs: dict[str, Any] = {}
        self.port: Port | None = None
        self.start()

    def start(self) -> None:
        bound = {}
        if self.options.get("ports"):
            self.port = Port(self.dsn)
            bound = {"5432/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.port.number)}]}
        env = self.options["environment"]
        self.attrs = {
            "Config": {
                "Hostname": self.id[:12],
                "Env": [f"{name}={value}" for name, value in env.items()],
            },
            "HostConfig": {"PortBindings": dict.fromkeys(bound)},
            "NetworkSettings": {
                "Networks": {self.options["network"]: {"IPAddress": "127.0.0.1"}},
                "Ports": bound,
            },
        }
        self.status = "running"

    def stop(self) -> None:
        if self.port is not None:
            self.port.close()
            self.port = None
        self.status = "exited"

    def restart(self, timeout: int) -> None:
        self.stop()
        self.start()

    def kill(self, signal: str) -> None:
        self.stop()

    def reload(self) -> None:
        pass

    def logs(self) -> bytes:
        return b"celery@worker ready."

    def exec_run(self, command: str) -> tuple[int, bytes]:
        assert command == "cat /proc/net/tcp /proc/net/tcp6"
        return 0, b"sl local_address rem_address st\n0: 00000000:1538 00000000:0000 0A\n"

    def remove(self, force: bool) -> None:
        self.stop()


class Engine:
    """The part of Docker's client that pytest-celery uses."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.ran: list[Container] = []
        self.networks = self.volumes = SimpleNamespace(create=self.thing)
        self.images = SimpleNamespace(build=lambda **options: (SimpleNamespace(id="built"), []))
        self.containers = SimpleNamespace(run=self.run, create=self.thing)

    def thing(self, name: str = "", **options: Any) -> SimpleNamespace:
        """Returns a fake network, volume or container."""
        return SimpleNamespace(
            name=name, remove=lambda *args, **kwargs: None, put_archive=lambda path, data: None
        )

    def run(self, **options: Any) -> Container:
        self.ran.append(Container(options, self.dsn))
        return self.ran[-1]


@pytest.fixture
def docker_client(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    inside(monkeypatch, False)
    return Engine(empty_database)


def inside(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    """Returns whether the tests run in a container."""
    monkeypatch.setattr(wrapper, "tests_inside_container", lambda: answer)


@pytest.fixture
def celery_base_worker_image() -> SimpleNamespace:
    return SimpleNamespace(id="an-image")


@pytest.fixture(name="default_postgres_broker_env")
def postgres_env(empty_database: str) -> dict[str, str]:
    """Returns the environment for the tests' Postgres, which needs no password."""
    place = conninfo_to_dict(empty_database)
    return {
        "POSTGRES_USER": str(place.get("user") or "postgres"),
        "POSTGRES_PASSWORD": str(place.get("password") or "p@ss {word}/="),
        "POSTGRES_DB": str(place["dbname"]),
    }


@pytest.fixture(name="default_postgres_backend_env")
def same_env(default_postgres_broker_env: dict[str, str]) -> dict[str, str]:
    return default_postgres_broker_env


@pytest.fixture
def celery_broker_cluster(celery_postgres_broker: PostgresTestBroker) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(celery_postgres_broker)


@pytest.fixture
def celery_backend_cluster(celery_postgres_backend: PostgresTestBackend) -> CeleryBackendCluster:
    return CeleryBackendCluster(celery_postgres_backend)


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup], celery_setup_config: Any, celery_setup_name: str
) -> Iterator[Celery]:
    with current_app_kept():
        app = celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_name)
        yield app
        app.close()


def test_what_the_engine_is_asked_to_run(
    default_postgres_broker: PostgresContainer, docker_client: Engine
) -> None:
    [container] = docker_client.ran
    options = container.options
    assert options["image"] == "postgres:18-alpine"
    assert options["ports"] == {"5432/tcp": None}
    assert set(options["environment"]) == {"POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"}
    assert options["command"] == ["postgres", "-c", "fsync=off", "-c", "max_connections=200"]
    assert options["network"].startswith("pytest-")
    assert options["detach"] is True


def test_defaults() -> None:
    assert PostgresContainer.initial_env() == {
        "POSTGRES_PASSWORD": "pgbeat",
        "POSTGRES_DB": "celery",
    }
    assert PostgresContainer.version() == "18-alpine"


def test_urls(
    celery_postgres_broker: PostgresTestBroker, default_postgres_broker_env: dict[str, str]
) -> None:
    config = celery_postgres_broker.config()
    inner, outer = make_url(config["url"]), make_url(config["host_url"])
    container = celery_postgres_broker.container
    assert (inner.host, inner.port) == (container.id[:12], 5432)
    assert (outer.host, outer.port) == ("127.0.0.1", container.port)
    for url in (inner, outer):
        assert url.drivername == "pgbeat+postgresql"
        assert {
            "POSTGRES_USER": url.username,
            "POSTGRES_PASSWORD": url.password,
            "POSTGRES_DB": url.database,
        } == default_postgres_broker_env


def test_tests_inside_a_container(
    default_postgres_broker: PostgresContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers reach each other by their network addresses, without port mapping."""
    networks = default_postgres_broker.attrs["NetworkSettings"]["Networks"]
    next(iter(networks.values()))["IPAddress"] = "172.18.0.2"
    inside(monkeypatch, True)
    url = make_url(default_postgres_broker.host_url)
    assert (url.host, url.port) == ("172.18.0.2", 5432)


def test_a_node_on_another_database(celery_postgres_backend: PostgresTestBackend) -> None:
    config = celery_postgres_backend.config(vhost="other")
    assert config["vhost"] == "other"
    for key in ("url", "host_url"):
        url = make_url(config[key])
        assert (url.drivername, url.database) == ("pgbeat+postgresql", "other")


def test_the_image_has_its_own_defaults(docker_client: Engine) -> None:
    """The container names neither user nor database."""
    options = {"environment": {"POSTGRES_HOST_AUTH_METHOD": "trust"}, "network": "n"}
    container = PostgresContainer(Container(options, docker_client.dsn))
    assert container.url == f"postgresql://postgres@{container.id[:12]}:5432/postgres"


def test_ready_is_who_can_be_connected_to(default_postgres_broker: PostgresContainer) -> None:
    assert default_postgres_broker.ready()
    real = default_postgres_broker._container
    real.port.close()
    assert not default_postgres_broker.ready()


def test_the_broker_has_pgbeats_schema(celery_postgres_broker: PostgresTestBroker) -> None:
    with celery_postgres_broker.container.client as connection:
        assert connection.execute("SELECT count(*) FROM pgbeat.schedules").fetchone() == (0,)


def test_the_backend_has_pgbeats_schema(celery_postgres_backend: PostgresTestBackend) -> None:
    with celery_postgres_backend.container.client as connection:
        assert connection.execute("SELECT count(*) FROM pgbeat.results").fetchone() == (0,)


def test_a_setup(celery_setup: CeleryTestSetup, docker_client: Engine) -> None:
    assert celery_setup.ready()
    worker = docker_client.ran[-1].options
    assert worker["image"] == "an-image"
    assert worker["environment"]["CELERY_BROKER_URL"] == celery_setup.broker.config()["url"]
    assert worker["environment"]["CELERY_RESULT_BACKEND"] == celery_setup.backend.config()["url"]
    assert celery_setup.app.conf.broker_url == celery_setup.broker.config()["host_url"]
    assert celery_setup.app.conf.result_backend == celery_setup.backend.config()["host_url"]


def test_the_app_follows_restarted_containers(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready()
    app = celery_setup.app
    app.send_task("first")
    before = app.conf.broker_url, app.conf.result_backend
    celery_setup.broker.restart()
    celery_setup.backend.restart()
    assert app.conf.broker_url != before[0]
    assert app.conf.result_backend != before[1]
    app.send_task("second")
    assert isinstance(app.backend, ResultBackend)
    assert app.AsyncResult("unknown").state == "PENDING"
    with celery_setup.broker.container.client as connection:
        tasks = connection.execute(
            "SELECT payload::json -> 'headers' ->> 'task' FROM kombu_message ORDER BY id"
        ).fetchall()
    assert tasks == [("first",), ("second",)]


@pytest.mark.slow
def test_the_documented_setup_resolves(tmp_path: Path) -> None:
    """Pytest accepts the blocks of docs/how-to/testing.md with every warning an error."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/testing.md").read_text(), re.S)
    _, _, _, conftest, test, override = blocks
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/tasks.py").write_text(
        "from celery import shared_task\n\n\n@shared_task\ndef add(x, y):\n    return x + y\n"
    )
    (tmp_path / "conftest.py").write_text(f"{conftest}\n\n{override}")
    (tmp_path / "test_proj.py").write_text(test)
    assert_plan(tmp_path, "test_proj.py", "-W", "error")


def test_the_documented_scheduler_decides(tmp_path: Path, server: str) -> None:
    """The first test of docs/how-to/testing.md runs as in a team's project."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/testing.md").read_text(), re.S)
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/celery.py").write_text(
        "from celery import Celery\n\napp = Celery('proj', broker='redis://elsewhere')\n\n\n"
        "@app.task(name='proj.report')\ndef report():\n    return 1\n"
    )
    (tmp_path / "conftest.py").write_text(blocks[0])
    (tmp_path / "test_proj.py").write_text(blocks[1])
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PGBEAT_TEST_URL": server}
    done = shell(*PYTEST, "-W", "error", "test_proj.py", cwd=tmp_path, base=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


STEPS = """
from celery import Celery
import pgbeat

app = Celery("proj", broker="redis://elsewhere", backend="pgbeat+postgresql://elsewhere/x")

@app.task(acks_late=True, pgbeat={}, shared=False)
def ship(order):
    pgbeat.step("book", str, order)
    try:
        pgbeat.wait_for(f"paid/{order}", "3 days")
    except pgbeat.TimedOut:
        return "cancelled"
    return "shipped"
"""


def test_the_documented_steps_sleep_and_wait(tmp_path: Path, server: str) -> None:
    """Twice in one process: the app follows each test's database."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/testing.md").read_text(), re.S)
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/celery.py").write_text(STEPS)
    (tmp_path / "proj/tasks.py").write_text("from proj.celery import ship")
    (tmp_path / "conftest.py").write_text(blocks[0])
    again = "\n\ntest_again = test_an_order_is_paid_and_another_is_not"
    (tmp_path / "test_proj.py").write_text(blocks[2] + again)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PGBEAT_TEST_URL": server}
    done = shell(*PYTEST, "-W", "error", "test_proj.py", cwd=tmp_path, base=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_the_smoke_tests_resolve_on_docker() -> None:
    assert_plan(ROOT, "tests/acceptance/smoke", "-n", "0", PGBEAT_SMOKE="docker")


def assert_plan(folder: Path, *arguments: str, **env: str) -> None:
    """Pytest finds all fixtures, Postgres as broker and backend among them."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = shell(*PYTEST, "--setup-plan", *arguments, cwd=folder, base=env)
    assert done.returncode == 0, done.stdout + done.stderr
    for fixture in ("celery_postgres_broker", "celery_postgres_backend", "celery_setup"):
        assert f"SETUP    F {fixture} " in done.stdout
