"""`pgbeat import django-celery-beat` and `sqlalchemy-celery-beat`: rows made by their models."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from pgbeat.config import postgres_url
from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.databases import sqlalchemy_url
from tests.support.schedulers import Beat

pytest.importorskip("django_celery_beat")
pytest.importorskip("sqlalchemy_celery_beat")

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NEXT_YEAR = datetime(datetime.now(UTC).year + 1, 6, 1, 12, tzinfo=UTC)


# -- the stores ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_django(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with django-celery-beat's tables, made by its migrations."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    path = tmp_path_factory.mktemp("django") / "empty.sqlite3"
    settings.configure(
        INSTALLED_APPS=["django_celery_beat"],
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        USE_TZ=True,
        TIME_ZONE="UTC",
        LOGGING_CONFIG=None,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}},
    )
    django.setup()
    call_command("migrate", verbosity=0)
    _django_on()
    return path


def _django_on(**settings: Any) -> None:
    """Has Django use another database from now on."""
    from django.db import connections

    connections["default"].close()
    del connections["default"]
    connections.settings["default"].update(settings)


class Django:
    """django-celery-beat on some database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def task(self, name: str, **fields: Any) -> Any:
        """Saves a task as its admin pages do. It ran when `last_run_at` says."""
        from django_celery_beat.models import PeriodicTask

        return PeriodicTask.objects.create(name=name, **{"task": "tests.add", **fields})

    def interval(self, every: int = 1, period: str = "hours") -> Any:
        from django_celery_beat.models import IntervalSchedule

        return IntervalSchedule.objects.get_or_create(every=every, period=period)[0]

    def crontab(self, *fields: str, timezone: str = "Europe/Oslo") -> Any:
        """Minute, hour, day of month, month, day of week."""
        from django_celery_beat.models import CrontabSchedule

        names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        given = dict(zip(names, fields, strict=False))
        return CrontabSchedule.objects.create(timezone=timezone, **given)

    def clocked(self, moment: datetime) -> Any:
        from django_celery_beat.models import ClockedSchedule

        return ClockedSchedule.objects.create(clocked_time=moment)

    def solar(self, event: str, latitude: Any, longitude: Any) -> Any:
        from django_celery_beat.models import SolarSchedule

        return SolarSchedule.objects.create(event=event, latitude=latitude, longitude=longitude)


@pytest.fixture
def django(empty_django: Path, tmp_path: Path) -> Iterator[Django]:
    """django-celery-beat on an SQLite file."""
    path = tmp_path / "django.sqlite3"
    shutil.copy(empty_django, path)
    _django_on(ENGINE="django.db.backends.sqlite3", NAME=str(path))
    yield Django(f"sqlite:///{path}")
    _django_on()


@pytest.fixture
def django_here(empty_django: Path, database: str) -> Iterator[Django]:
    """django-celery-beat in pgbeat's own database."""
    from django.core.management import call_command

    url = postgres_url(database)
    _django_on(
        ENGINE="django.db.backends.postgresql",
        NAME=url.database,
        USER=url.username or "",
        PASSWORD=url.password or "",
        HOST=url.host or url.query.get("host", ""),
        PORT=str(url.port or url.query.get("port", "")),
    )
    call_command("migrate", verbosity=0)
    yield Django(database)
    _django_on()


class Alchemy:
    """sqlalchemy-celery-beat on some database."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        from sqlalchemy_celery_beat.session import SessionManager

        self.url = url
        manager = SessionManager()
        self._engine, self._session = manager.create_session(url, schema=schema)
        manager.prepare_models(self._engine, schema=schema)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A session, committed at the end."""
        with self._session() as session:
            yield session
            session.commit()
        self._engine.dispose()

    def task(self, name: str, model: Any, **fields: Any) -> None:
        """Adds a task with its schedule."""
        from sqlalchemy_celery_beat.models import PeriodicTask

        with self.session() as session:
            session.add(model)
            session.commit()
            session.add(
                PeriodicTask(name=name, schedule_model=model, **{"task": "tests.add", **fields})
            )


