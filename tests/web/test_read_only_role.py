"""The web side whose role in the database may only read."""

from typing import Any

import pytest
from celery import Celery

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from tests.integration.cli.test_doctor import CHECKS
from tests.support.command_line import Sql, read, run
from tests.support.databases import Role
from tests.support.jobs import make_app
from tests.support.schedulers import Beat
from tests.support.web import Web, done, opened, problem
from tests.web.api.test_permissions import TABLE, World, walk


@pytest.fixture
def app(database: str) -> Celery:
    """An app on pgbeat's transport, whose tables are there."""
    migrate.upgrade(postgres_url(database))
    return make_app(database)


@pytest.fixture
def reader(ordinary_role: Role, sql: Sql) -> str:
    """Returns the URL of a role that may read everything and write nothing."""
    sql(f"GRANT USAGE ON SCHEMA pgbeat TO {ordinary_role.name}")
    sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA pgbeat, public TO {ordinary_role.name}")
    return ordinary_role.dsn


@pytest.mark.slow
def test_everything_can_be_read(
    web: Web, app: Celery, beat: Beat, reader: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a beat, of whose session another role sees little."""
    from pgbeat.web.api.jobs import events

    monkeypatch.setattr(events, "LONGEST", 0.1)
    world = World(web, sql)
    world.reset()
    beat().run_due()
    token, wrong = web.token("root", "admin"), []
    app.conf.pgbeat_url = reader
    with opened(app) as read_only:
        client: Any = read_only.browser(token, Accept="text/html, application/json")
        for route in sorted(set(walk(web.app.routes)) & TABLE.keys()):
            if route.startswith("GET") and route != "GET /healthz/leader":
                answer = client.get(world.path(route))
                if answer.status_code >= 500:
                    wrong.append((route, answer.status_code, answer.text[-300:]))
        assert wrong == []
        assert "pgbeat_leader" in client.get("/metrics").text
        assert done(client.get("/readyz")) == {"status": "ready"}
        schedule = {"name": "n", "task": "jobs.add", "every": 60}
        problem(client.post("/admin/scheduled-jobs", json=schedule), 403)
    assert sql("SELECT 1 FROM pgbeat.schedules WHERE name = 'n'") == []


def test_the_doctor_says_what_it_can_not_see(reader: str) -> None:
    checks = {each["check"]: each["result"] for each in read(reader, "doctor")["checks"]}
    hidden = dict.fromkeys(("permissions", "workers", "tasks"), "unknown")
    assert checks == dict.fromkeys(CHECKS, "ok") | hidden | {"beat": "warn", "queues": "warn"}
    for command in ("metrics", "workers", "queues", "list", "jobs", "top", "lanes", "groups"):
        assert run(reader, command).exit_code == 0, command
