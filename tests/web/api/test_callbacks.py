"""Callback URLs: who has one emits its event, once; nobody else learns or changes anything."""

import base64
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

import pgbeat
from pgbeat.config import Settings
from pgbeat.errors import ConfigError, InvalidInput
from pgbeat.jobs.verbs import callbacks
from tests.support.command_line import Sql, run_with
from tests.support.problems import raises
from tests.support.web import HOST, Web, done, errors, opened

KEY = "a secret of pgbeat, of 32 bytes or more"


@pytest.fixture
def web(app: Celery) -> Iterator[Web]:
    with opened(app, callback_key=KEY, web_url=f"{HOST}/", web_user_rate=5) as found:
        yield found


def code_of(settings: Settings, key: str = "paid/12", days: float = 1, **more: Any) -> str:
    """Returns the code of a callback URL."""
    now = more.pop("now", time.time())
    url, _ = callbacks.signed(settings, key, timedelta(days=days), now=now)
    return url.rpartition("/")[2]


def kept(sql: Sql) -> list[tuple[Any, ...]]:
    """Returns the events that are kept."""
    return sql("SELECT key, value, emitted_by FROM pgbeat.events ORDER BY id")


@pytest.mark.parametrize("key", ["paid/12", "a b/../\u00e9?x=1#\U0001f600", "k" * 200])
def test_a_third_party_emits_an_event_once(web: Web, app: Celery, sql: Sql, key: str) -> None:
    """Of several calls the first; whatever its content type says, and with a query."""
    url = pgbeat.callback_url(key, expires="2 days", app=app)
    assert url.startswith(f"{HOST}/callbacks/")
    assert done(web.nobody.post(url, content=b'{"amount": 12}'))["success"]
    again = done(web.nobody.post(url, json=2, params={"from": "elsewhere"}))
    assert again["message"] == "the event was emitted before"
    assert kept(sql) == [(key, {"amount": 12}, "callback")]
    assert sql("SELECT actor, origin, verb, kind, subject FROM pgbeat.audit") == [
        ("callback", "api", "emit", "event", key)
    ]


def test_it_needs_no_value(web: Web, sql: Sql) -> None:
    done(web.nobody.post(f"/callbacks/{code_of(web.settings)}"))
    assert kept(sql) == [("paid/12", None, "callback")]


def with_key(code: str, key: str) -> str:
    """Returns the code with another key, and the signature as it was."""
    payload, _, signature = code.partition(".")
    end = base64.urlsafe_b64decode(payload + "==").decode().partition(" ")[0]
    other = base64.urlsafe_b64encode(f"{end} {key}".encode()).decode().rstrip("=")
    return f"{other}.{signature}"


def test_a_forged_or_expired_url_is_refused_and_says_nothing(
    web: Web, app: Celery, sql: Sql
) -> None:
    """Each gets the same answer, without a look at the body or into the database."""
    settings = web.settings
    good = code_of(settings)
    sql("SELECT pgbeat.emit('there')")
    payload, _, signature = good.partition(".")
    others = [
        Settings(url=settings.url, namespace="other", callback_key=KEY, web_url=HOST),
        Settings(url=settings.url, callback_key=f"{KEY}!", web_url=HOST),
    ]
    wrong = [
        *(code_of(other) for other in others),
        with_key(good, "there"),
        with_key(good, "none"),
        code_of(settings, now=time.time() - 86_401),
        code_of(settings)[:-1],
        payload,
        f"{payload}.",
        f".{signature}",
        f"{payload}.{signature}.{signature}",
        f"{payload}=.{signature}",
        f"{payload}.\u00e9",
        "x",
        "%00",
    ]
    with web.counted() as sent:
        answers = [web.nobody.post(f"/callbacks/{code}", content=b"{" * 9) for code in wrong]
    assert {(a.status_code, a.json()["code"], a.json()["detail"]) for a in answers} == {
        (401, "invalid_token", "the callback URL is invalid, or has expired")
    }
    assert sent == []
    assert len(kept(sql)) == 1
    assert web.nobody.get(f"/callbacks/{good}").status_code == 405


