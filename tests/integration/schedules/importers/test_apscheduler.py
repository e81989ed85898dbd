"""`pgbeat import apscheduler`: jobs that APScheduler 3 itself stored."""

import os
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.pool import NullPool

from pgbeat.schedules.importers import apscheduler as source
from pgbeat.schedules.importers.imported import Inventory
from tests.support.command_line import Sql, read, refused, run
from tests.support.databases import sqlalchemy_url
from tests.unit.schedules.importers.test_importers import timetable

schedulers = pytest.importorskip("apscheduler.schedulers.background")
stores = pytest.importorskip("apscheduler.jobstores.sqlalchemy")
combining = pytest.importorskip("apscheduler.triggers.combining")

RUN_DATE = datetime(2031, 5, 1, 12, tzinfo=UTC)
COMMAND = ("import", "apscheduler")


def backup(*args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def scheduler(database: str) -> Iterator[Any]:
    """An APScheduler that runs nothing, with its jobs in pgbeat's own database."""
    options = {"poolclass": NullPool}
    store = stores.SQLAlchemyJobStore(sqlalchemy_url(database), engine_options=options)
    scheduler = schedulers.BackgroundScheduler(jobstores={"default": store}, timezone="Europe/Oslo")
    scheduler.start(paused=True)
    yield scheduler
    scheduler.shutdown()


def inventory(database: str) -> Inventory:
    return source.inventory("x", source.read(database), tasks={})


def test_stored_jobs_become_rows(database: str, sql: Sql, scheduler: Any) -> None:
    add = scheduler.add_job
    add(backup, "cron", hour=2, id="nightly", args=[1], misfire_grace_time=3600)
    add(backup, "cron", day_of_week="0-4", hour="9-17", minute="*/15", second=30, id="office")
    add(backup, "cron", day="last", id="last", timezone="UTC", jitter=60, max_instances=3)
    start = {"start_date": "2030-01-01 00:05:00", "end_date": "2040-01-01"}
    rest = {"misfire_grace_time": None, "coalesce": False}
    add(backup, "interval", minutes=15, id="often", **start, **rest)
    add(backup, "date", run_date=RUN_DATE, id="once", kwargs={"x": 2})
    add("os.path:join", "cron", hour=3, id="held", args=["{{ x"])
    scheduler.pause_job("held")
    rename = ("--rename", f"{__name__}:backup=shop.backup", "--rename", "a:b=c")
    planned = read(database, *COMMAND, *rename, "--dry-run")
    assert (planned["source"], planned["schedules"][1]["values"]["jitter"]) == ("apscheduler", 60)
    assert read(database, "list") == []
    result = run(database, *COMMAND, *rename)
    assert "Added 6 schedules:" in result.stdout
    assert "its max_instances of 3 is not carried over" in result.stdout
    assert "no job calls a:b (--rename)" in result.stderr
    rows = sql(
        "SELECT name, coalesce(cron, every::text, once_at::text), timezone, overlap, catch_up, "
        "grace, jitter, disabled_reason FROM pgbeat.schedules ORDER BY id"
    )
    oslo, hour, none = "Europe/Oslo", timedelta(hours=1), timedelta(0)
    assert {name: tuple(rest) for name, *rest in rows} == {
        "nightly": ("0 2 * * *", oslo, "skip", "latest", hour, none, None),
        "office": ("*/15 9-17 * * mon-fri 30", oslo, "skip", "none", None, none, None),
        "last": ("0 0 L * *", "UTC", "allow", "none", None, timedelta(minutes=1), None),
        "often": ("00:15:00", oslo, "skip", "all", None, none, None),
        "once": ("2031-05-01 12:00:00+00", None, "skip", "none", None, none, None),
        "held": ("0 3 * * *", oslo, "skip", "none", None, none, "disabled in APScheduler"),
    }
    columns = "task, args, kwargs, starts_at, ends_at, next_run"
    values = {name: rest for name, *rest in sql(f"SELECT name, {columns} FROM pgbeat.schedules")}
    task, next_run = "shop.backup", scheduler.get_job("nightly").next_run_time
    assert values["nightly"] == [task, [1], {}, None, None, next_run]
    assert values["once"] == [task, [], {"x": 2}, None, None, RUN_DATE]
    start_date = datetime(2029, 12, 31, 23, 5, tzinfo=UTC)
    end_date = datetime(2039, 12, 31, 23, tzinfo=UTC)
    assert values["often"] == [task, [], {}, start_date, end_date, start_date]
    assert values["held"] == ["os.path.join", ["{{ '{{' }} x"], {}, None, None, None]
    late = scheduler.get_job("last").next_run_time - values["last"][-1]
    assert timedelta(0) <= late <= timedelta(minutes=1)
    assert "6 schedules here" in run(database, *COMMAND, *rename).stdout
    scheduler.modify_job("nightly", next_run_time=next_run + timedelta(days=1))  # as if it ran
    assert "to 1 schedule:" in run(database, *COMMAND, *rename).stdout
    again = datetime.fromisoformat(read(database, "status", "nightly")["next_run"])
    assert again == scheduler.get_job("nightly").trigger.get_next_fire_time(None, again)
    assert again > next_run


@pytest.mark.parametrize(
    "fields",
    [
        {"day": "1st mon"},
        {"day": "last fri, 2nd sun", "hour": 8},
        {"day": 13, "day_of_week": "fri"},
        {"day": "last,1", "day_of_week": "mon-fri", "month": "2-12/2", "hour": "*/6"},
        {"day": "*/2", "day_of_week": "*/2"},
        {"day_of_week": "fri-sun", "hour": "5/7"},
        {"day_of_week": "sun,2"},
        {"month": "jan-mar,12", "day": "10-20/5", "minute": "*/20"},
        {"day": 1, "hour": 1, "minute": 0, "second": "5"},
        {"minute": 3, "second": "*"},
    ],
    ids=str,
)
def test_a_trigger_means_the_same(database: str, scheduler: Any, fields: dict[str, Any]) -> None:
    job = scheduler.add_job(backup, "cron", timezone="UTC", **fields)
    [arrival] = inventory(database).arrivals
    moment = theirs = datetime(2026, 1, 30, 23, 59, 59, tzinfo=UTC)
    for _ in range(8):
        theirs = job.trigger.get_next_fire_time(theirs, theirs + timedelta(seconds=1))
        ours = timetable(arrival.when, moment).next_after(moment)
        assert ours == theirs, arrival.when
        moment = theirs


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"trigger": "cron", "week": 7}, "names a week"),
        ({"trigger": "cron", "year": 2031}, "names a year"),
        ({"trigger": "cron", "day": "1st mon,15"}, "mixes"),
        ({"trigger": "cron", "day": "1st mon", "day_of_week": "mon"}, "mixes"),
        ({"trigger": combining.OrTrigger([])}, "combining.OrTrigger"),
        ({"trigger": "interval", "hours": 1, "args": [Path("x")]}, "its arguments hold pathlib."),
    ],
)
def test_what_no_row_says_is_listed(
    database: str, scheduler: Any, job: dict[str, Any], reason: str
) -> None:
    scheduler.add_job(backup, "interval", hours=1, id="a")
    scheduler.add_job(backup, id="b", next_run_time=RUN_DATE, **job)
    result = run(database, *COMMAND)
    assert reason in result.stdout.partition("Not imported:")[2]
    assert [row["name"] for row in read(database, "list")] == ["a"]


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (f"{os.environ['EVIL']}/ran",)


