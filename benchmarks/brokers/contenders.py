"""The brokers to compare: what each needs, how it is emptied and how it is filled.

A queue is filled with one real message, published by Celery, and copies of it with ids of their
own, which the broker takes by the fastest way that it has.
"""

import os
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
from kombu.transport import TRANSPORT_ALIASES
from psycopg import sql
from servers import Postgres, RabbitMQ, Redis, sqlalchemy

from brokers import pgmq
from brokers.spec import Spec

#: Celery's default queue, the only one that is used.
QUEUE = "celery"
#: Copies are made in batches of this many.
BATCH = 50_000

Options = dict[str, Any]


class Contender(ABC):
    """One broker, on a server of the run."""

    name: ClassVar[str]
    #: Modules to import, and the server to have.
    modules: ClassVar[tuple[str, ...]]
    server: ClassVar[type[Postgres] | type[Redis] | type[RabbitMQ]]
    #: The module that makes the transport known to kombu, where kombu doesn't have it itself.
    transport: ClassVar[str] = ""
    #: The transport's options for publishing that returns when the message is safe on disk, and
    #: for publishing that doesn't wait for the disk. `None`: it can't do that.
    stored: ClassVar[Options | None] = None
    unforced: ClassVar[Options | None] = None
    #: Options of the workers' transport.
    worker_options: ClassVar[Options] = {}
    #: Whether messages can be published in bulk, in a transaction of the caller's.
    bulk: ClassVar[bool] = False

    def __init__(self, server: Any, folder: Path) -> None:
        self._server = server
        self.url = self._place()
        self.spec = Spec(
            url=self._broker_url(),
            folder=str(folder),
            executions=str(folder / "executions"),
            server=server.pid,
            transport=self.transport,
            options=self._options(),
            worker_options=self.worker_options,
        )

    @classmethod
    def missing(cls) -> str:
        """What isn't there, in words; empty when all is."""
        for module in cls.modules:
            try:
                found = find_spec(module)
            except ModuleNotFoundError:
                found = None
            if found is None:
                return f"no module {module}"
        if cls.transport:
            import_module(cls.transport)
            if cls.name not in TRANSPORT_ALIASES:
                return f"kombu doesn't know it: {cls.transport} is not finished"
        if issubclass(cls.server, Redis | RabbitMQ) and not cls.server.installed():
            return f"no {cls.server.__name__.lower()}-server"
        return ""

    def _place(self) -> str:
        return str(self._server.url)

    def _broker_url(self) -> str:
        return self.url

    def _options(self) -> Options:
        return {}

    @abstractmethod
    def version(self) -> str:
        """The server's version."""

    @abstractmethod
    def reset(self) -> None:
        """Makes it as new: no queue, no message."""

    @abstractmethod
    def learn(self) -> None:
        """Remembers the one message that waits in the queue, for `copy`."""

    @abstractmethod
    def copy(self, count: int) -> None:
        """Adds copies of the message that was learnt."""

    def settle(self) -> None:  # noqa: B027
        """Does what the server would do in the minute after a queue was filled."""


class PostgresBroker(Contender):
    """Messages in a table, in a database of its own."""

    server = Postgres
    #: Where the messages are.
    table: ClassVar[sql.Identifier]

    def _place(self) -> str:
        self._database = f"pgbeat_bench_{os.getpid()}_{self.name}"
        return str(self._server.database(self._database))

    def connect(self) -> psycopg.Connection:
        """A connection to its database, in autocommit."""
        return psycopg.connect(self.url, autocommit=True)

    def version(self) -> str:
        return str(self._server.settings["server_version"])

    def program(self, name: str) -> str:
        """One of the server's programs, such as pg_dump."""
        return str(self._server.program(name))

    def reset(self) -> None:
        self._server.database(self._database)

    def learn(self) -> None:
        statement = sql.SQL("CREATE TABLE bench_message AS SELECT * FROM {}").format(self.table)
        with self.connect() as connection:
            connection.execute(statement)

    @abstractmethod
    def _copying(self, connection: psycopg.Connection) -> sql.Composable:
        """The statement that adds a number of copies."""

    def copy(self, count: int) -> None:
        with self.connect() as connection:
            statement = self._copying(connection)
            for size in batches(count):
                connection.execute(statement, (size,))

    def settle(self) -> None:
        with self.connect() as connection:
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(self.table))
            with suppress(psycopg.errors.InsufficientPrivilege):
                connection.execute("CHECKPOINT")


class KombuTables(PostgresBroker):
    """kombu's two tables."""

    scheme: ClassVar[str]
    table = sql.Identifier("kombu_message")

    def _broker_url(self) -> str:
        return f"{self.scheme}+{self.url}"

    def _copying(self, connection: psycopg.Connection) -> sql.Composable:
        rows = connection.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_name = 'bench_message' AND column_name NOT IN ('id', 'payload')"
        )
        columns = sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows)
        return sql.SQL(
            """
            INSERT INTO kombu_message (id, payload, {columns})
            SELECT nextval('message_id_sequence'),
                replace(replace(payload,
                    payload::json -> 'headers' ->> 'id', gen_random_uuid()::text),
                    payload::json -> 'properties' ->> 'delivery_tag', gen_random_uuid()::text),
                {columns}
            FROM bench_message, generate_series(1, %s)
            """
        ).format(columns=columns)


