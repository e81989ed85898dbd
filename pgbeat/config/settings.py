"""The settings: their defaults, how they are loaded, and what must fit together."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields
from hashlib import sha1
from typing import Any

from sqlalchemy.engine import URL, make_url

from pgbeat.config import environment, readers
from pgbeat.config.app_broker import broker_database, check_broker_url, first_broker, with_login
from pgbeat.config.urls import is_postgres, postgres_url
from pgbeat.errors import ConfigError, Problem, Problems
from pgbeat.suggest import nearest

_YEAR = 86_400 * 365
#: A setting of Django's, which names the entry of `DATABASES` that is pgbeat's.
_OF_DJANGO = "pgbeat_database"


def _setting(default: Any, read: Callable[[Any], Any]) -> Any:
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings and their defaults. Times are seconds unless the name says otherwise."""

    #: DSN of the database with pgbeat's schema: `postgresql://`, `postgresql+psycopg://` or
    #: `sqla+postgresql…://`. By default the broker's if that is Postgres; in a Django project that
    #: of `DATABASES`.
    url: URL = field(metadata={"read": lambda value: postgres_url(str(value))})
    #: Key of the advisory lock that the leading beat holds, a 64-bit integer. All beats on one
    #: database must share it.
    lock_key: int = _setting(1050, readers.number(-(2**63), whole=True))
    #: The longest that beat sleeps between two looks at the schedules. `--max-interval` and
    #: `beat_max_loop_interval` take precedence.
    loop_interval: float = _setting(5.0, readers.number(0.05, highest=300))
    #: Between two looks of a worker or the leading beat at the locks that show which workers live,
    #: and between two signs of life of a worker.
    lock_interval: float = _setting(1.5, readers.number(0.1, highest=60))
    #: How long a worker may be without its lock before it counts as dead, and its executions as
    #: lost. A worker whose connection broke must be back sooner.
    lock_patience: float = _setting(5.0, readers.number(1, highest=3600))
    #: Between two writes of what beat measures, and of what a worker reports of itself (queues,
    #: CPU, memory).
    metrics_interval: float = _setting(10.0, readers.number(0.1, highest=3600))
    #: Schedules decided in one transaction, at most.
    batch_size: int = _setting(500, readers.number(1, highest=10_000, whole=True))
    #: How long a launcher's condition and preparation may take together.
    condition_timeout: float = _setting(30.0, readers.number(0.01, highest=3600))
    #: DSN of another role of that database, by which conditions in SQL and `ctx.connection` of
    #: launchers read it; none: `pgbeat_url`.
    condition_url: URL | None = field(
        default=None, metadata={"read": lambda value: postgres_url(str(value))}
    )
    #: DSN of a replica of the database, from which lists, the timeline and metrics are read; none:
    #: `pgbeat_url`.
    read_url: URL | None = field(
        default=None, metadata={"read": lambda value: postgres_url(str(value))}
    )
    #: How far the replica may be behind before the primary is read instead.
    read_lag: float = _setting(10.0, readers.number(0.1, highest=86_400))
    #: Roles as which jobs of the task `pgbeat.sql` may run their statements; none: it is off.
    sql_roles: tuple[str, ...] = _setting((), readers.roles)
    #: DSN of a login to that database by which they run: a member of these roles, and of no other.
    sql_url: URL | None = field(
        default=None, metadata={"read": lambda value: postgres_url(str(value))}
    )
    #: The longest that such a statement may take.
    sql_timeout: float = _setting(300.0, readers.number(0.01, highest=86_400 * 7))
    #: Conditions evaluated at the same time, at most.
    condition_threads: int = _setting(8, readers.number(1, highest=256, whole=True))
    #: Failed decisions in a row after which a new schedule of the app's code is disabled.
    max_retries: int = _setting(5, readers.number(0, highest=1_000_000, whole=True))
    #: Its n-th retry comes after base × 2^n seconds …
    retry_base: float = _setting(60.0, readers.number(0, highest=_YEAR))
    #: … but no later than this.
    retry_cap: float = _setting(3600.0, readers.number(0, highest=_YEAR))
    #: Days that ticks, jobs and executions are kept; 0 keeps them for ever.
    retention_days: float = _setting(30.0, readers.number(0, highest=36_500))
    #: How many of the newest ticks and jobs of each schedule are kept longer.
    retention_count: int = _setting(100, readers.number(0, highest=1_000_000, whole=True))
    #: Days that the audit log is kept; 0 keeps it for ever.
    audit_days: float = _setting(365.0, readers.number(0, highest=36_500))
    #: Days that events are kept for jobs that have not waited for them yet; 0 keeps them for ever.
    event_days: float = _setting(30.0, readers.number(0, highest=36_500))
    #: Separates the schedules and jobs of apps that share the database.
    namespace: str = _setting("default", readers.NAMESPACE)
    #: Under which the schedules of the app's code are recorded; empty: the app's name, as in
    #: `Celery("shop")`. Set it to the old name when you rename the app.
    app: str = _setting("", str)
    #: The shortest `snooze` of a launcher.
    snooze_min: float = _setting(1.0, readers.number(0.01, highest=_YEAR))
    #: The longest `snooze` of a launcher.
    snooze_max: float = _setting(86_400.0, readers.number(0.01, highest=_YEAR))
    #: Functions that a file's `schedulers:` may name: a list of tasks, or a mapping to tasks.
    allowed_functions: Mapping[str, str] = field(
        default_factory=dict, hash=False, metadata={"read": readers.functions}
    )
    #: Which tasks workers write executions of: of `launched` jobs, of `all` tasks, or `off`.
    track: str = _setting("launched", readers.one_of("launched", "all", "off"))
    #: Seconds after the start of a worker in which tasks that no worker knows wait for one that
    #: does, on pgbeat's transport; 0 fails them at once.
    deploy_window: float = _setting(600.0, readers.number(0, highest=_YEAR))
    #: The version of the app, which workers report and tasks with `pin` stay on; by default the
    #: environment's `GIT_SHA`.
    version: str = _setting("", readers.VERSION)
    #: How many of the last lines that an execution logs are kept.
    task_log_lines: int = _setting(200, readers.number(0, highest=10_000, whole=True))
    #: Whether tasks that are acknowledged late end in one transaction: their result, their message,
    #: and what follows. By default those do that use `pgbeat.finish`.
    finish: bool | None = _setting(None, readers.flag)
    #: Attempts at a job in all, unless its policy sets them; 1 for no retry.
    job_max_attempts: int = _setting(1, readers.number(1, highest=1000, whole=True))
    #: A job's n-th retry comes after base × 2^(n-1) seconds …
    job_retry_base: float = _setting(60.0, readers.number(0, highest=_YEAR))
    #: … but no later than this.
    job_retry_cap: float = _setting(3600.0, readers.number(0, highest=_YEAR))
    #: Policies of tasks, by globs of their names: whatever sends such a task makes a job. In the
    #: environment, JSON.
    task_policies: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, hash=False, metadata={"read": readers.policies}
    )
    #: Where a beat or a worker serves metrics itself, as `HOST:PORT`; empty: nowhere.
    metrics_listen: str = _setting("", readers.LISTEN)
    #: Format of the log: `text`, or `json` for an object a line.
    log_format: str = _setting("text", readers.one_of("text", "json"))
    #: Whether webhooks may go to loopback and private networks.
    webhook_private: bool = _setting(False, readers.flag)
    #: Verifies JWTs of the team's own issuer: the shared secret (HS256 …, at least 32 bytes), or
    #: its public key (PEM).
    web_jwt_key: str = field(default="", repr=False, metadata={"read": str})
    #: Where the issuer publishes its public keys, instead of `web_jwt_key`.
    web_jwt_jwks: str = _setting("", readers.WEB_URL)
    #: Algorithms that may sign a JWT: all HS…, or all RS…, PS…, ES… and EdDSA.
    web_jwt_algorithms: tuple[str, ...] = _setting(("HS256",), readers.algorithms)
    #: What `iss` of a JWT must be; empty: anything.
    web_jwt_issuer: str = _setting("", str)
    #: What its `aud` must be; empty: anything.
    web_jwt_audience: str = _setting("", str)
    #: The claim and value of an administrator's JWT; empty: no JWT is an administrator's.
    web_jwt_admin: str = _setting("role=admin", readers.CLAIM)
    #: The same of a viewer's, who sees everything and changes nothing.
    web_jwt_viewer: str = _setting("role=viewer", readers.CLAIM)
    #: Globs of the tasks that users who are not administrators may run through API and console,
    #: besides those of templates.
    web_tasks: tuple[str, ...] = _setting((), readers.globs)
    #: Whether users may run such tasks in the web process itself (`/direct`).
    web_direct: bool = _setting(False, readers.flag)
    #: How many changes and sign-ins a user may make in a minute in a web process; 0: any number.
    #: Like the next two, not for administrators.
    web_user_rate: int = _setting(120, readers.number(0, highest=1_000_000, whole=True))
    #: How many jobs, with their links, a user may make in one request; 0: any number.
    web_user_jobs: int = _setting(1000, readers.number(0, highest=1_000_000, whole=True))
    #: How many days ahead a user's job may be; 0: any number.
    web_user_days: float = _setting(30.0, readers.number(0, highest=36_500))
    #: Arguments that only administrators see, by globs of task names: `{"billing.*": ["card"]}`;
    #: `*`: results and errors too.
    redact: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, hash=False, metadata={"read": readers.redact}
    )
    #: Where the web app is reached, for links from Flower and Django's admin site, and callback
    #: URLs.
    web_url: str = _setting("", readers.WEB_URL)
    #: Signs callback URLs: a secret of at least 32 bytes, of programs that make them and of the web
    #: app. A new one ends them all.
    callback_key: str = field(default="", repr=False, metadata={"read": readers.secret})
    #: URL of Flower, for links to it.
    web_flower_url: str = _setting("", readers.WEB_URL)
    #: How many of the newest executions Flower shows when it starts; 0: none.
    flower_history: int = _setting(1000, readers.number(0, highest=100_000, whole=True))

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
        options = given_settings(conf)
        problems = Problems([*_unknown(options), *environment.misspelt(environ, _READERS)])
        values: dict[str, Any] = {}
        wrong: set[str] = set()
        for name, read in _READERS.items():
            source, text = environment.variable(name), environment.value(environ, name)
            if text is None:
                source, text = f"pgbeat_{name}", options.get(f"pgbeat_{name}")
            if text is None and name in environment.ELSEWHERE:
                source = environment.ELSEWHERE[name]
                text = environ.get(source) or None
            if text is None:
                continue
            try:
                values[name] = read(text)
            except (ValueError, TypeError, ConfigError) as error:
                problems.add(source, "malformed", f"{source}: {error}")
                wrong.add(name)
        if "url" not in values and "url" not in wrong:
            if is_postgres(first_broker(conf)):
                values["url"] = with_login(broker_database(conf), conf)
            else:
                message = (
                    "pgbeat_url: not set, and the broker is not Postgres; set it "
                    "(or PGBEAT_URL) to postgresql://user:password@host:5432/name"
                )
                try:
                    check_broker_url(conf)
                except ConfigError as error:  # it was meant to be
                    message = f"broker_url: {error}"
                problems.add("pgbeat_url", "required", message)
        settings = cls(**{"url": make_url("postgresql://"), **values})
        problems += _conflicts(settings, wrong)
        problems.raise_if_any(ConfigError, subject="pgbeat's settings are wrong")
        return settings


