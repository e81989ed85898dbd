"""Signing in by a link of `pgbeat web`."""

from typing import Any

import pytest

from pgbeat.access import sign_in_links
from tests.support.command_line import Sql
from tests.support.pages import html
from tests.support.web import Web, done, problem

PATH = "/scheduler/status"


@pytest.fixture
def code(web: Web) -> str:
    """The code of a link for ada, an administrator."""
    with web.app.state.pgbeat.transaction() as connection:
        return sign_in_links.create(
            connection, namespace="default", actor="user:ada", scope="admin"
        )


@pytest.fixture
def browser(web: Web) -> Any:
    return web.client(headers={"Sec-Fetch-Site": "same-origin"})


def test_a_code_signs_in_and_signing_out_ends_the_session(
    browser: Any, code: str, sql: Sql
) -> None:
    answer = browser.post("/login", data={"token": code, "next": "/console/lanes"})
    assert answer.headers["location"] == "/console/lanes"
    cookie = answer.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "max-age=86400"} <= set(cookie.split("; "))
    assert code not in cookie
    done(browser.get(PATH))
    session = browser.cookies["pgbeat_token"]
    browser.post("/logout")
    browser.cookies.set("pgbeat_token", session)
    assert problem(browser.get(PATH), 401).startswith("the token was revoked")
    assert sql("SELECT actor, origin, verb FROM pgbeat.audit ORDER BY id") == [
        ("user:ada", "page", "create"),
        ("user:ada", "page", "sign_in"),
        ("user:ada", "page", "revoke"),
    ]


def test_a_link_is_asked_about_before_it_signs_in(browser: Any, code: str) -> None:
    form = {"token": code, "next": "/console/lanes"}
    answer = browser.post("/login/link", data=form)
    asked = html(answer)
    assert "This link signs you in as ada (admin)." in asked.words
    assert "set-cookie" not in answer.headers
    hidden = {each.get("name"): each.get("value") for each in asked.all("#confirm input")}
    assert hidden == form
    assert browser.post("/login", data=hidden).headers["location"] == "/console/lanes"
    again = browser.post("/login/link", data=form)
    assert again.headers["location"] == "/login?failed=1&next=%2Fconsole%2Flanes"


def test_each_sign_in_is_recorded(
    web: Web, browser: Any, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    token = web.token("root", "admin")
    browser.post("/login", data={"token": token})
    browser.post("/login", data={"token": token[:-1]})
    assert sql("SELECT actor, verb, kind, subject, after FROM pgbeat.audit") == [
        ("user:root", "sign_in", "token", token.split("_")[1], {"address": "testclient"})
    ]
    assert "A sign-in from testclient was refused" in caplog.text


def test_reading_a_link_does_not_use_it_up(web: Web, browser: Any, code: str) -> None:
    """A program that opens links in advance sends no fragment; nor does it post the form."""
    assert code not in web.nobody.get(f"/login#once={code}").text
    assert web.nobody.get("/login", params={"once": code}).status_code == 200
    assert browser.post("/login", data={"token": code}).headers["location"] == "/"


def test_another_site_can_not_post_a_code(web: Web, browser: Any, code: str) -> None:
    crossed = web.client(headers={"Sec-Fetch-Site": "cross-site"})
    problem(crossed.post("/login", data={"token": code}), 403)
    assert browser.post("/login", data={"token": code}).headers["location"] == "/"


def test_signing_out_keeps_a_token_that_was_pasted(web: Web) -> None:
    token = web.token("root", "admin")
    assert web.browser(token).post("/logout").status_code == 303
    done(web.client(token).get(PATH))
