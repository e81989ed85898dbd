"""Settings: the ways to write a DSN, what wins over what, every mistake at once, no password."""

import os
import traceback
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app import utils

from pgbeat.config import (
    Settings,
    direct_url,
    environment,
    is_postgres,
    is_sqlalchemy_broker,
    place,
    postgres_url,
    redacted,
    same_database,
    settings_of,
)
from pgbeat.config.app_state import current_state, state_of
from pgbeat.config.urls import servers
from pgbeat.errors import ConfigError, Problem
from tests.support.problems import raises

URL = "postgresql://me:s3cret@db.example.com:5433/app"
CONF: dict[str, Any] = {"pgbeat_url": URL}


def load(environ: dict[str, str] | None = None, /, **conf: Any) -> Settings:
    return Settings.load(conf, environ or {})


def mistakes(environ: dict[str, str] | None = None, /, **conf: Any) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as raised:
        load(environ, **conf)
    assert "s3cret" not in str(raised.value)
    return raised.value.problems


# -- DSNs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheme",
    [
        "postgresql",
        "postgres",
        "postgresql+psycopg",
        "postgres+asyncpg",
        "sqla+postgresql",
        "sqlalchemy+postgresql",
        "db+postgresql",
        "db+postgresql+psycopg2",
    ],
)
def test_every_scheme_means_the_same_database(scheme: str) -> None:
    url = postgres_url(f"{scheme}://me:s3cret@db.example.com:5433/app")
    assert url == postgres_url(URL)
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port, url.database) == (
        "me",
        "s3cret",
        "db.example.com",
        5433,
        "app",
    )


def test_a_socket_is_a_host_in_the_query() -> None:
    url = postgres_url("sqla+postgresql+psycopg://u@/db?host=/var/run/postgresql")
    assert (url.username, url.host, url.database) == ("u", None, "db")
    assert url.query == {"host": "/var/run/postgresql"}


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:p,w@h1,[::1]:5433/db?sslmode=require",
        "pgbeat+postgresql://u:p,w@h1,[::1]:5433/db?sslmode=require",
        "postgresql://u:p,w@h1/db?sslmode=require;postgresql://u:p,w@[::1]:5433/db",
        "postgresql+psycopg://u:p,w@/db?host=h1,::1&port=,5433&sslmode=require",
    ],
)
def test_a_database_may_have_several_servers(text: str) -> None:
    url = postgres_url(text)
    assert (url.username, url.password, url.database) == ("u", "p,w", "db")
    assert servers(url) == [("h1", ""), ("::1", "5433")]
    assert url.query["sslmode"] == "require"
    assert place(url) == "'db' on h1, ::1:5433 as u"
    assert postgres_url(url.render_as_string(hide_password=False)) == url


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("postgresql://h1:1/d", [("h1", "1")]),
        ("postgresql://u:a,b/c@h1/d", [("h1", "")]),
        ("postgresql://u,x:pw@h1/d?options=a,b", [("h1", "")]),
        ("postgresql://u:p;w@h1/d", [("h1", "")]),
        ("postgresql://u@/d?host=h1:1&host=h2", [("h1", "1"), ("h2", "")]),
        ("postgresql://u@/d?host=/run/a,/run/b", [("/run/a", ""), ("/run/b", "")]),
        ("postgresql://u@/d?host=h1,h2&port=6", [("h1", "6"), ("h2", "6")]),
        ("postgresql://u:p@%2Frun%2Fa/d", [("/run/a", "")]),
        ("postgresql://u:p@%2Frun%2Fa:6/d", [("/run/a", "6")]),
        ("postgresql://u:p@%2Frun%2Fa,h1:6/d", [("/run/a", ""), ("h1", "6")]),
    ],
)
def test_the_servers_of_a_url(text: str, found: list[tuple[str, str]]) -> None:
    assert servers(postgres_url(text)) == found


