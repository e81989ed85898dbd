"""The peers that keep schedules in a store: RedBeat, django-celery-beat, sqlalchemy-celery-beat."""

import time
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from beats.contenders import Contender, Persistent, Pgbeat
from beats.spec import DAY, TASK, Fleet


class RedBeat(Contender):
    """RedBeat: schedules in Redis, beside the broker."""

    name = "RedBeat"
    module = "redbeat"
    package = "celery-redbeat"
    scheduler = "redbeat.RedBeatScheduler"
    uses_postgres = False
    change_settings = {"beat_max_loop_interval": 5}  # noqa: RUF012
    change_note = "with a 5 s loop; the default is 300 s"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "redbeat_redis_url": self.spec.redis}

    def seed(self) -> None:
        import json

        import redis
        from celery.schedules import schedule
        from redbeat.decoder import RedBeatJSONEncoder, to_timestamp

        fleet = self.spec.fleet
        client = redis.Redis.from_url(self.spec.redis)
        client.flushall()
        timetable = schedule(fleet.every)
        pipe = client.pipeline(transaction=False)
        for n in range(fleet.count):
            key = f"redbeat:bench-{n}"
            definition = {
                "name": f"bench-{n}",
                "task": TASK,
                "args": [],
                "kwargs": {},
                "options": {},
                "schedule": timetable,
                "enabled": True,
            }
            last, due = (
                datetime.fromtimestamp(when, UTC) for when in (fleet.last_run(n), fleet.next_run(n))
            )
            values = {"definition": definition, "meta": {"last_run_at": last}}
            mapping = {k: json.dumps(v, cls=RedBeatJSONEncoder) for k, v in values.items()}
            pipe.hset(key, mapping=mapping)
            pipe.zadd("redbeat::schedule", {key: to_timestamp(due)})
            if n % 5_000 == 4_999:
                pipe.execute()
        pipe.execute()

    def make_due(self, index: int) -> None:
        from redbeat import RedBeatSchedulerEntry

        from beats.app import app

        entry = RedBeatSchedulerEntry.from_key(f"redbeat:bench-{index}", app=app)
        entry.reschedule(datetime.fromtimestamp(time.time() - 2 * DAY, UTC))


class DjangoCeleryBeat(Contender):
    """django-celery-beat on Postgres, with Django's persistent connections."""

    name = "django-celery-beat"
    module = "django_celery_beat"
    package = "django-celery-beat"
    scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    takeover_note = "none: two beats send twice"

    def prepare(self) -> None:
        import django
        from django.conf import settings
        from sqlalchemy.engine import make_url

        url = make_url(self.spec.database)
        settings.configure(
            SECRET_KEY="benchmark",
            USE_TZ=True,
            TIME_ZONE="UTC",
            INSTALLED_APPS=["django_celery_beat"],
            DEFAULT_AUTO_FIELD="django.db.models.AutoField",
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": url.database,
                    "USER": url.username or "",
                    "PASSWORD": url.password or "",
                    "HOST": url.host or url.query.get("host", ""),
                    "PORT": str(url.port or url.query.get("port", "")),
                    "CONN_MAX_AGE": None,
                }
            },
        )
        django.setup()

    def migrate(self) -> None:
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def seed(self) -> None:
        from django.db import connection
        from django_celery_beat.models import IntervalSchedule, PeriodicTask

        PeriodicTask.objects.all()._raw_delete("default")
        IntervalSchedule.objects.all().delete()
        interval = IntervalSchedule.objects.create(
            every=int(self.spec.fleet.every), period="seconds"
        )
        first = datetime.fromtimestamp(self.spec.fleet.last_run(0), UTC)
        PeriodicTask.objects.create(name="bench-0", task=TASK, interval=interval, last_run_at=first)
        connection.close()
        clone(self.spec.database, PeriodicTask._meta.db_table, self.spec.fleet)

    def warm(self) -> None:
        from django.db import connection

        connection.ensure_connection()

    def make_due(self, index: int) -> None:
        from django_celery_beat.models import PeriodicTask

        task = PeriodicTask.objects.get(name=f"bench-{index}")
        task.last_run_at = datetime.fromtimestamp(time.time() - 2 * DAY, UTC)
        task.save()


class SqlalchemyCeleryBeat(Contender):
    """sqlalchemy-celery-beat on Postgres."""

    name = "sqlalchemy-celery-beat"
    module = "sqlalchemy_celery_beat"
    package = "sqlalchemy-celery-beat"
    scheduler = "sqlalchemy_celery_beat.schedulers:DatabaseScheduler"
    takeover_note = "none: two beats send twice"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "beat_dburi": self._url}

    def migrate(self) -> None:
        self._sessions.prepare_models(self._sessions.create_session(self._url)[0])

    def seed(self) -> None:
        from sqlalchemy import text
        from sqlalchemy_celery_beat.models import IntervalSchedule, PeriodicTask

        with self._sessions.create_session(self._url)[1]() as session:
            session.execute(text("TRUNCATE celery_periodictask, celery_intervalschedule"))
            interval = IntervalSchedule(every=int(self.spec.fleet.every), period="seconds")
            session.add(interval)
            session.commit()
            first = datetime.fromtimestamp(self.spec.fleet.last_run(0), UTC)
            session.add(
                PeriodicTask(name="bench-0", task=TASK, schedule_model=interval, last_run_at=first)
            )
            session.commit()
        clone(self.spec.database, "celery_periodictask", self.spec.fleet)

    def make_due(self, index: int) -> None:
        from sqlalchemy_celery_beat.models import PeriodicTask

        with self._sessions.create_session(self._url)[1]() as session:
            task = session.query(PeriodicTask).filter_by(name=f"bench-{index}").one()
            task.last_run_at = datetime.fromtimestamp(time.time() - 2 * DAY, UTC)
            session.commit()

    @property
    def _url(self) -> str:
        from servers import sqlalchemy

        return sqlalchemy(self.spec.database)

    @cached_property
    def _sessions(self) -> Any:
        from sqlalchemy_celery_beat.session import SessionManager

        return SessionManager()


def clone(database: str, table: str, fleet: Fleet) -> None:
    """Copies the row `bench-0` of `table` into the fleet's other schedules, in the database."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(database, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
            " AND column_name NOT IN ('id', 'name', 'last_run_at')",
            (table,),
        )
        columns = sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows)
        target = sql.Identifier(table)
        connection.execute(
            sql.SQL(
                """
                INSERT INTO {table} (name, last_run_at, {columns})
                SELECT 'bench-' || n,
                    to_timestamp(CASE WHEN n < %(due)s THEN %(due_at)s ELSE %(later_at)s END
                        + n * %(step)s - %(every)s),
                    {columns}
                FROM {table}, generate_series(1, %(count)s - 1) AS n WHERE name = 'bench-0'
                """
            ).format(table=target, columns=columns),
            {
                "every": fleet.every,
                "count": fleet.count,
                "step": fleet.step,
                "due": fleet.due,
                "due_at": fleet.due_at,
                "later_at": fleet.later_at,
            },
        )
        connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(target))


CONTENDERS: dict[str, type[Contender]] = {
    kind.name: kind
    for kind in (Pgbeat, Persistent, DjangoCeleryBeat, RedBeat, SqlalchemyCeleryBeat)
}
