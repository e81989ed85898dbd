"""The settings: their defaults, how they are loaded, and what must fit together."""

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields
from hashlib import sha1
from typing import Any

from sqlalchemy.engine import URL, make_url

from pgbeat.config import environment
from pgbeat.config.app_broker import first_broker
from pgbeat.config.readers import READERS, SECRET_ALGORITHMS
from pgbeat.config.urls import is_postgres, postgres_url
from pgbeat.errors import ConfigError, Problem, Problems
from pgbeat.suggest import nearest


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings and their defaults. Times are seconds unless the name says otherwise."""

    #: DSN of the database with pgbeat's schema; the broker's where that is Postgres.
    url: URL
    #: Key of the advisory lock that the leading beat holds.
    lock_key: int = 1050
    #: The longest that beat sleeps between two looks at the schedules.
    loop_interval: float = 5.0
    #: Schedules decided in one transaction, at most.
    batch_size: int = 500
    #: How long a launcher's condition and preparation may take together.
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
    #: How many of the newest of each schedule are kept longer.
    retention_count: int = 100
    #: Days that the audit log is kept; 0 keeps it for ever.
    audit_days: float = 365.0
    #: Separates the schedules and jobs of apps that share the database.
    namespace: str = "default"
    #: By which beats know the schedules that their app's code makes; empty: the app's Celery name.
    app: str = ""
    #: Bounds of a launcher's `snooze`, in seconds.
    snooze_min: float = 1.0
    snooze_max: float = 86_400.0
    #: Functions that a file's `schedulers:` may name, and their tasks.
    allowed_functions: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: Which tasks workers write executions of: of `launched` jobs, of `all` tasks, or `off`.
    track: str = "launched"
    #: Attempts at a job in all, unless its policy sets them; 1 for no retry.
    job_max_attempts: int = 3
    #: A job's n-th retry comes after base × 2^(n-1) seconds …
    job_retry_base: float = 60.0
    #: … but no later than this.
    job_retry_cap: float = 3600.0
    #: Format of the log: `text`, or `json` for an object a line.
    log_format: str = "text"
    #: Whether webhooks may go to loopback and private networks.
    webhook_private: bool = False
    #: Verifies JWTs of the team's own issuer: the shared secret, or its public key (PEM).
    web_jwt_key: str = field(default="", repr=False)
    #: Where the issuer publishes its public keys, instead of `web_jwt_key`.
    web_jwt_jwks: str = ""
    #: Algorithms that may sign a JWT: all of one kind.
    web_jwt_algorithms: tuple[str, ...] = ("HS256",)
    #: What `iss` and `aud` of a JWT must be; empty: anything.
    web_jwt_issuer: str = ""
    web_jwt_audience: str = ""
    #: The claim and value of an administrator's JWT; empty: no JWT is an administrator's.
    web_jwt_admin: str = "role=admin"
    #: Globs of the tasks that users who are not administrators may run through API and console,
    #: besides those of templates.
    web_tasks: tuple[str, ...] = ()
    #: Whether users may run such tasks in the web process itself (`/direct`).
    web_direct: bool = False
    #: URL of the web side, for Flower's links to it.
    web_url: str = ""
    #: URL of Flower, for links to it.
    web_flower_url: str = ""

    @property
    def leader_key(self) -> int:
        """Returns the key of the lock that the leading beat of this namespace holds."""
        if self.namespace == "default":
            return self.lock_key
        digest = sha1(f"{self.lock_key}:{self.namespace}".encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    @classmethod
    def load(
        cls, conf: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
    ) -> "Settings":
        """Loads settings from a Celery app's `conf`, which `PGBEAT_*` variables override.

        Raises `ConfigError` that lists every mistake.
        """
        conf = conf if conf is not None else {}
        given = _given(conf)
        problems = Problems([*_unknown(given), *environment.misspelt(environ, READERS)])
        values: dict[str, Any] = {}
        wrong: set[str] = set()
        for name, read in READERS.items():
            source, text = environment.variable(name), environment.value(environ, name)
            if text is None:
                source, text = f"pgbeat_{name}", given.get(f"pgbeat_{name}")
            if text is None:
                continue
            try:
                values[name] = read(text)
            except (ValueError, TypeError, ConfigError) as error:
                problems.add(source, "malformed", f"{source}: {error}")
                wrong.add(name)
        if "url" not in values and "url" not in wrong:
            first = first_broker(conf)
            if is_postgres(first):
                values["url"] = postgres_url(first)
            else:
                said = (
                    "pgbeat_url: not set, and the broker is not Postgres; set it "
                    "(or PGBEAT_URL) to postgresql://user:password@host:5432/name"
                )
                problems.add("pgbeat_url", "required", said)
        settings = cls(**{"url": make_url("postgresql://"), **values})
        problems += _conflicts(settings, wrong)
        problems.raise_if_any(ConfigError, subject="pgbeat's settings are wrong")
        return settings


def _given(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the app's settings that begin like ours; asking the app for each of ours is slow.

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
    """Yields a problem for each unknown setting that begins like ours, with the nearest name."""
    for name in names:
        if name.removeprefix("pgbeat_") not in READERS:
            # Without the prefix: it would make everything look near.
            near = nearest(name.removeprefix("pgbeat_"), READERS)
            hint = f"did you mean pgbeat_{near}?" if near else f"known: {', '.join(READERS)}"
            yield Problem(name, "unknown_field", f"{name}: no such setting; {hint}")


def _conflicts(settings: Settings, wrong: Set[str]) -> Iterator[Problem]:
    """Yields what doesn't fit together, but for settings that are wrong by themselves."""
    for base, cap in (("retry_base", "retry_cap"), ("job_retry_base", "job_retry_cap")):
        lowest = getattr(settings, base)
        if getattr(settings, cap) < lowest and not wrong & {base, cap}:
            said = f"pgbeat_{cap}: must not be below pgbeat_{base} ({lowest:g})"
            yield Problem(f"pgbeat_{cap}", "out_of_range", said)
    if not wrong & {"web_jwt_key", "web_jwt_jwks", "web_jwt_algorithms"}:
        yield from _jwt_conflicts(settings)


def _jwt_conflicts(settings: Settings) -> Iterator[Problem]:
    """Yields what doesn't fit together among the settings of the issuer's JWTs."""
    key, is_secret = settings.web_jwt_key, settings.web_jwt_algorithms[0] in SECRET_ALGORITHMS
    if key and settings.web_jwt_jwks:
        said = "pgbeat_web_jwt_key and pgbeat_web_jwt_jwks: set one of them"
        yield Problem("pgbeat_web_jwt_jwks", "conflict", said)
    if settings.web_jwt_jwks and is_secret:
        yield Problem(
            "pgbeat_web_jwt_algorithms",
            "conflict",
            "pgbeat_web_jwt_algorithms: published keys are public, and HS… needs a secret; name "
            "the issuer's algorithm, such as RS256",
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
            f"pgbeat_web_jwt_key: for {settings.web_jwt_algorithms[0]} it is a public key, as PEM "
            "(-----BEGIN PUBLIC KEY----- …)",
        )


#: Bytes of the shortest secret, as RFC 7518 has it for HS256.
_SHORTEST = 32

if set(READERS) != {each.name for each in fields(Settings)}:  # pragma: no cover
    raise AssertionError("every setting needs a reader")
