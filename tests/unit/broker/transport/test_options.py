"""Options of the transport: which are refused, with which messages."""

import re
from dataclasses import fields
from typing import Any

import kombu
import pytest
from celery import Celery
from celery.app.defaults import DEFAULTS
from kombu.exceptions import OperationalError

from pgbeat.broker.transport import ignored_options
from pgbeat.broker.transport.options import Options
from pgbeat.errors import ConfigError

#: A port without a server.
NOWHERE = "pgbeat+postgresql://me:secret@127.0.0.1:1/nowhere"


def test_a_server_that_is_not_there() -> None:
    """It is an error, of those that Celery retries on; no password is in it."""
    at_once = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    with kombu.Connection(NOWHERE, transport_options=at_once) as connection:
        with pytest.raises(connection.connection_errors) as lost:
            connection.transport.establish_connection()
        assert "secret" not in str(lost.value)
        with pytest.raises(OperationalError) as refused:
            connection.default_channel.queue_declare("q")
        assert "secret" not in str(refused.value)
        assert not connection.connected
        errors: list[BaseException] = []
        with pytest.raises(OperationalError) as said:
            connection.ensure_connection(
                errback=lambda error, interval: errors.append(error),
                max_retries=2,
                interval_start=0,
                interval_step=0,
            )
        assert len(errors) == 2
        assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    "url",
    [
        "pgbeat+postgresql://me:p%40ss%2Fw%3Ard@db.example.com:6543/app?sslmode=require",
        "pgbeat+postgresql://me@db.example.com/app?password=p%40ss%2Fw%3Ard",
        "pgbeat+postgresql://db.example.com/app?user=me&password=p%40ss%2Fw%3Ard&sslmode=require",
    ],
)
def test_a_password_is_nowhere_to_be_seen(url: str) -> None:
    connection = kombu.Connection(url)
    for text in (connection.as_uri(), repr(connection), str(connection)):
        assert "ss%2Fw" not in text
        assert "ss/w" not in text
        assert "db.example.com" in text
        assert "app" in text
    whole = connection.as_uri(include_password=True)
    assert kombu.Connection(whole).transport.url == connection.transport.url
    assert whole.startswith("pgbeat+postgresql://")


def test_a_url_that_is_wrong_shows_no_password() -> None:
    for url in ("pgbeat+postgresql://me:secret@host:port/db", "pgbeat+mysql://me:secret@host/db"):
        connection = kombu.Connection(url)
        with pytest.raises(ConfigError) as caught:
            connection.connect()
        assert "cret" not in str(caught.value)


WRONG = [
    ({"poling_interval": 1}, "poling_interval: no such option; did you mean polling_interval?"),
    ({"xyz": 1}, "xyz: no such option; there are ack_synchronous_commit, batch_size"),
    ({"polling_interval": 0}, "polling_interval: 0 is out of range; at least 0.01"),
    ({"polling_interval": "often"}, "polling_interval: 'often' is not a number"),
    ({"polling_interval": float("nan")}, "polling_interval: nan is not a number"),
    ({"polling_interval": True}, "polling_interval: True is not a number"),
    ({"batch_size": 2.5}, "batch_size: 2.5 is not a whole number"),
    ({"batch_size": float("inf")}, "batch_size: inf is out of range"),
    ({"lease": 1}, "lease: 1 is out of range; at least 3"),
    ({"synchronous_commit": "sometimes"}, "'sometimes' is not one of on, off, local"),
    ({"queue_tablename": "q"}, "the table is always kombu_queue; leave the option out"),
    ({"message_tablename": "m"}, "rename it: `pgbeat migrate --message-table NAME`"),
    ({"direct_url": "mysql://me:secret@h/d"}, "direct_url: mysql:// is not Postgres"),
    ({"connect_args": "sslmode=require"}, "connect_args: 'sslmode=require' is not a mapping"),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[says[:30] for _, says in WRONG])
def test_a_wrong_option_says_what_would_be_right(options: dict[str, Any], says: str) -> None:
    connection = kombu.Connection(NOWHERE, transport_options=options)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        connection.connect()
    assert "secret" not in str(caught.value)


def test_kombus_transports_have_no_other_options() -> None:
    """What kombu reads of these transports' options is known to this one."""
    from kombu.transport import redis, virtual

    listed = {*redis.Channel.from_transport_options, *redis.SentinelChannel.from_transport_options}
    known = ignored_options.OPTIONS.keys() | {*virtual.Channel.from_transport_options}
    assert listed <= known
    assert not ignored_options.OPTIONS.keys() & {each.name for each in fields(Options)}


def test_settings_for_other_brokers() -> None:
    app = Celery("elsewhere", broker=NOWHERE, set_as_current=False)
    assert ignored_options.ignored_settings(app.conf, DEFAULTS) == {}
    app.conf.update(broker_use_ssl={"ca_certs": "x"}, redis_max_connections=5)
    found = ignored_options.ignored_settings(app.conf, DEFAULTS)
    assert found.keys() == {"broker_use_ssl", "redis_max_connections"}
    assert "sslmode" in found["broker_use_ssl"]
    app.conf.result_backend = "redis://elsewhere"
    assert ignored_options.ignored_settings(app.conf, DEFAULTS).keys() == {"broker_use_ssl"}
    app.close()


def test_all_mistakes_at_once() -> None:
    connection = kombu.Connection(NOWHERE, transport_options={"lease": 0, "a": 1, "b": 2})
    with pytest.raises(ConfigError) as caught:
        connection.connect()
    assert len(str(caught.value).splitlines()) == 4