def test_a_failover_list_is_of_one_database() -> None:
    for other in ("postgresql://v@h2/d", "postgresql://u@h2/e", "postgresql://u@h2/d?sslmode=off"):
        with pytest.raises(ConfigError, match="may differ only in their servers"):
            postgres_url(f"postgresql://u@h1/d;{other}")
    lists = ["pgbeat+postgresql://u@h1/d", "pgbeat+postgresql://u@h2/d"]
    assert load(broker_url=lists).url == postgres_url("postgresql://u@h1,h2/d")
    assert load(broker_url=";".join(lists)).url == postgres_url("postgresql://u@h1,h2/d")
    assert load(broker_url=[lists[0], "pgbeat+postgresql://v@h2/e"]).url == postgres_url(lists[0])


def test_a_password_may_hold_what_is_escaped() -> None:
    assert postgres_url("postgresql://u:p%40s%2Fs@h/d").password == "p@s/s"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host=h dbname=d password=s3cret",
        "s3cret",
        "postgresql://u:s3cret@h:54x32/d",
        "postgresql://u:p@ss:s3cret@h/d",
        "postgresql://u:p@s3cret@h/d",
        "postgresql://u:p@s3cret@h1,h2/d",
        "mysql://u:s3cret@h/d",
        "sqla+sqlite:///s3cret",
        "redis://:s3cret@h/0",
        "postgresql://u:s3cret@h1:54x32,h2/d",
    ],
)
def test_what_is_no_dsn_says_what_one_looks_like(text: str) -> None:
    assert not is_postgres(text)
    with pytest.raises(ConfigError) as raised:
        postgres_url(text)
    assert "expected postgresql://user:password@host:5432/name" in str(raised.value)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


def test_nothing_is_no_postgres() -> None:
    assert not is_postgres(None)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("sqla+postgresql://h/d", True),
        ("sqla+postgresql+psycopg2://h/d", True),
        ("sqlalchemy+postgresql://h/d", True),
        ("postgresql://h/d", False),
        ("db+postgresql://h/d", False),
        ("sqla+sqlite:///x", False),
        ("redis://h/0", False),
        ("", False),
        (None, False),
    ],
)
def test_a_sqlalchemy_broker_is_kombus_transport_on_postgres(
    text: str | None, is_one: bool
) -> None:
    assert is_sqlalchemy_broker(text) is is_one


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("postgresql://a:x@h/d", "sqla+postgresql://b:y@h:5432/d", True),
        ("postgresql://h/d?sslmode=require", "postgresql://h/d", True),
        ("postgresql:///d", "postgresql://localhost/d", True),
        ("postgresql://u@/d?host=/tmp", "postgresql:///d?host=/tmp", True),
        ("postgresql://u@/d?host=h&port=5433", "postgresql://h:5433/d", True),
        ("postgresql://d@h", "postgresql://h/d", True),
        ("postgresql://h/d", "postgresql://h/e", False),
        ("postgresql://h/d", "postgresql://h:5433/d", False),
        ("postgresql:///d?host=/tmp", "postgresql:///d", False),
        ("postgresql:///d?host=a,b&port=1,2", "postgresql://a:1/d", True),
        ("postgresql://localhost/a", "postgresql://127.0.0.1:5432/a", True),
        ("postgresql://[::1]/a", "postgresql:///a", True),
        ("postgresql://h1,h2:5433/a", "postgresql://h2:5433,h3/a", True),
        ("postgresql://h1,h2:5433/a", "postgresql://h2/a", False),
    ],
)
def test_same_database_is_same_server_and_name(one: str, other: str, same: bool) -> None:
    assert same_database(postgres_url(one), postgres_url(other)) is same
    assert same_database(postgres_url(other), postgres_url(one)) is same


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, "postgresql+psycopg://me:***@db.example.com:5433/app"),
        ("postgresql://h/d?password=s3cret", "postgresql+psycopg://h/d?password=%2A%2A%2A"),
        ("postgresql://h/d?sslpassword=s3cret", "postgresql+psycopg://h/d?sslpassword=%2A%2A%2A"),
        ("postgresql://u@/d?host=/tmp", "postgresql+psycopg://u@/d?host=%2Ftmp"),
    ],
)
def test_redacted_shows_all_but_the_password(text: str, shown: str) -> None:
    assert redacted(postgres_url(text)) == shown


