"""Callers: by tokens, by a browser's cookie, and in the demo."""

from typing import Any

from celery import Celery

from pgbeat.access.tokens import Scope
from tests.support.command_line import Sql
from tests.support.web import HOST, Web, done, errors, opened, problem
from tests.web.api.made_schedules import PATH, SCHEDULE

#: What anybody may ask who is known, and only an administrator.
ANYBODY, ADMIN = "/scheduler/metrics", "/scheduler/status"


# -- tokens ---------------------------------------------------------------------------------------


def test_a_token_says_who_asks_and_what_they_may(web: Web) -> None:
    done(web.user.get(ANYBODY))
    assert errors(web.user.get(ADMIN), 403) == [("", "forbidden")]
    done(web.admin.get(ADMIN))
    done(web.viewer.get(ADMIN))


def test_nobody_is_told_what_to_show(web: Web) -> None:
    answer = web.nobody.get(ANYBODY)
    assert "Authorization: Bearer" in problem(answer, 401)
    assert answer.headers["www-authenticate"] == 'Bearer realm="pgbeat"'


def test_what_is_no_token_is_refused(web: Web) -> None:
    for token in ("", " ", " x", " pgbeat_12345678_x", " a.b.c", " " + "x" * 5000):
        problem(web.client(headers={"Authorization": f"Bearer{token}"}).get(ANYBODY), 401)
    for header in ("Basic YTpi", "pgbeat_x"):
        problem(web.client(headers={"Authorization": header}).get(ANYBODY), 401)


def test_a_revoked_or_expired_token_is_refused(web: Web, sql: Sql) -> None:
    user = web.user
    done(user.get(ANYBODY))
    sql("UPDATE pgbeat.tokens SET expires_at = now()")
    assert problem(user.get(ANYBODY), 401).startswith("the token expired at ")
    sql("UPDATE pgbeat.tokens SET revoked_at = now()")
    assert problem(user.get(ANYBODY), 401).startswith("the token was revoked")


# -- cookies --------------------------------------------------------------------------------------


def test_a_browser_signs_in_and_out(web: Web, sql: Sql) -> None:
    token = web.token("root", "admin")
    browser = web.client(headers={"Sec-Fetch-Site": "same-origin"})
    answer = browser.post("/login", data={"token": f" {token}\n", "next": "/jobs?state=failed"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=failed")
    cookie = answer.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.split("; "))
    assert "secure" not in cookie
    done(browser.post(PATH, json=SCHEDULE), 201)
    assert sql("SELECT actor, origin FROM pgbeat.audit WHERE verb <> 'sign_in'") == [
        ("user:root", "page")
    ]
    answer = browser.post("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "pgbeat_token" not in browser.cookies
    problem(browser.get(ANYBODY), 401)


def test_the_cookie_goes_by_tls_alone_where_there_is_tls(web: Web) -> None:
    browser = web.client(base_url="https://pgbeat.test")
    answer = browser.post("/login", data={"token": web.token("alice")})
    assert "secure" in answer.headers["set-cookie"].lower().split("; ")


def test_the_setting_says_that_a_proxy_speaks_tls(app: Celery) -> None:
    """The proxy may be one that is not trusted with X-Forwarded-Proto."""
    with opened(app, web_url="https://jobs.example.com/") as web:
        token = web.token("alice")
        for host, is_secure in (("jobs.example.com", True), ("localhost:8080", False)):
            browser = web.client(base_url=f"http://{host}")
            answer = browser.post("/login", data={"token": token})
            cookie = answer.headers["set-cookie"].lower().split("; ")
            assert ("secure" in cookie) is is_secure


def test_sign_ins_count_as_changes(app: Celery, sql: Sql) -> None:
    """Each is recorded in the audit."""
    scopes: tuple[Scope, ...] = ("user", "viewer", "metrics", "admin")
    with opened(app, web_user_rate=2) as web:
        for scope in scopes:
            sent = {"token": web.token(f"a-{scope}", scope)}
            statuses = [web.nobody.post("/login", data=sent).status_code for _ in range(3)]
            assert statuses == [303, 303, 303 if scope == "admin" else 429]
    assert sql("SELECT count(*) FROM pgbeat.audit WHERE verb = 'sign_in'") == [(9,)]


def test_a_wrong_token_signs_nobody_in(web: Web) -> None:
    for token in ("", "x", "pgbeat_00000000_" + "x" * 43, "\u2713", "a\r\nb"):
        answer = web.nobody.post("/login", data={"token": token, "next": "/jobs"})
        assert answer.status_code == 303, token
        assert answer.headers["location"] == "/login?failed=1&next=%2Fjobs", token
        assert "set-cookie" not in answer.headers, token


def test_a_sign_in_leads_nowhere_else(web: Web) -> None:
    token = web.token("alice")
    for place in (
        "https://evil.test/",
        "//evil.test",
        "/\\evil.test",
        "\\\\evil.test",
        "javascript:alert(1)",
        "/a\r\nSet-Cookie: x=y",
        "jobs",
        "",
    ):
        answer = web.nobody.post("/login", data={"token": token, "next": place})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), place
        assert "x" not in answer.cookies, place


def test_a_cookie_of_no_use_is_refused(web: Web) -> None:
    problem(web.browser("pgbeat_00000000_" + "x" * 43).get(ANYBODY), 401)


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": HOST},
    {"Origin": "http://evil.test"},
    {"Origin": "null"},
    {"Origin": "http://pgbeat.test.evil.test"},
    {"Origin": "http://[broken"},
    {"Referer": "http://evil.test/pgbeat.test"},
    {},
]

