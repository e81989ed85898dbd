"""The examples of docs/how-to/from-apscheduler.md: a file, and the script that moves jobs."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.command_line import Sql, run

schedulers = pytest.importorskip("apscheduler.schedulers.background")
triggers = pytest.importorskip("apscheduler.triggers.combining")

PAGE = (Path(__file__).parents[4] / "docs/how-to/from-apscheduler.md").read_text()
RUN_DATE = datetime(2031, 5, 1, 12, tzinfo=UTC)


def example(title: str) -> str:
    """Returns the code of that title on the page."""
    [(indent, code)] = re.findall(rf'^( *)```\w+ title="{title}"\n(.*?)^ *```', PAGE, re.S | re.M)
    return re.sub(f"^{indent}", "", code, flags=re.M)


def backup(*args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An APScheduler in a zone, whose module the script imports."""
    found = schedulers.BackgroundScheduler(timezone="Europe/Oslo")
    module = ModuleType("shop.scheduler")
    module.scheduler = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.scheduler", module)
    return found


def move(database: str) -> None:
    """Runs the script against a database."""
    script = example("move_jobs.py").replace("postgresql://me@db/shop", database)
    script = script.replace('"shop.jobs:backup"', f'"{__name__}:backup"')
    exec(compile(script, "move_jobs.py", "exec"), {})  # noqa: S102


def test_stored_jobs_become_rows(database: str, sql: Sql, scheduler: Any) -> None:
    add = scheduler.add_job
    add(backup, "cron", hour=2, id="nightly", args=[1], misfire_grace_time=3600)
    add(backup, "cron", day_of_week="0-4", hour="9-17", minute="*/15", second=30, id="office")
    add(backup, "cron", day="last", id="last", timezone="UTC", jitter=60, max_instances=3)
    add(
        backup,
        "interval",
        minutes=15,
        start_date="2030-01-01 00:05:00",
        id="often",
        misfire_grace_time=None,
        coalesce=False,
    )
    add(backup, "date", run_date=RUN_DATE, id="once", kwargs={"x": 2})
    add(backup, "cron", hour=3, id="held", next_run_time=None)
    move(database)
    rows = sql(
        "SELECT name, coalesce(cron, every::text, once_at::text), timezone, overlap, catch_up, "
        "grace, paused_at IS NOT NULL FROM pgbeat.schedules ORDER BY id"
    )
    oslo, hour = "Europe/Oslo", timedelta(hours=1)
    assert {name: tuple(rest) for name, *rest in rows} == {
        "nightly": ("0 2 * * *", oslo, "skip", "latest", hour, False),
        "office": ("*/15 9-17 * * mon-fri 30", oslo, "skip", "none", None, False),
        "last": ("0 0 L * *", "UTC", "allow", "none", None, False),
        "often": ("00:15:00", oslo, "skip", "all", None, False),
        "once": ("2031-05-01 12:00:00+00", None, "skip", "none", None, False),
        "held": ("0 3 * * *", oslo, "skip", "none", None, True),
    }
    columns = "SELECT task, args, kwargs, starts_at FROM pgbeat.schedules WHERE name = %s"
    assert sql(columns, "nightly") == [("shop.tasks.backup", [1], {}, None)]
    assert sql(columns, "once") == [("shop.tasks.backup", [], {"x": 2}, None)]
    assert sql(columns, "often")[0][3] == datetime(2029, 12, 31, 23, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "trigger",
    [
        {"day": "1st mon"},
        {"day": 13, "day_of_week": "fri"},
        {"week": 7},
        {"year": 2031},
        {"day_of_week": "*/2"},
    ],
)
def test_what_no_cron_says_is_refused_and_nothing_is_written(
    database: str, sql: Sql, scheduler: Any, trigger: dict[str, Any]
) -> None:
    scheduler.add_job(backup, "interval", hours=1, id="a")
    scheduler.add_job(backup, "cron", id="b", **trigger)
    try:
        with pytest.raises(ValueError, match="no cron says"):
            move(database)
    finally:
        scheduler.shutdown()
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


def test_the_file_is_valid(database: str, sql: Sql, tmp_path: Path) -> None:
    path = tmp_path / "schedules.yml"
    path.write_text(example("schedules.yml"))
    done = run(database, "sync", str(path))
    assert done.exit_code == 0, done.output
    assert sql("SELECT name, overlap, catch_up FROM pgbeat.schedules ORDER BY name") == [
        ("backup", "skip", "latest"),
        ("sync-stock", "skip", "none"),
    ]
