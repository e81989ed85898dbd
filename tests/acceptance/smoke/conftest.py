"""The setup of the smoke tests: containers if a Docker engine answers, else processes.

`PGBEAT_SMOKE=local` or `=docker` says it without asking. `PGBEAT_SMOKE_SCHEME` is the broker's URL
scheme, should it be another transport that is looked at.
"""

import gc
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from celery import Celery
from docker.errors import DockerException
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerContainer,
)
from pytest_docker_tools import build, container, fxtr

from pgbeat.testing import pytest_celery as vendor
from pgbeat.testing.pytest_celery import *  # noqa: F403 - a plugin's fixtures, as pytest wants them
from tests.acceptance.smoke.local import LocalPostgres, LocalServer, LocalWorker
from tests.acceptance.smoke.worker import SmokeSetup, SmokeWorkerContainer, current_app_kept
from tests.support.processes import ROOT


def engine_answers() -> bool:
    with warnings.catch_warnings():
        # The client that finds none leaves its socket to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with closing(docker.from_env(timeout=5)) as client:
                return bool(client.ping())
        except (DockerException, OSError):
            return False
        finally:
            gc.collect()


MODE = os.environ.get("PGBEAT_SMOKE") or ("docker" if engine_answers() else "local")
if MODE not in ("docker", "local"):
    raise ValueError(f"PGBEAT_SMOKE={MODE}: expected docker or local")

if scheme := os.environ.get("PGBEAT_SMOKE_SCHEME"):
    vendor.PostgresTestBroker.scheme = scheme


@pytest.fixture
def celery_broker_cluster(celery_postgres_broker: Any) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(celery_postgres_broker)


@pytest.fixture
def celery_backend_cluster(celery_postgres_backend: Any) -> CeleryBackendCluster:
    return CeleryBackendCluster(celery_postgres_backend)


@pytest.fixture
def celery_setup_cls() -> type[CeleryTestSetup]:
    return SmokeSetup


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup], celery_setup_config: Any, celery_setup_name: str
) -> Iterator[Celery]:
    with current_app_kept():
        app = celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_name)
        yield app
        app.close()


@pytest.fixture
def default_worker_container_cls() -> type[CeleryWorkerContainer]:
    return SmokeWorkerContainer


@pytest.fixture(scope="session")
def default_worker_container_session_cls() -> type[CeleryWorkerContainer]:
    return SmokeWorkerContainer


@pytest.fixture
def celery_other_worker(
    default_worker_cls: type[CeleryTestWorker],
    other_worker_container: CeleryWorkerContainer,
    default_worker_app: Celery,
) -> Iterator[CeleryTestWorker]:
    """Yields a second worker."""
    worker = default_worker_cls(other_worker_container, default_worker_app)
    yield worker
    worker.teardown()


if MODE == "docker":

    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """Gives the tests more time: the first ones pull and build images."""
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.timeout(600))

    @pytest.fixture(scope="session")
    def worker_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Makes a folder to build the worker's image from."""
        folder = tmp_path_factory.mktemp("worker")
        for name in ("pyproject.toml", "README.md", "LICENSE", "tests/acceptance/smoke/Dockerfile"):
            shutil.copy(ROOT / name, folder)
        for name in ("pgbeat", "tasks"):
            unneeded = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=unneeded)
        return folder

    celery_base_worker_image = build(path="{worker_source}", tag="pgbeat/smoke-worker:latest")

    other_worker_container = container(
        image="{celery_base_worker_image.id}",
        environment=fxtr("default_worker_env"),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
        wrapper_class=SmokeWorkerContainer,
        timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
        command=fxtr("default_worker_command"),
    )

else:

    @pytest.fixture(scope="session")
    def smoke_servers() -> Iterator[SimpleNamespace]:
        """Yields a server for the broker and one for results, so that one can be killed alone."""
        servers = SimpleNamespace(broker=LocalServer(), backend=LocalServer())
        yield servers
        servers.broker.remove()
        servers.backend.remove()

    @pytest.fixture
    def default_postgres_broker(smoke_servers: SimpleNamespace) -> Iterator[LocalPostgres]:
        with LocalPostgres(smoke_servers.broker) as postgres:
            yield postgres

    @pytest.fixture
    def default_postgres_backend(smoke_servers: SimpleNamespace) -> Iterator[LocalPostgres]:
        with LocalPostgres(smoke_servers.backend) as postgres:
            yield postgres

    @pytest.fixture
    def start_worker(
        default_worker_command: list[str],
        default_worker_env: dict[str, str],
        default_worker_initial_content: dict[str, bytes],
        tmp_path: Path,
    ) -> Iterator[Callable[[str], LocalWorker]]:
        """Yields what starts a worker in a folder of that name; all end with the test."""
        with ExitStack() as started:

            def start(name: str) -> LocalWorker:
                worker = LocalWorker(
                    tmp_path / name,
                    default_worker_command,
                    default_worker_env,
                    default_worker_initial_content,
                )
                return started.enter_context(worker)

            yield start

    @pytest.fixture
    def default_worker_container(start_worker: Callable[[str], LocalWorker]) -> LocalWorker:
        return start_worker("worker")

    @pytest.fixture
    def other_worker_container(start_worker: Callable[[str], LocalWorker]) -> LocalWorker:
        return start_worker("other-worker")