def given_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the app's settings that begin like pgbeat's; a lookup of each setting is slow.

    In a namespace (`CELERY_PGBEAT_URL`, with `config_from_object(…, namespace="CELERY")`) its keys
    say more than the names that it answers to, and those outside of the namespace are not read.
    """
    options, has_namespace = {}, bool(getattr(conf, "prefix", None))
    for key in conf:
        before, prefix, name = str(key).lower().partition("pgbeat_")
        value = conf.get(prefix + name) if prefix else None
        if prefix and (value is not None or not (before or has_namespace)):
            options[prefix + name] = value
    return options


def _unknown(names: Iterable[str]) -> Iterator[Problem]:
    """Yields a problem for each unknown setting that begins like ours, with the nearest name."""
    for name in names:
        if name != _OF_DJANGO and name.removeprefix("pgbeat_") not in _READERS:
            # Without the prefix: it would make everything look near.
            near = nearest(name.removeprefix("pgbeat_"), _READERS)
            hint = f"did you mean pgbeat_{near}?" if near else f"known: {', '.join(_READERS)}"
            yield Problem(name, "unknown_field", f"{name}: no such setting; {hint}")


def _conflicts(settings: Settings, wrong: Set[str]) -> Iterator[Problem]:
    """Yields conflicts between settings, but for settings that are wrong by themselves."""
    for base, cap in (("retry_base", "retry_cap"), ("job_retry_base", "job_retry_cap")):
        lowest = getattr(settings, base)
        if getattr(settings, cap) < lowest and not wrong & {base, cap}:
            message = f"pgbeat_{cap}: must not be below pgbeat_{base} ({lowest:g})"
            yield Problem(f"pgbeat_{cap}", "out_of_range", message)
    if settings.sql_roles and settings.sql_url is None and not wrong & {"sql_url"}:
        message = (
            "pgbeat_sql_url: pgbeat_sql_roles needs it: the DSN of a login of its own, which is a "
            "member of these roles"
        )
        yield Problem("pgbeat_sql_url", "required", message)
    if not wrong & {"web_jwt_key", "web_jwt_jwks", "web_jwt_algorithms"}:
        yield from _jwt_conflicts(settings)


def _jwt_conflicts(settings: Settings) -> Iterator[Problem]:
    """Yields conflicts between the settings of the issuer's JWTs."""
    key = settings.web_jwt_key
    is_secret = settings.web_jwt_algorithms[0] in readers.SECRET_ALGORITHMS
    if key and settings.web_jwt_jwks:
        message = "pgbeat_web_jwt_key and pgbeat_web_jwt_jwks: set one of them"
        yield Problem("pgbeat_web_jwt_jwks", "conflict", message)
    if settings.web_jwt_jwks and is_secret:
        yield Problem(
            "pgbeat_web_jwt_algorithms",
            "conflict",
            "pgbeat_web_jwt_algorithms: published keys are public, and HS… needs a secret; name "
            "the issuer's algorithm, such as RS256",
        )
    if key and is_secret and ("-----BEGIN" in key or len(key.encode()) < readers.SHORTEST):
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


_READERS = {setting.name: setting.metadata["read"] for setting in fields(Settings)}
