"""Who may do what by the web: every route that the app has × everybody who may ask.

A route that is not in the table fails here, so that none is forgotten.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.rows import (
    insert,
    make_dead_letter,
    make_delivery,
    make_execution,
    make_job,
    make_lane,
    make_webhook,
)
from tests.support.web import Web, done
from tests.web.api.made_jobs import make

#: The statuses for nobody, the user whose the thing is, another user, and an administrator. 2 is
#: any good answer, 0 any but 401, 403 and 5xx.
OPEN = (2, 2, 2, 2)
ANY = (401, 2, 2, 2)
OWN = (401, 2, 404, 2)
ADMIN = (401, 403, 403, 2)
ADMINS_OF_OWN = (401, 403, 404, 2)
#: Only by a signed URL.
SIGNED = (401, 401, 401, 401)
#: Pages lead those who are not signed in to the place where they can.
PAGE, ADMIN_PAGE = (303, 0, 0, 0), (303, 403, 403, 0)

Body = Any
#: Pages for administrators, below `/console/`: those that only show, and those with forms.
SHOWING = (
    "audit", "beats", "errors", "tasks/{name:path}", "tasks", "lanes", "queues/{name:path}",
    "calendars", "overview", "webhooks",
)  # fmt: skip
WITH_FORMS = (
    "backfill/{name:path}", "events", "workers", "new/lane", "lanes/{name}", "new/schedule",
    "new/template", "new/webhook", "queues", "calendars/{name}", "new/calendar", "schedules",
    "schedules/{name:path}", "webhooks/{name}",
)  # fmt: skip
TABLE: dict[str, tuple[tuple[int, int, int, int], Body]] = {
    **{f"GET /console/{path}": (ADMIN_PAGE, None) for path in (*SHOWING, *WITH_FORMS)},
    **{f"POST /console/{path}": (ADMIN_PAGE, None) for path in WITH_FORMS},
    "GET /openapi.json": (OPEN, None),
    "GET /docs": (OPEN, None),
    "GET /docs/{section}": (OPEN, None),
    "GET /healthz": (OPEN, None),
    "GET /readyz": (OPEN, None),
    "GET /healthz/leader": ((503, 503, 503, 503), None),  # no beat runs
    "GET /metrics": (ADMIN, None),
    "GET /load": (ADMIN, None),
    "GET /errors": (ADMIN, None),
    "GET /find": (ANY, None),
    "GET /tasks": (ADMIN, None),
    "POST /admin/scheduled-jobs/preview": (
        ADMIN,
        {"name": "p", "task": "jobs.add", "args": [1], "every": 60},
    ),
    "POST /admin/scheduled-jobs/{name}/preview": (ADMIN, {"every": 60}),
    "POST /console/preview": (ADMIN_PAGE, {"name": "p"}),
    "GET /workers": (ADMIN, None),
    "GET /workers/versions": (ADMIN, None),
    "GET /fence": (ADMIN, None),
    "POST /workers/{name:path}/{verb}": ((401, 403, 403, 404), None),
    "POST /login": ((303, 303, 303, 303), None),
    "POST /logout": ((303, 303, 303, 303), None),
    "POST /callbacks/{code}": (SIGNED, None),
    "GET /login": (OPEN, None),
    "POST /login/link": ((303, 303, 303, 303), None),
    "GET /": ((303, 303, 303, 303), None),
    "GET /console": ((303, 303, 303, 303), None),
    "GET /console/": ((303, 303, 303, 303), None),
    "GET /console/{name:path}": ((303, 404, 404, 404), None),
    "GET /console/groups": (PAGE, None),
    "GET /console/groups/{group_id}": ((303, 0, 404, 0), None),
    "POST /console/groups/{group_id}": ((303, 0, 404, 0), None),
    "GET /console/jobs": (PAGE, None),
    "GET /console/find": (PAGE, None),
    "GET /console/jobs/{job_id}": ((303, 0, 404, 0), None),
    "GET /console/jobs/{job_id}/tree": ((303, 0, 404, 0), None),
    "POST /console/jobs/{job_id}": ((303, 0, 404, 0), None),
    "GET /console/changes": (PAGE, None),
    "POST /console/bulk": (PAGE, None),
    "GET /console/new/group": (PAGE, None),
    "POST /console/new/group": (PAGE, None),
    "GET /console/new/job": (PAGE, None),
    "POST /console/new/job": (PAGE, None),
    "POST /console/dead": (ADMIN_PAGE, None),
    "GET /console/templates": (PAGE, None),
    "GET /console/templates/{name}": (PAGE, None),
    "POST /console/templates/{name}": (ADMIN_PAGE, None),
    "GET /admin/scheduled-jobs": (ADMIN, None),
    "POST /admin/scheduled-jobs": (
        ADMIN,
        {"name": "s2", "task": "jobs.add", "args": [1], "cron": "0 0 * * *"},
    ),
    "GET /admin/scheduled-jobs/{name}": (ADMIN, None),
    "PATCH /admin/scheduled-jobs/{name}": (ADMIN, {"max_retries": 1}),
    "DELETE /admin/scheduled-jobs/{name}": (ADMIN, None),
    "POST /admin/scheduled-jobs/{name}/enable": (ADMIN, None),
    "POST /admin/scheduled-jobs/{name}/disable": (ADMIN, None),
    "POST /admin/scheduled-jobs/{name}/pause": (ADMIN, None),
    "POST /admin/scheduled-jobs/{name}/resume": (ADMIN, None),
    "POST /admin/scheduled-jobs/pause": (ADMIN, None),
    "POST /admin/scheduled-jobs/resume": (ADMIN, None),
    "GET /admin/scheduled-jobs/{name}/cursor": (ADMIN, None),
    "PUT /admin/scheduled-jobs/{name}/cursor": (ADMIN, {"cursor": 1}),
    "POST /admin/scheduled-jobs/{name}/trigger": (ADMIN, None),
    "POST /admin/scheduled-jobs/{name}/check": (ADMIN, None),
    "POST /admin/scheduled-jobs/{name}/backfill": (
        ADMIN,
        {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z", "dry_run": True},
    ),
    "GET /admin/scheduled-jobs/{name}/history": (ADMIN, None),
    "GET /admin/scheduled-jobs/{name}/forecast": (ADMIN, None),
    "GET /calendars": (ANY, None),
    "POST /calendars": (ADMIN, {"name": "c2", "definition": {"weekdays": ["sat"]}}),
    "GET /calendars/{name}": (ANY, None),
    "GET /calendars/{name}/check": (ANY, None),
    "PUT /calendars/{name}": (ADMIN, {"definition": {"weekdays": ["sun"]}}),
    "DELETE /calendars/{name}": (ADMIN, None),
    "GET /scheduler/status": (ADMIN, None),
    "GET /timeline": (ADMIN, None),
    "GET /forecast": (ADMIN, None),
    "GET /scheduler/metrics": (ANY, None),
    "GET /audit": (ADMIN, None),
    "GET /events": (ADMIN, None),
    "POST /events": (ADMIN, {"key": "k"}),
    "GET /jobs": (ANY, None),
    "POST /jobs": ((401, 2, 2, 2), {"task": "jobs.add", "args": [1]}),
    "POST /jobs/bulk": ((401, 2, 2, 2), {"verb": "cancel", "filter": {"task": "jobs.*"}}),
    "POST /jobs/many": ((401, 2, 2, 2), {"jobs": [{"task": "jobs.add", "args": [1]}]}),
    "GET /jobs/events": (ANY, None),
    "GET /jobs/{job_id}": (OWN, None),
    "DELETE /jobs/{job_id}": (OWN, None),
    "GET /jobs/{job_id}/events": (OWN, None),
    "GET /jobs/{job_id}/executions": (OWN, None),
    "GET /jobs/{job_id}/stats": (OWN, None),
    "GET /jobs/{job_id}/tree": (OWN, None),
    "GET /jobs/{job_id}/trace": (OWN, None),
    "GET /jobs/{job_id}/logs": (OWN, None),
    "GET /jobs/{job_id}/stack": (OWN, None),
    "POST /jobs/{job_id}/cancel": (OWN, None),
    "POST /jobs/{job_id}/retry": (OWN, None),
    "POST /jobs/{job_id}/pause": (OWN, None),
    "POST /jobs/{job_id}/resume": (OWN, None),
    "PATCH /jobs/{job_id}": (OWN, {"priority": 3}),
    "POST /jobs/{job_id}/approve": (ADMINS_OF_OWN, None),
    "POST /jobs/{job_id}/move": (OWN, {"where": "front"}),
    "GET /executions/{execution_id}": (OWN, None),
    "GET /results/{task_id}": (OWN, None),
    "GET /groups": (ANY, None),
    "POST /groups": (ANY, {"jobs": [{"task": "jobs.add", "args": [1]}]}),
    "GET /groups/{group_id}": (OWN, None),
    "POST /groups/{group_id}/cancel": (OWN, None),
    "GET /templates": (ANY, None),
    "POST /templates": (ADMIN, {"name": "t2", "task": "jobs.add"}),
    "GET /templates/{name}": (ANY, None),
    "PUT /templates/{name}": (ADMIN, {"task": "jobs.add"}),
    "DELETE /templates/{name}": (ADMIN, None),
    "GET /lanes": (ANY, None),
    "GET /lanes/{name}": (ANY, None),
    "PUT /lanes/{name}": (ADMIN, {"max_running": 1}),
    "DELETE /lanes/{name}": (ADMIN, None),
    "DELETE /lanes/{name}/reservations/{number}": (ADMIN, None),
    "POST /lanes/{name}/pause": (ADMIN, None),
    "POST /lanes/{name}/resume": (ADMIN, None),
    "POST /direct/{task}": (ANY, {"lane": "empty", "args": [1]}),
    "GET /queues": (ADMIN, None),
    "POST /queues/{name:path}/pause": (ADMIN, None),
    "POST /queues/{name:path}/resume": (ADMIN, None),
    "POST /queues/{name:path}/purge": (ADMIN, None),
    "GET /dead": (ADMIN, None),
    "GET /dead/{letter_id}": (ADMIN, None),
    "POST /dead/requeue": (ADMIN, {"all": True}),
    "POST /dead/drop": (ADMIN, {"all": True}),
    "GET /webhooks": (ADMIN, None),
    "POST /webhooks": (
        ADMIN,
        {"name": "h2", "url": "https://example.com/x", "events": ["job.failed"]},
    ),
    "GET /webhooks/{name}": (ADMIN, None),
    "PATCH /webhooks/{name}": (ADMIN, {"events": ["all"]}),
    "DELETE /webhooks/{name}": (ADMIN, None),
    "POST /webhooks/{name}/enable": (ADMIN, None),
    "POST /webhooks/{name}/disable": (ADMIN, None),
    "GET /webhooks/{name}/deliveries": (ADMIN, None),
    "GET /webhooks/{name}/incidents": (ADMIN, None),
    "POST /webhooks/{name}/redeliver": (ADMIN, None),
    "POST /webhooks/{name}/deliveries/{delivery_id}/redeliver": (ADMIN, None),
    "POST /webhooks/{name}/test": (ADMIN, None),
}
#: What is the same as another, and what has no owner.
_SAME = {"HEAD", "OPTIONS"}


def walk(routes: Iterable[Any], prefix: str = "") -> Iterator[str]:
    """All routes, as `METHOD /path`; those of routers that are included too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from walk(inner.routes, prefix)
        elif getattr(route, "methods", None):
            yield from (f"{method} {prefix}{route.path}" for method in route.methods - _SAME)
        else:
            assert route.path == "/static", route  # files