def test_no_code_that_a_pickle_names_is_run(
    database: str, scheduler: Any, sql: Sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path))
    states = {"evil": pickle.dumps(Evil()), "text": b"hello", "odd": pickle.dumps({"func": "a:b"})}
    scheduler.add_job(backup, "interval", hours=1, id="args", args=[Evil()])
    loop: list[Any] = []
    loop.append(loop)
    scheduler.add_job(backup, "interval", hours=1, id="loop", args=[loop])
    for name, state in states.items():
        sql("INSERT INTO apscheduler_jobs VALUES (%s, NULL, %s)", name, state)
    found = inventory(database)
    assert {refusal.origin for refusal in found.refusals} == {"args", "loop", *states}
    assert not found.arrivals and not (tmp_path / "ran").exists()


def test_stores_that_are_none(database: str, tmp_path: Path) -> None:
    assert "there is no table apscheduler_jobs" in refused(run(database, *COMMAND), 1)
    assert "no table x.y" in refused(run(database, *COMMAND, "--schema", "x", "--table", "y"), 1)
    other = ("--schema", "pgbeat", "--table", "schedules")
    assert "is no job store of APScheduler 3's" in refused(run(database, *COMMAND, *other), 1)
    missing = f"sqlite:///{tmp_path}/no.db"
    assert "there is no file" in refused(run(database, *COMMAND, "--from", missing), 1)
    assert "FUNC=TASK" in refused(run(database, *COMMAND, "--rename", "backup"))