@pytest.fixture
def alchemy(tmp_path: Path) -> Alchemy:
    """sqlalchemy-celery-beat on an SQLite file."""
    return Alchemy(f"sqlite:///{tmp_path / 'schedule.db'}")


def models() -> Any:
    """sqlalchemy-celery-beat's models."""
    import sqlalchemy_celery_beat.models

    return sqlalchemy_celery_beat.models


def when(row: dict[str, Any], column: str = "next_run") -> datetime:
    """A time of a row's."""
    return datetime.fromisoformat(row[column])


# -- django-celery-beat -------------------------------------------------------------------------


def fill(django: Django, ran: datetime) -> None:
    """A task of each kind."""
    common = {"last_run_at": ran, "total_run_count": 5}
    django.task("interval", interval=django.interval(), args="[1]", kwargs='{"y": 2}', **common)
    django.task(
        "nightly",
        crontab=django.crontab("0", "2"),
        queue="slow",
        exchange="e",
        routing_key="r",
        priority=0,
        expire_seconds=30,
        headers='{"a": "b"}',
        **common,
    )
    django.task("both", crontab=django.crontab("0", "0", "13", "*", "fri"), **common)
    django.task("sun", solar=django.solar("sunset", "59.913900", "10.752200"), **common)
    django.task("clocked", clocked=django.clocked(NEXT_YEAR), one_off=True)
    django.task(
        "window",
        crontab=django.crontab("0", "*"),
        start_time=NEXT_YEAR,
        expires=NEXT_YEAR + DAY,
        description="for a day",
    )
    django.task("shop/off", interval=django.interval(3, "days"), enabled=False)
    django.task(
        "celery.backend_cleanup",
        task="celery.backend_cleanup",
        crontab=django.crontab("0", "4"),
        **common,
    )


def check(rows: dict[str, Any], ran: datetime) -> None:
    """The rows that `fill`'s tasks become."""
    assert set(rows) == {"interval", "nightly", "both", "sun", "clocked", "window", "shop-off"}
    row = rows["interval"]
    assert row["job_policy"] == {}  # so its jobs are attempted once
    assert (row["every"], row["args"], row["kwargs"]) == (3600, [1], {"y": 2})
    assert (when(row, "last_run"), when(row), row["run_count"]) == (ran, ran + HOUR, 5)
    row = rows["nightly"]
    assert (row["cron"], row["timezone"], row["queue"]) == ("0 2 * * *", "Europe/Oslo", "slow")
    assert row["options"] == {
        "exchange": "e",
        "routing_key": "r",
        "priority": 0,
        "expires": 30,
        "headers": {"a": "b", "periodic_task_name": "nightly"},
    }
    assert "BYMONTHDAY=13;BYDAY=FR" in rows["both"]["rrule"]
    assert rows["sun"]["solar"] == "sunset 59.9139 10.7522"
    row = rows["clocked"]
    assert (when(row, "once_at"), when(row), row["last_run"]) == (NEXT_YEAR, NEXT_YEAR, None)
    row = rows["window"]
    assert (when(row, "starts_at"), when(row)) == (NEXT_YEAR, NEXT_YEAR)
    assert when(row, "ends_at") == NEXT_YEAR + DAY - timedelta(microseconds=1)
    assert row["options"]["expires"] == f"{NEXT_YEAR + DAY:%Y-%m-%dT%H:%M:%S}+00:00"
    row = rows["shop-off"]
    assert (row["enabled"], row["disabled_reason"]) == (False, "disabled in django-celery-beat")
    assert row["every"] == 3 * 86_400


def test_each_task_becomes_a_row(database: str, django: Django) -> None:
    """And nothing is written to the old store."""
    ran = datetime.now(UTC) - timedelta(minutes=10)
    fill(django, ran)
    path = Path(django.url.removeprefix("sqlite:///"))
    before = path.read_bytes()
    command = ("import", "django-celery-beat", "--from", django.url)
    result = run(database, *command)
    assert "Added 7 schedules:" in result.stdout
    assert "its name was 'shop/off'" in result.stdout
    rows = {row["name"]: row for row in read(database, "list")}
    assert [row["description"] for row in rows.values() if row["description"]] == ["for a day"]
    assert "it is Celery's own; pgbeat's beat makes it if" in result.stdout
    check(rows, ran)
    assert "7 schedules here" in run(database, *command).stdout
    assert len(read(database, "audit", "--verb", "create", "--kind", "schedule")) == 7
    assert path.read_bytes() == before


