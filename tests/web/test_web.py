"""The web app as a whole: answers, guards, health, OpenAPI."""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import psycopg
import pytest
from celery import Celery
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pgbeat.access.actors import Actor
from pgbeat.config import Settings
from pgbeat.errors import CannotPublish, ConfigError, InvalidJob
from pgbeat.monitoring import runbook
from pgbeat.web import create_app
from tests.support.command_line import Sql
from tests.support.databases import broker_url, end_sessions
from tests.support.jobs import make_app
from tests.support.processes import Processes, until
from tests.support.rows import insert, make_execution, make_job
from tests.support.schedulers import Beat
from tests.support.web import Web, done, make_token, opened, problem
from tests.web.api.made_schedules import PATH, SCHEDULE

# -- answers --------------------------------------------------------------------------------------


def test_every_answer_is_guarded(web: Web) -> None:
    for path in ("/healthz", "/nowhere", PATH, "/docs", "/login"):
        headers = web.nobody.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy


def test_only_what_keeps_from_publishing_is_the_requests_fault(web: Web, database: str) -> None:
    """Other wrong settings are the server's."""
    backend = web.app.state.pgbeat
    for raised, expected in ((CannotPublish, InvalidJob), (ConfigError, ConfigError)):
        with pytest.raises(expected) as found, backend.work(Actor("user:root")):
            raise raised("wrong")
        assert type(found.value) is expected
    elsewhere = make_app(database, "pgbeat+postgresql://127.0.0.1:1/x")
    elsewhere.conf.broker_transport_options = {"nonsense": 1}
    with opened(elsewhere) as other:
        order = {"task": "jobs.add", "args": [1]}
        assert "nonsense" in problem(other.admin.post("/jobs", json=order), 422)


def test_an_answer_to_a_mistake_of_ours_is_guarded(app: Celery, database: str) -> None:
    broken = create_app(app, Settings.load({"pgbeat_url": database}, environ={}), demo=True)

    @broken.get("/broken")
    def fail() -> None:
        raise ZeroDivisionError("a secret")

    with TestClient(broken, raise_server_exceptions=False) as client:
        answer = client.get("/broken")
    assert problem(answer, 500) == "an internal error; the log says more"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_what_a_path_takes_is_said(web: Web) -> None:
    assert "there is nothing at this path" in problem(web.admin.get("/nowhere"), 404)
    for path, methods in (
        (PATH, "HEAD, GET, POST"),
        (f"{PATH}/s", "HEAD, GET, PATCH, DELETE"),
        (f"{PATH}/s/pause", "POST"),
        ("/console/queues", "HEAD, GET, POST"),
        ("/static/console.css", "HEAD, GET"),
    ):
        for method in ("PUT", "OPTIONS"):
            answer = web.admin.request(method, path)
            assert problem(answer, 405) == f"this path doesn't take {method}; it takes {methods}"
            assert answer.headers["allow"] == methods


