"""`pgbeat prune`: what it deletes, says and refuses."""

import pytest

from pgbeat.beat.maintenance import pruner as retention
from tests.support.command_line import read, run
from tests.support.old_rows import audited, jobs, schedule, ticks
from tests.support.rows import Sql


def test_the_command(database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    key = schedule(sql)
    jobs(sql, [40, 39])
    ticks(sql, [50, 49], key)
    assert run(database, "prune", "--dry-run", "--count", "1").stdout == (
        "Would delete 1 tick, 2 jobs, 2 executions.\n"
    )
    found = read(database, "prune", "--days", "39.5")
    assert found["kept"] == {"days": 39.5, "count": 100, "event_days": 30.0, "audit_days": 365.0}
    assert {name for name, count in found["deleted"].items() if count} == {"jobs", "executions"}
    assert run(database, "prune").stdout == "Deleted 1 job, 1 execution.\n"
    assert run(database, "prune", "--days", "1").stdout == (
        "There is nothing to delete: kept are 1 day, and of each schedule the newest 100.\n"
    )
    # It is one change, however many steps it takes.
    monkeypatch.setattr(retention, "BATCH", 2)
    jobs(sql, [40] * 7)
    assert "is 0" in run(database, "prune", env={"PGBEAT_RETENTION_DAYS": "0"}).stdout
    run(database, "prune")
    [(after,)] = sql("SELECT after FROM pgbeat.audit ORDER BY id DESC LIMIT 1")
    assert after["deleted"] == {"jobs": 7, "executions": 7}


def test_the_command_on_the_audit(database: str, sql: Sql) -> None:
    audited(sql, [400, 366, 300])
    years = {"PGBEAT_AUDIT_DAYS": "380"}
    assert run(database, "prune", "--dry-run", env=years).stdout == (
        "Would delete 1 change in the audit.\n"
    )
    assert run(database, "prune").stdout == "Deleted 2 changes in the audit.\n"


@pytest.mark.parametrize(
    "arguments", [("--days", "0"), ("--days", "-1"), ("--count", "-1"), ("--days", "40000")]
)
def test_what_the_command_refuses(database: str, arguments: tuple[str, str]) -> None:
    assert run(database, "prune", *arguments).exit_code == 2