class Pgbeat(KombuTables):
    """pgbeat's transport."""

    name = "pgbeat"
    modules = ("pgbeat.broker.transport",)
    transport = "pgbeat.broker.transport"
    scheme = "pgbeat"
    stored: ClassVar[Options | None] = {}
    unforced: ClassVar[Options | None] = {"synchronous_commit": "off"}
    bulk = True

    def reset(self) -> None:
        super().reset()
        from pgbeat.config import postgres_url
        from pgbeat.database.migrations.migrate import upgrade

        upgrade(postgres_url(self.url))


class Stock(KombuTables):
    """kombu's own SQLAlchemy transport."""

    name = "sqla"
    modules = ("sqlalchemy", "psycopg")
    scheme = "sqla"
    stored: ClassVar[Options | None] = {}

    def _broker_url(self) -> str:
        return f"{self.scheme}+{sqlalchemy(self.url)}"


class Pgmq(PostgresBroker):
    """kombu's transport on PGMQ."""

    name = "pgmq"
    modules = pgmq.MODULES
    table = sql.Identifier("pgmq", f"q_{QUEUE}")
    stored: ClassVar[Options | None] = {}
    worker_options = pgmq.WORKERS

    def _broker_url(self) -> str:
        return pgmq.URL

    def _options(self) -> Options:
        return pgmq.options(self.url)

    def version(self) -> str:
        return f"{super().version()}, PGMQ {pgmq.version()}"

    def reset(self) -> None:
        super().reset()
        pgmq.install(self.url)

    def _copying(self, connection: psycopg.Connection) -> sql.Composable:
        return sql.SQL(
            """
            INSERT INTO pgmq.q_celery (vt, message, headers)
            SELECT clock_timestamp(),
                replace(replace(message::text, message -> 'headers' ->> 'id', id),
                    message -> 'properties' ->> 'delivery_tag', gen_random_uuid()::text)::jsonb,
                replace(headers::text, message -> 'headers' ->> 'id', id)::jsonb
            FROM bench_message,
                LATERAL (SELECT gen_random_uuid()::text AS id FROM generate_series(1, %s)) AS ids
            """
        )


class RedisBroker(Contender):
    """Redis: a list."""

    name = "redis"
    modules = ("redis",)
    server = Redis
    unforced: ClassVar[Options | None] = {}

    @cached_property
    def _client(self) -> Any:
        import redis

        return redis.Redis.from_url(self.url)

    def version(self) -> str:
        return str(self._client.info("server")["redis_version"])

    def reset(self) -> None:
        self._client.flushall()

    def learn(self) -> None:
        self._message = self._client.lindex(QUEUE, 0).decode()

    def copy(self, count: int) -> None:
        pattern = r'"(?:id|delivery_tag)": "([^"]+)"'
        identity, tag = re.findall(pattern, self._message)
        for size in batches(count):
            pipe = self._client.pipeline(transaction=False)
            for _ in range(size):
                message = self._message.replace(identity, str(uuid4())).replace(tag, str(uuid4()))
                pipe.lpush(QUEUE, message)
            pipe.execute()


class RabbitMQBroker(Contender):
    """RabbitMQ: a classic durable queue with persistent messages."""

    name = "rabbitmq"
    modules = ("amqp",)
    server = RabbitMQ
    stored: ClassVar[Options | None] = {"confirm_publish": True}
    unforced: ClassVar[Options | None] = {}

    def connect(self) -> Any:
        """A connection to be closed."""
        from kombu import Connection

        return Connection(self.url)

    def version(self) -> str:
        with self.connect() as connection:
            connection.connect()
            return str(connection.connection.server_properties["version"])

    def reset(self) -> None:
        with self.connect() as connection:
            connection.default_channel.queue_delete(QUEUE)

    def learn(self) -> None:
        with self.connect() as connection:
            self._message = connection.default_channel.basic_get(QUEUE, no_ack=False)

    def copy(self, count: int) -> None:
        from amqp import Message

        learnt = self._message
        identity = learnt.headers["id"]
        with self.connect() as connection:
            channel = connection.default_channel
            for _ in range(count):
                own = str(uuid4())
                properties = {**learnt.properties, "correlation_id": own}
                headers = {**learnt.headers, "id": own}
                if headers.get("root_id") == identity:
                    headers["root_id"] = own
                properties["application_headers"] = headers
                channel.basic_publish(Message(learnt.body, **properties), "", QUEUE)


def batches(count: int) -> list[int]:
    """The sizes of the batches that make up `count`."""
    return [min(BATCH, count - start) for start in range(0, count, BATCH)]


CONTENDERS: dict[str, type[Contender]] = {
    kind.name: kind for kind in (Pgbeat, Stock, Pgmq, RedisBroker, RabbitMQBroker)
}
