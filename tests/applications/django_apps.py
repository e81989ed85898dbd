"""A Django application on Redis and on pgbeat: its tasks, its mails, a worker that is killed, beat.

Both brokers have a copy of one migrated database, so an application is migrated once.
"""

import json
import socketserver
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from psycopg.conninfo import conninfo_to_dict

from tests.applications.common import Result, Site, difference, environment, until, version
from tests.chaos.broken_builds import BUILDS
from tests.support.processes import Process

#: So many tasks are sent, and the worker is killed when a fifth is finished.
TASKS = 30
#: Redis gives back what a killed worker had after an hour: we don't wait that long.
PATIENCE = 60
#: How long a command of an application may take on a busy machine.
SLOW = 1800
#: What a worker says before it takes messages. Weblate doesn't let it say that it is ready.
STARTED = "mingle: "
#: A schedule for an app that has none.
SCHEDULE = "INSERT INTO pgbeat.schedules (name, task, cron) VALUES ('proof', %s, '0 0 1 1 *')"
SCHEDULES = "SELECT FROM pgbeat.schedules WHERE enabled"
#: The job of each decision of pgbeat's beat.
DECIDED = "SELECT t.outcome, j.state FROM pgbeat.ticks t LEFT JOIN pgbeat.jobs j ON j.id = t.job_id"
#: The script of an application, and what it says to us.
SCRIPT = """
import json, os, time
TASKS, schedules = {1}, 1
{0}
print(json.dumps([checks, schedules]))
"""


class Application(NamedTuple):
    """What one application does in its own way; its commands are in its environment."""

    name: str
    packages: tuple[str, ...]
    #: The settings of a database that stay the same with each broker, as environment variables.
    settings: Callable[[Site, str, "Mailbox"], dict[str, str]]
    #: Those that depend on it: a database, or a Redis's URL with a number in the place of {}.
    broker: Callable[[str, str], dict[str, str]]
    migrate: tuple[str, ...]
    #: Its `celery`, and what its worker needs.
    celery: tuple[str, ...]
    worker: tuple[str, ...]
    #: A script that runs real tasks, sets `checks`, and sends TASKS tasks.
    script: str
    #: How many of these are finished.
    finished: Callable[[Site, str, "Mailbox"], int]
    keeps_redis: bool
    #: A task for pgbeat's beat. Without one, the script sets `schedules`, how many the app has.
    scheduled: str = ""
    #: Checks the application's own beat.
    own_beat: Callable[[Site, str], dict[str, bool]] = lambda site, database: {}
    python: str = sys.executable


class Mailbox(socketserver.ThreadingTCPServer):
    """Takes mails by SMTP at a free port, each in half a second, and keeps their subjects."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Delivery)
        self.subjects: list[bytes] = []
        self.port = str(self.server_address[1])
        Thread(target=self.serve_forever, daemon=True).start()


class _Delivery(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(ConnectionError):  # a client may be killed
            self.wfile.write(b"220 mailbox\r\n")
            for line in self.rfile:
                if line[:4].upper() == b"DATA":
                    self.wfile.write(b"354 go ahead\r\n")
                    mail = iter(self.rfile.readline, b".\r\n")
                    subjects = [row for row in mail if row.startswith(b"Subject: ")]
                    time.sleep(0.5)
                    assert isinstance(self.server, Mailbox)
                    self.server.subjects += subjects[:1]
                self.wfile.write(b"250 OK\r\n")


def reminders(site: Site, database: str, mailbox: Mailbox) -> int:
    """Returns how many of the mails `Reminder 1`, `Reminder 2` … have come."""
    return len({subject for subject in mailbox.subjects if b"Reminder " in subject})


def postgres(dsn: str) -> dict[str, str]:
    """Returns a database as Django's settings have it."""
    parts = conninfo_to_dict(dsn)
    names = ("dbname", "user", "password", "host", "port")
    keys = ("NAME", "USER", "PASSWORD", "HOST", "PORT")
    return {key: str(parts.get(name) or "") for key, name in zip(keys, names, strict=True)}


