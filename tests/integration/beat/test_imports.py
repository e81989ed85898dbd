"""Nothing loads a module that it doesn't need: they cost memory and time at each start."""

import sys

from tests.support.processes import shell
from tests.support.rows import Sql, make_schedule

#: Installed for the tests, and heavy.
NEEDLESS = {
    "alembic",
    "django.db",
    "ephem",
    "fastapi",
    "flower",
    "holidays",
    "jinja2",
    "opentelemetry",
    "prometheus_client",
    "rich",
    "sqlalchemy.orm",
    "starlette",
    "uvicorn",
}
CODE = """
import sys
from pgbeat.beat.scheduler import Scheduler
from tests.support.apps.basic import app

# Celery loads the app's transport with the first message that it makes.
app.conf.broker_url = app.conf.broker_url.replace("sqla+", "pgbeat+")
scheduler = Scheduler(app=app)
assert scheduler.run_due() == 2
scheduler.close()
print(*sys.modules)
"""
#: What a web process does that sends tasks with a policy.
SENDER = """
import sys
before = set(sys.modules)
import pgbeat
print(*set(sys.modules) - before, sep=",")
from celery import Celery

@Celery("shop", broker="pgbeat+postgresql://localhost/x").task(pgbeat={"lane": "gpu"})
def resize(): ...

resize.name
for name in pgbeat.__all__:
    getattr(pgbeat, name)
print(*sys.modules, sep=",")
"""


def test_importing_pgbeat_is_cheap() -> None:
    done = shell(sys.executable, "-c", SENDER)
    assert done.returncode == 0, done.stderr
    imported, used = (set(line.split(",")) for line in done.stdout.splitlines())
    foreign = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert "pgbeat.wiring" in imported and foreign == {"pgbeat"}
    # A caller's session may be the ORM's.
    assert "pgbeat.beat.scheduler" in used and used & NEEDLESS <= {"sqlalchemy.orm"}


def test_a_beat_loads_only_what_it_needs(database: str, sql: Sql) -> None:
    make_schedule(sql, "plain", due="0 seconds", cron="0 * * * *")
    make_schedule(sql, "policy", due="0 seconds", overlap="skip")
    done = shell(sys.executable, "-c", CODE, TESTS_DATABASE=database)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "pgbeat.beat.enqueuer" in loaded
    assert loaded & NEEDLESS == set()
