"""`pgbeat import redbeat`: what RedBeat itself wrote into a real Redis."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import FR, MO

from pgbeat.schedules.importers import redbeat as source
from pgbeat.schedules.importers.redbeat import Contents, StoredEntry
from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.processes import PGBEAT, shell, until
from tests.support.schedulers import Beat

redis = pytest.importorskip("redis")
redbeat = pytest.importorskip("redbeat")
from redbeat.schedules import rrule  # noqa: E402

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of a Redis of the tests' own."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server in PATH")
    folder = Path(tempfile.mkdtemp(prefix="pgb-redis-"))
    socket = folder / "socket"
    where = ("--unixsocket", str(socket), "--dir", str(folder))
    command = ["redis-server", "--port", "0", *where, "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(socket.exists, what="redis-server listens")
        yield f"unix://{socket}?db=0"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str) -> str:
    """URL of an empty Redis."""
    with redis.Redis.from_url(server) as client:
        client.flushall()
    return server


def redbeat_app(url: str, **settings: Any) -> Celery:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=url, redbeat_redis_options={}, result_expires=None)
    app.conf.update(settings)
    return app


def save(
    app: Celery, name: str, timetable: Any, ran: datetime | None = None, **fields: Any
) -> None:
    """Saves an entry as RedBeat's users do; it ran then."""
    task = fields.pop("task", "tests.add")
    entry = redbeat.RedBeatSchedulerEntry(name, task, timetable, app=app, **fields)
    entry.save()
    if ran is not None:
        entry.next(last_run_at=ran)