def test_tables_in_pgbeats_own_database(database: str, django_here: Django) -> None:
    ran = datetime.now(UTC) - timedelta(minutes=10)
    fill(django_here, ran)
    assert "Added 7 schedules:" in run(database, "import", "django-celery-beat").stdout
    check({row["name"]: row for row in read(database, "list")}, ran)
    again = run(database, "import", "django-celery-beat", "--schema", "public")
    assert "7 schedules here" in again.stdout


def test_every_period(database: str, django: Django) -> None:
    every = {"days": 2, "hours": 3, "minutes": 5, "seconds": 7, "microseconds": 250_000}
    for period, number in every.items():
        django.task(period, interval=django.interval(number, period))
    run(database, "import", "django-celery-beat", "--from", django.url)
    assert {row["name"]: row["every"] for row in read(database, "list")} == {
        period: timedelta(**{period: number}).total_seconds() for period, number in every.items()
    }


def test_nothing_refires_and_what_was_missed_fires_once(
    beat: Beat, database: str, django: Django, sql: Sql
) -> None:
    now = datetime.now(UTC)
    django.task("ran", interval=django.interval(), last_run_at=now - HOUR / 2)
    django.task("missed", interval=django.interval(), last_run_at=now - 5.5 * HOUR)
    minute = str((now - HOUR / 6).minute)
    django.task("cron", crontab=django.crontab(minute, "*"), last_run_at=now - HOUR)
    django.task("clocked", clocked=django.clocked(now - HOUR), one_off=True)
    ran = {"one_off": True, "total_run_count": 1}
    django.task("done", clocked=django.clocked(now - HOUR), last_run_at=now - HOUR, **ran)
    django.task("once", interval=django.interval(), last_run_at=now - 2 * HOUR, **ran)
    django.task("to be once", interval=django.interval(), one_off=True, last_run_at=now - 2 * HOUR)
    django.task("expired", interval=django.interval(), expires=now - HOUR, last_run_at=now - DAY)
    run(database, "import", "django-celery-beat", "--from", django.url)
    beat().run_due()
    assert sql("SELECT schedule, outcome FROM pgbeat.ticks ORDER BY 1") == [
        ("clocked", "launched"),
        ("cron", "launched"),
        ("missed", "launched"),
        ("to be once", "launched"),
    ]
    disabled = sql("SELECT name, disabled_reason FROM pgbeat.schedules WHERE NOT enabled")
    reasons: dict[str, str] = {row[0]: row[1] for row in disabled}
    assert reasons["done"].startswith("done: it was a one-off, and ran at ")
    assert reasons["once"].startswith("done: it was a one-off, and ran at ")
    assert reasons["expired"].startswith("done: it ended at ")


def test_what_the_old_beat_did_after_an_import_counts(database: str, django: Django) -> None:
    now = datetime.now(UTC)
    interval = django.task("interval", interval=django.interval(), last_run_at=now - 2 * HOUR)
    clocked = django.task("clocked", clocked=django.clocked(now - HOUR), one_off=True)
    command = ("import", "django-celery-beat", "--from", django.url)
    run(database, *command)
    interval.last_run_at = now - HOUR / 2
    interval.save()
    clocked.enabled = False  # as its beat leaves it
    clocked.save()
    result = run(database, *command)
    assert "to 2 schedules:" in result.stdout
    assert when(read(database, "status", "interval")) == now + HOUR / 2
    assert read(database, "status", "clocked")["enabled"] is False


