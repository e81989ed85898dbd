"""URLs of Postgres: reads any spelling, compares them, and shows them without passwords."""

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pgbeat.errors import ConfigError

#: Schemes that mean Postgres, once kombu's `sqla+` (or `sqlalchemy+`) and a driver are taken off.
_POSTGRES = {"postgres", "postgresql"}
_LOOPBACK = ("", "127.0.0.1", "::1")
#: How the URLs of brokers on Postgres begin, and of Celery's result backend.
BROKER_PREFIXES = ("sqla+", "sqlalchemy+", "pgbeat+")
_RESULT_PREFIX = "db+"


@lru_cache(maxsize=100)
def postgres_url(text: str) -> URL:
    """Returns the SQLAlchemy URL (driver psycopg) of a Postgres DSN.

    Accepts `postgresql://`, `postgres://`, `postgresql+DRIVER://`, and those behind kombu's
    `sqla+` or Celery's `db+`. Several servers of one database are written as libpq has them
    (`h1:5432,h2:5432`), or as a failover list of kombu's (`URL;URL`). Raises `ConfigError`, which
    shows no password, for anything else.
    """
    urls = [_one_url(part) for part in _NEXT_URL.split(text)]
    url = merged(urls)
    if url is None:
        raise ConfigError("the URLs of a failover list may differ only in their servers")
    return url


def merged(urls: Iterable[URL]) -> URL | None:
    """Returns the URL of one database on several servers; `None` if the URLs differ in more.

    Only the first need have parameters, since kombu drops those of the others.
    """
    first, *others = urls
    if not others:
        return first
    plain = _without_servers(first)
    for other in map(_without_servers, others):
        if other not in (plain, plain.set(query={})):
            return None
    places = list(dict.fromkeys(server for url in urls for server in servers(url)))
    return _with_servers(plain, places)


def servers(url: URL) -> list[tuple[str, str]]:
    """Returns the hosts and ports of a URL; empty texts stand for libpq's defaults."""
    ports = _listed(url.query.get("port") or str(url.port or ""))
    if "host" not in url.query:
        return [(url.host or "", ports[0])]
    hosts = _listed(url.query["host"])
    if not any(ports):  # each may have its own
        return [(name, port) for name, _, port in (host.partition(":") for host in hosts)]
    all_ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    return list(zip(hosts, all_ports, strict=True))


def _listed(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else tuple(value.split(","))


def _without_servers(url: URL) -> URL:
    return url._replace(host=None, port=None).difference_update_query(["host", "port"])


def _with_servers(url: URL, places: list[tuple[str, str]]) -> URL:
    hosts, ports = zip(*places, strict=True)
    return url.update_query_dict({"host": ",".join(hosts), "port": ",".join(ports)})


def _one_url(text: str) -> URL:
    for prefix in (*BROKER_PREFIXES, _RESULT_PREFIX):
        text = text.removeprefix(prefix)
    several = _SEVERAL.match(text)
    if several:
        text = several["before"] + several["after"]
    try:
        url = make_url(text)
        if several:
            url = _with_servers(url, [_server(server) for server in several["servers"].split(",")])
        if "@" in (url.host or ""):
            raise ValueError(text)
        if _is_folder(host := url.host or ""):
            url = _with_servers(_without_servers(url), [(unquote(host), str(url.port or ""))])
    except ArgumentError:
        raise ConfigError(
            "the database URL can't be parsed; expected postgresql://user:password@host:5432/name"
        ) from None
    except ValueError:  # what stands where they should be may be a piece of the password
        raise ConfigError(
            "the database URL can't be parsed: its host or port is none; expected "
            "postgresql://user:password@host:5432/name, with %40 for an @, %2F for a slash and %3B "
            "for a semicolon in the password"
        ) from None
    if url.get_backend_name() not in _POSTGRES and url.drivername not in _POSTGRES:
        raise ConfigError(
            f"{url.drivername}:// is not Postgres; expected postgresql://user:password@host:5432/name"
        )
    return url.set(drivername="postgresql+psycopg")


#: Where another URL of a failover list begins.
_NEXT_URL = re.compile(r";(?=[\w+]+://)")
#: A URL that names several servers. What it has before them is SQLAlchemy's: a password ends at the
#: last @ before which there is no other.
_SEVERAL = re.compile(
    r"(?P<before>[\w+]+://(?>(?:[^:/]*(?::[^@]*)?@)?))(?P<servers>[^/?@]*,[^/?@]*)(?P<after>[/?].*|)$"
)
_SERVER = re.compile(r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<name>[^:]*))(?::(?P<port>\d*))?")


def _server(text: str) -> tuple[str, str]:
    """Returns a host and its port. Raises `ValueError`."""
    match = _SERVER.fullmatch(text)
    if match is None:
        raise ValueError(text)
    name = match["name"] or ""
    return match["ipv6"] or (unquote(name) if _is_folder(name) else name), match["port"] or ""


def _is_folder(host: str) -> bool:
    """Returns whether a host is a folder of sockets, as libpq's URLs have it."""
    return host.lower().startswith("%2f")


def is_postgres(text: str | None) -> bool:
    """Returns whether a broker's or database's URL means Postgres."""
    try:
        return bool(text) and bool(postgres_url(text or ""))
    except ConfigError:
        return False


def same_database(one: URL, other: URL) -> bool:
    """Returns whether two URLs name the same server and database, whatever the user and options.

    Of several servers, one in common is enough.
    """

    def places(url: URL) -> set[tuple[str, str, str | None]]:
        return {
            (
                "localhost" if host in _LOOPBACK else host,
                port or "5432",
                url.database or url.username,
            )
            for host, port in servers(url)
        }

    return not places(one).isdisjoint(places(other))


def place(url: URL) -> str:
    """Returns database, server and user for a sentence: `'app' on db.example.com:5432 as beat`."""
    where = ", ".join(
        f"{host}:{port}" if port and not host.startswith("/") else host or "the default host"
        for host, port in servers(url)
    )
    user = f" as {url.username}" if url.username else ""
    return f"{url.database or url.username or 'default'!r} on {where}{user}"


def redacted(url: URL | str) -> str:
    """Returns the URL without its password, wherever that was written."""
    url = make_url(url)
    query = {k: ("***" if "pass" in k.lower() else v) for k, v in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)
