"""What is attacked: brokers with their settings, and broken builds that must be found."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.brokers import pgmq
from pgbeat.broker.transport.group_commit import GroupCommit
from pgbeat.config import postgres_url
from pgbeat.database.migrations.migrate import upgrade


@dataclass(frozen=True)
class Case:
    """A broker: the server in the guest with its arguments, and the app's settings."""

    server: tuple[str, ...]
    #: The broker's URL, in which `{}` stands for the place: a host and a port.
    url: str
    #: The transport's options, of the place.
    options: Callable[[str], dict[str, Any]] = lambda place: {}
    #: Makes what it needs in a new database.
    prepare: Callable[[str], object] = lambda place: None
    #: Whether pgbeat records jobs.
    has_jobs: bool = False


@dataclass(frozen=True)
class Build:
    """A broken build: what it changes in the processes outside, and arguments of the server."""

    patch: Callable[[], None] = lambda: None
    arguments: tuple[str, ...] = ()


#: A file: while it is there, publishers publish.
GATE = "publish"
#: Files with an id in each line: of publishes that returned, and of tasks that came to their end.
JOURNALS = ("acknowledged", "executed")
POSTGRES = "postgresql://postgres@{}/postgres"
#: Seconds after which Redis and PGMQ deliver again what a killed worker had.
_AGAIN = {"visibility_timeout": 10}
_PATIENT = "?tcp_user_timeout=600000"
_UNFLUSHED = ("-c", "synchronous_commit=off")


def _pgbeat(*arguments: str) -> Case:
    return Case(
        ("postgres", *arguments),
        f"pgbeat+{POSTGRES}",
        # An emulated server may be silent for longer than pgbeat waits by default.
        prepare=lambda place: upgrade(postgres_url(POSTGRES.format(place) + _PATIENT)),
        has_jobs=True,
    )


def _pgmq(*arguments: str) -> Case:
    # Each publisher's connection has a pool of its own; the server has 100 connections.
    own = _AGAIN | {"pool_size": 1}
    return Case(
        ("postgres", *arguments),
        pgmq.URL,
        lambda place: pgmq.options(POSTGRES.format(place)) | own,
        lambda place: pgmq.install(POSTGRES.format(place)),
    )


def _redis(*arguments: str) -> Case:
    return Case(("redis", *arguments), "redis://{}/0", lambda place: _AGAIN)


def _rabbitmq(**options: bool) -> Case:
    return Case(("rabbitmq",), "amqp://guest:guest@{}//", lambda place: options)


CASES = {
    "pgbeat": _pgbeat(),
    "pgbeat-unflushed": _pgbeat(*_UNFLUSHED),
    "pgmq": _pgmq(),
    "pgmq-unflushed": _pgmq(*_UNFLUSHED),
    "redis-always": _redis("--appendonly", "yes", "--appendfsync", "always"),
    "redis-everysec": _redis("--appendonly", "yes", "--appendfsync", "everysec"),
    "redis-snapshots": _redis(),
    "rabbitmq-confirms": _rabbitmq(confirm_publish=True),
    "rabbitmq": _rabbitmq(),
}
#: Those whose server the emulated machine doesn't have.
NATIVE = {name for name, case in CASES.items() if case.server == ("rabbitmq",)}


def _acknowledge_early() -> None:
    """Makes a publish return before its commit."""
    publish: Any = GroupCommit.publish
    pool = ThreadPoolExecutor(8)

    def early(self: Any, item: Any) -> int:
        pool.submit(publish, self, item)
        return 1

    GroupCommit.publish = early  # type: ignore[method-assign]


BUILDS = {
    "acknowledges_early": Build(_acknowledge_early),
    "fsync_off": Build(arguments=("-c", "fsync=off")),
}