def test_the_apps_entries_stay_the_apps(app: Celery, beat: Beat, django: Django, sql: Sql) -> None:
    """django-celery-beat copies beat_schedule into its tables."""
    app.conf.beat_schedule = {
        "on": {"task": "tests.add", "schedule": HOUR},
        "off": {"task": "tests.add", "schedule": crontab(minute=0)},
    }
    ran = datetime.now(UTC) - timedelta(minutes=5)
    django.task("on", interval=django.interval(), last_run_at=ran, total_run_count=9)
    django.task("off", crontab=django.crontab("0"), enabled=False)
    django.task("other", interval=django.interval(), task="tests.gone")
    result = run_with(app, "import", "django-celery-beat", "--from", django.url)
    assert "to 2 schedules:" in result.stdout
    assert "task 'tests.gone' is not registered in the app" in result.stdout
    rows = "SELECT name, source, enabled, last_run, run_count FROM pgbeat.schedules ORDER BY name"
    assert sql(rows) == [
        ("off", "code", False, None, 0),
        ("on", "code", True, ran, 9),
        ("other", "import", True, None, 0),
    ]
    again = run_with(app, "import", "django-celery-beat", "--from", django.url)
    assert "3 schedules here" in again.stdout
    beat().run_due()
    assert [row[:4] for row in sql(rows)][:2] == [
        ("off", "code", False, None),
        ("on", "code", True, ran),
    ]


def test_what_is_not_moved_and_why(database: str, django: Django) -> None:
    from django_celery_beat.models import PeriodicTask

    interval = django.interval()
    for name in ("args", "args kind", "kwargs", "headers", "headers kind", "none", "two", "fine"):
        django.task(name, interval=interval)

    def set_past_the_checks(name: str, **values: Any) -> None:
        PeriodicTask.objects.filter(name=name).update(**values)

    set_past_the_checks("args", args="[1")
    set_past_the_checks("args kind", args='{"a": 1}')
    set_past_the_checks("kwargs", kwargs="[]x")
    set_past_the_checks("headers", headers="{")
    set_past_the_checks("headers kind", headers="[1]")
    set_past_the_checks("none", interval=None)
    set_past_the_checks("two", crontab=django.crontab())
    django.task("bad cron", crontab=django.crontab("0", "25"))
    answer = read(database, "import", "django-celery-beat", "--from", django.url)
    reasons = {
        step["origin"]: step["reason"] for step in answer["schedules"] if step["action"] == "refuse"
    }
    values = {"args", "args kind", "kwargs", "headers", "headers kind"}
    assert reasons.keys() == {"bad cron", "none", "two"} | values
    for name in values:
        assert f"its {name.split()[0]} " in reasons[name]
    assert [row["name"] for row in read(database, "list")] == ["fine"]


def test_times_without_a_zone(database: str, django: Django) -> None:
    """As Django keeps them with USE_TZ off, in a database that has no zones."""
    import sqlite3

    django.task("s", interval=django.interval(), last_run_at=datetime.now(UTC))
    with sqlite3.connect(django.url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE django_celery_beat_periodictask SET last_run_at = '2026-07-01 12:00:00'"
        )
    connection.close()
    command = ("import", "django-celery-beat", "--from", django.url, "--timezone", "Europe/Oslo")
    run(database, *command)
    assert read(database, "status", "s")["last_run"] == "2026-07-01T10:00:00Z"


def test_older_tables_have_fewer_columns(database: str, django_here: Django, sql: Sql) -> None:
    django_here.task("s", interval=django_here.interval())
    sql(
        "ALTER TABLE django_celery_beat_periodictask DROP clocked_id, DROP expire_seconds, "
        "DROP headers, DROP priority, DROP one_off, DROP start_time"
    )
    assert "Added 1 schedule:" in run(database, "import", "django-celery-beat").stdout


# -- sqlalchemy-celery-beat ---------------------------------------------------------------------


def fill_alchemy(alchemy: Alchemy, ran: datetime) -> None:
    """A task of each kind."""
    m = models()
    common = {"last_run_at": ran, "total_run_count": 5}
    alchemy.task("interval", m.IntervalSchedule(every=1, period="hours"), args="[1]", **common)
    alchemy.task(
        "nightly",
        m.CrontabSchedule(minute="0", hour="2", timezone="Europe/Oslo"),
        queue="slow",
        priority=3,
        **common,
    )
    alchemy.task(
        "both",
        m.CrontabSchedule(minute="0", hour="0", day_of_month="13", day_of_week="fri"),
        **common,
    )
    alchemy.task(
        "sun", m.SolarSchedule(event="sunset", latitude=59.9139, longitude=10.7522), **common
    )
    alchemy.task("clocked", m.ClockedSchedule(clocked_time=NEXT_YEAR), one_off=True)
    alchemy.task("off", m.IntervalSchedule(every=3, period="days"), enabled=False, **common)
    alchemy.task("new", m.IntervalSchedule(every=5, period="minutes"))


