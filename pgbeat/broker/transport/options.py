"""Reads and checks the transport's options (`broker_transport_options`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy.engine import URL

from pgbeat.broker.transport import ignored_options
from pgbeat.config import postgres_url
from pgbeat.config.app_broker import TABLES, misnamed_tables
from pgbeat.errors import ConfigError
from pgbeat.suggest import nearest

#: Options that kombu and Celery read.
_KOMBU = {
    "body_encoding",
    "deadletter_queue",
    "callback",
    "errback",
    "on_revive",
    "max_retries",
    "interval_start",
    "interval_step",
    "interval_max",
    "retry_errors",
    "connect_retries_timeout",
    "timeout",
}
_COMMITS = ("on", "off", "local", "remote_write", "remote_apply")


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
    raise ValueError(f"{value!r} is not one of {', '.join(_COMMITS)}")


def _url(value: Any) -> URL | None:
    return None if value is None else postgres_url(str(value))


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping of libpq's parameters")
    return dict(value)


def _option(default: Any, read: Callable[[Any], Any]) -> Any:
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True)
class Options:
    """The options with their defaults. Times are seconds."""

    #: Whether a publish waits for the disk: Postgres's setting, by default the server's. With
    #: `off`, a crash of the server may lose the last fraction of a second. Messages with
    #: `delivery_mode` 1 never wait.
    synchronous_commit: str | None = _option(None, _commit)
    #: Whether claims and acknowledgements wait for the disk, and for a synchronous standby. Unless
    #: they do, a crash or failover may undo the last of them, and tasks run a second time.
    ack_synchronous_commit: str | None = _option("off", _commit)
    #: Seconds between two looks for messages that were not announced.
    polling_interval: float = _option(5.0, _number(0.01, 3600))
    #: The most messages claimed at once.
    batch_size: int = _option(100, _number(1, 10_000, whole=True))
    #: Deliveries after which a message becomes a dead letter; 0: never. A queue's
    #: `x-delivery-limit` takes precedence.
    delivery_limit: int = _option(20, _number(0, 32_000, whole=True))
    #: Days that dead letters are kept. 0: for ever.
    dead_letter_days: float = _option(30.0, _number(0, 36_500))
    #: DSN of the server itself, if the broker's URL is a transaction-mode pooler's.
    direct_url: URL | None = field(default=None, metadata={"read": _url})
    #: How many seconds a consumer may be silent, behind such a pooler without `direct_url`.
    lease: float = _option(30.0, _number(3, 3600))
    #: More parameters of libpq: `{"sslmode": "verify-full"}`.
    connect_args: Mapping[str, Any] = field(default_factory=dict, metadata={"read": _mapping})

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "Options":
        """Returns the options among a transport's, and warns of those of other transports.

        Raises `ConfigError` that lists every mistake.
        """
        problems, values, ignored = misnamed_tables(options), {}, {}
        for key, value in options.items():
            if key in _KOMBU or key in TABLES:
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
    def limit(self) -> int | None:
        """The delivery limit, if there is one."""
        return self.delivery_limit or None


def _hint(key: str) -> str:
    near = nearest(key, _READERS, cutoff=0.5)
    if near:
        return f"did you mean {near}?"
    foreign = nearest(key, ignored_options.OPTIONS, cutoff=0.8)
    if foreign:
        return f"did you mean {foreign}? It is another transport's, and ignored by this one"
    return f"there are {', '.join(sorted(_READERS))}"


_READERS = {option.name: option.metadata["read"] for option in fields(Options)}
