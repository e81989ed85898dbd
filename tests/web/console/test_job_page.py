"""The page of a job: its trace."""

from typing import Any

from tests.support.pages import html
from tests.support.rows import Sql
from tests.support.web import Web


def test_the_trace_of_all_attempts(web: Web, page: Any, job: Any, sql: Sql) -> None:
    """As bars, as a table, and by the API."""
    policy = {"max_attempts": 2, "retry_base": "30 seconds", "queue": "mail"}
    start, then, end = (f"2026-01-01T00:{minute}Z" for minute in ("00:00", "00:10", "01:00"))
    first = job(state="failed", created_at=start, dispatched_at="2026-01-01T00:00:03Z",
                finished_at=then, lane="<gpu>", **policy)  # fmt: skip
    second = job(created_at=then, dispatched_at=then, finished_at=end, attempt=2, retry_of=first,
                 **policy)  # fmt: skip
    for job_id, state, *times in (
        (first, "failed", "00:00:05", "00:00:10"), (second, "completed", "00:00:50", "00:01:00"),
    ):  # fmt: skip
        sql(
            "INSERT INTO pgbeat.executions (job_id, number, worker, state, started_at, finished_at)"
            " VALUES (%s, 1, 'w1', %s, %s, %s) RETURNING id",
            job_id, state, *(f"2026-01-01T{each}Z" for each in times),
        )  # fmt: skip
    shown = html(page.get(f"/console/jobs/{first}"))
    assert "waiting in lane &lt;gpu&gt;" in shown and "backing off" in shown.words
    bars = shown.tree.xpath("//div[@class='bar-of']//rect")
    assert [(bar.get("class"), bar.get("x"), bar.get("width")) for bar in bars] == [
        ("lane", "0.0%", "5.0%"), ("queue", "5.0%", "3.33%"), ("bad", "8.33%", "8.33%"),
        ("backoff", "16.67%", "50.0%"), ("queue", "66.67%", "16.67%"), ("good", "83.33%", "16.67%"),
    ]  # fmt: skip
    assert len(shown.tree.xpath("//*[@id='phases']//tbody/tr")) == 10
    found = web.admin.get(f"/jobs/{second}/trace").json()
    assert found["is_whole"] and found["since"] == "2026-01-01T00:00:00Z"
    assert [each["kind"] for each in found["phases"]] == [
        "created", "lane", "queue", "running", "ended",
        "created", "backoff", "queue", "running", "ended",
    ]  # fmt: skip
    assert found["phases"][6] == {
        "job_id": second, "attempt": 2, "kind": "backoff", "started_at": "2026-01-01T00:00:10Z",
        "ended_at": "2026-01-01T00:00:40Z", "duration_seconds": 30.0, "status": None,
        "execution_number": None, "where": None,
    }  # fmt: skip
