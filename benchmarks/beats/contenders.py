"""The schedulers to compare: how each is configured, seeded, run and changed.

Imports are inside the methods: a subprocess that measures one contender's memory must not load
another's libraries.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from beats.queues import PostgresQueue, Queue, RedisQueue
from beats.spec import TASK, Spec


class Contender(ABC):
    """One scheduler. Made in the parent for its names, in a subprocess to do the work."""

    name: ClassVar[str]
    #: The module to import, and the package on PyPI that has it.
    module: ClassVar[str]
    package: ClassVar[str]
    #: The scheduler's class, as `celery beat -S` takes it.
    scheduler: ClassVar[str]
    uses_redis: ClassVar[bool] = True
    uses_postgres: ClassVar[bool] = True
    #: Repeats of the measure of a change; `None` where a change needs a restart.
    changes: ClassVar[int | None] = 3
    #: Celery settings for the measure of a change only, and what to say about them.
    change_settings: ClassVar[dict[str, Any]] = {}
    change_note: ClassVar[str] = ""
    #: What happens when a beat dies and another stands by, where that is not measured.
    takeover_note: ClassVar[str] = ""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @classmethod
    def installed(cls) -> bool:
        """Whether its package can be imported."""
        try:
            return find_spec(cls.module) is not None
        except ModuleNotFoundError:
            return False

    def settings(self) -> dict[str, Any]:
        """Its Celery settings."""
        return {"broker_url": self.spec.redis}

    def prepare(self) -> None:  # noqa: B027
        """Anything that has to happen before its modules are imported."""

    def migrate(self) -> None:  # noqa: B027
        """Creates its tables in an empty database."""

    @abstractmethod
    def seed(self) -> None:
        """Replaces all schedules by those of the fleet."""

    def run_pass(self, scheduler: Any) -> Any:
        """One pass over the schedules, without waiting."""
        return scheduler.tick()

    def warm(self) -> None:  # noqa: B027
        """Opens what `make_due` needs, so that its cost is not measured."""

    def make_due(self, index: int) -> None:
        """Changes the stored schedule `index` so that it is due now."""
        raise NotImplementedError

    def queue(self) -> Queue:
        """The queue that it publishes to."""
        return RedisQueue(self.spec.redis)


class Pgbeat(Contender):
    """pgbeat, with the stock SQLAlchemy broker in the same database."""

    name = "pgbeat"
    module = "pgbeat.beat.scheduler"
    package = "pgbeat"
    scheduler = "pgbeat.Scheduler"
    uses_redis = False
    changes = 20

    def settings(self) -> dict[str, Any]:
        from servers import sqlalchemy

        return {"broker_url": f"sqla+{sqlalchemy(self.spec.database)}"}

    def migrate(self) -> None:
        from pgbeat.config import postgres_url
        from pgbeat.database.migrations.migrate import upgrade

        upgrade(postgres_url(self.spec.database))

    def empty(self) -> None:
        """Removes all schedules, and what came of them."""
        self._connection.execute("TRUNCATE pgbeat.schedules, pgbeat.ticks, pgbeat.jobs")

    def seed(self) -> None:
        self.empty()
        fleet = self.spec.fleet
        connection = self._connection
        # An interval keeps to the beat of its creation, so that is a due time too.
        more = "".join(f", {name}" for name in fleet.columns)
        values = "".join(f", {value}" for value in fleet.columns.values())
        connection.execute(
            f"""
            INSERT INTO pgbeat.schedules (name, task, every, next_run, created_at{more})
            SELECT 'bench-' || n, %(task)s, every, next_run, next_run - every{values}
            FROM generate_series(0, %(count)s - 1) AS n,
                make_interval(secs => %(every)s) AS every,
                to_timestamp(CASE WHEN n < %(due)s THEN %(due_at)s ELSE %(later_at)s END
                    + n * %(step)s) AS next_run
            """,
            {
                "task": TASK,
                "every": fleet.every,
                "count": fleet.count,
                "step": fleet.step,
                "due": fleet.due,
                "due_at": fleet.due_at,
                "later_at": fleet.later_at,
            },
        )
        # What autovacuum does within a minute of such a load; VACUUM needs autocommit.
        connection.execute("VACUUM (ANALYZE) pgbeat.schedules")

    def run_pass(self, scheduler: Any) -> Any:
        # tick() waits for a change when nothing is due; this is the same pass without the wait.
        return scheduler.run_due()

    def warm(self) -> None:
        self._connection.execute("SELECT 1")

    def make_due(self, index: int) -> None:
        self._connection.execute(
            "UPDATE pgbeat.schedules SET next_run = now() WHERE name = %s", (f"bench-{index}",)
        )

    def queue(self) -> Queue:
        return PostgresQueue(self.spec.database)

    @cached_property
    def _connection(self) -> Any:
        import psycopg

        return psycopg.connect(self.spec.database, autocommit=True)


class Persistent(Contender):
    """Celery's own scheduler: a dict in the app's configuration and a shelve file."""

    name = "PersistentScheduler"
    module = "celery.beat"
    package = "celery"
    scheduler = "celery.beat.PersistentScheduler"
    uses_postgres = False
    changes = None
    change_note = "restart"
    takeover_note = "none: two beats send twice"

    def settings(self) -> dict[str, Any]:
        from celery.schedules import schedule

        fleet = self.spec.fleet
        return {
            **super().settings(),
            "beat_schedule_filename": str(self._file),
            "beat_schedule": {
                f"bench-{n}": {"task": TASK, "schedule": schedule(fleet.every)}
                for n in range(fleet.count)
            },
        }

    def seed(self) -> None:
        # The file that an earlier beat left behind, with the last run of every schedule.
        import shelve
        from datetime import UTC, datetime

        from celery import __version__
        from celery.beat import ScheduleEntry
        from celery.schedules import schedule

        fleet = self.spec.fleet
        for stale in self._file.parent.glob(self._file.name + "*"):
            stale.unlink()
        with shelve.open(str(self._file)) as store:  # noqa: S301
            store.update({"__version__": __version__, "tz": "UTC", "utc_enabled": True})
            store["entries"] = {
                f"bench-{n}": ScheduleEntry(
                    name=f"bench-{n}",
                    task=TASK,
                    schedule=schedule(fleet.every),
                    last_run_at=datetime.fromtimestamp(fleet.last_run(n), UTC),
                )
                for n in range(fleet.count)
            }

    @property
    def _file(self) -> Path:
        return Path(self.spec.folder) / "celerybeat-schedule"
