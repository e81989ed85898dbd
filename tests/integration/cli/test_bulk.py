"""`pgbeat jobs retry --state failed …`: verbs on all jobs that a filter matches."""

import json

import psycopg
import pytest
from celery import Celery

from pgbeat.access.actors import user
from tests.support.command_line import Sql, run_with
from tests.support.jobs import messages
from tests.support.rows import make_job


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGBEAT_ADMIN", "1")


def failed(sql: Sql, number: int, **values: object) -> None:
    for _ in range(number):
        make_job(sql, "failed", **values)


def test_a_dry_run_says_how_many_and_which(app: Celery, sql: Sql) -> None:
    failed(sql, 12, task="shop.a", error="HTTPError: 503")
    failed(sql, 1, task="other", error="HTTPError: 503")
    asked = ("jobs", "retry", "--task", "shop.*", "--error", "*503*", "--since", "2h")
    shown = run_with(app, *asked, "--dry-run")
    assert shown.exit_code == 0
    assert shown.stdout.count("shop.a") == 10
    assert "… and 2 more.\n" in shown.stdout
    assert shown.stdout.endswith("Would retry 12 jobs.\n")
    assert messages(sql) == []


def test_it_asks_and_then_says_what_was_done(app: Celery, sql: Sql) -> None:
    failed(sql, 2)
    failed(sql, 1, args=None)
    no = run_with(app, "jobs", "retry", "--state", "failed", answer="n\n")
    assert "Nothing is retried." in no.output
    assert messages(sql) == []
    yes = run_with(app, "jobs", "retry", "--state", "failed", answer="y\n")
    assert "Retried 2 jobs. Left 1 alone:\n" in yes.stdout
    assert "its arguments were not JSON of a call" in yes.stdout
    assert (no.exit_code, yes.exit_code) == (0, 1)
    assert len(messages(sql)) == 2


@pytest.mark.parametrize(
    ("verb", "past"), [("update --priority 3", "Updated"), ("delete", "Deleted")]
)
def test_other_verbs(app: Celery, sql: Sql, verb: str, past: str) -> None:
    for state in ("failed", "pending"):
        make_job(sql, state, task="shop.a")
    state = "failed" if verb == "delete" else "pending"
    shown = run_with(app, "jobs", *verb.split(" "), "--state", state, "--yes")
    assert f"{past} 1 job" in shown.stdout
    left = sql("SELECT state, priority FROM pgbeat.jobs ORDER BY state")
    assert left == ([("pending", 0)] if verb == "delete" else [("failed", 0), ("pending", 3)])


def test_it_fails_if_it_leaves_jobs_alone(app: Celery, sql: Sql) -> None:
    make_job(sql, "pending")
    asked = ("jobs", "update", "--state", "pending", "--lane", "none", "--yes")
    said = run_with(app, *asked)
    assert (said.exit_code, "there is no lane 'none'" in said.stdout) == (1, True)
    shown = run_with(app, *asked, "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["left"]) == (1, {"invalid_job": 1})


def test_it_says_how_far_it_came_before_an_error(
    app: Celery, sql: Sql, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.cli.terminal.target._LIMITS", {"lock_timeout": "50ms"})
    monkeypatch.setattr("pgbeat.jobs.verbs.bulk.BATCH", 2)
    locked, *_ = [make_job(sql, "pending") for _ in range(3)]  # the newest go first
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [locked])
        shown = run_with(app, "jobs", "cancel", "--state", "pending", "--yes")
    assert (shown.exit_code, shown.stderr.splitlines()[1:]) == (
        1,
        ["Cancelled 2 of 3 jobs.", "Error: another session is changing that; try again"],
    )
    assert sql("SELECT count(*) FROM pgbeat.jobs WHERE state = 'cancelled'") == [(2,)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel",),
        ("cancel", "abcd", "--state", "pending"),
        ("pause", "abcd", "--dry-run"),
        ("retry", "--state", "completed"),
    ],
)
def test_wrong_ways_to_say_which(app: Celery, arguments: tuple[str, ...]) -> None:
    refused = run_with(app, "jobs", *arguments)
    assert refused.exit_code == 2
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("more", "own", "others"),
    [((), 1, 2), (("--admin",), 3, 0), (("--task", "none"), 0, 0), (("--created-by", "ME"), 1, 0)],
)
def test_jobs_of_others_are_counted(
    app: Celery,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    own: int,
    others: int,
) -> None:
    monkeypatch.delenv("PGBEAT_ADMIN")
    failed(sql, 2, created_by="user:somebody-else")
    failed(sql, 1, created_by=user().name)
    make_job(sql, "completed", created_by="user:somebody-else")
    asked = ("jobs", "retry", "--state", "failed", "--since", "3000000 days", "--dry-run", *more)
    asked = tuple(user().name if word == "ME" else word for word in asked)
    seen = json.loads(run_with(app, *asked, "--json").stdout)
    assert (seen["matched"], seen["others"]) == (own, others)
    said = "Note: 2 jobs of others also match; an administrator may retry them (--admin).\n"
    assert (said in run_with(app, *asked).stderr) is (others == 2)
