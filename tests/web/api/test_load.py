"""`GET /load`."""

from datetime import timedelta

from pgbeat.beat.maintenance import load as keeper
from pgbeat.config import Settings, postgres_url
from tests.support.command_line import Sql
from tests.support.databases import connected
from tests.support.rows import make_job
from tests.support.web import Web, done, problem


def test_the_load_of_a_task(web: Web, sql: Sql, database: str) -> None:
    [(at,)] = sql("SELECT date_trunc('minute', now()) - interval '5 minutes'")
    for state in ("completed", "completed", "failed"):
        make_job(
            sql,
            state,
            task="a",
            created_at=at - timedelta(seconds=9),
            started_at=at,
            finished_at=at + timedelta(seconds=2),
        )
    with connected(database) as connection:
        keeper.keep(connection, Settings(postgres_url(database)), lambda task: "celery")
    found = done(web.admin.get("/load", params={"task": "a", "since": "30m", "step": "300"}))
    assert (found["kind"], found["name"], found["step"]) == ("task", "a", 300)
    assert (found["total"]["completed"], found["total"]["failed"]) == (2, 1)
    assert sum(point["completed"] for point in found["points"]) == 2
    assert 6 <= len(found["points"]) <= 7
    since = found["since"].replace("Z", "+00:00")
    assert done(web.admin.get("/load", params={"since": since}))["total"]["completed"] == 2


def test_what_is_refused_names_its_parameter(web: Web) -> None:
    refused = web.admin.get("/load", params={"task": "a", "queue": "b"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "queue"
    problem(web.admin.get("/load", params={"since": "soon"}), 422)