def run(application: Application, folder: Path, build: str) -> list[Result]:
    """Runs an application on Redis and on pgbeat; on pgbeat alone if that is broken by a build."""
    programs = environment(folder, *application.packages, python=application.python)
    lines: list[dict[str, str]] = []
    results = []
    mailbox = Mailbox()
    with Site(folder, programs, redis=True) as site:
        unchanged = dict(site.env)
        template = site.database("template")
        for broker in ("", "pgbeat") if build else ("", "redis", "pgbeat"):
            database = site.database(broker, "template") if broker else template
            redis = "" if broker == "pgbeat" else site.redis_url.removesuffix("0") + "{}"
            chosen = application.broker(database, redis)
            site.env = unchanged | application.settings(site, database, mailbox) | chosen
            if broker:
                lines.append(chosen)
                results.append(_run_on(application, site, database, mailbox, redis, build))
            else:
                site.run(*application.migrate)
    if not build:
        print(difference(*lines))
    return results


def _run_on(
    application: Application, site: Site, database: str, mailbox: Mailbox, redis: str, build: str
) -> Result:
    """Runs real tasks, kills the worker amid others, and starts a beat."""
    name = "Redis" if redis else "pgbeat"
    if not redis:
        site.run(*application.celery, "pgbeat", "migrate")
        if build:
            site.sql(database, BUILDS[build].sql)
    mailbox.subjects.clear()
    worker = (*application.celery, "worker", "-c", "2", "-l", "INFO", *application.worker)
    site.start("worker", *worker).says(STARTED, SLOW)

    def finished() -> int:
        return application.finished(site, database, mailbox)

    script = site.folder / "script.py"
    script.write_text(SCRIPT.format(application.script, TASKS))
    process = Process(["python", str(script)], site.folder / f"{name}.log", site.env, site.folder)
    until(lambda: finished() >= TASKS // 5 or process.poll(), SLOW, "some tasks are finished")
    site.kill("worker")
    killed, before = time.monotonic(), finished()
    assert process.wait(SLOW) == 0, process.output
    checks, schedules = json.loads(process.output.splitlines()[-1])
    site.start("worker", *worker).says(STARTED, SLOW)
    after = _settled(finished)
    figures = {"finished at the kill": before, "in the end": f"{after} of {TASKS}"}
    figures |= {"mails": len(mailbox.subjects), "without doubles": len(set(mailbox.subjects))}
    figures |= {"seconds from kill to end": round(time.monotonic() - killed)} if not redis else {}
    services = site.services()
    if not redis and not application.keeps_redis:
        del services["redis"]
    if not redis:
        checks[f"{TASKS} of {TASKS} tasks finished"] = after == TASKS
        checks |= application.own_beat(site, database)
        checks |= _launched(application, site, database, schedules)
    site.kill("worker")
    figures |= {each: version(site.programs, each) for each in ("celery", "kombu")}
    title = f"{application.name} {version(site.programs, application.name)}"
    return Result(f"{title} on {name}", checks, services, figures)


def _settled(finished: Callable[[], int]) -> int:
    """Returns how many tasks are finished in the end: all, or as many as for a while."""
    count, changed = finished(), time.monotonic()
    while count < TASKS and time.monotonic() < changed + PATIENCE:
        time.sleep(0.2)
        if (now := finished()) != count:
            count, changed = now, time.monotonic()
    return count


def _launched(application: Application, site: Site, database: str, count: int) -> dict[str, bool]:
    """Runs pgbeat's beat, with all its schedules due at once; `count` jobs or more must succeed."""
    if application.scheduled:
        site.sql(database, SCHEDULE, application.scheduled)
    site.start("beat", *application.celery, "beat", "-S", "pgbeat.Scheduler")
    # Celery adds one if the result backend has rows to clean up.
    until(lambda: len(site.sql(database, SCHEDULES)) >= count, SLOW, f"{count} schedules")
    site.sql(database, "UPDATE pgbeat.schedules SET next_run = now()")

    def ended() -> list[tuple[Any, ...]]:
        rows = site.sql(database, DECIDED)
        return [row for row in rows if row[1] not in ("pending", "scheduled", "running")]

    until(lambda: len(ended()) >= count, SLOW, f"{count} jobs of beat have ended")
    return {f"{count} of pgbeat's schedules": ended().count(("launched", "completed")) >= count}
