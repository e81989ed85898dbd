"""Finds the app's broker in its settings: pgbeat's transport or another, in which database."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import URL

from pgbeat.config.urls import BROKER_PREFIXES, is_postgres, merged, postgres_url, same_database
from pgbeat.errors import ConfigError, Problems

#: The options of kombu's SQLAlchemy transport that name its tables, and the names they have here.
TABLES = {"queue_tablename": "kombu_queue", "message_tablename": "kombu_message"}


def is_sqlalchemy_broker(text: str | None) -> bool:
    """Returns whether a URL means pgbeat's transport, or kombu's SQLAlchemy one, on Postgres."""
    return bool(text) and str(text).startswith(BROKER_PREFIXES) and is_postgres(text)


def brokers(conf: Mapping[str, Any]) -> list[str]:
    """Returns the URLs that the app publishes to: several for a failover list, maybe none."""
    # Attributes of Celery's settings first: they heed CELERY_BROKER_URL and its like.
    settings = (getattr(conf, n, None) or conf.get(n) for n in ("broker_write_url", "broker_url"))
    urls = next(filter(None, settings), "")
    listed = urls if isinstance(urls, list | tuple) else [urls]
    texts = [part for url in listed for part in str(url or "").split(";") if part]
    if str(conf.get("broker_transport") or "").startswith("pgbeat"):
        return [url if "+" in url else f"pgbeat+{url}" for url in texts]
    return texts


def first_broker(conf: Mapping[str, Any]) -> str:
    """Returns the first URL that the app publishes to; empty if it has none."""
    return next(iter(brokers(conf)), "")


def check_broker_url(conf: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if the app uses pgbeat's transport with a URL that is not Postgres."""
    if delays_in_table(conf):
        postgres_url(first_broker(conf))


def delays_in_table(conf: Mapping[str, Any]) -> bool:
    """Returns whether the app's broker keeps a task's ETA itself: pgbeat's transport does."""
    return first_broker(conf).startswith("pgbeat+")


def broker_database(conf: Mapping[str, Any]) -> URL:
    """Returns the DSN of the app's broker, which is a Postgres. Raises `ConfigError`.

    A failover list of one database's servers is one DSN; of any other list it is the first.
    """
    urls = [postgres_url(url) for url in brokers(conf) if is_postgres(url)]
    return (merged(urls) if urls else None) or postgres_url(first_broker(conf))


def is_own_broker(conf: Mapping[str, Any], url: URL) -> bool:
    """Returns whether the app publishes to that database, by pgbeat's transport or kombu's.

    Raises `ConfigError` if it does, to tables of other names than pgbeat's.
    """
    broker = first_broker(conf)
    if not is_sqlalchemy_broker(broker) or not same_database(broker_database(conf), url):
        return False
    options = conf.get("broker_transport_options") or {}
    misnamed_tables(options).raise_if_any(ConfigError, subject="broker_transport_options are wrong")
    return True


def misnamed_tables(options: Mapping[str, Any]) -> Problems:
    """Returns the transport options that give the broker's tables other names than they have."""
    problems = Problems()
    for option, name in TABLES.items():
        if options.get(option, name) != name:
            flag = "--" + option.removesuffix("name").replace("_", "-")
            problems.add(
                option,
                "unknown",
                f"{option}: the table is always {name}; leave the option out, stop the programs "
                f"that use a table of another name, and rename it: `pgbeat migrate {flag} NAME`",
            )
    return problems


def direct_url(conf: Mapping[str, Any], url: URL) -> URL | None:
    """Returns the server's own DSN: the option `direct_url` of pgbeat's transport in that database.

    `None` if the app doesn't set it. Raises `ConfigError` for one that is not Postgres.
    """
    option = (conf.get("broker_transport_options") or {}).get("direct_url")
    if option and delays_in_table(conf) and is_own_broker(conf, url):
        return with_login(postgres_url(str(option)), conf)
    return None


def with_login(url: URL, conf: Mapping[str, Any]) -> URL:
    """Returns the URL with what the options of pgbeat's transport say of TLS and passwords.

    The transport has them beside the URL (`connect_args`). Other sessions at its database must
    verify the server, and log in, as it does.
    """
    if not delays_in_table(conf):
        return url
    login = {k: str(v) for k, v in connect_args(conf).items() if k.startswith(_LOGIN)}
    if "password" in login:
        url = url.set(password=login.pop("password"))
    return url.update_query_dict(login)


#: How libpq's parameters begin that say how to log in, and whom to trust.
_LOGIN = ("ssl", "gss", "krb", "pass", "channel_binding", "require_auth")


def connect_args(conf: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns libpq's parameters among the options of the app's transport."""
    options = conf.get("broker_transport_options") or {}
    arguments = options.get("connect_args")
    return arguments if isinstance(arguments, Mapping) else {}
