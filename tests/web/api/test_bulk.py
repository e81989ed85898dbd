"""`POST /jobs/bulk`."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.rows import make_job
from tests.support.web import Web, done


def failed(sql: Sql, number: int, **values: Any) -> None:
    for _ in range(number):
        make_job(sql, "failed", **values)


def test_a_preview_and_then_in_several_requests(web: Web, sql: Sql) -> None:
    failed(sql, 5, task="jobs.add", error="HTTPError: 503")
    failed(sql, 1, task="jobs.add", error="no")
    order: dict[str, Any] = {"verb": "retry", "filter": {"task": "jobs.*", "error": "503"}}
    seen = done(web.admin.post("/jobs/bulk", json=order | {"dry_run": True}))
    assert (seen["matched"], seen["done"], len(seen["first"])) == (5, 0, 5)
    first = done(web.admin.post("/jobs/bulk", json=order | {"limit": 3}))
    assert (first["matched"], first["done"]) == (5, 3)
    rest = done(web.admin.post("/jobs/bulk", json=order | {"next": first["next"]}))
    assert (rest["matched"], rest["done"], rest["next"]) == (None, 2, None)
    assert rest["action"] == first["action"]
    assert sql("SELECT count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL") == [(5,)]
    [(after,)] = sql("SELECT after FROM pgbeat.audit WHERE kind = 'jobs'")
    assert after["done"] == 5


def test_what_is_recorded_of_an_action_stays(web: Web, sql: Sql) -> None:
    """It is continued by the same order only, whatever `next` says; times count from now."""
    failed(sql, 3, task="jobs.add")
    failed(sql, 3, task="other.add")
    order: dict[str, Any] = {"verb": "delete", "filter": {"q": "task:jobs.* since:2h"}, "limit": 1}
    first = done(web.admin.post("/jobs/bulk", json=order))
    recorded = sql("SELECT after FROM pgbeat.audit WHERE kind = 'jobs'")
    other = order | {"filter": {"q": "task:other.*"}, "next": first["next"]}
    assert web.admin.post("/jobs/bulk", json=other).status_code == 404
    assert sql("SELECT after FROM pgbeat.audit WHERE kind = 'jobs'") == recorded
    rest = done(web.admin.post("/jobs/bulk", json=order | {"next": first["next"], "limit": 9}))
    assert (rest["done"], rest["next"]) == (2, None)
    [(after,)] = sql("SELECT after FROM pgbeat.audit WHERE kind = 'jobs'")
    assert after == recorded[0][0] | {"done": 3}


def test_times_are_recorded_as_of_one_job(web: Web, sql: Sql) -> None:
    make_job(sql, "pending", task="jobs.add")
    changes = {"run_at": "2100-01-01T00:00:00Z", "retry_base": "2 minutes"}
    order = {"verb": "update", "filter": {"task": "jobs.*"}, "changes": changes}
    assert done(web.admin.post("/jobs/bulk", json=order))["done"] == 1
    [(after,)] = sql("SELECT after FROM pgbeat.audit WHERE kind = 'jobs'")
    assert after["values"] == {"run_at": "2100-01-01T00:00:00Z", "retry_base": 120}


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({"verb": "retry", "filter": {}}, "filter"),
        ({"verb": "update", "filter": {"state": "pending"}}, "changes"),
        ({"verb": "burn", "filter": {"state": "failed"}}, "verb"),
        ({"verb": "pause", "filter": {"state": "running"}}, "state"),
        ({"verb": "retry", "filter": {"state": "failed"}, "next": "x"}, "after"),
        ({"verb": "delete", "filter": {"q": "state:failed,skipped", "state": "completed"}}, "q"),
        ({"verb": "delete", "filter": {"q": "schedule:a", "schedule": "b"}}, "q"),
    ],
)
def test_what_is_refused_names_its_field(web: Web, order: dict[str, Any], field: str) -> None:
    refused = web.admin.post("/jobs/bulk", json=order)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == field


def test_fields_beside_a_query_widen_nothing(web: Web, sql: Sql) -> None:
    for labels in ({"team": "a", "site": "x"}, {"team": "a", "site": "y"}, {"site": "x"}):
        failed(sql, 1, labels=labels)
    order = {"verb": "delete", "filter": {"q": "label:site=x", "labels": {"team": "a"}}}
    assert done(web.admin.post("/jobs/bulk", json=order))["done"] == 1
    left = [labels["site"] for (labels,) in sql("SELECT labels FROM pgbeat.jobs")]
    assert sorted(left) == ["x", "y"]