def test_a_token_does_not_stand_in_for_a_signature(web: Web, sql: Sql) -> None:
    assert errors(web.admin.post("/callbacks/x"), 401) == [("", "invalid_token")]
    assert kept(sql) == []


def test_without_a_key_no_signature_is_right(app: Celery, sql: Sql) -> None:
    """Not even one by an empty key."""
    with opened(app) as web:
        payload = code_of(Settings(url=web.settings.url, callback_key=KEY, web_url=HOST))
        payload = payload.partition(".")[0]
        empty = callbacks._signature(web.settings, payload)
        answer = web.nobody.post(f"/callbacks/{payload}.{empty}")
    assert errors(answer, 401) == [("", "invalid_token")]


@pytest.mark.parametrize(
    "body",
    [
        b"no",
        b"\xff\xfe",
        b"NaN",
        b"1e999",
        b'"\\u0000"',
        b'"\\ud800"',
        b"[" * 101 + b"]" * 101,
        b"9" * 5000,
        b'{"__type__": "datetime", "__value__": "no"}',
    ],
)
def test_what_is_no_json_is_refused(web: Web, sql: Sql, body: bytes) -> None:
    """And leaves the URL as it was."""
    code = code_of(web.settings)
    answer = web.nobody.post(f"/callbacks/{code}", content=body)
    assert [code for _, code in errors(answer)] == ["malformed"]
    assert kept(sql) == []
    done(web.nobody.post(f"/callbacks/{code}", content=b"1"))


def test_a_body_has_a_limit(web: Web, sql: Sql) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(11):
            yield b" " * 100_000

    for body in (b" " * 1_000_001, parts()):
        answer = web.nobody.post(f"/callbacks/{code_of(web.settings)}", content=body)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert kept(sql) == []


def test_whoever_calls_too_often_must_wait(web: Web) -> None:
    """For the URLs of one key; others are not slowed down by it."""
    codes = [code_of(web.settings), code_of(web.settings, days=2)]
    for number in range(5):
        done(web.nobody.post(f"/callbacks/{codes[number % 2]}"))
    answer = web.nobody.post(f"/callbacks/{codes[0]}")
    assert answer.status_code == 429 and answer.headers["retry-after"]
    done(web.nobody.post(f"/callbacks/{code_of(web.settings, 'other')}"))


def test_the_command_prints_a_url(web: Web, app: Celery, sql: Sql) -> None:
    printed = run_with(app, "events", "url", "paid/12", "--expires", "2 days", "--json")
    made = json.loads(printed.stdout)
    assert made["key"] == "paid/12"
    done(web.nobody.post(made["url"], json=1))
    assert kept(sql) == [("paid/12", 1, "callback")]


def test_a_url_that_could_emit_a_forgotten_event_again_is_not_made(web: Web, app: Celery) -> None:
    for expires in ("31 days", 0):
        with raises(InvalidInput, ("expires", "out_of_range")):
            pgbeat.callback_url("k", expires=expires, app=app)
    with pytest.raises(InvalidInput):
        pgbeat.callback_url(" k", app=app)
    with opened(app, callback_key=KEY, web_url=HOST, event_days=0):
        assert pgbeat.callback_url("k", expires="31 days", app=app)
    with opened(app, callback_key=KEY, web_url=HOST, event_days=0.5):
        assert pgbeat.callback_url("k", app=app)
        with pytest.raises(InvalidInput, match="within 12 h "):
            pgbeat.callback_url("k", expires="1 day", app=app)


def test_what_is_missing_is_said(app: Celery) -> None:
    missing = ("pgbeat_web_url", "required"), ("pgbeat_callback_key", "required")
    with opened(app), raises(ConfigError, *missing):
        pgbeat.callback_url("k", app=app)
