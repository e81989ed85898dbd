"""Postgres for pytest-celery: a broker and a result backend, each in its own container.

A plugin of pytest: `pytest_plugins = ["pgbeat.testing.pytest_celery"]` in the root `conftest.py`
brings the fixtures `celery_postgres_broker` and `celery_postgres_backend`, and for each the
`default_postgres_…` ones to override. Needs `pip install 'pgbeat[pytest-celery]'`.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import psycopg
import pytest
from pytest_celery import CeleryTestBackend, CeleryTestBroker, CeleryTestContainer, CeleryTestNode
from pytest_docker_tools import container, fxtr
from sqlalchemy.engine import URL, make_url

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing import apps

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
        """A new connection to its database, from the tests, which must close it."""
        # Not the URL: libpq is stricter about it than SQLAlchemy.
        url = make_url(self.host_url)
        place: dict[str, Any] = {
            **url.translate_connect_args(username="user", database="dbname"),
            **url.query,
        }
        return psycopg.connect(**place, connect_timeout=5, autocommit=True)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """Where it is, by Postgres's own URLs; a node gives them Celery's scheme."""
        return {
            "url": self.url,
            "host_url": self.host_url,
            "hostname": self.hostname,
            "port": self.port,
            "vhost": self.vhost,
        }

    @property
    def url(self) -> str:
        """The URL for other containers of the network."""
        return self._url(self.hostname, 5432)

    @property
    def host_url(self) -> str:
        """The URL for the tests. It changes when the container is restarted."""
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
        """Returns whether it accepts connections.

        Its log doesn't tell: the image starts the server twice when it makes the database, and the
        log of a restarted container begins with that from before the restart.
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
        """Returns the image's tag."""
        return cls.image().split(":")[-1]

    @classmethod
    def initial_env(cls) -> dict[str, str]:
        """Returns the environment of the container."""
        return dict(POSTGRES_ENV)

    @classmethod
    def image(cls) -> str:
        """Returns the name of the image."""
        return POSTGRES_IMAGE

    @classmethod
    def ports(cls) -> dict[str, Any]:
        """Returns the ports of the container, with the host's (`None`: any) for each."""
        return dict(POSTGRES_PORTS)

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        """Returns the server's command: without fsync, so only a machine's crash may damage it."""
        return ["postgres", "-c", "fsync=off", "-c", "max_connections=200", *args]


class _PostgresNode(CeleryTestNode):
    #: Of the URLs that Celery gets.
    scheme: ClassVar[str] = "pgbeat+postgresql"

    def migrate(self) -> None:
        """Installs pgbeat's schema if it is missing."""
        migrate.upgrade(postgres_url(self.container.celeryconfig["host_url"]))

    def config(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the settings by which Celery uses the node; `vhost` names another database."""
        config = {**self.container.celeryconfig, **kwargs}
        for key in ("url", "host_url"):
            url = make_url(config[key]).set(drivername=self.scheme, database=config["vhost"])
            config[key] = url.render_as_string(hide_password=False)
        return config


class PostgresTestBroker(_PostgresNode, CeleryTestBroker):
    """The broker: pgbeat's transport, in a database with pgbeat's schema."""

    def restart(self, reload_container: bool = True, force: bool = False) -> None:
        """Restarts the node, and gives the app its new address."""
        before = self.app and self.app.conf.broker_url
        super().restart(reload_container, force)
        if self.app and self.app.conf.broker_url != before:
            apps.disconnect(self.app)

    def teardown(self) -> None:
        """Closes the app's connections before the container goes."""
        if self.app:
            apps.disconnect(self.app)
        super().teardown()


class PostgresTestBackend(_PostgresNode, CeleryTestBackend):
    """The result backend: pgbeat's, in a database with pgbeat's schema."""

    def restart(self, reload_container: bool = True, force: bool = False) -> None:
        """Restarts the node, and gives the app its new address, but not earlier results."""
        self._forget()
        super().restart(reload_container, force)
        self._forget()

    def teardown(self) -> None:
        """Closes the app's connection before the container goes."""
        self._forget()
        super().teardown()

    def _forget(self) -> None:
        if self.app:
            apps.forget_backend(self.app)


@pytest.fixture
def celery_postgres_broker(default_postgres_broker: PostgresContainer) -> Iterator[Any]:
    """The broker, for a `CeleryBrokerCluster`."""
    broker = PostgresTestBroker(default_postgres_broker)
    broker.migrate()
    yield broker
    broker.teardown()


@pytest.fixture
def celery_postgres_backend(default_postgres_backend: PostgresContainer) -> Iterator[Any]:
    """The result backend, for a `CeleryBackendCluster`."""
    backend = PostgresTestBackend(default_postgres_backend)
    backend.migrate()
    yield backend
    backend.teardown()


# -- what the containers are made of; each fixture may be overridden


def _class_of(kind: str) -> Any:
    """Returns the fixture of a container's class, which has its image and settings."""

    @pytest.fixture(name=f"default_postgres_{kind}_cls")
    def fixture() -> type[PostgresContainer]:
        return PostgresContainer

    return fixture


def _setting_of(kind: str, setting: str, method: str) -> Any:
    """Returns the fixture of one setting of a container, by a method of its class."""

    @pytest.fixture(name=f"default_postgres_{kind}_{setting}")
    def fixture(request: pytest.FixtureRequest) -> Any:
        return getattr(request.getfixturevalue(f"default_postgres_{kind}_cls"), method)()

    return fixture


def _container_of(kind: str) -> Any:
    """Returns the fixture of a container."""
    prefix = f"default_postgres_{kind}"
    return container(
        image=f"{{{prefix}_image}}",
        ports=fxtr(f"{prefix}_ports"),
        environment=fxtr(f"{prefix}_env"),
        network="{default_pytest_celery_network.name}",
        wrapper_class=PostgresContainer,
        timeout=POSTGRES_CONTAINER_TIMEOUT,
        command=fxtr(f"{prefix}_command"),
    )


default_postgres_broker_cls = _class_of("broker")
default_postgres_broker_image = _setting_of("broker", "image", "image")
default_postgres_broker_env = _setting_of("broker", "env", "initial_env")
default_postgres_broker_ports = _setting_of("broker", "ports", "ports")
default_postgres_broker_command = _setting_of("broker", "command", "command")
default_postgres_broker = _container_of("broker")

default_postgres_backend_cls = _class_of("backend")
default_postgres_backend_image = _setting_of("backend", "image", "image")
default_postgres_backend_env = _setting_of("backend", "env", "initial_env")
default_postgres_backend_ports = _setting_of("backend", "ports", "ports")
default_postgres_backend_command = _setting_of("backend", "command", "command")
default_postgres_backend = _container_of("backend")
