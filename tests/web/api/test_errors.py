"""`GET /errors`."""

from datetime import datetime, timedelta

from tests.support.command_line import Sql
from tests.support.rows import make_job
from tests.support.web import Web, done, problem


def test_errors_that_are_alike_are_one(web: Web, sql: Sql) -> None:
    for number in range(3):
        job = make_job(sql, "failed", task="a", schedule="s", error=f"Boom: order {number}")
    make_job(sql, "failed", task="b", error="KeyError: 'a'")
    found = done(web.viewer.get("/errors", params={"since": "2h"}))
    assert (found["jobs"], found["is_lower_bound"], found["has_more"]) == (4, False, False)
    boom = found["groups"][0]
    assert (boom["pattern"], boom["jobs"], boom["job_id"]) == ("Boom: order *", 3, job)
    assert (boom["tasks"], boom["schedules"], sum(boom["counts"])) == (["a"], ["s"], 3)
    assert len(boom["counts"]) == len(found["groups"][1]["counts"])
    since = datetime.fromisoformat(found["until"].replace("Z", "+00:00")) - timedelta(hours=1)
    asked = {"task": "a", "since": since.isoformat(), "limit": 1}
    assert done(web.viewer.get("/errors", params=asked))["jobs"] == 3


def test_what_is_refused_names_its_parameter(web: Web) -> None:
    refused = web.viewer.get("/errors", params={"since": "93d"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "since"
    problem(web.viewer.get("/errors", params={"limit": "101"}), 422)
