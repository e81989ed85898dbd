"""What is asked of pgbeat: schedules, jobs, tasks in transactions, and verbs on jobs.

A request counts only once it was answered: one whose answer was lost may have happened or not.
"""

import json
import random
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import kombu.exceptions
import psycopg
from celery import Celery
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DBAPIError

import pgbeat
from pgbeat.access.actors import Actor
from pgbeat.config import postgres_url
from pgbeat.errors import PgbeatError
from pgbeat.jobs.verbs import changes, control
from tests.chaos import app as chaos_app
from tests.chaos import canvases
from tests.chaos.record import Promised
from tests.chaos.site import Site
from tests.support.jobs import job_controls
from tests.support.rows import make_schedule

LANES = {"one": 1, "two": 2}
ADMIN = Actor("user:chaos", True)
#: What goes wrong while the server, or a row, is out of reach.
UNREACHABLE = (DBAPIError, kombu.exceptions.OperationalError, psycopg.Error, OSError)

_SCHEDULES = """
INSERT INTO pgbeat.schedules
    (name, task, launcher, every, kwargs, overlap, catch_up, condition_sql, job_policy, max_retries)
SELECT kind || i, task, launcher, every::interval, kwargs::jsonb, overlap, catch_up, condition,
       job::jsonb, 1000
  FROM (VALUES
    ('plain', 8, 'chaos.work', 'GenericLauncher', '2 seconds', '{}', 'allow', 'latest', NULL, '{}'),
    ('all', 2, 'chaos.work', 'GenericLauncher', '3 seconds', '{}', 'allow', 'all', NULL, '{}'),
    ('asked', 6, 'chaos.work', 'GenericLauncher', '2 seconds', '{}', 'allow', 'latest',
     'SELECT extract(second FROM now())::int % 3 > 0', '{}'),
    ('python', 3, 'chaos.work', 'EveryOther', '2 seconds', '{}', 'allow', 'latest', NULL, '{}'),
    ('skip', 2, 'chaos.work', 'GenericLauncher', '2 seconds', '{"seconds": 3}', 'skip', 'latest',
     NULL, '{}'),
    ('queue', 4, 'chaos.work', 'GenericLauncher', '2 seconds', '{"seconds": 2.5}', 'queue_one',
     'latest', NULL, '{}'),
    ('cancel', 2, 'chaos.work', 'GenericLauncher', '3 seconds', '{"seconds": 4, "how": "obey"}',
     'cancel_previous', 'latest', NULL, '{}'),
    ('lane', 2, 'chaos.work_late', 'GenericLauncher', '2 seconds', '{"seconds": 0.3}', 'allow',
     'latest', NULL, '{"lane": "two"}'),
    ('unique', 2, 'chaos.work', 'GenericLauncher', '2 seconds', '{"seconds": 1}', 'allow', 'latest',
     NULL, '{"unique_key": "shared"}')
  ) AS s (kind, count, task, launcher, every, kwargs, overlap, catch_up, condition, job),
  LATERAL generate_series(1, count) AS i
"""
#: Schedules with the other timetables. `period` (seconds) is that of cron's and rrule's.
_TIMETABLES: dict[str, dict[str, Any]] = {
    "cron": {"cron": "* * * * * */3", "labels": '{"period": "3"}'},
    "rrule": {"rrule": "FREQ=SECONDLY;INTERVAL=4", "labels": '{"period": "4"}'},
    "jitter": {"every": "3 seconds", "jitter": "1 second"},
    "calendar": {"every": "2 seconds", "calendar": "halves"},
    "sunset": {"solar": "sunset 59.91 10.75"},
    "several": {"every": "4 seconds", "launcher": "TwoOrThree", "overlap": "skip"},
    "after1": {"after": "plain1", "after_outcome": "finished"},
    "after2": {"after": "several", "kwargs": '{"seconds": 1}'},
    "after3": {"after": "after1", "overlap": "queue_one", "kwargs": '{"seconds": 2}'},
    "limited": {"every": "2 seconds", "max_runs": 20},
}
#: The first half of each minute.
_HALVES = [
    {
        "from": f"{minute // 60:02}:{minute % 60:02}:00",
        "to": f"{minute // 60:02}:{minute % 60:02}:30",
    }
    for minute in range(24 * 60)
]


