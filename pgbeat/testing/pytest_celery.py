"""Postgres for pytest-celery: a broker and a result backend, each in a container of its own.

A plugin of pytest: `pytest_plugins = ["pgbeat.testing.pytest_celery"]` in the root `conftest.py`
brings the fixtures `celery_postgres_broker` and `celery_postgres_backend`, and for each the
`default_postgres_…` ones to override. Needs `pip install 'pgbeat[pytest-celery]'`.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import psycopg
import pytest
from pytest_celery import (
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestContainer,
    CeleryTestNode,
)
from pytest_docker_tools import container, fxtr
from sqlalchemy.engine import URL, make_url

from pgbeat.config import postgres_url
from pgbeat.database import migrate

POSTGRES_IMAGE = "postgres:18-alpine"
#: The port in the container; the engine picks the host's.
POSTGRES_PORTS: dict[str, Any] = {"5432/tcp": None}
POSTGRES_ENV = {"POSTGRES_PASSWORD": "pgbeat", "POSTGRES_DB": "celery"}
#: Seconds until it must be ready.
POSTGRES_CONTAINER_TIMEOUT = 60


class PostgresContainer(CeleryTestContainer):
    """A container of the official image, whose environment says user, password and database."""

    @property
    def client(self) -> "psycopg.Connection[Any]":
        """A new connection to its database, from the tests; whoever asks closes it."""
        # Not the URL: libpq is stricter about it than SQLAlchemy.
        url = make_url(self.host_url)
        place: dict[str, Any] = {
            **url.translate_connect_args(username="user", database="dbname"),
            **url.query,
        }
        return psycopg.connect(**place, connect_timeout=5, autocommit=True)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """Where it is; the URLs are Postgres's own, to which a node gives Celery's scheme."""
        return {
            "url": self.url,
            "host_url": self.host_url,
            "hostname": self.hostname,
            "port": self.port,
            "vhost": self.vhost,
        }

    @property
    def url(self) -> str:
        """How other containers of the network reach it."""
        return self._url(self.hostname, 5432)

    @property
    def host_url(self) -> str:
        """How the tests reach it. It changes when the container is restarted."""
        port = self.port  # waits until there is one
        return self._url(self.get_addr("5432/tcp")[0], port)

    def _url(self, host: str, port: int) -> str:
        user, password = self.env.get("POSTGRES_USER"), self.env.get("POSTGRES_PASSWORD")
        url = URL.create("postgresql", user or "postgres", password, host, port, self.vhost)
        return url.render_as_string(hide_password=False)

    @property
    def hostname(self) -> str:
        """Its name in the network."""
        return str(self.attrs["Config"]["Hostname"])

    @property
    def port(self) -> int:
        """The port for the tests; waits until there is one."""
        return int(self._wait_port("5432/tcp"))

    @property
    def vhost(self) -> str:
        """The database."""
        return str(self.env.get("POSTGRES_DB") or self.env.get("POSTGRES_USER") or "postgres")

    def ready(self) -> bool:
        """Whether it can be connected to.

        Its log wouldn't tell: the image starts the server twice when it makes the database, and
        the log of a restarted container begins with that of its former life.
        """
        if not super().ready():
            return False
        try:
            self.client.close()
        except psycopg.OperationalError:
            return False
        return True

    @classmethod
    def version(cls) -> str:
        """The image's tag."""
        return cls.image().split(":")[-1]

    @classmethod
    def initial_env(cls) -> dict[str, str]:
        """Environment of the container."""
        return dict(POSTGRES_ENV)

    @classmethod
    def image(cls) -> str:
        """Name of the image."""
        return POSTGRES_IMAGE

    @classmethod
    def ports(cls) -> dict[str, Any]:
        """Ports of the container, and the host's (`None`: any) for each."""
        return dict(POSTGRES_PORTS)

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        """The server with settings for tests: killed, it loses nothing; only a machine's crash may
        damage it."""
        return ["postgres", "-c", "fsync=off", "-c", "max_connections=200", *args]