# -- where settings come from ------------------------------------------------------------------


def test_defaults() -> None:
    settings = load(**CONF)
    assert settings == Settings(url=postgres_url(URL))
    assert (settings.lock_key, settings.max_retries, settings.retry_base, settings.retry_cap) == (
        1050,
        5,
        60,
        3600,
    )


def test_every_setting_can_be_set_by_the_app_and_by_the_environment() -> None:
    values: dict[str, Any] = {
        "url": URL,
        "lock_key": -7,
        "loop_interval": 0.5,
        "batch_size": 10,
        "lock_interval": 0.5,
        "lock_patience": 20.0,
        "metrics_interval": 30.0,
        "condition_timeout": 2.5,
        "condition_threads": 3,
        "max_retries": 0,
        "retry_base": 1.5,
        "retry_cap": 99.0,
        "retention_days": 0.0,
        "retention_count": 5,
        "audit_days": 9.5,
        "track": "all",
        "job_max_attempts": 1,
        "job_retry_base": 2.5,
        "job_retry_cap": 7.0,
        "webhook_private": True,
    }
    by_app = Settings.load({f"pgbeat_{name}": value for name, value in values.items()}, {})
    by_environment = Settings.load(
        {}, {f"PGBEAT_{name.upper()}": str(value) for name, value in values.items()}
    )
    assert by_app == by_environment == Settings(**{**values, "url": postgres_url(URL)})


def test_the_environment_wins_over_the_app() -> None:
    environ = {"PGBEAT_BATCH_SIZE": "7", "PGBEAT_URL": "postgresql://other/db"}
    settings = load(environ, pgbeat_batch_size=3, pgbeat_lock_key=4, **CONF)
    assert (settings.batch_size, settings.lock_key) == (7, 4)
    assert settings.url.host == "other"


def test_an_empty_variable_is_not_set() -> None:
    assert load({"PGBEAT_BATCH_SIZE": ""}, pgbeat_batch_size=3, **CONF).batch_size == 3


def test_settings_of_a_celery_app() -> None:
    app = Celery(broker="sqla+postgresql://h/d", set_as_current=False)
    app.conf.pgbeat_loop_interval = 2
    settings = Settings.load(app.conf, {})
    assert (settings.loop_interval, settings.url) == (2.0, postgres_url("postgresql://h/d"))


@pytest.mark.parametrize(
    "broker",
    [
        {"broker_url": "sqla+postgresql+psycopg2://me:s3cret@db.example.com:5433/app"},
        {"broker_url": f"sqla+{URL};sqla+postgresql://other/db"},
        {"broker_url": [f"sqla+{URL}", "sqla+postgresql://other/db"]},
        {"broker_url": "redis://h/0", "broker_write_url": f"sqla+{URL}"},
        {"broker_url": URL},
    ],
)
def test_the_url_falls_back_to_the_brokers(broker: dict[str, Any]) -> None:
    assert load(**broker).url == postgres_url(URL)


def test_the_url_of_the_broker_comes_with_its_connect_args() -> None:
    """So that beat and what records executions verify the server as the transport does."""
    arguments = {"sslmode": "verify-full", "password": "s3cret", "host": "x", "options": "-c a=b"}
    options = {"connect_args": arguments, "direct_url": "postgres://d"}
    settings = load(broker_url="pgbeat+postgresql://u@h/d", broker_transport_options=options)
    assert settings.url.query == {"sslmode": "verify-full"}
    assert (settings.url.host, settings.url.password) == ("h", "s3cret")
    conf = {"broker_url": "pgbeat+postgresql://u@h/d", "broker_transport_options": options}
    direct = direct_url(conf, settings.url)
    assert direct is not None
    assert (direct.query, direct.host) == (settings.url.query, "d")
    assert load(**conf, pgbeat_url="postgresql://h/d").url == postgres_url("postgresql://h/d")
    of_kombu = load(broker_url="sqla+postgresql://u@h/d", broker_transport_options=options)
    assert of_kombu.url == postgres_url("postgresql://u@h/d")