class World:
    """What the routes are asked about; made anew by an administrator before each question."""

    def __init__(self, web: Web, sql: Sql) -> None:
        self.sql, self.alice, self.admin = sql, web.user, web.admin
        self.webhook = 0
        make_lane(sql, "empty", 1)

    def reset(self) -> None:
        """A schedule, a lane, a template and a webhook, each as if it were new."""
        self.sql("DELETE FROM pgbeat.schedules")
        self.sql("DELETE FROM pgbeat.calendars")
        self.sql("DELETE FROM pgbeat.templates")
        self.sql("DELETE FROM pgbeat.webhooks")
        self.sql("DELETE FROM pgbeat.lanes WHERE name <> 'empty'")
        schedule = {"name": "s", "task": "jobs.add", "args": [1], "cron": "0 0 * * *"}
        done(self.admin.post("/admin/scheduled-jobs", json=schedule), 201)
        done(self.admin.put("/templates/t", json={"task": "jobs.add", "args": [1]}), 201)
        done(self.admin.put("/calendars/c", json={"definition": {"weekdays": ["sat"]}}), 201)
        done(self.admin.put("/lanes/l", json={"max_running": 0}), 201)
        self.webhook = make_webhook(self.sql, "h", url="https://127.0.0.1:1/x", slots=8)

    def path(self, route: str) -> str:
        """The route's path, about a thing that is as the route wants it."""
        path = route.split(" ")[1]
        names = {
            "/admin": "s",
            "/console/schedules": "s",
            "/templates": "t",
            "/lanes": "l",
            "/console/lanes": "l",
            "/webhooks": "h",
            "/queues": "celery",
            "/console/queues": "celery",
            "/console/backfill": "s",
            "/console/templates": "t",
            "/console/webhooks": "h",
            "/calendars": "c",
            "/console/calendars": "c",
            "/console/tasks": "t",
            "/workers": "nowhere",
            "/console/{": "nowhere",
        }
        for beginning, name in names.items():
            if path.startswith(beginning):
                path = re.sub(r"\{name(:path)?\}", name, path)
        makers: dict[str, Callable[[], str]] = {
            "{job_id}": lambda: self.job(path.rsplit("/", 1)[1], route),
            "{execution_id}": lambda: make_execution(self.sql, make_job(self.sql, "running")),
            "{task_id}": self.result,
            "{group_id}": lambda: str(
                done(
                    self.alice.post("/groups", json={"jobs": [{"task": "jobs.add", "args": [1]}]}),
                    201,
                )["id"]
            ),
            "{letter_id}": lambda: str(make_dead_letter(self.sql)),
            "{delivery_id}": lambda: make_delivery(self.sql, self.webhook, "failed"),
            "{task}": lambda: "jobs.add",
            "{number}": self.reservation,
            "{verb}": lambda: "grow",
            "{section}": lambda: "jobs",
            "{code}": lambda: "forged",
        }
        for place, maker in makers.items():
            if place in path:
                path = path.replace(place, maker())
        if "/dead" in path:
            make_dead_letter(self.sql)
        assert "{" not in path, path
        return path

    def job(self, verb: str, route: str) -> str:
        """A job of alice's, such that the verb can be done with it."""
        if verb == "events" or route.startswith("DELETE"):
            return make_job(self.sql, state="completed")
        if verb == "approve":
            return str(make(self.alice, requires_approval=True)["id"])
        job_id = str(make(self.alice, lane="l" if verb == "move" else None)["id"])
        before = {"resume": "pause", "retry": "cancel"}.get(verb)
        if before:
            done(self.alice.post(f"/jobs/{job_id}/{before}"))
        return job_id

    def result(self) -> str:
        """A job of alice's that has a result."""
        job_id = make_job(self.sql, state="completed")
        kept = {"content_type": "application/json", "content_encoding": "utf-8"}
        insert(self.sql, "results", kept | {"task_id": job_id, "status": "SUCCESS"}, "task_id")
        return job_id

    def reservation(self) -> str:
        """A direct execution that waits in lane l, as long as the test's session lives."""
        given = {"lane": "l", "task": "jobs.add", "created_by": "user:alice"}
        number = insert(self.sql, "reservations", given, "id")
        self.sql("SELECT pg_advisory_lock(1885823609, %s)", number)
        return str(number)