def check_alchemy(rows: dict[str, Any], ran: datetime) -> None:
    """The rows that `fill_alchemy`'s tasks become."""
    row = rows["interval"]
    assert row["job_policy"] == {}  # so its jobs are attempted once
    assert (row["every"], row["args"], when(row, "last_run")) == (3600, [1], ran)
    assert (when(row), row["run_count"]) == (ran + HOUR, 5)
    row = rows["nightly"]
    assert (row["cron"], row["timezone"], row["queue"]) == ("0 2 * * *", "Europe/Oslo", "slow")
    assert row["options"] == {"priority": 3, "headers": {"periodic_task_name": "nightly"}}
    assert "BYMONTHDAY=13;BYDAY=FR" in rows["both"]["rrule"]
    assert rows["sun"]["solar"] == "sunset 59.9139 10.7522"
    assert when(rows["clocked"], "once_at") == when(rows["clocked"]) == NEXT_YEAR
    assert rows["off"]["disabled_reason"] == "disabled in sqlalchemy-celery-beat"
    assert (rows["new"]["last_run"], rows["new"]["next_run"]) == (None, None)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [(None, ()), ("celery_schema", ()), ("shop", ("--schema", "shop"))],
    ids=["default", "the models' own", "another"],
)
def test_its_tables_in_a_schema_of_pgbeats_database(
    database: str, schema: str | None, arguments: tuple[str, ...]
) -> None:
    ran = datetime.now(UTC) - timedelta(minutes=10)
    fill_alchemy(Alchemy(sqlalchemy_url(database), schema), ran)
    command = ("import", "sqlalchemy-celery-beat", *arguments)
    assert "Added 7 schedules:" in run(database, *command).stdout
    check_alchemy({row["name"]: row for row in read(database, "list")}, ran)
    assert "7 schedules here" in run(database, *command).stdout
    assert len(read(database, "audit", "--verb", "create", "--kind", "schedule")) == 7


def test_the_apps_settings_say_where_it_is(app: Celery, alchemy: Alchemy) -> None:
    alchemy.task("s", models().IntervalSchedule(every=1, period="hours"))
    app.conf.beat_dburi = alchemy.url
    result = run_with(app, "import", "sqlalchemy-celery-beat")
    assert result.stdout.startswith(f"1 schedule of sqlalchemy-celery-beat in {alchemy.url}.")


# -- where it is --------------------------------------------------------------------------------


def test_databases_that_are_not_right(database: str, tmp_path: Path) -> None:
    def said(*arguments: str, exit_code: int = 1, kind: str = "django-celery-beat") -> str:
        return refused(run(database, "import", kind, *arguments), exit_code)

    assert " django_celery_beat_periodictask " in said()
    assert " celery_periodictask " in said(kind="sqlalchemy-celery-beat")
    assert "no table nowhere.django_celery_beat_periodictask" in said("--schema", "nowhere")
    file = tmp_path / "no.sqlite3"
    assert said("--from", f"sqlite:///{file}") == f"there is no file {file}"
    assert not file.exists()
    assert "can't be parsed" in said("--from", "what is this", exit_code=2)
    assert "can't be parsed" in said("--from", "mysql://user@host:port/db", exit_code=2)
    unknown = said("--from", "nosql://user:secret@host/db", exit_code=2)
    assert "nosql" in unknown and "secret" not in unknown
    assert "mysql.nodriver" in said("--from", "mysql+nodriver://h/d", exit_code=2)
    missing = "reading mysql://h/d needs the package MySQLdb, which is not installed"
    assert said("--from", "mysql://h/d") == missing
    away = said("--from", "postgresql://user:secret@127.0.0.1:1/shop")
    assert "'shop' on 127.0.0.1:1 as user" in away
    assert "secret" not in away