def test_the_url_wins_over_the_brokers() -> None:
    assert load(broker_url="sqla+postgresql://broker/db", **CONF).url == postgres_url(URL)


@pytest.mark.parametrize(
    "broker",
    [
        {},
        {"broker_url": "redis://:s3cret@h/0"},
        {"broker_url": "redis://:s3cret@h/0;sqla+postgresql://other/db"},
        {"broker_url": []},
    ],
)
def test_no_url_and_no_postgres_broker(broker: dict[str, Any]) -> None:
    [problem] = mistakes(**broker)
    assert problem[:2] == ("pgbeat_url", "required")


def test_a_broker_that_is_meant_to_be_postgres_says_what_is_wrong_with_its_url() -> None:
    (problem,) = mistakes(broker_url="pgbeat+postgresql://u:p@s3cret@h/d")
    assert problem[:2] == ("pgbeat_url", "required")
    assert "broker_url: " in problem.message and "%40" in problem.message


# -- mistakes ----------------------------------------------------------------------------------


def test_every_mistake_is_listed_in_one_error() -> None:
    found = mistakes(
        {"PGBEAT_LOOP_INTERVAL": "soon", "PGBEAT_LOCK_KEY": "1.5"},
        pgbeat_batch_size=0,
        pgbeat_retry_base=100,
        pgbeat_retry_cap=99,
        pgbeat_nonsense=1,
    )
    assert [problem[:2] for problem in found] == [
        ("pgbeat_nonsense", "unknown_field"),
        ("PGBEAT_LOCK_KEY", "malformed"),
        ("PGBEAT_LOOP_INTERVAL", "malformed"),
        ("pgbeat_batch_size", "malformed"),
        ("pgbeat_url", "required"),
        ("pgbeat_retry_cap", "out_of_range"),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 5.5),
        ("batch_size", float("inf")),
        ("batch_size", True),
        ("loop_interval", float("nan")),
        ("loop_interval", 0),
        ("max_retries", -1),
        ("lock_key", 2**63),
        ("track", "some"),
        ("job_max_attempts", 0),
        ("webhook_private", "maybe"),
        ("url", "redis://:s3cret@h"),
    ],
)
def test_a_bad_value_is_refused(name: str, value: Any) -> None:
    [problem] = mistakes(**{**CONF, f"pgbeat_{name}": value})
    assert problem[:2] == (f"pgbeat_{name}", "malformed")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("pgbeat_lock_kei", "pgbeat_lock_key"),
        ("pgbeat_batchsize", "pgbeat_batch_size"),
        ("PGBEAT_RETRIES", "pgbeat_max_retries"),
    ],
)
def test_an_unknown_key_says_which_was_meant(key: str, near: str) -> None:
    [problem] = mistakes(**{**CONF, key: 1})
    assert problem[:2] == (key.lower(), "unknown_field")
    assert f" {near}?" in problem.message


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("PGBEAT_NAMSPACE", "PGBEAT_NAMESPACE"),
        ("PGBEAT_LOOP_INTERVALL", "PGBEAT_LOOP_INTERVAL"),
        ("PGBEAT_MAX_RETRY", "PGBEAT_MAX_RETRIES"),
        ("PGBEAT_ADMN", "PGBEAT_ADMIN"),
    ],
)
def test_a_misspelt_variable_is_refused(variable: str, near: str) -> None:
    [problem] = mistakes({variable: "1"}, **CONF)
    assert problem[:2] == (variable, "unknown_field")
    assert f" {near}?" in problem.message


def test_a_variable_of_somebody_elses_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_warned", set())
    theirs = {
        "PGBEAT_GRAFANA": "1",
        "PGBEAT_SERVICE_HOST": "10.0.0.1",
        "PGBEAT_PORT": "tcp://10.0.0.1",
        "PGBEAT_PORT_8080_TCP_ADDR": "10.0.0.1",
        "PGBEAT_WEB_SERVICE_PORT_HTTP": "1",
        "PGBEAT_APP": "proj:app",
        "PGBEAT_ADMIN": "1",
        "PGBEAT_WEB_PORT": "8080",
    }
    for _ in range(2):
        assert Settings.load(CONF, theirs).app == ""
    assert [record.getMessage().split()[0] for record in caplog.records] == ["PGBEAT_GRAFANA"]


