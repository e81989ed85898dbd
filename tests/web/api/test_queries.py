"""Query parameters and fields that an endpoint doesn't have are refused, on every endpoint."""

import re
from typing import Any
from urllib.parse import quote

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


def wrong_values(name: str, schema: dict[str, Any]) -> list[Any]:
    """Returns values of a parameter that its schema rules out; and NUL, which no text has."""
    found: list[Any] = ["x"] if name == "after" else []
    of_kind = {"boolean": "perhaps", "string": "\0", "integer": "x", "number": "x"}
    limits = {"minimum": -1, "maximum": 1}
    for each in schema.get("anyOf", [schema]):
        found += [of_kind[each["type"]]] if each.get("type") in of_kind else []
        found += [each[limit] + beyond for limit, beyond in limits.items() if limit in each]
        found += ["odd"] if "enum" in each or "format" in each else []
        found += ["x" * (each["maxLength"] + 1)] if "maxLength" in each else []
    return found


def test_a_wrong_value_names_its_parameter(web: Web) -> None:
    asked = 0
    for path, methods in done(web.admin.get("/openapi.json"))["paths"].items():
        for method, operation in methods.items():
            for each in operation.get("parameters", ()):
                for value in wrong_values(each["name"], each["schema"]):
                    place = f"{{{each['name']}}}"
                    url = path.replace(place, quote(str(value), safe=""))
                    params = {} if place in path else {each["name"]: value}
                    answer = web.admin.request(method, re.sub(r"{.*?}", ANY, url), params=params)
                    where = (method, path, each["name"], value)
                    if value == "\0":
                        assert answer.status_code in (404, 422), where
                    else:
                        assert errors(answer)[0][0].partition(".")[0] == each["name"], where
                    asked += 1
    assert asked > 140
    for query in ("/load?task=a&queue=b", "/load?since=soon", "/errors?since=93d"):
        assert errors(web.admin.get(query))[0][0].partition(".")[0] in ("queue", "since"), query


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


#: Bodies that are no JSON, or none that can be kept.
NO_JSON = {
    b"{": 422,
    b'{"x": NaN}': 422,
    b'{"x": 1e999}': 422,
    b'{"x": "\\ud800"}': 422,
    b'{"x": "\xff"}': 400,
    b'{"x": ' + b"9" * 5000 + b"}": 400,
    b"[" * 100_000: 400,
}


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
            for content, status in NO_JSON.items():
                problem(admin.request(method, url, content=content, headers=kind), status)
            # A form of another site can't send JSON under its own name.
            for other in ("text/plain", "application/x-www-form-urlencoded"):
                as_text = {"Content-Type": other}
                problem(admin.request(method, url, content=b"{}", headers=as_text), 422)
            if operation["requestBody"].get("required"):
                assert ("", "required") in errors(admin.request(method, url)), where
    assert asked > 25


def test_probes_are_no_exception(web: Web) -> None:
    for path in ("/healthz?probe=1", "/healthz/leader?probe=1", "/readyz?probe=1"):
        problem(web.nobody.get(path), 422)
