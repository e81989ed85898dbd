"""Query parameters that an endpoint doesn't have are refused, on every endpoint."""

import re
from typing import Any

from tests.support.web import Web, done, problem

ANY = "00000000-0000-4000-8000-000000000000"


def test_the_near_parameter_is_named(web: Web) -> None:
    answer = web.admin.get("/jobs", params={"stat": "failed"})
    assert problem(answer, 422) == "stat: there is no parameter 'stat'; did you mean 'state'?"
    assert answer.json()["errors"][0]["field"] == "stat"
    said = problem(web.admin.get("/audit?zzz=1"), 422)
    assert "there are actor, after, kind, limit, subject, verb" in said
    assert "it takes none" in problem(web.admin.get("/templates?limit=1"), 422)
    done(web.admin.get("/jobs?state=failed&limit=1"))


def test_every_endpoint_refuses_what_it_does_not_know(web: Web) -> None:
    admin: Any = web.admin
    paths = admin.get("/openapi.json").json()["paths"]
    # Signing in is a page, whose parameters are those of a browser.
    of_api = {path: methods for path, methods in paths.items() if path not in ("/login", "/logout")}
    assert len(of_api) > 40
    for path, methods in of_api.items():
        for method in methods:
            answer = admin.request(method, re.sub(r"{.*?}", ANY, path) + "?no_such=1")
            assert answer.status_code == 422, (method, path, answer.text)
            assert "no_such" in answer.text, (method, path, answer.text)


def test_probes_are_no_exception(web: Web) -> None:
    for path in ("/healthz?probe=1", "/healthz/leader?probe=1", "/readyz?probe=1"):
        problem(web.nobody.get(path), 422)
