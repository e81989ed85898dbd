"""The result backends to compare, each with the broker that it is mostly used with."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from brokers import pgmq
from brokers.spec import Spec
from celery import __version__ as celery_version
from servers import Postgres, RabbitMQ, Redis, sqlalchemy


class Contender:
    """A result backend and a broker, in a database of its own where that is Postgres."""

    name: ClassVar[str]
    needs: ClassVar[tuple[type[Any], ...]]
    #: Modules to import besides Celery's.
    modules: ClassVar[tuple[str, ...]] = ()
    #: More of the app's settings, and whether its tasks insert rows into the broker's database.
    settings: ClassVar[dict[str, Any]] = {}
    inserts: ClassVar[bool] = False
    #: Options of the workers' transport.
    worker_options: ClassVar[dict[str, Any]] = {}
    #: Whether a dead worker's messages are delivered again at once.
    redelivers: ClassVar[bool] = False

    def __init__(self, servers: dict[type[Any], Any], folder: Path) -> None:
        self._servers = servers
        broker, backend = self.urls()
        self.spec = Spec(
            url=broker,
            folder=str(folder),
            executions=str(folder / "executions"),
            settings={"result_backend": backend, **self.settings},
            options=self.options(),
            worker_options=self.worker_options,
        )

    @classmethod
    def missing(cls) -> str:
        """What isn't there, in words; empty when all is."""
        for module in cls.modules:
            if find_spec(module) is None:
                return f"no module {module}"
        for server in cls.needs:
            if server in (Redis, RabbitMQ) and not server.installed():
                return f"no {server.__name__.lower()}-server"
        return ""

    def urls(self) -> tuple[str, str]:
        """The broker's URL and the backend's."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """The broker's transport options."""
        return {}

    def version(self) -> str:
        """What the figures were measured with."""
        return f"celery {celery_version}"

    def _empty_database(self) -> str:
        name = f"pgbeat_bench_{os.getpid()}_{self.name}"
        return str(self._servers[Postgres].database(name))

    def _database(self) -> str:
        from pgbeat.config import postgres_url
        from pgbeat.database.migrations import migrate

        url = self._empty_database()
        migrate.upgrade(postgres_url(url))
        return url


class Pgbeat(Contender):
    """pgbeat as broker and backend."""

    name, needs, redelivers = "pgbeat", (Postgres,), True

    def urls(self) -> tuple[str, str]:
        url = f"pgbeat+{self._database()}"
        return url, url


class PgbeatLate(Pgbeat):
    """The same; tasks are acknowledged after they ran, and commit rows themselves."""

    name, inserts = "pgbeat_late", True
    settings: ClassVar[dict[str, Any]] = {"task_acks_late": True}


class PgbeatFinish(Pgbeat):
    """The same; rows commit with the result and the acknowledgement."""

    name, inserts = "pgbeat_finish", True
    settings: ClassVar[dict[str, Any]] = {"task_acks_late": True, "pgbeat_finish": True}


class RedisBackend(Contender):
    """Redis keeps the results, pgbeat is the broker."""

    name, needs, redelivers = "redis", (Postgres, Redis), True

    def urls(self) -> tuple[str, str]:
        return f"pgbeat+{self._database()}", self._servers[Redis].url


class RedisOnly(Contender):
    """Redis as broker and backend."""

    name, needs = "redis_only", (Redis,)

    def urls(self) -> tuple[str, str]:
        return (self._servers[Redis].url,) * 2


class DatabaseBackend(Contender):
    """Celery's own backend on a database; pgbeat is the broker."""

    name, needs, redelivers = "db", (Postgres,), True

    def urls(self) -> tuple[str, str]:
        url = self._database()
        return f"pgbeat+{url}", f"db+{sqlalchemy(url)}"


class Pgmq(Contender):
    """Celery's own pairing on Postgres: kombu's transport on PGMQ, and the same backend."""

    name, needs, modules = "pgmq", (Postgres,), pgmq.MODULES
    worker_options = pgmq.WORKERS

    def urls(self) -> tuple[str, str]:
        self._url = self._empty_database()
        pgmq.install(self._url)
        return pgmq.URL, f"db+{sqlalchemy(self._url)}"

    def options(self) -> dict[str, Any]:
        return pgmq.options(self._url)


class Rpc(Contender):
    """RabbitMQ, and results as messages to the caller. It has no chords."""

    name, needs = "rpc", (RabbitMQ,)

    def urls(self) -> tuple[str, str]:
        return self._servers[RabbitMQ].url, "rpc://"


CONTENDERS: dict[str, type[Contender]] = {
    each.name: each
    for each in (
        Pgbeat,
        PgbeatLate,
        PgbeatFinish,
        RedisBackend,
        RedisOnly,
        DatabaseBackend,
        Pgmq,
        Rpc,
    )
}