class _PostgresNode(CeleryTestNode):
    #: Of the URLs that Celery gets.
    scheme: ClassVar[str]

    def config(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What Celery needs to use the node; `vhost` names another database of the server."""
        config = {**self.container.celeryconfig, **kwargs}
        for key in ("url", "host_url"):
            url = make_url(config[key]).set(drivername=self.scheme, database=config["vhost"])
            config[key] = url.render_as_string(hide_password=False)
        return config


class PostgresTestBroker(_PostgresNode, CeleryTestBroker):
    """The broker: pgbeat's transport, in a database with pgbeat's schema."""

    scheme = "pgbeat+postgresql"

    def migrate(self) -> None:
        """Installs pgbeat's schema, unless it is there."""
        migrate.upgrade(postgres_url(self.container.celeryconfig["host_url"]))

    def restart(self, reload_container: bool = True, force: bool = False) -> None:
        """Restarts it, and tells the app where it is now."""
        before = self.app and self.app.conf.broker_url
        super().restart(reload_container, force)
        if self.app and self.app.conf.broker_url != before:
            self._disconnect()

    def teardown(self) -> None:
        """Closes the app's connections before the container goes."""
        if self.app:
            self._disconnect()
        super().teardown()

    def _disconnect(self) -> None:
        self.app.pool.force_close_all(close_pool=False)
        # Celery keeps both for as long as the app lives, whatever its settings say later.
        self.app._pool = self.app.amqp._producer_pool = None


class PostgresTestBackend(_PostgresNode, CeleryTestBackend):
    """The result backend: Celery's own, on SQLAlchemy."""

    scheme = "db+postgresql+psycopg"

    def restart(self, reload_container: bool = True, force: bool = False) -> None:
        """Restarts it, and tells the app where it is now; earlier results don't hear of it."""
        super().restart(reload_container, force)
        if self.app:
            # Celery keeps the backend for as long as the app lives, one in each thread.
            self.app._backend_cache = None
            vars(self.app._local).pop("backend", None)


@pytest.fixture
def celery_postgres_broker(default_postgres_broker: PostgresContainer) -> Iterator[Any]:
    """The broker, for a `CeleryBrokerCluster`."""
    broker = PostgresTestBroker(default_postgres_broker)
    broker.migrate()
    yield broker
    broker.teardown()


@pytest.fixture
def default_postgres_broker_cls() -> type[PostgresContainer]:
    """The class that says the container's image, environment, ports and command."""
    return PostgresContainer


@pytest.fixture
def default_postgres_broker_image(default_postgres_broker_cls: type[PostgresContainer]) -> str:
    """Name of the image."""
    return default_postgres_broker_cls.image()


@pytest.fixture
def default_postgres_broker_env(
    default_postgres_broker_cls: type[PostgresContainer],
) -> dict[str, str]:
    """Environment of the container."""
    return default_postgres_broker_cls.initial_env()


@pytest.fixture
def default_postgres_broker_ports(
    default_postgres_broker_cls: type[PostgresContainer],
) -> dict[str, Any]:
    """Ports of the container."""
    return default_postgres_broker_cls.ports()


@pytest.fixture
def default_postgres_broker_command(
    default_postgres_broker_cls: type[PostgresContainer],
) -> list[str]:
    """Command of the container."""
    return default_postgres_broker_cls.command()


default_postgres_broker = container(
    image="{default_postgres_broker_image}",
    ports=fxtr("default_postgres_broker_ports"),
    environment=fxtr("default_postgres_broker_env"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=PostgresContainer,
    timeout=POSTGRES_CONTAINER_TIMEOUT,
    command=fxtr("default_postgres_broker_command"),
)


@pytest.fixture
def celery_postgres_backend(default_postgres_backend: PostgresContainer) -> Iterator[Any]:
    """The result backend, for a `CeleryBackendCluster`."""
    backend = PostgresTestBackend(default_postgres_backend)
    yield backend
    backend.teardown()


@pytest.fixture
def default_postgres_backend_cls() -> type[PostgresContainer]:
    """The class that says the container's image, environment, ports and command."""
    return PostgresContainer


@pytest.fixture
def default_postgres_backend_image(default_postgres_backend_cls: type[PostgresContainer]) -> str:
    """Name of the image."""
    return default_postgres_backend_cls.image()


@pytest.fixture
def default_postgres_backend_env(
    default_postgres_backend_cls: type[PostgresContainer],
) -> dict[str, str]:
    """Environment of the container."""
    return default_postgres_backend_cls.initial_env()


@pytest.fixture
def default_postgres_backend_ports(
    default_postgres_backend_cls: type[PostgresContainer],
) -> dict[str, Any]:
    """Ports of the container."""
    return default_postgres_backend_cls.ports()


@pytest.fixture
def default_postgres_backend_command(
    default_postgres_backend_cls: type[PostgresContainer],
) -> list[str]:
    """Command of the container."""
    return default_postgres_backend_cls.command()


default_postgres_backend = container(
    image="{default_postgres_backend_image}",
    ports=fxtr("default_postgres_backend_ports"),
    environment=fxtr("default_postgres_backend_env"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=PostgresContainer,
    timeout=POSTGRES_CONTAINER_TIMEOUT,
    command=fxtr("default_postgres_backend_command"),
)