def test_settings_in_a_namespace_of_the_app() -> None:
    """As Django projects have them."""
    app = Celery("shop", set_as_current=False)
    given = {"CELERY_PGBEAT_URL": "postgresql://h/d", "CELERY_PGBEAT_RETENTION_DAYS": 3}
    app.config_from_object(SimpleNamespace(**given), namespace="CELERY")
    assert Settings.load(app.conf).retention_days == 3
    app = Celery("shop", set_as_current=False)
    wrong = SimpleNamespace(**given, CELERY_PGBEAT_RETENTOIN_COUNT=3)
    app.config_from_object(wrong, namespace="CELERY")
    with raises(ConfigError, ("pgbeat_retentoin_count", "unknown_field")):
        Settings.load(app.conf)


def test_keys_of_others_are_theirs() -> None:
    assert load(task_routes={}, pgbeatlike=1, **CONF)


@pytest.mark.parametrize("conf", [{"retry_cap": 59}, {"retry_base": 4000}])
@pytest.mark.parametrize("prefix", ["pgbeat_", "pgbeat_job_"])
def test_the_cap_of_retries_is_not_below_their_base(prefix: str, conf: dict[str, Any]) -> None:
    [problem] = mistakes(**CONF, **{f"{prefix}{name}": value for name, value in conf.items()})
    assert problem[:2] == (f"{prefix}retry_cap", "out_of_range")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("true", True),
        ("1", True),
        ("ON", True),
        ("yes", True),
        ("0", False),
        ("off", False),
        ("No", False),
        ("false", False),
    ],
)
def test_a_switch_in_the_environment(written: str, meant: bool) -> None:
    assert load({"PGBEAT_WEBHOOK_PRIVATE": written}, **CONF).webhook_private is meant


@pytest.mark.parametrize(
    ("settings", "field", "code"),
    [
        ({"web_jwt_algorithms": "none"}, "web_jwt_algorithms", "malformed"),
        ({"web_jwt_algorithms": "HS256,RS256"}, "web_jwt_algorithms", "malformed"),
        ({"web_jwt_algorithms": ""}, "web_jwt_algorithms", "malformed"),
        ({"web_jwt_key": "short"}, "web_jwt_key", "malformed"),
        ({"callback_key": "x" * 31}, "callback_key", "malformed"),
        ({"web_jwt_key": "-----BEGIN PUBLIC KEY-----" + "x" * 64}, "web_jwt_key", "malformed"),
        ({"web_jwt_key": "x" * 32, "web_jwt_algorithms": "RS256"}, "web_jwt_key", "malformed"),
        ({"web_jwt_jwks": "https://idp/keys"}, "web_jwt_algorithms", "conflict"),
        ({"web_jwt_jwks": "file:///etc/passwd"}, "web_jwt_jwks", "malformed"),
        ({"web_jwt_admin": "admin"}, "web_jwt_admin", "malformed"),
        ({"web_url": "//pgbeat"}, "web_url", "malformed"),
        ({"web_flower_url": "javascript:alert(1)"}, "web_flower_url", "malformed"),
        (
            {
                "web_jwt_key": "x" * 32 + "PUBLIC KEY-----",
                "web_jwt_jwks": "https://idp/keys",
                "web_jwt_algorithms": ["ES256"],
            },
            "web_jwt_jwks",
            "conflict",
        ),
    ],
)
def test_what_signs_jwts_is_said_in_a_way_that_nobody_else_can_sign(
    settings: dict[str, Any], field: str, code: str
) -> None:
    [problem] = mistakes(**CONF, **{f"pgbeat_{key}": value for key, value in settings.items()})
    assert problem[:2] == (f"pgbeat_{field}", code)


