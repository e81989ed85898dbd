"""`pgbeat prune`: what it deletes, says and refuses."""

import pytest

from pgbeat.beat.maintenance import pruner as retention
from tests.support.command_line import read, run
from tests.support.old_rows import audited, jobs, left, schedule, ticks
from tests.support.rows import Sql


def test_the_command(database: str, sql: Sql) -> None:
    key = schedule(sql)
    jobs(sql, [40, 39])
    ticks(sql, [50, 49], key)
    assert run(database, "prune", "--dry-run", "--count", "1").stdout == (
        "Would delete 1 tick, 2 jobs, 2 executions.\n"
    )
    assert len(left(sql, "jobs")) == 2
    assert read(database, "prune", "--days", "39.5") == {
        "dry_run": False,
        "kept": {"days": 39.5, "count": 100, "audit_days": 365.0},
        "deleted": {
            "ticks": 0,
            "jobs": 1,
            "executions": 1,
            "groups": 0,
            "dependencies": 0,
            "deliveries": 0,
            "audit": 0,
        },
    }
    assert run(database, "prune").stdout == "Deleted 1 job, 1 execution.\n"
    assert run(database, "prune", "--days", "1").stdout == (
        "There is nothing to delete: kept are 1 day, and of each schedule the newest 100.\n"
    )


def test_the_command_where_everything_is_kept(database: str, sql: Sql) -> None:
    jobs(sql, [40])
    result = run(database, "prune", env={"PGBEAT_RETENTION_DAYS": "0"})
    assert result.stdout == (
        "Everything is kept: pgbeat_retention_days is 0. --days overrides it.\n"
    )
    assert len(left(sql, "jobs")) == 1


def test_the_command_on_the_audit(database: str, sql: Sql) -> None:
    audited(sql, [400, 366, 300])
    years = {"PGBEAT_AUDIT_DAYS": "380"}
    assert run(database, "prune", "--dry-run", env=years).stdout == (
        "Would delete 1 change in the audit.\n"
    )
    assert run(database, "prune").stdout == "Deleted 2 changes in the audit.\n"
    # Itself, it is in there.
    assert sql("SELECT verb, kind, after FROM pgbeat.audit ORDER BY id DESC LIMIT 1") == [
        (
            "prune",
            "history",
            {"kept": {"days": 30.0, "count": 100, "audit_days": 365.0}, "deleted": {"audit": 2}},
        )
    ]


def test_the_command_is_one_change_however_many_steps(
    database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    jobs(sql, [40] * 7)
    run(database, "prune")
    [(after,)] = sql("SELECT after FROM pgbeat.audit")
    assert after["deleted"] == {"jobs": 7, "executions": 7}


@pytest.mark.parametrize(
    "arguments", [("--days", "0"), ("--days", "-1"), ("--count", "-1"), ("--days", "40000")]
)
def test_what_the_command_refuses(database: str, arguments: tuple[str, str]) -> None:
    assert run(database, "prune", *arguments).exit_code == 2
