"""The web app inside another app that says who its users are."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from pgbeat.web import Authenticate, User, create_app
from tests.support.web import done, make_token, problem
from tests.web.api.made_schedules import PATH

SAME = {"Sec-Fetch-Site": "same-origin"}
ADA, BOB = {"Cookie": "session=ada"}, {"Cookie": "session=bob"}


def user_of(request: Request) -> User | None:
    """Says who asks by a cookie, as a session would."""
    name = request.cookies.get("session")
    return None if name is None else User(name, is_admin=name == "ada")


async def async_user_of(request: Request) -> User | None:
    return user_of(request)


def leading(request: Request) -> User | None:
    """Leads strangers to the host's own page."""
    found = user_of(request)
    if found is None:
        raise HTTPException(303, "sign in", headers={"Location": "/sign-in"})
    return found


def in_fastapi(inner: FastAPI) -> Any:
    outer = FastAPI()
    outer.mount("/ops", inner)
    return outer


def in_starlette(inner: FastAPI) -> Any:
    return Starlette(routes=[Mount("/ops", app=inner)])


Serve = Callable[..., TestClient]


@pytest.fixture
def serve(app: Celery) -> Iterator[Serve]:
    made: list[FastAPI] = []

    def serve(authenticate: Authenticate, host: Callable[[FastAPI], Any] = in_fastapi) -> Any:
        made.append(create_app(app, authenticate=authenticate))
        return TestClient(host(made[-1]), base_url="http://team.test", follow_redirects=False)

    yield serve
    for each in made:
        each.state.pgbeat.dispose()


@pytest.mark.parametrize("host", [in_fastapi, in_starlette])
@pytest.mark.parametrize("authenticate", [user_of, async_user_of])
def test_the_host_says_who_asks(
    serve: Serve, host: Callable[[FastAPI], Any], authenticate: Authenticate
) -> None:
    client = serve(authenticate, host)
    assert problem(client.get(f"/ops{PATH}"), 401)
    assert problem(client.get(f"/ops{PATH}", headers=BOB), 403)
    done(client.get(f"/ops{PATH}", headers=ADA))
    page = client.get("/ops/console/schedules", headers=ADA)
    assert page.status_code == 200
    assert "ada <small>administrator" in page.text.replace("\n", "")
    assert "Sign out" not in page.text
    new = {"name": "s", "every": "1h", "task": "t.nope"}
    refused = client.post(f"/ops{PATH}", json=new, headers=ADA | SAME)
    assert "t.nope" in problem(refused, 422)


def test_strangers_get_no_page_and_no_form_for_tokens(serve: Serve) -> None:
    client = serve(user_of)
    page = client.get("/ops/console/schedules")
    assert page.status_code == 401
    assert "sign in" in page.text
    assert client.get("/ops/login").status_code == 404
    assert client.post("/ops/login", data={"token": "x"}, headers=SAME).status_code == 404


def test_the_host_may_lead_strangers_elsewhere(serve: Serve) -> None:
    client = serve(leading)
    for path in ("/ops/console/schedules", f"/ops{PATH}"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")


def test_a_change_must_come_from_the_pages(serve: Serve) -> None:
    client, path = serve(user_of), f"/ops{PATH}/pause"
    for headers in (
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.test"},
    ):
        assert problem(client.post(path, headers=ADA | headers), 403), headers
    for headers in (SAME, {"Origin": "http://team.test"}):
        done(client.post(path, headers=ADA | headers))


def test_tokens_work_besides(serve: Serve, database: str) -> None:
    client = serve(user_of)
    token = make_token(database, "root", "admin")
    done(client.post(f"/ops{PATH}/pause", headers={"Authorization": f"Bearer {token}"}))
    assert problem(client.get(f"/ops{PATH}", headers={"Authorization": "Bearer x", **ADA}), 401)
    # A token in a cookie is the sign-in page's, which is not there.
    cookie = {"Cookie": f"pgbeat_token={token}"}
    assert problem(client.get(f"/ops{PATH}", headers=cookie), 401)


def test_a_user_of_the_host_may_be_a_viewer(serve: Serve) -> None:
    client = serve(lambda request: User("vera", is_viewer=True))
    done(client.get(f"/ops{PATH}"))
    refused = client.post(f"/ops{PATH}", json={}, headers=SAME)
    assert (refused.status_code, refused.json()["code"]) == (403, "read_only")
    assert "read-only" in client.get("/ops/console/schedules").text


def test_who_is_an_administrator_too_is_not_held_back(serve: Serve) -> None:
    client = serve(lambda request: User("ada", is_admin=True, is_viewer=True))
    assert problem(client.post(f"/ops{PATH}", json={}, headers=SAME), 422)