def test_celery_masks_every_setting_that_is_a_dsn() -> None:
    dsns = [setting.name for setting in fields(Settings) if "URL" in str(setting.type)]
    assert len(dsns) > 2
    for name in dsns:
        assert utils.HIDDEN_SETTINGS.search(f"PGBEAT_{name.upper()}"), name


def test_statements_need_a_login_of_their_own() -> None:
    roles = {"pgbeat_sql_roles": "reports, billing"}
    assert [problem[:2] for problem in mistakes(**CONF, **roles)] == [
        ("pgbeat_sql_url", "required")
    ]
    settings = load(**CONF, **roles, pgbeat_sql_url=URL)
    assert settings.sql_roles == ("reports", "billing")


def test_the_password_is_in_no_message_and_in_no_repr() -> None:
    assert "s3cret" not in repr(load(**CONF, pgbeat_web_jwt_key="s3cret" * 10))
    assert "s3cret" not in repr(load(**CONF, pgbeat_callback_key="s3cret" * 10))
    assert "s3cret" not in str(mistakes(**CONF, pgbeat_callback_key="s3cret"))
    assert "s3cret" not in repr(load(**CONF))
    assert len(mistakes({"PGBEAT_URL": "mysql://u:s3cret@h/d"}, pgbeat_batch_size="x")) == 2


# -- an app's, kept ------------------------------------------------------------------------------


def kept_app(**conf: Any) -> Celery:
    app = Celery("kept", broker=f"pgbeat+{URL}", set_as_current=False)
    app.conf.update(conf)
    return app


def test_an_apps_settings_are_read_once() -> None:
    app = kept_app(pgbeat_namespace="a")
    assert settings_of(app) is settings_of(app)
    assert settings_of(app) == Settings.load(app.conf)


@pytest.mark.parametrize("how", ["item", "update", "in place", "variable", "defaults", "object"])
def test_what_changes_is_seen(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = kept_app(pgbeat_allowed_functions={"a": "m:f"})
    before = settings_of(app)
    if how == "item":
        app.conf.pgbeat_namespace = "b"
    elif how == "update":
        app.conf.update(broker_url="pgbeat+postgresql://other/db")
    elif how == "in place":
        app.conf.pgbeat_allowed_functions["c"] = "m:g"
    elif how == "variable":
        monkeypatch.setenv("PGBEAT_NAMESPACE", "b")
    elif how == "defaults":
        app.conf.add_defaults({"pgbeat_namespace": "b"})
    else:
        app.config_from_object({"broker_url": f"pgbeat+{URL}", "pgbeat_namespace": "b"})
    assert settings_of(app) == Settings.load(app.conf) != before


def test_settings_of_a_module_and_of_an_object_change() -> None:
    for made in (ModuleType("celeryconfig"), SimpleNamespace()):
        given: Any = made
        given.broker_url, given.pgbeat_namespace = f"pgbeat+{URL}", "a"
        app = Celery("kept", set_as_current=False)
        app.config_from_object(given)
        assert settings_of(app).namespace == "a"
        given.pgbeat_namespace = "b"
        assert settings_of(app).namespace == "b"


class Notes(list[str]):
    """What a package keeps of an app."""


@pytest.mark.parametrize("source", [dict, ModuleType, SimpleNamespace])
def test_what_is_kept_of_an_app_is_dropped_with_its_settings(source: type) -> None:
    given: Any = source("celeryconfig") if source is ModuleType else source()
    settings = {"broker_url": f"pgbeat+{URL}", "broker_transport_options": {"lease": 30}}
    (given if source is dict else vars(given)).update(settings)
    app = Celery("kept", set_as_current=False)
    app.config_from_object(given)
    state_of(app).part(Notes).append("a")
    assert current_state(app).part(Notes) == ["a"]
    app.conf.broker_transport_options["lease"] = 60
    assert state_of(app).part(Notes) == ["a"]  # it is not looked at each time
    assert current_state(app).part(Notes) == state_of(app).part(Notes) == []


def test_a_child_process_keeps_nothing_of_its_parents() -> None:
    app = kept_app()
    state_of(app).part(Notes).append("a")
    state_of(app).pid = os.getppid()
    assert state_of(app).part(Notes) == []
