"""`pgbeat import celery`: the file of Celery's own PersistentScheduler, written by itself."""

import os
import pickle
import shelve
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, PersistentScheduler
from celery.schedules import crontab, schedule, solar

from pgbeat.errors import PgbeatError
from pgbeat.schedules.importers import celery_file
from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.schedulers import Beat

HOUR = timedelta(hours=1)


class Fridays(schedule):
    """A timetable of somebody's own."""


def clock() -> datetime:
    """A function that a file names."""
    return datetime.now(UTC)


def app_with(entries: dict[str, Any], **settings: Any) -> Celery:
    """An app that is never connected."""
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(beat_schedule=entries, result_expires=None, **settings)
    return app


def beaten(app: Celery, path: Path, last_runs: dict[str, datetime] | None = None) -> str:
    """The file that Celery's beat leaves behind; these entries ran then, three times each."""
    scheduler = PersistentScheduler(app=app, schedule_filename=str(path))
    for name, moment in (last_runs or {}).items():
        for _ in range(3):
            scheduler.schedule[name] = scheduler.schedule[name].next(last_run_at=moment)
    scheduler.close()
    return str(path)


def entry(timetable: Any, **fields: Any) -> dict[str, Any]:
    return {"task": "tests.add", "schedule": timetable, **fields}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "celerybeat-schedule"


def test_each_entry_becomes_a_row(database: str, path: Path) -> None:
    ran = datetime.now(UTC).replace(microsecond=1) - timedelta(minutes=10)
    entries = {
        "interval": entry(HOUR, args=(1,), kwargs={"y": 2}, options={"queue": "slow"}),
        "nightly": entry(crontab(minute=0, hour=2)),
        "fridays": entry(crontab(minute=0, hour=0, day_of_month="13", day_of_week="fri")),
        "sun": entry(solar("sunset", 59.9, 10.7)),
        "rounded": entry(schedule(HOUR, relative=True)),
        "exact/price": entry(30.0, args=(Decimal("1.5"), {"at": ran})),
    }
    app = app_with(entries, timezone="Europe/Oslo")
    beaten(app, path, dict.fromkeys(entries, ran))

    answer = read(database, "import", "celery", "--from", str(path))
    assert {step["action"] for step in answer["schedules"]} == {"add"}
    rows = {row["name"]: row for row in read(database, "list")}
    assert set(rows) == {"interval", "nightly", "fridays", "sun", "rounded", "exact-price"}
    row = rows["interval"]
    assert (row["every"], row["args"], row["kwargs"], row["queue"]) == (3600, [1], {"y": 2}, "slow")
    assert datetime.fromisoformat(row["last_run"]) == ran
    assert datetime.fromisoformat(row["next_run"]) == ran + HOUR
    assert (row["run_count"], row["source"]) == (3, "import")
    assert (rows["nightly"]["cron"], rows["nightly"]["timezone"]) == ("0 2 * * *", "Europe/Oslo")
    assert rows["fridays"]["rrule"] == (
        "FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR;BYHOUR=0;BYMINUTE=0;BYSECOND=0"
    )
    assert rows["sun"]["solar"] == "sunset 59.9 10.7"
    assert datetime.fromisoformat(rows["rounded"]["next_run"]).minute == 0
    assert rows["exact-price"]["args"][0] == {"__type__": "decimal", "__value__": "1.5"}

    again = run(database, "import", "celery", "--from", str(path))
    assert "6 schedules here" in again.stdout


def test_the_apps_entries_come_by_themselves_and_get_their_last_runs(
    app: Celery, beat: Beat, path: Path, sql: Sql
) -> None:
    ran = datetime.now(UTC) - timedelta(minutes=20)
    app.conf.beat_schedule = {
        "interval": entry(HOUR),
        "nightly": entry(crontab(minute=0, hour=(ran.hour + 12) % 24)),
        "code": entry(Fridays(HOUR), args=(BeatLazyFunc(clock),)),
        "new": entry(HOUR),
    }
    old = app_with({**app.conf.beat_schedule, "gone": entry(HOUR)})
    del old.conf.beat_schedule["new"]
    beaten(old, path, dict.fromkeys(old.conf.beat_schedule, ran))

    result = run_with(app, "import", "celery", "--from", str(path))
    assert "to 3 schedules:" in result.stdout
    assert "the app's beat_schedule has it no longer" in result.stdout
    rows = sql("SELECT name, source, last_run, run_count FROM pgbeat.schedules ORDER BY name")
    assert rows == [
        ("code", "code", ran, 3),
        ("interval", "code", ran, 3),
        ("new", "code", None, 0),
        ("nightly", "code", ran, 3),
    ]
    again = run_with(app, "import", "celery", "--from", str(path))
    assert "3 schedules here" in again.stdout

    beat().run_due()  # which makes the app's entries, too
    assert sql("SELECT schedule FROM pgbeat.ticks") == []
    for name in ("interval", "code"):
        [(due_at,)] = sql("SELECT next_run FROM pgbeat.schedules WHERE name = %s", name)
        assert abs(due_at - ran - HOUR) < timedelta(seconds=1)


def test_what_pgbeat_ran_since_is_not_set_back(app: Celery, beat: Beat, path: Path) -> None:
    app.conf.beat_schedule = {"interval": entry(0.001)}
    beaten(app, path, {"interval": datetime.now(UTC) - HOUR})
    scheduler = beat()
    while not scheduler.run_due():
        pass
    result = run_with(app, "import", "celery", "--from", str(path))
    assert "1 schedule here" in result.stdout


