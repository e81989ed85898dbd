"""Settings: read from the Celery app (`pgbeat_*`) or the environment (`PGBEAT_*`), checked once."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from hashlib import sha1
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pgbeat.config import environment
from pgbeat.errors import ConfigError, Problem, Problems
from pgbeat.suggest import nearest

#: Schemes that mean Postgres, once kombu's `sqla+` (or `sqlalchemy+`) and a driver are taken off.
_POSTGRES = {"postgres", "postgresql"}
_LOOPBACK = ("127.0.0.1", "::1")
_TRANSPORTS = ("sqla+", "sqlalchemy+", "pgbeat+", "db+")


@lru_cache(maxsize=100)
def postgres_url(text: str) -> URL:
    """The SQLAlchemy URL (driver psycopg) of any of the ways to write a Postgres DSN.

    Accepts `postgresql://`, `postgres://`, `postgresql+DRIVER://`, and those behind kombu's
    `sqla+` or Celery's `db+`. Raises `ConfigError`, which shows no password, for anything else.
    """
    for prefix in _TRANSPORTS:
        text = text.removeprefix(prefix)
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError(
            "the database URL can't be parsed; expected postgresql://user:password@host:5432/name"
        ) from None
    except ValueError:  # what stands where the port should be may be a piece of the password
        raise ConfigError(
            "the database URL can't be parsed: its port is not a number; expected "
            "postgresql://user:password@host:5432/name, with %2F for a slash in the password"
        ) from None
    if url.get_backend_name() not in _POSTGRES and url.drivername not in _POSTGRES:
        raise ConfigError(
            f"{url.drivername}:// is not Postgres; expected postgresql://user:password@host:5432/name"
        )
    return url.set(drivername="postgresql+psycopg")


def is_postgres(text: str | None) -> bool:
    """Whether a broker's or database's URL means Postgres."""
    try:
        return bool(text) and bool(postgres_url(text or ""))
    except ConfigError:
        return False


def is_sqlalchemy_broker(text: str | None) -> bool:
    """Whether a broker's URL means pgbeat's transport, or kombu's SQLAlchemy one, on Postgres."""
    return bool(text) and str(text).startswith(_TRANSPORTS[:3]) and is_postgres(text)


def brokers(conf: Mapping[str, Any]) -> list[str]:
    """Returns the URLs that the app publishes to: several of a failover list, none where it has
    none."""
    # Attributes of Celery's settings first: they heed CELERY_BROKER_URL and its like.
    urls = next(
        (
            url
            for name in ("broker_write_url", "broker_url")
            if (url := getattr(conf, name, None) or conf.get(name))
        ),
        "",
    )
    listed = urls if isinstance(urls, list | tuple) else [urls]
    found = [part for url in listed for part in str(url or "").split(";") if part]
    if str(conf.get("broker_transport") or "").startswith("pgbeat"):
        return [url if "+" in url else f"pgbeat+{url}" for url in found]
    return found


def _first_broker(conf: Mapping[str, Any]) -> str:
    return next(iter(brokers(conf)), "")


