"""Apps are recognized however Celery finds them; a launcher's ORM survives a lost connection."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_shop import PROJECT
from tests.support.processes import CELERY, Processes, shell, until
from tests.support.rows import Sql, make_schedule

pytest.importorskip("django")


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
    env: dict[str, Any] = {}
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
        run = shell(*CELERY, *command, cwd=tmp_path, **env)
        assert run.returncode == 2, run
    assert "did you mean 'own.add'?" in run.stderr


@pytest.mark.slow
def test_the_orm_in_a_launcher_survives_a_lost_connection(processes: Processes, sql: Sql) -> None:
    sql("CREATE TABLE shop_order (id bigint PRIMARY KEY, is_shipped bool NOT NULL)")
    sql("INSERT INTO shop_order VALUES (1, false), (2, true)")
    retries: Any = {"retry_base": "0.2 seconds", "retry_cap": "1 second", "max_retries": 50}
    make_schedule(sql, task=None, launcher="OpenOrders", every="1 second", **retries)

    def sessions() -> list[str]:
        rows = sql("SELECT reason FROM pgbeat.ticks WHERE outcome = 'skipped' ORDER BY id")
        assert all(row[0].startswith("1 open, session ") for row in rows)
        return [row[0].rpartition(" ")[2] for row in rows]

    settings = {"PGBEAT_LOOP_INTERVAL": "1", "PGBEAT_CONDITION_THREADS": "1"}
    processes.beat(app=PROJECT, SHOP_MAX_AGE="600", **settings)
    until(lambda: len(sessions()) >= 2)
    [before] = set(sessions())  # the ORM keeps its connection (CONN_MAX_AGE)
    sql("SELECT pg_terminate_backend(%s)", int(before))
    until(lambda: set(sessions()) - {before}, what="a decision on a new connection")
    failed = sql("SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'failed'")[0][0]
    assert failed <= 1  # the condition that found its connection gone