OWN = [
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": HOST},
    {"Referer": f"{HOST}/schedules"},
]


def test_another_site_changes_nothing(web: Web, sql: Sql) -> None:
    token = web.token("root", "admin")
    for headers in FOREIGN:
        browser = web.client(headers=headers)
        browser.cookies.set("pgbeat_token", token)
        done(browser.get(PATH))
        for answer in (
            browser.post(PATH, json=SCHEDULE),
            browser.post(f"{PATH}/s/pause"),
            browser.delete(f"{PATH}/s"),
        ):
            assert "from another site" in problem(answer, 403), headers
        if headers:
            assert "from another site" in problem(browser.post("/login", data={"token": "x"}), 403)
        problem(browser.post("/logout"), 403)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


def test_its_own_pages_do(web: Web) -> None:
    token = web.token("root", "admin")
    for number, headers in enumerate(OWN):
        browser = web.client(headers=headers)
        browser.cookies.set("pgbeat_token", token)
        done(browser.post(PATH, json=SCHEDULE | {"name": f"s{number}"}), 201)


def test_who_shows_a_token_by_the_header_is_no_browser(web: Web) -> None:
    admin = web.admin
    done(admin.post(PATH, json=SCHEDULE, headers={"Origin": "http://elsewhere.test"}), 201)


def visitor(web: Web, client: str, host: str, **headers: str) -> Any:
    """One who comes from that address, and calls it by that host."""
    return web.client(base_url=f"http://{host}", client=(client, 50_000), headers=headers)


# -- the demo -------------------------------------------------------------------------------------


def test_in_the_demo_this_machine_is_the_administrator(app: Celery, sql: Sql) -> None:
    with opened(app, demo=True) as web:
        for number, (client, host) in enumerate(
            (
                ("127.0.0.1", "127.0.0.1:8080"),
                ("127.0.0.1", "localhost:8080"),
                ("::1", "[::1]:8080"),
                ("::ffff:127.0.0.1", "localhost"),
                ("127.0.0.2", "127.9.9.9"),
            )
        ):
            schedule = SCHEDULE | {"name": f"s{number}"}
            done(visitor(web, client, host).post(PATH, json=schedule), 201)
    assert sql("SELECT actor FROM pgbeat.audit") == 5 * [("user:demo",)]


def test_in_the_demo_nobody_else_comes_in(app: Celery) -> None:
    with opened(app, demo=True) as web:
        for client, host in (
            ("10.0.0.7", "127.0.0.1"),
            ("127.0.0.1", "evil.test"),
            ("127.0.0.1", "localhost.evil.test"),
            ("127.0.0.1", "10.0.0.7"),
            ("testclient", "testserver"),
            ("", "localhost"),
            ("127.0.0.1", "127.0.0.1.evil.test"),
        ):
            answer = visitor(web, client, host).get(PATH)
            assert "for this machine alone" in problem(answer, 403), (client, host)


def test_in_the_demo_other_sites_change_nothing(app: Celery, sql: Sql) -> None:
    with opened(app, demo=True) as web:
        for headers in FOREIGN[:-1]:
            browser = visitor(web, "127.0.0.1", "127.0.0.1", **headers)
            assert "another site" in problem(browser.post(PATH, json=SCHEDULE), 403)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


def test_without_the_demo_this_machine_is_nobody(web: Web) -> None:
    problem(visitor(web, "127.0.0.1", "127.0.0.1").get(PATH), 401)