def test_head_is_get_without_the_body(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    from pgbeat.web.api.jobs import events

    monkeypatch.setattr(events, "LONGEST", 0.1)
    of_api = ("/healthz", "/jobs", "/jobs/events", "/nowhere")
    for path in (*of_api, "/login", "/static/console.css"):
        asked, wanted = web.admin.head(path), web.admin.get(path)
        assert (asked.status_code, asked.headers) == (wanted.status_code, wanted.headers)
        assert asked.content == b""


def test_what_is_asked_gets_into_no_header(web: Web) -> None:
    texts = ("%0d%0aX-Evil:%201", "%0aSet-Cookie:%20a=b", "%3Cscript%3E")
    for path, text in product(("/nowhere", f"{PATH}/s/pause", f"{PATH}/"), texts):
        for answer in (web.admin.post(f"{path}{text}"), web.admin.get(f"{path}?after={text}")):
            assert "x-evil" not in answer.headers
            assert "set-cookie" not in answer.headers
            assert "<script" not in str(answer.headers)
            assert "html" not in answer.headers.get("content-type", "")


def test_a_body_of_a_megabyte_is_too_large(web: Web, sql: Sql) -> None:
    admin = web.admin
    large = {**SCHEDULE, "kwargs": {"x": "y" * 1_000_000}}
    assert problem(admin.post(PATH, json=large), 413) == "the request has more than 1 MB"

    def pieces() -> Iterator[bytes]:  # sent without a length
        yield b'{"name": "'
        for _ in range(20):
            yield b"x" * 100_000

    kind = {"Content-Type": "application/json"}
    assert problem(admin.post(PATH, content=pieces(), headers=kind), 413)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []
    nearly = {
        **SCHEDULE,
        "kwargs": {"x": 1, "y": 2},
        "condition_sql": f"SELECT 1 --{'x' * 900_000}",
    }
    done(admin.post(PATH, json=nearly), 201)


def test_what_is_asked_of_a_database_that_is_away(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """Its credentials are in neither the answers nor the log."""
    app.conf.pgbeat_url = "postgresql://u:s3cret@127.0.0.1:1/none?connect_timeout=1"
    with opened(app) as web:
        asker = web.client("pgbeat_00000000_" + "x" * 43)
        answer, ready = asker.get(PATH), asker.get("/readyz")
        assert problem(answer, 503) == "the database can't be reached now"
        assert done(asker.get("/healthz")) == {"status": "ok"}
        assert problem(ready, 503) == "the database can't be reached"
        assert ready.json()["reasons"] == ["the database can't be reached"]
        assert runbook.link(runbook.AWAY) in asker.get("/console/overview").text
    assert "can't be reached" in caplog.text
    assert "s3cret" not in caplog.text + answer.text + ready.text


def test_a_schema_that_is_missing_says_what_to_do(app: Celery, empty_database: str) -> None:
    app.conf.update(broker_url=broker_url(empty_database), pgbeat_url=None)
    with opened(app) as web:
        asker = web.client("pgbeat_00000000_" + "x" * 43)
        assert "run `pgbeat migrate`" in problem(asker.get(PATH), 503)
        assert "run `pgbeat migrate`" in problem(asker.get("/readyz"), 503)


def test_a_schema_that_does_not_admit_this_version_is_left_alone(web: Web, sql: Sql) -> None:
    sql("UPDATE pgbeat.migrations SET oldest_program = '9999'")
    refused = problem(web.nobody.get("/readyz"), 503)
    assert refused.endswith("; upgrade pgbeat")
    assert problem(web.admin.get(PATH), 503) == refused
    assert problem(web.admin.post(PATH, json=SCHEDULE), 503) == refused
    assert web.admin.get("/console/overview").status_code == 503
    assert sql("SELECT FROM pgbeat.schedules") == []
    sql("UPDATE pgbeat.migrations SET oldest_program = '0001'")
    done(web.admin.post(PATH, json=SCHEDULE), 201)


def test_a_session_that_was_cut_is_made_anew(web: Web, sql: Sql) -> None:
    admin = web.admin
    done(admin.get(PATH))
    assert end_sessions(sql, "pgbeat web")
    done(admin.get(PATH))


# -- health, beats, figures -----------------------------------------------------------------------


def test_it_is_ready_without_a_beat_and_says_who_leads_elsewhere(
    web: Web, beat: Beat, sql: Sql
) -> None:
    nobody = web.nobody
    assert "no beat leads" in problem(nobody.get("/healthz/leader"), 503)
    assert done(nobody.get("/readyz")) == {"status": "ready"}
    scheduler = beat()
    scheduler.run_due()
    assert done(nobody.get("/healthz/leader")) == {"status": "ok"}
    held = {"epoch": 1, "raised_by": "user:alice", "queues": ["q"], "schedules": []}
    insert(sql, "fences", held, "epoch")  # it is no beat's fault
    assert done(nobody.get("/healthz/leader")) == {"status": "ok"}
    scheduler.close()
    until(lambda: nobody.get("/healthz/leader").status_code == 503)


def test_a_wedged_beat_is_not_well(web: Web, beat: Beat, sql: Sql) -> None:
    done(web.admin.post(PATH, json=SCHEDULE), 201)
    beat().run_due()
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '30 s'")
    assert done(web.nobody.get("/healthz/leader")) == {"status": "ok"}
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 hour'")
    answer = web.nobody.get("/healthz/leader")
    assert "1 schedule is due for 360" in problem(answer, 503)
    found = done(web.admin.get("/scheduler/status"))
    assert (found["due"], len(found["troubles"])) == (1, 1)
    assert 3600 <= found["lag"] < 3700


def test_a_lock_that_somebody_else_holds_is_no_leader(web: Web, database: str) -> None:
    with psycopg.connect(database, application_name="psql") as other:
        other.execute("SELECT pg_advisory_lock(1050)")
        assert "which is no beat" in problem(web.nobody.get("/healthz/leader"), 503)


@pytest.mark.slow
def test_the_leader_and_the_standbys(web: Web, beat: Beat, processes: Processes) -> None:
    import os

    leader = beat()
    leader.run_due()
    standby = processes.beat()
    admin = web.admin

    def has_standby() -> Any:
        leader.run_due()  # who is silent for long, while the other starts, leads no more
        found = done(admin.get("/scheduler/status"))
        return found if found["standbys"] else None

    found = until(has_standby)
    assert (found["leader"]["host"], found["leader"]["process"]) == (
        socket.gethostname(),
        os.getpid(),
    )
    assert found["standbys"][0]["process"] == standby.pid
    assert datetime.fromisoformat(found["leader"]["checked_at"]) <= datetime.now(UTC)
    assert (found["due"], found["lag"], found["troubles"]) == (0, 0, [])


def test_figures_of_all_jobs(web: Web, sql: Sql) -> None:
    for state in ("failed", "completed", "completed", "completed"):
        make_execution(sql, make_job(sql, state), state, duration_ms=1500)
    sql("""INSERT INTO pgbeat.counters VALUES ('', 'stale_claims_released', '', '', 5)
           ON CONFLICT (namespace, metric, label, kind) DO UPDATE SET value = 5""")
    found = done(web.user.get("/scheduler/metrics"))
    assert found["jobs"].items() >= {"completed": 3, "failed": 1, "running": 0}.items()
    figures = {"total": 4, "average_ms": 1500, "success_rate": 0.75, "is_whole": True}
    assert found["executions"].items() >= figures.items()
    assert found["stale_locks_cleared"] == 5
    assert found["last_check_at"] is None
    moment = datetime.fromisoformat(found["last_metrics_update"])
    assert datetime.now(UTC) - moment < timedelta(minutes=1)


# -- mounted --------------------------------------------------------------------------------------


def test_it_can_be_mounted_into_another_app(app: Celery, database: str) -> None:
    outer = FastAPI()
    inner = create_app(app)
    outer.mount("/ops/pgbeat", inner)
    token = make_token(database, "root", "admin")
    with TestClient(outer, base_url="http://team.test", follow_redirects=False) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        done(client.get(f"/ops/pgbeat{PATH}"))
        assert problem(client.get(f"/ops/pgbeat{PATH}/x"), 404)
        document = done(client.get("/ops/pgbeat/openapi.json"))
        assert document["servers"] == [{"url": "/ops/pgbeat"}]
        assert PATH in document["paths"]
        assert 'href="/ops/pgbeat/openapi.json"' in client.get("/ops/pgbeat/docs").text
        answer = client.post("/ops/pgbeat/login", data={"token": token, "next": "/jobs"})
        assert answer.headers["location"] == "/ops/pgbeat/jobs"
        assert "path=/ops/pgbeat;" in answer.headers["set-cookie"].lower()
    inner.state.pgbeat.dispose()


def operations(web: Web) -> list[tuple[str, str, dict[str, Any]]]:
    """Each endpoint as it is documented: method, path, and what is said of it."""
    paths = done(web.nobody.get("/openapi.json"))["paths"]
    return [(method, path, each) for path in paths for method, each in paths[path].items()]


# -- OpenAPI --------------------------------------------------------------------------------------


def test_every_endpoint_is_documented(web: Web) -> None:
    found = operations(web)
    ids = [each["operationId"] for _, _, each in found]
    assert len(set(ids)) == len(ids)
    known = {tag["name"] for tag in done(web.nobody.get("/openapi.json"))["tags"]}
    for method, path, each in found:
        where = f"{method} {path}"
        assert each["summary"], where
        assert each["description"], where
        assert set(each["tags"]) <= known, where
        assert len(each["tags"]) == 1, where


#: What needs no token.
OPEN = {"/healthz", "/healthz/leader", "/readyz"}


def test_every_endpoint_asks_who_it_is(web: Web) -> None:
    nobody = web.nobody
    for method, path, each in operations(web):
        if path in OPEN:
            assert "security" not in each
            continue
        [bearer, cookie] = each["security"]
        assert (bearer.keys(), cookie.keys()) == ({"bearer"}, {"cookie"}), path
        # Those for administrators say so.
        assert bearer["bearer"] == cookie["cookie"]
        assert bearer["bearer"] in ([], ["viewer"], ["metrics"], ["admin"])
        problem(nobody.request(method, path.replace("{", "").replace("}", "")), 401)


def test_errors_are_documented_as_problems(web: Web) -> None:
    for _, path, each in operations(web):
        errors = {status: said for status, said in each["responses"].items() if status >= "400"}
        assert ("401" in errors) is (path not in OPEN)
        for said in errors.values():
            assert list(said["content"]) == ["application/problem+json"], path
    document = done(web.nobody.get("/openapi.json"))
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert not [name for name in document["components"]["schemas"] if "__" in name]


def test_examples_are_good_requests(web: Web) -> None:
    """Those of schedules, as they stand, but for the task and what else has to be there."""
    schemas = done(web.nobody.get("/openapi.json"))["components"]["schemas"]
    [example] = schemas["NewSchedule"]["examples"]
    admin = web.admin
    answer = admin.post(PATH, json={**example, "task": "tests.add", "kwargs": {}})
    made = done(answer, 201)
    [change] = schemas["ScheduleChanges"]["examples"]
    done(admin.patch(f"{PATH}/{made['name']}", json=change))


# -- the process ----------------------------------------------------------------------------------


def test_metrics(web: Web) -> None:
    scraper = web.client(web.token("prometheus", "metrics"))
    assert problem(scraper.get("/jobs"), 403).startswith("a token of the scope 'metrics'")
    assert "administrators and viewers" in problem(web.user.get("/metrics"), 403)
    response = scraper.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "\npgbeat_" in response.text