def test_each_entry_becomes_a_row(database: str, url: str) -> None:
    app = redbeat_app(url, timezone="Europe/Oslo")
    ran = datetime.now(UTC) - timedelta(minutes=10)
    options = {"queue": "slow", "priority": 3}
    save(app, "interval", schedule(HOUR), ran, args=[1], kwargs={"y": 2}, options=options)
    save(app, "nightly", crontab(minute=0, hour=2), ran)
    save(app, "both", crontab(minute=0, hour=0, day_of_month="13", day_of_week="fri"), ran)
    start, end = datetime(2026, 1, 5, 9, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
    save(app, "rule", rrule("WEEKLY", dtstart=start, byweekday=[MO, FR], until=end), ran)
    save(app, "shop/off", schedule(HOUR), ran, enabled=False)
    save(app, "time", schedule(HOUR), ran, args=[ran])

    answer = read(database, "import", "redbeat", "--from", url, "--timezone", "Europe/Oslo")
    assert {step["action"] for step in answer["schedules"]} == {"add"}, answer
    noted = read(database, "audit", "--verb", "create", "--kind", "schedule")
    assert {each["subject"] for each in noted} == {step["name"] for step in answer["schedules"]}
    rows = {row["name"]: row for row in read(database, "list")}
    row = rows["interval"]
    assert (row["every"], row["args"], row["kwargs"]) == (3600, [1], {"y": 2})
    assert (row["queue"], row["options"], row["run_count"]) == ("slow", {"priority": 3}, 1)
    assert row["job_policy"] == {}  # so its jobs are attempted once
    assert datetime.fromisoformat(row["last_run"]) == ran
    assert datetime.fromisoformat(row["next_run"]) == ran + HOUR
    assert (rows["nightly"]["cron"], rows["nightly"]["timezone"]) == ("0 2 * * *", "Europe/Oslo")
    assert "BYMONTHDAY=13;BYDAY=FR" in rows["both"]["rrule"]
    rule = {"rrule": "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0", "timezone": "UTC"}
    rule |= {"starts_at": "2026-01-05T09:00:00Z", "ends_at": "2030-01-01T00:00:00Z"}
    assert rows["rule"].items() >= rule.items()
    off = {"enabled": False, "disabled_reason": "disabled in RedBeat", "next_run": None}
    assert rows["shop-off"].items() >= off.items()
    assert rows["time"]["args"][0]["__type__"] == "datetime"

    again = run(database, "import", "redbeat", "--from", url, "--timezone", "Europe/Oslo")
    assert again.stdout.splitlines()[1:] == ["Nothing to do: 6 schedules here already."]


RULES: dict[str, dict[str, Any]] = {
    "daily": {"freq": "DAILY"},
    "every other": {"freq": "DAILY", "interval": 2},
    "mondays": {"freq": "WEEKLY", "byweekday": MO},
    "weeks from sunday": {"freq": "WEEKLY", "interval": 2, "wkst": 6, "byweekday": [1, 6]},
    "last of the month": {"freq": "MONTHLY", "bymonthday": -1, "byhour": [9, 17]},
    "last workday": {"freq": "MONTHLY", "byweekday": [0, 1, 2, 3, 4], "bysetpos": -1},
    "minutes": {"freq": "HOURLY", "byminute": [5, 35], "bysecond": 30},
    "yearly": {"freq": "YEARLY", "bymonth": [3, 9], "bymonthday": 21},
    "weeks": {"freq": "YEARLY", "byweekno": 20, "byweekday": MO},
    "three times": {"freq": "MONTHLY", "count": 3},
}


def test_a_rule_is_due_when_redbeat_says(database: str, url: str) -> None:
    app = redbeat_app(url)
    start = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    ran = start + timedelta(days=20)
    made = {name: rrule(dtstart=start, **values) for name, values in RULES.items()}
    for name, rule in made.items():
        save(app, name, rule, ran)
    save(app, "easter", rrule("YEARLY", byeaster=0))
    assert "BYEASTER" in run(database, "import", "redbeat", "--from", url).stdout
    assert {row["name"]: row["next_run"] for row in read(database, "list")} == {
        name: f"{rule.rrule.after(ran):%Y-%m-%dT%H:%M:%S}Z" for name, rule in made.items()
    }


def test_a_rule_keeps_the_offset_that_redbeat_kept(database: str, url: str) -> None:
    app = redbeat_app(url, timezone="Europe/Oslo")
    start = datetime(2026, 7, 1, 9, tzinfo=app.timezone)
    save(app, "rule", rrule("DAILY", dtstart=start), datetime(2026, 7, 1, 12, tzinfo=UTC))
    result = run(database, "import", "redbeat", "--from", url)
    assert "RedBeat kept its start's offset +02:00 and no zone" in result.stdout
    row = read(database, "status", "rule")
    assert (row["timezone"], row["next_run"]) == ("Etc/GMT-2", "2026-07-02T07:00:00Z")


def test_an_offset_that_no_zone_of_hours_has(database: str, url: str) -> None:
    app = redbeat_app(url, timezone="Asia/Kolkata")
    save(app, "rule", rrule("DAILY", dtstart=datetime(2026, 7, 1, 9, tzinfo=app.timezone)))
    result = run(database, "import", "redbeat", "--from", url)
    assert "offset +05:30 and no zone, and no zone of whole hours has it" in result.stdout
    run(database, "import", "redbeat", "--from", url, "--timezone", "Asia/Kolkata")
    assert read(database, "status", "rule")["timezone"] == "Asia/Kolkata"


def test_crontabs_are_in_the_apps_zone(app: Celery, database: str, url: str) -> None:
    app.conf.update(timezone="Asia/Tokyo", redbeat_redis_url=url, redbeat_redis_options={})
    save(app, "nightly", crontab(minute=0, hour=2), datetime.now(UTC))
    without = run(database, "import", "redbeat", "--from", url)
    assert "its crontab is in the app's time zone; give -A APP or --timezone" in without.stdout
    assert run_with(app, "import", "redbeat").exit_code == 0
    assert read(database, "status", "nightly")["timezone"] == "Asia/Tokyo"


def test_static_entries_come_with_the_app(
    app: Celery, beat: Beat, database: str, url: str, sql: Sql
) -> None:
    app.conf.update(redbeat_redis_url=url, redbeat_redis_options={})
    app.conf.beat_schedule = {
        "static": {"task": "tests.add", "schedule": HOUR},
        "gone": {"task": "tests.add", "schedule": HOUR},
    }
    redbeat.RedBeatScheduler(app)
    ran = datetime.now(UTC) - timedelta(minutes=10)
    for name in app.conf.beat_schedule:
        redbeat.RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app).next(last_run_at=ran)
    save(app, "dynamic", schedule(HOUR), ran)
    del app.conf.beat_schedule["gone"]

    without = run(database, "import", "redbeat", "--from", url, "--dry-run")
    assert without.stdout.count("with -A APP its last run is carried over") == 2
    result = run_with(app, "import", "redbeat")
    assert "the app's beat_schedule has it no longer" in result.stdout
    assert sql("SELECT name, source, last_run FROM pgbeat.schedules ORDER BY name") == [
        ("dynamic", "import", ran),
        ("static", "code", ran),
    ]
    beat().run_due()
    assert sql("SELECT schedule FROM pgbeat.ticks") == []