def prepare(site: Site) -> None:
    """Makes the lanes and the schedules."""
    for name, limit in LANES.items():
        site.sql("INSERT INTO pgbeat.lanes (name, max_running) VALUES (%s, %s)", name, limit)
    site.sql(_SCHEDULES)
    site.sql(
        "INSERT INTO pgbeat.calendars (name, definition) VALUES ('halves', %s)",
        json.dumps({"windows": _HALVES}),
    )
    for name, values in _TIMETABLES.items():
        make_schedule(site.sql, name, task="chaos.work", max_retries=1000, **values)
    canvases.prepare(site)


class Load:
    """Makes requests from threads of its own, until it is stopped."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.promised = site, Promised()
        self._seed, self._lock = seed, threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        #: Tracebacks of requests that ended in no way that the documents speak of.
        self.errors: list[str] = []
        self.app: Celery = chaos_app.app
        self.app.conf.broker_url = self.app.conf.result_backend = f"pgbeat+{site.dsn}"
        self.app.conf.pgbeat_url = site.dsn

    def start(self) -> None:
        """Begins to make requests."""
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._repeat, args=(what, pause, number), daemon=True)
            for number, (what, pause) in enumerate(
                [
                    (self._submit, 0.4),
                    (self._transact, 1.0),
                    (self._control, 0.7),
                    (self._draw, 1.0),
                    (self._plan, 3.0),
                ]
            )
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops, once the requests under way are answered."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                raise AssertionError("a request was not answered within a minute")

    def _repeat(self, what: Callable[[random.Random], None], pause: float, number: int) -> None:
        self._seed += 1
        chance = random.Random(self._seed * 1000 + number)  # noqa: S311
        while not self._stop.wait(chance.uniform(0, 2 * pause)):
            try:
                what(chance)
            except UNREACHABLE as error:
                self._refuse(f"{type(error).__name__} in {what.__name__}")
            except PgbeatError as error:
                self._refuse(f"{type(error).__name__} in {what.__name__}")
            except Exception:
                self.errors.append(traceback.format_exc())

    def _refuse(self, kind: str) -> None:
        with self._lock:
            self.promised.refused[kind] = self.promised.refused.get(kind, 0) + 1

    def _submit(self, chance: random.Random) -> None:
        """Submits a job, or a group of them."""
        if chance.random() < 0.1:
            members = [self._order(chance) for _ in range(chance.randint(2, 4))]
            for member in members:
                member.pop("unique_key", None)
            made = pgbeat.submit_group(
                [{"task": order.pop("task"), **order} for order in members],
                mode=chance.choice(["parallel", "sequential"]),
                on_failure="continue",
                app=self.app,
            )
            with self._lock:
                for job, order in zip(made.jobs, members, strict=True):
                    self.promised.jobs[str(job.id)] = order
            return
        order = self._order(chance)
        job = pgbeat.submit(
            order["task"], app=self.app, **{k: order[k] for k in order if k != "task"}
        )
        with self._lock:
            self.promised.jobs.setdefault(str(job.id), order)

    def _order(self, chance: random.Random) -> dict[str, Any]:
        how = chance.choices(
            ["return", "fail_once", "fail", "skip", "die", "obey"], [70, 8, 3, 5, 2, 12]
        )[0]
        seconds = round(chance.choice([0, 0.02, 0.1, 0.5, 2.0]) * chance.uniform(0.5, 1.5), 3)
        order: dict[str, Any] = {
            "task": chance.choice(["chaos.work", "chaos.work_late"]),
            "kwargs": {"seconds": seconds, "how": how},
            "max_attempts": chance.choice([1, 3, 3]),
        }
        if chance.random() < 0.2:
            order["lane"] = chance.choice(list(LANES))
        if chance.random() < 0.15:
            order["countdown"] = chance.uniform(0.5, 4)
        if chance.random() < 0.1:
            order["unique_key"] = f"key {chance.randint(1, 3)}"
        return order

    def _transact(self, chance: random.Random) -> None:
        """Publishes plain tasks in a transaction, which commits or rolls back."""
        engine = create_engine(postgres_url(self.site.dsn), poolclass=NullPool)
        commits = chance.random() < 0.7
        with engine.connect() as connection:
            inside = pgbeat.in_transaction(connection, app=self.app)
            ids = [
                chaos_app.plain.apply_async(connection=inside, task_id=str(uuid4())).id
                for _ in range(chance.randint(1, 3))
            ]
            if commits:
                connection.commit()
            else:
                connection.rollback()
        with self._lock:
            (self.promised.committed if commits else self.promised.rolled_back).update(ids)

    def _draw(self, chance: random.Random) -> None:
        """Sends a canvas of tasks with policies, or a unique task."""
        if chance.random() < 0.15:
            one = canvases.send_unique(self.app, chance)
            with self._lock:
                self.promised.unique.add(one)
            return
        sent = canvases.send(self.app, chance, self.promised.unanswered)
        with self._lock:
            self.promised.canvases.append(sent)

    def _plan(self, chance: random.Random) -> None:
        """Schedules one run soon, or runs another schedule out of turn."""
        if chance.random() < 0.3:
            name = f"asked{chance.randint(1, 6)}"
            self.site.sql("UPDATE pgbeat.schedules SET next_run = now() WHERE name = %s", name)
            return
        name, ahead = f"once {uuid4()}", timedelta(seconds=chance.uniform(0, 5))
        self.site.sql(
            "INSERT INTO pgbeat.schedules (name, task, once_at, max_retries)"
            " VALUES (%s, 'chaos.work', now() + %s, 1000)",
            *(name, ahead),
        )
        with self._lock:
            self.promised.once.add(name)

    def _control(self, chance: random.Random) -> None:
        """Cancels, pauses, resumes, updates, hastens or retries a job that was made lately."""
        rows = self.site.sql(
            "SELECT id::text, state FROM pgbeat.jobs WHERE created_at > now() - interval '30 s'"
            " AND schedule IS NULL"
        )
        if not rows:
            return
        job_id, state = chance.choice(rows)
        waits = ("cancel", "pause", "pause", "update", "update", "hasten")
        verbs = {
            "pending": waits,
            "scheduled": waits,
            "running": ("cancel", "nothing", "nothing"),
            "paused": ("resume", "resume", "cancel", "update"),
            "failed": ("retry", "nothing"),
        }
        verb = chance.choice(verbs.get(state, ("nothing",)))
        if verb == "update":
            values: dict[str, Any] = chance.choice(
                [
                    {"priority": chance.randint(0, 9)},
                    {"countdown": timedelta(seconds=2)},
                    {"lane": "two"},
                    {"lane": None},
                    {"max_attempts": 4},
                ]
            )
            self.verb(verb, job_id, values)
        elif verb == "hasten":
            self.verb("update", job_id, {"run_at": None})
        elif verb != "nothing":
            self.verb(verb, job_id)

    def verb(self, verb: str, job_id: str, values: dict[str, Any] | None = None) -> None:
        """Does something with a job, as an administrator."""
        more = {"job_source": "user_api"} if verb == "retry" else {}
        with job_controls(self.site.dsn, self.app) as make:
            job_control = make()
            with job_control.unit(ADMIN).transaction() as unit:
                if values is not None:
                    changes.update(unit, job_id, values=values)
                else:
                    getattr(control, verb)(unit, job_id, **more)

    def release_all(self) -> None:
        for (job_id,) in self.site.sql("SELECT id::text FROM pgbeat.jobs WHERE state = 'paused'"):
            with suppress(PgbeatError):
                self.verb("resume", job_id)