def check_broker_url(conf: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if the app uses pgbeat's transport with a URL that is not Postgres."""
    if delays_in_table(conf):
        postgres_url(_first_broker(conf))


def delays_in_table(conf: Mapping[str, Any]) -> bool:
    """Whether the app's broker keeps a task's ETA itself: pgbeat's transport does."""
    return _first_broker(conf).startswith("pgbeat+")


def broker_database(conf: Mapping[str, Any]) -> URL:
    """Returns the DSN of the app's broker, which is a Postgres. Raises `ConfigError`."""
    return postgres_url(_first_broker(conf))


def is_own_broker(conf: Mapping[str, Any], url: URL) -> bool:
    """Whether the app publishes to pgbeat's transport, or kombu's, in the database of that URL."""
    broker = _first_broker(conf)
    return is_sqlalchemy_broker(broker) and same_database(postgres_url(broker), url)


def direct_url(conf: Mapping[str, Any], url: URL) -> URL | None:
    """Returns the server's own DSN where the app gives one: its broker is pgbeat's transport in the
    database of that URL, and has the option `direct_url`.

    Raises:
        ConfigError: It is no DSN of Postgres.
    """
    given = (conf.get("broker_transport_options") or {}).get("direct_url")
    if given and delays_in_table(conf) and is_own_broker(conf, url):
        return postgres_url(str(given))
    return None


def same_database(one: URL, other: URL) -> bool:
    """Whether two URLs name the same server and database (user, password and options aside)."""

    def place(url: URL) -> tuple[Any, ...]:
        host = url.host or url.query.get("host") or "localhost"
        host = "localhost" if host in _LOOPBACK else host
        port = url.port or url.query.get("port") or 5432
        return str(host), str(port), url.database or url.username

    return place(one) == place(other)


def place(url: URL) -> str:
    """Database, server and user for a sentence: `'app' on db.example.com:5432 as beat`."""
    host = url.host or url.query.get("host") or "the default host"
    port = url.port or url.query.get("port") or ""
    where = f"{host}:{port}" if port and not str(host).startswith("/") else str(host)
    user = f" as {url.username}" if url.username else ""
    return f"{url.database or url.username or 'default'!r} on {where}{user}"


def redacted(url: URL | str) -> str:
    """The URL for people to read: no password, wherever it was written."""
    url = make_url(url)
    query = {k: ("***" if "pass" in k.lower() else v) for k, v in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set. Times are seconds unless the name says otherwise."""

    #: DSN of the database with pgbeat's schema; the broker's where that is Postgres.
    url: URL
    #: Key of the advisory lock that makes one beat the leader.
    lock_key: int = 1050
    #: The longest that beat sleeps between two looks at the schedules.
    loop_interval: float = 5.0
    #: Schedules decided in one transaction, at most.
    batch_size: int = 500
    #: How long a condition and preparation may take together.
    condition_timeout: float = 30.0
    #: Conditions evaluated at the same time, at most.
    condition_threads: int = 8
    #: Failures in a row after which a new schedule is disabled.
    max_retries: int = 5
    #: A new schedule's n-th retry comes after base × 2^n seconds …
    retry_base: float = 60.0
    #: … but no later than this.
    retry_cap: float = 3600.0
    #: Days that ticks, jobs and executions are kept; 0 keeps them for ever.
    retention_days: float = 30.0
    #: The newest of each schedule are kept longer: so many.
    retention_count: int = 100
    #: Days that the audit is kept; 0 keeps it for ever.
    audit_days: float = 365.0
    #: Of the apps that share the database, whose schedules these are.
    namespace: str = "default"
    #: The app whose code makes schedules, for its beats to tell them from another app's; empty: the
    #: name that Celery knows it by.
    app: str = ""
    #: Bounds of a launcher's `snooze`, in seconds.
    snooze_min: float = 1.0
    snooze_max: float = 86_400.0
    #: Functions that a file's `schedulers:` may name, and their tasks.
    allowed_functions: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: Which tasks workers write executions of: of `launched` jobs, of `all` tasks, or `off`.
    track: str = "launched"
    #: Attempts at a job in all, where nothing else is said; 1 for no retry.
    job_max_attempts: int = 3
    #: A job's n-th retry comes after base × 2^(n-1) seconds …
    job_retry_base: float = 60.0
    #: … but no later than this.
    job_retry_cap: float = 3600.0
    #: How the log is written: `text`, or `json` for an object a line.
    log_format: str = "text"
    #: Whether webhooks may go to loopback and private networks.
    webhook_private: bool = False
    #: What JWTs of the team's own issuer are signed with: the shared secret, or a public key (PEM).
    web_jwt_key: str = field(default="", repr=False)
    #: Where the issuer publishes its public keys, instead.
    web_jwt_jwks: str = ""
    #: Algorithms that a JWT may be signed by, of one kind.
    web_jwt_algorithms: tuple[str, ...] = ("HS256",)
    #: What a JWT has to say in `iss` and `aud`; empty: not looked at.
    web_jwt_issuer: str = ""
    web_jwt_audience: str = ""
    #: The claim and the value that make a JWT an administrator's; empty: none is.
    web_jwt_admin: str = "role=admin"
    #: Globs of the tasks that users (not administrators) may have run through API and console,
    #: besides those of templates.
    web_tasks: tuple[str, ...] = ()
    #: Whether users may run such tasks in the web process itself (`/direct`).
    web_direct: bool = False
    #: Where people reach the web side, for Flower's links to it.
    web_url: str = ""
    #: Where Flower is, for links to it.
    web_flower_url: str = ""

    @property
    def leader_key(self) -> int:
        """Key of the lock that the leading beat of this namespace holds."""
        if self.namespace == "default":
            return self.lock_key
        digest = sha1(f"{self.lock_key}:{self.namespace}".encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    @classmethod
    def load(
        cls, conf: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
    ) -> "Settings":
        """Settings from a Celery app's `conf`; a `PGBEAT_*` variable wins over the app's.

        Raises `ConfigError` that lists every mistake.
        """
        conf = conf if conf is not None else {}
        given = _given(conf)
        problems = Problems([*_unknown(given), *environment.misspelt(environ, _READERS)])
        values: dict[str, Any] = {}
        wrong: set[str] = set()
        for name, read in _READERS.items():
            for source, text in (
                (environment.variable(name), environment.value(environ, name)),
                (f"pgbeat_{name}", given.get(f"pgbeat_{name}")),
            ):
                if text is not None:
                    try:
                        values[name] = read(text)
                    except (ValueError, TypeError, ConfigError) as error:
                        problems.add(source, "malformed", f"{source}: {error}")
                        wrong.add(name)
                    break
        if "url" not in values and "url" not in wrong:
            first = _first_broker(conf)
            if is_postgres(first):
                values["url"] = postgres_url(first)
            else:
                said = (
                    "pgbeat_url: not set, and the broker is not Postgres; set it "
                    "(or PGBEAT_URL) to postgresql://user:password@host:5432/name"
                )
                problems.add("pgbeat_url", "required", said)
        settings = cls(**{"url": make_url("postgresql://"), **values})
        if settings.retry_cap < settings.retry_base and not wrong & {"retry_base", "retry_cap"}:
            base = f"{settings.retry_base:g}"
            said = f"pgbeat_retry_cap: must not be below pgbeat_retry_base ({base})"
            problems.add("pgbeat_retry_cap", "out_of_range", said)
        job_base = settings.job_retry_base
        if settings.job_retry_cap < job_base and not wrong & {"job_retry_base", "job_retry_cap"}:
            said = f"pgbeat_job_retry_cap: must not be below pgbeat_job_retry_base ({job_base:g})"
            problems.add("pgbeat_job_retry_cap", "out_of_range", said)
        if not wrong & {"web_jwt_key", "web_jwt_jwks", "web_jwt_algorithms"}:
            problems += _jwt_problems(settings)
        problems.raise_if_any(ConfigError, subject="pgbeat's settings are wrong")
        return settings


def _given(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The app's settings that begin like ours. To ask the app for each that there is takes long.

    In a namespace (`CELERY_PGBEAT_URL`, with `config_from_object(…, namespace="CELERY")`) its keys
    say more than the names that it answers to.
    """
    given = {}
    for key in conf:
        before, found, name = str(key).lower().partition("pgbeat_")
        value = conf.get(found + name) if found else None
        if found and (not before or value is not None):
            given[found + name] = value
    return given


def _unknown(names: Iterable[str]) -> Iterator[Problem]:
    """Yields those of the app's settings that begin like ours and aren't, with the nearest."""
    for name in names:
        if name.removeprefix("pgbeat_") not in _READERS:
            # Without the prefix: it would make everything look near.
            near = nearest(name.removeprefix("pgbeat_"), _READERS)
            hint = f"did you mean pgbeat_{near}?" if near else f"known: {', '.join(_READERS)}"
            yield Problem(name, "unknown_field", f"{name}: no such setting; {hint}")


def _number(lowest: float, *, highest: float = 2**63 - 1, whole: bool = False) -> Any:
    def read(value: Any) -> float | int:
        if isinstance(value, bool):
            raise ValueError(f"{value!r} is not a number")
        try:
            number = int(value) if whole else float(value)
            if whole and isinstance(value, float) and number != value:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{value!r} is not {kind}") from None
        if not lowest <= number <= highest:
            raise ValueError(f"{number} is out of range; at least {lowest:g}, at most {highest:g}")
        return number

    return read


def _namespace(value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", str(value)):
        raise ValueError(f"{value!r} is no namespace; up to 63 letters, digits, '_', '.' and '-'")
    return str(value)


def _one_of(*words: str) -> Any:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is not one of {', '.join(map(repr, words))}")
        return str(value)

    return read


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in {"1", "true", "yes", "on", "0", "false", "no", "off"}:
        return str(value).lower() in {"1", "true", "yes", "on"}
    raise ValueError(f"{value!r} is neither true nor false")


def _globs(value: Any) -> tuple[str, ...]:
    """Names of tasks, `*` standing for any characters: with commas between them, or a list."""
    found = value.split(",") if isinstance(value, str) else value
    if isinstance(found, Mapping) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{value!r} must be a list of task names, such as ['reports.*']")
    return tuple(each.strip() for each in found if each.strip())


def _jwt_problems(settings: Settings) -> Iterator[Problem]:
    """Yields what doesn't go together among the settings of the issuer's JWTs."""
    key, is_secret = settings.web_jwt_key, settings.web_jwt_algorithms[0] in _SECRET_ALGORITHMS
    if key and settings.web_jwt_jwks:
        said = "pgbeat_web_jwt_key and pgbeat_web_jwt_jwks: set one of them"
        yield Problem("pgbeat_web_jwt_jwks", "conflict", said)
    if settings.web_jwt_jwks and is_secret:
        yield Problem(
            "pgbeat_web_jwt_algorithms",
            "conflict",
            "pgbeat_web_jwt_algorithms: published keys are public, and HS… needs a secret; name "
            "what the issuer signs by, such as RS256",
        )
    if key and is_secret and ("-----BEGIN" in key or len(key.encode()) < _SHORTEST):
        yield Problem(
            "pgbeat_web_jwt_key",
            "malformed",
            "pgbeat_web_jwt_key: for HS… it is a secret of at least 32 bytes, and no public key; "
            "for a public key set pgbeat_web_jwt_algorithms, such as RS256",
        )
    if key and not is_secret and "PUBLIC KEY-----" not in key:
        yield Problem(
            "pgbeat_web_jwt_key",
            "malformed",
            "pgbeat_web_jwt_key: for "
            f"{settings.web_jwt_algorithms[0]} it is a public key, as PEM "
            "(-----BEGIN PUBLIC KEY----- …)",
        )


#: Bytes of the shortest secret, as RFC 7518 has it for HS256.
_SHORTEST = 32
#: Those that PyJWT has, by what signs: a shared secret, or the issuer's private key.
_SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_KEY_ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip


def _algorithms(value: Any) -> tuple[str, ...]:
    """Names with commas between them, or a list; all of one kind, so that nobody signs by a public
    key as if it were a secret."""
    names = value.split(",") if isinstance(value, str) else value
    names = tuple(str(name).strip() for name in names)
    if names and (set(names) <= set(_SECRET_ALGORITHMS) or set(names) <= set(_KEY_ALGORITHMS)):
        return names
    raise ValueError(
        f"{value!r}: write one or several of {', '.join(_SECRET_ALGORITHMS)} (a shared secret), or "
        f"of {', '.join(_KEY_ALGORITHMS)} (the issuer's public key)"
    )


def _web_url(value: Any) -> str:
    if value and not re.fullmatch(r"https?://[^\s/]+[^\s]*", str(value)):
        raise ValueError(f"{value!r} is no URL of the web; write for example https://host/path")
    return str(value)


def _claim(value: Any) -> str:
    name, sign, wanted = str(value).partition("=")
    if value and not (name.strip() and sign and wanted.strip()):
        raise ValueError(f"{value!r} names no claim and value; write for example 'role=admin'")
    return str(value)


def _functions(value: Any) -> dict[str, str]:
    """Functions and their tasks: a mapping, or a list of tasks that go by their own names. In the
    environment, JSON of either, or `function=task,task`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [part.strip() for part in value.split(",") if part.strip()]
            value = dict(part.split("=", 1) if "=" in part else (part, part) for part in value)
    if isinstance(value, list | tuple | set | frozenset):
        value = {name: name for name in value}
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and name.strip() for pair in value.items() for name in pair
    ):
        raise ValueError(
            f"{value!r} is no mapping of functions to tasks; write for example "
            "{'reports.daily': 'shop.tasks.daily_report'}, or a list of tasks"
        )
    return {name.strip(): task.strip() for name, task in value.items()}


_READERS: dict[str, Any] = {
    "url": lambda value: postgres_url(str(value)),
    "lock_key": _number(-(2**63), whole=True),
    "loop_interval": _number(0.05, highest=300),
    "batch_size": _number(1, highest=10_000, whole=True),
    "condition_timeout": _number(0.01, highest=3600),
    "condition_threads": _number(1, highest=256, whole=True),
    "max_retries": _number(0, highest=1_000_000, whole=True),
    "retry_base": _number(0, highest=86_400 * 365),
    "retry_cap": _number(0, highest=86_400 * 365),
    "retention_days": _number(0, highest=36_500),
    "retention_count": _number(0, highest=1_000_000, whole=True),
    "audit_days": _number(0, highest=36_500),
    "namespace": _namespace,
    "app": str,
    "snooze_min": _number(0.01, highest=86_400 * 365),
    "snooze_max": _number(0.01, highest=86_400 * 365),
    "allowed_functions": _functions,
    "track": _one_of("launched", "all", "off"),
    "job_max_attempts": _number(1, highest=1000, whole=True),
    "job_retry_base": _number(0, highest=86_400 * 365),
    "job_retry_cap": _number(0, highest=86_400 * 365),
    "log_format": _one_of("text", "json"),
    "webhook_private": _flag,
    "web_jwt_key": str,
    "web_jwt_jwks": _web_url,
    "web_jwt_algorithms": _algorithms,
    "web_jwt_issuer": str,
    "web_jwt_audience": str,
    "web_jwt_admin": _claim,
    "web_tasks": _globs,
    "web_direct": _flag,
    "web_url": _web_url,
    "web_flower_url": _web_url,
}

if set(_READERS) != {each.name for each in fields(Settings)}:  # pragma: no cover
    raise AssertionError("every setting needs a reader")
