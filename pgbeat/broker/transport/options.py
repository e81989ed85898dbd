"""The transport's options: `broker_transport_options`, checked when a connection opens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import URL

from pgbeat.broker.messages import BrokerTables
from pgbeat.broker.transport import ignored_options
from pgbeat.config import postgres_url
from pgbeat.errors import ConfigError, Problems
from pgbeat.suggest import nearest

#: Options that kombu and Celery read themselves.
_KOMBU = {
    "body_encoding", "deadletter_queue", "callback", "errback", "max_retries", "interval_start",
    "interval_step", "interval_max", "retry_errors", "connect_retries_timeout", "timeout",
}  # fmt: skip
_COMMITS = ("on", "off", "local", "remote_write", "remote_apply")


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set in `broker_transport_options`, with its defaults. Times are seconds."""

    #: Names of the two tables.
    queue_tablename: str = BrokerTables.queue
    message_tablename: str = BrokerTables.message
    #: Whether a publish waits until the server has it on disk: Postgres' synchronous_commit.
    #: None: as the server has it. Transient messages (delivery_mode 1) never wait.
    synchronous_commit: str | None = None
    #: A worker looks for messages this often, though nobody told it of any.
    polling_interval: float = 5.0
    #: Messages claimed at once, at most.
    batch_size: int = 100
    #: Deliveries of a message after which it is put among the dead letters: x-delivery-limit of
    #: queues that don't say. 0: never.
    delivery_limit: int = 20
    #: Days that dead letters are kept. 0: for ever.
    dead_letter_days: float = 30.0
    #: DSN of the server itself, where the broker's URL is a transaction-mode pooler's.
    direct_url: URL | None = None
    #: Behind such a pooler, without a direct_url: how long a consumer may not be heard of.
    lease: float = 30.0
    #: More parameters of libpq's, such as sslmode.
    connect_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "Options":
        """Returns the options among a transport's. Those of kombu's other transports are ignored,
        with a warning. Raises `ConfigError` that lists every mistake."""
        problems, values, ignored = Problems(), {}, {}
        for key, value in given.items():
            if key in _KOMBU:
                continue
            if key in ignored_options.OPTIONS:
                ignored[key] = ignored_options.OPTIONS[key]
                continue
            if key not in _READERS:
                problems.add(key, "unknown_field", f"{key}: no such option; {_hint(key)}")
                continue
            try:
                values[key] = _READERS[key](value)
            except (ValueError, TypeError, ConfigError) as error:
                problems.add(key, "malformed", f"{key}: {error}")
        problems.raise_if_any(ConfigError, subject="broker_transport_options are wrong")
        ignored_options.warn("Options (broker_transport_options)", ignored)
        return cls(**values)

    @property
    def tables(self) -> BrokerTables:
        """The broker's tables."""
        return BrokerTables(self.queue_tablename, self.message_tablename)

    @property
    def limit(self) -> int | None:
        """The delivery limit; `None` where there is none."""
        return self.delivery_limit or None


def _hint(key: str) -> str:
    near = nearest(key, _READERS, cutoff=0.5)
    if near:
        return f"did you mean {near}?"
    foreign = nearest(key, ignored_options.OPTIONS, cutoff=0.8)
    if foreign:
        return f"did you mean {foreign}? It is another transport's, and ignored by this one"
    return f"there are {', '.join(sorted(_READERS))}"


def _number(lowest: float, highest: float, whole: bool = False) -> Any:
    def read(value: Any) -> float | int:
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if number != number:
            raise ValueError(f"{value!r} is not a number")
        if not lowest <= number <= highest:
            raise ValueError(f"{value} is out of range; at least {lowest:g}, at most {highest:g}")
        if whole and number != int(number):
            raise ValueError(f"{value!r} is not a whole number")
        return int(number) if whole else number

    return read


def _commit(value: Any) -> str | None:
    if value is None or value in _COMMITS:
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool):
        return "on" if value else "off"
    raise ValueError(f"{value!r} is none of {', '.join(_COMMITS)}")


def _table(value: Any) -> str:
    # Others are named after them, and Postgres cuts a name at 63 bytes.
    if not isinstance(value, str) or not 0 < len(value.encode()) <= 48:
        raise ValueError(f"{value!r} is not a table's name of at most 48 bytes")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping of libpq's parameters")
    return dict(value)


_READERS: dict[str, Any] = {
    "queue_tablename": _table,
    "message_tablename": _table,
    "synchronous_commit": _commit,
    "polling_interval": _number(0.01, 3600),
    "batch_size": _number(1, 10_000, whole=True),
    "delivery_limit": _number(0, 32_000, whole=True),
    "dead_letter_days": _number(0, 36_500),
    "direct_url": lambda value: None if value is None else postgres_url(str(value)),
    "lease": _number(3, 3600),
    "connect_args": _mapping,
}
