"""`pgbeat audit`, and what only commands write into it."""

import getpass
import json
from typing import Any

from celery import Celery
from psycopg.types.json import Jsonb

from pgbeat.database.migrations.migrate import newest
from tests.support.command_line import Sql, read, run, run_on_terminal, run_with
from tests.support.rows import insert


def test_a_cron_stays_whole_in_a_narrow_terminal(database: str, sql: Sql) -> None:
    old, new = "0 6 1 jan,apr,jul,oct *", "*/15 6-22 * * mon-fri"
    change: dict[str, Any] = {
        "actor": "user:a",
        "origin": "cli",
        "verb": "update",
        "kind": "schedule",
    }
    change |= {"subject": "s", "before": Jsonb({"cron": old}), "after": Jsonb({"cron": new})}
    insert(sql, "audit", change, "id")
    listed = run_on_terminal(database, 50, "audit")
    assert [text.strip() for text in listed[-2:]] == [f"cron: {old} →", new]


def test_a_migration_is_noted_with_its_versions(empty_database: str) -> None:
    assert run(empty_database, "migrate").exit_code == 0
    assert run(empty_database, "migrate").exit_code == 0  # there is nothing left to do
    [row] = read(empty_database, "audit")
    assert (row["actor"], row["verb"]) == (f"user:{getpass.getuser()}", "migrate")
    assert (row["before"], row["after"]) == ({"version": None}, {"version": newest()})


def test_a_jobs_changes_are_found_by_the_beginning_of_its_id(app: Celery) -> None:
    job = json.loads(run_with(app, "jobs", "run", "tests.add", "--args", "[1]", "--json").stdout)
    run_with(app, "jobs", "run", "tests.add", "--args", "[1]")
    which = ("--kind", "job", "--subject", job["id"][:8])
    [row] = json.loads(run_with(app, "audit", *which, "--json").stdout)
    assert (row["verb"], row["subject"]) == ("create", job["id"])