def test_another_prefix(app: Celery, database: str, url: str) -> None:
    app.conf.update(
        redbeat_redis_url=url, redbeat_redis_options={}, redbeat_key_prefix="shop:beat:"
    )
    save(app, "s", schedule(HOUR))
    assert "0 schedules" in run(database, "import", "redbeat", "--from", url).stdout
    named = ("--from", url, "--prefix", "shop:beat:")
    found = run(database, "import", "redbeat", *named, "--dry-run")
    assert "Would add 1 schedule:" in found.stdout
    assert "Added 1 schedule:" in run_with(app, "import", "redbeat").stdout


def test_a_redbeat_that_runs_is_remarked(database: str, url: str) -> None:
    save(redbeat_app(url), "s", schedule(HOUR))
    with redis.Redis.from_url(url) as client:
        client.set("redbeat::lock", "x")
    result = run(database, "import", "redbeat", "--from", url)
    assert "Note: a RedBeat holds its lock now: stop it before pgbeat's beat starts." in (
        result.stderr
    )


FINE = {
    "name": "s",
    "task": "tests.add",
    "enabled": True,
    "schedule": {"__type__": "interval", "every": 5, "relative": False},
}


@pytest.mark.parametrize(
    ("definition", "named"),
    [
        ("{", "definition"),
        ({**FINE, "task": None}, "task"),
        ({**FINE, "schedule": None}, "schedule is None"),
        ({**FINE, "schedule": {"__type__": "moon"}}, "schedule is 'moon'"),
        ({**FINE, "schedule": {"__type__": "interval", "every": "x"}}, "interval is 'x'"),
        ({**FINE, "schedule": {"__type__": "crontab", "minute": "61"}}, "crontab"),
        ({**FINE, "schedule": {"__type__": "rrule", "freq": 9}}, "rule"),
        ({**FINE, "args": {"a": 1}}, "args"),
        ({**FINE, "options": {"prio": 1}}, "'prio'"),
    ],
)
def test_what_is_not_moved_and_why(definition: Any, named: str) -> None:
    text = json.dumps(definition) if isinstance(definition, dict) else definition
    contents = Contents([StoredEntry("redbeat:s", text, None)], set(), False)
    found = source.inventory("x", contents, timezone="UTC")
    [refusal] = found.refusals
    assert named in refusal.reason


@pytest.mark.parametrize("zone", ["Europe/Oslo", 7200.0, -12600.0, None])
def test_times_in_any_zone(zone: Any) -> None:
    at = datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=UTC)
    names = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    moment = {"__type__": "datetime", **{name: getattr(at, name) for name in names}}
    if zone is not None:
        moment["timezone"] = zone
    meta = json.dumps({"last_run_at": moment})
    contents = Contents([StoredEntry("redbeat:s", json.dumps(FINE), meta)], set(), False)
    [found] = source.inventory("x", contents).arrivals
    hours = {None: 0, "Europe/Oslo": 2, 7200.0: 2, -12600.0: -3.5}[zone]
    assert found.last_run == at - timedelta(hours=hours)


def test_which_redis_has_to_be_said(database: str, app: Celery) -> None:
    for result in (
        run(database, "import", "redbeat"),
        run_with(app, "import", "redbeat"),
        run(database, "import", "redbeat", "--from", "localhost:6379"),
    ):
        assert "--from" in refused(result)


def test_a_redis_that_is_not_there(database: str) -> None:
    where = "redis://:secret@127.0.0.1:1/0"
    said = refused(run(database, "import", "redbeat", "--from", where), 1)
    assert said.startswith("can't read redis://127.0.0.1:1/0: ")
    assert "secret" not in said
    said = refused(run(database, "import", "redbeat", "--from", "redis://h:port/0"))
    assert "redis://" in said


def test_without_the_package_it_says_how_to_install_it(database: str, tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text("raise ImportError('no redis')")
    command = [*PGBEAT, "--url", database, "import", "redbeat", "--from", "redis://127.0.0.1:1/0"]
    result = shell(*command, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "needs the package redis, which is not installed; `pip install redis`" in result.stderr
