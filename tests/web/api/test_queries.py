"""Query parameters and fields that an endpoint doesn't have are refused, on every endpoint."""

import re
from typing import Any

import pytest

from tests.support.web import Web, done, errors, problem

ANY = "00000000-0000-4000-8000-000000000000"


def test_the_near_parameter_is_named(web: Web) -> None:
    answer = web.admin.get("/jobs", params={"stat": "failed"})
    assert problem(answer, 422) == "stat: there is no parameter 'stat'; did you mean 'state'?"
    assert answer.json()["errors"][0]["field"] == "stat"
    said = problem(web.admin.get("/audit?zzz=1"), 422)
    assert "there are actor, after, kind, limit, subject, verb" in said
    assert "it takes none" in problem(web.admin.get("/templates?limit=1"), 422)
    done(web.admin.get("/jobs?state=failed&limit=1"))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("/load?task=a&queue=b", "queue"),
        ("/load?since=soon", "since"),
        ("/errors?since=93d", "since"),
        ("/errors?limit=101", "limit"),
        ("/jobs?group=x", "group"),
        ("/jobs?task=%00", ""),
        ("/admin/scheduled-jobs?limit=0", "limit"),
        ("/admin/scheduled-jobs?state=odd", "state"),
        ("/admin/scheduled-jobs?after=x", "after"),
        ("/groups?state=odd", "state"),
        ("/timeline?span=2h", "span"),
    ],
)
def test_a_wrong_value_names_its_parameter(web: Web, query: str, field: str) -> None:
    assert errors(web.admin.get(query))[0][0].partition(".")[0] == field


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


def test_every_endpoint_refuses_a_body_that_it_does_not_know(web: Web) -> None:
    """One that is no object, has another field, or is no JSON."""
    admin: Any = web.admin
    kind = {"Content-Type": "application/json"}
    asked = 0
    for path, methods in admin.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is None:
                continue
            asked += 1
            url = re.sub(r"{.*?}", ANY, path)
            where = (method, path)
            assert ("", "malformed") in errors(admin.request(method, url, json=[])), where
            found = errors(admin.request(method, url, json={"no_such": 1}))
            assert ("no_such", "unknown_field") in found, where
            for content in (b'{"x": NaN}', b'{"x": 1e999}', b'{"x": "\\ud800"}', b"{"):
                problem(admin.request(method, url, content=content, headers=kind), 422)
            if operation["requestBody"].get("required"):
                assert ("", "required") in errors(admin.request(method, url)), where
    assert asked > 25


def test_probes_are_no_exception(web: Web) -> None:
    for path in ("/healthz?probe=1", "/healthz/leader?probe=1", "/readyz?probe=1"):
        problem(web.nobody.get(path), 422)
