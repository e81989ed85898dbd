"""A Django project: its app is recognized, and its launchers' ORM survives a lost connection."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.processes import CELERY, ROOT, Processes, shell, until
from tests.support.rows import Sql

pytest.importorskip("django")

_SETTINGS = """
SECRET_KEY = "tests"
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATABASES = {database!r}
CELERY_BROKER_URL = {broker!r}
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None
CELERY_PGBEAT_LOOP_INTERVAL = 1
CELERY_PGBEAT_CONDITION_THREADS = 1
"""
_FILES = {
    "proj/__init__.py": "from proj.celery import app as celery_app\n__all__ = ['celery_app']\n",
    "proj/celery.py": """
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.autodiscover_tasks(related_name="launchers")
""",
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models
class Order(models.Model):
    done = models.BooleanField(default=False)
""",
    "shop/tasks.py": """
from celery import shared_task
@shared_task
def ship(number=0):
    return number
""",
    "shop/launchers.py": """
from django.db import connection
import pgbeat
from shop.models import Order
@pgbeat.launcher
class OpenOrders(pgbeat.Launcher):
    task = "shop.tasks.ship"
    def check_conditions(self, ctx):
        open_orders = Order.objects.filter(done=False).count()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return pgbeat.Skip(f"{open_orders} open, session {cursor.fetchone()[0]}")
""",
}


@pytest.fixture
def project(database: str, tmp_path: Path) -> Path:
    """Makes a Django project with an app, a model, a task and a launcher, on the database."""
    parts = conninfo_to_dict(database)
    orm = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.get("dbname"),
        "USER": parts.get("user"),
        "HOST": parts.get("host", ""),
        "PASSWORD": parts.get("password", ""),
        "PORT": parts.get("port", ""),
        "CONN_MAX_AGE": None,
        "OPTIONS": {"application_name": "orm"},
    }
    from tests.support.databases import sqlalchemy_url

    broker = f"pgbeat+{sqlalchemy_url(database)}"
    settings = _SETTINGS.format(database={"default": orm}, broker=broker)
    for name, content in {**_FILES, "proj/settings.py": settings}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return tmp_path


def celery(folder: Path, *arguments: str, **env: Any) -> "subprocess.CompletedProcess[str]":
    return shell(*CELERY, *arguments, cwd=folder, **env)


def test_the_app_of_a_django_project_is_recognized(project: Path) -> None:
    refused = celery(
        project, "-A", "proj", "pgbeat", "add", "s", "--task", "shop.tasks.shi", "--every", "1h"
    )
    assert refused.returncode == 2, refused.stdout
    assert "did you mean 'shop.tasks.ship'?" in refused.stderr


@pytest.mark.slow
def test_commands_that_need_an_app_work_in_a_django_project(project: Path, sql: Sql) -> None:
    pgbeat = ("-A", "proj", "pgbeat")
    added = celery(project, *pgbeat, "add", "s", "--task", "shop.tasks.ship", "--every", "1h")
    assert (added.returncode, added.stderr) == (0, "")
    assert celery(project, *pgbeat, "trigger", "s").stdout.startswith("launched: job ")
    run = celery(project, *pgbeat, "jobs", "run", "shop.tasks.ship", "--args", "[7]")
    assert (run.returncode, run.stderr) == (0, "")
    assert sql("SELECT task, args FROM pgbeat.jobs ORDER BY created_at") == [
        ("shop.tasks.ship", []),
        ("shop.tasks.ship", [7]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["APP", "app.start", "set_default", "celeryconfig", "CELERY_LOADER"]
)
def test_the_app_is_recognized_however_celery_finds_it(
    way: str, database: str, tmp_path: Path
) -> None:
    from tests.support.databases import broker_url

    module = f"from celery import Celery\napp = Celery('own', broker={broker_url(database)!r})\n"
    module += "@app.task(name='own.add')\ndef add(): ...\n"
    command = ["pgbeat", "add", "s", "--task", "own.ad", "--every", "1h"]
    env = {}
    if way == "APP":
        env = {"APP": "own"}
    elif way == "set_default":
        module += "app.set_default()\n"
        command = ["-A", "own", *command]
    elif way == "celeryconfig":
        config = f"broker_url = {broker_url(database)!r}\nimports = ['tasks_of_config']\n"
        (tmp_path / "celeryconfig.py").write_text(config)
        shared = "from celery import shared_task\n@shared_task(name='own.add')\ndef add(): ...\n"
        (tmp_path / "tasks_of_config.py").write_text(shared)
    elif way == "CELERY_LOADER":
        env = {"CELERY_LOADER": "own:Loader"}
        module = (
            "from celery import shared_task\nfrom celery.loaders.base import BaseLoader\n"
            "@shared_task(name='own.add')\ndef add(): ...\n"
            "class Loader(BaseLoader):\n"
            "    def read_configuration(self, env=None):\n"
            f"        return {{'broker_url': {broker_url(database)!r}}}\n"
        )
    (tmp_path / "own.py").write_text(module)
    if way == "app.start":
        code = f"from own import app; raise SystemExit(app.start({command!r}))"
        run = shell(sys.executable, "-c", code, cwd=tmp_path)
    else:
        run = celery(tmp_path, *command, **env)
        assert run.returncode == 2, run
    assert "did you mean 'own.add'?" in run.stderr


@pytest.mark.slow
def test_the_orm_in_a_launcher_survives_a_lost_connection(
    project: Path, processes: Processes, sql: Sql
) -> None:
    sql("CREATE TABLE shop_order (id bigint PRIMARY KEY, done bool NOT NULL)")
    sql("INSERT INTO shop_order VALUES (1, false), (2, true)")
    sql(
        "INSERT INTO pgbeat.schedules (name, launcher, every, retry_base, retry_cap, max_retries) "
        "VALUES ('s', 'OpenOrders', '1 second', '0.2 seconds', '1 second', 50)"
    )

    def sessions() -> list[str]:
        rows = sql("SELECT reason FROM pgbeat.ticks WHERE outcome = 'skipped' ORDER BY id")
        assert all(row[0].startswith("1 open, session ") for row in rows)
        return [row[0].rpartition(" ")[2] for row in rows]

    processes.env["PYTHONPATH"] = os.pathsep.join([str(project), str(ROOT)])
    beat = ("beat", "-S", "pgbeat.Scheduler", "-l", "INFO", "-s", str(project / "unused"))
    processes.celery("--workdir", str(project), *beat, app="proj")
    until(lambda: len(sessions()) >= 2)
    before = set(sessions())
    assert len(before) == 1, "the ORM keeps its connection (CONN_MAX_AGE)"
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'orm'")
    until(lambda: set(sessions()) - before, what="a decision on a new connection")
    failed = sql("SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'failed'")[0][0]
    assert failed <= 1  # the condition that found its connection gone