def test_what_only_the_code_knows_is_listed(database: str, path: Path) -> None:
    entries = {
        "class": entry(Fridays(30)),
        "clock": entry(schedule(30, nowfun=clock)),
        "crontab's clock": entry(crontab(nowfun=clock)),
        "lazy": entry(30, args=(BeatLazyFunc(clock),)),
        "option": entry(30, options={"prio": 1}),
        "long": entry(timedelta(days=40_000)),
        "fine": entry(30),
    }
    answer = read(database, "import", "celery", "--from", beaten(app_with(entries), path))
    reasons = {
        step["origin"]: step["reason"] for step in answer["schedules"] if step["action"] == "refuse"
    }
    here = "tests.integration.schedules.importers.test_celery"
    assert reasons.keys() == entries.keys() - {"fine"}
    assert f"its schedule is {here}.Fridays" in reasons["class"]
    assert f"its own clock, {here}.clock" in reasons["clock"]
    assert f"its own clock, {here}.clock" in reasons["crontab's clock"]
    assert "celery.beat.BeatLazyFunc" in reasons["lazy"]
    assert "'prio'" in reasons["option"]
    assert "at most 36500 days" in reasons["long"]
    assert [row["name"] for row in read(database, "list")] == ["fine"]


def test_celerys_own_cleanup_is_not_moved(database: str, path: Path) -> None:
    app = app_with({})
    app.conf.result_expires = 3600
    result = run(database, "import", "celery", "--from", beaten(app, path))
    assert "it is Celery's own; pgbeat's beat makes it" in result.stdout
    assert read(database, "list") == []


def test_a_local_zone_has_to_be_named(database: str, path: Path) -> None:
    app = app_with({"nightly": entry(crontab(minute=0, hour=2))}, enable_utc=False)
    app.conf.timezone = None
    where = beaten(app, path)
    result = run(database, "import", "celery", "--from", where)
    assert "--timezone" in result.stdout
    run(database, "import", "celery", "--from", where, "--timezone", "Asia/Tokyo")
    assert read(database, "status", "nightly")["timezone"] == "Asia/Tokyo"


def test_no_code_that_the_file_names_is_run(path: Path, tmp_path: Path) -> None:
    """It is a pickle, and this one says `os.system`."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    class Worse:
        def __reduce__(self) -> Any:
            return getattr, (Path, "unlink")

    beaten(app_with({"fine": entry(30)}), path)
    with shelve.open(str(path)) as store:  # noqa: S301
        entries = store["entries"]
        entries["fine"].args = (Evil(),)
        store["entries"] = entries
    contents = celery_file.read(str(path))
    [refusal] = celery_file.inventory("x", contents).refusals
    assert refusal.reason.startswith("its arguments hold posix.system")
    assert not (tmp_path / "ran").exists()

    with shelve.open(str(path)) as store:  # noqa: S301
        store["tz"] = Worse()
    with pytest.raises(PgbeatError, match="'unlink'"):
        celery_file.read(str(path))


def test_a_file_that_can_not_be_written_to(path: Path) -> None:
    beaten(app_with({"fine": entry(30)}), path)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    for file in before:
        file.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert "fine" in celery_file.read(str(path))["entries"]
    finally:
        path.parent.chmod(0o755)
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


def test_the_name_of_one_of_its_files_will_do(path: Path) -> None:
    beaten(app_with({"fine": entry(30)}), path)
    for file in path.parent.iterdir():
        assert "fine" in celery_file.read(str(file))["entries"]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_any_age(path: Path, protocol: int) -> None:
    app = app_with({"s": entry(crontab(minute=5), args=({1, 2},))}, timezone="Asia/Tokyo")
    beaten(app, path, {"s": datetime.now(app.timezone)})
    with shelve.open(str(path)) as store:  # noqa: S301
        entries = dict(store["entries"])
    with shelve.open(str(path), protocol=protocol) as store:  # noqa: S301
        store["entries"] = entries
    found = celery_file.read(str(path))["entries"]["s"]
    assert found.args[2].tzinfo.key == "Asia/Tokyo"
    assert found.args[5] == ({1, 2},)


def test_files_that_are_none(database: str, tmp_path: Path, path: Path) -> None:
    def said(where: object) -> str:
        return refused(run(database, "import", "celery", "--from", str(where)), 1)

    wrong_zone = run(database, "import", "celery", "--timezone", "Mars/Phobos")
    assert "'Mars/Phobos'" in refused(wrong_zone)
    assert said(path).startswith(f"there is no file {path}; give it with --from")
    other = tmp_path / "other"
    other.write_text("hello")
    assert str(other) in said(other)
    with shelve.open(str(path)) as store:  # noqa: S301
        store["something"] = 1
    assert "no entries" in said(path)
    with shelve.open(str(path)) as store:  # noqa: S301
        store.dict[b"entries"] = b"no pickle"  # type: ignore[attr-defined]
    assert "UnpicklingError" in said(path)


def test_the_apps_file_is_the_default(app: Celery, path: Path) -> None:
    app.conf.beat_schedule = {"interval": entry(HOUR)}
    app.conf.beat_schedule_filename = beaten(app, path, {"interval": datetime.now(UTC)})
    result = run_with(app, "import", "celery", "--dry-run")
    assert result.stdout.startswith(f"1 schedule of Celery in {path}.\n")
    assert "Would carry the last run over to 1 schedule:" in result.stdout