def test_every_route_is_in_the_table(web: Web) -> None:
    found = set(walk(web.app.routes))
    assert found - TABLE.keys() == set()
    documented = {
        f"{method.upper()} {path}"
        for path, methods in web.app.openapi()["paths"].items()
        for method in methods
    }
    assert documented <= {route.replace(":path", "") for route in found}
    assert TABLE.keys() - found == set()


@pytest.mark.parametrize(
    "who",
    [
        "nobody",
        "user",
        *(pytest.param(who, marks=pytest.mark.slow) for who in ("other", "admin", "viewer")),
    ],
)
def test_who_may_what(web: Web, sql: Sql, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """And what is refused writes nothing: no note, and no other state of jobs and lanes."""
    from pgbeat.web.api.jobs import events

    monkeypatch.setattr(events, "LONGEST", 0.1)
    world = World(web, sql)
    client = getattr(web, who)
    wrong: list[tuple[Any, ...]] = []
    notes = "SELECT count(*) FROM pgbeat.audit"
    is_changed = True
    for route in sorted(set(walk(web.app.routes)) & TABLE.keys()):
        statuses, body = TABLE[route]
        if is_changed:
            world.reset()
        path = world.path(route)
        before = sql(notes)
        method = route.split(" ")[0]
        given: dict[str, Any] = {} if body is None else {"json": body}
        if "console" in path:
            given = {"headers": {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}}
            given |= {"data": {"do": "nothing"}} if method == "POST" else {}
        answer = client.request(method, path, **given)
        is_changed = sql(notes) != before
        expected = _expected(route, statuses, who)
        is_right = (
            answer.status_code not in {401, 403} and answer.status_code < 500
            if expected == 0
            else answer.status_code // 100 == 2
            if expected == 2
            else answer.status_code == expected
        )
        if not is_right:
            wrong.append((route, expected, answer.status_code, answer.text[:200]))
        if answer.status_code >= 400 and is_changed:
            wrong.append((route, "a note of what was refused"))
        if answer.status_code >= 400 and "html" not in answer.headers["content-type"]:
            assert json.loads(answer.text)["status"] == answer.status_code
    assert wrong == []


def _expected(route: str, statuses: tuple[int, int, int, int], who: str) -> int:
    """A viewer gets what an administrator reads, and no change, nor a form for one."""
    if who != "viewer":
        return statuses[["nobody", "user", "other", "admin"].index(who)]
    is_form = "/console/new/" in route or "/console/backfill/" in route
    is_change = not route.startswith("GET") and statuses not in (SIGNED, (303, 303, 303, 303))
    is_secret = "/webhooks" in route
    return 403 if is_form or is_change or is_secret else statuses[-1]


def test_no_form_of_another_site_changes_anything(web: Web, sql: Sql) -> None:
    root = web.browser(web.token("root", "admin"), **{"Sec-Fetch-Site": "cross-site"})
    for route in TABLE:
        method, path = route.split(" ")
        if method == "POST" and "/console/" in path:
            answer = root.post(re.sub(r"{[^}]*}", "1", path), data={"do": "delete"})
            assert answer.status_code == 403, route
    assert sql("SELECT 1 FROM pgbeat.audit") == []


def test_no_route_lets_a_viewer_change_anything(web: Web) -> None:
    viewer = web.viewer
    refused = 0
    without_token = {"POST /login", "POST /login/link", "POST /logout", "POST /callbacks/{code}"}
    for route in TABLE.keys() - without_token:
        method, path = route.split(" ")
        if method == "GET":
            continue
        answer = viewer.request(method, re.sub(r"{[^}]*}", "1", path), json={})
        assert answer.status_code == 403, route
        if "/console/" not in path:
            assert answer.json()["code"] == "read_only", route
            refused += 1
    assert refused > 40
