"""Descriptions, labels and metadata of schedules and jobs: from every way in, in every list."""

import json
from typing import Any

import psycopg
import pytest
from celery import Celery

import pgbeat
from pgbeat.beat.scheduler import Scheduler
from pgbeat.errors import InvalidJob
from pgbeat.jobs.preparing import details
from pgbeat.jobs.states import retries
from tests.support.command_line import Sql, read, refused, run
from tests.support.databases import broker_url
from tests.support.jobs import JobControl, make_app
from tests.support.jobs import app as app
from tests.support.rows import make_job, make_schedule

BILLING = {"team": "billing", "tier": "1"}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"description": " "}, "description"),
        ({"description": "x" * 2001}, "description"),
        ({"labels": {"team": 1}}, "labels"),
        ({"labels": {"-team": "x"}}, "labels"),
        ({"labels": {"team": "x" * 201}}, "labels"),
        ({"labels": {"team": "a\nb"}}, "labels"),
        ({"labels": {f"l{number}": "" for number in range(33)}}, "labels"),
        ({"metadata": {"x": "y" * 16_384}}, "metadata"),
    ],
)
def test_what_is_refused_and_by_the_database_too(
    sql: Sql, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidJob, match=f"^{field} "):
        details.Details(**given).check()
    value = json.dumps(given[field]) if field != "description" else given[field]
    cast = "::jsonb" if field != "description" else ""
    for table, columns, values in (
        ("schedules", "name, task, every", "'s', 't', '1 hour'"),
        (
            "jobs",
            "id, task, job_source, created_by, is_system_job",
            "gen_random_uuid(), 't', 'system', 'x', true",
        ),
    ):
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            sql(
                f"INSERT INTO pgbeat.{table} ({columns}, {field}) VALUES ({values}, %s{cast})",
                value,
            )
        said = str(caught.value.diag.message_primary)
        assert said.startswith(("schedule ", "job ")) and field.rstrip("s") in said


def test_a_job_has_them_and_so_has_its_retry(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(description="By hand", labels=BILLING, metadata={"ticket": 17})
    assert (job.description, job.labels, job.metadata) == ("By hand", BILLING, {"ticket": 17})
    plain = job_control.make(2)
    assert (plain.description, plain.labels, plain.metadata) == (None, {}, {})
    sql("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now() WHERE id = %s", job.id)
    again = retries.insert_by_hand(job_control.connection, job.id, job_source="user_cli")
    assert again is not None
    told = (job.description, job.labels, job.metadata)
    assert (again.description, again.labels, again.metadata) == told


def test_submit_takes_them(app: Celery) -> None:
    job = pgbeat.submit(
        "jobs.add", 1, app=app, labels=BILLING, description="x", metadata={"a": [1]}
    )
    assert (job.labels, job.description, job.metadata) == (BILLING, "x", {"a": [1]})
    with pytest.raises(InvalidJob, match="labels has 5 for 'team'; the value must be text"):
        pgbeat.submit("jobs.add", 1, app=app, labels={"team": 5})  # type: ignore[dict-item]


def test_a_schedules_jobs_have_its_labels(database: str, sql: Sql) -> None:
    app = make_app(database)
    app.conf.broker_url = broker_url(database)
    make_schedule(sql, task="jobs.add", args="[1]", due="0", labels=BILLING, metadata={"a": 1})
    scheduler = Scheduler(app)
    try:
        assert scheduler.run_due() == 1
    finally:
        scheduler.close()
    assert sql("SELECT labels, metadata FROM pgbeat.jobs") == [(BILLING, {})]


def test_the_command_line(database: str, sql: Sql) -> None:
    make_schedule(sql, task="t", labels=BILLING, pause_after_failures=3)
    make_schedule(sql, "other")
    assert [row["name"] for row in read(database, "list", "--label", "team=billing")] == ["s"]
    assert read(database, "list", "--label", "team=billing", "--label", "tier=2") == []
    shown = run(database, "status", "s").stdout
    assert "team=billing, tier=1" in shown and "3 failed jobs in a row" in shown
    run(database, "update", "s", "--label", "tier=2")  # the others stay
    assert read(database, "status", "s")["labels"] == {"team": "billing", "tier": "2"}
    said = refused(run(database, "update", "s", "--label", "team"))
    assert said.endswith("'team' has no '='; write for example 'team=billing'")
    job = make_job(sql, labels=BILLING, description="Once more")
    assert "Once more" in run(database, "jobs", "show", job).stdout


def test_a_label_is_looked_up(sql: Sql) -> None:
    """A rare label among many jobs is found by its index."""
    sql(
        "INSERT INTO pgbeat.jobs (id, task, state, job_source, created_by, is_system_job, labels) "
        "SELECT gen_random_uuid(), 't', 'pending', 'system', 'x', true, "
        "jsonb_build_object('n', (n / 5)::text) FROM generate_series(1, 5000) n"
    )
    sql("ANALYZE pgbeat.jobs")
    [(plan,)] = sql(
        "EXPLAIN (FORMAT JSON) SELECT id FROM pgbeat.jobs WHERE namespace = 'default' "
        "AND labels @> '{\"n\": \"7\"}' AND labels <> '{}' "
        "ORDER BY created_at DESC, id DESC LIMIT 50"
    )
    assert "jobs_labels" in json.dumps(plan)
